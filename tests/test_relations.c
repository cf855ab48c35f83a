/* Relations between runs that hold whatever the right numbers are: the same problem told in two ways has the same bits,
 * a change with a known effect has that effect. No reference is computed. Every relation is checked on every
 * instruction set, with one thread and with several. Here those of which query sees which key; test_relations_scores
 * has those of scores. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "relations.h"

/* ---- Windows ---- */

static void check_window_is_mask(path on)
{
    const int64_t windows[][2] = {{100, 30}, {0, 0}, {-1, 0}, {5, -1}, {300, 2}, {-1, -1}, {0, 700}, {1000, 256}};
    for (int n = 0; n < 8; n++) {
        attree_desc d = desc_on(on, (int64_t[]){2, 4, 2, n % 2 ? 40 : 3, 700, 16, 20});
        const int64_t offset = n < 4 ? d.kv_len - d.q_len : 200;
        d.flags = n < 4 ? 0 : ATTREE_USE_Q_OFFSET;
        d.q_offset = offset;
        tensors t = make_tensors(&d, (uint64_t)n);
        uint8_t *const mask = window_mask(&d, offset, windows[n][0], windows[n][1]);
        d.mask = queries_by_keys;
        float *const masked = result_with(&d, &t, &(attree_args){.mask = mask});
        d.flags |= ATTREE_USE_WINDOW;
        d.window_left = windows[n][0];
        d.window_right = windows[n][1];
        expect_same(masked, result_with(&d, &t, &(attree_args){0}), &t);
        free(mask);
        free_tensors(&t);
    }
}

static void a_window_has_the_bits_of_a_mask(void **state)
{
    (void)state;
    on_every_path(check_window_is_mask);
}

/* A row with a window, against plain attention to the keys in it, which then are in other blocks. */
static void check_window_is_slice(path on)
{
    enum { K = 900, D = 12, E = 9, LEFT = 290, RIGHT = 17 };
    attree_desc d = desc_on(on, (int64_t[]){1, 1, 1, K, K, D, E});
    d.flags = ATTREE_USE_WINDOW;
    d.window_left = LEFT;
    d.window_right = RIGHT;
    tensors t = make_tensors(&d, 5);
    run_tensors(&d, &t);
    for (int64_t i = 0; i < K; i += 37) {
        const int64_t first = i > LEFT ? i - LEFT : 0, end = i + RIGHT + 1 < K ? i + RIGHT + 1 : K;
        const attree_desc one = desc_on(on, (int64_t[]){1, 1, 1, 1, end - first, D, E});
        float o[E], lse;
        const attree_args args = {.q = t.q + i * D, .k = t.k + first * D, .v = t.v + first * E, .o = o, .lse = &lse};
        run_expecting(ATTREE_OK, &one, &args);
        for (int64_t e = 0; e < E; e++)
            assert_true(close_to((double)o[e], (double)t.o[i * E + e], ROUNDING));
        assert_true(close_to((double)lse, (double)t.lse[i], ROUNDING * (1.0 + fabs((double)lse))));
    }
    free_tensors(&t);
}

static void a_window_is_attention_to_the_keys_in_it(void **state)
{
    (void)state;
    on_every_path(check_window_is_slice);
}

static void check_causal(path on)
{
    for (int n = 0; n < 3; n++) {
        attree_desc d = desc_on(on, (int64_t[]){1, 4, 2, (int64_t[]){5, 60, 300}[n], 300, 16, 20});
        tensors t = make_tensors(&d, (uint64_t)n);
        d.flags = ATTREE_CAUSAL;
        float *const causal = result_with(&d, &t, &(attree_args){0});
        d.flags = ATTREE_USE_WINDOW;
        d.window_left = -1;
        float *const window = result_with(&d, &t, &(attree_args){0});
        d.flags |= ATTREE_CAUSAL;
        d.window_right = 40; /* both hold */
        assert_same_bits(causal, window, t.o_count + t.lse_count);
        expect_same(window, result_with(&d, &t, &(attree_args){0}), &t);
        d.flags = 0;
        d.mask = queries_by_keys;
        uint8_t *const mask = window_mask(&d, d.kv_len - d.q_len, -1, 0);
        expect_same(causal, result_with(&d, &t, &(attree_args){.mask = mask}), &t);
        free(mask);
        free_tensors(&t);
    }
}

static void causal_is_a_window_and_a_mask(void **state)
{
    (void)state;
    on_every_path(check_causal);
}

