/* Plans as objects, runs in the forms that are not OpenMP's (run.c), and the version. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "args.h"
#include "error.h"
#include "progress.h"
#include "run.h"
#include "task.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *attree_version(void)
{
    return TEXT(ATTREE_VERSION_MAJOR) "." TEXT(ATTREE_VERSION_MINOR) "." TEXT(ATTREE_VERSION_PATCH);
}

attree_status attree_plan_create(attree_plan **plan, const attree_desc *desc)
{
    if (!plan)
        return attree__fail(ATTREE_ERROR_NULL, "plan is NULL; it must point to where the plan goes");
    *plan = NULL;
    return attree__plan_make(plan, desc, attree__default_threads);
}

attree_status attree_plan_update(attree_plan *plan, const attree_desc *desc)
{
    if (!plan)
        return attree__fail(ATTREE_ERROR_NULL, "plan is NULL; it must be one that attree_plan_create made");
    return attree__plan_remake(plan, desc, attree__default_threads);
}

void attree_plan_destroy(attree_plan *plan)
{
    if (plan)
        free(plan->grown);
    free(plan);
}

size_t attree_plan_workspace(const attree_plan *plan) { return plan ? plan->workspace_bytes : 0; }

int64_t attree_plan_tasks(const attree_plan *plan)
{
    int64_t tasks = 0;
    for (int32_t phase = 0; plan && phase < plan->phases; phase++)
        tasks += attree__progress_count(plan, phase);
    return tasks;
}

int32_t attree_plan_phases(const attree_plan *plan) { return plan ? plan->phases : 0; }

attree_status attree_plan_describe(const attree_plan *plan, char *text, size_t capacity)
{
    if (!plan || !text)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", plan ? "text" : "plan");
    if (capacity == 0)
        return attree__fail(ATTREE_ERROR_VALUE, "capacity is 0; it must have room for the terminating 0");
    const attree__segment none = {.batches = 0};
    const attree__segment *s = plan->segment_count > 0 ? plan->segments : &none; /* with the longest tasks */
    (void)snprintf(text, capacity,
                   "kernel %s, %" PRId32 " workers, %" PRId64 " tasks; %" PRId64 " batch segments, the first %" PRId64
                   " groups x %" PRId64 " tiles of %" PRId64 " rows x %" PRId64 " chunks of %" PRId64
                   " blocks; workspace %zu bytes",
                   plan->kernels->name, plan->workers, plan->tasks, plan->segment_count,
                   s->batches * plan->problem.kv_heads, s->tiles, s->tile_rows, s->chunks, s->chunk_blocks,
                   plan->workspace_bytes);
    return ATTREE_OK;
}

attree_status attree_run_begin(const attree_plan *plan, const attree_args *args)
{
    attree_args whole;
    const attree_status status = attree__args_check(&whole, plan, args);
    if (status == ATTREE_OK)
        attree__progress_begin(plan, &whole);
    return status;
}

attree_status attree_run_worker(const attree_plan *plan, const attree_args *args, int32_t phase)
{
    attree_args whole;
    attree_status status = attree__args_check_workspace(&whole, plan, args);
    if (status != ATTREE_OK)
        return status;
    if (phase < 0 || phase >= plan->phases)
        return attree__fail(ATTREE_ERROR_VALUE, "phase is %" PRId32 "; it must be 0 to %" PRId32, phase,
                            plan->phases - 1);
    status = attree__progress_check(plan, whole.workspace, phase);
    if (status == ATTREE_OK)
        attree__task_work(plan, &whole, phase);
    return status;
}

attree_status attree_run_end(const attree_plan *plan, const attree_args *args)
{
    attree_args whole;
    attree_status status = attree__args_check_workspace(&whole, plan, args);
    if (status == ATTREE_OK)
        status = attree__progress_check(plan, whole.workspace, plan->phases);
    return status == ATTREE_OK ? attree__progress_end(plan, whole.workspace) : status;
}

attree_status attree_finish(const attree_plan *plan, const attree_args *args)
{
    attree_args whole;
    const attree_status status = attree__args_check_finish(&whole, plan, args);
    if (status != ATTREE_OK)
        return status;
    attree__progress_begin(plan, &whole);
    attree__task_finish(plan, &whole);
    return attree__progress_end(plan, whole.workspace);
}

attree_status attree_attention(const attree_desc *desc, const attree_args *args)
{
    attree_args run;
    attree_status status = attree__args_copy(&run, args);
    if (status != ATTREE_OK)
        return status;
    attree_plan *plan;
    status = attree_plan_create(&plan, desc);
    if (status != ATTREE_OK)
        return status;
    run.workspace_bytes = attree_plan_workspace(plan); /* a multiple of 64 */
    run.workspace = aligned_alloc(64, run.workspace_bytes);
    if (run.workspace)
        status = attree_run(plan, &run);
    else
        status = attree__fail(ATTREE_ERROR_MEMORY, "no memory for a workspace of %zu bytes", run.workspace_bytes);
    free(run.workspace);
    attree_plan_destroy(plan);
    return status;
}
