/* Masks and biases that show a range of keys to each row: whatever the kernels leave out of a block because of them,
 * the bits are those of the scalar kernels, which leave out nothing. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"

enum { BYTES, BITS, BIAS_F32, BIAS_F16, BIAS_BF16, KINDS };

/* What a row shows: keys from ... to - 1, but for holes; with a bias that is not 0 there, or is. */
typedef struct shown {
    int64_t from, to, hole; /* every hole-th key is hidden; 0: none */
    float bias;
} shown;

static shown draw_row(random_source *random, int64_t keys)
{
    shown s = {random_integer(random, 0, keys), random_integer(random, 0, keys), 0, 0.0f};
    if (random_integer(random, 0, 3) == 0)
        s.from = 0;
    if (random_integer(random, 0, 3) == 0)
        s.to = keys;
    if (random_integer(random, 0, 4) == 0)
        s.hole = random_integer(random, 2, 300);
    if (random_integer(random, 0, 4) == 0)
        s.bias = random_integer(random, 0, 1) ? -0.0f : 0.5f;
    return s;
}

static bool is_shown(const shown *s, int64_t j)
{
    return j >= s->from && j < s->to && (s->hole == 0 || j % s->hole != 1);
}

static void put(void *elements, int kind, int64_t n, const shown *s, int64_t j)
{
    uint8_t *const bytes = elements;
    const bool on = is_shown(s, j);
    if (kind == BYTES)
        bytes[n] = (uint8_t)(on ? 1 + j % 255 : 0);
    else if (kind == BITS)
        bytes[n >> 3] = (uint8_t)(bytes[n >> 3] | (on ? 1u << (n & 7) : 0u));
    else
        attree__store(elements, kind - BIAS_F32, n, on ? s->bias : -INFINITY);
}

/* Elements of all rows of `heads` heads, 1 for all alike. */
static void *draw_elements(const attree_desc *d, int kind, int64_t heads, random_source *random)
{
    const int64_t rows = heads * d->q_len;
    void *const elements = calloc((size_t)(rows * d->kv_len + 8), sizeof(float));
    assert_non_null(elements);
    for (int64_t r = 0; r < rows; r++) {
        const shown s = draw_row(random, d->kv_len);
        for (int64_t j = 0; j < d->kv_len; j++)
            put(elements, kind, r * d->kv_len + j, &s, j);
    }
    return elements;
}

static void attend(const attree_desc *desc, attree_args *args, const tensors *t, attree_isa isa, float *result)
{
    attree_desc d = *desc;
    d.isa = (int32_t)isa;
    args->o = result;
    args->lse = result + t->o_count;
    memset(result, 0xff, (size_t)(t->o_count + t->lse_count) * sizeof *result);
    if (attree_attention(&d, args) != ATTREE_OK)
        fail_msg("%s", attree_last_error());
}

static void check(const attree_desc *d, attree_args *args, uint64_t seed)
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    tensors t = make_tensors(d, seed);
    const int64_t floats = t.o_count + t.lse_count;
    float *const expected = malloc((size_t)floats * sizeof(float)), *const got = malloc((size_t)floats * sizeof(float));
    assert_true(expected && got);
    args->q = t.q, args->k = t.k, args->v = t.v;
    attend(d, args, &t, ATTREE_ISA_SCALAR, expected);
    for (int n = 0; n < count; n++) {
        attend(d, args, &t, isas[n], got);
        assert_same_bits(expected, got, floats);
    }
    free(expected);
    free(got);
    free_tensors(&t);
}

static void ranges_of_masks_and_biases_change_no_bit(void **state)
{
    (void)state;
    random_source random = {20240229};
    for (int n = 0; n < 250; n++) {
        if (thinned_out())
            continue;
        const int64_t group = random_integer(&random, 1, 4), kv_heads = random_integer(&random, 1, 2);
        attree_desc d = make_desc(1, group * kv_heads, kv_heads, random_integer(&random, 1, 40),
                                  random_integer(&random, 1, 700), 8, 16);
        d.threads = (int32_t)random_integer(&random, 1, 2);
        d.flags |= random_integer(&random, 0, 2) == 0 ? ATTREE_CAUSAL : 0;
        attree_args args = {.size = sizeof args};
        const int mask = (int)random_integer(&random, BYTES, BITS),
                  bias = (int)random_integer(&random, BIAS_F32, KINDS - 1);
        const int64_t both = random_integer(&random, 0, 3);
        void *elements[2] = {NULL, NULL};
        if (both != 1) {
            d.mask.heads = random_integer(&random, 0, 1);
            d.mask_kind = mask == BYTES ? ATTREE_MASK_BYTES : ATTREE_MASK_BITS;
            args.mask = elements[0] = draw_elements(&d, mask, d.mask.heads ? 1 : d.q_heads, &random);
        }
        if (both != 0) {
            d.bias.heads = random_integer(&random, 0, 1);
            d.bias_type = bias - BIAS_F32;
            args.bias = elements[1] = draw_elements(&d, bias, d.bias.heads ? 1 : d.q_heads, &random);
        }
        check(&d, &args, (uint64_t)n + 1);
        free(elements[0]);
        free(elements[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_of_masks_and_biases_change_no_bit)};
    return cmocka_run_group_tests_name("scan", tests, NULL, NULL);
}
