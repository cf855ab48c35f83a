/* Bad fields of descriptors and struct sizes, and what looks odd but is valid: fields whose flag is off. */
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

/* ---- Fields of the descriptor ---- */

typedef struct bad_field {
    const char *name;
    size_t offset, bytes;
    int64_t value;
    attree_status status;
} bad_field;

#define FIELD(field) #field, offsetof(attree_desc, field), sizeof((attree_desc *)NULL)->field

static const bad_field bad_fields[] = {
    {FIELD(size), 0, ATTREE_ERROR_SIZE},
    {FIELD(size), 1, ATTREE_ERROR_SIZE},
    {FIELD(size), offsetof(attree_desc, q) - 8, ATTREE_ERROR_SIZE},
    {FIELD(size), sizeof(attree_desc) - 4, ATTREE_ERROR_SIZE},
    {FIELD(size), sizeof(attree_desc) + 8, ATTREE_ERROR_SIZE}, /* a newer header */
    {FIELD(size), -1, ATTREE_ERROR_SIZE},
    {FIELD(batch), -1, ATTREE_ERROR_SHAPE},
    {FIELD(batch), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(batch), INT64_MAX, ATTREE_ERROR_OVERFLOW},
    {FIELD(q_heads), 0, ATTREE_ERROR_SHAPE},
    {FIELD(q_heads), -4, ATTREE_ERROR_SHAPE},
    {FIELD(q_heads), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(q_heads), INT64_MAX, ATTREE_ERROR_OVERFLOW},
    {FIELD(kv_heads), 0, ATTREE_ERROR_SHAPE},
    {FIELD(kv_heads), -1, ATTREE_ERROR_SHAPE}, /* divides q_heads */
    {FIELD(kv_heads), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(kv_heads), INT64_MAX, ATTREE_ERROR_OVERFLOW},
    {FIELD(q_len), -1, ATTREE_ERROR_SHAPE},
    {FIELD(q_len), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(q_len), INT64_MAX, ATTREE_ERROR_OVERFLOW},
    {FIELD(kv_len), -1, ATTREE_ERROR_SHAPE},
    {FIELD(kv_len), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(kv_len), INT64_MAX, ATTREE_ERROR_OVERFLOW},
    {FIELD(qk_width), -1, ATTREE_ERROR_SHAPE},
    {FIELD(qk_width), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(qk_width), INT64_MAX, ATTREE_ERROR_OVERFLOW},
    {FIELD(v_width), 0, ATTREE_ERROR_SHAPE},
    {FIELD(v_width), -1, ATTREE_ERROR_SHAPE},
    {FIELD(v_width), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(v_width), INT64_MAX, ATTREE_ERROR_OVERFLOW},
    {FIELD(q_type), -1, ATTREE_ERROR_TYPE},
    {FIELD(q_type), INT32_MAX, ATTREE_ERROR_TYPE},
    {FIELD(k_type), -1, ATTREE_ERROR_TYPE},
    {FIELD(k_type), INT32_MAX, ATTREE_ERROR_TYPE},
    {FIELD(v_type), -1, ATTREE_ERROR_TYPE},
    {FIELD(v_type), INT32_MAX, ATTREE_ERROR_TYPE},
    {FIELD(o_type), -1, ATTREE_ERROR_TYPE},
    {FIELD(o_type), INT32_MAX, ATTREE_ERROR_TYPE},
    {FIELD(flags), 1 << 30, ATTREE_ERROR_VALUE},
    {FIELD(flags), INT32_MIN, ATTREE_ERROR_VALUE}, /* bit 31 */
    {FIELD(flags), -1, ATTREE_ERROR_VALUE},
    {FIELD(empty_rows), -1, ATTREE_ERROR_VALUE},
    {FIELD(empty_rows), ATTREE_EMPTY_ERROR + 1, ATTREE_ERROR_VALUE},
    {FIELD(empty_rows), INT32_MIN, ATTREE_ERROR_VALUE},
    {FIELD(isa), -1, ATTREE_ERROR_VALUE},
    {FIELD(isa), 99, ATTREE_ERROR_VALUE},
    {FIELD(isa), INT32_MIN, ATTREE_ERROR_VALUE},
    {FIELD(threads), -1, ATTREE_ERROR_VALUE},
    {FIELD(threads), INT32_MIN, ATTREE_ERROR_VALUE},
    {FIELD(threads), INT32_MAX, ATTREE_ERROR_VALUE},
    {FIELD(threads), 65537, ATTREE_ERROR_VALUE},
    {FIELD(mask_kind), -1, ATTREE_ERROR_VALUE},
    {FIELD(mask_kind), ATTREE_MASK_BITS + 1, ATTREE_ERROR_VALUE},
    {FIELD(mask_kind), INT32_MIN, ATTREE_ERROR_VALUE},
    {FIELD(bias_type), -1, ATTREE_ERROR_TYPE},
    {FIELD(bias_type), ATTREE_BF16 + 1, ATTREE_ERROR_TYPE},
    {FIELD(bias_type), INT32_MAX, ATTREE_ERROR_TYPE},
    {FIELD(mask.batches), -1, ATTREE_ERROR_SHAPE},
    {FIELD(mask.batches), B + 1, ATTREE_ERROR_SHAPE},
    {FIELD(mask.heads), G, ATTREE_ERROR_SHAPE}, /* per head, not per group */
    {FIELD(mask.heads), INT64_MAX, ATTREE_ERROR_SHAPE},
    {FIELD(mask.queries), 2, ATTREE_ERROR_SHAPE},
    {FIELD(mask.queries), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(mask.keys), K - 1, ATTREE_ERROR_SHAPE},
    {FIELD(mask.keys), -K, ATTREE_ERROR_SHAPE},
    {FIELD(bias.batches), B + 1, ATTREE_ERROR_SHAPE},
    {FIELD(bias.batches), INT64_MIN, ATTREE_ERROR_SHAPE},
    {FIELD(bias.heads), G, ATTREE_ERROR_SHAPE},
    {FIELD(bias.heads), -1, ATTREE_ERROR_SHAPE},
    {FIELD(bias.queries), Q + 1, ATTREE_ERROR_SHAPE},
    {FIELD(bias.queries), INT64_MAX, ATTREE_ERROR_SHAPE},
    {FIELD(bias.keys), 2, ATTREE_ERROR_SHAPE},
    {FIELD(bias.keys), -1, ATTREE_ERROR_SHAPE},
};

