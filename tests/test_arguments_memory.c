/* Pointers that are NULL, misaligned or overlap, the workspace, and the tensors and functions of masks, biases and
 * sinks. */
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

/* ---- NULL ---- */

static void test_null_structs(void **state)
{
    const problem *p = *state;
    expect_bad_desc(p, NULL, ATTREE_ERROR_NULL, "desc");
    forget_last_error();
    expect_error("attree_plan_create", attree_plan_create(NULL, &p->desc), ATTREE_ERROR_NULL, "plan");
    expect_bad_args(p, NULL, ATTREE_ERROR_NULL, "args");
    forget_last_error();
    expect_error("attree_run", attree_run(NULL, &p->args), ATTREE_ERROR_NULL, "plan");
    forget_last_error();
    expect_error("attree_run_begin", attree_run_begin(NULL, &p->args), ATTREE_ERROR_NULL, "plan");
    forget_last_error();
    expect_error("attree_run_worker", attree_run_worker(NULL, &p->args, 0), ATTREE_ERROR_NULL, "plan");
    expect_error("attree_run_worker", attree_run_worker(p->plan, NULL, 0), ATTREE_ERROR_NULL, "args");
    expect_error("attree_run_end", attree_run_end(NULL, &p->args), ATTREE_ERROR_NULL, "plan");
    expect_error("attree_run_end", attree_run_end(p->plan, NULL), ATTREE_ERROR_NULL, "args");
    assert_int_equal(attree_plan_workspace(NULL), 0);
    assert_int_equal(attree_plan_phases(NULL), 0);
    attree_plan_destroy(NULL);
    expect_untouched(p);
}

static void test_null_tensors(void **state)
{
    const problem *p = *state;
    for (tensor t = IN_Q; t <= OUT_O; t++) {
        attree_args args = p->args;
        point(&args, t, NULL);
        expect_bad_args(p, &args, ATTREE_ERROR_NULL, places[t].name);
    }
    attree_args args = p->args;
    args.workspace = NULL;
    expect_bad_args_of_a_plan(p, &args, ATTREE_ERROR_NULL, "workspace");
    forget_last_error();
    expect_error("attree_run_worker", attree_run_worker(p->plan, &args, 0), ATTREE_ERROR_NULL, "workspace");
    forget_last_error();
    expect_error("attree_run_end", attree_run_end(p->plan, &args), ATTREE_ERROR_NULL, "workspace");
    expect_untouched(p);
}

static void test_lse_is_optional(void **state)
{
    const problem *p = *state;
    attree_args args = p->args;
    args.lse = NULL;
    assert_int_equal(attree_run(p->plan, &args), ATTREE_OK);
    assert_memory_equal(args.o, p->o, sizeof p->o);
    assert_memory_equal(p->memory + places[OUT_LSE].at, p->before + places[OUT_LSE].at, sizeof p->lse);
}

/* ---- Alignment, workspace ---- */

static void test_misaligned_tensors(void **state)
{
    const problem *p = *state;
    for (tensor t = IN_Q; t < WORKSPACE; t++)
        for (size_t bytes = 1; bytes < sizeof(float); bytes++) {
            attree_args args = p->args;
            point(&args, t, (char *)(p->memory + places[t].at) + bytes);
            expect_bad_args(p, &args, ATTREE_ERROR_ALIGN, places[t].name);
        }
}

/* Elements of two bytes need no more than that. */
static void test_alignment_of_narrow_types(void **state)
{
    problem *p = *state;
    const int32_t types[] = {ATTREE_F16, ATTREE_BF16};
    for (size_t i = 0; i < COUNT_OF(types); i++)
        for (tensor t = IN_Q; t <= OUT_O; t++) {
            attree_desc desc = valid_desc();
            desc.q_type = desc.k_type = desc.v_type = desc.o_type = types[i];
            attree_args args = p->args;
            point(&args, t, (char *)(p->memory + places[t].at) + 1);
            forget_last_error();
            expect_error("attree_attention", attree_attention(&desc, &args), ATTREE_ERROR_ALIGN, places[t].name);
            expect_untouched(p);
            point(&args, t, (char *)(p->memory + places[t].at) + 2);
            assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
            reset(p);
        }
}

