/* See arguments.h. */
#include "arguments.h"

#include <stdlib.h>
#include <string.h>

attree_desc valid_desc(void)
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

void point(attree_args *args, tensor which, void *to)
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

void reset(problem *p)
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

void expect_untouched(const problem *p) { assert_memory_equal(p->memory, p->before, p->floats * sizeof(float)); }

int make_problem(void **state)
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

int free_problem(void **state)
{
    problem *const p = *state;
    attree_plan_destroy(p->plan);
    free(p->memory);
    free(p->before);
    free(p);
    return 0;
}

void expect_bad_desc(const problem *p, const attree_desc *desc, attree_status want, const char *name)
{
    attree_plan *plan = p->plan;
    forget_last_error();
    expect_error("attree_plan_create", attree_plan_create(&plan, desc), want, name);
    assert_null(plan);
    forget_last_error();
    expect_error("attree_attention", attree_attention(desc, &p->args), want, name);
    expect_untouched(p);
}

void expect_bad_args_of_a_plan(const problem *p, const attree_args *args, attree_status want, const char *name)
{
    forget_last_error();
    expect_error("attree_run", attree_run(p->plan, args), want, name);
    forget_last_error();
    expect_error("attree_run_begin", attree_run_begin(p->plan, args), want, name);
    expect_untouched(p);
}

void expect_bad_args(const problem *p, const attree_args *args, attree_status want, const char *name)
{
    expect_bad_args_of_a_plan(p, args, want, name);
    forget_last_error();
    expect_error("attree_attention", attree_attention(&p->desc, args), want, name);
    expect_untouched(p);
}

void expect_right(const problem *p, const float *o, const float *lse)
{
    assert_memory_equal(o, p->o, sizeof p->o);
    assert_memory_equal(lse, p->lse, sizeof p->lse);
}

void expect_accepted(problem *p, const attree_desc *desc)
{
    const attree_status status = attree_attention(desc, &p->args);
    if (status != ATTREE_OK)
        fail_msg("refused: %s", attree_last_error());
    expect_right(p, p->args.o, p->args.lse);
    reset(p);
}

attree_status plan_status(const attree_desc *desc)
{
    attree_plan *plan;
    const attree_status status = attree_plan_create(&plan, desc);
    assert_true((status == ATTREE_OK) == (plan != NULL));
    attree_plan_destroy(plan);
    return status;
}

attree_desc shaped(const int64_t shape[7])
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