static void set_field(attree_desc *desc, const bad_field *field)
{
    const int32_t narrow = (int32_t)field->value; /* value fits when the field has four bytes */
    assert_true(field->bytes == sizeof narrow || field->bytes == sizeof field->value);
    if (field->bytes == sizeof narrow)
        memcpy((char *)desc + field->offset, &narrow, sizeof narrow);
    else
        memcpy((char *)desc + field->offset, &field->value, sizeof field->value);
}

static void test_bad_fields(void **state)
{
    const problem *p = *state;
    for (size_t i = 0; i < COUNT_OF(bad_fields); i++) {
        attree_desc desc = valid_desc();
        set_field(&desc, &bad_fields[i]);
        expect_bad_desc(p, &desc, bad_fields[i].status, bad_fields[i].name);
    }
}

static void test_heads_that_do_not_divide(void **state)
{
    const problem *p = *state;
    const int64_t pairs[][2] = {{3, 2}, {33, 2}, {2, 3}, {7, 4}, {1, 2}};
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        attree_desc desc = valid_desc();
        desc.q_heads = pairs[i][0];
        desc.kv_heads = pairs[i][1];
        expect_bad_desc(p, &desc, ATTREE_ERROR_SHAPE, "q_heads");
        assert_true(last_error_names("kv_heads"));
    }
}

static void test_scale(void **state)
{
    problem *p = *state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        attree_desc desc = valid_desc();
        desc.scale = bad[i];
        expect_accepted(p, &desc); /* the flag is off */
        desc.flags = ATTREE_USE_SCALE;
        expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "scale");
    }
    const float good[] = {0.0f, -0.5f, 3e38f, 1e-45f};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        attree_desc desc = valid_desc();
        desc.scale = good[i];
        desc.flags = ATTREE_USE_SCALE;
        assert_int_equal(plan_status(&desc), ATTREE_OK);
    }
}

