/* Bad input to paged caches, panels, quantised types, shards, states: each fault gives its status and a sentence that
 * names the field, and nothing is written. Also what looks odd but is valid. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "caches.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- A valid problem: a paged cache of int8 keys and q8_0 values, with a window ---- */

enum { B = 2, H = 4, G = 2, Q = 2, K = 100, WINDOW = 20, D = 32, E = 64, PAGE = 16, PAGES = 20, TABLE = 8 };
enum { O_COUNT = B * H * Q * E, LSE_COUNT = B * H * Q, STATE_COUNT = B * H * Q * (E + 2) };

typedef struct problem {
    attree_desc desc;
    attree_args args;
    cache k, v;
    float q[B * H * Q * D];
    float o[O_COUNT], lse[LSE_COUNT], states[STATE_COUNT]; /* outputs */
    float right_o[O_COUNT], right_lse[LSE_COUNT];          /* of the valid problem */
    int32_t table[B * TABLE];
} problem;

static void reset_outputs(problem *p)
{
    memset(p->o, 0xa5, sizeof p->o);
    memset(p->lse, 0xa5, sizeof p->lse);
    memset(p->states, 0xa5, sizeof p->states);
}

static void expect_untouched(const problem *p)
{
    uint8_t bytes[sizeof p->states];
    memset(bytes, 0xa5, sizeof bytes);
    assert_memory_equal(p->o, bytes, sizeof p->o);
    assert_memory_equal(p->lse, bytes, sizeof p->lse);
    assert_memory_equal(p->states, bytes, sizeof p->states);
}

/* The entries that a query's window reaches: of keys 100 - 2 - 20 = 78 to 99. */
enum { FIRST_ACTIVE = 78 / PAGE, LAST_ACTIVE = (K - 1) / PAGE };

static int make_problem(void **state)
{
    problem *const p = calloc(1, sizeof *p);
    assert_non_null(p);
    random_source random = {3};
    p->k = make_cache(&(cache_layout){PAGES, G, PAGE, D, ATTREE_I8, false, false, false, false, false});
    p->v = make_cache(&(cache_layout){PAGES, G, PAGE, E, ATTREE_Q8_0, false, false, false, false, false});
    for (int64_t n = 0; n < PAGES * G * PAGE; n++) {
        float numbers[E];
        fill_random(numbers, E, &random, -1.0f, 1.0f);
        cache_write(&p->k, (cache_at){n / PAGE / G, n / PAGE % G, n % PAGE}, numbers);
        cache_write(&p->v, (cache_at){n / PAGE / G, n / PAGE % G, n % PAGE}, numbers);
    }
    fill_random(p->q, B * H * Q * D, &random, -1.0f, 1.0f);
    p->desc = make_desc(B, H, G, Q, K, D, E);
    p->desc.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
    p->desc.window_left = WINDOW;
    p->desc.window_right = -1;
    p->desc.page_size = PAGE;
    p->desc.page_count = PAGES;
    p->desc.table_width = TABLE;
    describe_keys(&p->desc, &p->k);
    describe_values(&p->desc, &p->v);
    for (int32_t n = 0; n < B * TABLE; n++)
        p->table[n] = (n * 3 + 1) % PAGES;
    p->args = (attree_args){
        .size = sizeof(attree_args), .q = p->q, .o = p->o, .lse = p->lse, .states = p->states, .page_table = p->table};
    point_to_caches(&p->args, &p->k, &p->v);
    run_expecting(ATTREE_OK, &p->desc, &p->args);
    memcpy(p->right_o, p->o, sizeof p->o);
    memcpy(p->right_lse, p->lse, sizeof p->lse);
    reset_outputs(p);
    *state = p;
    return 0;
}

static int free_problem(void **state)
{
    problem *const p = *state;
    free_cache(&p->k);
    free_cache(&p->v);
    free(p);
    return 0;
}

/* ---- Expectations ---- */

static void expect_bad_desc(const problem *p, const attree_desc *desc, attree_status want, const char *name)
{
    attree_plan *plan = (attree_plan *)(void *)&plan; /* becomes NULL */
    forget_last_error();
    expect_error("attree_plan_create", attree_plan_create(&plan, desc), want, name);
    assert_null(plan);
    forget_last_error();
    expect_error("attree_attention", attree_attention(desc, &p->args), want, name);
    expect_untouched(p);
}

