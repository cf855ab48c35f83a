/* What a worker does: takes tasks, folds a tile along its subtree of blocks, combines chunks, finishes rows.
 *
 * Any worker may do any task; nothing depends on which. */
#include "task.h"

#include <assert.h>
#include <string.h>

#include "block.h"
#include "contract.h"
#include "dtype.h"
#include "progress.h"
#include "query_row.h"
#include "simd/fpenv.h"
#include "tree.h"
#include "weights.h"

/* ---- States in memory ---- */

static attree__states states_at(const attree_plan *plan, void *memory)
{
    assert(memory);
    float *const numbers = memory;
    return (attree__states){numbers + plan->tile_rows * plan->u_stride,
                            numbers + plan->tile_rows * (plan->u_stride + 1), numbers, plan->u_stride};
}

static attree__states level_states(const attree__worker *w, int32_t level)
{
    return states_at(w->plan, w->scratch + w->plan->levels_offset + (size_t)level * w->plan->states_bytes);
}

static attree__states task_states(const attree__worker *w, const attree__tile *tile, int64_t chunk)
{
    const size_t number = (size_t)(tile->state + chunk);
    return states_at(w->plan, (char *)w->args->workspace + w->plan->states_offset + number * w->plan->states_bytes);
}

static void clear_states(const attree__states *states, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        states->m[r] = -INFINITY;
        states->l[r] = 0.0f;
    }
    memset(states->u, 0, (size_t)(rows * states->u_stride) * sizeof(float));
}

/* ---- Folding ---- */

static void pack_queries(const attree__worker *w, const attree__tile *tile)
{
    const attree__queries queries = attree__block_queries(w->plan, w->args, tile);
    w->plan->kernels->pack_queries((float *)(void *)(w->scratch + w->plan->packed_offset), &queries,
                                   w->plan->problem.qk_width);
}

/* A node of the merge tree: blocks first <= b < first + count. */
typedef struct node {
    int64_t first, count;
} node;

/* Folds blocks into the states of levels `level`, level + 1, ... Returns false, with nothing written, when no row of
 * the tile sees any key of one of them. */
static bool fold_blocks(const attree__worker *w, const attree__tile *tile, node n, int32_t level)
{
    attree__block blocks[ATTREE__FOLDS];
    const attree__fold *folds[ATTREE__FOLDS];
    for (int32_t i = 0; i < n.count; i++) {
        if (!attree__block_init(&blocks[i], w, tile, n.first + i, i))
            return false;
        blocks[i].fold.q = (const float *)(void *)(w->scratch + w->plan->packed_offset);
        blocks[i].fold.out = level_states(w, level + i);
        blocks[i].fold.scratch = (float *)(void *)(w->scratch + w->plan->kernel_offset);
        folds[i] = &blocks[i].fold;
    }
    w->plan->kernels->fold(folds, (int32_t)n.count);
    return true;
}

static void combine_levels(const attree__worker *w, const attree__tile *tile, int32_t left, int32_t right)
{
    const attree__states a = level_states(w, left), b = level_states(w, right);
    w->plan->kernels->combine(&a, &b, tile->rows, w->plan->problem.v_width);
}

/* Combines `count` blocks, which fold_blocks has folded. */
static void combine_blocks(const attree__worker *w, const attree__tile *tile, int64_t count, int32_t level)
{
    if (count == 1)
        return;
    const int64_t split = attree__tree_split(count);
    combine_blocks(w, tile, split, level);
    combine_blocks(w, tile, count - split, level + (int32_t)split);
    combine_levels(w, tile, level, level + (int32_t)split);
}

/* Whether to fold the blocks of a node at once: the tile sees keys of all of them, as far as is known without asking.
 */
static bool folds_at_once(const attree__worker *w, const attree__tile *tile, attree__keys visible, node n)
{
    return n.count <= attree__plan_folds(w->plan, tile->rows) && n.first >= visible.first &&
           n.first + n.count <= visible.end && !w->args->block;
}

/* Folds a node into the states of `level`. Returns false, with nothing written, when the tile sees none of its keys, or
 * when the run is cancelled. */
static bool fold_node(const attree__worker *w, const attree__tile *tile, attree__keys visible, node n, int32_t level)
{
    if (n.first >= visible.end || n.first + n.count <= visible.first || attree__progress_stops(w->args))
        return false;
    if (n.count == 1)
        return fold_blocks(w, tile, n, level);
    if (folds_at_once(w, tile, visible, n) && fold_blocks(w, tile, n, level)) {
        combine_blocks(w, tile, n.count, level);
        return true;
    }
    const int64_t split = attree__tree_split(n.count);
    const bool left = fold_node(w, tile, visible, (node){n.first, split}, level);
    const int32_t right_level = left ? level + 1 : level;
    const bool right = fold_node(w, tile, visible, (node){n.first + split, n.count - split}, right_level);
    if (left && right)
        combine_levels(w, tile, level, level + 1);
    return left || right;
}

