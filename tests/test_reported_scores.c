/* What becomes of a score: scale, soft cap, ALiBi, bias, sinks, the exponential, sums in 16-bit types. Numbers are
 * those of README.md. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* Query and key lengths of most cases. */
static const int64_t lengths[][2] = {{1, 1}, {1, 300}, {3, 4}, {30, 40}, {40, 600}, {1, 256}};

static void check_geometry(const job *j) { expect_attention(j, geometry); }

/* ---- Sinks ---- */

static double second_half(const job *j, const int64_t at[4], double s)
{
    return at[3] < j->desc.kv_len / 2 ? -(double)INFINITY : geometry(j, at, s);
}

static double nothing(const job *j, const int64_t at[4], double s)
{
    (void)j, (void)at, (void)s;
    return -(double)INFINITY;
}

static void check_nothing(const job *j) { expect_attention(j, nothing); }

/* case 19: no finite sink makes NaN, of normal rows or of empty ones */
static void sinks_of_any_size(void **state)
{
    (void)state;
    const float sinks[] = {-INFINITY, -1e30f, -1.0f, 0.0f, 1e30f, FLT_MAX, -FLT_MAX, 20.0f};
    for (size_t n = 0; n < COUNT_OF(lengths) * COUNT_OF(sinks); n++) {
        const float both[2] = {sinks[n % COUNT_OF(sinks)], sinks[(n + 3) % COUNT_OF(sinks)]};
        const int64_t *const length = lengths[n / COUNT_OF(sinks)];
        const attree_desc d = make_desc(1, 2, 1, length[0], length[1], 8, 3);
        job j = make_job(&d, n);
        j.args.sinks = both;
        j.args.sink_heads = 2;
        set_type(&j, (int32_t)n % 3);
        on_every_path(&j, check_geometry);
        hide(&j, (int)n % WAYS_TO_HIDE, nothing);
        on_every_path(&j, check_nothing);
        free_job(&j);
    }
}

/* case 19: a sink of -inf is none, bit for bit; NaN and +inf are refused */
static void sinks_that_are_not_finite(void **state)
{
    (void)state;
    const float none[2] = {-INFINITY, -INFINITY}, bad[] = {INFINITY, NAN, -NAN};
    for (size_t n = 0; n < COUNT_OF(lengths); n++) {
        const attree_desc d = make_desc(1, 2, 1, lengths[n][0], lengths[n][1], 8, 3);
        job without = make_job(&d, n), with = make_job(&d, n);
        with.args.sinks = none;
        with.args.sink_heads = 2;
        on_every_path(&without, check_geometry);
        on_every_path(&with, check_geometry);
        assert_same_bits(without.t.o, with.t.o, with.t.o_count);
        assert_same_bits(without.t.lse, with.t.lse, with.t.lse_count);
        for (size_t b = 0; b < 2 * COUNT_OF(bad); b++) {
            float sinks[2] = {0.0f, 0.0f};
            sinks[b % 2] = bad[b / 2];
            const attree_args args = {.q = with.t.q,
                                      .k = with.t.k,
                                      .v = with.t.v,
                                      .o = with.t.o,
                                      .lse = with.t.lse,
                                      .sinks = sinks,
                                      .sink_heads = 2};
            run_expecting(ATTREE_ERROR_NONFINITE, &d, &args);
            assert_same_bits(without.t.o, with.t.o, with.t.o_count); /* as it was */
        }
        free_job(&without);
        free_job(&with);
    }
}

static void check_case_65(const job *j)
{
    expect_attention(j, second_half);
    if (j->desc.softcap == 0.0f && j->desc.kv_len == 128)
        check_given(j);
}

static double capped_second_half(const job *j, const int64_t at[4], double s)
{
    const double cap = (double)j->desc.softcap;
    return second_half(j, at, cap > 0.0 ? cap * tanh(s / cap) : s);
}

static void check_capped_second_half(const job *j) { expect_attention(j, capped_second_half); }

