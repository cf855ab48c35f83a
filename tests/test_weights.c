/* attree_weights: they add up and give o, 0 is the weight of a hidden key; of batches whose entries differ, which of
 * weights[] is written, and with what; bad arguments. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "relations.h"

/* ---- What they are ---- */

enum { W_HEADS = 4, W_QUERIES = 30, W_KEYS = 600, W_D = 8, W_E = 9 };

typedef struct weighing {
    attree_desc desc;
    tensors t;
    uint8_t *mask;
    float *bias;
    float sinks[W_HEADS], slopes[W_HEADS];
    int64_t lens[2];
    attree_plan *plan;
    attree_args args;
} weighing;

/* Every feature; row 7 sees nothing, nor does batch entry 1 have a key. */
static weighing *make_weighing(path on, int32_t empty_rows)
{
    weighing *const w = calloc(1, sizeof *w);
    assert_non_null(w);
    *w = (weighing){.sinks = {0.5f, -INFINITY, 2.0f, -1.0f}, .slopes = {0.1f, 0.0f, 0.01f, -0.01f}, .lens = {500, 0}};
    w->desc = desc_on(on, (int64_t[]){2, W_HEADS, 2, W_QUERIES, W_KEYS, W_D, W_E});
    w->desc.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
    w->desc.window_left = 300;
    w->desc.window_right = -1;
    w->desc.softcap = 2.0f;
    w->desc.kv_lens = w->lens;
    w->desc.mask = w->desc.bias = queries_by_keys;
    w->desc.empty_rows = empty_rows;
    w->t = make_tensors(&w->desc, 210);
    w->mask = malloc(W_QUERIES * W_KEYS);
    w->bias = random_floats((int64_t)W_QUERIES * W_KEYS, 211, -2.0f, 2.0f);
    assert_non_null(w->mask);
    for (int64_t n = 0; n < W_QUERIES * W_KEYS; n++)
        w->mask[n] = n % 3 > 0 && n / W_KEYS != 7;
    assert_int_equal(attree_plan_create(&w->plan, &w->desc), ATTREE_OK);
    w->desc.kv_lens = NULL; /* not kept by the plan */
    w->args = (attree_args){.size = sizeof w->args,
                            .q = w->t.q,
                            .k = w->t.k,
                            .v = w->t.v,
                            .o = w->t.o,
                            .lse = w->t.lse,
                            .mask = w->mask,
                            .bias = w->bias,
                            .alibi_slopes = w->slopes,
                            .alibi_heads = W_HEADS,
                            .workspace_bytes = attree_plan_workspace(w->plan)};
    w->args.workspace = aligned_alloc(64, w->args.workspace_bytes);
    assert_non_null(w->args.workspace);
    memset(w->args.workspace, 0xff, w->args.workspace_bytes);
    return w;
}

static void free_weighing(weighing *w)
{
    attree_plan_destroy(w->plan);
    free(w->args.workspace);
    free(w->mask);
    free(w->bias);
    free_tensors(&w->t);
    free(w);
}

/* The weights of query i of head h, batch entry 0: their sum is 1 less the sink's share, their mean of the values is o,
 * they are 0 where the key is hidden. */
static void check_weights_of(const weighing *w, int64_t h, int64_t i)
{
    float weights[W_KEYS];
    memset(weights, 0xff, sizeof weights);
    assert_int_equal(attree_weights(w->plan, &w->args, 0, h, i, weights), ATTREE_OK);
    const float *const v = w->t.v + h / 2 * W_KEYS * W_E;
    const int64_t row = h * W_QUERIES + i, position = i + w->lens[0] - W_QUERIES;
    double sum = 0.0, o[W_E] = {0.0};
    for (int64_t j = 0; j < w->lens[0]; j++) {
        const bool seen = j <= position && j >= position - 300 && w->mask[i * W_KEYS + j];
        assert_true(seen ? weights[j] > 0.0f && weights[j] < 1.0f : weights[j] == 0.0f);
        sum += (double)weights[j];
        for (int64_t e = 0; e < W_E; e++)
            o[e] += (double)weights[j] * (double)v[j * W_E + e];
    }
    for (int64_t j = w->lens[0]; j < W_KEYS; j++) /* padding */
        assert_true(weights[j] == 0.0f);
    const double sink = w->args.sinks ? exp((double)w->sinks[h] - (double)w->t.lse[row]) : 0.0;
    assert_true(close_to(sum, i == 7 ? 0.0 : 1.0 - sink, ROUNDING));
    for (int64_t e = 0; e < W_E; e++)
        assert_true(close_to(o[e], (double)w->t.o[row * W_E + e], ROUNDING));
}

