/* Running a plan on OpenMP threads. The only file with OpenMP; compiled without it, attree_run uses the calling thread
 * alone. */
#include "run.h"

#include "args.h"
#include "progress.h"
#include "task.h"

static void work_alone(const attree_plan *plan, const attree_args *args)
{
    for (int32_t phase = 0; phase < plan->phases; phase++)
        attree__task_work(plan, args, phase);
}

#ifdef _OPENMP
#include <omp.h>

int32_t attree__default_threads(void)
{
    const int threads = omp_get_max_threads();
    return threads < 1 ? 1 : threads;
}

static void work(const attree_plan *plan, const attree_args *args)
{
#pragma omp parallel num_threads(plan->workers)
    {
        for (int32_t phase = 0; phase < plan->phases; phase++) {
            attree__task_work(plan, args, phase);
#pragma omp barrier
        }
    }
}
#else
int32_t attree__default_threads(void) { return 1; }

static void work(const attree_plan *plan, const attree_args *args) { work_alone(plan, args); }
#endif

attree_status attree_run(const attree_plan *plan, const attree_args *args)
{
    attree_args whole;
    const attree_status status = attree__args_check(&whole, plan, args);
    if (status != ATTREE_OK)
        return status;
    attree__progress_begin(plan, &whole);
    if (plan->workers > 1)
        work(plan, &whole);
    else
        work_alone(plan, &whole);
    return attree__progress_end(plan, whole.workspace);
}
