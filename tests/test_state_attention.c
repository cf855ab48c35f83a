/* States have the bits of attention, and neither depends on the caller's rounding mode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fenv.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "states.h"

/* ---- The same bits as attention ---- */

enum { BLOCK = 256, LONG = 700, WIDEST = 65 };

/* One query that is 1, D = 1, scale 1: the scores are the keys. */
static void attend(int64_t keys, int64_t v_width, const float *k, const float *v, float *o, float *lse)
{
    const float one = 1.0f;
    const attree_desc desc = {.size = sizeof desc,
                              .batch = 1,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .q_len = 1,
                              .kv_len = keys,
                              .qk_width = 1,
                              .v_width = v_width,
                              .flags = ATTREE_USE_SCALE,
                              .scale = 1.0f};
    const attree_args args = {.size = sizeof args, .q = &one, .k = k, .v = v, .o = o, .lse = lse};
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
}

static void expect_bits_of_attention(const float *state, int64_t keys, int64_t v_width, const float *k, const float *v)
{
    float o[WIDEST], lse, want_o[WIDEST], want_lse;
    attend(keys, v_width, k, v, want_o, &want_lse);
    assert_int_equal(attree_state_finish_f32(state, v_width, o, &lse), ATTREE_OK);
    assert_memory_equal(o, want_o, (size_t)v_width * sizeof *o);
    assert_memory_equal(&lse, &want_lse, sizeof lse);
}

static void fill(float *to, size_t count, double low, double high)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)uniform(low, high);
}

static void test_block_has_the_bits_of_attention(void **unused)
{
    (void)unused;
    const int64_t keys[] = {1, 2, 15, 16, 17, 100, 255, 256}, widths[] = {1, 3, 8, 16, 17, 64, WIDEST};
    const double ranges[] = {0.01, 1, 30, 100}; /* the last reaches weights that are cut off */
    static float k[BLOCK], v[BLOCK * WIDEST];
    float state[WIDEST + 2];
    for (size_t n = 0; n < COUNT_OF(keys); n++)
        for (size_t e = 0; e < COUNT_OF(widths); e++)
            for (size_t r = 0; r < COUNT_OF(ranges); r++) {
                fill(k, BLOCK, -ranges[r], ranges[r]);
                fill(v, BLOCK * WIDEST, -2, 2);
                assert_int_equal(attree_state_init_f32(state, widths[e]), ATTREE_OK);
                assert_int_equal(attree_state_push_f32(state, widths[e], keys[n], k, v, widths[e]), ATTREE_OK);
                expect_bits_of_attention(state, keys[n], widths[e], k, v);
            }
}

/* 700 keys are three blocks; the tree over three leaves is (0, 1), 2. */
static void test_merged_blocks_have_the_bits_of_attention(void **unused)
{
    (void)unused;
    enum { E = 17 };
    static float k[LONG], v[LONG * E];
    float state[3][E + 2];
    for (int repeat = 0; repeat < 20; repeat++) {
        fill(k, LONG, -20, 20);
        fill(v, COUNT_OF(v), -2, 2);
        for (size_t b = 0; b < 3; b++) {
            const int64_t count = b < 2 ? BLOCK : LONG - 2 * BLOCK;
            assert_int_equal(attree_state_init_f32(state[b], E), ATTREE_OK);
            assert_int_equal(attree_state_push_f32(state[b], E, count, k + b * BLOCK, v + b * BLOCK * E, E), ATTREE_OK);
        }
        assert_int_equal(attree_state_merge_f32(state[0], state[0], state[1], E), ATTREE_OK);
        assert_int_equal(attree_state_merge_f32(state[0], state[0], state[2], E), ATTREE_OK);
        expect_bits_of_attention(state[0], LONG, E, k, v);
    }
}

/* ---- The caller's rounding mode ---- */

static const int rounding_modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

/* Whether arithmetic rounds as `mode` says. fegetround may read another unit's mode than the one that does the sums. */
static bool rounds_as(int mode)
{
    volatile float one = 1.0f, tiny = 0x1p-40f, sum = one + tiny, difference = -one + tiny;
    const bool up = sum > 1.0f, toward_zero = difference > -1.0f;
    switch (mode) {
    case FE_UPWARD: return up && toward_zero;
    case FE_DOWNWARD: return !up && !toward_zero;
    case FE_TOWARDZERO: return !up && toward_zero;
    default: return !up && !toward_zero && -one - tiny == -1.0f;
    }
}