/* ---- Finishing ---- */

/* A row with nothing to attend to; o is its first element. Returns lse. */
static float finish_empty_row(const attree__worker *w, char *o, int64_t row_id)
{
    const attree__problem *p = &w->plan->problem;
    const bool nan = p->empty_rows == ATTREE_EMPTY_NAN;
    for (int64_t e = 0; e < p->v_width; e++)
        attree__store(o, p->o_type, e * p->o.width, nan ? NAN : 0.0f);
    if (p->empty_rows == ATTREE_EMPTY_ERROR)
        attree__progress_note_empty(w->args->workspace, row_id);
    return nan ? NAN : -INFINITY;
}

/* o = u / l; returns lse. u may be overwritten. */
static float finish_row(const attree__worker *w, char *o, float *u, float m, float l)
{
    const attree__problem *p = &w->plan->problem;
    if (p->o.width == 1 || p->v_width == 1)
        w->plan->kernels->divide(o, p->o_type, u, l, p->v_width);
    else {
        w->plan->kernels->divide(u, ATTREE_F32, u, l, p->v_width);
        for (int64_t e = 0; e < p->v_width; e++)
            attree__store(o, p->o_type, e * p->o.width, u[e]);
    }
    return w->args->lse ? attree__contract_lse(m, l) : 0.0f;
}

/* A sink is one more leaf at the root, (sink, 1, 0): combined last. */
static void add_sinks(const attree__worker *w, const attree__tile *tile, const attree__states *states)
{
    float *const sinks = (float *)(void *)(w->scratch + w->plan->sinks_offset), *const ones = sinks + tile->rows;
    float *const zeros = ones + tile->rows; /* u of every sink */
    const int64_t group = w->plan->problem.group;
    for (int64_t r = 0; r < tile->rows; r++) {
        sinks[r] = w->args->sinks[tile->group * group + attree__query_row_at(tile->row + r, group).head];
        ones[r] = 1.0f;
    }
    memset(zeros, 0, (size_t)w->plan->u_stride * sizeof *zeros);
    w->plan->kernels->combine(states, &(attree__states){sinks, ones, zeros, 0}, tile->rows, w->plan->problem.v_width);
}

/* Writes the rows of a tile. */
static void finish_tile(const attree__worker *w, const attree__tile *tile, const attree__states *states)
{
    const attree__problem *p = &w->plan->problem;
    if (w->args->sinks)
        add_sinks(w, tile, states);
    const int64_t q_start = tile->segment->sequence.q_start;
    for (int64_t r = 0; r < tile->rows; r++) {
        const attree__query_row at = attree__query_row_at(tile->row + r, p->group);
        const int64_t i = at.query, h = tile->group * p->group + at.head;
        const int64_t first = tile->batch * p->o.batch + h * p->o.head + (q_start + i) * p->o.token;
        char *const o = (char *)w->args->o + first * attree__dtype_bytes(p->o_type);
        const float lse = states->m[r] == -INFINITY
                              ? finish_empty_row(w, o, (tile->batch * p->q_heads + h) * p->q_len + i)
                              : finish_row(w, o, states->u + r * states->u_stride, states->m[r], states->l[r]);
        if (w->args->lse)
            w->args->lse[tile->batch * p->lse.batch + h * p->lse.head + (q_start + i) * p->lse.token] = lse;
    }
}

/* The caller's state of a row of the tile. */
static float *callers_state(const attree__worker *w, const attree__tile *tile, int64_t r)
{
    const attree__problem *p = &w->plan->problem;
    const attree__query_row at = attree__query_row_at(tile->row + r, p->group);
    const int64_t h = tile->group * p->group + at.head;
    const int64_t batch = p->ragged_q ? 0 : tile->batch;
    const int64_t row = (batch * p->q_heads + h) * p->q_len + tile->segment->sequence.q_start + at.query;
    return w->args->states + row * (p->v_width + 2);
}

static void export_states(const attree__worker *w, const attree__tile *tile, const attree__states *states)
{
    for (int64_t r = 0; r < tile->rows; r++) {
        float *const to = callers_state(w, tile, r);
        to[0] = states->m[r] + 0.0f; /* a zero is +0: which of equal scores was taken must not show */
        to[1] = attree__canonical(states->l[r]);
        for (int64_t e = 0; e < w->plan->problem.v_width; e++)
            to[2 + e] = attree__canonical(states->u[r * states->u_stride + e]);
    }
}

