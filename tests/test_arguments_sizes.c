/* Sizes and strides that overflow, and what looks odd but is valid: any stride along a dimension of size 1, zero sizes.
 */
#define _POSIX_C_SOURCE 200809L /* setenv, pthread_barrier_t */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

/* ---- Overflow ---- */

static void test_products_that_overflow(void **state)
{
    const problem *p = *state;
    const struct {
        int64_t shape[7]; /* B, H, G, Q, K, D, E */
        const char *name;
    } cases[] = {
        {{TWO_TO(31), TWO_TO(31), 1, 2, 1, 1, 1}, "q"},
        {{TWO_TO(31), TWO_TO(31), 1, 1, 1, 1, 1}, "q"}, /* 2^62 elements, but not bytes */
        {{1, 1, 1, MOST, 1, 1, 1}, "q"},
        {{1, 1, 1, 1, MOST, 1, 1}, "k"},
        {{TWO_TO(20), TWO_TO(21), TWO_TO(21), 1, TWO_TO(21), 1, 1}, "k"},
        {{1000000, 128, 128, 100000, 1000000000, 512, 512}, "k"},
        {{TWO_TO(20), TWO_TO(21), TWO_TO(21), 1, TWO_TO(21), 0, 1}, "v"},
        {{1, 1, 1, 1, TWO_TO(40), 1, TWO_TO(40)}, "v"},
        {{TWO_TO(20), TWO_TO(21), 1, TWO_TO(21), 0, 0, 1}, "o"},
        {{1, TWO_TO(40), 1, TWO_TO(40), 1, 0, 1}, "o"},
        {{1, 1, 1, TWO_TO(40), 1, 1, TWO_TO(40)}, "o"},
        {{1, 1, 1, 1, 1, TWO_TO(59), 1}, "qk_width"}, /* the tensors fit 64 bits, the workspace does not */
        {{1, 1, 1, 1, 1, 1, TWO_TO(59)}, "v_width"},
        {{0, 1, 1, 1, 1, 1, MOST}, "v_width"},
        {{0, 1, 1, 1, 1, MOST, 1}, "qk_width"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const attree_desc desc = shaped(cases[i].shape);
        expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, cases[i].name);
    }
}

/* Near the limit either answer will do, but not a wrapped one. */
static void test_sizes_near_overflow(void **unused)
{
    (void)unused;
    const int64_t shapes[][7] = {
        {1000000, 128, 1, 100000, 1000000000, 1, 1},
        {1000000, 128, 1, 100000, 1000000000, 512, 512},
        {1000000, 128, 128, 1, 1000000000, 1, 1},
        {64, 12, 12, 4096, 4096, 64, 64},
        {0, TWO_TO(40), 1, TWO_TO(40), 1, 1, 1},
        {0, MOST, MOST, MOST, MOST, 1, 1},
        {MOST, 1, 1, 0, 0, 1, 1},
        {MOST, MOST, MOST, 0, 0, 0, 1},
        {MOST, MOST, 1, 0, 0, 0, 1},
        {1, 1, 1, TWO_TO(59), TWO_TO(59), 1, 1},
        {1, 1, 1, 1, TWO_TO(59), 1, 1},
        {1, TWO_TO(59), 1, 1, 1, 1, 1},
        {1, 1, 1, 1, 1, TWO_TO(50), TWO_TO(50)},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const attree_desc desc = shaped(shapes[i]);
        const attree_status status = plan_status(&desc);
        if (status != ATTREE_OK && status != ATTREE_ERROR_OVERFLOW)
            fail_msg("shape %zu: %s", i, attree_status_name(status));
    }
}

static size_t workspace_of(attree_desc desc)
{
    attree_plan *plan;
    if (attree_plan_create(&plan, &desc) != ATTREE_OK)
        fail_msg("refused: %s", attree_last_error());
    const size_t bytes = attree_plan_workspace(plan);
    attree_plan_destroy(plan);
    return bytes;
}

/* With more than enough tiles for every worker, each worker adds the same number of bytes, also beyond 2^32. */
static void test_workspace_beyond_32_bits(void **unused)
{
    (void)unused;
    attree_desc desc = shaped((const int64_t[7]){1000000, 128, 128, 1000, 4096, 512, 512});
    size_t workers[] = {2, 3, 65536}, bytes[3];
    for (size_t i = 0; i < 3; i++) {
        desc.threads = (int32_t)workers[i];
        bytes[i] = workspace_of(desc);
    }
    assert_true(bytes[2] > UINT32_MAX);
    assert_true(bytes[2] - bytes[0] == (bytes[1] - bytes[0]) * (workers[2] - workers[0]));
}

