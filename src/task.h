/* The work of a run, from its plan, tensors and workspace to o and lse, or states. The arguments are whole and checked;
 * the run has begun (progress.h). */
#ifndef ATTREE_TASK_H
#define ATTREE_TASK_H

#include "plan.h"

/* What the calling thread does of a phase: takes tasks, or tiles, until none is left. */
void attree__task_work(const attree_plan *plan, const attree_args *args, int32_t phase);

/* o and lse from args->states. */
void attree__task_finish(const attree_plan *plan, const attree_args *args);

#endif /* ATTREE_TASK_H */
