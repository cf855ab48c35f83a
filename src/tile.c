/* From the number of a tile or task to its rows, keys and segment. See plan.h. */
#include "plan.h"
#include "query_row.h"

/* The last segment whose first tile, or task, is not beyond n. */
static const attree__segment *segment_of(const attree_plan *plan, int64_t n, bool task)
{
    int64_t low = 0, high = plan->segment_count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        const attree__segment *s = &plan->segments[middle];
        if ((task ? s->first_task : s->first_tile) <= n)
            low = middle;
        else
            high = middle;
    }
    return &plan->segments[low];
}

static attree__tile tile_of(const attree_plan *plan, const attree__segment *s, int64_t n)
{
    const attree__problem *p = &plan->problem;
    const int64_t groups = s->batches * p->kv_heads;
    const int64_t tile = s->tiles - 1 - n / groups, group = n % groups;
    const int64_t row = tile * s->tile_rows;
    return (attree__tile){
        .segment = s,
        .batch = s->batch + group / p->kv_heads,
        .group = group % p->kv_heads,
        .row = row,
        .rows = s->tile_rows < s->group_rows - row ? s->tile_rows : s->group_rows - row,
        .state = s->first_state + n * s->chunks,
    };
}

attree__tile attree__plan_tile(const attree_plan *plan, int64_t n)
{
    const attree__segment *s = segment_of(plan, n, false);
    return tile_of(plan, s, n - s->first_tile);
}

attree__tile attree__plan_task(const attree_plan *plan, int64_t n, int64_t *chunk)
{
    const attree__segment *s = segment_of(plan, n, true);
    const int64_t task = n - s->first_task, tiles = s->batches * plan->problem.kv_heads * s->tiles;
    *chunk = s->heads_together ? task / tiles : task % s->chunks;
    return tile_of(plan, s, s->heads_together ? task % tiles : task / s->chunks);
}

const attree__segment *attree__plan_segment(const attree_plan *plan, int64_t batch)
{
    const attree__segment *s = plan->segments;
    while (batch < s->batch || batch >= s->batch + s->batches)
        s++;
    return s;
}

attree__keys attree__plan_blocks(const attree_plan *plan, const attree__tile *tile, int64_t chunk)
{
    const attree__problem *p = &plan->problem;
    const attree__segment *s = tile->segment;
    const attree__keys low = attree__problem_visible(p, &s->sequence, attree__query_row_at(tile->row, p->group).query);
    const attree__keys high =
        attree__problem_visible(p, &s->sequence, attree__query_row_at(tile->row + tile->rows - 1, p->group).query);
    int64_t first = low.first / ATTREE__BLOCK, end = (high.end + ATTREE__BLOCK - 1) / ATTREE__BLOCK;
    if (first < chunk * s->chunk_blocks)
        first = chunk * s->chunk_blocks;
    if (end > (chunk + 1) * s->chunk_blocks)
        end = (chunk + 1) * s->chunk_blocks;
    return first < end ? (attree__keys){first, end} : (attree__keys){0, 0};
}
