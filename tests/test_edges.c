/* The edge-case table: rows with nothing to attend to, zero sizes, NaN and infinities, hidden keys, extreme scores. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

/* Runs check(desc) for every instruction set, with one thread and with several. */
static void on_every_path(attree_desc desc, void (*check)(const attree_desc *))
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++)
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            if (thinned_out())
                continue;
            desc.isa = (int32_t)isas[i];
            desc.threads = threads;
            check(&desc);
        }
}

/* With K = 0 in every key all scores are 0, so o is the mean of the visible values and lse the log of their number. */
static tensors counting_tensors(const attree_desc *d)
{
    tensors t = make_tensors(d, 1);
    memset(t.k, 0, (size_t)t.k_count * sizeof(float));
    for (int64_t i = 0; i < t.v_count; i++)
        t.v[i] = (float)(i / d->v_width % (d->kv_len > 0 ? d->kv_len : 1)) + 1.0f;
    return t;
}

static void check_means(const attree_desc *d)
{
    tensors t = counting_tensors(d);
    run_tensors(d, &t);
    const int64_t offset = d->flags & ATTREE_USE_Q_OFFSET ? d->q_offset : d->kv_len - d->q_len;
    for (int64_t row = 0; row < t.lse_count; row++) {
        const int64_t position = row % d->q_len + offset;
        int64_t visible = d->flags & ATTREE_CAUSAL && position + 1 < d->kv_len ? position + 1 : d->kv_len;
        visible = visible > 0 ? visible : 0;
        for (int64_t e = 0; e < d->v_width; e++)
            assert_true(close_to((double)t.o[row * d->v_width + e], visible ? (double)(visible + 1) / 2 : 0.0, 1e-3));
        assert_true(close_to((double)t.lse[row], log((double)visible), 1e-5));
        if (visible == 0)
            assert_same_bits(t.o + row * d->v_width, (const float[4]){0}, d->v_width < 4 ? d->v_width : 4);
    }
    free_tensors(&t);
}

static void causal_alignment_and_empty_rows(void **state)
{
    (void)state;
    const int64_t lengths[] = {1, 2, 5, 17, 255, 256, 257, 600};
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < 8; b++) {
            attree_desc d = make_desc(1, 2, 1, lengths[a], lengths[b], 4, 2);
            d.flags = ATTREE_CAUSAL; /* the last query sees the last key; rows before the first key are empty */
            on_every_path(d, check_means);
            d.flags = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET; /* the first query sees the first key */
            on_every_path(d, check_means);
            d.q_offset = -3;
            on_every_path(d, check_means);
            d.flags = 0; /* a zero-initialised option set is plain full attention */
            on_every_path(d, check_means);
        }
}

static void zero_sizes_are_valid(void **state)
{
    (void)state;
    const int64_t key_counts[] = {0, 1, 4096};
    for (int n = 0; n < 24; n++) {
        attree_desc d = make_desc(n % 2, 2, 1, n / 2 % 2, key_counts[n / 8], 4, 2);
        d.flags = n / 4 % 2 ? ATTREE_CAUSAL : 0;
        on_every_path(d, check_means);
    }
    attree_desc no_width = make_desc(1, 2, 1, 3, 5, 0, 1); /* every score is 0 */
    on_every_path(no_width, check_means);
}

