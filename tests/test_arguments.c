/* Bad input to plans and runs: each fault gives its status and a sentence that names the argument, and nothing is
 * written. Also what looks odd but is valid: NULL for tensors without elements, any stride along a dimension of size 1,
 * zero sizes, fields whose flag is off.
 *
 * Everything a run may touch lies in one block of memory, so "nothing is written" is one comparison. */
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

#include "attree/attree.h"

#define TWO_TO(n) ((int64_t)1 << (n))
#define MOST (INT64_MAX / 2)
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- A valid problem ---- */

/* No dimension is 0 or 1, so that every stride counts. */
enum { B = 2, H = 4, G = 2, Q = 3, K = 5, D = 2, E = 3 };
enum { Q_COUNT = B * H * Q * D, K_COUNT = B * G * K * D, V_COUNT = B * G * K * E };
enum { O_COUNT = B * H * Q * E, LSE_COUNT = B * H * Q };

typedef enum tensor { IN_Q, IN_K, IN_V, OUT_O, OUT_LSE, WORKSPACE, MEMORIES } tensor;

static const struct {
    const char *name;
    size_t at, count; /* floats from the start of memory; the workspace's size is the plan's */
} places[MEMORIES] = {
    [IN_Q] = {"q", 256, Q_COUNT},   [IN_K] = {"k", 512, K_COUNT},         [IN_V] = {"v", 768, V_COUNT},
    [OUT_O] = {"o", 1024, O_COUNT}, [OUT_LSE] = {"lse", 1280, LSE_COUNT}, [WORKSPACE] = {"workspace", 1536, 0},
};
enum { MARGIN = 256 }; /* floats after the workspace */

typedef struct problem {
    attree_desc desc;
    attree_args args;
    attree_plan *plan;
    float *memory, *before;           /* before: a copy, to compare with */
    size_t floats, workspace_floats;  /* of memory; of the workspace, rounded up */
    float o[O_COUNT], lse[LSE_COUNT]; /* the right results, dense */
} problem;

static attree_desc valid_desc(void)
{
    return (attree_desc){.size = sizeof(attree_desc),
                         .batch = B,
                         .q_heads = H,
                         .kv_heads = G,
                         .q_len = Q,
                         .kv_len = K,
                         .qk_width = D,
                         .v_width = E,
                         .threads = 1};
}

static void point(attree_args *args, tensor which, void *to)
{
    switch (which) {
    case IN_Q: args->q = to; break;
    case IN_K: args->k = to; break;
    case IN_V: args->v = to; break;
    case OUT_O: args->o = to; break;
    case OUT_LSE: args->lse = to; break;
    default: args->workspace = to; break;
    }
}

/* Everything holds 0xa5 bytes but the inputs. */
static void reset(problem *p)
{
    memset(p->memory, 0xa5, p->floats * sizeof(float));
    for (tensor t = IN_Q; t <= IN_V; t++)
        for (size_t i = 0; i < places[t].count; i++)
            p->memory[places[t].at + i] = (float)((i * 37 + (size_t)t * 11) % 64) / 16.0f - 2.0f;
    memcpy(p->before, p->memory, p->floats * sizeof(float));
    p->args = (attree_args){.size = sizeof(attree_args), .workspace_bytes = attree_plan_workspace(p->plan)};
    for (tensor t = IN_Q; t < MEMORIES; t++)
        point(&p->args, t, p->memory + places[t].at);
}

static void expect_untouched(const problem *p) { assert_memory_equal(p->memory, p->before, p->floats * sizeof(float)); }

static int make_problem(void **state)
{
    problem *const p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->desc = valid_desc();
    assert_int_equal(attree_plan_create(&p->plan, &p->desc), ATTREE_OK);
    p->workspace_floats = (attree_plan_workspace(p->plan) + sizeof(float) - 1) / sizeof(float);
    p->floats = (places[WORKSPACE].at + p->workspace_floats + MARGIN + 15) / 16 * 16;
    p->memory = aligned_alloc(64, p->floats * sizeof(float));
    p->before = malloc(p->floats * sizeof(float));
    assert_true(p->memory && p->before);
    reset(p);
    assert_int_equal(attree_run(p->plan, &p->args), ATTREE_OK);
    memcpy(p->o, p->args.o, sizeof p->o);
    memcpy(p->lse, p->args.lse, sizeof p->lse);
    reset(p);
    *state = p;
    return 0;
}

static int free_problem(void **state)
{
    problem *const p = *state;
    attree_plan_destroy(p->plan);
    free(p->memory);
    free(p->before);
    free(p);
    return 0;
}

/* ---- Expectations ---- */

/* Overwrites the last error, so that a sentence left over from an earlier call cannot pass for a new one. */
static void forget_last_error(void) { assert_int_equal(attree_state_init_f32(NULL, 1), ATTREE_ERROR_NULL); }

