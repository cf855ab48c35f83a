/* Attention over a quantised cache has the bits of attention over the numbers that it stands for, whatever the codes;
 * how large errors are; caches that grow. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "caches.h"

enum { BLOCK = 32 };

#define COUNT_OF(array) (int64_t)(sizeof(array) / sizeof *(array))

/* ---- Attention ---- */

typedef struct attention_case {
    int64_t q_len, kv_len, qk_width, v_width;
    int32_t k_type, v_type;
    bool panels, token_major;
} attention_case;

/* A quantised cache, and the one of f32 that it stands for. */
typedef struct attention {
    attree_desc desc, plain_desc;
    cache k, v, plain_k, plain_v;
    tensors t; /* queries; keys and values before they were quantised */
} attention;

enum { B = 2, H = 4, G = 2 };

static void quantise_tensor(cache *c, cache *plain, const float *numbers)
{
    const cache_layout *l = &c->layout;
    float *const back = malloc((size_t)l->width * sizeof *back);
    assert_non_null(back);
    for (int64_t n = 0; n < l->pages * l->heads * l->tokens; n++) {
        const cache_at at = {n / l->tokens / l->heads, n / l->tokens % l->heads, n % l->tokens};
        cache_write(c, at, numbers + n * l->width);
        cache_read(c, at, back);
        cache_write(plain, at, back);
    }
    free(back);
}

static attention make_attention(const attention_case *c, uint64_t seed)
{
    attention a = {.plain_desc = make_desc(B, H, G, c->q_len, c->kv_len, c->qk_width, c->v_width)};
    a.plain_desc.flags = ATTREE_CAUSAL;
    a.t = make_tensors(&a.plain_desc, seed);
    a.desc = a.plain_desc;
    a.k = make_cache(
        &(cache_layout){B, G, c->kv_len, c->qk_width, c->k_type, c->panels, c->token_major, false, false, false});
    a.v =
        make_cache(&(cache_layout){B, G, c->kv_len, c->v_width, c->v_type, false, c->token_major, false, false, false});
    a.plain_k =
        make_cache(&(cache_layout){B, G, c->kv_len, c->qk_width, ATTREE_F32, false, false, false, false, false});
    a.plain_v = make_cache(&(cache_layout){B, G, c->kv_len, c->v_width, ATTREE_F32, false, false, false, false, false});
    describe_keys(&a.desc, &a.k);
    describe_values(&a.desc, &a.v);
    return a;
}

static void free_attention(attention *a)
{
    free_cache(&a->k);
    free_cache(&a->v);
    free_cache(&a->plain_k);
    free_cache(&a->plain_v);
    free_tensors(&a->t);
}

/* Into t.o, t.lse. */
static void attend(attention *a, const attree_desc *desc, const cache *k, const cache *v)
{
    forget_results(&a->t);
    attree_args args = {.q = a->t.q, .o = a->t.o, .lse = a->t.lse};
    point_to_caches(&args, k, v);
    run_expecting(ATTREE_OK, desc, &args);
}

static float *copy_of(const float *numbers, int64_t count)
{
    float *const copy = malloc((size_t)count * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, numbers, (size_t)count * sizeof *copy);
    return copy;
}

/* The two agree to the bit, with every instruction set. */
static void check_same(attention *a, const char *what)
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    attend(a, &a->plain_desc, &a->plain_k, &a->plain_v);
    float *const o = copy_of(a->t.o, a->t.o_count), *const lse = copy_of(a->t.lse, a->t.lse_count);
    for (int i = 0; i < count; i++) {
        a->desc.isa = (int32_t)isas[i];
        attend(a, &a->desc, &a->k, &a->v);
        if (memcmp(o, a->t.o, (size_t)a->t.o_count * sizeof *o) != 0)
            print_error("isa %d: %s, types %s %s, Q %lld K %lld D %lld E %lld\n", isas[i], what,
                        type_name(a->desc.k_type), type_name(a->desc.v_type), (long long)a->desc.q_len,
                        (long long)a->desc.kv_len, (long long)a->desc.qk_width, (long long)a->desc.v_width);
        assert_same_bits(o, a->t.o, a->t.o_count);
        assert_same_bits(lse, a->t.lse, a->t.lse_count);
    }
    free(o);
    free(lse);
}