static void test_bad_workspace(void **state)
{
    const problem *p = *state;
    const size_t shifts[] = {1, 4, 16, 32, 63};
    for (size_t i = 0; i < COUNT_OF(shifts); i++) {
        attree_args args = p->args;
        args.workspace = (char *)args.workspace + shifts[i];
        expect_bad_args_of_a_plan(p, &args, ATTREE_ERROR_ALIGN, "workspace");
    }
    const size_t needed = attree_plan_workspace(p->plan), sizes[] = {0, 1, needed / 2, needed - 1};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        attree_args args = p->args;
        args.workspace_bytes = sizes[i];
        expect_bad_args_of_a_plan(p, &args, ATTREE_ERROR_WORKSPACE, "workspace_bytes");
    }
    attree_args larger = p->args;
    larger.workspace_bytes += MARGIN * sizeof(float);
    assert_int_equal(attree_run(p->plan, &larger), ATTREE_OK);
    expect_right(p, larger.o, larger.lse);
}

/* A run keeps within workspace_bytes. */
static void test_nothing_after_the_workspace_is_written(void **state)
{
    const problem *p = *state;
    assert_int_equal(attree_run(p->plan, &p->args), ATTREE_OK);
    const size_t end = places[WORKSPACE].at * sizeof(float) + attree_plan_workspace(p->plan);
    const size_t all = p->floats * sizeof(float);
    assert_memory_equal((const char *)p->memory + end, (const char *)p->before + end, all - end);
}

/* ---- Overlap ---- */

static size_t count_of(const problem *p, tensor t) { return t == WORKSPACE ? p->workspace_floats : places[t].count; }

/* Moves a tensor, with its contents, to where it begins `at` floats into memory. */
static attree_args move(problem *p, tensor moved, size_t at)
{
    reset(p);
    memcpy(p->memory + at, p->before + places[moved].at, places[moved].count * sizeof(float));
    memcpy(p->before, p->memory, p->floats * sizeof(float));
    attree_args args = p->args;
    point(&args, moved, p->memory + at);
    return args;
}

static void check_overlaps(problem *p, tensor moved, tensor other)
{
    const size_t begin = places[other].at, end = begin + count_of(p, other), count = count_of(p, moved);
    const size_t overlapping[] = {begin - count + 1, begin, begin + 1, end - 1};
    for (size_t i = 0; i < COUNT_OF(overlapping); i++) {
        const attree_args args = move(p, moved, overlapping[i]);
        expect_bad_args_of_a_plan(p, &args, ATTREE_ERROR_ALIAS, places[moved].name);
        assert_true(last_error_names(places[other].name));
        if (other == WORKSPACE)
            continue;
        forget_last_error();
        expect_error("attree_attention", attree_attention(&p->desc, &args), ATTREE_ERROR_ALIAS, places[moved].name);
        expect_untouched(p);
    }
    const size_t touching[] = {begin - count, end};
    for (size_t i = 0; i < COUNT_OF(touching); i++) {
        const attree_args args = move(p, moved, touching[i]);
        if (attree_run(p->plan, &args) != ATTREE_OK)
            fail_msg("%s next to %s refused: %s", places[moved].name, places[other].name, attree_last_error());
        expect_right(p, args.o, args.lse);
    }
}

static void test_overlapping_outputs(void **state)
{
    problem *p = *state;
    for (tensor moved = IN_Q; moved < WORKSPACE; moved++)
        for (tensor other = IN_Q; other < MEMORIES; other++)
            if (moved != other && (moved >= OUT_O || other >= OUT_O))
                check_overlaps(p, moved, other);
}

/* With negative strides a tensor begins before its pointer. */
static void test_overlap_before_the_pointer(void **state)
{
    problem *p = *state;
    attree_desc desc = valid_desc();
    desc.o = (attree_strides){-H * Q * E, -Q * E, -E, -1};
    const size_t count = places[OUT_O].count, k_end = places[IN_K].at + places[IN_K].count;
    attree_args args = p->args;
    args.o = p->memory + k_end + count - 2; /* the first number of o would be the last of k */
    forget_last_error();
    expect_error("attree_attention", attree_attention(&desc, &args), ATTREE_ERROR_ALIAS, "o");
    assert_true(last_error_names("k"));
    expect_untouched(p);
    args.o = p->memory + k_end + count - 1;
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
    for (size_t i = 0; i < count; i++)
        assert_true(p->memory[k_end + count - 1 - i] == p->o[i]);
}

static void test_inputs_may_overlap(void **state)
{
    problem *p = *state;
    attree_desc desc = valid_desc();
    desc.kv_heads = H;
    desc.kv_len = Q;
    desc.v_width = D;
    attree_args args = p->args;
    args.k = args.v = args.q;
    float together[Q_COUNT], k[Q_COUNT], v[Q_COUNT];
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
    memcpy(together, args.o, sizeof together);
    memcpy(k, args.q, sizeof k);
    memcpy(v, args.q, sizeof v);
    args.k = k;
    args.v = v;
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
    assert_memory_equal(args.o, together, sizeof together);
}

/* ---- Masks, biases, slopes, sinks, functions ---- */