/* 2^62 is the limit of a position, so that a position plus an index fits. */
static void test_q_offset(void **state)
{
    problem *p = *state;
    const int64_t limit = (int64_t)1 << 62, bad[] = {limit + 1, -limit - 1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        attree_desc desc = valid_desc();
        desc.q_offset = bad[i];
        expect_accepted(p, &desc); /* the flag is off */
        desc.flags = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET;
        expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, "q_offset");
    }
    attree_desc desc = valid_desc();
    desc.flags = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET;
    desc.q_offset = limit - 1; /* after every key */
    expect_accepted(p, &desc);
    desc.q_offset = 1 - limit; /* before every key */
    assert_int_equal(attree_attention(&desc, &p->args), ATTREE_OK);
    for (size_t i = 0; i < COUNT_OF(p->o); i++)
        assert_true(((const float *)p->args.o)[i] == 0.0f);
    for (size_t i = 0; i < COUNT_OF(p->lse); i++)
        assert_true(p->args.lse[i] == -INFINITY);
}

static void test_softcap(void **state)
{
    problem *p = *state;
    const float bad[] = {-1.0f, -1e-45f, NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        attree_desc desc = valid_desc();
        desc.softcap = bad[i];
        expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "softcap");
    }
    const float good[] = {-0.0f, 1e-45f, 3e38f};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        attree_desc desc = valid_desc();
        desc.softcap = good[i];
        assert_int_equal(plan_status(&desc), ATTREE_OK);
    }
}

static void test_window(void **state)
{
    problem *p = *state;
    const int64_t bad[] = {-2, INT32_MIN, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        for (int side = 0; side < 2; side++) {
            attree_desc desc = valid_desc();
            *(side ? &desc.window_right : &desc.window_left) = bad[i];
            expect_accepted(p, &desc); /* the flag is off */
            desc.flags = ATTREE_USE_WINDOW;
            expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, side ? "window_right" : "window_left");
        }
    const int64_t wider[] = {-1, K, MOST, INT64_MAX};
    for (size_t i = 0; i < COUNT_OF(wider); i++)
        for (int64_t offset = -1; offset <= 1; offset++) {
            attree_desc desc = valid_desc();
            desc.flags = ATTREE_USE_WINDOW | (offset ? ATTREE_USE_Q_OFFSET : 0);
            desc.window_left = desc.window_right = wider[i];
            expect_accepted(p, &desc);
            desc.q_offset = offset * MOST; /* no sum overflows */
            assert_int_equal(attree_attention(&desc, &p->args), ATTREE_OK);
            reset(p);
        }
}

/* ---- Sequences ---- */

typedef struct bad_sequences {
    const char *name;
    attree_status status;
    int64_t numbers[B + 1];
} bad_sequences;

static void set_sequences(attree_desc *desc, const char *name, const int64_t *numbers)
{
    const struct {
        const char *name;
        const int64_t **field;
    } fields[] = {{"kv_lens", &desc->kv_lens},
                  {"q_offsets", &desc->q_offsets},
                  {"q_starts", &desc->q_starts},
                  {"kv_starts", &desc->kv_starts}};
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (strcmp(name, fields[i].name) == 0)
            *fields[i].field = numbers;
}