static void check_attention(const attention_case *c, uint64_t seed)
{
    if (thinned_out())
        return;
    attention a = make_attention(c, seed);
    quantise_tensor(&a.k, &a.plain_k, a.t.k);
    quantise_tensor(&a.v, &a.plain_v, a.t.v);
    check_same(&a, c->panels ? "panels" : "rows");
    free_attention(&a);
}

static void attention_has_the_bits_of_the_numbers_in_the_cache(void **state)
{
    (void)state;
    const int64_t q_lens[] = {1, 2, 5, 27}, kv_lens[] = {1, 15, 40, 257, 300};
    const int64_t widths[] = {32, 64, 96, 128}, odd[] = {1, 3, 17, 33, 47, 70, 80, 127};
    uint64_t n = 0;
    for (int32_t k_type = ATTREE_F32; k_type < ATTREE__DTYPE_COUNT; k_type++)
        for (int32_t v_type = ATTREE_F32; v_type < ATTREE__DTYPE_COUNT; v_type++)
            for (int variant = 0; variant < 8; variant++, n++) {
                attention_case c = {.q_len = q_lens[(n / 3 + n) % 4],
                                    .kv_len = kv_lens[n % 5],
                                    .qk_width = widths[n % 4],
                                    .v_width = widths[n / 4 % 4],
                                    .k_type = k_type,
                                    .v_type = v_type,
                                    .panels = variant % 2 && !has_blocks(k_type),
                                    .token_major = variant & 2};
                if (variant & 4 && !has_blocks(k_type))
                    c.qk_width = odd[n % 8];
                if (variant & 4 && !has_blocks(v_type))
                    c.v_width = odd[n / 8 % 8];
                if (k_type >= ATTREE_I8 || v_type >= ATTREE_I8 || c.panels)
                    check_attention(&c, n);
            }
}

/* Random bytes as codes and scales; those of blocks have exponents that make them at most 2^-2, f8 no NaN. */
static void fill_with_any_codes(cache *c, random_source *random)
{
    const cache_layout *l = &c->layout;
    const int64_t unit = (int64_t)attree_row_bytes(l->type, has_blocks(l->type) ? BLOCK : 1);
    uint8_t *const bytes = cache_data(c);
    for (int64_t at = 0; at < c->rows.bytes * l->pages; at++) {
        bytes[at] = (uint8_t)random_integer(random, 0, 255);
        if (l->type == ATTREE_F8_E4M3 && (bytes[at] & 127) == 127)
            bytes[at] = 0x7e;
        if (l->type == ATTREE_F8_E5M2 && (bytes[at] & 0x60) == 0x60) /* no infinities, and no numbers above 2 */
            bytes[at] ^= 0x40;
        if (has_blocks(l->type) && at % unit == 1)
            bytes[at] = bytes[at] & 0xafu;
    }
    for (int64_t at = 0; at < l->pages * l->heads * l->tokens && l->type == ATTREE_I8; at++)
        cache_scales(c)[at] = at % 7 == 0 ? 0.0f : random_float(random, -0.02f, 0.02f);
}

static void copy_numbers(const cache *c, cache *plain)
{
    const cache_layout *l = &c->layout;
    for (int64_t n = 0; n < l->pages * l->heads * l->tokens; n++) {
        const cache_at at = {n / l->tokens / l->heads, n / l->tokens % l->heads, n % l->tokens};
        float numbers[128];
        cache_read(c, at, numbers);
        cache_write(plain, at, numbers);
    }
}

