/* Partial results: shards merged along the tree have the bits of one run, merged in any other way they are near it; and
 * finishing them. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "shards.h"

/* ---- Shards ---- */

typedef struct kind {
    int64_t batch, q_heads, kv_heads, q_len;
    uint32_t flags;
    unsigned features;
    int32_t q_type, k_type, v_type, o_type;
    float softcap;
    int64_t left, right;
} kind;

#define WINDOW ATTREE_USE_WINDOW

static const kind kinds[] = {
    {1, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},                                        /* decode */
    {2, 4, 2, 33, ATTREE_CAUSAL, 0, 0, 0, 0, 0, 0, 0, 0},                           /* prefill at the end */
    {1, 6, 1, 40, ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET, SINKS, 0, 0, 0, 0, 0, 0, 0}, /* at the start: sees one block */
    {1, 6, 2, 5, WINDOW, SINKS | ALIBI, 0, 0, 0, ATTREE_F16, 0, 300, 10},           /* some shards see nothing */
    {1, 2, 2, 9, 0, MASK | BIAS, 0, 0, 0, ATTREE_BF16, 1.5f, 0, 0},                 /* terms of all sorts */
    {2, 3, 3, 4, 0, MASK | BITS | SINKS, 1, 2, 1, 0, 0, 0, 0},                      /* types */
    {3, 4, 2, 3, ATTREE_CAUSAL, SHORT | SINKS, 0, 0, 0, 0, 0, 0, 0},                /* short entries */
    {3, 4, 2, 3, WINDOW, SHORT | ALIBI, 0, 1, 2, 0, 3.0f, 100, 100},                /* windows of short entries */
    {3, 6, 2, 7, ATTREE_CAUSAL, RAGGED | SHORT | SINKS, 0, 0, 0, ATTREE_F16, 0, 0, 0} /* ragged */,
    {2, 4, 1, 6, ATTREE_CAUSAL, SCORE | ALIBI | SINKS, 0, 0, 0, 0, 0, 0, 0}, /* the caller's function */
    {2, 4, 2, 2, ATTREE_CAUSAL, PAGES | SHORT, 0, 0, 0, 0, 0, 0, 0},         /* pages */
    {3, 4, 2, 5, 0, PAGES | RAGGED | BIAS | SINKS, 0, ATTREE_BF16, ATTREE_F16, 0, 0, 0, 0},
    {2, 4, 2, 3, ATTREE_CAUSAL, PANELS, 0, 0, 0, 0, 0, 0, 0},                          /* panels */
    {2, 4, 2, 3, 0, SINKS, 0, ATTREE_I8, ATTREE_I8, 0, 0, 0, 0},                       /* scales */
    {2, 4, 2, 3, WINDOW, PAGES, 0, ATTREE_I8, ATTREE_F8_E4M3, ATTREE_BF16, 0, 900, 0}, /* scales in pages */
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void make_kind(problem *p, int n, int64_t kv_len, uint64_t seed)
{
    const kind *k = &kinds[n];
    attree_desc d = make_desc(k->batch, k->q_heads, k->kv_heads, k->q_len, kv_len, 20, 24);
    d.flags = k->flags;
    d.q_type = k->q_type;
    d.k_type = k->k_type;
    d.v_type = k->v_type;
    d.o_type = k->o_type;
    d.softcap = k->softcap;
    d.window_left = k->left;
    d.window_right = k->right;
    make_problem(p, &d, k->features, seed);
}

static void shards_along_the_tree_give_the_bits_of_one_run(void **state)
{
    (void)state;
    const int64_t blocks[] = {1, 2, 3, 5, 7, 8, 13}, last[] = {256, 1, 100, 255};
    random_source random = {77};
    for (int n = 0; n < KINDS; n++)
        for (int c = 0; c < 7; c++) {
            if (thinned_out())
                continue;
            problem p;
            make_kind(&p, n, (blocks[c] - 1) * BLOCK + last[(n + c) % 4], (uint64_t)(n * 7 + c));
            run_expecting(ATTREE_OK, &p.desc, &p.args);
            bool whole = false; /* cut into single blocks */
            for (int depth = 0; !whole; depth++) {
                float *const states = states_of_node(&p, 0, blocks[c], depth, NULL);
                assert_finishes_to_the_bits_of_one_run(&p, states, depth % 2 == 0);
                free(states);
                whole = (int64_t)1 << depth >= blocks[c];
            }
            float *const states = states_of_node(&p, 0, blocks[c], 64, &random);
            assert_finishes_to_the_bits_of_one_run(&p, states, true);
            free(states);
            free_problem(&p);
        }
}

/* Enough queries that a shard's run has three workers, with and without chunks of keys. */
static void shards_of_several_workers_give_the_bits_of_one_run(void **state)
{
    (void)state;
    const int64_t q_lens[] = {1, 300};
    for (int n = 0; n < 2; n++) {
        attree_desc d = make_desc(1, 4, 1, q_lens[n], 7 * BLOCK + 11, 64, 72);
        d.flags = ATTREE_CAUSAL;
        problem p;
        make_problem(&p, &d, SINKS, 500 + (uint64_t)n);
        run_expecting(ATTREE_OK, &p.desc, &p.args);
        for (int depth = 0; depth < 4; depth++) {
            if (depth != 2 && thinned_out())
                continue;
            float *const states = states_of_node(&p, 0, 8, depth, NULL);
            assert_finishes_to_the_bits_of_one_run(&p, states, depth % 2 == 0);
            free(states);
        }
        free_problem(&p);
    }
}

/* States do not depend on the instruction set or the number of threads either, those of rows with a NaN or an infinite
 * score included. */
static void states_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int n = 0; n < 3 * KINDS; n++) {
        attree_isa isas[8];
        const int turns = 2 * available_isas(isas);
        problem p;
        make_kind(&p, n / 3, 3 * BLOCK + 50, 300 + (uint64_t)n);
        const float spoilt[] = {p.t.q[0], -NAN, INFINITY}; /* in the first query */
        attree__store(p.t.q, p.desc.q_type, 0, spoilt[n % 3]);
        const int64_t count = rows_of(&p) * (p.desc.v_width + 2);
        float *const first = states_of_keys(&p, 2 * BLOCK, p.desc.kv_len);
        for (int turn = 1; turn < turns; turn++) {
            float *const next = states_of_keys(&p, 2 * BLOCK, p.desc.kv_len);
            assert_same_bits(first, next, count);
            free(next);
        }
        free(first);
        free_problem(&p);
    }
}

