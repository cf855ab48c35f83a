/* Page tables: whether their entries are pages that there are. What they mean is in place.h. */
#ifndef ATTREE_PAGES_H
#define ATTREE_PAGES_H

#include "plan.h"

/* Checks the entries of all keys that some query may see, or of the new tokens that are to be appended. The table must
 * be aligned; it may be NULL where no entry is needed. */
attree_status attree__pages_check(const attree_plan *plan, const int32_t *table, bool appending);

#endif /* ATTREE_PAGES_H */