/* Neither K nor Q * K is in it; the depth of the tree, which grows with log K, may be. */
static void test_workspace_does_not_grow_with_keys(void **unused)
{
    (void)unused;
    attree_desc few = shaped((const int64_t[7]){1, 8, 2, 1000, TWO_TO(20), 64, 64}), many = few;
    few.threads = many.threads = 4;
    many.kv_len = TWO_TO(40);
    many.q_len = 100000;
    assert_true(workspace_of(many) <= 3 * workspace_of(few));
}

/* ---- Strides ---- */

static attree_strides *strides_of(attree_desc *desc, tensor which)
{
    attree_strides *const all[] = {&desc->q, &desc->k, &desc->v, &desc->o, &desc->lse};
    return all[which];
}

static int64_t *stride_of(attree_strides *strides, int dimension)
{
    int64_t *const all[] = {&strides->batch, &strides->head, &strides->token, &strides->width};
    return all[dimension];
}

/* The dense strides of every tensor, written out. */
static void write_dense_strides(attree_desc *d)
{
    const int64_t H_ = d->q_heads, G_ = d->kv_heads, Q_ = d->q_len, K_ = d->kv_len, D_ = d->qk_width, E_ = d->v_width;
    d->q = (attree_strides){H_ * Q_ * D_, Q_ * D_, D_, 1};
    d->k = (attree_strides){G_ * K_ * D_, K_ * D_, D_, 1};
    d->v = (attree_strides){G_ * K_ * E_, K_ * E_, E_, 1};
    d->o = (attree_strides){H_ * Q_ * E_, Q_ * E_, E_, 1};
    d->lse = (attree_strides){H_ * Q_, Q_, 1, 0};
}

static void test_strides_that_overflow(void **state)
{
    problem *p = *state;
    const int64_t bad[] = {INT64_MAX, INT64_MIN, INT64_MAX - 1, INT64_MIN + 1, TWO_TO(62), -TWO_TO(62), TWO_TO(61)};
    for (tensor t = IN_Q; t < WORKSPACE; t++)
        for (int dimension = 0; dimension < 4; dimension++)
            for (size_t i = 0; i < COUNT_OF(bad); i++) {
                attree_desc desc = valid_desc();
                write_dense_strides(&desc);
                *stride_of(strides_of(&desc, t), dimension) = bad[i];
                if (t == OUT_LSE && dimension == 3) /* lse has no width */
                    expect_accepted(p, &desc);
                else
                    expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, places[t].name);
            }
}

/* Each fits, their sum does not. */
static void test_strides_whose_sum_overflows(void **state)
{
    const problem *p = *state;
    for (tensor t = IN_Q; t <= OUT_O; t++)
        for (int64_t sign = -1; sign <= 1; sign += 2) {
            attree_desc desc = valid_desc();
            const int64_t s = sign * TWO_TO(59);
            *strides_of(&desc, t) = (attree_strides){s, s, s, s};
            expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, places[t].name);
        }
}

