/* Problem to plan: tiles, tasks, workers, workspace. The only place that knows how work is cut and where it lies.
 *
 * The query rows of one (batch, group) are numbered row = i * (H/G) + (head in group), so that rows next to each other
 * see nearly the same keys. They are cut into tiles of tile_rows, the key blocks into chunks of chunk_blocks = 2^n:
 * each chunk is a node of the merge tree. A task is one tile against one chunk. With one chunk a task finishes its rows
 * itself; with more it leaves its states in the workspace, and a second phase combines the chunks of each tile. */
#ifndef ATTREE_PLAN_H
#define ATTREE_PLAN_H

#include <stdatomic.h>

#include "desc.h"
#include "kernel.h"

struct attree_plan {
    attree__problem problem;
    const attree__kernels *kernels;
    int32_t workers;
    int64_t blocks;                       /* key blocks: ceil(K / 256) */
    int64_t group_rows, tile_rows, tiles; /* rows of a (batch, group): Q * H / G; per tile; tiles per (batch, group) */
    int64_t chunk_blocks, chunks;
    int64_t tasks;    /* B * G * tiles * chunks */
    int32_t levels;   /* states of a tile that a worker keeps at once */
    int64_t u_stride; /* E rounded up */
    /* Workspace, in bytes: header, states [task] when chunks > 1, scratch [worker]. */
    size_t states_offset, states_bytes;                                /* of the first; of each */
    size_t scratch_offset, scratch_bytes;                              /* of the first; of each */
    size_t packed_offset, ranges_offset, levels_offset, kernel_offset; /* inside a worker's scratch */
    size_t workspace_bytes;
};

/* What the workers of one run share, at the start of the workspace. */
typedef struct attree__shared {
    _Atomic int64_t next[2];     /* the next task, or tile, that nobody has taken, of each phase */
    _Atomic int64_t first_empty; /* smallest row id with nothing to attend to; INT64_MAX: none */
} attree__shared;

/* One tile of one (batch, group). */
typedef struct attree__tile {
    int64_t batch, group;
    int64_t row, rows; /* first row in the (batch, group), count */
} attree__tile;

/* Makes the plan of a problem. default_threads is asked only when desc leaves the number of threads open. */
attree_status attree__plan_init(attree_plan *plan, const attree_desc *desc, int32_t (*default_threads)(void));

/* Tile number n, 0 <= n < B * G * tiles. The tiles that see most keys come first. */
attree__tile attree__plan_tile(const attree_plan *plan, int64_t n);

/* The blocks first <= b < end that some row of the tile may see, among those of chunk `chunk`; empty: first = end. */
attree__keys attree__plan_blocks(const attree_plan *plan, const attree__tile *tile, int64_t chunk);

#endif /* ATTREE_PLAN_H */