/* ---- Heads ---- */

/* A group of heads against the same heads with keys and values of their own. */
static void check_groups(path on)
{
    const int64_t groups[] = {1, 3, 4, 7, 8};
    for (int n = 0; n < 5; n++) {
        const int64_t heads = groups[n] * 2, rows = n % 2 ? 5 : 30;
        attree_desc grouped = desc_on(on, (int64_t[]){1, heads, 2, rows, 300, 24, 40});
        attree_desc repeated = desc_on(on, (int64_t[]){1, heads, heads, rows, 300, 24, 40});
        grouped.flags = repeated.flags = ATTREE_CAUSAL;
        tensors t = make_tensors(&grouped, (uint64_t)n + 150), r = make_tensors(&repeated, 1);
        for (int64_t h = 0; h < heads; h++) {
            memcpy(r.k + h * 300 * 24, t.k + h / groups[n] * 300 * 24, 300 * 24 * sizeof(float));
            memcpy(r.v + h * 300 * 40, t.v + h / groups[n] * 300 * 40, 300 * 40 * sizeof(float));
        }
        memcpy(r.q, t.q, (size_t)t.q_count * sizeof(float));
        float *const bias = random_floats(heads * rows * 300, 7, -1.0f, 1.0f);
        float *const sinks = random_floats(heads, 8, -1.0f, 1.0f), *const slopes = random_floats(heads, 9, 0.0f, 0.5f);
        const attree_args extras = {
            .bias = bias, .sinks = sinks, .sink_heads = heads, .alibi_slopes = slopes, .alibi_heads = heads};
        expect_same(result_with(&grouped, &t, &extras), result_with(&repeated, &r, &extras), &t);
        free(bias);
        free(sinks);
        free(slopes);
        free_tensors(&r);
        free_tensors(&t);
    }
}

static void grouped_heads_have_the_bits_of_repeated_heads(void **state)
{
    (void)state;
    on_every_path(check_groups);
}

/* ---- Prefill, decoding ---- */

/* A prefill in one call, and in chunks as the cache grows: tokens of one, of a few, of more than a block. */
static void check_chunks(path on)
{
    enum { TOKENS = 600, WIDTH = 12, HEADS = 4, GROUPS = 2 };
    const int64_t shape[] = {1, HEADS, GROUPS, TOKENS, TOKENS, WIDTH, WIDTH}, steps[] = {1, 7, 64, 257};
    attree_desc whole = desc_on(on, shape);
    whole.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
    whole.window_left = 270;
    whole.window_right = 3;
    whole.softcap = 2.0f;
    const float slopes[HEADS] = {0.5f, 0.25f, 0.0f, -0.01f}, sinks[HEADS] = {0.5f, -INFINITY, -2.0f, 3.0f};
    attree_args args = {.sinks = sinks, .sink_heads = HEADS, .alibi_slopes = slopes, .alibi_heads = HEADS};
    tensors t = make_tensors(&whole, 60);
    float *const expected = result_with(&whole, &t, &args), *const o = nan_floats(HEADS * TOKENS * WIDTH);
    for (int n = 0; n < 4; n++)
        for (int64_t from = 0; from < TOKENS; from += steps[n] * (n == 0 ? 23 : 1)) {
            const int64_t tokens = from + steps[n] < TOKENS ? steps[n] : TOKENS - from;
            attree_desc part = whole;
            part.q_len = tokens;
            part.kv_len = from + tokens;
            part.q = part.k = part.v = (attree_strides){0, TOKENS * WIDTH, WIDTH, 1};
            float lse[HEADS * TOKENS];
            args.q = t.q + from * WIDTH;
            args.k = t.k;
            args.v = t.v;
            args.o = o;
            args.lse = lse;
            run_expecting(ATTREE_OK, &part, &args);
            for (int64_t h = 0; h < HEADS; h++) {
                assert_same_bits(expected + (h * TOKENS + from) * WIDTH, o + h * tokens * WIDTH, tokens * WIDTH);
                assert_same_bits(expected + t.o_count + h * TOKENS + from, lse + h * tokens, tokens);
            }
        }
    free(o);
    free(expected);
    free_tensors(&t);
}

static void a_prefill_in_chunks_has_the_bits_of_the_whole(void **state)
{
    (void)state;
    on_every_path(check_chunks);
}