static void check_weights(path on)
{
    for (int sinks = 0; sinks < 2; sinks++) {
        weighing *const w = make_weighing(on, ATTREE_EMPTY_ZERO);
        w->args.sinks = sinks ? w->sinks : NULL;
        w->args.sink_heads = sinks ? W_HEADS : 0;
        assert_int_equal(attree_run(w->plan, &w->args), ATTREE_OK);
        for (int64_t h = 0; h < W_HEADS; h++)
            for (int64_t i = 0; i < W_QUERIES; i++)
                check_weights_of(w, h, i);
        float none[W_KEYS]; /* an entry without keys */
        memset(none, 0xff, sizeof none);
        assert_int_equal(attree_weights(w->plan, &w->args, 1, 3, 29, none), ATTREE_OK);
        for (int64_t j = 0; j < W_KEYS; j++)
            assert_true(none[j] == 0.0f);
        free_weighing(w);
    }
    weighing *const w = make_weighing(on, ATTREE_EMPTY_NAN); /* lse is NaN there; weights are 0 */
    assert_int_equal(attree_run(w->plan, &w->args), ATTREE_OK);
    float weights[W_KEYS];
    memset(weights, 0xff, sizeof weights);
    assert_int_equal(attree_weights(w->plan, &w->args, 0, 0, 7, weights), ATTREE_OK);
    for (int64_t j = 0; j < w->lens[0]; j++)
        assert_true(weights[j] == 0.0f);
    free_weighing(w);
}

static void weights_add_up_and_give_o(void **state)
{
    (void)state;
    on_every_path(check_weights);
}

/* Every other block hidden by the score function, and told to be skipped. */
static void check_weights_of_functions(path on)
{
    const attree_desc d = desc_on(on, (int64_t[]){1, 2, 1, 70, SKIP_KEYS, 8, 1});
    tensors t = make_tensors(&d, 220);
    for (int64_t j = 0; j < t.v_count; j++)
        t.v[j] = (float)odd_block(j);
    atomic_int calls[2] = {0};
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    attree_args args = {.size = sizeof args,
                        .q = t.q,
                        .k = t.k,
                        .v = t.v,
                        .o = t.o,
                        .lse = t.lse,
                        .score = hide_odd_blocks,
                        .block = skip_odd_blocks,
                        .user = calls,
                        .workspace_bytes = attree_plan_workspace(plan)};
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    assert_non_null(args.workspace);
    assert_int_equal(attree_run(plan, &args), ATTREE_OK);
    for (int64_t n = 0; n < t.lse_count; n += 13) {
        float weights[SKIP_KEYS];
        double sum = 0.0;
        assert_true(t.o[n] == 0.0f);
        assert_int_equal(attree_weights(plan, &args, 0, n / 70, n % 70, weights), ATTREE_OK);
        for (int64_t j = 0; j < SKIP_KEYS; j++) {
            assert_true((weights[j] == 0.0f) == odd_block(j));
            sum += (double)weights[j];
        }
        assert_true(close_to(sum, 1.0, ROUNDING));
    }
    free(args.workspace);
    attree_plan_destroy(plan);
    free_tensors(&t);
}

static void weights_know_the_score_function(void **state)
{
    (void)state;
    on_every_path(check_weights_of_functions);
}

