/* What a worker does: takes tasks, folds a tile along its subtree of blocks, combines chunks, finishes rows.
 *
 * In: a plan, the tensors, a workspace. Out: o and lse. Any worker may do any task; nothing depends on which. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "block.h"
#include "canary.h"
#include "contract.h"
#include "dtype.h"
#include "error.h"
#include "simd/fpenv.h"
#include "tree.h"

/* One run, seen from one worker. */
typedef struct context {
    const attree_plan *plan;
    const attree__problem *problem;
    const attree_args *args;
    char *workspace, *scratch;
} context;

static attree__shared *shared_of(const attree_args *args) { return args->workspace; }

/* ---- States in memory ---- */

static attree__states states_at(const attree_plan *plan, void *memory)
{
    assert(memory);
    float *const numbers = memory;
    return (attree__states){numbers + plan->tile_rows * plan->u_stride,
                            numbers + plan->tile_rows * (plan->u_stride + 1), numbers, plan->u_stride};
}

static attree__states level_states(const context *c, int32_t level)
{
    return states_at(c->plan, c->scratch + c->plan->levels_offset + (size_t)level * c->plan->states_bytes);
}

static attree__states task_states(const context *c, const attree__tile *tile, int64_t chunk)
{
    const size_t number = (size_t)(tile->state + chunk);
    return states_at(c->plan, c->workspace + c->plan->states_offset + number * c->plan->states_bytes);
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

static void pack_queries(const context *c, const attree__tile *tile)
{
    const attree__queries queries = attree__block_queries(c->plan, c->args, tile);
    c->plan->kernels->pack_queries((float *)(void *)(c->scratch + c->plan->packed_offset), &queries,
                                   c->problem->qk_width);
}

/* A node of the merge tree: blocks first <= b < first + count. */
typedef struct node {
    int64_t first, count;
} node;

/* Folds blocks into the states of levels `level`, level + 1, ... Returns false, with nothing written, when no row of
 * the tile sees any key of one of them. */
static bool fold_blocks(const context *c, const attree__tile *tile, node n, int32_t level)
{
    attree__block blocks[ATTREE__FOLDS];
    const attree__fold *folds[ATTREE__FOLDS];
    const attree__worker worker = {c->plan, c->args, c->scratch};
    for (int32_t i = 0; i < n.count; i++) {
        if (!attree__block_init(&blocks[i], &worker, tile, n.first + i, i))
            return false;
        blocks[i].fold.q = (const float *)(void *)(c->scratch + c->plan->packed_offset);
        blocks[i].fold.out = level_states(c, level + i);
        blocks[i].fold.scratch = (float *)(void *)(c->scratch + c->plan->kernel_offset);
        folds[i] = &blocks[i].fold;
    }
    c->plan->kernels->fold(folds, (int32_t)n.count);
    return true;
}

static void combine_levels(const context *c, const attree__tile *tile, int32_t left, int32_t right)
{
    const attree__states a = level_states(c, left), b = level_states(c, right);
    c->plan->kernels->combine(&a, &b, tile->rows, c->problem->v_width);
}

/* Combines `count` blocks, which fold_blocks has folded. */
static void combine_blocks(const context *c, const attree__tile *tile, int64_t count, int32_t level)
{
    if (count == 1)
        return;
    const int64_t split = attree__tree_split(count);
    combine_blocks(c, tile, split, level);
    combine_blocks(c, tile, count - split, level + (int32_t)split);
    combine_levels(c, tile, level, level + (int32_t)split);
}

/* Whether to fold the blocks of a node at once: the tile sees keys of all of them, as far as is known without asking.
 */
static bool folds_at_once(const context *c, const attree__tile *tile, attree__keys visible, node n)
{
    return n.count <= attree__plan_folds(c->plan, tile->rows) && n.first >= visible.first &&
           n.first + n.count <= visible.end && !c->args->block;
}

/* Folds a node into the states of `level`. Returns false, with nothing written, when the tile sees none of its keys. */
static bool fold_node(const context *c, const attree__tile *tile, attree__keys visible, node n, int32_t level)
{
    if (n.first >= visible.end || n.first + n.count <= visible.first)
        return false;
    if (n.count == 1)
        return fold_blocks(c, tile, n, level);
    if (folds_at_once(c, tile, visible, n) && fold_blocks(c, tile, n, level)) {
        combine_blocks(c, tile, n.count, level);
        return true;
    }
    const int64_t split = attree__tree_split(n.count);
    const bool left = fold_node(c, tile, visible, (node){n.first, split}, level);
    const int32_t right_level = left ? level + 1 : level;
    const bool right = fold_node(c, tile, visible, (node){n.first + split, n.count - split}, right_level);
    if (left && right)
        combine_levels(c, tile, level, level + 1);
    return left || right;
}

/* ---- Finishing ---- */

static void note_empty_row(const context *c, int64_t id)
{
    _Atomic int64_t *const first = &shared_of(c->args)->first_empty;
    int64_t known = atomic_load_explicit(first, memory_order_relaxed);
    while (id < known &&
           !atomic_compare_exchange_weak_explicit(first, &known, id, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* A row with nothing to attend to; o is its first element. Returns lse. */
static float finish_empty_row(const context *c, char *o, int64_t row_id)
{
    const attree__problem *p = c->problem;
    const bool nan = p->empty_rows == ATTREE_EMPTY_NAN;
    for (int64_t e = 0; e < p->v_width; e++)
        attree__store(o, p->o_type, e * p->o.width, nan ? NAN : 0.0f);
    if (p->empty_rows == ATTREE_EMPTY_ERROR)
        note_empty_row(c, row_id);
    return nan ? NAN : -INFINITY;
}

/* o = u / l; returns lse. u may be overwritten. */
static float finish_row(const context *c, char *o, float *u, float m, float l)
{
    const attree__problem *p = c->problem;
    if (p->o.width == 1 || p->v_width == 1)
        c->plan->kernels->divide(o, p->o_type, u, l, p->v_width);
    else {
        c->plan->kernels->divide(u, ATTREE_F32, u, l, p->v_width);
        for (int64_t e = 0; e < p->v_width; e++)
            attree__store(o, p->o_type, e * p->o.width, u[e]);
    }
    return c->args->lse ? attree__contract_lse(m, l) : 0.0f;
}

/* A sink is one more leaf at the root, (sink, 1, 0): combined last. */
static void add_sinks(const context *c, const attree__tile *tile, const attree__states *states)
{
    float *const sinks = (float *)(void *)(c->scratch + c->plan->sinks_offset), *const ones = sinks + tile->rows;
    float *const zeros = ones + tile->rows; /* u of every sink */
    const int64_t group = c->problem->group;
    for (int64_t r = 0; r < tile->rows; r++) {
        sinks[r] = c->args->sinks[tile->group * group + (tile->row + r) % group];
        ones[r] = 1.0f;
    }
    memset(zeros, 0, (size_t)c->plan->u_stride * sizeof *zeros);
    c->plan->kernels->combine(states, &(attree__states){sinks, ones, zeros, 0}, tile->rows, c->problem->v_width);
}

/* Writes the rows of a tile. */
static void finish_tile(const context *c, const attree__tile *tile, const attree__states *states)
{
    const attree__problem *p = c->problem;
    if (c->args->sinks)
        add_sinks(c, tile, states);
    const int64_t q_start = tile->segment->sequence.q_start;
    for (int64_t r = 0; r < tile->rows; r++) {
        const int64_t i = (tile->row + r) / p->group, h = tile->group * p->group + (tile->row + r) % p->group;
        const int64_t first = tile->batch * p->o.batch + h * p->o.head + (q_start + i) * p->o.token;
        char *const o = (char *)c->args->o + first * attree__dtype_bytes(p->o_type);
        const float lse = states->m[r] == -INFINITY
                              ? finish_empty_row(c, o, (tile->batch * p->q_heads + h) * p->q_len + i)
                              : finish_row(c, o, states->u + r * states->u_stride, states->m[r], states->l[r]);
        if (c->args->lse)
            c->args->lse[tile->batch * p->lse.batch + h * p->lse.head + (q_start + i) * p->lse.token] = lse;
    }
}

/* The caller's state of a row of the tile. */
static float *callers_state(const context *c, const attree__tile *tile, int64_t r)
{
    const attree__problem *p = c->problem;
    const int64_t i = (tile->row + r) / p->group, h = tile->group * p->group + (tile->row + r) % p->group;
    const int64_t batch = p->ragged_q ? 0 : tile->batch;
    const int64_t row = (batch * p->q_heads + h) * p->q_len + tile->segment->sequence.q_start + i;
    return c->args->states + row * (p->v_width + 2);
}

static void export_states(const context *c, const attree__tile *tile, const attree__states *states)
{
    for (int64_t r = 0; r < tile->rows; r++) {
        float *const to = callers_state(c, tile, r);
        to[0] = states->m[r] + 0.0f; /* a zero is +0: which of equal scores was taken must not show */
        to[1] = attree__canonical(states->l[r]);
        for (int64_t e = 0; e < c->problem->v_width; e++)
            to[2 + e] = attree__canonical(states->u[r * states->u_stride + e]);
    }
}

static void import_states(const context *c, const attree__tile *tile, const attree__states *states)
{
    for (int64_t r = 0; r < tile->rows; r++) {
        const float *const from = callers_state(c, tile, r);
        states->m[r] = from[0];
        states->l[r] = from[1];
        memcpy(states->u + r * states->u_stride, from + 2, (size_t)c->problem->v_width * sizeof *from);
    }
}

static void write_tile(const context *c, const attree__tile *tile, const attree__states *states)
{
    if (c->problem->states)
        export_states(c, tile, states);
    else
        finish_tile(c, tile, states);
}

/* ---- Phases ---- */

/* Phase 0: one tile against one chunk. */
static void run_task(const context *c, int64_t task)
{
    int64_t chunk;
    const attree__tile tile = attree__plan_task(c->plan, task, &chunk);
    const attree__segment *s = tile.segment;
    const attree__keys visible = attree__plan_blocks(c->plan, &tile, chunk);
    const attree__states states = level_states(c, 0);
    const int64_t first = chunk * s->chunk_blocks, left = s->blocks - first;
    bool seen = false;
    if (visible.first < visible.end) {
        pack_queries(c, &tile);
        seen = fold_node(c, &tile, visible, (node){first, left < s->chunk_blocks ? left : s->chunk_blocks}, 0);
    }
    if (!seen && (s->chunks == 1 || visible.first < visible.end))
        clear_states(&states, tile.rows);
    if (s->chunks == 1)
        write_tile(c, &tile, &states);
    else if (visible.first < visible.end)
        memcpy(task_states(c, &tile, chunk).u, states.u, c->plan->states_bytes);
}

/* Combines the chunks of a node of a tile into the states of the first of them that the tile sees; returns which, or
 * -1. */
static int64_t combine_chunks(const context *c, const attree__tile *tile, node chunks)
{
    if (chunks.count == 1) {
        const attree__keys visible = attree__plan_blocks(c->plan, tile, chunks.first);
        return visible.first < visible.end ? chunks.first : -1;
    }
    const int64_t split = attree__tree_split(chunks.count);
    const int64_t left = combine_chunks(c, tile, (node){chunks.first, split});
    const int64_t right = combine_chunks(c, tile, (node){chunks.first + split, chunks.count - split});
    if (left < 0 || right < 0)
        return left < 0 ? right : left;
    const attree__states a = task_states(c, tile, left), b = task_states(c, tile, right);
    c->plan->kernels->combine(&a, &b, tile->rows, c->problem->v_width);
    return left;
}

/* Phase 1: all chunks of one tile. */
static void run_tile(const context *c, int64_t n)
{
    const attree__tile tile = attree__plan_tile(c->plan, n);
    if (tile.segment->chunks == 1) /* finished in phase 0 */
        return;
    const int64_t chunk = combine_chunks(c, &tile, (node){0, tile.segment->chunks});
    const attree__states states = task_states(c, &tile, chunk < 0 ? 0 : chunk);
    if (chunk < 0)
        clear_states(&states, tile.rows);
    write_tile(c, &tile, &states);
}

/* What a workspace starts with while a run of this plan is under way in it: nothing that is there by chance. */
static uint64_t run_mark(const attree_plan *plan, const attree_args *args)
{
    const uint64_t golden_ratio = 0x9e3779b97f4a7c15u; /* spreads the bits of the addresses */
    return ((uint64_t)(uintptr_t)plan * golden_ratio ^ (uint64_t)(uintptr_t)args->workspace) * golden_ratio | 1u;
}

static void init_shared(const attree_plan *plan, const attree_args *args)
{
    attree__shared *const shared = shared_of(args);
    for (int phase = 0; phase < 2; phase++) {
        atomic_init(&shared->next[phase], 0);
        atomic_init(&shared->done[phase], 0);
        atomic_init(&shared->joined[phase], 0);
    }
    atomic_init(&shared->first_empty, INT64_MAX);
    atomic_init(&shared->begun, run_mark(plan, args));
    attree__canaries_set(plan, args->workspace);
}

static int64_t phase_count(const attree_plan *plan, int32_t phase) { return phase == 0 ? plan->tasks : plan->tiles; }

/* A run of this plan is under way in the workspace, and all work of the phases before `phase` is done. */
static attree_status check_progress(const attree_plan *plan, const attree_args *args, int32_t phase)
{
    attree__shared *const shared = shared_of(args);
    if (atomic_load_explicit(&shared->begun, memory_order_relaxed) != run_mark(plan, args))
        return attree__fail(ATTREE_ERROR_UNFINISHED,
                            "no run of this plan is under way in the workspace; attree_run_begin must come first");
    for (int32_t n = 0; n < phase; n++) {
        const int64_t left = phase_count(plan, n) - atomic_load_explicit(&shared->done[n], memory_order_acquire);
        if (left > 0)
            return attree__fail(ATTREE_ERROR_UNFINISHED,
                                "phase %" PRId32 " has %" PRId64 " of %" PRId64
                                " tasks left; workers must finish it, and wait for each other, first",
                                n, left, phase_count(plan, n));
    }
    return ATTREE_OK;
}

static attree_status check_workspace(const attree_plan *plan, const attree_args *args)
{
    if (args->workspace_bytes < plan->workspace_bytes)
        return attree__fail(ATTREE_ERROR_WORKSPACE, "workspace_bytes is %zu; it must be at least %zu",
                            args->workspace_bytes, plan->workspace_bytes);
    return ATTREE_OK;
}

/* What every worker needs. */
static attree_status check_run(const attree_plan *plan, const attree_args *args)
{
    if (!plan || !args)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", plan ? "args" : "plan");
    if (args->size != sizeof(attree_args))
        return attree__fail(ATTREE_ERROR_SIZE, "args->size is %zu; this library knows %zu", args->size,
                            sizeof(attree_args));
    if (!args->workspace)
        return attree__fail(ATTREE_ERROR_NULL, "workspace is NULL; it must point to %zu bytes", plan->workspace_bytes);
    return ATTREE_OK;
}

/* Takes tasks until none is left. */
static void work(const context *c, int32_t phase)
{
    attree__shared *const shared = shared_of(c->args);
    const int64_t count = phase_count(c->plan, phase);
    int64_t done = 0, n;
    while ((n = atomic_fetch_add_explicit(&shared->next[phase], 1, memory_order_relaxed)) < count) {
        if (phase == 0)
            run_task(c, n);
        else
            run_tile(c, n);
        done++;
    }
    atomic_fetch_add_explicit(&shared->done[phase], done, memory_order_release);
}

attree_status attree_run_worker(const attree_plan *plan, const attree_args *args, int32_t phase, int32_t worker,
                                int32_t workers)
{
    attree_status status = check_run(plan, args);
    if (status != ATTREE_OK)
        return status;
    if (phase < 0 || phase >= attree_plan_phases(plan))
        return attree__fail(ATTREE_ERROR_VALUE, "phase is %" PRId32 "; it must be 0 to %" PRId32, phase,
                            attree_plan_phases(plan) - 1);
    if (workers < 1)
        return attree__fail(ATTREE_ERROR_VALUE, "workers is %" PRId32 "; it must be at least 1", workers);
    if (worker < 0 || worker >= workers)
        return attree__fail(ATTREE_ERROR_VALUE, "worker is %" PRId32 "; it must be 0 to %" PRId32, worker, workers - 1);
    status = check_progress(plan, args, phase);
    if (status != ATTREE_OK)
        return status;
    const int64_t slot = atomic_fetch_add_explicit(&shared_of(args)->joined[phase], 1, memory_order_relaxed);
    if (slot >= plan->workers) /* more workers than the plan has room for: the others do its share */
        return ATTREE_OK;
    const context c = {plan, &plan->problem, args, args->workspace,
                       (char *)args->workspace + plan->scratch_offset + (size_t)slot * plan->scratch_bytes};
    const attree__fpenv caller = attree__fpenv_enter();
    work(&c, phase);
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}

attree_status attree__task_check(const attree_plan *plan, const attree_args *args)
{
    attree_status status = check_run(plan, args);
    if (status == ATTREE_OK)
        status = check_workspace(plan, args);
    if (status == ATTREE_OK)
        status = attree__problem_check(&plan->problem, args);
    return status == ATTREE_OK ? attree__block_check_pages(plan, args->page_table, false) : status;
}

attree_status attree_run_begin(const attree_plan *plan, const attree_args *args)
{
    const attree_status status = attree__task_check(plan, args);
    if (status != ATTREE_OK)
        return status;
    init_shared(plan, args);
    return ATTREE_OK;
}

/* The status of a run whose work is done. */
static attree_status close_run(const attree_plan *plan, const attree_args *args)
{
    atomic_store_explicit(&shared_of(args)->begun, 0, memory_order_relaxed);
    const attree_status status = attree__canaries_check(plan, args->workspace);
    if (status != ATTREE_OK)
        return status;
    const int64_t row = atomic_load_explicit(&shared_of(args)->first_empty, memory_order_relaxed);
    if (row == INT64_MAX)
        return ATTREE_OK;
    const attree__problem *p = &plan->problem;
    return attree__fail(ATTREE_ERROR_EMPTY, "query %" PRId64 " of head %" PRId64 ", batch %" PRId64 " sees no key",
                        row % p->q_len, row / p->q_len % p->q_heads, row / p->q_len / p->q_heads);
}

attree_status attree_run_end(const attree_plan *plan, const attree_args *args)
{
    attree_status status = check_run(plan, args);
    if (status == ATTREE_OK)
        status = check_progress(plan, args, plan->phases);
    return status == ATTREE_OK ? close_run(plan, args) : status;
}

attree_status attree_finish(const attree_plan *plan, const attree_args *args)
{
    attree_status status = check_run(plan, args);
    if (status == ATTREE_OK)
        status = check_workspace(plan, args);
    if (status == ATTREE_OK)
        status = attree__problem_check_finish(&plan->problem, args);
    if (status != ATTREE_OK)
        return status;
    init_shared(plan, args);
    const context c = {plan, &plan->problem, args, args->workspace, (char *)args->workspace + plan->scratch_offset};
    const attree__states states = level_states(&c, 0);
    const attree__fpenv caller = attree__fpenv_enter();
    for (int64_t n = 0; n < plan->tiles; n++) {
        const attree__tile tile = attree__plan_tile(plan, n);
        import_states(&c, &tile, &states);
        finish_tile(&c, &tile, &states);
    }
    attree__fpenv_leave(caller);
    return close_run(plan, args);
}