/* Any cut at block boundaries, merged in any order, right before left too. */
static void shards_in_any_order_are_near_one_run(void **state)
{
    (void)state;
    enum { BLOCKS = 13 };
    random_source random = {5};
    for (int n = 0; n < 60; n++) {
        if (thinned_out() || kinds[n % KINDS].o_type != ATTREE_F32)
            continue;
        problem p;
        make_kind(&p, n % KINDS, BLOCKS * BLOCK - random_integer(&random, 0, 255), 700 + (uint64_t)n);
        run_expecting(ATTREE_OK, &p.desc, &p.args);
        float *parts[BLOCKS + 1];
        int count = 0;
        for (int64_t from = 0; from < BLOCKS;) {
            const int64_t to = from + random_integer(&random, 1, n % 2 ? 3 : BLOCKS - from);
            const int64_t end = to * BLOCK < p.desc.kv_len ? to * BLOCK : p.desc.kv_len;
            parts[count++] = states_of_keys(&p, from * BLOCK, end);
            from = to;
        }
        while (count > 1) {
            const int64_t a = random_integer(&random, 0, count - 1);
            const int64_t b = (a + random_integer(&random, 1, count - 1)) % count;
            merge_states(&p, parts[a], parts[a], parts[b]);
            free(parts[b]);
            parts[b] = parts[--count];
        }
        float *const result = finished(&p, parts[0], true);
        for (int64_t i = 0; i < p.t.o_count + p.t.lse_count; i++) {
            const float expected = i < p.t.o_count ? p.t.o[i] : p.t.lse[i - p.t.o_count];
            assert_true(close_to((double)expected, (double)result[i], merging_bound(BLOCKS)));
        }
        free(result);
        free(parts[0]);
        free_problem(&p);
    }
}

