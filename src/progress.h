/* How far a run has come: what its workers share, at the start of the workspace. The only thing that is atomic. */
#ifndef ATTREE_PROGRESS_H
#define ATTREE_PROGRESS_H

#include <stdatomic.h>

#include "plan.h"

typedef struct attree__progress {
    _Atomic uint64_t begun;      /* between the begin and the end of a run: its mark */
    _Atomic int64_t next[2];     /* the next task, or tile, that nobody has taken, of each phase */
    _Atomic int64_t done[2];     /* tasks, or tiles, that are finished, of each phase */
    _Atomic int64_t joined[2];   /* workers that have come, of each phase: each takes the next scratch */
    _Atomic int64_t first_empty; /* smallest row id with nothing to attend to; INT64_MAX: none */
} attree__progress;

void attree__progress_begin(const attree_plan *plan, void *workspace);

/* ATTREE_ERROR_UNFINISHED unless a run of this plan is under way in the workspace and all work of the phases before
 * `phase` is done. */
attree_status attree__progress_check(const attree_plan *plan, const void *workspace, int32_t phase);

/* Ends a run whose work is done; returns its status. */
attree_status attree__progress_end(const attree_plan *plan, void *workspace);

/* The number of tasks of phase 0, of tiles of phase 1. */
static inline int64_t attree__progress_count(const attree_plan *plan, int32_t phase)
{
    return phase == 0 ? plan->tasks : plan->tiles;
}

/* The next task, or tile, that is nobody's yet; beyond the last when all are taken. */
static inline int64_t attree__progress_take(attree__progress *progress, int32_t phase)
{
    return atomic_fetch_add_explicit(&progress->next[phase], 1, memory_order_relaxed);
}

/* Query i of head h of batch entry b, as row id (b * H + h) * Q + i, sees no key. */
void attree__progress_note_empty(attree__progress *progress, int64_t row_id);

#endif /* ATTREE_PROGRESS_H */
