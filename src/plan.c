/* Problem to plan. See plan.h. */
#include "plan.h"

#include <inttypes.h>
#include <stdio.h>

#include "compiler.h"
#include "dispatch.h"
#include "error.h"
#include "tree.h"

/* Workspace alignment: a cache line, and the widest vector. */
#define ALIGNMENT 64

/* Rows of a tile. At the upper end packing a key block costs half a percent of the arithmetic on it; at the lower end a
 * few. */
#define TILE_ROWS_MOST 1020
#define TILE_ROWS_LEAST 96

/* Widths up to this keep all products that make up a worker's scratch within 64 bits. Nobody has the memory for more.
 */
#define WIDTH_MOST ((int64_t)1 << 40)

/* A worker's stack of states should stay in the second- or third-level cache. */
#define LEVELS_BYTES_MOST ((int64_t)4 << 20)

/* Tasks per worker for balance; and how long, in multiply-adds, a task must be to be worth a worker: waking one costs a
 * few microseconds, in which a core does about 2^18. */
#define TASKS_PER_WORKER 4
#define WORKER_WORK ((double)(1 << 18))

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t round_up(int64_t x, int64_t multiple) { return ceil_div(x, multiple) * multiple; }

/* Multiply-adds of the whole problem, roughly. */
static double total_work(const attree__problem *p)
{
    const double pairs = (double)p->batch * (double)p->q_heads * (double)p->q_len * (double)p->kv_len;
    return pairs * (double)(p->qk_width + p->v_width) * (p->causal ? 0.5 : 1.0);
}

static int32_t choose_workers(const attree__problem *p, int32_t threads)
{
    const double worth = total_work(p) / WORKER_WORK;
    if (worth < 2.0)
        return 1;
    return worth < (double)threads ? (int32_t)worth : threads;
}

/* Cuts rows into tiles, as long as allowed while there are enough of them; then, if rows alone do not give every worker
 * enough to do, keys into chunks. */
static void choose_tasks(attree_plan *plan)
{
    const attree__problem *p = &plan->problem;
    const int64_t wanted = plan->workers > 1 ? (int64_t)plan->workers * TASKS_PER_WORKER : 1;
    const int64_t groups = p->batch * p->kv_heads; /* fits: B * G * K... spans were measured; see plan_tasks */
    const int64_t row_bytes = plan->levels * (plan->u_stride + 2) * (int64_t)sizeof(float);

    int64_t rows = TILE_ROWS_MOST;
    while (rows > TILE_ROWS_LEAST &&
           (rows * row_bytes > LEVELS_BYTES_MOST || ceil_div(plan->group_rows, rows) * groups < wanted))
        rows /= 2;
    rows = rows < TILE_ROWS_LEAST ? TILE_ROWS_LEAST : rows;
    plan->tiles = ceil_div(plan->group_rows, rows);
    if (plan->tiles > 0) { /* of equal size, but for the rounding to whole register tiles */
        const int64_t equal = round_up(ceil_div(plan->group_rows, plan->tiles), plan->kernels->group_rows);
        plan->tile_rows = smaller(equal, plan->group_rows);
    }

    plan->chunk_blocks = 1;
    while (plan->chunk_blocks < plan->blocks)
        plan->chunk_blocks *= 2;
    const int64_t tiles = plan->tiles * groups;
    while (plan->chunk_blocks > 1 && tiles < wanted && tiles * ceil_div(plan->blocks, plan->chunk_blocks) < wanted)
        plan->chunk_blocks /= 2;
    plan->chunks = plan->blocks > 0 ? ceil_div(plan->blocks, plan->chunk_blocks) : 1;
}

/* Appends count * bytes_each to *total, aligned; returns the offset, or 0 with *overflow set. */
static size_t reserve(size_t *total, int64_t count, int64_t bytes_each, bool *overflow)
{
    const size_t offset = *total;
    int64_t bytes, end;
    if (attree__mul_overflows(count, bytes_each, &bytes) ||
        attree__add_overflows(bytes, (int64_t)ALIGNMENT - 1, &bytes) ||
        attree__add_overflows((int64_t)offset, bytes / ALIGNMENT * ALIGNMENT, &end) || (uint64_t)end > SIZE_MAX / 2) {
        *overflow = true;
        return 0;
    }
    *total = (size_t)end;
    return offset;
}

static attree_status lay_out_workspace(attree_plan *plan)
{
    const attree__problem *p = &plan->problem;
    const int64_t number = (int64_t)sizeof(float);
    const int64_t rows = plan->tile_rows;
    bool overflow = false;
    const int64_t state_floats = (plan->u_stride + 2) * rows; /* fit: see WIDTH_MOST */
    const int64_t packed = round_up(rows, plan->kernels->group_rows) * p->qk_width + ATTREE__LANES;
    const int64_t kernel = plan->kernels->scratch_floats(p->qk_width, p->v_width, rows);
    size_t state_bytes = 0, scratch = 0, total = 0;
    reserve(&state_bytes, state_floats, number, &overflow);
    plan->states_bytes = state_bytes;
    plan->packed_offset = reserve(&scratch, packed, number, &overflow);
    plan->ranges_offset = reserve(&scratch, rows, 2 * (int64_t)sizeof(int32_t), &overflow);
    plan->levels_offset = reserve(&scratch, plan->levels, (int64_t)state_bytes, &overflow);
    plan->kernel_offset = reserve(&scratch, kernel, number, &overflow);
    plan->scratch_bytes = scratch;

    reserve(&total, 1, sizeof(attree__shared), &overflow);
    plan->states_offset = reserve(&total, plan->chunks > 1 ? plan->tasks : 0, (int64_t)state_bytes, &overflow);
    plan->scratch_offset = reserve(&total, plan->workers, (int64_t)scratch, &overflow);
    plan->workspace_bytes = total;
    if (overflow)
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "the workspace overflows 64 bits; qk_width is %" PRId64 ", v_width %" PRId64, p->qk_width,
                            p->v_width);
    return ATTREE_OK;
}

