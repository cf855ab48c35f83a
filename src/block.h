/* One tile against one block of keys, as a kernel sees it: from indices to pointers, strides and visible ranges. */
#ifndef ATTREE_BLOCK_H
#define ATTREE_BLOCK_H

#include "plan.h"

typedef struct attree__block {
    attree__fold fold; /* complete but for q, out and scratch */
    attree__terms terms;
} attree__block;

/* One run, seen from one worker. */
typedef struct attree__worker {
    const attree_plan *plan;
    const attree_args *args;
    char *scratch; /* its own part of the workspace */
} attree__worker;

/* The worker with scratch number n, 0 <= n < plan->workers. */
static inline attree__worker attree__worker_at(const attree_plan *plan, const attree_args *args, int64_t n)
{
    char *const scratch = (char *)args->workspace + plan->scratch_offset + (size_t)n * plan->scratch_bytes;
    return (attree__worker){plan, args, scratch};
}

/* Fills in *block, whose fold points into it and into the scratch, for tile and key block number b. Returns false when
 * no row of the tile sees any key of the block: there is nothing to fold. slot: which of the blocks that are folded at
 * once, 0 <= slot < attree__plan_folds(). */
bool attree__block_init(attree__block *block, const attree__worker *worker, const attree__tile *tile, int64_t b,
                        int32_t slot);

/* The query rows of a tile. */
attree__queries attree__block_queries(const attree_plan *plan, const attree_args *args, const attree__tile *tile);

#endif /* ATTREE_BLOCK_H */