/* case 65: a sink counts once, however the keys are split and whichever splits are empty; it is not capped or scaled */
static void a_sink_counts_once(void **state)
{
    (void)state;
    const float sink = 1.0f, big = 9.0f;
    const int64_t sizes[][2] = {{1, 128}, {30, 128}, {1, 512}, {40, 600}, {1, 6000}};
    const int32_t threads[] = {1, 2, 3, 8};
    for (size_t n = 0; n < COUNT_OF(sizes) * WAYS_TO_HIDE; n++) {
        const attree_desc d = make_desc(1, 1, 1, sizes[n / WAYS_TO_HIDE][0], sizes[n / WAYS_TO_HIDE][1], 4, 2);
        job j = make_counting_job(&d);
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] = 1.0f;
        j.real[0] = 64.0 / (64.0 + exp(1.0)); /* 0.959257; twice would be 0.921705 */
        j.real[1] = log(64.0 + exp(1.0));
        j.args.sinks = &sink;
        j.args.sink_heads = 1;
        hide(&j, (int)n % WAYS_TO_HIDE, second_half);
        in_every_type(&j, check_case_65);
        set_type(&j, ATTREE_F32);
        for (size_t k = 0; k < COUNT_OF(threads); k++) {
            j.desc.threads = threads[k];
            solve(&j);
            check_case_65(&j);
        }
        j.desc.softcap = 0.75f;
        j.args.sinks = &big;
        on_every_path(&j, check_capped_second_half);
        hide(&j, (int)n % WAYS_TO_HIDE, nothing);
        on_every_path(&j, check_nothing); /* o = 0, lse = sink */
        free_job(&j);
    }
}

/* case 65: windows that leave whole splits empty */
static void a_sink_counts_once_with_windows(void **state)
{
    (void)state;
    const float sinks[2] = {1.0f, -2.0f};
    const int64_t sizes[][2] = {{1, 128}, {30, 700}, {1, 6000}, {50, 20}};
    for (size_t n = 0; n < COUNT_OF(sizes); n++) {
        attree_desc d = make_desc(1, 2, 1, sizes[n][0], sizes[n][1], 4, 2);
        d.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
        d.window_left = 12;
        job j = make_job(&d, n);
        j.args.sinks = sinks;
        j.args.sink_heads = 2;
        in_every_type(&j, check_geometry);
        free_job(&j);
    }
}

static void check_case_67(const job *j)
{
    for (int64_t h = 0; h < 4; h++)
        for (int64_t i = 0; i < j->desc.q_len; i++)
            expect_row(j, row_of(j, 0, h, i), 1.0 / (double)(2 << h), log((double)(2 << h)));
}

/* case 67: one sink for each query head, not for each key/value head */
static void sinks_belong_to_query_heads(void **state)
{
    (void)state;
    const float sinks[4] = {logf(1.0f), logf(3.0f), logf(7.0f), logf(15.0f)};
    for (int n = 0; n < 6; n++) {
        const attree_desc d = make_desc(1, 4, (int64_t)1 << n % 3, n < 3 ? 1 : 30, 1, 3, 2);
        job j = make_counting_job(&d);
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] = 1.0f;
        j.args.sinks = sinks;
        j.args.sink_heads = 4;
        in_every_type(&j, check_case_67);
        free_job(&j);
    }
}

/* ---- Scale ---- */

static double all_but_key_2(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return at[3] == 2 ? -(double)INFINITY : s;
}

static const struct scale_case {
    float scale, k[3], v[3];
    double o, lse;
} scale_cases[] = {
    {-0.5f, {1, 2, 7}, {10, 20, 99}, 13.775407, -0.025923},
    {0.0f, {1, 2, 3}, {10, 20, 99}, 15.0, 0.693147181}, /* case 23 */
    {-0.5f, {1, 2, -1000}, {10, 20, 99}, 13.775407, -0.025923},
    {0.0f, {1, 2, INFINITY}, {10, 20, NAN}, 15.0, 0.693147181},
    {-1.0f, {1, 1, -INFINITY}, {10, 20, NAN}, 15.0, -0.306852819},
};

/* cases 22, 23: a negative scale, and 0, with a key hidden in any way */
static void scales_with_a_hidden_key(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(scale_cases) * WAYS_TO_HIDE * 2; n++) {
        const struct scale_case *c = &scale_cases[n / 2 / WAYS_TO_HIDE];
        attree_desc d = make_desc(1, 2, 1, n % 2 ? 30 : 1, 3, 1, 2);
        d.flags = ATTREE_USE_SCALE;
        d.scale = c->scale;
        job j = make_given_job(&d, c->k, c->v);
        j.real[0] = c->o;
        j.real[1] = c->lse;
        hide(&j, (int)(n / 2) % WAYS_TO_HIDE, all_but_key_2);
        in_every_type(&j, check_given);
        free_job(&j);
    }
}

