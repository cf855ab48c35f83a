/* What a caller hands to a run, to attree_finish and to attree_append, checked against a plan: NULL, sizes, alignment,
 * overlap, page tables, sinks and slopes. Each check first makes the struct whole (see sized.h). */
#ifndef ATTREE_ARGS_H
#define ATTREE_ARGS_H

#include "plan.h"

/* Not checked but for its size. */
attree_status attree__args_copy(attree_args *whole, const attree_args *args);

/* The plan, and the workspace: what a worker needs of arguments that attree__args_check has seen. */
attree_status attree__args_check_workspace(attree_args *whole, const attree_plan *plan, const attree_args *args);

/* For a run, all. */
attree_status attree__args_check(attree_args *whole, const attree_plan *plan, const attree_args *args);

/* For attree_finish. */
attree_status attree__args_check_finish(attree_args *whole, const attree_plan *plan, const attree_args *args);

/* For attree_append: also resolves the strides of the new keys and values, into those of *whole. */
attree_status attree__args_check_append(attree_new_tokens *whole, const attree_plan *plan,
                                        const attree_new_tokens *tokens);

#endif /* ATTREE_ARGS_H */