static void expect_bad_args(const problem *p, const attree_desc *desc, const attree_args *args, attree_status want,
                            const char *name)
{
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, desc), ATTREE_OK);
    attree_args run = *args;
    run.workspace_bytes = attree_plan_workspace(plan);
    run.workspace = aligned_alloc(64, run.workspace_bytes);
    assert_non_null(run.workspace);
    forget_last_error();
    expect_error("attree_run", attree_run(plan, &run), want, name);
    forget_last_error();
    expect_error("attree_run_begin", attree_run_begin(plan, &run), want, name);
    free(run.workspace);
    attree_plan_destroy(plan);
    forget_last_error();
    expect_error("attree_attention", attree_attention(desc, args), want, name);
    expect_untouched(p);
}

/* Accepted, with the results of the valid problem. */
static void expect_right(problem *p, const attree_desc *desc, const attree_args *args)
{
    run_expecting(ATTREE_OK, desc, args);
    assert_same_bits(p->right_o, p->o, O_COUNT);
    assert_same_bits(p->right_lse, p->lse, LSE_COUNT);
    reset_outputs(p);
}

/* ---- Numbers of a paged cache ---- */

static void numbers_of_pages_are_checked(void **state)
{
    const problem *p = *state;
    static const struct {
        size_t field;
        int64_t value;
        attree_status status;
        const char *name;
    } cases[] = {
        {offsetof(attree_desc, page_size), 0, ATTREE_ERROR_VALUE, "page_size"},
        {offsetof(attree_desc, page_size), -1, ATTREE_ERROR_SHAPE, "page_size"},
        {offsetof(attree_desc, page_size), INT64_MIN, ATTREE_ERROR_SHAPE, "page_size"},
        {offsetof(attree_desc, page_size), INT64_MAX, ATTREE_ERROR_OVERFLOW, "page_size"},
        {offsetof(attree_desc, page_count), -1, ATTREE_ERROR_SHAPE, "page_count"},
        {offsetof(attree_desc, page_count), INT64_MIN, ATTREE_ERROR_SHAPE, "page_count"},
        {offsetof(attree_desc, page_count), INT64_MAX, ATTREE_ERROR_OVERFLOW, "page_count"},
        {offsetof(attree_desc, page_count), INT64_MAX / 2, ATTREE_ERROR_OVERFLOW, " k"},
        {offsetof(attree_desc, table_width), -1, ATTREE_ERROR_SHAPE, "table_width"},
        {offsetof(attree_desc, table_width), INT64_MAX, ATTREE_ERROR_OVERFLOW, "table_width"},
        {offsetof(attree_desc, table_width), INT64_MAX / 4, ATTREE_ERROR_OVERFLOW, "table_width"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        attree_desc desc = p->desc;
        memcpy((char *)&desc + cases[i].field, &cases[i].value, sizeof cases[i].value);
        expect_bad_desc(p, &desc, cases[i].status, cases[i].name);
    }
    attree_desc desc = p->desc; /* page_size 0 with only one of the two */
    desc.page_size = desc.page_count = 0;
    expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "page_size");
    desc = p->desc;
    desc.page_size = desc.table_width = 0;
    expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "page_size");
}

static void page_numbers_of_seen_keys_are_checked(void **state)
{
    problem *p = *state;
    const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, PAGES};
    for (int32_t b = 0; b < B; b++)
        for (int32_t n = 0; n < TABLE; n++)
            for (size_t i = 0; i < COUNT_OF(bad); i++) {
                int32_t *const entry = &p->table[b * TABLE + n], valid = *entry;
                char name[64];
                (void)snprintf(name, sizeof name, "page_table[%d][%d]", b, n);
                *entry = bad[i];
                if (n >= FIRST_ACTIVE && n <= LAST_ACTIVE)
                    expect_bad_args(p, &p->desc, &p->args, ATTREE_ERROR_VALUE, name);
                else
                    expect_right(p, &p->desc, &p->args);
                *entry = valid;
            }
    attree_desc none = p->desc; /* no page at all */
    none.page_count = 0;
    expect_bad_args(p, &none, &p->args, ATTREE_ERROR_VALUE, "page_table[0][4]");
}

static void the_table_is_checked(void **state)
{
    problem *p = *state;
    attree_args args = p->args;
    args.page_table = NULL;
    expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_NULL, "page_table");
    for (int offset = 1; offset < 4; offset++) {
        args.page_table = (const int32_t *)(const void *)((const char *)p->table + offset);
        expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_ALIGN, "page_table");
    }
    for (int64_t width = 0; width <= LAST_ACTIVE; width++) {
        attree_desc narrow = p->desc;
        narrow.table_width = width;
        expect_bad_args(p, &narrow, &p->args, ATTREE_ERROR_SHAPE, "table_width");
    }
    /* an output over the table */
    args = p->args;
    args.page_table = (const int32_t *)(const void *)p->lse;
    expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_ALIAS, "page_table");
}