/* Whether the last error holds `name`; a name of one letter must stand alone. */
static bool last_error_names(const char *name)
{
    const char *const sentence = attree_last_error();
    const size_t length = strlen(name);
    for (const char *hit = strstr(sentence, name); hit; hit = strstr(hit + 1, name)) {
        const char before = hit == sentence ? ' ' : hit[-1], after = hit[length];
        if (length > 1 || (before == ' ' && (after == ' ' || after == ';' || after == '\0')))
            return true;
    }
    return false;
}

static void expect_error(const char *what, attree_status got, attree_status want, const char *name)
{
    if (got != want)
        fail_msg("%s, %s: %s, expected %s", what, name, attree_status_name(got), attree_status_name(want));
    if (!last_error_names(name))
        fail_msg("%s: \"%s\" does not name %s", what, attree_last_error(), name);
}

/* desc may be shorter than it says, or NULL. */
static void expect_bad_desc(const problem *p, const attree_desc *desc, attree_status want, const char *name)
{
    attree_plan *plan = p->plan;
    forget_last_error();
    expect_error("attree_plan_create", attree_plan_create(&plan, desc), want, name);
    assert_null(plan);
    forget_last_error();
    expect_error("attree_attention", attree_attention(desc, &p->args), want, name);
    expect_untouched(p);
}

static void expect_bad_args_of_a_plan(const problem *p, const attree_args *args, attree_status want, const char *name)
{
    forget_last_error();
    expect_error("attree_run", attree_run(p->plan, args), want, name);
    forget_last_error();
    expect_error("attree_run_begin", attree_run_begin(p->plan, args), want, name);
    expect_untouched(p);
}

/* For faults outside the workspace, which attree_attention ignores. */
static void expect_bad_args(const problem *p, const attree_args *args, attree_status want, const char *name)
{
    expect_bad_args_of_a_plan(p, args, want, name);
    forget_last_error();
    expect_error("attree_attention", attree_attention(&p->desc, args), want, name);
    expect_untouched(p);
}

static void expect_right(const problem *p, const float *o, const float *lse)
{
    assert_memory_equal(o, p->o, sizeof p->o);
    assert_memory_equal(lse, p->lse, sizeof p->lse);
}

/* desc is accepted and the results are those of the valid problem. */
static void expect_accepted(problem *p, const attree_desc *desc)
{
    const attree_status status = attree_attention(desc, &p->args);
    if (status != ATTREE_OK)
        fail_msg("refused: %s", attree_last_error());
    expect_right(p, p->args.o, p->args.lse);
    reset(p);
}

static attree_status plan_status(const attree_desc *desc)
{
    attree_plan *plan;
    const attree_status status = attree_plan_create(&plan, desc);
    assert_true((status == ATTREE_OK) == (plan != NULL));
    attree_plan_destroy(plan);
    return status;
}

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
    const int64_t wide[] = {-1, K, MOST, INT64_MAX};
    for (size_t i = 0; i < COUNT_OF(wide); i++)
        for (int64_t offset = -1; offset <= 1; offset++) {
            attree_desc desc = valid_desc();
            desc.flags = ATTREE_USE_WINDOW | (offset ? ATTREE_USE_Q_OFFSET : 0);
            desc.window_left = desc.window_right = wide[i];
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

/* ---- Overflow ---- */

static attree_desc shaped(const int64_t shape[7])
{
    return (attree_desc){.size = sizeof(attree_desc),
                         .batch = shape[0],
                         .q_heads = shape[1],
                         .kv_heads = shape[2],
                         .q_len = shape[3],
                         .kv_len = shape[4],
                         .qk_width = shape[5],
                         .v_width = shape[6],
                         .threads = 256};
}

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

/* ---- Workers, describing ---- */

static void test_bad_phases(void **state)
{
    const problem *p = *state;
    const int32_t bad[] = {-1, INT32_MIN, attree_plan_phases(p->plan), INT32_MAX};
    assert_int_equal(attree_run_begin(p->plan, &p->args), ATTREE_OK);
    memcpy(p->before, p->memory, p->floats * sizeof(float));
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        forget_last_error();
        expect_error("attree_run_worker", attree_run_worker(p->plan, &p->args, bad[i]), ATTREE_ERROR_VALUE, "phase");
        expect_untouched(p);
    }
    for (int32_t phase = 0; phase < attree_plan_phases(p->plan); phase++) /* the run can still be done */
        assert_int_equal(attree_run_worker(p->plan, &p->args, phase), ATTREE_OK);
    assert_int_equal(attree_run_end(p->plan, &p->args), ATTREE_OK);
    expect_right(p, p->args.o, p->args.lse);
}

