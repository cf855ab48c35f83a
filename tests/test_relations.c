/* Relations between runs that hold whatever the right numbers are: the same problem told in two ways has the same bits,
 * a change with a known effect has that effect. No reference is computed. Every relation is checked on every
 * instruction set, with one thread and with several. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

#include "../src/dtype.h"

/* Sums of a few hundred numbers, of magnitude 1 or less, that were rounded on different ways. */
#define ROUNDING 1e-5

/* What a relation is checked with. */
typedef struct path {
    int32_t isa, threads;
} path;

static void on_every_path(void (*check)(path))
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++)
        for (int32_t threads = 1; threads <= 3; threads += 2)
            if (!thinned_out())
                check((path){(int32_t)isas[i], threads});
}

/* Dimensions B, H, G, Q, K, D, E. */
static attree_desc desc_on(path on, const int64_t shape[7])
{
    attree_desc d = make_desc(shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6]);
    d.isa = on.isa;
    d.threads = on.threads;
    return d;
}

static float *floats(int64_t count)
{
    float *const numbers = malloc((size_t)count * sizeof(float) + 1);
    assert_non_null(numbers);
    memset(numbers, 0xff, (size_t)count * sizeof(float));
    return numbers;
}

static float *random_floats(int64_t count, uint64_t seed, float low, float high)
{
    random_source random = {seed * 2 + 1};
    float *const numbers = floats(count);
    fill_random(numbers, count, &random, low, high);
    return numbers;
}

/* Runs with what extras has besides q, k, v, o and lse; o and lse concatenated, to be freed. */
static float *result_with(const attree_desc *d, const tensors *t, const attree_args *extras)
{
    attree_args args = *extras;
    float *const result = floats(t->o_count + t->lse_count);
    args.q = t->q;
    args.k = t->k;
    args.v = t->v;
    args.o = result;
    args.lse = result + t->o_count;
    run_expecting(ATTREE_OK, d, &args);
    return result;
}

/* Two results of tensors like t, which are freed. */
static void expect_same(float *a, float *b, const tensors *t)
{
    assert_same_bits(a, b, t->o_count + t->lse_count);
    free(a);
    free(b);
}

/* Within rounding, where each lse of b is shift[row] more than that of a; NULL: as much. Frees both. */
static void expect_near(float *a, float *b, const tensors *t, const float *shift)
{
    for (int64_t n = 0; n < t->o_count; n++)
        if (!close_to((double)a[n], (double)b[n], ROUNDING))
            fail_msg("o %lld: %g is not %g", (long long)n, (double)a[n], (double)b[n]);
    for (int64_t n = 0; n < t->lse_count; n++) {
        const double before = (double)a[t->o_count + n], after = (double)b[t->o_count + n];
        if (!close_to(before + (shift ? (double)shift[n] : 0.0), after, ROUNDING * (1.0 + fabs(after))))
            fail_msg("lse %lld: %g is not %g", (long long)n, before, after);
    }
    free(a);
    free(b);
}

/* Each query sees `left` keys before its position and `right` after it; -1: all. One byte for each query and key. */
static uint8_t *window_mask(const attree_desc *d, int64_t offset, int64_t left, int64_t right)
{
    uint8_t *const mask = malloc((size_t)(d->q_len * d->kv_len) + 1);
    assert_non_null(mask);
    for (int64_t i = 0; i < d->q_len; i++)
        for (int64_t j = 0; j < d->kv_len; j++) {
            const int64_t distance = j - (i + offset);
            mask[i * d->kv_len + j] = (left < 0 || distance >= -left) && (right < 0 || distance <= right);
        }
    return mask;
}

static const attree_pairs queries_by_keys = {.batches = 1, .heads = 1};

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
    float *const expected = result_with(&whole, &t, &args), *const o = floats(HEADS * TOKENS * WIDTH);
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
    float *const ragged = result_with(&d, &t, &args), *const alone = floats(t.o_count + t.lse_count);
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
        float *const batch = result_with(&d, &t, &(attree_args){0}), *const alone = floats(t.o_count + t.lse_count);
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

/* ---- Masks and biases ---- */

