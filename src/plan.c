/* Problem to plan. See plan.h. */
#include "plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compiler.h"
#include "dispatch.h"
#include "dtype.h"
#include "error.h"
#include "order.h"
#include "progress.h"
#include "tree.h"

/* Workspace alignment: a cache line, and the widest vector. */
#define ALIGNMENT 64

/* Rows of a tile. Packing a key block moves 256 (D + E) numbers, about 8 a cycle; a tile of R rows then does 256 R (D +
 * E) multiply-adds, 32 a cycle at best. So packing costs about 4 / R of the arithmetic: 0.4 % of the longest tile, 4 %
 * of the shortest. The longest is a multiple of every register tile's rows: 12, 6 and 4. */
#define TILE_ROWS_MOST 1020
#define TILE_ROWS_LEAST 96

/* Widths up to this keep all products that make up a worker's scratch within 64 bits. Nobody has the memory for more.
 */
#define WIDTH_MOST ((int64_t)1 << 40)

/* A worker's stack of states is used again with each block, between which packed keys and values go by: in this size it
 * stays in a core's share of a third-level cache, 2 to 4 MiB on machines of today. 1020 rows of E = 128 have 3.0 MiB at
 * 8192 keys, and are halved beyond 16384. */
#define LEVELS_BYTES_MOST ((int64_t)4 << 20)

/* Tasks per worker. A worker that is late by a whole task then costs at most a quarter of the run; more tasks would
 * cost more states to combine. */
#define TASKS_PER_WORKER 4

/* What is worth a worker: waking one takes about 4 microseconds, in which a core does some 2^18 multiply-adds (65 G/s,
 * half of a fast core's peak), or reads as many bytes of keys and values from its caches. */
#define WORKER_WORK ((double)(1 << 18))

/* Keys and values of one chunk where heads are together: in so many bytes, the pages of all heads stay in a
 * second-level TLB of 2048 entries while head after head reads its part of them. */
#define TOGETHER_BYTES ((int64_t)8 << 20)

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t round_up(int64_t x, int64_t multiple) { return ceil_div(x, multiple) * multiple; }

/* ---- Segments ---- */

static double visible_keys(const attree__problem *p, const attree__sequence *s, int64_t i)
{
    const attree__keys keys = attree__problem_visible(p, s, i);
    return keys.first < keys.end ? (double)(keys.end - keys.first) : 0.0;
}

/* Multiply-adds of a sequence, or bytes if these are more, as with few queries. Roughly: by Simpson's rule over its
 * queries. */
static double sequence_work(const attree__problem *p, const attree__sequence *s)
{
    if (s->q_len == 0)
        return 0.0;
    const double keys =
        (visible_keys(p, s, 0) + 4.0 * visible_keys(p, s, (s->q_len - 1) / 2) + visible_keys(p, s, s->q_len - 1)) / 6.0;
    const double each = (double)p->q_heads * (double)s->q_len * (double)(p->qk_width + p->v_width);
    const double bytes = (double)p->kv_heads * (double)(attree__dtype_row_bytes(p->k_type, p->qk_width) +
                                                        attree__dtype_row_bytes(p->v_type, p->v_width));
    return keys * (each > bytes ? each : bytes);
}

static attree_status make_segment(attree__segment *segment, const attree__problem *p, int64_t batch, int64_t batches)
{
    attree__segment *const s = segment;
    s->batch = batch;
    s->batches = batches;
    s->blocks = ceil_div(p->weights && !p->ragged_kv ? p->kv_len : s->sequence.kv_len, ATTREE__BLOCK);
    s->work = (double)batches * sequence_work(p, &s->sequence);
    int64_t groups, tasks; /* no product of those that are computed later is larger than this one */
    if (attree__mul_overflows(s->sequence.q_len, p->group, &s->group_rows) ||
        attree__mul_overflows(batches, p->kv_heads, &groups) ||
        attree__mul_overflows(s->group_rows, groups > 0 ? groups : 1, &tasks) ||
        attree__mul_overflows(tasks, s->blocks + 1, &tasks))
        return attree__fail(ATTREE_ERROR_OVERFLOW, "batch * q_heads * q_len * kv_len overflows 64 bits");
    return ATTREE_OK;
}