static void test_describe(void **state)
{
    const problem *p = *state;
    char whole[512], text[512];
    memset(text, '#', sizeof text);
    forget_last_error();
    expect_error("attree_plan_describe", attree_plan_describe(NULL, text, sizeof text), ATTREE_ERROR_NULL, "plan");
    expect_error("attree_plan_describe", attree_plan_describe(p->plan, NULL, 10), ATTREE_ERROR_NULL, "text");
    expect_error("attree_plan_describe", attree_plan_describe(p->plan, text, 0), ATTREE_ERROR_VALUE, "capacity");
    for (size_t i = 0; i < sizeof text; i++)
        assert_int_equal(text[i], '#');

    assert_int_equal(attree_plan_describe(p->plan, whole, sizeof whole), ATTREE_OK);
    assert_true(strlen(whole) > 0 && !strchr(whole, '\n'));
    for (size_t capacity = 1; capacity < strlen(whole) + 3; capacity++) {
        memset(text, '#', sizeof text);
        assert_int_equal(attree_plan_describe(p->plan, text, capacity), ATTREE_OK);
        const size_t length = capacity - 1 < strlen(whole) ? capacity - 1 : strlen(whole);
        assert_int_equal(strlen(text), length);
        assert_memory_equal(text, whole, length);
        assert_int_equal(text[capacity], '#');
    }
}

/* ---- Names, version, the last error ---- */

static void test_status_names(void **unused)
{
    (void)unused;
    enum { STATUSES = ATTREE_ERROR_NONFINITE + 1 };
    for (int i = 0; i < STATUSES; i++) {
        const char *const name = attree_status_name((attree_status)i);
        assert_non_null(name);
        assert_true(strncmp(name, i == 0 ? "ATTREE_OK" : "ATTREE_ERROR_", i == 0 ? 10 : 13) == 0);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(name, attree_status_name((attree_status)j));
    }
    const int unknown[] = {-1, INT_MIN, INT_MAX, 1000};
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        const char *const name = attree_status_name((attree_status)unknown[i]);
        assert_non_null(name);
        assert_true(strncmp(name, "ATTREE_", 7) != 0);
    }
    assert_string_equal(attree_status_name(ATTREE_ERROR_SHAPE), "ATTREE_ERROR_SHAPE");
}

static void test_version(void **unused)
{
    (void)unused;
    char version[64];
    snprintf(version, sizeof version, "%d.%d.%d", ATTREE_VERSION_MAJOR, ATTREE_VERSION_MINOR, ATTREE_VERSION_PATCH);
    assert_string_equal(attree_version(), version);
}

/* A success leaves the sentence; the next failure replaces it. */
static void test_last_error_stays_until_the_next(void **state)
{
    const problem *p = *state;
    attree_desc desc = valid_desc();
    desc.threads = -1;
    expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "threads");
    assert_int_equal(attree_run(p->plan, &p->args), ATTREE_OK);
    assert_true(last_error_names("threads"));
    forget_last_error();
    assert_false(last_error_names("threads"));
}

typedef struct failing_thread {
    pthread_barrier_t *both_failed;
    size_t field; /* offset of an int32_t that it sets to -1 */
    bool empty_first;
    char sentence[256]; /* after both have failed */
} failing_thread;

static void *fail_in_a_thread(void *argument)
{
    failing_thread *const self = argument;
    self->empty_first = attree_last_error()[0] == '\0';
    attree_desc desc = valid_desc();
    const int32_t bad = -1;
    memcpy((char *)&desc + self->field, &bad, sizeof bad);
    attree_plan *plan;
    (void)attree_plan_create(&plan, &desc);
    pthread_barrier_wait(self->both_failed);
    snprintf(self->sentence, sizeof self->sentence, "%s", attree_last_error());
    return NULL;
}

static void test_last_error_is_per_thread(void **unused)
{
    (void)unused;
    pthread_barrier_t both_failed;
    pthread_t threads[2];
    failing_thread selves[2] = {{.both_failed = &both_failed, .field = offsetof(attree_desc, threads)},
                                {.both_failed = &both_failed, .field = offsetof(attree_desc, empty_rows)}};
    forget_last_error();
    assert_int_equal(pthread_barrier_init(&both_failed, NULL, 2), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fail_in_a_thread, &selves[i]), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&both_failed);
    assert_true(selves[0].empty_first && selves[1].empty_first);
    assert_non_null(strstr(selves[0].sentence, "threads"));
    assert_non_null(strstr(selves[1].sentence, "empty_rows"));
    assert_true(last_error_names("state")); /* this thread's own */
}

#define WITH_PROBLEM(test) cmocka_unit_test_setup_teardown(test, make_problem, free_problem)
#define WITH_ISA(test) cmocka_unit_test_setup_teardown(test, save_isa, restore_isa)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PROBLEM(test_null_structs),
        WITH_PROBLEM(test_null_tensors),
        WITH_PROBLEM(test_lse_is_optional),
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
        cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_no_query_width),
        cmocka_unit_test(test_no_rows),
        WITH_PROBLEM(test_bad_phases),
        WITH_PROBLEM(test_describe),
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_version),
        WITH_PROBLEM(test_last_error_stays_until_the_next),
        cmocka_unit_test(test_last_error_is_per_thread),
    };
    return cmocka_run_group_tests_name("arguments", tests, NULL, NULL);
}