/* Codes and scales that the quantiser does not make: -128, negative and zero scales, subnormal ones, every byte. */
static void attention_takes_any_code_and_scale(void **state)
{
    (void)state;
    random_source random = {77};
    for (int n = 0; n < 4; n++)
        for (int round = 0; round < 4; round++) {
            const int32_t type = quantised_types[n];
            const attention_case c = {
                round % 2 ? 26 : 1, 130, 64, 32, type, type, round > 1 && !has_blocks(type), false};
            attention a = make_attention(&c, 5);
            fill_with_any_codes(&a.k, &random);
            fill_with_any_codes(&a.v, &random);
            copy_numbers(&a.k, &a.plain_k);
            copy_numbers(&a.v, &a.plain_v);
            check_same(&a, "any bytes");
            free_attention(&a);
        }
}

/* Rows of zeros, of which the scales are 0: uniform weights, and values that are exactly 0. */
static void attention_over_zeros_is_zero(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        const attention_case c = {3, 20, 32, 32, quantised_types[n], quantised_types[n], false, false};
        attention a = make_attention(&c, 6);
        memset(a.t.k, 0, (size_t)a.t.k_count * sizeof(float));
        memset(a.t.v, 0, (size_t)a.t.v_count * sizeof(float));
        quantise_tensor(&a.k, &a.plain_k, a.t.k);
        quantise_tensor(&a.v, &a.plain_v, a.t.v);
        attend(&a, &a.desc, &a.k, &a.v);
        for (int64_t i = 0; i < a.t.o_count; i++)
            assert_true(a.t.o[i] == 0.0f);
        for (int64_t i = 0; i < a.t.lse_count; i++)
            assert_true(close_to((double)a.t.lse[i], log((double)(18 + i % 3)), 1e-6));
        free_attention(&a);
    }
}

static void scales_are_required(void **state)
{
    (void)state;
    for (int values = 0; values < 2; values++) {
        const attention_case c = {1,     5,    4, 4, values ? ATTREE_F32 : ATTREE_I8, values ? ATTREE_I8 : ATTREE_F32,
                                  false, false};
        attention a = make_attention(&c, 8);
        quantise_tensor(&a.k, &a.plain_k, a.t.k);
        quantise_tensor(&a.v, &a.plain_v, a.t.v);
        attree_args args = {.q = a.t.q, .o = a.t.o, .lse = a.t.lse};
        point_to_caches(&args, &a.k, &a.v);
        args.k_scales = args.v_scales = NULL;
        run_expecting(ATTREE_ERROR_NULL, &a.desc, &args);
        assert_non_null(strstr(attree_last_error(), values ? "v_scales" : "k_scales"));
        free_attention(&a);
    }
}

/* ---- Error ---- */

/* The largest difference of o from o over the numbers before quantisation, all uniform in [-1, 1). */
static double measure_error(int32_t k_type, int32_t v_type, int64_t q_len)
{
    const attention_case c = {q_len, 500, 64, 64, k_type, v_type, false, false};
    attention a = make_attention(&c, 11);
    run_tensors(&a.plain_desc, &a.t);
    float *const exact = copy_of(a.t.o, a.t.o_count);
    quantise_tensor(&a.k, &a.plain_k, a.t.k);
    quantise_tensor(&a.v, &a.plain_v, a.t.v);
    attend(&a, &a.desc, &a.k, &a.v);
    double most = 0.0;
    for (int64_t i = 0; i < a.t.o_count; i++)
        if (!(fabs((double)a.t.o[i] - (double)exact[i]) <= most)) /* NaN stays */
            most = fabs((double)a.t.o[i] - (double)exact[i]);
    free(exact);
    free_attention(&a);
    return most;
}