/* case 22, the kind: the greatest score is the least product, and products overflow exp; case 20: unscaled ones, too */
static void scales_of_long_rows(void **state)
{
    (void)state;
    const float scales[] = {-0.5f, -3.0f, 0.0f, 1e-20f, 40.0f};
    for (size_t n = 0; n < COUNT_OF(scales) * COUNT_OF(lengths); n++) {
        attree_desc d = make_desc(1, 2, 1, lengths[n / COUNT_OF(scales)][0], lengths[n / COUNT_OF(scales)][1], 16, 3);
        d.flags = ATTREE_USE_SCALE | ATTREE_CAUSAL;
        d.scale = scales[n % COUNT_OF(scales)];
        job j = make_job(&d, n);
        for (int64_t i = 0; i < j.t.q_count; i++) /* few bits, so that rounding of large scores is small */
            j.t.q[i] = rintf(j.t.q[i] * 16.0f);
        for (int64_t i = 0; i < j.t.k_count; i++)
            j.t.k[i] = rintf(j.t.k[i] * 16.0f);
        in_every_type(&j, check_geometry);
        free_job(&j);
    }
}

/* ---- The exponential ---- */

/* Below -87.33654 a weight would be subnormal, and is 0. */
static const float small_scores[] = {-INFINITY, -1e30f, -104.0f, -103.9f, -100.0f, -88.5f,
                                     -87.4f,    -87.3f, -50.0f,  -1.0f,   0.0f};

/* One key of score 0 and value 0, one of value 1 in place number[0] with the score of number[1]: o is w / (1 + w). */
static void check_weight(const job *j)
{
    const double s = (double)small_scores[j->number[1]], w = s < -87.33654 ? 0.0 : exp(s), want = w / (1.0 + w);
    for (int64_t row = 0; row < j->t.lse_count; row++) {
        assert_true(close_to((double)j->t.o[row], want, 1e-5 * want)); /* 0 is exact */
        assert_true(close_to((double)j->t.lse[row], log1p(w), 1e-6));
    }
}

/* case 25: in every lane and tail; a weight that would be subnormal is 0 */
static void small_weights_in_every_lane(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(small_scores); n++)
        for (int64_t place = 1; place < 41; place++) {
            float k[41], v[41] = {0};
            for (int i = 0; i < 41; i++)
                k[i] = i == 0 ? 0.0f : -INFINITY;
            k[place] = small_scores[n];
            v[place] = 1.0f;
            const int64_t keys = place % 2 ? 41 : place + 1; /* or it is the last */
            const attree_desc d = make_desc(1, 1, 1, place % 3 ? 1 : 30, keys, 1, 1);
            job j = make_given_job(&d, k, v);
            j.number[0] = place;
            j.number[1] = (int64_t)n;
            on_every_path(&j, check_weight);
            free_job(&j);
        }
}

/* ---- 16-bit types ---- */

/* case 31: products beyond 65504; case 20: scores far beyond what exp holds */
static void scores_do_not_overflow_16_bits(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        const attree_desc d = make_desc(1, 1, 1, n ? 30 : 1, 2, 192, 3);
        job j = make_job(&d, 1);
        for (int64_t i = 0; i < j.t.q_count; i++)
            j.t.q[i] = 20.0f;
        for (int64_t i = 0; i < j.t.k_count; i++)
            j.t.k[i] = i < 192 ? 20.0f : 19.5f;
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] = i < 3 ? 7.0f : -3.0f;
        j.real[0] = 7.0;
        j.real[1] = 5542.563;
        in_every_type(&j, check_given);
        for (int64_t i = 0; i < j.t.o_count; i++)
            assert_true(j.t.o[i] == 7.0f);
        free_job(&j);
    }
}

/* case 32: sums of values beyond 65504 */
static void sums_do_not_overflow_16_bits(void **state)
{
    (void)state;
    const struct {
        int64_t q_len, kv_len;
        float v;
    } cases[] = {{1, 4096, 1000}, {30, 4096, 1000}, {1, 65536, 2}, {26, 65536, 2}, {1, 4096, 60000}};
    for (size_t n = 0; n < COUNT_OF(cases); n++) {
        const attree_desc d = make_desc(1, 1, 1, cases[n].q_len, cases[n].kv_len, 2, 3);
        job j = make_counting_job(&d);
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] = cases[n].v;
        j.real[0] = (double)cases[n].v;
        j.real[1] = log((double)cases[n].kv_len);
        in_every_type(&j, check_given);
        free_job(&j);
    }
}

/* ---- Soft cap ---- */

static double capped(const job *j, const int64_t at[4], double s)
{
    const double cap = (double)j->desc.softcap;
    return geometry(j, at, cap * tanh(s / cap));
}

static void check_capped(const job *j) { expect_attention(j, capped); }