static void assert_empty_state(const float *s, int64_t v_width)
{
    float empty[64];
    assert_int_equal(attree_state_init_f32(empty, v_width), ATTREE_OK);
    assert_same_bits(empty, s, v_width + 2);
}

/* Whatever hides the keys, and with values that would show if they were multiplied by zero. */
static void rows_that_see_nothing_have_the_empty_state(void **state)
{
    (void)state;
    enum { K = 3 * BLOCK, Q = 5, E = 24 };
    static uint8_t mask[Q * K];
    static float bias[K];
    for (int j = 0; j < K; j++)
        bias[j] = j >= BLOCK && j < 2 * BLOCK ? -INFINITY : 0.0f;
    for (int n = 0; n < Q * K; n++)
        mask[n] = bias[n % K] == 0.0f;
    for (int way = 0; way < 5; way++)
        for (int turn = 0; turn < 8; turn++) { /* instruction sets */
            attree_desc d = make_desc(2, 2, 1, Q, K, 20, E);
            d.q_offset = way == 0 ? BLOCK - Q : 2 * BLOCK + 10;
            d.flags = ATTREE_USE_Q_OFFSET | (way == 0 ? ATTREE_CAUSAL : way == 1 ? ATTREE_USE_WINDOW : 0);
            d.window_left = d.window_right = 5;
            d.mask.batches = d.mask.heads = d.bias.batches = d.bias.heads = d.bias.queries = 1;
            problem p;
            make_problem(&p, &d, SINKS, 900);
            const int64_t lens[] = {BLOCK, 7};
            p.desc.kv_lens = way == 2 ? lens : NULL;
            p.args.mask = way == 3 ? mask : NULL;
            p.args.bias = way == 4 ? bias : NULL;
            for (int64_t n = 0; n < p.t.v_count; n += 3)
                p.t.v[n] = n % 2 ? INFINITY : NAN;
            float *const states = states_of_keys(&p, BLOCK, 2 * BLOCK);
            for (int64_t r = 0; r < rows_of(&p); r++)
                assert_empty_state(states + r * (E + 2), E);
            free(states);
            free_problem(&p);
        }
}

static void empty_shards_have_empty_states(void **state)
{
    (void)state;
    const int64_t at[] = {256, 512, 700};
    for (int n = 0; n < KINDS; n++)
        for (int i = 0; i < 3; i++) {
            problem p;
            make_kind(&p, n, 700, 950);
            float *const states = states_of_keys(&p, at[i], at[i]);
            for (int64_t r = 0; r < rows_of(&p); r++)
                assert_empty_state(states + r * 26, 24);
            free(states);
            free_problem(&p);
        }
}

/* Keys of NaN or infinity: in the shard that holds them, rows that see them have m = inf and l = NaN; finished they are
 * NaN, and all other rows have the bits that they have without them. */
