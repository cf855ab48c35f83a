/* Relations between runs (see test_relations.c) whose scores are masked, biased or changed by the caller's functions.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/dtype.h"
#include "relations.h"

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
        float *const chance = random_floats(count, (uint64_t)n, 0.0f, 1.0f), *const bias = nan_floats(count);
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
        float *const wide_bias = random_floats(count, 111, -3.0f, 3.0f), *const narrow_bias = nan_floats(count);
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
        float *const bias = nan_floats(4 * d.q_len * 600);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masked_keys_cannot_be_seen),
        cmocka_unit_test(bytes_bits_and_minus_infinity_hide_alike),
        cmocka_unit_test(narrow_biases_are_the_numbers_they_hold),
        cmocka_unit_test(a_constant_added_to_scores_moves_lse_only),
        cmocka_unit_test(alibi_is_a_bias),
        cmocka_unit_test(a_sink_is_a_key_without_values),
        cmocka_unit_test(a_score_function_does_what_bias_mask_and_cap_do),
        cmocka_unit_test(the_score_function_gets_each_pair_once),
        cmocka_unit_test(full_blocks_need_no_score_function),
        cmocka_unit_test(a_block_function_changes_no_bit),
        cmocka_unit_test(skipped_blocks_cost_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
