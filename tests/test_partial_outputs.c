/* Partial results in the form (o, lse), merged: by their weights, in any order, over the union of the keys. And the
 * caller's rounding mode, which merging in any form ignores. */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "shards.h"

/* ---- Results in the form (o, lse) ---- */

typedef struct output {
    float o[16]; /* of any float type */
    float lse;
} output;

static output make_output(int32_t type, float o, float lse)
{
    output result = {.lse = lse};
    memset(result.o, 0xff, sizeof result.o);
    for (int e = 0; e < 5; e++)
        attree__store(result.o, type, e, o + 0.25f * (float)e);
    return result;
}

static void merge_outputs(output *to, const output *other, int32_t type)
{
    assert_int_equal(attree_merge_outputs(to->o, &to->lse, other->o, &other->lse, type, 1, 5), ATTREE_OK);
}

static double o_of(const output *a, int32_t type, int e) { return (double)attree__load(a->o, type, e); }

/* All orders of {empty, (7, 1.5)}, with rubbish in an empty side's o: the full side keeps its bits. */
static void an_empty_output_is_neutral(void **state)
{
    (void)state;
    for (int32_t type = ATTREE_F32; type <= ATTREE_BF16; type++) {
        const output full = make_output(type, 7.0f, 1.5f), none = make_output(type, NAN, -INFINITY);
        const output junk = make_output(type, 3e4f, -INFINITY);
        output a = full;
        merge_outputs(&a, &none, type);
        assert_memory_equal(&a, &full, sizeof a);
        a = none;
        merge_outputs(&a, &full, type);
        assert_memory_equal(&a, &full, sizeof a);
        a = none;
        merge_outputs(&a, &junk, type);
        assert_true(a.lse == -INFINITY);
        for (int e = 0; e < 5; e++)
            assert_true(o_of(&a, type, e) == 0.0 && !signbit(o_of(&a, type, e)));
        merge_outputs(&a, &full, type); /* and what came of it is neutral again */
        assert_memory_equal(a.o, full.o, 5 * (size_t)attree__dtype_bytes(type));
        a = full;
        merge_outputs(&a, &full, type); /* twice the weight, the same values */
        assert_memory_equal(a.o, full.o, sizeof a.o);
        assert_true(close_to((double)a.lse, 1.5 + log(2.0), 0x1p-22));
        a = full;
        merge_outputs(&a, &a, type); /* the other may be the same memory */
        assert_memory_equal(a.o, full.o, sizeof a.o);
    }
}

/* The last bit of a number near x. */
static double unit(int32_t type, double x)
{
    const int bits = type == ATTREE_F32 ? 24 : type == ATTREE_F16 ? 11 : 8;
    return ldexp(1.0, ilogb(x) + 1 - bits);
}

/* Log-add, not addition of lse; against double. In f32 the weights cost 3 units, the sum, the products and the quotient
 * 2 more each of the larger o; rounding to another type half a unit of it. */
static void outputs_merge_by_their_weights(void **state)
{
    (void)state;
    const float apart[] = {0.0f, 1e-8f, 1.0f, 50.0f, 100.0f, 1e4f, 1e30f}, at[] = {0.0f, 1.5f, -20.0f, 1e5f, -1e5f};
    for (int n = 0; n < 7 * 5 * 3 * 2; n++) {
        const int32_t type = n % 3;
        const float base = at[n / 3 % 5], other = n / 15 % 2 ? base + apart[n / 30] : base - apart[n / 30];
        const output a = make_output(type, 0.75f, base), b = make_output(type, -1.25f, other);
        output ab = a, ba = b;
        merge_outputs(&ab, &b, type);
        merge_outputs(&ba, &a, type);
        const double m = fmax((double)base, (double)other), w = exp((double)base - m), v = exp((double)other - m);
        const double tolerance = 8 * unit(ATTREE_F32, 1.75) + (type == ATTREE_F32 ? 0.0 : unit(type, 1.75) / 2);
        for (int e = 0; e < 5; e++) {
            const double expected = (w * o_of(&a, type, e) + v * o_of(&b, type, e)) / (w + v);
            assert_true(close_to(expected, o_of(&ab, type, e), tolerance));
            assert_true(close_to(expected, o_of(&ba, type, e), tolerance));
            assert_true(close_to(o_of(&ab, type, e), o_of(&ba, type, e), /* the order costs 2 units at most */
                                 2 * unit(type, 1.75)));
        }
        const double lse = m + log(w + v);
        assert_true(close_to(lse, (double)ab.lse, 2 * unit(ATTREE_F32, fmax(fabs(lse), 1.0))));
        assert_true(ab.lse == ba.lse);
    }
}