static attree_status make_segments(attree_plan *plan)
{
    const attree__problem *p = &plan->problem;
    const bool alike = !attree__problem_has_sequences(p);
    attree_status status = ATTREE_OK;
    for (int64_t n = 0; n < plan->segment_count && status == ATTREE_OK; n++) {
        attree__segment *const s = &plan->segments[n];
        *s = (attree__segment){.sequence = attree__problem_sequence(p, n)};
        status = make_segment(s, p, n, alike ? p->batch : 1);
    }
    return status;
}

static double total_work(const attree_plan *plan)
{
    double work = 0.0;
    for (int64_t n = 0; n < plan->segment_count; n++)
        work += plan->segments[n].work;
    return work;
}

static int32_t choose_workers(double work, int32_t threads)
{
    const double worth = work / WORKER_WORK;
    if (worth < 2.0)
        return 1;
    return worth < (double)threads ? (int32_t)worth : threads;
}

/* Blocks of a segment that are in the shard. */
static int64_t blocks_there(const attree__problem *p, const attree__segment *s)
{
    const int64_t first = p->shard.first / ATTREE__BLOCK, end = ceil_div(p->shard.end, ATTREE__BLOCK);
    const int64_t last = smaller(s->blocks, end);
    return last > first ? last - first : 1;
}

/* Bytes from token to token, for tensors whose heads lie beside each other for each token, as in [B, K, G, D]; 0 for
 * others. */
static int64_t token_bytes_of_heads(const attree_strides *s, int32_t type)
{
    return llabs(s->head) < llabs(s->token) ? llabs(s->token) * attree__dtype_bytes(type) : 0;
}

/* Blocks of a chunk that heads read in turn, a power of 2; or 0: let each head read all it needs first. Where heads lie
 * beside each other and few rows share what is read, reading is what takes time, and goes faster in turns: 0.6 to 0.9
 * of it on Zen 3. */
static int64_t together_blocks(const attree_plan *plan, const attree__segment *s)
{
    const attree__problem *p = &plan->problem;
    const int64_t k = token_bytes_of_heads(&p->k, p->k_type), v = token_bytes_of_heads(&p->v, p->v_type);
    if (p->kv_heads == 1 || s->group_rows > plan->kernels->decode_rows || k == 0 || v == 0)
        return 0;
    const int64_t most = TOGETHER_BYTES / ATTREE__BLOCK / 2 / (k > v ? k : v);
    int64_t blocks = 1;
    while (2 * blocks <= most)
        blocks *= 2;
    return blocks;
}

/* Cuts rows into about as many tiles as asked for, of equal size but for the rounding to whole register tiles. The
 * rounding may leave fewer tiles than asked for. */
static void cut_rows(attree__segment *s, int64_t tiles, int64_t register_rows)
{
    s->tile_rows = s->tiles = 0;
    if (tiles == 0)
        return;
    s->tile_rows = smaller(round_up(ceil_div(s->group_rows, tiles), register_rows), s->group_rows);
    s->tiles = ceil_div(s->group_rows, s->tile_rows);
}

/* Cuts a segment into about as many tasks as wanted, or more. Rows into tiles, as long as allowed while there are
 * enough of them; then keys into chunks, if rows alone do not give every worker enough to do, or if heads take turns.
 */
static void cut_segment(const attree_plan *plan, attree__segment *s, int64_t wanted)
{
    const int64_t groups = s->batches * plan->problem.kv_heads;
    const int64_t row_bytes =
        attree__tree_depth(s->blocks > 0 ? s->blocks : 1) * (plan->u_stride + 2) * (int64_t)sizeof(float);
    int64_t rows = TILE_ROWS_MOST;
    while (rows > TILE_ROWS_LEAST &&
           (rows * row_bytes > LEVELS_BYTES_MOST || ceil_div(s->group_rows, rows) * groups < wanted))
        rows /= 2;
    rows = rows < TILE_ROWS_LEAST ? TILE_ROWS_LEAST : rows;
    cut_rows(s, ceil_div(s->group_rows, rows), plan->kernels->bundle_rows);
    const int64_t together = together_blocks(plan, s);
    s->heads_together = together > 0;
    s->chunk_blocks = 1;
    while (s->chunk_blocks < s->blocks && s->chunk_blocks != together)
        s->chunk_blocks *= 2;
    const int64_t tiles = s->tiles * groups, there = blocks_there(&plan->problem, s);
    while (s->chunk_blocks > 1 && tiles < wanted && tiles * ceil_div(there, s->chunk_blocks) < wanted)
        s->chunk_blocks /= 2;
    s->chunks = s->blocks > 0 ? ceil_div(s->blocks, s->chunk_blocks) : 1;
}