/* The last query alone, with its row of the mask and of the bias. */
static void check_last_row(path on)
{
    enum { Q = 40, K = 700, H = 6, D = 16, E = 10 };
    attree_desc d = desc_on(on, (int64_t[]){1, H, 2, Q, K, D, E});
    d.flags = ATTREE_CAUSAL;
    d.mask = queries_by_keys;
    d.mask_kind = ATTREE_MASK_BITS;
    tensors t = make_tensors(&d, 61);
    float *const bias = random_floats((int64_t)H * Q * K, 62, -2.0f, 2.0f);
    uint8_t mask[Q * K / 8];
    for (size_t n = 0; n < sizeof mask; n++)
        mask[n] = (uint8_t)(n * 151 ^ n >> 2);
    float *const expected = result_with(&d, &t, &(attree_args){.mask = mask, .bias = bias});

    d.q_len = 1;
    d.q = (attree_strides){0, Q * D, D, 1};
    d.bias = (attree_pairs){.head_stride = (int64_t)Q * K, .query_stride = K, .key_stride = 1};
    uint8_t last[K / 8 + 1] = {0}; /* its first bit is in the middle of a byte of mask */
    for (int64_t j = 0; j < K; j++) {
        const int64_t n = (int64_t)(Q - 1) * K + j;
        last[j / 8] = (uint8_t)(last[j / 8] | (mask[n / 8] >> (n & 7) & 1) << (j & 7));
    }
    float o[H * E], lse[H];
    const attree_args one = {.q = t.q + (Q - 1) * D,
                             .k = t.k,
                             .v = t.v,
                             .o = o,
                             .lse = lse,
                             .mask = last,
                             .bias = bias + (int64_t)(Q - 1) * K};
    run_expecting(ATTREE_OK, &d, &one);
    for (int64_t h = 0; h < H; h++) {
        assert_same_bits(expected + (h * Q + Q - 1) * E, o + h * E, E);
        assert_same_bits(expected + t.o_count + h * Q + Q - 1, lse + h, 1);
    }
    free(bias);
    free(expected);
    free_tensors(&t);
}

static void a_decoded_token_has_the_bits_of_the_last_row(void **state)
{
    (void)state;
    on_every_path(check_last_row);
}

/* ---- Ragged batches ---- */

typedef struct lengths {
    int64_t batch, queries[4], keys[4];
} lengths;

enum { RAGGED_HEADS = 4, RAGGED_D = 10, RAGGED_E = 12 };

/* Each sequence of a ragged batch alone, into its tokens of o and lse. */
static void run_sequences(const attree_desc *ragged, const attree_args *args, float *o, float *lse)
{
    const int64_t q_len = ragged->q_len, kv_len = ragged->kv_len, d = ragged->qk_width, e = ragged->v_width;
    for (int64_t b = 0; b < ragged->batch; b++) {
        const int64_t q = ragged->q_starts[b], k = ragged->kv_starts[b];
        attree_desc one = *ragged;
        one.batch = 1;
        one.q_starts = one.kv_starts = NULL;
        one.q_len = ragged->q_starts[b + 1] - q;
        one.kv_len = ragged->kv_starts[b + 1] - k;
        one.q = (attree_strides){0, q_len * d, d, 1};
        one.k = (attree_strides){0, kv_len * d, d, 1};
        one.v = (attree_strides){0, kv_len * e, e, 1};
        one.o = (attree_strides){0, q_len * e, e, 1};
        one.lse = (attree_strides){0, q_len, 1, 1};
        one.mask = one.bias = (attree_pairs){.heads = 1, .query_stride = kv_len, .key_stride = 1};
        attree_args part = *args;
        part.q = (const float *)args->q + q * d;
        part.k = (const float *)args->k + k * d;
        part.v = (const float *)args->v + k * e;
        part.o = o + q * e;
        part.lse = lse + q;
        part.mask = (const uint8_t *)args->mask + q * kv_len + k;
        part.bias = (const float *)args->bias + q * kv_len + k;
        run_expecting(ATTREE_OK, &one, &part);
    }
}

