/* Weights of all rows of a run with ATTREE_WEIGHTS. */
#ifndef ATTREE_WEIGHTS_H
#define ATTREE_WEIGHTS_H

#include "block.h"

/* Writes the weights of all rows of a group, which the tile is, for the keys of block b, and the sums of those keys.
 * Returns false when the run is cancelled. */
bool attree__weights_task(const attree__worker *worker, const attree__tile *group, int64_t b);

#endif /* ATTREE_WEIGHTS_H */
