/* The bit contract, end to end: o and lse have the same bits for any instruction set, thread count, batch, chunking of
 * the queries, layout and grouping. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

/* Shapes with odd widths, block counts on both sides of powers of two, groups, and both alignments. */
static const struct shape {
    int64_t batch, q_heads, kv_heads, q_len, kv_len, qk_width, v_width;
    uint32_t flags;
    int64_t q_offset;
} shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, 0},
    {2, 6, 2, 5, 300, 40, 24, ATTREE_CAUSAL, 0},
    {1, 4, 4, 130, 700, 64, 64, ATTREE_CAUSAL, 0},
    {1, 8, 1, 1, 5000, 33, 65, 0, 0},
    {3, 2, 1, 40, 513, 15, 15, ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET, 0},
    {1, 7, 1, 3, 2049, 96, 80, ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET, 100},
    {1, 1, 1, 1, 40000, 16, 16, 0, 0},
    {1, 2, 2, 600, 600, 32, 48, ATTREE_CAUSAL, 0},
    {2, 3, 3, 70, 256, 128, 128, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static attree_desc desc_of(const struct shape *s)
{
    attree_desc d = make_desc(s->batch, s->q_heads, s->kv_heads, s->q_len, s->kv_len, s->qk_width, s->v_width);
    d.flags = s->flags;
    d.q_offset = s->q_offset;
    return d;
}

/* The same, with types in every mix. */
static attree_desc typed_desc_of(int n)
{
    attree_desc d = desc_of(&shapes[n]);
    d.q_type = n % 3;
    d.k_type = (n + 1) % 3;
    d.v_type = (n / 3 + 1) % 3;
    d.o_type = (n / 2) % 3;
    return d;
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int n = 0; n < 2 * SHAPES; n++) {
        attree_desc d = n < SHAPES ? desc_of(&shapes[n]) : typed_desc_of(n - SHAPES);
        tensors t = make_tensors(&d, (uint64_t)n);
        d.isa = (int32_t)isas[0];
        float *const expected = result_of(&d, &t);
        for (int i = 1; i < count; i++) {
            d.isa = (int32_t)isas[i];
            float *const got = result_of(&d, &t);
            assert_same_bits(expected, got, t.o_count + t.lse_count);
            free(got);
        }
        free(expected);
        free_tensors(&t);
    }
}

static void every_thread_count_gives_the_same_bits(void **state)
{
    (void)state;
    const int32_t threads[] = {2, 3, 7, 64, 300};
    for (int n = 0; n < 2 * SHAPES; n++) {
        attree_desc d = n < SHAPES ? desc_of(&shapes[n]) : typed_desc_of(n - SHAPES);
        tensors t = make_tensors(&d, (uint64_t)n + 20);
        d.threads = 1;
        float *const expected = result_of(&d, &t);
        for (int i = 0; i < 5; i++)
            for (int run = 0; run < 3; run++) {
                if (thinned_out())
                    continue;
                d.threads = threads[i];
                float *const got = result_of(&d, &t);
                assert_same_bits(expected, got, t.o_count + t.lse_count);
                free(got);
            }
        free(expected);
        free_tensors(&t);
    }
}

static void threads_are_really_used(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 1, 1, 1, 65536, 64, 64);
    d.threads = 3;
    attree_plan *plan;
    char text[256];
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    assert_int_equal(attree_plan_describe(plan, text, sizeof text), ATTREE_OK);
    assert_non_null(strstr(text, "3 workers"));
    assert_int_equal(attree_plan_phases(plan), 2); /* the keys of the one head are split */
    attree_plan_destroy(plan);
}

/* Nothing of size Q x K, and nothing of size K: 8192 x 8192 with 8 heads stays under 16 MiB for each thread. */
static void workspace_is_small(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 64; threads *= 2) {
        attree_desc d = make_desc(1, 8, 8, 8192, 8192, 128, 128);
        d.threads = threads;
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
        assert_true(attree_plan_workspace(plan) < (size_t)threads << 24);
        attree_plan_destroy(plan);
    }
}