enum { PAIRS = B * H * Q * K };

/* Room for a mask and a bias of all pairs, of 0 and of bytes that show; slopes of 0, sinks of -inf. All of it leaves
 * the results as they are. */
typedef struct extras {
    uint8_t mask[PAIRS];
    float bias[PAIRS], slopes[H], sinks[H];
} extras;

static extras neutral_extras(void)
{
    extras e = {.sinks = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    memset(e.mask, 1, sizeof e.mask);
    return e;
}

static attree_args with_extras(const problem *p, const extras *e)
{
    attree_args args = p->args;
    args.mask = e->mask;
    args.bias = e->bias;
    args.alibi_slopes = e->slopes;
    args.sinks = e->sinks;
    args.alibi_heads = args.sink_heads = H;
    return args;
}

static void test_neutral_extras(void **state)
{
    const problem *p = *state;
    const extras e = neutral_extras();
    const attree_args args = with_extras(p, &e);
    assert_int_equal(attree_run(p->plan, &args), ATTREE_OK);
    expect_right(p, args.o, args.lse);
}

static void test_bad_slopes_and_sinks(void **state)
{
    const problem *p = *state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        for (int h = 0; h < H; h++) {
            extras e = neutral_extras();
            const attree_args args = with_extras(p, &e);
            e.slopes[h] = bad[i];
            expect_bad_args(p, &args, ATTREE_ERROR_NONFINITE, "alibi_slopes");
            e.slopes[h] = 0.0f;
            e.sinks[h] = bad[i];
            if (bad[i] != -INFINITY) /* which is none */
                expect_bad_args(p, &args, ATTREE_ERROR_NONFINITE, "sinks");
        }
}

static void test_wrong_numbers_of_heads(void **state)
{
    const problem *p = *state;
    const extras e = neutral_extras();
    const int64_t bad[] = {0, 1, G, H - 1, H + 1, -1, -H, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        attree_args args = with_extras(p, &e);
        args.alibi_heads = bad[i];
        expect_bad_args(p, &args, ATTREE_ERROR_SHAPE, "alibi_slopes");
        args.alibi_heads = H;
        args.sink_heads = bad[i];
        expect_bad_args(p, &args, ATTREE_ERROR_SHAPE, "sinks");
        args = p->args; /* ignored without the pointers */
        args.alibi_heads = args.sink_heads = bad[i];
        assert_int_equal(attree_run(p->plan, &args), ATTREE_OK);
        expect_right(p, args.o, args.lse);
        memcpy(p->memory, p->before, p->floats * sizeof(float));
    }
}

static void test_misaligned_extras(void **state)
{
    const problem *p = *state;
    extras e[2] = {neutral_extras(), neutral_extras()};
    for (size_t bytes = 1; bytes < sizeof(float); bytes++) {
        attree_args args = with_extras(p, &e[0]);
        args.bias = (const char *)args.bias + bytes;
        expect_bad_args(p, &args, ATTREE_ERROR_ALIGN, "bias");
        args = with_extras(p, &e[0]);
        args.alibi_slopes = (const float *)(const void *)((const char *)args.alibi_slopes + bytes);
        expect_bad_args(p, &args, ATTREE_ERROR_ALIGN, "alibi_slopes");
        args = with_extras(p, &e[0]);
        args.sinks = (const float *)(const void *)((const char *)args.sinks + bytes);
        expect_bad_args(p, &args, ATTREE_ERROR_ALIGN, "sinks");
    }
    attree_desc desc = valid_desc();
    desc.bias_type = ATTREE_F16;
    attree_args args = with_extras(p, &e[0]);
    args.bias = (const char *)args.bias + 1;
    forget_last_error();
    expect_error("attree_attention", attree_attention(&desc, &args), ATTREE_ERROR_ALIGN, "bias");
    expect_untouched(p);
    args.bias = (const char *)args.bias + 1;
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
}

static void test_block_without_score(void **state)
{
    const problem *p = *state;
    attree_args args = p->args;
    args.block = (attree_block_function)abort; /* never called */
    expect_bad_args(p, &args, ATTREE_ERROR_NULL, "score");
}

/* Each extra where its last byte, or its first, is in an output or in the workspace. */
static void check_extra_overlaps(const problem *p, tensor other)
{
    const char *const begin = (const char *)(p->memory + places[other].at);
    const char *const last = begin + 4 * (other == WORKSPACE ? p->workspace_floats : places[other].count) - 4;
    const struct {
        const char *name;
        size_t bytes;
    } kinds[] = {{"mask", PAIRS}, {"bias", 4 * PAIRS}, {"alibi_slopes", 4 * H}, {"sinks", 4 * H}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        for (int end = 0; end < 2; end++) {
            const void *const at = end ? last : begin + 4 - kinds[i].bytes;
            attree_args args = p->args;
            args.mask = i == 0 ? at : NULL;
            args.bias = i == 1 ? at : NULL;
            args.alibi_slopes = i == 2 ? at : NULL;
            args.sinks = i == 3 ? at : NULL;
            args.alibi_heads = args.sink_heads = H;
            expect_bad_args_of_a_plan(p, &args, ATTREE_ERROR_ALIAS, kinds[i].name);
            assert_true(last_error_names(places[other].name));
        }
}

static void test_outputs_that_overlap_extras(void **state)
{
    problem *p = *state;
    memset(p->memory, 0, p->floats * sizeof(float)); /* finite slopes and sinks, wherever they are */
    memset(p->before, 0, p->floats * sizeof(float));
    for (tensor other = OUT_O; other < MEMORIES; other++)
        check_extra_overlaps(p, other);
}

static attree_pairs *pairs_of(attree_desc *desc, int which) { return which ? &desc->bias : &desc->mask; }

/* A span in bytes: bits and bytes are measured as if they were numbers. */
static void test_pair_strides_that_overflow(void **state)
{
    const problem *p = *state;
    const int64_t bad[] = {INT64_MAX, INT64_MIN, INT64_MIN + 1, TWO_TO(62), -TWO_TO(62)};
    for (int which = 0; which < 2; which++)
        for (int dimension = 0; dimension < 4; dimension++)
            for (size_t i = 0; i < COUNT_OF(bad); i++) {
                attree_desc desc = valid_desc();
                attree_pairs *const pairs = pairs_of(&desc, which);
                *pairs =
                    (attree_pairs){.batch_stride = H * Q * K, .head_stride = Q * K, .query_stride = K, .key_stride = 1};
                int64_t *const strides[] = {&pairs->batch_stride, &pairs->head_stride, &pairs->query_stride,
                                            &pairs->key_stride};
                *strides[dimension] = bad[i];
                expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, which ? "bias" : "mask");
                int64_t *const sizes[] = {&pairs->batches, &pairs->heads, &pairs->queries, &pairs->keys};
                *sizes[dimension] = 1; /* the stride then means nothing */
                assert_int_equal(plan_status(&desc), ATTREE_OK);
            }
}

/* Nobody may have wanted one: only a run that gives it is refused. */
static void test_dense_pairs_that_overflow(void **unused)
{
    (void)unused;
    float number = 0.0f, o = 0.0f;
    for (int which = 0; which < 2; which++) {
        attree_desc desc = shaped((const int64_t[7]){1, 1, 1, TWO_TO(31), TWO_TO(31), 0, 1});
        desc.threads = 1;
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &desc), ATTREE_OK);
        attree_args args = {.size = sizeof args,
                            .v = &number,
                            .o = &o,
                            .mask = which ? NULL : &number,
                            .bias = which ? &number : NULL,
                            .workspace_bytes = attree_plan_workspace(plan)};
        args.workspace = aligned_alloc(64, args.workspace_bytes);
        assert_non_null(args.workspace);
        forget_last_error();
        expect_error("attree_run", attree_run(plan, &args), ATTREE_ERROR_OVERFLOW, which ? "bias" : "mask");
        free(args.workspace);
        attree_plan_destroy(plan);
        pairs_of(&desc, which)->queries = 1; /* one that fits */
        assert_int_equal(plan_status(&desc), ATTREE_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PROBLEM(test_null_structs),
        WITH_PROBLEM(test_null_tensors),
        WITH_PROBLEM(test_lse_is_optional),
        WITH_PROBLEM(test_misaligned_tensors),
        WITH_PROBLEM(test_alignment_of_narrow_types),
        WITH_PROBLEM(test_bad_workspace),
        WITH_PROBLEM(test_nothing_after_the_workspace_is_written),
        WITH_PROBLEM(test_overlapping_outputs),
        WITH_PROBLEM(test_overlap_before_the_pointer),
        WITH_PROBLEM(test_inputs_may_overlap),
        WITH_PROBLEM(test_neutral_extras),
        WITH_PROBLEM(test_bad_slopes_and_sinks),
        WITH_PROBLEM(test_wrong_numbers_of_heads),
        WITH_PROBLEM(test_misaligned_extras),
        WITH_PROBLEM(test_block_without_score),
        WITH_PROBLEM(test_outputs_that_overlap_extras),
        WITH_PROBLEM(test_pair_strides_that_overflow),
        cmocka_unit_test(test_dense_pairs_that_overflow),
    };
    return cmocka_run_group_tests_name("arguments_memory", tests, NULL, NULL);
}
