/* A program that was compiled with an older header: its structs are shorter, what they lack is 0, and nothing beyond
 * them is read. The header of 0.1.0 is kept in tests/data. Nothing here passes a struct to code that was compiled with
 * the new one, but for the library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/attree-0.1.0.h"
/* support.h would include the new header, which has the same guard. */
#include "support.h"

enum { HEADS = 4, GROUPS = 2, QUERIES = 3, KEYS = 300, WIDTH = 8, UNFINISHED = 15 };

typedef struct arrays {
    float q[HEADS * QUERIES * WIDTH], k[GROUPS * KEYS * WIDTH], v[GROUPS * KEYS * WIDTH];
    float o[HEADS * QUERIES * WIDTH], lse[HEADS * QUERIES];
} arrays;

static const attree_desc problem = {.size = sizeof problem,
                                    .batch = 1,
                                    .q_heads = HEADS,
                                    .kv_heads = GROUPS,
                                    .q_len = QUERIES,
                                    .kv_len = KEYS,
                                    .qk_width = WIDTH,
                                    .v_width = WIDTH};

static void fill(arrays *a)
{
    random_source random = {7};
    fill_random(a->q, HEADS * QUERIES * WIDTH, &random, -1.0f, 1.0f);
    fill_random(a->k, GROUPS * KEYS * WIDTH, &random, -1.0f, 1.0f);
    fill_random(a->v, GROUPS * KEYS * WIDTH, &random, -1.0f, 1.0f);
    memset(a->o, 0xff, sizeof a->o);
    memset(a->lse, 0xff, sizeof a->lse);
}

static attree_args args_of(arrays *a)
{
    return (attree_args){.size = sizeof(attree_args), .q = a->q, .k = a->k, .v = a->v, .o = a->o, .lse = a->lse};
}

/* Softmax attention without any option, in double. */
static void check_result(const arrays *a)
{
    for (int row = 0; row < HEADS * QUERIES; row++) {
        const int group = row / QUERIES / (HEADS / GROUPS);
        double sum = 0.0, o[WIDTH] = {0.0};
        for (int j = 0; j < KEYS; j++) {
            double s = 0.0;
            for (int c = 0; c < WIDTH; c++)
                s += (double)a->q[row * WIDTH + c] * (double)a->k[(group * KEYS + j) * WIDTH + c];
            const double p = exp(s / sqrt((double)WIDTH));
            sum += p;
            for (int e = 0; e < WIDTH; e++)
                o[e] += p * (double)a->v[(group * KEYS + j) * WIDTH + e];
        }
        for (int e = 0; e < WIDTH; e++)
            assert_true(close_to((double)a->o[row * WIDTH + e], o[e] / sum, 1e-5));
        assert_true(close_to((double)a->lse[row], log(sum), 1e-5));
    }
}

/* The first `bytes` of a struct, right before inaccessible memory. */
static void *shortened(guarded *memory, const void *whole, size_t bytes)
{
    *memory = guarded_floats((int64_t)(bytes / sizeof(float)), false);
    memcpy(memory->data, whole, bytes);
    memcpy(memory->data, &bytes, sizeof bytes); /* its size comes first */
    return memory->data;
}

/* The structs have so many bytes. */
static void expect_right(size_t desc_bytes, size_t args_bytes)
{
    arrays a;
    fill(&a);
    const attree_args args = args_of(&a);
    guarded short_desc, short_args;
    const attree_desc *const desc = shortened(&short_desc, &problem, desc_bytes);
    assert_int_equal(attree_attention(desc, shortened(&short_args, &args, args_bytes)), ATTREE_OK);
    check_result(&a);
    guarded_free(&short_desc);
    guarded_free(&short_args);
}

static void the_structs_of_the_old_header_work(void **state)
{
    (void)state;
    expect_right(sizeof(attree_desc), sizeof(attree_args));
}

static void shorter_structs_are_filled_up_with_zeros(void **state)
{
    (void)state;
    for (size_t desc = offsetof(attree_desc, q); desc <= sizeof(attree_desc); desc += 8)
        expect_right(desc, offsetof(attree_args, mask));
    for (size_t args = offsetof(attree_args, mask); args <= sizeof(attree_args); args += 8)
        expect_right(offsetof(attree_desc, q), args);
}

/* Every call that takes the arguments of a run, and new tokens. */
static void every_call_takes_short_structs(void **state)
{
    (void)state;
    arrays a;
    attree_plan *plan;
    fill(&a);
    assert_int_equal(attree_plan_create(&plan, &problem), ATTREE_OK);
    attree_args args = args_of(&a);
    args.workspace_bytes = attree_plan_workspace(plan);
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    guarded short_args, short_tokens;
    const attree_args *const given = shortened(&short_args, &args, offsetof(attree_args, mask));
    float weights[KEYS];
    assert_int_equal(attree_run(plan, given), ATTREE_OK);
    check_result(&a);
    assert_int_equal(attree_run_begin(plan, given), ATTREE_OK);
    assert_int_equal((int)attree_run_end(plan, given), UNFINISHED);
    assert_int_equal(attree_finish(plan, given), ATTREE_ERROR_NULL); /* it has no states */
    assert_int_equal(attree_weights(plan, given, 0, 1, 2, weights), ATTREE_OK);
    const attree_new_tokens tokens = {.size = sizeof tokens, .k = a.k, .v = a.v, .cache_k = a.k + KEYS, .cache_v = a.v};
    assert_int_equal(
        attree_append(plan, shortened(&short_tokens, &tokens, offsetof(attree_new_tokens, cache_k_scales))),
        ATTREE_ERROR_ALIAS);
    guarded_free(&short_args);
    guarded_free(&short_tokens);
    free(args.workspace);
    attree_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_structs_of_the_old_header_work),
        cmocka_unit_test(shorter_structs_are_filled_up_with_zeros),
        cmocka_unit_test(every_call_takes_short_structs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