/* A problem of a few microseconds is not worth waking other threads. */
static void tiny_problems_stay_on_one_thread(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 1, 1, 1, 64, 64, 64);
    d.threads = 64;
    attree_plan *plan;
    char text[256];
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    assert_int_equal(attree_plan_describe(plan, text, sizeof text), ATTREE_OK);
    assert_non_null(strstr(text, " 1 workers"));
    attree_plan_destroy(plan);
}

/* Rows and heads of a problem, each computed alone, against the whole. */
static void a_row_alone_has_the_bits_it_has_in_a_batch(void **state)
{
    (void)state;
    for (int n = 0; n < SHAPES; n++) {
        attree_desc whole = desc_of(&shapes[n]);
        const int64_t offset = whole.flags & ATTREE_USE_Q_OFFSET ? whole.q_offset : whole.kv_len - whole.q_len;
        const int64_t group = whole.q_heads / whole.kv_heads;
        tensors t = make_tensors(&whole, (uint64_t)n + 40);
        run_tensors(&whole, &t);
        for (int64_t b = 0; b < whole.batch; b++)
            for (int64_t h = 0; h < whole.q_heads; h++)
                for (int64_t i = 0; i < whole.q_len; i += 1 + whole.q_len / 20) {
                    if (thinned_out())
                        continue;
                    attree_desc one = make_desc(1, 1, 1, 1, whole.kv_len, whole.qk_width, whole.v_width);
                    one.flags = whole.flags | ATTREE_USE_Q_OFFSET;
                    one.q_offset = i + offset;
                    const int64_t row = (b * whole.q_heads + h) * whole.q_len + i;
                    const int64_t key = (b * whole.kv_heads + h / group) * whole.kv_len;
                    float o[128], lse;
                    const attree_args args = {.q = t.q + row * whole.qk_width,
                                              .k = t.k + key * whole.qk_width,
                                              .v = t.v + key * whole.v_width,
                                              .o = o,
                                              .lse = &lse};
                    run_expecting(ATTREE_OK, &one, &args);
                    assert_same_bits(t.o + row * whole.v_width, o, whole.v_width);
                    assert_same_bits(t.lse + row, &lse, 1);
                }
        free_tensors(&t);
    }
}

/* A causal prefill of n tokens in one call, in chunks, and token by token as a decoder does, with the cache growing. */
static void prefill_has_the_bits_of_chunks_and_of_single_tokens(void **state)
{
    (void)state;
    enum { TOKENS = 600, WIDTH = 24, HEADS = 4, GROUPS = 2 };
    attree_desc whole = make_desc(1, HEADS, GROUPS, TOKENS, TOKENS, WIDTH, WIDTH);
    whole.flags = ATTREE_CAUSAL;
    tensors t = make_tensors(&whole, 60);
    run_tensors(&whole, &t);
    const int64_t steps[] = {1, 7, 64, 255, 256, 257, 599};
    for (int n = 0; n < 7; n++)
        for (int64_t from = 0; from < TOKENS; from += steps[n]) {
            if (thinned_out())
                continue;
            const int64_t tokens = from + steps[n] < TOKENS ? steps[n] : TOKENS - from;
            attree_desc part = make_desc(1, HEADS, GROUPS, tokens, from + tokens, WIDTH, WIDTH);
            part.flags = ATTREE_CAUSAL;
            part.q = (attree_strides){0, TOKENS * WIDTH, WIDTH, 1};
            part.k = part.v = part.q;
            float o[HEADS * TOKENS * WIDTH], lse[HEADS * TOKENS];
            const attree_args args = {.q = t.q + from * WIDTH, .k = t.k, .v = t.v, .o = o, .lse = lse};
            run_expecting(ATTREE_OK, &part, &args);
            for (int64_t h = 0; h < HEADS; h++) {
                assert_same_bits(t.o + (h * TOKENS + from) * WIDTH, o + h * tokens * WIDTH, tokens * WIDTH);
                assert_same_bits(t.lse + h * TOKENS + from, lse + h * tokens, tokens);
            }
        }
    free_tensors(&t);
}

