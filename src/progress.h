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
    _Atomic bool cancelled;      /* a worker has left a task undone because the host said so */
} attree__progress;

/* args is whole. */
void attree__progress_begin(const attree_plan *plan, const attree_args *args);

/* Whether the worker that asks is to leave its task: the host says so. It must then write nothing more of it. */
bool attree__progress_stops(const attree_args *args);

/* Whether a task has been left: the run cannot be finished any more. */
static inline bool attree__progress_cancelled(const attree_args *args)
{
    attree__progress *const progress = args->workspace;
    return atomic_load_explicit(&progress->cancelled, memory_order_relaxed);
}

/* A task is done. */
void attree__progress_note_done(const attree_args *args);

/* ATTREE_ERROR_CANCELLED when a task has been left. ATTREE_ERROR_UNFINISHED unless a run of this plan is under way in
 * the workspace and all work of the phases before `phase` is done. */
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