/* case 58, its own numbers: 50 * tanh(score / 50) is 50 or -50 to the last bit */
static void a_soft_cap_does_not_overflow(void **state)
{
    (void)state;
    const float k[6] = {1000, 3000, 5000, 10000, -10000, 4400}, v[6] = {1, 2, 3, 4, 5, 6};
    for (int n = 0; n < 2; n++) {
        attree_desc d = make_desc(1, 2, 1, n ? 30 : 1, 6, 1, 2);
        d.softcap = 50.0f;
        job j = make_given_job(&d, k, v);
        j.real[0] = 3.2;
        j.real[1] = 51.609438;
        on_every_path(&j, check_given);
        in_every_type(&j, check_capped);
        free_job(&j);
    }
}

/* case 58, the kind: any cap, scores of any size */
static void soft_caps_and_scores_of_any_size(void **state)
{
    (void)state;
    const float caps[] = {1e-3f, 0.5f, 1.0f, 30.0f, 1e30f}, scales[] = {1e-6f, 0.1f, 1.0f, 30.0f, 1e20f};
    for (size_t n = 0; n < COUNT_OF(caps) * COUNT_OF(scales) * COUNT_OF(lengths); n++) {
        const int64_t *const length = lengths[n / COUNT_OF(caps) / COUNT_OF(scales)];
        attree_desc d = make_desc(1, 2, 1, length[0], length[1], 4, 3);
        d.flags = ATTREE_USE_SCALE | ATTREE_CAUSAL;
        d.softcap = caps[n % COUNT_OF(caps)];
        d.scale = scales[n / COUNT_OF(caps) % COUNT_OF(scales)];
        if (d.softcap > 1e3f && d.scale > 1e3f) /* nothing is capped: a matter of rounding which key wins */
            continue;
        job j = make_job(&d, n);
        on_every_path(&j, check_capped);
        free_job(&j);
    }
}

/* The whole order of things: cap, then what is added, then what is hidden. */
static double capped_with_bias(const job *j, const int64_t at[4], double s)
{
    const double cap = (double)j->desc.softcap, capped = cap > 0.0 ? cap * tanh(s / cap) : s;
    return geometry(j, at, at[3] % 3 == 1 ? -(double)INFINITY : capped + (double)(at[3] % 5));
}

static double bias_of_capped(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return s + (double)(at[3] % 5);
}

static double hidden_of_capped(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return at[3] % 3 == 1 ? -(double)INFINITY : s;
}

static void check_capped_with_bias(const job *j) { expect_attention(j, capped_with_bias); }

/* case 59: hidden keys stay hidden with a soft cap, and a bias is added after it */
static void a_soft_cap_comes_before_bias_and_mask(void **state)
{
    (void)state;
    const float k[2] = {0, 0}, v[2] = {0, 1};
    for (int way = 0; way < WAYS_TO_HIDE; way++) {
        attree_desc d = make_desc(1, 1, 1, way % 2 ? 30 : 1, 2, 1, 1);
        d.softcap = 1.0f;
        job j = make_given_job(&d, k, v);
        hide(&j, way, hidden_of_capped);
        in_every_type(&j, check_given); /* o = 0; 0.268941 would be the capped -inf */
        free_job(&j);
    }
    const int64_t sizes[][2] = {{1, 300}, {2, 5}, {40, 290}, {30, 20}};
    for (size_t n = 0; n < COUNT_OF(sizes) * 4; n++) {
        attree_desc d = make_desc(1, 4, 2, sizes[n / 4][0], sizes[n / 4][1], 4, 3);
        d.flags = ATTREE_USE_SCALE | (n % 2 ? ATTREE_CAUSAL : 0) | (n % 4 > 1 ? ATTREE_USE_WINDOW : 0);
        d.scale = 3.0f;
        d.window_left = 7;
        d.window_right = 2;
        d.softcap = 1.0f;
        job j = make_job(&d, n);
        give_bias(&j, (int32_t)n % 3, bias_of_capped);
        give_mask(&j, (attree_mask)(n % 2), hidden_of_capped);
        in_every_type(&j, check_capped_with_bias);
        free_job(&j);
    }
}

/* ---- ALiBi ---- */

static double alibi(const job *j, const int64_t at[4], double s)
{
    const double distance = (double)(at[3] - position(j, at[0], at[2]));
    return geometry(j, at, s + (double)j->args.alibi_slopes[at[1]] * distance);
}

static void check_alibi(const job *j) { expect_attention(j, alibi); }