/* Copies between the dense tensor [B, H, N, W] and a strided one; direction: to the strided one when into is set. */
static void restride(float *strided, attree_strides s, float *dense, const int64_t size[4], bool into)
{
    for (int64_t b = 0; b < size[0]; b++)
        for (int64_t h = 0; h < size[1]; h++)
            for (int64_t n = 0; n < size[2]; n++)
                for (int64_t c = 0; c < size[3]; c++) {
                    float *const at = strided + b * s.batch + h * s.head + n * s.token + c * s.width;
                    float *const plain = dense + ((b * size[1] + h) * size[2] + n) * size[3] + c;
                    if (into)
                        *at = *plain;
                    else
                        *plain = *at;
                }
}

/* Strides of [B, H, N, W] stored with the dimensions in the order given, slowest first, the fastest spread by gap. */
static attree_strides strides_in_order(const int64_t size[4], const int order[4], int64_t gap)
{
    int64_t stride[4], step = gap;
    for (int d = 3; d >= 0; d--) {
        stride[order[d]] = step;
        step *= size[order[d]] + (d == 2); /* a pad after each run of the second fastest */
    }
    return (attree_strides){stride[0], stride[1], stride[2], stride[3]};
}

static void every_layout_gives_the_same_bits(void **state)
{
    (void)state;
    static const int orders[24][4] = {
        {0, 1, 2, 3}, {0, 1, 3, 2}, {0, 2, 1, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}, {0, 3, 2, 1}, {1, 0, 2, 3}, {1, 0, 3, 2},
        {1, 2, 0, 3}, {1, 2, 3, 0}, {1, 3, 0, 2}, {1, 3, 2, 0}, {2, 0, 1, 3}, {2, 0, 3, 1}, {2, 1, 0, 3}, {2, 1, 3, 0},
        {2, 3, 0, 1}, {2, 3, 1, 0}, {3, 0, 1, 2}, {3, 0, 2, 1}, {3, 1, 0, 2}, {3, 1, 2, 0}, {3, 2, 0, 1}, {3, 2, 1, 0},
    };
    const int64_t q_lens[] = {2, 50};
    for (int n = 0; n < 48; n++) {
        attree_desc d = make_desc(2, 4, 2, q_lens[n % 2], 300, 20, 36);
        d.flags = ATTREE_CAUSAL;
        tensors t = make_tensors(&d, (uint64_t)n + 80);
        run_tensors(&d, &t);

        const int64_t sizes[4][4] = {{2, 4, d.q_len, 20}, {2, 2, 300, 20}, {2, 2, 300, 36}, {2, 4, d.q_len, 36}};
        float *const dense[4] = {t.q, t.k, t.v, t.o};
        attree_strides *const strides[4] = {&d.q, &d.k, &d.v, &d.o};
        float *strided[4];
        for (int i = 0; i < 4; i++) {
            *strides[i] = strides_in_order(sizes[i], orders[(n / 2 + 5 * i) % 24], 1 + (n + i) % 2);
            strided[i] = malloc(4u * 2 * 2 * 5 * 301 * 37 * sizeof(float));
            assert_non_null(strided[i]);
            memset(strided[i], 0xff, 4u * 2 * 2 * 5 * 301 * 37 * sizeof(float));
            if (i < 3)
                restride(strided[i], *strides[i], dense[i], sizes[i], true);
        }
        d.lse = (attree_strides){1, 2 * d.q_len + 2, 2, 77};
        float lse[2 * 4 * 102];
        const attree_args args = {.q = strided[0], .k = strided[1], .v = strided[2], .o = strided[3], .lse = lse};
        run_expecting(ATTREE_OK, &d, &args);
        float o[2 * 4 * 50 * 36], dense_lse[2 * 4 * 50];
        restride(strided[3], d.o, o, sizes[3], false);
        restride(lse, (attree_strides){1, 2 * d.q_len + 2, 2, 0}, dense_lse, (int64_t[4]){2, 4, d.q_len, 1}, false);
        assert_same_bits(t.o, o, t.o_count);
        assert_same_bits(t.lse, dense_lse, t.lse_count);
        for (int i = 0; i < 4; i++)
            free(strided[i]);
        free_tensors(&t);
    }
}

