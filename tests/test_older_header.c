/* A program that was compiled with an older header: its structs are shorter, what they lack is 0, and nothing beyond
 * them is read. The header of 0.1.0 is kept in tests/data. */
#include <stdlib.h>
#include <string.h>

#include "data/attree-0.1.0.h"
/* It has the same guard: what follows sees the old structs. */
#include "support.h"

enum { HEADS = 4, GROUPS = 2, QUERIES = 3, KEYS = 300, WIDTH = 8 };

/* The first `bytes` of a struct, right before inaccessible memory. */
static void *shortened(guarded *memory, const void *whole, size_t bytes)
{
    *memory = guarded_floats((int64_t)(bytes / sizeof(float)), false);
    memcpy(memory->data, whole, bytes);
    memcpy(memory->data, &bytes, sizeof bytes); /* its size comes first */
    return memory->data;
}

/* One problem; the structs have so many bytes. */
static void expect_same_bits(size_t desc_bytes, size_t args_bytes)
{
    attree_desc desc = make_desc(1, HEADS, GROUPS, QUERIES, KEYS, WIDTH, WIDTH);
    tensors t = make_tensors(&desc, 7);
    float *const expected = result_of(&desc, &t);
    const attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    guarded short_desc, short_args;
    const attree_desc *const d = shortened(&short_desc, &desc, desc_bytes);
    const attree_args *const a = shortened(&short_args, &args, args_bytes);
    assert_int_equal(attree_attention(d, a), ATTREE_OK);
    assert_same_bits(expected, t.o, t.o_count);
    assert_same_bits(expected + t.o_count, t.lse, t.lse_count);
    guarded_free(&short_desc);
    guarded_free(&short_args);
    free(expected);
    free_tensors(&t);
}

static void the_structs_of_the_old_header_work(void **state)
{
    (void)state;
    expect_same_bits(sizeof(attree_desc), sizeof(attree_args));
}

static void shorter_structs_are_filled_up_with_zeros(void **state)
{
    (void)state;
    for (size_t desc = offsetof(attree_desc, q); desc <= sizeof(attree_desc); desc += 8)
        expect_same_bits(desc, offsetof(attree_args, mask));
    for (size_t args = offsetof(attree_args, mask); args <= sizeof(attree_args); args += 8)
        expect_same_bits(offsetof(attree_desc, q), args);
}

/* Every call that takes the arguments of a run, and new tokens. */
static void every_call_takes_short_structs(void **state)
{
    (void)state;
    attree_desc desc = make_desc(1, HEADS, GROUPS, QUERIES, KEYS, WIDTH, WIDTH);
    tensors t = make_tensors(&desc, 8);
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, &desc), ATTREE_OK);
    attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    args.workspace_bytes = attree_plan_workspace(plan);
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    guarded short_args, short_tokens;
    const attree_args *const a = shortened(&short_args, &args, offsetof(attree_args, mask));
    float weights[KEYS];
    assert_int_equal(attree_run(plan, a), ATTREE_OK);
    assert_int_equal(attree_run_begin(plan, a), ATTREE_OK);
    assert_int_equal((int)attree_run_end(plan, a), 15);          /* there was no name for it yet */
    assert_int_equal(attree_finish(plan, a), ATTREE_ERROR_NULL); /* it has no states */
    assert_int_equal(attree_weights(plan, a, 0, 1, 2, weights), ATTREE_OK);
    const attree_new_tokens tokens = {.size = sizeof tokens, .k = t.k, .v = t.v, .cache_k = t.k + KEYS, .cache_v = t.v};
    const attree_new_tokens *const n = shortened(&short_tokens, &tokens, offsetof(attree_new_tokens, cache_k_scales));
    assert_int_equal(attree_append(plan, n), ATTREE_ERROR_ALIAS);
    guarded_free(&short_args);
    guarded_free(&short_tokens);
    free(args.workspace);
    attree_plan_destroy(plan);
    free_tensors(&t);
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
