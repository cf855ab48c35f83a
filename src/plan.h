/* Problem to plan: segments, tiles, tasks, workers, workspace. The only place that knows how work is cut and where it
 * lies.
 *
 * A segment is a run of batch entries that are alike: all of them, or one each when they differ. The query rows of one
 * (batch, group) are numbered row = i * (H/G) + (head in group), so that rows next to each other see nearly the same
 * keys. They are cut into tiles of tile_rows, the key blocks into chunks of chunk_blocks = 2^n: each chunk is a node of
 * the merge tree. A task is one tile against one chunk. With one chunk a task finishes its rows itself; with more it
 * leaves its states in the workspace, and a second phase combines the chunks of each tile. */
#ifndef ATTREE_PLAN_H
#define ATTREE_PLAN_H

#include "desc.h"
#include "kernel.h"

/* Bytes after each region of the workspace that nobody may write: see canary.h. */
#if defined(ATTREE_CANARIES)
#define ATTREE__CANARY_BYTES 64
#else
#define ATTREE__CANARY_BYTES 0
#endif

/* Rows whose weights are computed at once. */
#define ATTREE__WEIGHT_ROWS 256

typedef struct attree__segment {
    int64_t batch, batches;    /* its entries: batch ... batch + batches - 1 */
    attree__sequence sequence; /* of each of them */
    int64_t blocks;            /* key blocks: ceil(kv_len / 256) */
    int64_t group_rows;        /* rows of a (batch, group): q_len * H / G */
    int64_t tile_rows, tiles;  /* rows of a tile; tiles of a (batch, group) */
    int64_t chunk_blocks, chunks;
    bool heads_together;            /* tasks of one chunk follow each other, rather than those of one tile */
    int64_t first_tile, first_task; /* tiles and tasks of the segments before this one */
    int64_t first_state;            /* tasks of those that leave states, likewise */
    double work;                    /* multiply-adds, roughly */
} attree__segment;

typedef struct attree__rank attree__rank;

struct attree_plan {
    attree__problem problem;
    const attree__kernels *kernels;
    int32_t workers, phases;
    int32_t streams;   /* blocks that few rows fold at once */
    int32_t levels;    /* states of a tile that a worker keeps at once while it folds a chunk */
    int64_t tile_rows; /* the most of any segment */
    int64_t tiles, tasks, states;
    int64_t u_stride; /* E rounded up */
    /* Workspace, in bytes: header, states, scratch [worker]. */
    size_t states_offset, states_bytes;   /* of the first; of each */
    size_t scratch_offset, scratch_bytes; /* of the first; of each */
    /* Inside a worker's scratch: packed queries, visible ranges, scales, rows gathered from pages, sinks, the stack of
     * states, what the kernel needs. */
    size_t packed_offset, ranges_offset, scales_offset, gathered_k_offset, gathered_v_offset, sinks_offset,
        levels_offset, kernel_offset, sums_offset;
    size_t workspace_bytes;
    int64_t segment_count, segment_room;
    attree__segment *segments; /* those with the longest tasks first */
    attree__segment *spare;    /* as many more, for an update */
    attree__rank *ranks;       /* room to order segments in: order.h */
    void *grown; /* the memory of both, when an update needed more than there was; NULL: they follow here */
};

/* One tile of one (batch, group). */
typedef struct attree__tile {
    const attree__segment *segment;
    int64_t batch, group;
    int64_t row, rows; /* first row in the (batch, group), count */
    int64_t state;     /* number of the states of its first chunk, when there are more than one */
} attree__tile;

/* Makes the plan of a problem. default_threads is asked only when desc leaves the number of threads open. */
attree_status attree__plan_make(attree_plan **plan, const attree_desc *desc, int32_t (*default_threads)(void));

/* Makes it anew; on error it is as it was. */
attree_status attree__plan_remake(attree_plan *plan, const attree_desc *desc, int32_t (*default_threads)(void));

/* Tile number n, 0 <= n < tiles. The tiles of a segment that see most keys come first. */
attree__tile attree__plan_tile(const attree_plan *plan, int64_t n);

/* Rows of k and v are gathered block by block, in pages of odd sizes. */
bool attree__plan_gathers(const attree_plan *plan);

/* How many blocks of a tile of so many rows are folded at once. */
int32_t attree__plan_folds(const attree_plan *plan, int64_t rows);

/* Task number n, 0 <= n < tasks: its tile, and in *chunk which of the tile's chunks. */
attree__tile attree__plan_task(const attree_plan *plan, int64_t n, int64_t *chunk);

/* The segment of a batch entry. */
const attree__segment *attree__plan_segment(const attree_plan *plan, int64_t batch);

/* The blocks first <= b < end that geometry lets some row of the tile see, among those of chunk `chunk`; empty: first =
 * end. */
attree__keys attree__plan_blocks(const attree_plan *plan, const attree__tile *tile, int64_t chunk);

#endif /* ATTREE_PLAN_H */