/* Weights are cut by keys alone: a task has one block and all rows of a head, so that it can add them up. */
static void cut_weights(const attree_plan *plan, attree__segment *s)
{
    s->tile_rows = s->group_rows;
    s->tiles = s->chunk_blocks = 1;
    s->chunks = s->blocks;
    s->heads_together = together_blocks(plan, s) > 0;
}

static void cut_segments(attree_plan *plan)
{
    const double work = total_work(plan);
    const double wanted = plan->workers > 1 ? (double)plan->workers * TASKS_PER_WORKER : 1.0;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        attree__segment *const s = &plan->segments[n];
        if (plan->problem.weights)
            cut_weights(plan, s);
        else
            cut_segment(plan, s, work > 0.0 ? (int64_t)ceil(wanted * s->work / work) : 1);
    }
    if (plan->workers > 1)
        attree__order_segments(plan->segments, plan->segment_count, plan->ranks);
}

/* Numbers tiles, tasks and states. */
static attree_status number_segments(attree_plan *plan)
{
    plan->tiles = plan->tasks = plan->states = plan->tile_rows = 0;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        attree__segment *const s = &plan->segments[n];
        const int64_t tiles = s->batches * plan->problem.kv_heads * s->tiles, tasks = tiles * s->chunks;
        s->first_tile = plan->tiles;
        s->first_task = plan->tasks;
        s->first_state = plan->states;
        if (attree__add_overflows(plan->tasks, tasks, &plan->tasks))
            return attree__fail(ATTREE_ERROR_OVERFLOW, "batch * q_heads * q_len * kv_len overflows 64 bits");
        plan->tiles += tiles;
        plan->states += s->chunks > 1 && !plan->problem.weights ? tasks : 0;
        plan->tile_rows = s->tile_rows > plan->tile_rows ? s->tile_rows : plan->tile_rows;
    }
    if (plan->problem.weights)
        plan->tile_rows = smaller(plan->tile_rows, ATTREE__WEIGHT_ROWS);
    plan->phases = plan->states > 0 ? 2 : 1;
    plan->workers = plan->tasks < plan->workers ? (int32_t)(plan->tasks > 1 ? plan->tasks : 1) : plan->workers;
    return ATTREE_OK;
}

/* ---- Workspace ---- */

/* Appends count * bytes_each and a canary to *total, aligned; returns the offset, or 0 with *overflow set. */
static size_t reserve(size_t *total, int64_t count, int64_t bytes_each, bool *overflow)
{
    const size_t offset = *total;
    int64_t bytes, end;
    if (attree__mul_overflows(count, bytes_each, &bytes) ||
        attree__add_overflows(bytes, (int64_t)ALIGNMENT - 1 + ATTREE__CANARY_BYTES, &bytes) ||
        attree__add_overflows((int64_t)offset, bytes / ALIGNMENT * ALIGNMENT, &end) || (uint64_t)end > SIZE_MAX / 2) {
        *overflow = true;
        return 0;
    }
    *total = (size_t)end;
    return offset;
}

/* States of a tile that a worker keeps at once while it folds a chunk, so many blocks at a time. */
static int32_t most_levels(const attree_plan *plan, int32_t folds)
{
    int32_t most = 1; /* attree_finish needs one without any blocks */
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const attree__segment *s = &plan->segments[n];
        const int64_t blocks = smaller(s->blocks, s->chunk_blocks);
        const int32_t levels = blocks > 0 ? attree__tree_states(blocks, folds) : 1;
        most = levels > most ? levels : most;
    }
    return most;
}