/* Over 500 keys errors of rounding average out: bounds are about twice what is measured. */
static void errors_of_quantisation_are_small(void **state)
{
    (void)state;
    const double bounds[] = {1e-3, 1e-3, 1.6e-2, 5e-3};
    for (int n = 0; n < 4; n++)
        for (int64_t q_len = 1; q_len <= 30; q_len += 29) {
            const double keys = measure_error(quantised_types[n], ATTREE_F32, q_len);
            const double values = measure_error(ATTREE_F32, quantised_types[n], q_len);
            const double both = measure_error(quantised_types[n], quantised_types[n], q_len);
            print_message("%s, %lld queries: error with quantised k %.1e, v %.1e, both %.1e\n",
                          type_name(quantised_types[n]), (long long)q_len, keys, values, both);
            assert_true(keys > 0.0 && values > 0.0);
            assert_true(both < bounds[n]);
        }
}

/* ---- A cache that grows by a few tokens at a time ---- */

static void check_against_oracle(const attree_desc *d, const tensors *plain, const float *o, const float *lse)
{
    for (int64_t h = 0; h < d->q_heads; h++)
        for (int64_t i = 0; i < d->q_len; i++) {
            wide right[64];
            const wide right_lse = oracle_row(d, plain, 0, h, i, right);
            assert_true(close_to((double)lse[h * d->q_len + i], (double)right_lse, 1e-5));
            for (int64_t e = 0; e < d->v_width; e++)
                assert_true(close_to((double)o[(h * d->q_len + i) * d->v_width + e], (double)right[e], 1e-5));
        }
}

/* The keys or values of the first tokens, dense, as they are in the cache. */
static float *read_tokens(const cache *c, int64_t tokens)
{
    const int64_t width = c->layout.width;
    float *const numbers = malloc((size_t)(G * tokens * width) * sizeof *numbers);
    assert_non_null(numbers);
    for (int64_t n = 0; n < G * tokens; n++)
        cache_read(c, (cache_at){0, n / tokens, n % tokens}, numbers + n * width);
    return numbers;
}

/* `step` tokens are appended, then attention of as many queries. */
static void grow(cache *k, cache *v, int64_t before, int64_t step)
{
    attree_desc d = make_desc(1, H, G, step, before + step, 64, 32);
    d.flags = ATTREE_CAUSAL;
    tensors t = make_tensors(&d, (uint64_t)before);
    tensors plain = t;
    attree_desc stored = d;
    describe_keys(&stored, k);
    describe_values(&stored, v);
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &stored), ATTREE_OK);
    const attree_new_tokens tokens = {.size = sizeof tokens,
                                      .k = t.k,
                                      .v = t.v,
                                      .cache_k = cache_data(k),
                                      .cache_v = cache_data(v),
                                      .cache_k_scales = cache_scales(k),
                                      .cache_v_scales = cache_scales(v)};
    assert_int_equal(attree_append(plan, &tokens), ATTREE_OK);
    attree_plan_destroy(plan);
    attree_args args = {.q = t.q, .o = t.o, .lse = t.lse};
    point_to_caches(&args, k, v);
    run_expecting(ATTREE_OK, &stored, &args);
    plain.k = read_tokens(k, before + step);
    plain.v = read_tokens(v, before + step);
    check_against_oracle(&d, &plain, t.o, t.lse);
    free(plain.k);
    free(plain.v);
    free_tensors(&t);
}

static void small_appends_are_right(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++)
        for (int64_t step = 1; step <= 4; step++) {
            const cache_layout l = {
                1,     G,     48,    64,   quantised_types[n], step % 2 && !has_blocks(quantised_types[n]),
                false, false, false, false};
            cache_layout values = l;
            values.width = 32;
            values.panels = false;
            cache k = make_cache(&l), v = make_cache(&values);
            for (int64_t tokens = 0; tokens + step <= 40; tokens += step)
                grow(&k, &v, tokens, step);
            free_cache(&k);
            free_cache(&v);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_has_the_bits_of_the_numbers_in_the_cache),
        cmocka_unit_test(attention_takes_any_code_and_scale),
        cmocka_unit_test(attention_over_zeros_is_zero),
        cmocka_unit_test(scales_are_required),
        cmocka_unit_test(errors_of_quantisation_are_small),
        cmocka_unit_test(small_appends_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