static void expect_mode(int mode)
{
    assert_int_equal(fegetround(), mode);
    assert_true(rounds_as(mode));
}

/* Everything there is to do with a state; results go to out, 4 * (E + 2) numbers. */
static void exercise(const algebra *a, int mode, const numbers *scores, const numbers *values, numbers *out)
{
    enum { E = 5, N = 50, STATE = E + 2 };
    memset(out, 0, sizeof *out);
    void *const first = out, *const second = at(a, out, STATE), *const both = at(a, out, 2 * STATE);
    void *const o = at(a, out, 3 * STATE), *const lse = at(a, out, 3 * STATE + E);
    attree_status status[8];
    status[0] = a->init(first, E);
    status[1] = a->init(second, E);
    status[2] = a->push(first, E, N, scores, values, E);
    expect_mode(mode);
    status[3] = a->push_key(second, E, 0.3125, values);
    expect_mode(mode);
    status[4] = a->push(second, E, N - 10, scores, values, E);
    status[5] = a->merge(both, first, second, E);
    expect_mode(mode);
    status[6] = a->finish(both, E, o, lse);
    expect_mode(mode);
    status[7] = a->push(both, E, -1, scores, values, E); /* an error keeps it, too */
    expect_mode(mode);
    for (size_t i = 0; i < COUNT_OF(status); i++)
        assert_int_equal(status[i], i < 7 ? ATTREE_OK : ATTREE_ERROR_SHAPE);
}

static void test_state_ignores_the_callers_rounding(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers scores, values, want, got;
        for (size_t n = 0; n < NUMBERS; n++) {
            a->set(&scores, n, uniform(-5, 5));
            a->set(&values, n, uniform(-2, 2));
        }
        exercise(a, FE_TONEAREST, &scores, &values, &want);
        for (size_t m = 0; m < COUNT_OF(rounding_modes); m++) {
            assert_int_equal(fesetround(rounding_modes[m]), 0);
            exercise(a, rounding_modes[m], &scores, &values, &got);
            assert_int_equal(fesetround(FE_TONEAREST), 0);
            expect_same_bits(a, "results under another rounding mode", &got, &want, 4 * 7);
        }
    }
}

/* Enough work for several workers; the scale, 1 / sqrt(D), is not exact for any of these D. */
static void test_attention_ignores_the_callers_rounding(void **unused)
{
    (void)unused;
    enum { Q = 70, K = 600, D_MOST = 13, E = 16 };
    static float q[Q * D_MOST], k[K * D_MOST], v[K * E], want[Q * (E + 1)], got[Q * (E + 1)];
    fill(q, COUNT_OF(q), -2, 2);
    fill(k, COUNT_OF(k), -2, 2);
    fill(v, COUNT_OF(v), -2, 2);
    const int64_t widths[] = {3, 5, 6, 7, 10, 11, D_MOST};
    for (size_t d = 0; d < COUNT_OF(widths); d++)
        for (int32_t threads = 1; threads <= 3; threads += 2)
            for (size_t m = 0; m < COUNT_OF(rounding_modes); m++) {
                const attree_desc desc = {.size = sizeof desc,
                                          .batch = 1,
                                          .q_heads = 1,
                                          .kv_heads = 1,
                                          .q_len = Q,
                                          .kv_len = K,
                                          .qk_width = widths[d],
                                          .v_width = E,
                                          .threads = threads};
                float *const out = m == 0 ? want : got;
                const attree_args args = {.size = sizeof args, .q = q, .k = k, .v = v, .o = out, .lse = out + Q * E};
                assert_int_equal(fesetround(rounding_modes[m]), 0);
                const attree_status status = attree_attention(&desc, &args);
                expect_mode(rounding_modes[m]);
                assert_int_equal(fesetround(FE_TONEAREST), 0);
                assert_int_equal(status, ATTREE_OK);
                if (memcmp(out, want, sizeof want) != 0)
                    fail_msg("D = %" PRId64 ", %" PRId32 " threads, rounding mode 0x%x: other bits", widths[d], threads,
                             (unsigned)rounding_modes[m]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_has_the_bits_of_attention),
        cmocka_unit_test(test_merged_blocks_have_the_bits_of_attention),
        cmocka_unit_test(test_state_ignores_the_callers_rounding),
        cmocka_unit_test(test_attention_ignores_the_callers_rounding),
    };
    return cmocka_run_group_tests_name("state_attention", tests, NULL, NULL);
}