static void poisoned_rows_stay_so_and_spoil_no_other(void **state)
{
    (void)state;
    enum { K = 4 * BLOCK + 9, Q = 12, D = 20, E = 24, BAD = K - 6 };
    for (int turn = 0; turn < 24; turn++) {
        attree_desc d = make_desc(1, 2, 1, Q, K, D, E);
        d.flags = ATTREE_CAUSAL;
        problem p;
        make_problem(&p, &d, turn % 2 ? SINKS : 0, 1000);
        for (int64_t n = 0; n < p.t.q_count; n++)
            p.t.q[n] = fabsf(p.t.q[n]) + 0.5f; /* a key of infinities has the score inf, not inf - inf */
        float *const clean = result_of(&p.desc, &p.t);
        for (int64_t c = 0; c < D; c++)
            p.t.k[(int64_t)BAD * D + c] = turn % 4 < 2 ? NAN : INFINITY;
        run_expecting(ATTREE_OK, &p.desc, &p.args);
        float *const states = states_of_node(&p, 0, 5, 1 + turn % 3, NULL);
        assert_finishes_to_the_bits_of_one_run(&p, states, true);
        for (int64_t r = 0; r < rows_of(&p); r++) {
            const bool bad = r % Q + K - Q >= BAD;
            const float *const s = states + r * (E + 2);
            assert_true(bad ? s[0] == INFINITY && isnan(s[1]) : isfinite(s[0]) && isfinite(s[1]));
            assert_true((isnan(p.t.o[r * E]) != 0) == bad);
            if (!bad && !p.args.sinks)
                assert_same_bits(clean + r * E, p.t.o + r * E, E);
        }
        free(states);
        free(clean);
        free_problem(&p);
    }
}

/* A state that somebody else spoilt, in m, in l or in u, is NaN where it was spoilt, whatever it is merged with. */
static void merging_keeps_nan(void **state)
{
    (void)state;
    const float others[] = {-1e30f, -100.0f, 0.0f, 100.0f, 1e30f};
    for (int n = 0; n < 5 * 3 * 2; n++) {
        const int spoilt = n / 2 % 3;
        float bad[4] = {1.0f, 2.0f, 3.0f, 4.0f}, merged[4];
        bad[spoilt] = NAN;
        const float good[4] = {others[n / 6], 2.0f, 3.0f, 4.0f};
        assert_int_equal(attree_states_merge(merged, n % 2 ? good : bad, n % 2 ? bad : good, 1, 2), ATTREE_OK);
        attree_desc d = make_desc(1, 1, 1, 1, 8, 4, 2);
        float o[2], lse;
        assert_int_equal(finish(&d, &(attree_args){.states = merged, .o = o, .lse = &lse}), ATTREE_OK);
        assert_true(isnan(o[0]));
        assert_true(spoilt == 2 ? isfinite(o[1]) && isfinite(lse) : isnan(o[1]) && isnan(lse));
    }
}

/* Many rows at once have the bits of each alone by the state algebra, in place too; empty states are neutral. */
static void merging_rows_is_merging_each(void **state)
{
    (void)state;
    enum { ROWS = 200, E = 13, N = E + 2 };
    random_source random = {31};
    float left[ROWS * N], right[ROWS * N], expected[ROWS * N], result[ROWS * N];
    for (int r = 0; r < ROWS; r++) {
        fill_random(left + r * N, N, &random, -1.0f, 1.0f);
        fill_random(right + r * N, N, &random, -1.0f, 1.0f);
        left[r * N] = random_float(&random, -60.0f, 60.0f);
        right[r * N] = random_float(&random, -60.0f, 60.0f);
        left[r * N + 5] = -0.0f;
        right[r * N + 5] = r % 2 ? -0.0f : 0.0f;
        if (r % 5 == 0)
            attree_state_init_f32(left + r * N, E);
        if (r % 7 == 0)
            attree_state_init_f32(right + r * N, E);
        assert_int_equal(attree_state_merge_f32(expected + r * N, left + r * N, right + r * N, E), ATTREE_OK);
        if (r % 5 == 0 || r % 7 == 0)
            assert_same_bits(expected + r * N, (r % 7 == 0 ? left : right) + r * N, N);
    }
    assert_int_equal(attree_states_merge(result, left, right, ROWS, E), ATTREE_OK);
    assert_same_bits(expected, result, ROWS * N);
    memcpy(result, left, sizeof left);
    assert_int_equal(attree_states_merge(result, result, right, ROWS, E), ATTREE_OK);
    assert_same_bits(expected, result, ROWS * N);
    memcpy(result, right, sizeof right);
    assert_int_equal(attree_states_merge(result, left, result, ROWS, E), ATTREE_OK);
    assert_same_bits(expected, result, ROWS * N);
    assert_int_equal(attree_states_merge(NULL, NULL, NULL, 0, E), ATTREE_OK);
}