/* Keys that a mask hides from every query hold garbage: no bit changes. */
static void check_masked_garbage(path on)
{
    const float garbage[] = {NAN, INFINITY, -INFINITY, 1e38f};
    for (int n = 0; n < 4; n++) {
        attree_desc d = desc_on(on, (int64_t[]){1, 2, 1, n % 2 ? 3 : 40, 600, 8, 19});
        d.mask = (attree_pairs){.heads = 1, .queries = 1};
        uint8_t mask[600];
        for (int j = 0; j < 600; j++)
            mask[j] = j % 3 > 0 && j / 64 % 3 > 0;
        tensors t = make_tensors(&d, (uint64_t)n + 90);
        const attree_args args = {.mask = mask};
        float *const expected = result_with(&d, &t, &args);
        for (int64_t j = 0; j < 600; j++) {
            for (int64_t c = 0; c < d.qk_width && !mask[j]; c++)
                t.k[j * d.qk_width + c] = garbage[n];
            for (int64_t e = 0; e < d.v_width && !mask[j]; e++)
                t.v[j * d.v_width + e] = garbage[(n + e) % 4];
        }
        expect_same(expected, result_with(&d, &t, &args), &t);
        free_tensors(&t);
    }
}

static void masked_keys_cannot_be_seen(void **state)
{
    (void)state;
    on_every_path(check_masked_garbage);
}

/* The same mask in bytes, in bits, and as a bias of 0 and -inf. */
static void check_mask_forms(path on)
{
    for (int n = 0; n < 4; n++) {
        attree_desc d = desc_on(on, (int64_t[]){2, 2, 1, n % 2 ? 5 : 40, 301, 8, 19});
        d.flags = n / 2 ? ATTREE_CAUSAL : 0;
        const int64_t count = d.batch * d.q_heads * d.q_len * d.kv_len;
        tensors t = make_tensors(&d, (uint64_t)n + 100);
        float *const chance = random_floats(count, (uint64_t)n, 0.0f, 1.0f), *const bias = floats(count);
        uint8_t *const bytes = malloc((size_t)count), *const bits = calloc((size_t)count / 8 + 1, 1);
        assert_true(bytes && bits);
        for (int64_t i = 0; i < count; i++) {
            bytes[i] = (uint8_t)(chance[i] < 0.7f ? 1 << i % 8 : 0);
            bits[i / 8] = (uint8_t)(bits[i / 8] | (bytes[i] ? 1u : 0u) << i % 8);
            bias[i] = bytes[i] ? 0.0f : -INFINITY;
        }
        float *const expected = result_with(&d, &t, &(attree_args){.bias = bias});
        float *const of_bytes = result_with(&d, &t, &(attree_args){.mask = bytes});
        assert_same_bits(expected, of_bytes, t.o_count + t.lse_count);
        d.mask_kind = ATTREE_MASK_BITS;
        expect_same(of_bytes, result_with(&d, &t, &(attree_args){.mask = bits}), &t);
        free(expected);
        free(chance);
        free(bias);
        free(bytes);
        free(bits);
        free_tensors(&t);
    }
}

static void bytes_bits_and_minus_infinity_hide_alike(void **state)
{
    (void)state;
    on_every_path(check_mask_forms);
}

/* A bias of a narrow type against the same numbers as f32. */
static void check_bias_types(path on)
{
    attree_desc d = desc_on(on, (int64_t[]){1, 2, 1, 30, 300, 8, 19});
    const int64_t count = d.q_heads * d.q_len * d.kv_len;
    tensors t = make_tensors(&d, 110);
    for (int32_t type = ATTREE_F16; type <= ATTREE_BF16; type++) {
        float *const wide_bias = random_floats(count, 111, -3.0f, 3.0f), *const narrow_bias = floats(count);
        for (int64_t i = 0; i < count; i++) {
            attree__store(narrow_bias, type, i, i % 11 ? wide_bias[i] : -INFINITY);
            wide_bias[i] = attree__load(narrow_bias, type, i);
        }
        d.bias_type = ATTREE_F32;
        float *const expected = result_with(&d, &t, &(attree_args){.bias = wide_bias});
        d.bias_type = type;
        expect_same(expected, result_with(&d, &t, &(attree_args){.bias = narrow_bias}), &t);
        free(wide_bias);
        free(narrow_bias);
    }
    free_tensors(&t);
}

static void narrow_biases_are_the_numbers_they_hold(void **state)
{
    (void)state;
    on_every_path(check_bias_types);
}

