/* How far a run has come. See progress.h. */
#include "progress.h"

#include <inttypes.h>

#include "canary.h"
#include "error.h"

/* What a workspace starts with while a run of this plan is under way in it: nothing that is there by chance. */
static uint64_t run_mark(const attree_plan *plan, const void *workspace)
{
    const uint64_t golden_ratio = 0x9e3779b97f4a7c15u; /* spreads the bits of the addresses */
    return ((uint64_t)(uintptr_t)plan * golden_ratio ^ (uint64_t)(uintptr_t)workspace) * golden_ratio | 1u;
}

void attree__progress_begin(const attree_plan *plan, const attree_args *args)
{
    void *const workspace = args->workspace;
    attree__progress *const progress = workspace;
    for (int phase = 0; phase < 2; phase++) {
        atomic_init(&progress->next[phase], 0);
        atomic_init(&progress->done[phase], 0);
        atomic_init(&progress->joined[phase], 0);
    }
    atomic_init(&progress->first_empty, INT64_MAX);
    atomic_init(&progress->cancelled, false);
    atomic_init(&progress->begun, run_mark(plan, workspace));
    attree__canaries_set(plan, workspace);
    if (args->control)
        __atomic_store_n(&args->control->done, 0, __ATOMIC_RELAXED);
}

bool attree__progress_stops(const attree_args *args)
{
    if (!args->control || __atomic_load_n(&args->control->cancel, __ATOMIC_RELAXED) == 0)
        return false;
    attree__progress *const progress = args->workspace;
    atomic_store_explicit(&progress->cancelled, true, memory_order_relaxed);
    return true;
}

void attree__progress_note_done(const attree_args *args)
{
    if (args->control)
        (void)__atomic_fetch_add(&args->control->done, 1, __ATOMIC_RELAXED);
}

static attree_status cancelled(void)
{
    return attree__fail(ATTREE_ERROR_CANCELLED, "the run was cancelled: control->cancel was set before it was done");
}

attree_status attree__progress_check(const attree_plan *plan, const void *workspace, int32_t phase)
{
    const attree__progress *const progress = workspace;
    if (atomic_load_explicit(&progress->begun, memory_order_relaxed) != run_mark(plan, workspace))
        return attree__fail(ATTREE_ERROR_UNFINISHED,
                            "no run of this plan is under way in the workspace; attree_run_begin must come first");
    if (atomic_load_explicit(&progress->cancelled, memory_order_relaxed))
        return cancelled();
    for (int32_t n = 0; n < phase; n++) {
        const int64_t count = attree__progress_count(plan, n);
        const int64_t left = count - atomic_load_explicit(&progress->done[n], memory_order_acquire);
        if (left > 0)
            return attree__fail(ATTREE_ERROR_UNFINISHED,
                                "phase %" PRId32 " has %" PRId64 " of %" PRId64
                                " tasks left; workers must finish it, and wait for each other, first",
                                n, left, count);
    }
    return ATTREE_OK;
}

void attree__progress_note_empty(attree__progress *progress, int64_t row_id)
{
    _Atomic int64_t *const first = &progress->first_empty;
    int64_t known = atomic_load_explicit(first, memory_order_relaxed);
    while (row_id < known &&
           !atomic_compare_exchange_weak_explicit(first, &known, row_id, memory_order_relaxed, memory_order_relaxed))
        ;
}

attree_status attree__progress_end(const attree_plan *plan, void *workspace)
{
    attree__progress *const progress = workspace;
    atomic_store_explicit(&progress->begun, 0, memory_order_relaxed);
    const attree_status status = attree__canaries_check(plan, workspace);
    if (status != ATTREE_OK)
        return status;
    if (atomic_load_explicit(&progress->cancelled, memory_order_relaxed))
        return cancelled();
    const int64_t row = atomic_load_explicit(&progress->first_empty, memory_order_relaxed);
    if (row == INT64_MAX)
        return ATTREE_OK;
    const attree__problem *p = &plan->problem;
    return attree__fail(ATTREE_ERROR_EMPTY, "query %" PRId64 " of head %" PRId64 ", batch %" PRId64 " sees no key",
                        row % p->q_len, row / p->q_len % p->q_heads, row / p->q_len / p->q_heads);
}