static void test_bad_sequences(void **state)
{
    const problem *p = *state;
    const bad_sequences cases[] = {
        {"kv_lens", ATTREE_ERROR_SHAPE, {-1, K}},
        {"kv_lens", ATTREE_ERROR_SHAPE, {K, K + 1}},
        {"kv_lens", ATTREE_ERROR_SHAPE, {0, INT64_MAX}},
        {"kv_lens", ATTREE_ERROR_SHAPE, {INT64_MIN, 0}},
        {"q_offsets", ATTREE_ERROR_OVERFLOW, {0, INT64_MAX}},
        {"q_offsets", ATTREE_ERROR_OVERFLOW, {INT64_MIN, 0}},
        {"q_offsets", ATTREE_ERROR_OVERFLOW, {MOST + 1, 0}},
        {"q_starts", ATTREE_ERROR_SHAPE, {1, 2, Q}},
        {"q_starts", ATTREE_ERROR_SHAPE, {-1, 2, Q}},
        {"q_starts", ATTREE_ERROR_SHAPE, {0, 2, Q - 1}}, /* not all tokens */
        {"q_starts", ATTREE_ERROR_SHAPE, {0, 2, Q + 1}},
        {"q_starts", ATTREE_ERROR_SHAPE, {0, Q + 1, Q}}, /* decreasing */
        {"q_starts", ATTREE_ERROR_SHAPE, {0, -1, Q}},
        {"q_starts", ATTREE_ERROR_SHAPE, {0, INT64_MIN, Q}},
        {"q_starts", ATTREE_ERROR_SHAPE, {INT64_MAX, INT64_MAX, INT64_MAX}},
        {"kv_starts", ATTREE_ERROR_SHAPE, {2, 2, K}},
        {"kv_starts", ATTREE_ERROR_SHAPE, {0, 0, 0}},
        {"kv_starts", ATTREE_ERROR_SHAPE, {0, 2, INT64_MAX}},
        {"kv_starts", ATTREE_ERROR_SHAPE, {0, INT64_MAX, K}},
        {"kv_starts", ATTREE_ERROR_SHAPE, {0, 4, 3}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        attree_desc desc = valid_desc();
        set_sequences(&desc, cases[i].name, cases[i].numbers);
        expect_bad_desc(p, &desc, cases[i].status, cases[i].name);
    }
}

/* With kv_starts the room of an entry is what its starts leave. */
static void test_lengths_beyond_their_room(void **state)
{
    const problem *p = *state;
    const int64_t starts[B + 1] = {0, 2, K}, good[B] = {2, K - 2}, bad[B] = {3, 0};
    attree_desc desc = valid_desc();
    desc.kv_starts = starts;
    desc.kv_lens = good;
    assert_int_equal(plan_status(&desc), ATTREE_OK);
    desc.kv_lens = bad;
    expect_bad_desc(p, &desc, ATTREE_ERROR_SHAPE, "kv_lens");
    desc = valid_desc();
    desc.batch = 0; /* starts then hold one number */
    desc.q_starts = starts;
    expect_bad_desc(p, &desc, ATTREE_ERROR_SHAPE, "q_starts");
    desc.q_len = 0;
    assert_int_equal(plan_status(&desc), ATTREE_OK);
}

/* What says nothing new changes nothing. */
static void test_trivial_sequences(void **state)
{
    problem *p = *state;
    const int64_t lens[B] = {K, K}, offsets[B] = {K - Q, K - Q};
    attree_desc desc = valid_desc();
    desc.kv_lens = lens;
    expect_accepted(p, &desc);
    desc.q_offsets = offsets;
    expect_accepted(p, &desc);
}

static void test_good_threads(void **state)
{
    problem *p = *state;
    const int32_t threads[] = {0, 1, 2, 300, 65536};
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        attree_desc desc = valid_desc();
        desc.threads = threads[i];
        expect_accepted(p, &desc);
    }
}

/* ---- Sizes of structs ---- */

static void test_args_size(void **state)
{
    const problem *p = *state;
    const size_t sizes[] = {
        0, 1, offsetof(attree_args, mask) - 8, sizeof(attree_args) - 4, sizeof(attree_args) + 8, SIZE_MAX};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        attree_args args = p->args;
        args.size = sizes[i];
        expect_bad_args(p, &args, ATTREE_ERROR_SIZE, "size");
    }
}

/* A struct that says it is short may really be: nothing after its size may be read. Shows under AddressSanitizer. */
static void test_short_structs_are_not_read(void **state)
{
    const problem *p = *state;
    size_t *const size = malloc(sizeof *size);
    assert_non_null(size);
    *size = sizeof *size;
    expect_bad_desc(p, (const attree_desc *)(const void *)size, ATTREE_ERROR_SIZE, "size");
    expect_bad_args(p, (const attree_args *)(const void *)size, ATTREE_ERROR_SIZE, "size");
    free(size);
}

/* ---- Instruction sets ---- */

/* Sets ATTREE_ISA for one test; restore_isa puts back what the test run itself was given. */
static char *saved_isa;

static int save_isa(void **state)
{
    const char *const isa = getenv("ATTREE_ISA");
    saved_isa = isa ? strdup(isa) : NULL;
    unsetenv("ATTREE_ISA");
    return make_problem(state);
}

static int restore_isa(void **state)
{
    if (saved_isa)
        setenv("ATTREE_ISA", saved_isa, 1);
    else
        unsetenv("ATTREE_ISA");
    free(saved_isa);
    saved_isa = NULL;
    return free_problem(state);
}