static void policies_for_empty_rows(void **state)
{
    (void)state;
    attree_desc d = make_desc(2, 2, 1, 5, 2, 4, 3); /* causal: queries 0, 1, 2 see nothing */
    d.flags = ATTREE_CAUSAL;
    d.empty_rows = ATTREE_EMPTY_NAN;
    tensors t = counting_tensors(&d);
    run_tensors(&d, &t);
    const float nan[3] = {NAN, NAN, NAN};
    for (int64_t row = 0; row < t.lse_count; row++) {
        if (row % 5 < 3) {
            assert_same_bits(t.o + row * 3, nan, 3);
            assert_same_bits(t.lse + row, nan, 1);
        } else
            assert_true(isfinite(t.o[row * 3]) && isfinite(t.lse[row]));
    }
    d.empty_rows = ATTREE_EMPTY_ERROR;
    const attree_args args = {.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    run_expecting(ATTREE_ERROR_EMPTY, &d, &args);
    assert_non_null(strstr(attree_last_error(), "query 0 of head 0, batch 0"));
    assert_true(t.o[0] == 0.0f && t.lse[0] == -INFINITY && t.o[3 * 3] == 1.0f);
    d.q_len = 2; /* no row is empty: no error */
    run_expecting(ATTREE_OK, &d, &args);
    free_tensors(&t);
}

/* One NaN or +inf score: that row is NaN, every other row keeps its bits. */
static void check_poison(const attree_desc *d)
{
    const float bad[] = {NAN, -NAN, INFINITY};
    for (int n = 0; n < 12; n++) {
        tensors t = make_tensors(d, (uint64_t)n);
        run_tensors(d, &t);
        float *const expected = malloc((size_t)t.o_count * sizeof(float));
        memcpy(expected, t.o, (size_t)t.o_count * sizeof(float));
        const int64_t row = n * 5 % t.lse_count, place = (const int64_t[]){0, 7, 8, d->qk_width - 1}[n % 4];
        t.q[row * d->qk_width + place] = bad[n % 3];
        run_tensors(d, &t);
        for (int64_t r = 0; r < t.lse_count; r++)
            if (r == row) {
                const float nan = NAN;
                for (int64_t e = 0; e < d->v_width; e++)
                    assert_same_bits(t.o + r * d->v_width + e, &nan, 1);
                assert_same_bits(t.lse + r, &nan, 1);
            } else
                assert_same_bits(expected + r * d->v_width, t.o + r * d->v_width, d->v_width);
        free(expected);
        free_tensors(&t);
    }
}

static void a_bad_score_makes_its_own_row_nan(void **state)
{
    (void)state;
    on_every_path(make_desc(1, 2, 1, 3, 40, 20, 9), check_poison);
    on_every_path(make_desc(1, 2, 2, 40, 600, 20, 9), check_poison);
}

/* Keys that a causal row may not see hold NaN, infinities and huge numbers, in K and in V: no bit changes. */
static void check_hidden(const attree_desc *d)
{
    const float garbage[] = {NAN, INFINITY, -INFINITY, 1e38f, -1e38f};
    tensors t = make_tensors(d, 4);
    run_tensors(d, &t);
    float *const expected = malloc((size_t)t.o_count * sizeof(float));
    memcpy(expected, t.o, (size_t)t.o_count * sizeof(float));
    const int64_t offset = d->kv_len - d->q_len;
    for (int64_t i = 0; i < d->q_len; i += 1 + d->q_len / 13)
        for (int g = 0; g < 5; g++) {
            tensors dirty = make_tensors(d, 4);
            for (int64_t head = 0; head < d->kv_heads; head++)
                for (int64_t j = i + offset + 1; j < d->kv_len; j++) {
                    const int64_t key = head * d->kv_len + j;
                    for (int64_t c = 0; c < d->qk_width; c++)
                        dirty.k[key * d->qk_width + c] = garbage[g];
                    for (int64_t e = 0; e < d->v_width; e++)
                        dirty.v[key * d->v_width + e] = garbage[(g + e) % 5];
                }
            run_tensors(d, &dirty);
            for (int64_t h = 0; h < d->q_heads; h++)
                assert_same_bits(expected + h * d->q_len * d->v_width, dirty.o + h * d->q_len * d->v_width,
                                 (i + 1) * d->v_width);
            free_tensors(&dirty);
        }
    free(expected);
    free_tensors(&t);
}

static void hidden_keys_cannot_be_seen(void **state)
{
    (void)state;
    const int64_t lengths[] = {2, 13, 50, 300};
    for (int n = 0; n < 4; n++) {
        attree_desc d = make_desc(1, 2, 1, lengths[n], lengths[n] + 20 * (n % 2), 8, 19);
        d.flags = ATTREE_CAUSAL;
        on_every_path(d, check_hidden);
    }
}

/* A score of -inf hides its key, whatever its value holds. */
static void check_minus_infinity(const attree_desc *d)
{
    tensors t = counting_tensors(d);
    for (int64_t i = 0; i < t.q_count; i++)
        t.q[i] = 1.0f;
    for (int64_t j = 3; j < d->kv_len; j += 7) {
        t.k[j * d->qk_width] = -INFINITY;
        for (int64_t e = 0; e < d->v_width; e++)
            t.v[j * d->v_width + e] = NAN;
    }
    double sum = 0.0, visible = 0.0;
    for (int64_t j = 0; j < d->kv_len; j++)
        if (j < 3 || (j - 3) % 7 != 0) {
            sum += (double)j + 1.0;
            visible += 1.0;
        }
    run_tensors(d, &t);
    for (int64_t i = 0; i < t.o_count; i++)
        assert_true(close_to((double)t.o[i], sum / visible, 1e-3));
    for (int64_t i = 0; i < t.k_count; i++)
        t.k[i] = -INFINITY;
    run_tensors(d, &t);
    for (int64_t i = 0; i < t.o_count; i++)
        assert_true(t.o[i] == 0.0f && !signbit(t.o[i]));
    for (int64_t i = 0; i < t.lse_count; i++)
        assert_true(t.lse[i] == -INFINITY);
    free_tensors(&t);
}

static void a_score_of_minus_infinity_hides_its_key(void **state)
{
    (void)state;
    on_every_path(make_desc(1, 1, 1, 1, 300, 1, 5), check_minus_infinity);
    on_every_path(make_desc(1, 1, 1, 70, 600, 1, 33), check_minus_infinity);
}

typedef struct score_case {
    float k[6], v[6];
    int64_t keys;
    float scale;
    double o, lse, tolerance; /* tolerance relative to 1 + |expected| */
} score_case;

/* Scores given by hand: D = E = 1, q = 1. */
static void extreme_scores(void **state)
{
    (void)state;
    const double denormal = 1e-41;
    const score_case cases[] = {
        {{151.29f, 0.0f}, {1, 2}, 2, 1.0f, 1.0, 151.29, 1e-7},
        {{-151.29f, -300.0f}, {1, 2}, 2, 1.0f, 1.0, -151.29, 1e-7},
        {{1e4f, -1e4f}, {5, 7}, 2, 1.0f, 5.0, 1e4, 1e-7},
        {{-20000.0f, -20001.0f}, {1, 2}, 2, 1.0f, 1.2689414213699951, -20000.0 + log(1.0 + exp(-1.0)), 1e-6},
        {{3e38f, -3e38f, 3e38f}, {1, 9, 3}, 3, 1.0f, 2.0, 3e38, 1e-7},
        {{7, 7, 7, 7}, {1, 2, 3, 4}, 4, 1.0f, 2.5, 7.0 + log(4.0), 1e-7},
        {{1e-41f, 2e-41f}, {1, 3}, 2, 1.0f, 2.0, log(2.0), 1e-7},
        {{0, 0}, {1e-41f, 3e-41f}, 2, 1.0f, 2 * denormal, log(2.0), 1e-45},
        {{1, 2}, {10, 20}, 2, -0.5f, 13.775407, -0.025923, 1e-6},
        {{1, 2}, {10, 20}, 2, 0.0f, 15.0, log(2.0), 1e-7},
        {{-FLT_MAX, -FLT_MAX}, {1, 2}, 2, 1.0f, 1.5, -FLT_MAX, 1e-7},
        {{0, -87.0f, -88.0f, -104.0f}, {1, 1e38f, 1e38f, 1e38f}, 4, 1.0f, 1.0 + 1.6458115e-38 * 1e38, 0.0, 1e-6},
    };
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (int i = 0; i < count; i++) {
            const score_case *c = &cases[n];
            attree_desc d = make_desc(1, 1, 1, 1, c->keys, 1, 1);
            d.flags = ATTREE_USE_SCALE;
            d.scale = c->scale;
            d.isa = (int32_t)isas[i];
            const float q = 1.0f;
            float o, lse;
            const attree_args args = {.q = &q, .k = c->k, .v = c->v, .o = &o, .lse = &lse};
            run_expecting(ATTREE_OK, &d, &args);
            if (!close_to((double)o, c->o, c->tolerance * (1.0 + fabs(c->o))) ||
                !close_to((double)lse, c->lse, 1e-6 * (1.0 + fabs(c->lse))))
                fail_msg("case %zu: o = %g, lse = %g", n, (double)o, (double)lse);
        }
}

/* V of key/value head g is g: head h must read head h / (H / G). */
static void heads_map_to_groups(void **state)
{
    (void)state;
    const int64_t pairs[][2] = {{12, 12}, {32, 8}, {28, 4}, {8, 1}, {9, 3}};
    for (int n = 0; n < 5; n++) {
        attree_desc d = make_desc(2, pairs[n][0], pairs[n][1], 2, 10, 3, 2);
        tensors t = make_tensors(&d, 1);
        for (int64_t i = 0; i < t.v_count; i++)
            t.v[i] = (float)(i / (10 * 2) % pairs[n][1]);
        run_tensors(&d, &t);
        for (int64_t i = 0; i < t.o_count; i++)
            assert_true(
                close_to((double)t.o[i], (double)(i / (2 * 2) % pairs[n][0] * pairs[n][1] / pairs[n][0]), 1e-5));
        free_tensors(&t);
    }
}

/* The caller's rounding mode and flags are neither used nor changed. */
static void the_callers_floating_point_environment_is_kept(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 2, 1, 30, 700, 20, 20);
    d.threads = 2;
    tensors t = make_tensors(&d, 8);
    float *const expected = result_of(&d, &t);
    fesetround(FE_UPWARD);
    feclearexcept(FE_ALL_EXCEPT);
    run_tensors(&d, &t);
    assert_int_equal(fegetround(), FE_UPWARD);
    assert_int_equal(fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW), 0);
    fesetround(FE_TONEAREST);
    assert_same_bits(expected, t.o, t.o_count);
    assert_same_bits(expected + t.o_count, t.lse, t.lse_count);
    free(expected);
    free_tensors(&t);
}