/* The same number added to all scores of a row. */
static void check_shift(path on)
{
    for (int n = 0; n < 2; n++) {
        attree_desc d = desc_on(on, (int64_t[]){2, 2, 1, n ? 5 : 40, 600, 8, 19});
        d.bias = (attree_pairs){.keys = 1};
        tensors t = make_tensors(&d, (uint64_t)n + 120);
        float *const shift = random_floats(t.lse_count, 121, -15.0f, 15.0f);
        float *const plain = result_with(&d, &t, &(attree_args){0});
        expect_near(plain, result_with(&d, &t, &(attree_args){.bias = shift}), &t, shift);
        free(shift);
        free_tensors(&t);
    }
}

static void a_constant_added_to_scores_moves_lse_only(void **state)
{
    (void)state;
    on_every_path(check_shift);
}

static void check_alibi(path on)
{
    for (int n = 0; n < 2; n++) {
        attree_desc d = desc_on(on, (int64_t[]){1, 4, 2, n ? 5 : 40, 600, 8, 19});
        d.flags = ATTREE_CAUSAL;
        d.bias = (attree_pairs){.batches = 1};
        tensors t = make_tensors(&d, (uint64_t)n + 130);
        const float slopes[4] = {0.0625f, 0.015625f, 0.03f, -0.007f};
        float *const bias = floats(4 * d.q_len * 600);
        for (int64_t i = 0; i < 4 * d.q_len * 600; i++)
            bias[i] = slopes[i / 600 / d.q_len] * (float)(i % 600 - (i / 600 % d.q_len + 600 - d.q_len));
        float *const alibi = result_with(&d, &t, &(attree_args){.alibi_slopes = slopes, .alibi_heads = 4});
        expect_near(alibi, result_with(&d, &t, &(attree_args){.bias = bias}), &t, NULL);
        free(bias);
        free_tensors(&t);
    }
}

static void alibi_is_a_bias(void **state)
{
    (void)state;
    on_every_path(check_alibi);
}

/* A sink against one more key with that score and values of 0. */
static void check_sink(path on)
{
    enum { H = 4, D = 8, E = 19 };
    for (int n = 0; n < 2; n++) {
        const int64_t keys = n ? 255 : 700;
        attree_desc d = desc_on(on, (int64_t[]){1, H, 1, n ? 5 : 40, keys + 1, D, E});
        tensors t = make_tensors(&d, (uint64_t)n + 140);
        memset(t.k + keys * D, 0, D * sizeof(float));
        memset(t.v + keys * E, 0, E * sizeof(float));
        const float sinks[H] = {0.5f, 4.0f, -3.0f, 30.0f};
        float *const bias = calloc((size_t)(H * (keys + 1)), sizeof *bias);
        assert_non_null(bias);
        for (int64_t h = 0; h < H; h++)
            bias[h * (keys + 1) + keys] = sinks[h];
        d.bias = (attree_pairs){.queries = 1};
        float *const key = result_with(&d, &t, &(attree_args){.bias = bias});
        d.kv_len = keys;
        expect_near(key, result_with(&d, &t, &(attree_args){.sinks = sinks, .sink_heads = H}), &t, NULL);
        free(bias);
        free_tensors(&t);
    }
}

static void a_sink_is_a_key_without_values(void **state)
{
    (void)state;
    on_every_path(check_sink);
}