static void weights_refuse_what_is_wrong(void **state)
{
    (void)state;
    weighing *const w = make_weighing((path){ATTREE_ISA_AUTO, 1}, ATTREE_EMPTY_ZERO);
    assert_int_equal(attree_run(w->plan, &w->args), ATTREE_OK);
    float weights[W_KEYS];
    memset(weights, 0xff, sizeof weights);
    const float untouched = weights[0];
    const struct {
        int64_t at[3];
        const char *name;
    } bad[] = {{{-1, 0, 0}, "batch"}, {{2, 0, 0}, "batch"},         {{INT64_MAX, 0, 0}, "batch"},
               {{0, -1, 0}, "head"},  {{0, W_HEADS, 0}, "head"},    {{0, INT64_MIN, 0}, "head"},
               {{0, 0, -1}, "query"}, {{0, 0, W_QUERIES}, "query"}, {{0, 0, INT64_MAX}, "query"}};
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
        const int64_t *const at = bad[n].at;
        assert_int_equal(attree_weights(w->plan, &w->args, at[0], at[1], at[2], weights), ATTREE_ERROR_SHAPE);
        assert_non_null(strstr(attree_last_error(), bad[n].name));
    }
    assert_int_equal(attree_weights(NULL, &w->args, 0, 0, 0, weights), ATTREE_ERROR_NULL);
    assert_int_equal(attree_weights(w->plan, NULL, 0, 0, 0, weights), ATTREE_ERROR_NULL);
    assert_int_equal(attree_weights(w->plan, &w->args, 0, 0, 0, NULL), ATTREE_ERROR_NULL);
    assert_non_null(strstr(attree_last_error(), "weights"));
    attree_args args = w->args;
    args.lse = NULL;
    assert_int_equal(attree_weights(w->plan, &args, 0, 0, 0, weights), ATTREE_ERROR_NULL);
    assert_non_null(strstr(attree_last_error(), "lse"));
    args = w->args;
    args.workspace_bytes--;
    assert_int_equal(attree_weights(w->plan, &args, 0, 0, 0, weights), ATTREE_ERROR_WORKSPACE);
    for (int64_t j = 0; j < W_KEYS; j++)
        assert_same_bits(weights + j, &untouched, 1);
    free_weighing(w);
}

/* ---- Entries that differ ---- */

enum { B = 3, KEYS = 600, ROOM = KEYS + 8 };

static const int64_t kv_starts[B + 1] = {0, 300, 300, KEYS}, kv_lens[B] = {290, 0, 257};

/* Entry b has `keys` keys, of which `visible` may be seen; numbers of weights from `keys` on stay as they were. */
static void check_entry(const attree_plan *plan, const attree_args *args, int64_t b, const int64_t counts[2])
{
    float weights[ROOM], untouched[ROOM];
    memset(weights, 0xff, sizeof weights);
    memset(untouched, 0xff, sizeof untouched);
    const int64_t keys = counts[0], visible = counts[1];
    assert_int_equal(attree_weights(plan, args, b, 1, 2, weights), ATTREE_OK);
    double sum = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        assert_true(j < visible ? weights[j] > 0.0f : weights[j] == 0.0f);
        sum += (double)weights[j];
    }
    assert_true(close_to(sum, visible > 0 ? 1.0 : 0.0, 1e-5));
    assert_same_bits(weights + keys, untouched + keys, ROOM - keys);
}

/* entries[b]: keys of batch entry b, and how many of them may be seen. */
static void check_batch(const attree_desc *desc, const int64_t entries[B][2])
{
    attree_plan *plan;
    tensors t = make_tensors(desc, 3);
    attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    assert_int_equal(attree_plan_create(&plan, desc), ATTREE_OK);
    args.workspace_bytes = attree_plan_workspace(plan);
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    assert_int_equal(attree_run(plan, &args), ATTREE_OK);
    for (int64_t b = 0; b < B; b++)
        check_entry(plan, &args, b, entries[b]);
    free(args.workspace);
    attree_plan_destroy(plan);
    free_tensors(&t);
}

static void padding_has_weight_zero(void **state)
{
    (void)state;
    attree_desc d = make_desc(B, 2, 1, 4, KEYS, 8, 8);
    d.kv_lens = kv_lens;
    check_batch(&d, (const int64_t[B][2]){{KEYS, kv_lens[0]}, {KEYS, kv_lens[1]}, {KEYS, kv_lens[2]}});
}

static void ragged_keys_have_weights_of_their_own(void **state)
{
    (void)state;
    attree_desc d = make_desc(B, 2, 1, 4, KEYS, 8, 8);
    d.kv_starts = kv_starts;
    check_batch(&d, (const int64_t[B][2]){{300, 300}, {0, 0}, {300, 300}});
    d.kv_lens = kv_lens;
    check_batch(&d, (const int64_t[B][2]){{290, 290}, {0, 0}, {257, 257}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_add_up_and_give_o),
        cmocka_unit_test(weights_know_the_score_function),
        cmocka_unit_test(weights_refuse_what_is_wrong),
        cmocka_unit_test(padding_has_weight_zero),
        cmocka_unit_test(ragged_keys_have_weights_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
