/* What a plan sets aside: levels of the stack of states, regions of the workspace. */
#include "../src/dtype.h"
#include "../src/progress.h"
#include "../src/tree.h"
#include "plans.h"

enum {
    BLOCKS_MOST = K_MOST / ATTREE__BLOCK + 1, /* of a segment */
    ALIGNMENT = 64,
};

/* Rows of the last tile of a (batch, group). */
static int64_t last_rows(const attree__segment *g) { return g->group_rows - (g->tiles - 1) * g->tile_rows; }

/* ---- Levels ---- */

/* One walk of fold_node in task.c. */
typedef struct fold_walk {
    attree__keys visible;
    int64_t at_once; /* blocks that are folded together */
    int fails;       /* of folding at once: 0 never, 1 always, 2 now and then: a row's own ranges may hide a block */
    random_source random;
    int32_t levels; /* that were touched */
} fold_walk;

static void touch(fold_walk *w, int64_t levels) { w->levels = levels > w->levels ? (int32_t)levels : w->levels; }

static bool walk(fold_walk *w, int64_t first, int64_t count, int32_t level)
{
    if (first >= w->visible.end || first + count <= w->visible.first)
        return false;
    const bool fails = w->fails == 2 ? random_integer(&w->random, 0, 1) == 1 : w->fails == 1;
    if (count == 1) {
        touch(w, level + 1);
        return w->fails != 2 || !fails;
    }
    if (count <= w->at_once && first >= w->visible.first && first + count <= w->visible.end) {
        touch(w, level + count); /* also when it comes to nothing */
        if (!fails)
            return true;
    }
    const int64_t split = attree__tree_split(count);
    const bool left = walk(w, first, split, level);
    const bool right = walk(w, first + split, count - split, left ? level + 1 : level);
    return left || right;
}

/* The most levels that any walk over n blocks touches: all blocks are visible, and folding at once comes to nothing at
 * the worst moment. */
static int32_t worst[ATTREE__FOLDS + 1][BLOCKS_MOST + 1];

static void find_worst_levels(void)
{
    for (int64_t at_once = 1; at_once <= ATTREE__FOLDS; at_once++)
        for (int64_t n = 1; n <= BLOCKS_MOST; n++) {
            int32_t most = n <= at_once ? (int32_t)n : 1;
            if (n > 1) {
                const int64_t split = attree__tree_split(n);
                most = (int32_t)larger(most, worst[at_once][split]);
                most = (int32_t)larger(most, 1 + worst[at_once][n - split]);
            }
            worst[at_once][n] = most;
        }
}

static int32_t worst_levels(int64_t at_once, int64_t blocks)
{
    if (worst[1][1] == 0)
        find_worst_levels();
    return worst[at_once][blocks];
}

void check_levels(const subject *s)
{
    for (int64_t n = 0; n < s->plan->segment_count; n++) {
        const attree__segment *g = &s->plan->segments[n];
        if (g->tiles == 0 || g->blocks == 0)
            continue;
        const int64_t rows[] = {g->tile_rows, last_rows(g)};
        const int64_t nodes[] = {smaller(g->chunk_blocks, g->blocks), g->blocks - (g->chunks - 1) * g->chunk_blocks};
        for (int i = 0; i < 4; i++)
            claim(s, s->plan->levels >= worst_levels(attree__plan_folds(s->plan, rows[i / 2]), nodes[i % 2]),
                  "levels suffice for any fold");
    }
    claim(s, s->plan->levels >= 1, "attree_finish has one level");
}

/* The levels that all plans are held to are those of walks of fold_node, whatever is visible. */
void levels_are_those_of_walks(void **state)
{
    (void)state;
    random_source random = {1};
    for (int64_t at_once = 1; at_once <= ATTREE__FOLDS; at_once *= ATTREE__FOLDS)
        for (int64_t n = 1; n <= BLOCKS_MOST; n++) {
            int32_t most = 0;
            for (int i = 0; i < 12; i++) {
                fold_walk w = {{0, n}, at_once, i % 3, {(uint64_t)random_integer(&random, 1, INT64_MAX - 1)}, 0};
                if (i >= 3) {
                    w.visible.first = random_integer(&random, 0, n - 1);
                    w.visible.end = random_integer(&random, w.visible.first + 1, n);
                }
                walk(&w, 0, n, 0);
                most = w.levels > most ? w.levels : most;
            }
            assert_int_equal(most, worst_levels(at_once, n));
            assert_true(attree__tree_states(n, (int32_t)at_once) >= most);
        }
}

/* ---- Workspace ---- */

typedef struct region {
    size_t first;
    int64_t bytes; /* that its users need */
} region;