/* (a b) c and a (b c), with lse a few apart: rounding of lse changes a weight by a unit of lse, relatively. */
static void merging_outputs_is_associative_within_rounding(void **state)
{
    (void)state;
    random_source random = {99};
    for (int n = 0; n < 3000; n++) {
        output x[3], left, right;
        for (int i = 0; i < 3; i++)
            x[i] = make_output(0, random_float(&random, -1.0f, 0.0f), random_float(&random, -4.0f, 4.0f));
        left = x[0];
        merge_outputs(&left, &x[1], 0);
        merge_outputs(&left, &x[2], 0);
        right = x[1];
        merge_outputs(&right, &x[2], 0);
        output first = x[0];
        merge_outputs(&first, &right, 0);
        for (int e = 0; e < 5; e++)
            assert_true(close_to(o_of(&left, 0, e), o_of(&first, 0, e), 0x1p-20));
        assert_true(close_to((double)left.lse, (double)first.lse, 2 * unit(ATTREE_F32, 5.0)));
    }
}

/* 1000 results, one after the other and pairwise, some of them empty; against double. An lse around 8 has units of
 * 2^-21; a chain may lose half a unit of it, and 8 of o, at each step, and a tree at each of its 10 levels. */
static void a_chain_of_outputs_is_near_a_tree(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static output x[COUNT];
    random_source random = {1};
    double sum[6] = {0.0};
    for (int n = 0; n < COUNT; n++) {
        x[n] = make_output(0, random_float(&random, -1.0f, 0.0f), random_float(&random, -2.0f, 2.0f));
        if (n % 10 == 0 || n == COUNT - 1)
            x[n] = make_output(0, NAN, -INFINITY);
        else
            sum[5] += exp((double)x[n].lse);
        for (int e = 0; e < 5 && x[n].lse > -INFINITY; e++)
            sum[e] += exp((double)x[n].lse) * o_of(&x[n], 0, e);
    }
    output chain = x[0];
    for (int n = 1; n < COUNT; n++)
        merge_outputs(&chain, &x[n], 0);
    for (int step = 1; step < COUNT; step *= 2)
        for (int n = 0; n + step < COUNT; n += 2 * step)
            merge_outputs(&x[n], &x[n + step], 0);
    for (int e = 0; e < 5; e++) {
        assert_true(close_to(sum[e] / sum[5], o_of(&chain, 0, e), COUNT * 0x1p-21));
        assert_true(close_to(sum[e] / sum[5], o_of(&x[0], 0, e), 10 * 0x1p-20));
    }
    assert_true(close_to(log(sum[5]), (double)chain.lse, COUNT * 0x1p-22));
    assert_true(close_to(log(sum[5]), (double)x[0].lse, 10 * 0x1p-21));
}

/* +inf in any row, on either side: refused, and no row has changed. NaN: that row only. */
static void outputs_that_are_not_numbers(void **state)
{
    (void)state;
    enum { ROWS = 4, E = 3 };
    for (int n = 0; n < ROWS * 3 * 4; n++) {
        const int32_t type = n % 3;
        const int row = n / 3 % ROWS, way = n / (3 * ROWS); /* inf or NaN, on one side or the other */
        float o[2][ROWS * E], lse[2][ROWS], before_o[2][ROWS * E], before_lse[2][ROWS];
        memset(o, 0, sizeof o);
        for (int i = 0; i < 2 * ROWS; i++) {
            lse[i / ROWS][i % ROWS] = 0.5f * (float)i;
            for (int e = 0; e < E; e++)
                attree__store(o[i / ROWS], type, i % ROWS * E + e, (float)(i + e));
        }
        lse[way % 2][row] = way < 2 ? INFINITY : NAN;
        if (row == 1)
            lse[1 - way % 2][row] = -INFINITY;
        memcpy(before_o, o, sizeof o);
        memcpy(before_lse, lse, sizeof lse);
        const attree_status status = attree_merge_outputs(o[0], lse[0], o[1], lse[1], type, ROWS, E);
        if (way < 2) {
            assert_int_equal(status, ATTREE_ERROR_NONFINITE);
            assert_memory_equal(o, before_o, sizeof o);
            assert_memory_equal(lse, before_lse, sizeof lse);
            continue;
        }
        assert_int_equal(status, ATTREE_OK);
        assert_memory_equal(o[1], before_o[1], sizeof o[1]);
        for (int i = 0; i < ROWS; i++) {
            assert_true((isnan(lse[0][i]) != 0) == (i == row));
            for (int e = 0; e < E; e++)
                assert_true((isnan(attree__load(o[0], type, i * E + e)) != 0) == (i == row));
        }
    }
}