/* Sums of weights that a worker keeps at once. */
static int32_t sum_levels(const attree_plan *plan)
{
    int64_t most = 1;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const int64_t leaves = ceil_div(plan->segments[n].sequence.q_len, ATTREE__WEIGHT_QUERIES);
        most = leaves > most ? leaves : most;
    }
    return attree__tree_depth(most);
}

static attree_status lay_out_workspace(attree_plan *plan)
{
    const attree__problem *p = &plan->problem;
    const int64_t number = (int64_t)sizeof(float);
    const int64_t rows = plan->tile_rows;
    bool overflow = false;
    const int64_t state_floats = (plan->u_stride + 2) * rows; /* fit: see WIDTH_MOST */
    const int64_t packed = round_up(rows, plan->kernels->bundle_rows) * p->qk_width + ATTREE__LANES;
    const int64_t kernel = rows > 0 ? plan->kernels->scratch_floats(p->qk_width, p->v_width, rows) : 0;
    size_t state_bytes = 0, scratch = 0, total = 0;
    reserve(&state_bytes, state_floats, number, &overflow);
    plan->states_bytes = state_bytes;
    plan->packed_offset = reserve(&scratch, packed, number, &overflow);
    const int64_t few = smaller(rows, plan->kernels->interleaved_rows(p->k_type, p->v_type));
    const int32_t folds = attree__plan_folds(plan, few);
    plan->ranges_offset =
        reserve(&scratch, rows > folds * few ? rows : folds * few, 2 * (int64_t)sizeof(int32_t), &overflow);
    const bool scaled = attree__dtype_has_row_scales(p->k_type) || attree__dtype_has_row_scales(p->v_type),
               gathers = attree__plan_gathers(plan);
    plan->scales_offset = reserve(&scratch, scaled ? (int64_t)2 * ATTREE__BLOCK : 0, number, &overflow);
    plan->gathered_k_offset =
        reserve(&scratch, gathers ? ATTREE__BLOCK : 0, attree__dtype_row_bytes(p->k_type, p->qk_width), &overflow);
    plan->gathered_v_offset =
        reserve(&scratch, gathers ? ATTREE__BLOCK : 0, attree__dtype_row_bytes(p->v_type, p->v_width), &overflow);
    plan->sinks_offset = reserve(&scratch, 2 * rows + plan->u_stride, number, &overflow);
    plan->levels = most_levels(plan, folds);
    plan->levels_offset = reserve(&scratch, plan->levels, (int64_t)state_bytes, &overflow);
    plan->kernel_offset = reserve(&scratch, kernel, number, &overflow);
    const int64_t sums = p->weights ? (int64_t)sum_levels(plan) * ATTREE__BLOCK * number : 0;
    plan->sums_offset = reserve(&scratch, p->group, sums, &overflow);
    plan->scratch_bytes = scratch;

    reserve(&total, 1, sizeof(attree__progress), &overflow);
    plan->states_offset = reserve(&total, plan->states, (int64_t)state_bytes, &overflow);
    plan->scratch_offset = reserve(&total, plan->workers, (int64_t)scratch, &overflow);
    plan->workspace_bytes = total;
    if (overflow)
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "the workspace overflows 64 bits; qk_width is %" PRId64 ", v_width %" PRId64, p->qk_width,
                            p->v_width);
    return ATTREE_OK;
}

/* Whether a block of keys is in several pages. */
static bool in_small_pages(const attree__problem *p) { return p->page_size > 0 && p->page_size < ATTREE__BLOCK; }

static attree_status fill_plan(attree_plan *plan, int32_t (*default_threads)(void))
{
    attree_status status = attree__dispatch(&plan->kernels, plan->problem.isa);
    if (status == ATTREE_OK)
        status = attree__dispatch_streams(&plan->streams, in_small_pages(&plan->problem));
    if (status == ATTREE_OK)
        status = make_segments(plan);
    if (status != ATTREE_OK)
        return status;
    const int32_t asked = plan->problem.threads;
    plan->workers = choose_workers(total_work(plan), asked > 0 ? asked : default_threads());
    plan->u_stride = round_up(plan->problem.v_width, ATTREE__LANES);
    cut_segments(plan);
    attree__problem_forget_sequences(&plan->problem);
    status = number_segments(plan);
    return status == ATTREE_OK ? lay_out_workspace(plan) : status;
}