/* Regions within `room` bytes. */
static void check_apart(const subject *s, region *regions, int count, size_t room)
{
    for (int n = 0; n < count; n++) { /* by address */
        const region moved = regions[n];
        int at = n;
        claim(s, moved.first % ALIGNMENT == 0, "regions of the workspace are aligned");
        for (; at > 0 && regions[at - 1].first > moved.first; at--)
            regions[at] = regions[at - 1];
        regions[at] = moved;
    }
    size_t end = 0;
    for (int n = 0; n < count; n++) {
        if (regions[n].bytes == 0)
            continue;
        claim(s, regions[n].first >= end, "regions of the workspace are disjoint and large enough");
        end = regions[n].first + (size_t)regions[n].bytes;
    }
    claim(s, end <= room, "regions end within the workspace");
}

/* What one tile of so many rows needs of a worker's scratch: pack_queries of kernel.h, attree__block_init, add_sinks of
 * task.c, and what the kernels say. */
typedef struct need {
    int64_t packed, ranges, sinks, kernel;
} need;

static void add_need(need *most, const attree_plan *plan, int64_t rows)
{
    const attree__kernels *kernels = plan->kernels;
    const int64_t D = plan->problem.qk_width, E = plan->problem.v_width, number = sizeof(float);
    const int64_t groups = ceil_div(rows, kernels->bundle_rows);
    most->packed = larger(most->packed, (groups * kernels->bundle_rows * D + ATTREE__LANES) * number);
    most->ranges = larger(most->ranges, attree__plan_folds(plan, rows) * 2 * rows * (int64_t)sizeof(int32_t));
    most->sinks = larger(most->sinks, (2 * rows + plan->u_stride) * number);
    most->kernel = larger(most->kernel, kernels->scratch_floats(D, E, rows) * number);
}

static need needs_of(const attree_plan *plan)
{
    need most = {0};
    for (int64_t n = 0; n < plan->segment_count; n++)
        if (plan->segments[n].tiles > 0) {
            add_need(&most, plan, plan->segments[n].tile_rows);
            add_need(&most, plan, last_rows(&plan->segments[n]));
            add_need(&most, plan, 1); /* attree_weights */
        }
    return most;
}

static void check_scratch(const subject *s)
{
    const attree_plan *plan = s->plan;
    const attree__problem *p = &plan->problem;
    const need most = needs_of(plan);
    const bool gathers = attree__plan_gathers(plan);
    const int64_t k_row = attree__dtype_units(p->k_type, p->qk_width) * attree__dtype_bytes(p->k_type);
    const int64_t v_row = attree__dtype_units(p->v_type, p->v_width) * attree__dtype_bytes(p->v_type);
    const int64_t scales = p->v_type == ATTREE_I8 ? 2 : p->k_type == ATTREE_I8 ? 1 : 0; /* those of v come second */
    region regions[] = {
        {plan->packed_offset, most.packed},
        {plan->ranges_offset, most.ranges},
        {plan->scales_offset, scales * ATTREE__BLOCK * (int64_t)sizeof(float)},
        {plan->gathered_k_offset, gathers ? ATTREE__BLOCK * k_row : 0},
        {plan->gathered_v_offset, gathers ? ATTREE__BLOCK * v_row : 0},
        {plan->sinks_offset, most.sinks},
        {plan->levels_offset, plan->levels * (int64_t)plan->states_bytes},
        {plan->kernel_offset, most.kernel},
    };
    claim(s, gathers == (p->page_size % ATTREE__PIECE != 0), "rows of odd pages are gathered");
    check_apart(s, regions, sizeof regions / sizeof *regions, plan->scratch_bytes);
}

void check_workspace(const subject *s)
{
    const attree_plan *plan = s->plan;
    const int64_t numbers = plan->tile_rows * (plan->u_stride + 2); /* m and l follow u: see states_at */
    region regions[] = {
        {0, sizeof(attree__progress)},
        {plan->states_offset, plan->states * (int64_t)plan->states_bytes},
        {plan->scratch_offset, plan->workers * (int64_t)plan->scratch_bytes},
    };
    claim(s, plan->u_stride >= s->c->desc.v_width && plan->u_stride % ATTREE__LANES == 0,
          "a row of u is padded to whole vectors");
    claim(s, plan->states_bytes % ALIGNMENT == 0 && plan->states_bytes >= (size_t)numbers * sizeof(float),
          "a state is aligned, and has its numbers");
    claim(s, plan->scratch_bytes % ALIGNMENT == 0, "a worker's scratch is aligned");
    claim(s, plan->workspace_bytes % ALIGNMENT == 0 && plan->workspace_bytes == attree_plan_workspace(plan),
          "the workspace can be asked for with aligned_alloc");
    check_apart(s, regions, sizeof regions / sizeof *regions, plan->workspace_bytes);
    check_scratch(s);
}
