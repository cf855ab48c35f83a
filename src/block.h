/* One tile against one block of keys, as a kernel sees it: from indices to pointers, strides and visible ranges. */
#ifndef ATTREE_BLOCK_H
#define ATTREE_BLOCK_H

#include "plan.h"

typedef struct attree__block {
    attree__fold fold; /* complete but for q, out and scratch */
    attree__terms terms;
} attree__block;

/* A run's plan and tensors, and a worker's scratch. */
typedef struct attree__worker {
    const attree_plan *plan;
    const attree_args *args;
    char *scratch;
} attree__worker;

/* Fills in *block, whose fold points into it and into the scratch, for tile and key block number b. Returns false when
 * no row of the tile sees any key of the block: there is nothing to fold. place: which of the blocks that are folded at
 * once, 0 <= place < attree__plan_folds(). */
bool attree__block_init(attree__block *block, const attree__worker *worker, const attree__tile *tile, int64_t b,
                        int32_t place);

/* Keys of a sequence that some query may see. */
attree__keys attree__block_active_keys(const attree__problem *problem, const attree__sequence *sequence);

/* Checks a page table: the entries of all keys that some query may see, or of the new tokens that are to be appended.
 */
attree_status attree__block_check_pages(const attree_plan *plan, const int32_t *table, bool appending);

/* The query rows of a tile. */
attree__queries attree__block_queries(const attree_plan *plan, const attree_args *args, const attree__tile *tile);

#endif /* ATTREE_BLOCK_H */