/* What follows the last entry for kv_len keys is not the table's. */
static void the_last_row_may_end_early(void **state)
{
    problem *p = *state;
    enum { ENTRIES = (B - 1) * TABLE + LAST_ACTIVE + 1 };
    union {
        int32_t table[ENTRIES + B * H * Q];
        float lse[ENTRIES + B * H * Q];
    } memory;
    memcpy(memory.table, p->table, ENTRIES * sizeof *p->table);
    attree_args args = p->args;
    args.page_table = memory.table;
    args.lse = memory.lse + ENTRIES - 1;
    expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_ALIAS, "page_table");
    args.lse = memory.lse + ENTRIES;
    run_expecting(ATTREE_OK, &p->desc, &args);
    assert_memory_equal(p->o, p->right_o, sizeof p->o);
    assert_memory_equal(args.lse, p->right_lse, sizeof p->right_lse);
}

/* Nothing is seen: the table may be anything, with no entries. */
static void a_table_of_which_nothing_is_used_may_be_null(void **state)
{
    const problem *p = *state;
    attree_args args = p->args;
    args.page_table = NULL;
    for (int which = 0; which < 4; which++) {
        attree_desc desc = p->desc;
        const int64_t none[B] = {0, 0};
        desc.table_width = which % 2 ? TABLE : 0;
        desc.kv_lens = which == 0 ? none : NULL;
        desc.kv_len = which == 1 ? 0 : K;
        desc.q_len = which == 2 ? 0 : Q;
        desc.batch = which == 3 ? 0 : B;
        run_expecting(ATTREE_OK, &desc, &args);
    }
}

static void a_table_is_for_paged_plans(void **state)
{
    const problem *p = *state;
    attree_desc desc = p->desc;
    desc.page_size = desc.page_count = desc.table_width = 0;
    expect_bad_args(p, &desc, &p->args, ATTREE_ERROR_VALUE, "page_table");
}

static void ragged_keys_are_not_for_pages_panels_or_shards(void **state)
{
    const problem *p = *state;
    const int64_t starts[B + 1] = {0, 30, K};
    attree_desc desc = p->desc;
    desc.kv_starts = starts;
    expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "kv_starts");
    desc.page_size = desc.page_count = desc.table_width = 0;
    desc.flags |= ATTREE_K_PANELS;
    expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "kv_starts");
    desc.flags = 0;
    desc.shard_end = K;
    expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "kv_starts");
}

/* ---- Panels and types ---- */

static void panels_need_whole_pages_of_16(void **state)
{
    const problem *p = *state;
    const int64_t bad[] = {1, 8, 15, 17, 24, 100};
    attree_desc desc = p->desc;
    desc.flags |= ATTREE_K_PANELS;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        desc.page_size = bad[i];
        expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, "page_size");
    }
    desc = p->desc;
    desc.flags |= ATTREE_K_PANELS;
    for (int32_t type = ATTREE_Q8_0; type <= ATTREE_Q4_0; type++) {
        desc.k_type = type;
        expect_bad_desc(p, &desc, ATTREE_ERROR_TYPE, "k_type");
    }
}

static void types_with_blocks_need_whole_blocks(void **state)
{
    const problem *p = *state;
    const int64_t bad[] = {1, 16, 31, 33, 40, 100};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        for (int32_t type = ATTREE_Q8_0; type <= ATTREE_Q4_0; type++) {
            attree_desc desc = p->desc;
            desc.v_type = type;
            desc.v_width = bad[i];
            expect_bad_desc(p, &desc, ATTREE_ERROR_SHAPE, "v_width");
            desc = p->desc;
            desc.k_type = type;
            desc.qk_width = bad[i];
            expect_bad_desc(p, &desc, ATTREE_ERROR_SHAPE, "qk_width");
        }
}