static void test_strides_that_make_outputs_overlap(void **state)
{
    const problem *p = *state;
    const struct {
        tensor t;
        attree_strides strides;
    } cases[] = {
        {OUT_O, {H * Q * E, Q * E, 0, 1}},
        {OUT_O, {H * Q * E, 0, E, 1}},
        {OUT_O, {0, Q * E, E, 1}},
        {OUT_O, {H * Q * E, Q * E, E, 0}},
        {OUT_O, {H * Q * E, Q * E, E - 1, 1}},  /* rows too close */
        {OUT_O, {H * Q * E, Q * E - 1, E, 1}},  /* heads */
        {OUT_O, {H * Q * E - 1, Q * E, E, 1}},  /* batches */
        {OUT_O, {-H * Q * E, Q * E, 1 - E, 1}}, /* rows too close, backwards */
        {OUT_O, {1, 1, 1, 1}},
        {OUT_O, {H * Q * E, E, H * E - 1, 1}}, /* [B, Q, H, E], too close */
        {OUT_LSE, {H * Q, Q, 0, 0}},
        {OUT_LSE, {H * Q, 0, 1, 0}},
        {OUT_LSE, {0, Q, 1, 0}},
        {OUT_LSE, {H * Q, Q - 1, 1, 0}},
        {OUT_LSE, {H * Q - 1, Q, 1, 0}},
        {OUT_LSE, {H * Q - 1, -Q, 1, 0}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        attree_desc desc = valid_desc();
        *strides_of(&desc, cases[i].t) = cases[i].strides;
        expect_bad_desc(p, &desc, ATTREE_ERROR_STRIDE, places[cases[i].t].name);
    }
}

static void test_strides_that_keep_outputs_apart(void **unused)
{
    (void)unused;
    const attree_strides good[] = {
        {H * Q * E, Q * E, E, 1}, {H * Q * E, E, H * E, 1}, {1, B, B * H, B * H * Q},  {-H * Q * E, Q * E, -E, 1},
        {1000, 100, 10, 1},       {1000, 100, 10, -2},      {TWO_TO(58), Q * E, E, 1},
    };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        attree_desc desc = valid_desc();
        desc.o = good[i];
        if (plan_status(&desc) != ATTREE_OK)
            fail_msg("strides %zu refused: %s", i, attree_last_error());
    }
}

/* A zero stride repeats an input along that dimension: the same as a copy that holds the repeats. */
static void test_zero_strides_of_inputs(void **state)
{
    problem *p = *state;
    for (tensor t = IN_Q; t <= IN_V; t++)
        for (int dimension = 0; dimension < 4; dimension++) {
            attree_desc desc = valid_desc();
            write_dense_strides(&desc);
            const attree_strides dense = *strides_of(&desc, t);
            attree_strides *const zeroed = strides_of(&desc, t);
            *stride_of(zeroed, dimension) = 0;

            float o[O_COUNT], copy[O_COUNT];
            assert_int_equal(attree_attention(&desc, &p->args), ATTREE_OK);
            memcpy(o, p->args.o, sizeof o);
            const float *const from = p->memory + places[t].at;
            for (int64_t i = 0; i < (int64_t)places[t].count; i++) {
                const int64_t b = i / dense.batch, h = i % dense.batch / dense.head, j = i % dense.head / dense.token;
                copy[i] =
                    from[b * zeroed->batch + h * zeroed->head + j * zeroed->token + i % dense.token * zeroed->width];
            }
            attree_args args = p->args;
            point(&args, t, copy);
            *zeroed = dense;
            assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
            assert_memory_equal(o, args.o, sizeof o);
            reset(p);
        }
}

/* Strides along dimensions of size 1 mean nothing. */
static const int64_t meaningless[] = {0, -7, 12345, INT64_MAX, INT64_MIN};

static void test_any_stride_along_size_1(void **state)
{
    problem *p = *state;
    for (int dimension = 0; dimension < 4; dimension++)
        for (size_t i = 0; i < COUNT_OF(meaningless); i++) {
            attree_desc desc = valid_desc();
            if (dimension == 0)
                desc.batch = 1;
            else if (dimension == 1)
                desc.q_heads = desc.kv_heads = 1;
            else if (dimension == 2)
                desc.q_len = desc.kv_len = 1;
            else
                desc.qk_width = desc.v_width = 1;
            float o[O_COUNT], lse[LSE_COUNT];
            assert_int_equal(attree_attention(&desc, &p->args), ATTREE_OK);
            memcpy(o, p->args.o, sizeof o);
            memcpy(lse, p->args.lse, sizeof lse);

            write_dense_strides(&desc);
            for (tensor t = IN_Q; t < WORKSPACE; t++)
                *stride_of(strides_of(&desc, t), dimension) = meaningless[i];
            reset(p);
            assert_int_equal(attree_attention(&desc, &p->args), ATTREE_OK);
            assert_memory_equal(p->args.o, o, sizeof o);
            assert_memory_equal(p->args.lse, lse, sizeof lse);
            reset(p);
        }
}