/* K and V as [B, K, G, D], with rows so long that heads read them in turns. */
static void heads_beside_each_other_give_the_same_bits(void **state)
{
    (void)state;
    enum { BATCH = 2, GROUPS = 16, KEYS = 2500, WIDTH = 64, COUNT = BATCH * GROUPS * KEYS * WIDTH };
    const int64_t size[4] = {BATCH, GROUPS, KEYS, WIDTH}, heads[] = {16, 32};
    float *const k = malloc(COUNT * sizeof(float)), *const v = malloc(COUNT * sizeof(float));
    assert_true(k && v);
    for (int n = 0; n < 2; n++) {
        attree_desc d = make_desc(BATCH, heads[n], GROUPS, 1, KEYS, WIDTH, WIDTH);
        d.kv_lens = (int64_t[BATCH]){KEYS, 700 * n + 900};
        tensors t = make_tensors(&d, 91);
        run_tensors(&d, &t);
        d.k = d.v = (attree_strides){KEYS * GROUPS * WIDTH, WIDTH, GROUPS * WIDTH, 1};
        restride(k, d.k, t.k, size, true);
        restride(v, d.v, t.v, size, true);
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
        assert_int_equal(attree_plan_phases(plan), 2); /* keys are split, though there is one thread */
        attree_plan_destroy(plan);
        for (d.threads = 1; d.threads <= 3; d.threads++) {
            tensors same = t;
            same.k = k;
            same.v = v;
            float *const got = result_of(&d, &same);
            assert_same_bits(t.o, got, t.o_count);
            assert_same_bits(t.lse, got + t.o_count, t.lse_count);
            free(got);
        }
        free_tensors(&t);
    }
    free(k);
    free(v);
}

/* Reversed tokens by negative strides; one key/value head shared by stride 0. */
static void negative_and_zero_strides_work(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 2, 2, 3, 300, 8, 8);
    tensors t = make_tensors(&d, 130);
    memcpy(t.k + 300 * 8, t.k, 300 * 8 * sizeof(float));
    memcpy(t.v + 300 * 8, t.v, 300 * 8 * sizeof(float));
    run_tensors(&d, &t);

    float k[300 * 8], v[300 * 8], o[2 * 3 * 8], lse[2 * 3];
    for (int64_t j = 0; j < 300; j++) {
        memcpy(k + (299 - j) * 8, t.k + j * 8, 8 * sizeof(float));
        memcpy(v + (299 - j) * 8, t.v + j * 8, 8 * sizeof(float));
    }
    d.k = d.v = (attree_strides){0, 0, -8, 1};
    const attree_args args = {.q = t.q, .k = k + 299 * 8, .v = v + 299 * 8, .o = o, .lse = lse};
    run_expecting(ATTREE_OK, &d, &args);
    assert_same_bits(t.o, o, t.o_count);
    assert_same_bits(t.lse, lse, t.lse_count);
    free_tensors(&t);
}

static void grouped_heads_have_the_bits_of_repeated_heads(void **state)
{
    (void)state;
    const int64_t groups[] = {1, 2, 3, 6, 7, 8, 12, 40};
    for (int n = 0; n < 8; n++) {
        attree_desc grouped = make_desc(1, groups[n] * 2, 2, 5, 300, 24, 40);
        grouped.flags = ATTREE_CAUSAL;
        tensors t = make_tensors(&grouped, (uint64_t)n + 150);
        run_tensors(&grouped, &t);
        attree_desc repeated = make_desc(1, groups[n] * 2, groups[n] * 2, 5, 300, 24, 40);
        repeated.flags = ATTREE_CAUSAL;
        tensors r = make_tensors(&repeated, 1);
        for (int64_t h = 0; h < groups[n] * 2; h++) {
            memcpy(r.k + h * 300 * 24, t.k + h / groups[n] * 300 * 24, 300 * 24 * sizeof(float));
            memcpy(r.v + h * 300 * 40, t.v + h / groups[n] * 300 * 40, 300 * 40 * sizeof(float));
        }
        memcpy(r.q, t.q, (size_t)t.q_count * sizeof(float));
        run_tensors(&repeated, &r);
        assert_same_bits(r.o, t.o, t.o_count);
        assert_same_bits(r.lse, t.lse, t.lse_count);
        free_tensors(&r);
        free_tensors(&t);
    }
}