static void queries_results_and_biases_are_not_quantised(void **state)
{
    const problem *p = *state;
    static const struct {
        size_t field;
        const char *name;
    } fields[] = {{offsetof(attree_desc, q_type), "q_type"},
                  {offsetof(attree_desc, o_type), "o_type"},
                  {offsetof(attree_desc, bias_type), "bias_type"}};
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        for (int32_t type = ATTREE_I8; type <= ATTREE_F8_E5M2 + 1; type++) {
            attree_desc desc = p->desc;
            memcpy((char *)&desc + fields[i].field, &type, sizeof type);
            expect_bad_desc(p, &desc, ATTREE_ERROR_TYPE, fields[i].name);
        }
    attree_desc desc = p->desc;
    desc.k_type = ATTREE_F8_E5M2 + 1;
    expect_bad_desc(p, &desc, ATTREE_ERROR_TYPE, "k_type");
    desc = p->desc;
    desc.v_type = -1;
    expect_bad_desc(p, &desc, ATTREE_ERROR_TYPE, "v_type");
}

static void pointers_of_quantised_caches_are_checked(void **state)
{
    problem *p = *state;
    attree_args args = p->args;
    args.k_scales = NULL;
    expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_NULL, "k_scales");
    for (int offset = 1; offset < 4; offset++) {
        args = p->args;
        args.k_scales = (const float *)(const void *)((const char *)p->args.k_scales + offset);
        expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_ALIGN, "k_scales");
    }
    args = p->args;
    args.v = (const char *)args.v + 1;
    expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_ALIGN, "v");
    args = p->args;
    args.v = NULL;
    expect_bad_args(p, &p->desc, &args, ATTREE_ERROR_NULL, "v");
    args = p->args;
    args.k_scales = p->o; /* an output over scales */
    attree_desc desc = p->desc;
    desc.k_scales = (attree_strides){1, 0, 0, 0};
    expect_bad_args(p, &desc, &args, ATTREE_ERROR_ALIAS, "k_scales");
    args = p->args; /* v is not of int8 */
    args.v_scales = NULL;
    expect_right(p, &p->desc, &args);
}

/* Strides of q8_0 count blocks: of one row, the width's is ignored, and so is that of panels. */
static void the_width_stride_of_blocks_is_ignored(void **state)
{
    problem *p = *state;
    const int64_t widths[] = {0, 1, 7, -3, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        attree_desc desc = p->desc;
        desc.v.width = desc.k_scales.width = widths[i];
        expect_right(p, &desc, &p->args);
    }
}

static void strides_of_caches_that_overflow_are_refused(void **state)
{
    const problem *p = *state;
    const int64_t bad[] = {INT64_MAX, INT64_MIN, INT64_MIN + 1, INT64_MAX / 20};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        attree_desc desc = p->desc;
        desc.v.batch = bad[i];
        expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, " v");
        desc = p->desc;
        desc.k_scales.batch = bad[i];
        expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, "k_scales");
    }
    attree_desc desc = p->desc; /* blocks of 34 bytes */
    desc.v.batch = INT64_MAX / 300;
    expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, " v");
}

/* ---- Shards and states ---- */

/* An unpaged problem over 1000 keys. */
static attree_desc shard_desc(void)
{
    attree_desc desc = make_desc(B, H, G, Q, 1000, D, E);
    desc.k = desc.v = (attree_strides){0, 0, 0, 1};
    return desc;
}

static void shards_are_checked(void **state)
{
    const problem *p = *state;
    static const struct {
        int64_t begin, end;
        const char *name;
    } cases[] = {
        {1, 512, "shard_begin"},       {255, 512, "shard_begin"}, {-256, 512, "shard_begin"},
        {1024, 1024, "shard_begin"},   {1001, 0, "shard_begin"},  {INT64_MIN, 0, "shard_begin"},
        {INT64_MAX, 0, "shard_begin"}, {0, 1, "shard_end"},       {0, 511, "shard_end"},
        {0, -256, "shard_end"},        {0, 1024, "shard_end"},    {0, 1001, "shard_end"},
        {512, 256, "shard_end"},       {512, 0, "shard_end"},     {256, INT64_MAX, "shard_end"},
        {256, INT64_MIN, "shard_end"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        attree_desc desc = shard_desc();
        desc.flags = ATTREE_STATES;
        desc.shard_begin = cases[i].begin;
        desc.shard_end = cases[i].end;
        expect_bad_desc(p, &desc, ATTREE_ERROR_VALUE, cases[i].name);
    }
    static const int64_t good[][2] = {{0, 256},   {0, 1000},    {256, 1000}, {768, 1000},
                                      {256, 256}, {1000, 1000}, {512, 768}};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        attree_desc desc = shard_desc();
        desc.flags = ATTREE_STATES;
        desc.shard_begin = good[i][0];
        desc.shard_end = good[i][1];
        attree_plan *plan;
        if (attree_plan_create(&plan, &desc) != ATTREE_OK)
            fail_msg("%s", attree_last_error());
        attree_plan_destroy(plan);
    }
}