/* ---- Finishing ---- */

/* A sink counts once however many shards there are and whichever of them are empty; it may be all that a row has. */
static void a_sink_counts_once(void **state)
{
    (void)state;
    const int64_t shards[] = {1, 2, 3, 8};
    for (int n = 0; n < 4; n++)
        for (int hidden = 0; hidden < 3; hidden++) { /* nothing; the first shard; everything */
            const int64_t keys = shards[n] * BLOCK;
            attree_desc d = make_desc(1, 1, 1, 1, keys, 4, 2);
            problem p;
            make_problem(&p, &d, SINKS, 1);
            memset(p.t.k, 0, (size_t)p.t.k_count * sizeof(float));
            for (int64_t i = 0; i < p.t.v_count; i++)
                p.t.v[i] = 1.0f;
            p.sinks[0] = 1.0f;
            p.mask = calloc((size_t)keys, 1);
            const int64_t from = hidden == 0 ? 0 : hidden == 1 ? BLOCK : keys;
            memset(p.mask + from, 1, (size_t)(keys - from));
            p.args.mask = p.mask;
            float *const states = states_of_node(&p, 0, shards[n], 64, NULL);
            float *const result = finished(&p, states, true);
            const double seen = (double)(keys - from), all = seen + exp(1.0);
            assert_true(close_to(seen / all, (double)result[0], 0x1p-22));
            assert_true(close_to(log(all), (double)result[2], 0x1p-20));
            if (from == keys) {
                assert_same_bits(result, ((float[2]){0.0f, 0.0f}), 2);
                assert_same_bits(result + 2, p.sinks, 1);
            }
            free(result);
            free(states);
            free_problem(&p);
        }
}

static void finishing_obeys_the_rule_for_empty_rows(void **state)
{
    (void)state;
    enum { K = 2 * BLOCK, Q = 4, E = 24 };
    for (int32_t rule = ATTREE_EMPTY_ZERO; rule <= ATTREE_EMPTY_ERROR; rule++)
        for (int with_lse = 0; with_lse < 2; with_lse++) {
            attree_desc d = make_desc(2, 2, 1, Q, K, 20, E);
            d.flags = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET;
            d.q_offset = -2; /* queries 0 and 1 see nothing */
            d.empty_rows = rule;
            d.o = (attree_strides){1, 2 * Q * E * 2, 2 * E * 2, 4}; /* batches interleaved, every other float free */
            problem p;
            make_problem(&p, &d, 0, 1100);
            float *const states = states_of_node(&p, 0, 2, 1, NULL);
            const attree_status expected = rule == ATTREE_EMPTY_ERROR ? ATTREE_ERROR_EMPTY : ATTREE_OK;
            float o[2][4 * 2 * 2 * Q * E], lse[2][2 * 2 * Q];
            memset(o, 0xff, sizeof o);
            memset(lse, 0xff, sizeof lse);
            p.args.o = o[0];
            p.args.lse = with_lse ? lse[0] : NULL;
            run_expecting(expected, &p.desc, &p.args);
            const attree_args args = {.states = states, .o = o[1], .lse = with_lse ? lse[1] : NULL};
            assert_int_equal(finish(&p.desc, &args), expected);
            if (rule == ATTREE_EMPTY_ERROR)
                assert_non_null(strstr(attree_last_error(), "query 0 of head 0, batch 0"));
            assert_same_bits(o[0], o[1], sizeof o[0] / sizeof(float));
            assert_same_bits(lse[0], lse[1], sizeof lse[0] / sizeof(float));
            const float first = o[1][0];
            assert_true(rule == ATTREE_EMPTY_NAN ? isnan(first) != 0 : first == 0.0f);
            free(states);
            free_problem(&p);
        }
}