static void merging_outputs_refuses_what_it_must(void **state)
{
    (void)state;
    float o[4] = {1.0f, 2.0f, 3.0f, 4.0f}, lse[2] = {0.0f, 0.0f};
    assert_int_equal(attree_merge_outputs(NULL, NULL, NULL, NULL, ATTREE_F16, 0, 2), ATTREE_OK);
    assert_int_equal(attree_merge_outputs(NULL, lse, o, lse, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, NULL, o, lse, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, lse, NULL, lse, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, lse, o, NULL, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, ATTREE_I8, 2, 2), ATTREE_ERROR_TYPE);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, 0, -1, 2), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, 0, 2, 0), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, 0, INT64_MAX / 8, 64), ATTREE_ERROR_OVERFLOW);
    assert_int_equal(attree_merge_outputs((char *)o + 1, lse, o, lse, 1, 1, 1), ATTREE_ERROR_ALIGN);
    assert_true(o[0] == 1.0f && lse[0] == 0.0f);
}

/* Two runs over the keys before and after any token, as engines have them, against one run over all. */
static void merged_outputs_are_attention_over_the_union(void **state)
{
    (void)state;
    enum { K = 900, Q = 4, H = 4, G = 2, D = 32, E = 40 };
    const int64_t cuts[] = {0, 1, 100, 256, 899, 900};
    for (int n = 0; n < 6 * 3; n++) {
        const int32_t type = n % 3;
        attree_desc d = make_desc(1, H, G, Q, K, D, E);
        d.o_type = type;
        tensors t = make_tensors(&d, 1200);
        run_tensors(&d, &t);
        const int64_t begin[] = {0, cuts[n / 3]}, end[] = {cuts[n / 3], K};
        float o[2][H * Q * E], lse[2][H * Q];
        for (int part = 0; part < 2; part++) {
            attree_desc some = d;
            some.kv_len = end[part] - begin[part];
            some.k = (attree_strides){0, (int64_t)K * D, D, 1};
            some.v = (attree_strides){0, (int64_t)K * E, E, 1};
            const attree_args args = {
                .q = t.q, .k = t.k + begin[part] * D, .v = t.v + begin[part] * E, .o = o[part], .lse = lse[part]};
            run_expecting(ATTREE_OK, &some, &args);
        }
        assert_int_equal(attree_merge_outputs(o[0], lse[0], o[1], lse[1], type, H * Q, E), ATTREE_OK);
        /* three roundings to the type: of either side, of the sum */
        const double tolerance = merging_bound(4) + (type == ATTREE_F32 ? 0.0 : 1.5 * unit(type, 0.75));
        for (int64_t i = 0; i < t.o_count; i++)
            assert_true(close_to((double)attree__load(t.o, type, i), (double)attree__load(o[0], type, i), tolerance));
        for (int64_t i = 0; i < t.lse_count; i++)
            assert_true(close_to((double)t.lse[i], (double)lse[0][i], merging_bound(4)));
        free_tensors(&t);
    }
}

/* ---- The caller's rounding mode ---- */

static void rounding_mode_does_not_matter(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 2, 1, 3, 2 * BLOCK, 20, 24);
    problem p;
    make_problem(&p, &d, SINKS, 1300);
    float *const left = states_of_keys(&p, 0, BLOCK), *const right = states_of_keys(&p, BLOCK, 2 * BLOCK);
    float *const merged = filled(6 * 26 * sizeof(float)), *const again = filled(6 * 26 * sizeof(float));
    output a = make_output(0, 0.3f, 0.1f), b = a;
    const output other = make_output(0, -0.7f, 1.7f);
    merge_states(&p, merged, left, right);
    float *const result = finished(&p, merged, true);
    merge_outputs(&a, &other, 0);
    assert_int_equal(fesetround(FE_UPWARD), 0);
    merge_states(&p, again, left, right);
    float *const result_again = finished(&p, again, true);
    merge_outputs(&b, &other, 0);
    const int mode = fegetround();
    fesetround(FE_TONEAREST);
    assert_int_equal(mode, FE_UPWARD);
    assert_same_bits(merged, again, (int64_t)6 * 26);
    assert_same_bits(result, result_again, p.t.o_count + p.t.lse_count);
    assert_memory_equal(&a, &b, sizeof a);
    free(left);
    free(right);
    free(merged);
    free(again);
    free(result);
    free(result_again);
    free_problem(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_output_is_neutral),
        cmocka_unit_test(outputs_merge_by_their_weights),
        cmocka_unit_test(merging_outputs_is_associative_within_rounding),
        cmocka_unit_test(a_chain_of_outputs_is_near_a_tree),
        cmocka_unit_test(outputs_that_are_not_numbers),
        cmocka_unit_test(merging_outputs_refuses_what_it_must),
        cmocka_unit_test(merged_outputs_are_attention_over_the_union),
        cmocka_unit_test(rounding_mode_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