static void test_any_strides_of_one_element(void **unused)
{
    (void)unused;
    attree_desc desc = shaped((const int64_t[7]){1, 1, 1, 1, 1, 1, 1});
    const float q = 2.0f, k = 3.0f, v = 5.0f;
    for (size_t i = 0; i < COUNT_OF(meaningless); i++) {
        const int64_t s = meaningless[i];
        float o = 0.0f, lse = 0.0f;
        const attree_args args = {.size = sizeof args, .q = &q, .k = &k, .v = &v, .o = &o, .lse = &lse};
        desc.q = desc.k = desc.v = desc.o = desc.lse = (attree_strides){s, s, s, s};
        assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
        assert_true(o == 5.0f && lse == 6.0f);
    }
}

/* ---- Zero sizes ---- */

/* Tensors without elements may be NULL, and outputs that have some are right. */
static void test_no_keys(void **unused)
{
    (void)unused;
    attree_desc desc = valid_desc();
    desc.kv_len = 0;
    float q[Q_COUNT] = {0}, o[O_COUNT], lse[LSE_COUNT];
    memset(o, 0xa5, sizeof o);
    memset(lse, 0xa5, sizeof lse);
    const attree_args args = {.size = sizeof args, .q = q, .o = o, .lse = lse};
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
    for (size_t i = 0; i < COUNT_OF(o); i++)
        assert_true(o[i] == 0.0f);
    for (size_t i = 0; i < COUNT_OF(lse); i++)
        assert_true(lse[i] == -INFINITY);

    desc.empty_rows = ATTREE_EMPTY_ERROR;
    forget_last_error();
    expect_error("attree_attention", attree_attention(&desc, &args), ATTREE_ERROR_EMPTY, "query 0");
    assert_true(last_error_names("head 0") && last_error_names("batch 0"));
}

/* Every score is 0: o is the average of the values, lse is log K. */
static void test_no_query_width(void **unused)
{
    (void)unused;
    attree_desc desc = valid_desc();
    desc.qk_width = 0;
    desc.kv_len = 4;
    float v[B * G * 4 * E], o[O_COUNT], lse[LSE_COUNT];
    for (size_t i = 0; i < COUNT_OF(v); i++)
        v[i] = (float)(i % 7) - 3.0f;
    const attree_args args = {.size = sizeof args, .v = v, .o = o, .lse = lse};
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
    for (size_t i = 0; i < COUNT_OF(o); i++) {
        const float *const first = v + i / (H * Q * E) * (G * 4 * E) + i / (Q * E) % H / (H / G) * (4 * E) + i % E;
        assert_true(o[i] == (first[0] + first[E] + first[2 * E] + first[3 * E]) / 4.0f);
    }
    for (size_t i = 0; i < COUNT_OF(lse); i++)
        assert_true(fabsf(lse[i] - logf(4.0f)) <= 2e-7f);
}

static void test_no_rows(void **unused)
{
    (void)unused;
    for (int which = 0; which < 3; which++) {
        attree_desc desc = valid_desc();
        desc.batch = which == 1 ? B : 0;
        desc.q_len = which == 0 ? Q : 0;
        float k[K_COUNT] = {0}, v[V_COUNT] = {0};
        attree_args args = {.size = sizeof args};
        if (which == 1) {
            args.k = k;
            args.v = v;
        }
        for (int32_t empty = ATTREE_EMPTY_ZERO; empty <= ATTREE_EMPTY_ERROR; empty++) {
            desc.empty_rows = empty;
            if (attree_attention(&desc, &args) != ATTREE_OK)
                fail_msg("refused: %s", attree_last_error());
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PROBLEM(test_products_that_overflow),
        cmocka_unit_test(test_sizes_near_overflow),
        cmocka_unit_test(test_workspace_beyond_32_bits),
        cmocka_unit_test(test_workspace_does_not_grow_with_keys),
        WITH_PROBLEM(test_strides_that_overflow),
        WITH_PROBLEM(test_strides_whose_sum_overflows),
        WITH_PROBLEM(test_strides_that_make_outputs_overlap),
        cmocka_unit_test(test_strides_that_keep_outputs_apart),
        WITH_PROBLEM(test_zero_strides_of_inputs),
        WITH_PROBLEM(test_any_stride_along_size_1),
        cmocka_unit_test(test_any_strides_of_one_element),
        cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_no_query_width),
        cmocka_unit_test(test_no_rows),
    };
    return cmocka_run_group_tests_name("arguments_sizes", tests, NULL, NULL);
}