static void finishing_refuses_what_it_must(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 1, 1, 2, 300, 4, 2);
    float states[8] = {0.0f, 1.0f, 1.0f, 1.0f, 0.0f, 1.0f, 1.0f, 1.0f}, o[4], lse[2], zeros[4] = {0.0f};
    const float nan_sink = NAN;
    memset(o, 0xff, sizeof o);
    const struct {
        attree_status status;
        attree_args args;
    } cases[] = {
        {ATTREE_ERROR_NULL, {.o = o, .lse = lse}},
        {ATTREE_ERROR_NULL, {.states = states, .lse = lse}},
        {ATTREE_ERROR_ALIAS, {.states = states, .o = states + 4, .lse = lse}},
        {ATTREE_ERROR_ALIAS, {.states = states, .o = o, .lse = states}},
        {ATTREE_ERROR_ALIAS, {.states = states, .o = zeros, .sinks = zeros + 3, .sink_heads = 1}},
        {ATTREE_ERROR_SHAPE, {.states = states, .o = o, .sinks = &nan_sink, .sink_heads = 2}},
        {ATTREE_ERROR_NONFINITE, {.states = states, .o = o, .sinks = &nan_sink, .sink_heads = 1}},
        {ATTREE_ERROR_ALIGN, {.states = (float *)(void *)((char *)states + 1), .o = o}},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        assert_int_equal(finish(&d, &cases[n].args), cases[n].status);
    assert_true(isnan(o[0]) && isnan(o[3]));
    d.q_len = 0;
    assert_int_equal(finish(&d, &(attree_args){.size = 0}), ATTREE_OK);
    assert_int_equal(attree_states_merge(states, NULL, states, 1, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_states_merge(states, states, states, -1, 2), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_states_merge(states, states, states, 1, 0), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_states_merge(states, states, states, INT64_MAX / 2, 2), ATTREE_ERROR_OVERFLOW);
}

/* o of two bytes for each row fits 64 bits, states of twelve do not. */
static void states_of_too_many_rows_are_not_finished(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 1, 1, (int64_t)1 << 59, 0, 0, 1);
    d.o_type = ATTREE_F16;
    float states[3] = {0.0f, 1.0f, 1.0f};
    assert_int_equal(finish(&d, &(attree_args){.states = states, .o = states}), ATTREE_ERROR_OVERFLOW);
}

static void trees_split_at_the_largest_power_of_two_below(void **state)
{
    (void)state;
    const int64_t splits[][2] = {{-1, 0}, {0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 4}, {8, 4}, {9, 8}, {1000, 512}};
    for (int n = 0; n < 10; n++)
        assert_int_equal(attree_tree_split(splits[n][0]), splits[n][1]);
    assert_int_equal(attree_tree_split(INT64_MAX), (int64_t)1 << 62);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_along_the_tree_give_the_bits_of_one_run),
        cmocka_unit_test(shards_of_several_workers_give_the_bits_of_one_run),
        cmocka_unit_test(states_have_the_same_bits_everywhere),
        cmocka_unit_test(shards_in_any_order_are_near_one_run),
        cmocka_unit_test(rows_that_see_nothing_have_the_empty_state),
        cmocka_unit_test(empty_shards_have_empty_states),
        cmocka_unit_test(poisoned_rows_stay_so_and_spoil_no_other),
        cmocka_unit_test(merging_keeps_nan),
        cmocka_unit_test(merging_rows_is_merging_each),
        cmocka_unit_test(a_sink_counts_once),
        cmocka_unit_test(finishing_obeys_the_rule_for_empty_rows),
        cmocka_unit_test(finishing_refuses_what_it_must),
        cmocka_unit_test(states_of_too_many_rows_are_not_finished),
        cmocka_unit_test(trees_split_at_the_largest_power_of_two_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