/* Splitting keys needs each task's m and l; whether the caller wants lse must not matter (and it may be NULL). */
static void leaving_out_lse_changes_nothing(void **state)
{
    (void)state;
    for (int n = 0; n < SHAPES; n++) {
        attree_desc d = desc_of(&shapes[n]);
        d.threads = 5;
        tensors t = make_tensors(&d, (uint64_t)n + 170);
        float *const expected = result_of(&d, &t);
        const attree_args args = {.q = t.q, .k = t.k, .v = t.v, .o = t.o};
        run_expecting(ATTREE_OK, &d, &args);
        assert_same_bits(expected, t.o, t.o_count);
        free(expected);
        free_tensors(&t);
    }
}

enum { SKIPPED_KEYS = 16 * 256 };

/* Every second run of 16 blocks is hidden. */
static bool is_skipped(int64_t key) { return key / SKIPPED_KEYS % 2 == 1; }

static void hide_skipped(const attree_score_tile *tile, void *user)
{
    (void)user;
    for (int64_t i = 0; i < tile->queries; i++)
        for (int64_t j = 0; j < tile->keys; j++)
            if (is_skipped(tile->first_key + j))
                tile->scores[i * tile->query_stride + j] = -INFINITY;
}

static attree_block_answer tell_skipped(const attree_score_tile *tile, void *user)
{
    (void)user;
    return is_skipped(tile->first_key) ? ATTREE_BLOCK_SKIP : ATTREE_BLOCK_FULL;
}

/* A task all of whose blocks the caller skips leaves an empty state, whatever was in memory: for any number of threads,
 * so also when one worker does several tasks. */
static void skipped_tasks_leave_empty_states(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 2, 1, 1, 40000, 16, 16);
    tensors t = make_tensors(&d, 12);
    attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    args.score = hide_skipped;
    run_expecting(ATTREE_OK, &d, &args);
    float *const expected = malloc((size_t)(t.o_count + t.lse_count) * sizeof *expected);
    assert_non_null(expected);
    memcpy(expected, t.o, (size_t)t.o_count * sizeof(float));
    memcpy(expected + t.o_count, t.lse, (size_t)t.lse_count * sizeof(float));
    args.block = tell_skipped;
    for (d.threads = 1; d.threads <= 8; d.threads++) {
        run_expecting(ATTREE_OK, &d, &args);
        assert_same_bits(expected, t.o, t.o_count);
        assert_same_bits(expected + t.o_count, t.lse, t.lse_count);
    }
    free(expected);
    free_tensors(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(every_thread_count_gives_the_same_bits),
        cmocka_unit_test(threads_are_really_used),
        cmocka_unit_test(workspace_is_small),
        cmocka_unit_test(tiny_problems_stay_on_one_thread),
        cmocka_unit_test(a_row_alone_has_the_bits_it_has_in_a_batch),
        cmocka_unit_test(prefill_has_the_bits_of_chunks_and_of_single_tokens),
        cmocka_unit_test(every_layout_gives_the_same_bits),
        cmocka_unit_test(heads_beside_each_other_give_the_same_bits),
        cmocka_unit_test(negative_and_zero_strides_work),
        cmocka_unit_test(grouped_heads_have_the_bits_of_repeated_heads),
        cmocka_unit_test(leaving_out_lse_changes_nothing),
        cmocka_unit_test(skipped_tasks_leave_empty_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