static attree_status count_tasks(attree_plan *plan)
{
    const attree__problem *p = &plan->problem;
    int64_t rows, groups, tasks;
    if (attree__mul_overflows(p->q_len, p->group, &rows) || attree__mul_overflows(p->batch, p->kv_heads, &groups) ||
        attree__mul_overflows(rows, groups > 0 ? groups : 1, &tasks) ||
        attree__mul_overflows(tasks, plan->blocks + 1, &tasks))
        return attree__fail(ATTREE_ERROR_OVERFLOW, "batch * q_heads * q_len * kv_len overflows 64 bits");
    plan->group_rows = rows;
    choose_tasks(plan);
    plan->tasks = groups * plan->tiles * plan->chunks;
    plan->workers = plan->tasks < plan->workers ? (int32_t)(plan->tasks > 1 ? plan->tasks : 1) : plan->workers;
    return ATTREE_OK;
}

attree_status attree__plan_init(attree_plan *plan, const attree_desc *desc, int32_t (*default_threads)(void))
{
    attree_status status = attree__problem_init(&plan->problem, desc);
    if (status != ATTREE_OK)
        return status;
    if (plan->problem.qk_width > WIDTH_MOST || plan->problem.v_width > WIDTH_MOST)
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "qk_width is %" PRId64 ", v_width %" PRId64 "; they must be at most 2^40",
                            plan->problem.qk_width, plan->problem.v_width);
    if (desc->threads < 0 || desc->threads > 65536)
        return attree__fail(ATTREE_ERROR_VALUE, "threads is %" PRId32 "; it must be 0 to 65536", desc->threads);
    status = attree__dispatch(&plan->kernels, desc->isa);
    if (status != ATTREE_OK)
        return status;
    const int32_t threads = desc->threads > 0 ? desc->threads : default_threads();
    plan->workers = choose_workers(&plan->problem, threads);
    plan->blocks = ceil_div(plan->problem.kv_len, ATTREE__BLOCK);
    plan->levels = attree__tree_depth(plan->blocks > 0 ? plan->blocks : 1);
    plan->u_stride = round_up(plan->problem.v_width, ATTREE__LANES);
    status = count_tasks(plan);
    return status == ATTREE_OK ? lay_out_workspace(plan) : status;
}

size_t attree_plan_workspace(const attree_plan *plan) { return plan ? plan->workspace_bytes : 0; }

int32_t attree_plan_phases(const attree_plan *plan) { return plan ? 1 + (plan->chunks > 1) : 0; }

attree_status attree_plan_describe(const attree_plan *plan, char *text, size_t capacity)
{
    if (!plan || !text)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", plan ? "text" : "plan");
    if (capacity == 0)
        return attree__fail(ATTREE_ERROR_VALUE, "capacity is 0; it must have room for the terminating 0");
    (void)snprintf(text, capacity,
                   "kernel %s, %" PRId32 " workers, %" PRId64 " tasks = %" PRId64 " groups x %" PRId64
                   " tiles of %" PRId64 " rows x %" PRId64 " chunks of %" PRId64 " blocks, workspace %zu bytes",
                   plan->kernels->name, plan->workers, plan->tasks, plan->problem.batch * plan->problem.kv_heads,
                   plan->tiles, plan->tile_rows, plan->chunks, plan->chunk_blocks, plan->workspace_bytes);
    return ATTREE_OK;
}

attree__tile attree__plan_tile(const attree_plan *plan, int64_t n)
{
    const attree__problem *p = &plan->problem;
    const int64_t groups = p->batch * p->kv_heads;
    const int64_t tile = plan->tiles - 1 - n / groups, group = n % groups;
    const int64_t row = tile * plan->tile_rows;
    return (attree__tile){group / p->kv_heads, group % p->kv_heads, row,
                          smaller(plan->tile_rows, plan->group_rows - row)};
}

attree__keys attree__plan_blocks(const attree_plan *plan, const attree__tile *tile, int64_t chunk)
{
    const attree__problem *p = &plan->problem;
    const attree__keys low = attree__problem_visible(p, tile->row / p->group);
    const attree__keys high = attree__problem_visible(p, (tile->row + tile->rows - 1) / p->group);
    int64_t first = (low.first < low.end ? low.first : 0) / ATTREE__BLOCK, end = ceil_div(high.end, ATTREE__BLOCK);
    if (first < chunk * plan->chunk_blocks)
        first = chunk * plan->chunk_blocks;
    end = smaller(end, (chunk + 1) * plan->chunk_blocks);
    return first < end ? (attree__keys){first, end} : (attree__keys){0, 0};
}