typedef struct isa_name {
    attree_isa isa;
    const char *name;
} isa_name;

static const isa_name isas[] = {
    {ATTREE_ISA_SCALAR, "scalar"}, {ATTREE_ISA_AVX2, "avx2"}, {ATTREE_ISA_AVX512, "avx512"}, {ATTREE_ISA_NEON, "neon"}};

#if defined(__aarch64__)
static bool machine_has(attree_isa isa) { return isa == ATTREE_ISA_SCALAR || isa == ATTREE_ISA_NEON; }
#else
static bool machine_has(attree_isa isa)
{
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == ATTREE_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return isa == ATTREE_ISA_SCALAR || (isa == ATTREE_ISA_AVX2 && avx2);
}
#endif

/* desc is accepted, and the plan says that it uses the kernel called name. */
static void expect_kernel(const attree_desc *desc, const char *name)
{
    attree_plan *plan;
    char text[256];
    assert_int_equal(attree_plan_create(&plan, desc), ATTREE_OK);
    assert_int_equal(attree_plan_describe(plan, text, sizeof text), ATTREE_OK);
    if (!strstr(text, name))
        fail_msg("\"%s\" does not name the kernel %s", text, name);
    attree_plan_destroy(plan);
}

static void test_isa_field(void **state)
{
    problem *p = *state;
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        attree_desc desc = valid_desc();
        desc.isa = (int32_t)isas[i].isa;
        if (machine_has(isas[i].isa)) {
            expect_kernel(&desc, isas[i].name);
            expect_accepted(p, &desc);
        } else {
            expect_bad_desc(p, &desc, ATTREE_ERROR_ISA, "isa");
            assert_true(last_error_names(isas[i].name));
        }
    }
}

static void test_isa_variable(void **state)
{
    problem *p = *state;
    attree_desc scalar = valid_desc();
    scalar.isa = ATTREE_ISA_SCALAR;
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        setenv("ATTREE_ISA", isas[i].name, 1);
        if (machine_has(isas[i].isa)) {
            expect_kernel(&p->desc, isas[i].name);
            expect_accepted(p, &p->desc);
        } else {
            expect_bad_desc(p, &p->desc, ATTREE_ERROR_ISA, "ATTREE_ISA");
            assert_true(last_error_names(isas[i].name));
        }
        expect_kernel(&scalar, "scalar"); /* the field goes before the variable */
    }
}

static void test_isa_variable_with_garbage(void **state)
{
    problem *p = *state;
    attree_desc scalar = valid_desc();
    scalar.isa = ATTREE_ISA_SCALAR;
    char long_name[1000];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    const char *const garbage[] = {"garbage", "AVX2", "avx", "avx2 ", " scalar", "0", "1", "-1", "%s%n", long_name};
    for (size_t i = 0; i < COUNT_OF(garbage); i++) {
        setenv("ATTREE_ISA", garbage[i], 1);
        expect_bad_desc(p, &p->desc, ATTREE_ERROR_ISA, "ATTREE_ISA");
        expect_kernel(&scalar, "scalar");
    }
    setenv("ATTREE_ISA", "", 1); /* as if it were not set */
    expect_accepted(p, &p->desc);
}

#define WITH_ISA(test) cmocka_unit_test_setup_teardown(test, save_isa, restore_isa)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PROBLEM(test_bad_fields),
        WITH_PROBLEM(test_heads_that_do_not_divide),
        WITH_PROBLEM(test_scale),
        WITH_PROBLEM(test_q_offset),
        WITH_PROBLEM(test_softcap),
        WITH_PROBLEM(test_window),
        WITH_PROBLEM(test_bad_sequences),
        WITH_PROBLEM(test_lengths_beyond_their_room),
        WITH_PROBLEM(test_trivial_sequences),
        WITH_PROBLEM(test_good_threads),
        WITH_PROBLEM(test_args_size),
        WITH_PROBLEM(test_short_structs_are_not_read),
        WITH_ISA(test_isa_field),
        WITH_ISA(test_isa_variable),
        WITH_ISA(test_isa_variable_with_garbage),
    };
    return cmocka_run_group_tests_name("arguments_desc", tests, NULL, NULL);
}