/* What a plan's desc must satisfy beyond what its problem checks, and how many segments it takes. */
static attree_status check_plan(attree__problem *problem, const attree_desc *desc, int64_t *segments)
{
    const attree_status status = attree__problem_init(problem, desc);
    if (status != ATTREE_OK)
        return status;
    if (problem->qk_width > WIDTH_MOST || problem->v_width > WIDTH_MOST)
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "qk_width is %" PRId64 ", v_width %" PRId64 "; they must be at most 2^40",
                            problem->qk_width, problem->v_width);
    *segments = attree__problem_has_sequences(problem) ? problem->batch : 1;
    return ATTREE_OK;
}

/* Memory for two arrays of segments and their ranks, after `before` bytes. */
static attree_status allocate(void **memory, size_t before, int64_t segments)
{
    int64_t bytes;
    if (attree__mul_overflows(segments, (int64_t)(2 * sizeof(attree__segment) + ATTREE__RANKS * sizeof(attree__rank)),
                              &bytes) ||
        attree__add_overflows(bytes, (int64_t)before, &bytes))
        return attree__fail(ATTREE_ERROR_OVERFLOW, "batch is %" PRId64 "; a plan would overflow 64 bits", segments);
    *memory = malloc((size_t)bytes);
    if (!*memory)
        return attree__fail(ATTREE_ERROR_MEMORY, "no memory for a plan of %" PRId64 " bytes", bytes);
    return ATTREE_OK;
}

attree_status attree__plan_make(attree_plan **plan, const attree_desc *desc, int32_t (*default_threads)(void))
{
    attree__problem problem;
    int64_t segments = 0;
    void *memory = NULL;
    attree_status status = check_plan(&problem, desc, &segments);
    if (status == ATTREE_OK)
        status = allocate(&memory, sizeof(attree_plan), segments);
    if (status != ATTREE_OK)
        return status;
    attree_plan *const made = memory;
    attree__segment *const first = (attree__segment *)(made + 1);
    *made = (attree_plan){.problem = problem,
                          .segment_count = segments,
                          .segment_room = segments,
                          .segments = first,
                          .spare = first + segments,
                          .ranks = (attree__rank *)(void *)(first + 2 * segments)};
    status = fill_plan(made, default_threads);
    if (status == ATTREE_OK)
        *plan = made;
    else
        free(made);
    return status;
}

attree_status attree__plan_remake(attree_plan *plan, const attree_desc *desc, int32_t (*default_threads)(void))
{
    attree_plan made = *plan;
    void *grown = NULL;
    attree_status status = check_plan(&made.problem, desc, &made.segment_count);
    made.segments = plan->spare;
    made.spare = plan->segments;
    if (status == ATTREE_OK && made.segment_count > plan->segment_room) {
        status = allocate(&grown, 0, made.segment_count);
        if (status != ATTREE_OK)
            return status;
        made.grown = grown;
        made.segments = grown;
        made.spare = made.segments + made.segment_count;
        made.ranks = (attree__rank *)(void *)(made.spare + made.segment_count);
        made.segment_room = made.segment_count;
    }
    if (status == ATTREE_OK)
        status = fill_plan(&made, default_threads);
    if (status != ATTREE_OK) {
        free(grown);
        return status;
    }
    if (grown)
        free(plan->grown);
    *plan = made;
    return ATTREE_OK;
}

bool attree__plan_gathers(const attree_plan *plan) { return plan->problem.page_size % ATTREE__PIECE != 0; }

int32_t attree__plan_folds(const attree_plan *plan, int64_t rows)
{
    const attree__problem *p = &plan->problem;
    const bool gains = rows <= plan->kernels->interleaved_rows(p->k_type, p->v_type);
    return gains && !attree__plan_gathers(plan) ? plan->streams : 1; /* what is gathered is in cache already */
}
