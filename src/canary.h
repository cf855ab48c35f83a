/* Canaries: in builds that test the workspace (ATTREE_CANARIES), a gap of known bytes after each of its regions. A run
 * sets them when it begins and looks at them when it ends. In other builds there are no gaps and nothing is done. */
#ifndef ATTREE_CANARY_H
#define ATTREE_CANARY_H

#include "plan.h"

void attree__canaries_set(const attree_plan *plan, void *workspace);

/* ATTREE_ERROR_WORKSPACE, with a sentence that names the region, when one was written beyond its end. */
attree_status attree__canaries_check(const attree_plan *plan, const void *workspace);

#endif /* ATTREE_CANARY_H */