/* Scores of -0 and of +0 are equal: which of them the maximum is must not show in states. */
static void a_zero_maximum_is_exported_without_sign(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 1, 1, 1, 600, 2, 3);
    d.flags = ATTREE_USE_SCALE | ATTREE_STATES;
    tensors t = make_tensors(&d, 4);
    float states[5];
    const attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .states = states};
    for (int n = 0; n < 3; n++) {
        d.scale = n == 1 ? 1.0f : -1.0f;
        memset(t.q, 0, (size_t)t.q_count * sizeof(float));
        if (n == 2) /* some scores are -1, the others -0 */
            for (int64_t i = 0; i < t.k_count; i++)
                t.k[i] = i % 3 == 0 ? 0.5f : 0.0f, t.q[i % 2] = 1.0f;
        run_expecting(ATTREE_OK, &d, &args);
        const float zero = 0.0f;
        assert_same_bits(states, &zero, 1);
        assert_int_equal(attree_states_merge(states, (const float[]){-0.0f, 1.0f, 1.0f, 2.0f, 3.0f},
                                             (const float[]){-0.0f, 1.0f, 1.0f, 2.0f, 3.0f}, 1, 3),
                         ATTREE_OK);
        assert_same_bits(states, &zero, 1);
    }
    free_tensors(&t);
}

