/* Plans as objects, runs in the forms that are not OpenMP's (run.c), and the version. */
#include <inttypes.h>
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

attree_status attree_run_begin(const attree_plan *plan, const attree_args *args)
{
    attree_args whole;
    const attree_status status = attree__args_check(&whole, plan, args);
    if (status == ATTREE_OK)
        attree__progress_begin(plan, whole.workspace);
    return status;
}

attree_status attree_run_worker(const attree_plan *plan, const attree_args *args, int32_t phase, int32_t worker,
                                int32_t workers)
{
    attree_args whole;
    attree_status status = attree__args_check_workspace(&whole, plan, args);
    if (status != ATTREE_OK)
        return status;
    if (phase < 0 || phase >= plan->phases)
        return attree__fail(ATTREE_ERROR_VALUE, "phase is %" PRId32 "; it must be 0 to %" PRId32, phase,
                            plan->phases - 1);
    if (workers < 1)
        return attree__fail(ATTREE_ERROR_VALUE, "workers is %" PRId32 "; it must be at least 1", workers);
    if (worker < 0 || worker >= workers)
        return attree__fail(ATTREE_ERROR_VALUE, "worker is %" PRId32 "; it must be 0 to %" PRId32, worker, workers - 1);
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
    attree__progress_begin(plan, whole.workspace);
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