/* Keys in another order, each with its value, bias and mask. */
static void check_order(path on)
{
    enum { K = 600, D = 8, E = 19, STEP = 271 /* has no factor in common with K */ };
    for (int n = 0; n < 2; n++) {
        attree_desc d = desc_on(on, (int64_t[]){1, 2, 1, n ? 5 : 40, K, D, E});
        d.mask = d.bias = queries_by_keys;
        tensors t = make_tensors(&d, (uint64_t)n + 150), other = make_tensors(&d, (uint64_t)n + 150);
        float *const bias = random_floats(d.q_len * K, 1, -2.0f, 2.0f), *const other_bias = floats(d.q_len * K);
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
    float *const expected = result_with(&d, &t, &args), *const o = floats(t.o_count);
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

/* ---- The score function ---- */

/* What the score functions below are given: numbers [B, H, Q, K], bytes [B, H, Q, K]. */
typedef struct scoring {
    int64_t heads, queries, keys;
    const float *bias;
    const uint8_t *mask;
    float cap;
    _Atomic uint8_t *calls; /* for each pair */
    atomic_int outside;     /* tiles that are not within the problem */
} scoring;

static int64_t number_of(const scoring *s, const attree_score_tile *t, int64_t i, int64_t j)
{
    return ((t->batch * s->heads + t->head) * s->queries + t->first_query + i) * s->keys + t->first_key + j;
}

static void add_bias(const attree_score_tile *t, void *user)
{
    const scoring *s = user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            t->scores[i * t->query_stride + j] += s->bias[number_of(s, t, i, j)];
}

static void hide_masked(const attree_score_tile *t, void *user)
{
    const scoring *s = user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            if (!s->mask[number_of(s, t, i, j)])
                t->scores[i * t->query_stride + j] = -INFINITY;
}

static void cap(const attree_score_tile *t, void *user)
{
    const scoring *s = user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++) {
            float *const score = t->scores + i * t->query_stride + j;
            *score = s->cap * tanhf(*score / s->cap);
        }
}

static void count_calls(const attree_score_tile *t, void *user)
{
    scoring *const s = user;
    if (t->first_query < 0 || t->first_key < 0 || t->first_query + t->queries > s->queries ||
        t->first_key + t->keys > s->keys || t->head < 0 || t->head >= s->heads) {
        atomic_fetch_add(&s->outside, 1);
        return;
    }
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            atomic_fetch_add_explicit(&s->calls[number_of(s, t, i, j)], 1, memory_order_relaxed);
}

static scoring scoring_of(const attree_desc *d) { return (scoring){d->q_heads, d->q_len, d->kv_len, .cap = 1.5f}; }

static void check_function(path on)
{
    for (int n = 0; n < 3; n++) {
        attree_desc d = desc_on(on, (int64_t[]){2, 4, 2, (int64_t[]){1, 5, 50}[n], 520, 8, 19});
        d.flags = n == 1 ? 0 : ATTREE_CAUSAL;
        tensors t = make_tensors(&d, (uint64_t)n + 170);
        const int64_t count = t.lse_count * d.kv_len;
        float *const bias = random_floats(count, 171, -2.0f, 2.0f);
        uint8_t *const mask = malloc((size_t)count);
        assert_non_null(mask);
        for (int64_t i = 0; i < count; i++) {
            mask[i] = i % 3 > 0 && i / d.kv_len % 6 > 0; /* some rows see nothing */
            bias[i] = i % 13 ? bias[i] : -INFINITY;
        }
        scoring s = scoring_of(&d);
        s.bias = bias;
        s.mask = mask;
        expect_same(result_with(&d, &t, &(attree_args){.bias = bias}),
                    result_with(&d, &t, &(attree_args){.score = add_bias, .user = &s}), &t);
        expect_same(result_with(&d, &t, &(attree_args){.mask = mask}),
                    result_with(&d, &t, &(attree_args){.score = hide_masked, .user = &s}), &t);
        float *const capped = result_with(&d, &t, &(attree_args){.score = cap, .user = &s});
        d.softcap = s.cap;
        expect_near(capped, result_with(&d, &t, &(attree_args){0}), &t, NULL);
        free(bias);
        free(mask);
        free_tensors(&t);
    }
}

static void a_score_function_does_what_bias_mask_and_cap_do(void **state)
{
    (void)state;
    on_every_path(check_function);
}

/* However tiles are cut: each pair that the window lets see is in one of them, no pair in two. */
static void check_cuts(path on)
{
    const int64_t shapes[][7] = {
        {2, 4, 2, 3, 700, 8, 8}, {1, 6, 2, 50, 700, 8, 8}, {1, 1, 1, 1, 3000, 8, 8}, {2, 3, 1, 130, 257, 8, 8}};
    for (int n = 0; n < 8; n++) {
        attree_desc d = desc_on(on, shapes[n % 4]);
        const int64_t offset = d.kv_len - d.q_len, lens[2] = {d.kv_len, 200};
        d.flags = n < 4 ? 0 : ATTREE_USE_WINDOW | ATTREE_CAUSAL;
        d.window_left = 260;
        d.window_right = -1;
        d.kv_lens = n == 0 ? lens : NULL;
        tensors t = make_tensors(&d, (uint64_t)n + 180);
        scoring s = scoring_of(&d);
        s.calls = calloc((size_t)(t.lse_count * d.kv_len), sizeof *s.calls);
        assert_non_null(s.calls);
        free(result_with(&d, &t, &(attree_args){.score = count_calls, .user = &s}));
        assert_int_equal(s.outside, 0);
        for (int64_t i = 0; i < t.lse_count * d.kv_len; i++) {
            const int64_t query = i / d.kv_len % d.q_len, key = i % d.kv_len, b = i / d.kv_len / d.q_len / d.q_heads;
            const int64_t distance = key - (query + offset);
            const bool seen = (n > 0 || key < lens[b]) && (n < 4 || (distance <= 0 && distance >= -260));
            assert_true(s.calls[i] == 1 || (!seen && s.calls[i] == 0));
        }
        free((void *)s.calls);
        free_tensors(&t);
    }
}

static void the_score_function_gets_each_pair_once(void **state)
{
    (void)state;
    on_every_path(check_cuts);
}

/* ---- The block function ---- */

/* Near keys and a few global ones, and a coarse pattern. */
static bool pattern_shows(int64_t h, int64_t i, int64_t j)
{
    const int64_t distance = j - (i + 500);
    return (distance > -40 && distance < 100) || (i / 64 + j / 256 + h) % 3 == 0 || (j < 3 && i % 128 < 64);
}

static void apply_pattern(const attree_score_tile *t, void *user)
{
    (void)user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            if (!pattern_shows(t->head, t->first_query + i, t->first_key + j))
                t->scores[i * t->query_stride + j] = -INFINITY;
}

/* user: atomic_int[3], how often each answer was given. */
static attree_block_answer classify_pattern(const attree_score_tile *t, void *user)
{
    bool all = true, any = false;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++) {
            const bool shown = pattern_shows(t->head, t->first_query + i, t->first_key + j);
            all = all && shown;
            any = any || shown;
        }
    if (t->scores) /* there are none yet */
        abort();
    const attree_block_answer kind = all ? ATTREE_BLOCK_FULL : any ? ATTREE_BLOCK_PARTIAL : ATTREE_BLOCK_SKIP;
    atomic_int *const answers = user;
    atomic_fetch_add(&answers[kind], 1);
    return kind;
}

