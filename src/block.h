/* One tile against one block of keys, as a kernel sees it: from indices to pointers, strides and visible ranges. */
#ifndef ATTREE_BLOCK_H
#define ATTREE_BLOCK_H

#include "plan.h"

typedef struct attree__block {
    attree__fold fold; /* complete but for q, out and scratch */
    attree__terms terms;
} attree__block;

/* Fills in *block, whose fold points into it and into ranges, for tile and key block number b. ranges has room for 2 *
 * plan->tile_rows numbers. Returns false when no row of the tile sees any key of the block: there is nothing to fold.
 */
bool attree__block_init(attree__block *block, const attree_plan *plan, const attree_args *args,
                        const attree__tile *tile, int64_t b, int32_t *ranges);

/* The query rows of a tile. */
attree__queries attree__block_queries(const attree_plan *plan, const attree_args *args, const attree__tile *tile);

#endif /* ATTREE_BLOCK_H */