static void states_are_checked(void **state)
{
    problem *p = *state;
    attree_desc desc = p->desc;
    desc.flags |= ATTREE_STATES;
    attree_args args = p->args;
    args.states = NULL;
    expect_bad_args(p, &desc, &args, ATTREE_ERROR_NULL, "states");
    args.states = (float *)(void *)((char *)p->states + 2);
    expect_bad_args(p, &desc, &args, ATTREE_ERROR_ALIGN, "states");
    args = p->args; /* over an input */
    args.q = p->states;
    expect_bad_args(p, &desc, &args, ATTREE_ERROR_ALIAS, "states");
    /* o and lse are not wanted, and may be NULL; states are not written without the flag, and may be NULL */
    args = p->args;
    args.o = NULL;
    args.lse = NULL;
    run_expecting(ATTREE_OK, &desc, &args);
    args = p->args;
    args.states = NULL;
    expect_right(p, &p->desc, &args);
}

/* 2^42 rows of 3 * 2^17 numbers: in f16 they fit 62 bits, as states they do not. */
static void states_that_overflow_are_refused(void **state)
{
    const problem *p = *state;
    attree_desc desc = make_desc((int64_t)1 << 20, H, G, (int64_t)1 << 20, 5, 4, (int64_t)3 << 17);
    desc.q = desc.k = desc.v = (attree_strides){0, 0, 0, 1};
    desc.o_type = ATTREE_F16;
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &desc), ATTREE_OK);
    attree_plan_destroy(plan);
    desc.flags = ATTREE_STATES;
    expect_bad_desc(p, &desc, ATTREE_ERROR_OVERFLOW, "states");
}

/* ---- Updates ---- */

static void a_refused_update_leaves_a_paged_plan_as_it_was(void **state)
{
    problem *p = *state;
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &p->desc), ATTREE_OK);
    attree_args args = p->args;
    args.workspace_bytes = attree_plan_workspace(plan);
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    assert_non_null(args.workspace);
    static const struct {
        size_t field;
        int64_t value;
    } faults[] = {
        {offsetof(attree_desc, page_size), 0},   {offsetof(attree_desc, page_size), -1},
        {offsetof(attree_desc, page_count), -1}, {offsetof(attree_desc, table_width), INT64_MAX},
        {offsetof(attree_desc, shard_begin), 3}, {offsetof(attree_desc, shard_end), K + 1},
        {offsetof(attree_desc, v_width), E + 1}, {offsetof(attree_desc, window_left), -2},
        {offsetof(attree_desc, q_heads), H + 1}, {offsetof(attree_desc, kv_len), -1},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        attree_desc bad = p->desc;
        memcpy((char *)&bad + faults[i].field, &faults[i].value, sizeof faults[i].value);
        if (attree_plan_update(plan, &bad) == ATTREE_OK)
            fail_msg("fault %zu is not refused", i);
        reset_outputs(p);
        assert_int_equal(attree_run(plan, &args), ATTREE_OK);
        assert_same_bits(p->right_o, p->o, O_COUNT);
        assert_same_bits(p->right_lse, p->lse, LSE_COUNT);
    }
    free(args.workspace);
    attree_plan_destroy(plan);
}

#define WITH_PROBLEM(test) cmocka_unit_test_setup_teardown(test, make_problem, free_problem)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PROBLEM(numbers_of_pages_are_checked),
        WITH_PROBLEM(page_numbers_of_seen_keys_are_checked),
        WITH_PROBLEM(the_table_is_checked),
        WITH_PROBLEM(the_last_row_may_end_early),
        WITH_PROBLEM(a_table_of_which_nothing_is_used_may_be_null),
        WITH_PROBLEM(a_table_is_for_paged_plans),
        WITH_PROBLEM(ragged_keys_are_not_for_pages_panels_or_shards),
        WITH_PROBLEM(panels_need_whole_pages_of_16),
        WITH_PROBLEM(types_with_blocks_need_whole_blocks),
        WITH_PROBLEM(queries_results_and_biases_are_not_quantised),
        WITH_PROBLEM(pointers_of_quantised_caches_are_checked),
        WITH_PROBLEM(the_width_stride_of_blocks_is_ignored),
        WITH_PROBLEM(strides_of_caches_that_overflow_are_refused),
        WITH_PROBLEM(shards_are_checked),
        WITH_PROBLEM(states_are_checked),
        WITH_PROBLEM(states_that_overflow_are_refused),
        WITH_PROBLEM(a_refused_update_leaves_a_paged_plan_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
