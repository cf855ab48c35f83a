/* Plans as objects, the one-call form, and the version. */
#include <stdlib.h>

#include "attree/attree.h"
#include "error.h"
#include "plan.h"
#include "run.h"

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

attree_status attree_attention(const attree_desc *desc, const attree_args *args)
{
    if (!args)
        return attree__fail(ATTREE_ERROR_NULL, "args is NULL");
    if (args->size != sizeof(attree_args))
        return attree__fail(ATTREE_ERROR_SIZE, "args->size is %zu; this library knows %zu", args->size,
                            sizeof(attree_args));
    attree_plan *plan;
    attree_status status = attree_plan_create(&plan, desc);
    if (status != ATTREE_OK)
        return status;
    attree_args run = *args;
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