static void check_ragged_lengths(path on, const lengths *l)
{
    int64_t q_starts[5] = {0}, kv_starts[5] = {0};
    for (int64_t b = 0; b < l->batch; b++) {
        q_starts[b + 1] = q_starts[b] + l->queries[b];
        kv_starts[b + 1] = kv_starts[b] + l->keys[b];
    }
    const int64_t queries = q_starts[l->batch], keys = kv_starts[l->batch];
    attree_desc d = desc_on(on, (int64_t[]){1, RAGGED_HEADS, 2, queries, keys, RAGGED_D, RAGGED_E});
    tensors t = make_tensors(&d, 70);
    d.batch = l->batch;
    d.q_starts = q_starts;
    d.kv_starts = kv_starts;
    d.flags = ATTREE_USE_WINDOW;
    d.window_left = 280;
    d.window_right = 1;
    d.softcap = 3.0f;
    d.mask = d.bias = (attree_pairs){.batches = 1, .heads = 1};
    const float slopes[RAGGED_HEADS] = {0.5f, 0.25f, 0.0f, -0.01f},
                sinks[RAGGED_HEADS] = {0.5f, -INFINITY, -2.0f, 3.0f};
    uint8_t *const mask = malloc((size_t)(queries * keys) + 1);
    assert_non_null(mask);
    for (int64_t n = 0; n < queries * keys; n++)
        mask[n] = n % 7 > 1;
    float *const bias = random_floats(queries * keys, 71, -1.0f, 1.0f);
    attree_args args = {.q = t.q,
                        .k = t.k,
                        .v = t.v,
                        .mask = mask,
                        .bias = bias,
                        .sinks = sinks,
                        .sink_heads = RAGGED_HEADS,
                        .alibi_slopes = slopes,
                        .alibi_heads = RAGGED_HEADS};
    float *const ragged = result_with(&d, &t, &args), *const alone = nan_floats(t.o_count + t.lse_count);
    run_sequences(&d, &args, alone, alone + t.o_count);
    expect_same(ragged, alone, &t);
    free(mask);
    free(bias);
    free_tensors(&t);
}

static void check_ragged(path on)
{
    static const lengths all[] = {
        {4, {5, 0, 300, 1}, {7, 0, 600, 30}},
        {4, {0, 1, 0, 1}, {0, 3, 0, 5}},
        {2, {0, 0}, {0, 0}},
        {3, {3, 40, 2}, {300, 20, 0}},
        {1, {9}, {500}},
        {0, {0}, {0}},
        {4, {1, 1, 1, 1}, {1, 255, 256, 257}},
    };
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        check_ragged_lengths(on, &all[n]);
}

static void a_ragged_batch_has_the_bits_of_its_sequences(void **state)
{
    (void)state;
    on_every_path(check_ragged);
}

/* Caches of different lengths in one batch, against each alone. What lies beyond a length is NaN. */
static void check_kv_lens(path on)
{
    enum { B = 4, H = 4, G = 2, K = 600, D = 10, E = 12 };
    const int64_t lens[B] = {600, 0, 1, 257}, offsets[B] = {10, -1, 0, 256};
    for (int n = 0; n < 4; n++) {
        const int64_t rows = n < 2 ? 1 : 30;
        attree_desc d = desc_on(on, (int64_t[]){B, H, G, rows, K, D, E});
        d.flags = ATTREE_CAUSAL;
        tensors t = make_tensors(&d, (uint64_t)n + 80);
        for (int64_t row = 0; row < (int64_t)B * G * K; row++)
            if (row % K >= lens[row / (G * K)]) {
                memset(t.k + row * D, 0xff, D * sizeof(float));
                memset(t.v + row * E, 0xff, E * sizeof(float));
            }
        d.kv_lens = lens;
        d.q_offsets = n % 2 ? offsets : NULL;
        float *const batch = result_with(&d, &t, &(attree_args){0}), *const alone = nan_floats(t.o_count + t.lse_count);
        for (int64_t b = 0; b < B; b++) {
            attree_desc one = desc_on(on, (int64_t[]){1, H, G, rows, lens[b], D, E});
            one.flags = ATTREE_CAUSAL | (n % 2 ? ATTREE_USE_Q_OFFSET : 0);
            one.q_offset = offsets[b];
            one.k = (attree_strides){0, K * D, D, 1};
            one.v = (attree_strides){0, K * E, E, 1};
            const attree_args args = {.q = t.q + b * H * rows * D,
                                      .k = t.k + b * G * K * D,
                                      .v = t.v + b * G * K * E,
                                      .o = alone + b * H * rows * E,
                                      .lse = alone + t.o_count + b * H * rows};
            run_expecting(ATTREE_OK, &one, &args);
        }
        expect_same(batch, alone, &t);
        free_tensors(&t);
    }
}

