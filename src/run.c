/* Running a plan on OpenMP threads. The only file with OpenMP; compiled without it, attree_run uses the calling thread
 * alone. */
#include "run.h"

#include "compiler.h"
#include "plan.h"

/* Arguments were checked by attree_run_begin; what a worker can still report is kept for attree_run_end. */
static void work_alone(const attree_plan *plan, const attree_args *args)
{
    for (int32_t phase = 0; phase < attree_plan_phases(plan); phase++)
        (void)attree_run_worker(plan, args, phase, 0, 1);
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
        const int32_t phases = attree_plan_phases(plan), worker = omp_get_thread_num(), workers = omp_get_num_threads();
        for (int32_t phase = 0; phase < phases; phase++) {
            (void)attree_run_worker(plan, args, phase, worker, workers);
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
    const attree_status status = attree_run_begin(plan, args);
    if (status != ATTREE_OK)
        return status;
    if (plan->workers > 1)
        work(plan, args);
    else
        work_alone(plan, args);
    return attree_run_end(plan, args);
}