/* What is refused for being NaN is found without raising a flag, however the compiler compares. */
static void nan_is_refused_quietly(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 2, 1, 3, 7, 4, 4), with_nan = d;
    tensors t = make_tensors(&d, 8);
    const float numbers[] = {0.0f, NAN};
    const attree_args whole = {.size = sizeof whole, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    attree_args sinks = whole, slopes = whole;
    sinks.sinks = slopes.alibi_slopes = numbers;
    sinks.sink_heads = slopes.alibi_heads = 2;
    feclearexcept(FE_ALL_EXCEPT);
    assert_int_equal(attree_attention(&d, &sinks), ATTREE_ERROR_NONFINITE);
    assert_int_equal(attree_attention(&d, &slopes), ATTREE_ERROR_NONFINITE);
    with_nan.softcap = NAN;
    assert_int_equal(attree_attention(&with_nan, &whole), ATTREE_ERROR_VALUE);
    with_nan = d;
    with_nan.flags = ATTREE_USE_SCALE;
    with_nan.scale = NAN;
    assert_int_equal(attree_attention(&with_nan, &whole), ATTREE_ERROR_VALUE);
    assert_int_equal(fetestexcept(FE_INVALID), 0);
    free_tensors(&t);
}

/* The comparison that the tests rely on must itself fail where it should. */
static void the_comparison_knows_nan_and_infinity(void **state)
{
    (void)state;
    assert_false(close_to((double)NAN, 1.0, 1e9));
    assert_false(close_to(1.0, (double)NAN, 1e9));
    assert_false(close_to((double)-INFINITY, (double)INFINITY, 1e9));
    assert_false(close_to((double)INFINITY, 1e300, 1e9));
    assert_true(close_to((double)-INFINITY, (double)-INFINITY, 0.0));
    assert_true(close_to(1.0, 1.5, 0.5) && !close_to(1.0, 1.5, 0.4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal_alignment_and_empty_rows),
        cmocka_unit_test(zero_sizes_are_valid),
        cmocka_unit_test(policies_for_empty_rows),
        cmocka_unit_test(a_bad_score_makes_its_own_row_nan),
        cmocka_unit_test(hidden_keys_cannot_be_seen),
        cmocka_unit_test(a_score_of_minus_infinity_hides_its_key),
        cmocka_unit_test(extreme_scores),
        cmocka_unit_test(heads_map_to_groups),
        cmocka_unit_test(the_callers_floating_point_environment_is_kept),
        cmocka_unit_test(a_zero_maximum_is_exported_without_sign),
        cmocka_unit_test(nan_is_refused_quietly),
        cmocka_unit_test(the_comparison_knows_nan_and_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