static void a_batch_of_lengths_has_the_bits_of_each_alone(void **state)
{
    (void)state;
    on_every_path(check_kv_lens);
}

/* ---- The order of keys, the layout of lse ---- */

/* Keys in another order, each with its value, bias and mask. */
static void check_order(path on)
{
    enum { K = 600, D = 8, E = 19, STEP = 271 /* has no factor in common with K */ };
    for (int n = 0; n < 2; n++) {
        attree_desc d = desc_on(on, (int64_t[]){1, 2, 1, n ? 5 : 40, K, D, E});
        d.mask = d.bias = queries_by_keys;
        tensors t = make_tensors(&d, (uint64_t)n + 150), other = make_tensors(&d, (uint64_t)n + 150);
        float *const bias = random_floats(d.q_len * K, 1, -2.0f, 2.0f), *const other_bias = nan_floats(d.q_len * K);
        uint8_t *const mask = window_mask(&d, 300, 299, 200), *const other_mask = window_mask(&d, 300, 299, 200);
        for (int64_t j = 0; j < K; j++) {
            const int64_t to = j * STEP % K;
            memcpy(other.k + to * D, t.k + j * D, D * sizeof(float));
            memcpy(other.v + to * E, t.v + j * E, E * sizeof(float));
            for (int64_t i = 0; i < d.q_len; i++) {
                other_bias[i * K + to] = bias[i * K + j];
                other_mask[i * K + to] = mask[i * K + j];
            }
        }
        float *const expected = result_with(&d, &t, &(attree_args){.mask = mask, .bias = bias});
        expect_near(expected, result_with(&d, &other, &(attree_args){.mask = other_mask, .bias = other_bias}), &t,
                    NULL);
        free(bias);
        free(other_bias);
        free(mask);
        free(other_mask);
        free_tensors(&t);
        free_tensors(&other);
    }
}

static void the_order_of_keys_does_not_matter(void **state)
{
    (void)state;
    on_every_path(check_order);
}

/* lse with gaps, and with its dimensions in any order. */
static void check_lse_layouts(path on)
{
    enum { B = 2, H = 3, Q = 20 };
    const attree_strides layouts[] = {
        {H * Q * 2, Q * 2, 2, 0}, {1, B * Q, B, 5}, {-Q, -B * Q, 1, 0}, {1, B, 7 * B, -3}};
    const int64_t firsts[] = {0, 0, (B - 1) * Q + (H - 1) * B * Q, 0};
    attree_desc d = desc_on(on, (int64_t[]){B, H, 1, Q, 300, 8, 4});
    d.flags = ATTREE_CAUSAL;
    const float sinks[H] = {1.0f, -INFINITY, -1.0f};
    tensors t = make_tensors(&d, 160);
    attree_args args = {.sinks = sinks, .sink_heads = H};
    float *const expected = result_with(&d, &t, &args), *const o = nan_floats(t.o_count);
    args.q = t.q;
    args.k = t.k;
    args.v = t.v;
    args.o = o;
    for (int n = 0; n < 4; n++) {
        float memory[B * H * Q * 3];
        d.lse = layouts[n];
        args.lse = memory + firsts[n];
        run_expecting(ATTREE_OK, &d, &args);
        assert_same_bits(expected, o, t.o_count);
        for (int64_t row = 0; row < t.lse_count; row++)
            assert_same_bits(expected + t.o_count + row,
                             args.lse + row / (H * Q) * d.lse.batch + row / Q % H * d.lse.head + row % Q * d.lse.token,
                             1);
    }
    free(expected);
    free(o);
    free_tensors(&t);
}

static void lse_may_lie_anyhow(void **state)
{
    (void)state;
    on_every_path(check_lse_layouts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_has_the_bits_of_a_mask),
        cmocka_unit_test(a_window_is_attention_to_the_keys_in_it),
        cmocka_unit_test(causal_is_a_window_and_a_mask),
        cmocka_unit_test(grouped_heads_have_the_bits_of_repeated_heads),
        cmocka_unit_test(a_prefill_in_chunks_has_the_bits_of_the_whole),
        cmocka_unit_test(a_decoded_token_has_the_bits_of_the_last_row),
        cmocka_unit_test(a_ragged_batch_has_the_bits_of_its_sequences),
        cmocka_unit_test(a_batch_of_lengths_has_the_bits_of_each_alone),
        cmocka_unit_test(the_order_of_keys_does_not_matter),
        cmocka_unit_test(lse_may_lie_anyhow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