/* cases 61, 62: slopes are those given, for any number of heads; no rule is applied to them */
static void slopes_are_used_as_they_are(void **state)
{
    (void)state;
    const int64_t heads[] = {1, 2, 3, 5, 6, 7, 8, 12, 40};
    for (size_t n = 0; n < COUNT_OF(heads) * 4; n++) {
        const int64_t count = heads[n / 4];
        attree_desc d =
            make_desc(n % 2 ? 2 : 1, count, n % 4 == 3 ? count : 1, n % 2 ? 1 : 9, n % 4 < 2 ? 20 : 270, 4, 2);
        d.flags = n % 3 ? ATTREE_CAUSAL : 0;
        job j = make_job(&d, n);
        float slopes[40];
        for (int64_t h = 0; h < count; h++) /* published ones, halves of them, none, and negative ones */
            slopes[h] = exp2f(-8.0f * (float)(h + 1) / (float)count) * (float)(1 - (int)n % 4) / 2.0f;
        j.args.alibi_slopes = slopes;
        j.args.alibi_heads = count;
        in_every_type(&j, check_alibi);
        free_job(&j);
    }
}

/* 4 keys of score 0 and values 1 to 4: weights exp(0.5 * (j - 3)) from the last position. */
static void check_case_64(const job *j)
{
    expect_attention(j, alibi);
    expect_row(j, j->desc.q_len - 1, 3.084577, log(2.1975408));
}

/* case 64: decode is the last row of prefill; 2.5 would be no ALiBi at all */
static void alibi_stays_in_decode(void **state)
{
    (void)state;
    const float slope = 0.5f;
    for (int n = 0; n < 6; n++) {
        attree_desc d = make_desc(1, 1, 1, n % 3 == 0 ? 1 : n % 3 == 1 ? 4 : 30, 4, 4, 2);
        d.flags = n < 3 ? ATTREE_CAUSAL : 0;
        job j = make_counting_job(&d);
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] += 1.0f;
        j.args.alibi_slopes = &slope;
        j.args.alibi_heads = 1;
        in_every_type(&j, check_case_64);
        free_job(&j);
    }
}

/* cases 64, 52, the kind: a decode step has the bits of the last row, with cap, ALiBi and sink */
static void a_decode_step_is_the_last_row(void **state)
{
    (void)state;
    const float slopes[2] = {0.25f, 1.5f}, sinks[2] = {0.5f, -1.0f};
    for (int64_t keys = 1; keys < 620; keys += 1 + keys / 3) {
        attree_desc d = make_desc(1, 2, 1, keys < 40 ? keys : 40, keys, 4, 3);
        d.flags = ATTREE_CAUSAL;
        job all = make_job(&d, (uint64_t)keys);
        d.q_len = 1;
        job last = make_job(&d, 1);
        memcpy(last.t.k, all.t.k, (size_t)all.t.k_count * sizeof(float));
        memcpy(last.t.v, all.t.v, (size_t)all.t.v_count * sizeof(float));
        for (int64_t h = 0; h < 2; h++)
            memcpy(last.t.q + 4 * h, all.t.q + ((h + 1) * all.desc.q_len - 1) * 4, 4 * sizeof(float));
        all.args.alibi_slopes = last.args.alibi_slopes = slopes;
        all.args.sinks = last.args.sinks = sinks;
        all.args.alibi_heads = all.args.sink_heads = last.args.alibi_heads = last.args.sink_heads = 2;
        on_every_path(&all, check_alibi);
        on_every_path(&last, check_alibi);
        for (int64_t h = 0; h < 2; h++) {
            assert_same_bits(all.t.o + ((h + 1) * all.desc.q_len - 1) * 3, last.t.o + 3 * h, 3);
            assert_same_bits(all.t.lse + (h + 1) * all.desc.q_len - 1, last.t.lse + h, 1);
        }
        free_job(&all);
        free_job(&last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sinks_of_any_size),
        cmocka_unit_test(sinks_that_are_not_finite),
        cmocka_unit_test(a_sink_counts_once),
        cmocka_unit_test(a_sink_counts_once_with_windows),
        cmocka_unit_test(sinks_belong_to_query_heads),
        cmocka_unit_test(scales_with_a_hidden_key),
        cmocka_unit_test(scales_of_long_rows),
        cmocka_unit_test(small_weights_in_every_lane),
        cmocka_unit_test(scores_do_not_overflow_16_bits),
        cmocka_unit_test(sums_do_not_overflow_16_bits),
        cmocka_unit_test(a_soft_cap_does_not_overflow),
        cmocka_unit_test(soft_caps_and_scores_of_any_size),
        cmocka_unit_test(a_soft_cap_comes_before_bias_and_mask),
        cmocka_unit_test(slopes_are_used_as_they_are),
        cmocka_unit_test(alibi_stays_in_decode),
        cmocka_unit_test(a_decode_step_is_the_last_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