static void import_states(const attree__worker *w, const attree__tile *tile, const attree__states *states)
{
    for (int64_t r = 0; r < tile->rows; r++) {
        const float *const from = callers_state(w, tile, r);
        states->m[r] = from[0];
        states->l[r] = from[1];
        memcpy(states->u + r * states->u_stride, from + 2, (size_t)w->plan->problem.v_width * sizeof *from);
    }
}

static void write_tile(const attree__worker *w, const attree__tile *tile, const attree__states *states)
{
    if (w->plan->problem.states)
        export_states(w, tile, states);
    else
        finish_tile(w, tile, states);
}

/* ---- Phases ---- */

/* Phase 0: one tile against one chunk. Returns false, with nothing written, when the run is cancelled. */
static bool run_task(const attree__worker *w, int64_t task)
{
    int64_t chunk;
    const attree__tile tile = attree__plan_task(w->plan, task, &chunk);
    if (w->plan->problem.weights)
        return attree__weights_task(w, &tile, chunk);
    const attree__segment *s = tile.segment;
    const attree__keys visible = attree__plan_blocks(w->plan, &tile, chunk);
    const attree__states states = level_states(w, 0);
    const int64_t first = chunk * s->chunk_blocks, left = s->blocks - first;
    bool seen = false;
    if (visible.first < visible.end) {
        pack_queries(w, &tile);
        seen = fold_node(w, &tile, visible, (node){first, left < s->chunk_blocks ? left : s->chunk_blocks}, 0);
    }
    if (attree__progress_cancelled(w->args)) /* something may be missing */
        return false;
    if (!seen && (s->chunks == 1 || visible.first < visible.end))
        clear_states(&states, tile.rows);
    if (s->chunks == 1)
        write_tile(w, &tile, &states);
    else if (visible.first < visible.end)
        memcpy(task_states(w, &tile, chunk).u, states.u, w->plan->states_bytes);
    return true;
}

/* Combines the chunks of a node of a tile into the states of the first of them that the tile sees; returns which, or
 * -1. */
static int64_t combine_chunks(const attree__worker *w, const attree__tile *tile, node chunks)
{
    if (chunks.count == 1) {
        const attree__keys visible = attree__plan_blocks(w->plan, tile, chunks.first);
        return visible.first < visible.end ? chunks.first : -1;
    }
    const int64_t split = attree__tree_split(chunks.count);
    const int64_t left = combine_chunks(w, tile, (node){chunks.first, split});
    const int64_t right = combine_chunks(w, tile, (node){chunks.first + split, chunks.count - split});
    if (left < 0 || right < 0)
        return left < 0 ? right : left;
    const attree__states a = task_states(w, tile, left), b = task_states(w, tile, right);
    w->plan->kernels->combine(&a, &b, tile->rows, w->plan->problem.v_width);
    return left;
}

/* Phase 1: all chunks of one tile. */
static void run_tile(const attree__worker *w, int64_t n)
{
    const attree__tile tile = attree__plan_tile(w->plan, n);
    if (tile.segment->chunks == 1) /* finished in phase 0 */
        return;
    const int64_t chunk = combine_chunks(w, &tile, (node){0, tile.segment->chunks});
    const attree__states states = task_states(w, &tile, chunk < 0 ? 0 : chunk);
    if (chunk < 0)
        clear_states(&states, tile.rows);
    write_tile(w, &tile, &states);
}

void attree__task_work(const attree_plan *plan, const attree_args *args, int32_t phase)
{
    attree__progress *const progress = args->workspace;
    const int64_t place = atomic_fetch_add_explicit(&progress->joined[phase], 1, memory_order_relaxed);
    if (place >= plan->workers) /* more workers than the plan has room for: the others do its share */
        return;
    const attree__worker w = attree__worker_at(plan, args, place);
    const int64_t count = attree__progress_count(plan, phase);
    const attree__fpenv caller = attree__fpenv_enter();
    int64_t done = 0, n;
    while (!attree__progress_cancelled(args) && (n = attree__progress_take(progress, phase)) < count) {
        if (attree__progress_stops(args) || (phase == 0 && !run_task(&w, n)))
            break;
        if (phase == 1)
            run_tile(&w, n);
        done++;
        attree__progress_note_done(args);
    }
    attree__fpenv_leave(caller);
    atomic_fetch_add_explicit(&progress->done[phase], done, memory_order_release);
}

void attree__task_finish(const attree_plan *plan, const attree_args *args)
{
    const attree__worker w = attree__worker_at(plan, args, 0);
    const attree__states states = level_states(&w, 0);
    const attree__fpenv caller = attree__fpenv_enter();
    for (int64_t n = 0; n < plan->tiles; n++) {
        const attree__tile tile = attree__plan_tile(plan, n);
        import_states(&w, &tile, &states);
        finish_tile(&w, &tile, &states);
    }
    attree__fpenv_leave(caller);
}