static attree_block_answer always_partial(const attree_score_tile *t, void *user)
{
    (void)t, (void)user;
    return ATTREE_BLOCK_PARTIAL;
}

static attree_block_answer always_full(const attree_score_tile *t, void *user)
{
    (void)t, (void)user;
    return ATTREE_BLOCK_FULL;
}

static void count_any_call(const attree_score_tile *t, void *user)
{
    (void)t;
    atomic_fetch_add((atomic_int *)user, 1);
}

/* What the block function calls full never reaches the score function. */
static void check_full_blocks(path on)
{
    for (int n = 0; n < 2; n++) {
        const attree_desc d = desc_on(on, (int64_t[]){1, 4, 2, n ? 5 : 70, 700, 8, 19});
        tensors t = make_tensors(&d, (uint64_t)n + 195);
        atomic_int calls = 0;
        const attree_args args = {.score = count_any_call, .block = always_full, .user = &calls};
        expect_same(result_with(&d, &t, &(attree_args){0}), result_with(&d, &t, &args), &t);
        assert_int_equal(calls, 0);
        free_tensors(&t);
    }
}

static void full_blocks_need_no_score_function(void **state)
{
    (void)state;
    on_every_path(check_full_blocks);
}

static void check_blocks(path on)
{
    for (int n = 0; n < 3; n++) {
        attree_desc d = desc_on(on, (int64_t[]){1, 4, 2, (int64_t[]){1, 9, 200}[n], 1300, 8, 19});
        d.flags = n == 1 ? 0 : ATTREE_CAUSAL;
        tensors t = make_tensors(&d, (uint64_t)n + 190);
        const float sinks[4] = {0.0f, 1.0f, -INFINITY, -2.0f};
        attree_args args = {.sinks = sinks, .sink_heads = 4, .score = apply_pattern};
        float *const expected = result_with(&d, &t, &args);
        args.block = always_partial;
        float *const partial = result_with(&d, &t, &args);
        assert_same_bits(expected, partial, t.o_count + t.lse_count);
        free(partial);
        atomic_int answers[3] = {0};
        args.block = classify_pattern;
        args.user = answers;
        expect_same(expected, result_with(&d, &t, &args), &t);
        assert_true(answers[ATTREE_BLOCK_FULL] > 0 && answers[ATTREE_BLOCK_SKIP] > 0);
        assert_true(answers[ATTREE_BLOCK_PARTIAL] > 0 || n == 0);
        free_tensors(&t);
    }
}

