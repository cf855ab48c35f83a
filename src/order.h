/* The order of segments: those with the longest tasks first, so that what is left at the end of a run is short. */
#ifndef ATTREE_ORDER_H
#define ATTREE_ORDER_H

#include "plan.h"

/* Memory for the order of a plan with so many segments: so many ranks of each. */
#define ATTREE__RANKS 2

struct attree__rank {
    uint64_t key; /* grows as the work of a task shrinks */
    int64_t segment;
};

/* Sorts segments that have been cut. ranks: room for ATTREE__RANKS * count. */
void attree__order_segments(attree__segment *segments, int64_t count, attree__rank *ranks);

#endif /* ATTREE_ORDER_H */