static void a_block_function_changes_no_bit(void **state)
{
    (void)state;
    on_every_path(check_blocks);
}

/* Blocks 1 and 3 of the keys are hidden from everyone; user: atomic_int[2], calls for keys of those and of others. */
static bool odd_block(int64_t key) { return key / 256 % 2; }

static void hide_odd_blocks(const attree_score_tile *t, void *user)
{
    atomic_int *const calls = user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            if (odd_block(t->first_key + j))
                t->scores[i * t->query_stride + j] = -INFINITY;
    atomic_fetch_add(&calls[odd_block(t->first_key) || odd_block(t->first_key + t->keys - 1)], 1);
}

static attree_block_answer skip_odd_blocks(const attree_score_tile *t, void *user)
{
    (void)user;
    for (int64_t j = 0; j < t->keys; j++)
        if (!odd_block(t->first_key + j))
            return ATTREE_BLOCK_PARTIAL;
    return ATTREE_BLOCK_SKIP;
}

enum { SKIP_KEYS = 256 * 5, SKIP_WIDTH = 64 }; /* a block is 64 KiB: whole pages, up to pages of that size */

static void protect_odd_blocks(float *rows)
{
    for (int64_t j = 256; j < SKIP_KEYS; j += 512)
        assert_int_equal(mprotect(rows + j * SKIP_WIDTH, (size_t)256 * SKIP_WIDTH * sizeof *rows, PROT_NONE), 0);
}

static float *map_rows(const float *rows)
{
    const size_t bytes = (size_t)SKIP_KEYS * SKIP_WIDTH * sizeof *rows;
    float *const mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(mapped != MAP_FAILED);
    memcpy(mapped, rows, bytes);
    return mapped;
}

/* Nothing of a skipped block is touched: its keys and values may not even be read. */
static void check_skipping(path on)
{
    for (int n = 0; n < 2; n++) {
        const attree_desc d = desc_on(on, (int64_t[]){1, 2, 1, n ? 4 : 70, SKIP_KEYS, SKIP_WIDTH, SKIP_WIDTH});
        tensors t = make_tensors(&d, (uint64_t)n + 200);
        atomic_int calls[2] = {0};
        attree_args args = {.score = hide_odd_blocks, .user = calls};
        float *const expected = result_with(&d, &t, &args);
        assert_true(calls[0] > 0 && calls[1] > 0);

        tensors mapped = t;
        mapped.k = map_rows(t.k);
        mapped.v = map_rows(t.v);
        protect_odd_blocks(mapped.k);
        protect_odd_blocks(mapped.v);
        calls[0] = calls[1] = 0;
        args.block = skip_odd_blocks;
        expect_same(expected, result_with(&d, &mapped, &args), &t);
        assert_true(calls[0] > 0);
        assert_int_equal(calls[1], 0);
        munmap(mapped.k, (size_t)SKIP_KEYS * SKIP_WIDTH * sizeof(float));
        munmap(mapped.v, (size_t)SKIP_KEYS * SKIP_WIDTH * sizeof(float));
        free_tensors(&t);
    }
}

static void skipped_blocks_cost_nothing(void **state)
{
    (void)state;
    on_every_path(check_skipping);
}

/* ---- Weights ---- */

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
        cmocka_unit_test(masked_keys_cannot_be_seen),
        cmocka_unit_test(bytes_bits_and_minus_infinity_hide_alike),
        cmocka_unit_test(narrow_biases_are_the_numbers_they_hold),
        cmocka_unit_test(a_constant_added_to_scores_moves_lse_only),
        cmocka_unit_test(alibi_is_a_bias),
        cmocka_unit_test(a_sink_is_a_key_without_values),
        cmocka_unit_test(the_order_of_keys_does_not_matter),
        cmocka_unit_test(lse_may_lie_anyhow),
        cmocka_unit_test(a_score_function_does_what_bias_mask_and_cap_do),
        cmocka_unit_test(the_score_function_gets_each_pair_once),
        cmocka_unit_test(full_blocks_need_no_score_function),
        cmocka_unit_test(a_block_function_changes_no_bit),
        cmocka_unit_test(skipped_blocks_cost_nothing),
        cmocka_unit_test(weights_add_up_and_give_o),
        cmocka_unit_test(weights_know_the_score_function),
        cmocka_unit_test(weights_refuse_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
