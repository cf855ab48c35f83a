/* What a plan is, for a million of them. Nothing is computed.
 *
 * Usage: test_plan [SEED [NUMBER]]
 *
 * Each problem is made of the seed and its number: NUMBER checks that one alone. What a plan must be is written here
 * anew, from plan.h and from what task.c, block.c and the kernels do, without the plan's own formulas. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "plans.h"

enum {
    PLANS = 1000000,
    TASKS_MOST = 200, /* of plans whose tasks are looked at one by one */
    SAMPLES = 6,      /* tasks of others that are looked at */
    FRESH_EVERY = 8,  /* plans of which one is made once more, without an update */
};

static uint64_t seed = 1;
static int64_t only = -1;

/* Used when a problem leaves the number of threads open. */
static int32_t open_threads(void) { return 3; }

static int32_t threads_asked(const plan_case *c) { return c->desc.threads > 0 ? c->desc.threads : open_threads(); }

/* Tiles of all heads and entries of a segment. */
static int64_t tiles_of(const subject *s, const attree__segment *g)
{
    return g->batches * s->plan->problem.kv_heads * g->tiles;
}

/* ---- Entries and keys, from what attree.h says ---- */

typedef struct entry {
    int64_t q_len, kv_len, q_offset;
} entry;

static entry entry_of(const attree_desc *d, int64_t b)
{
    entry e = {d->q_len, d->kv_len, 0};
    if (d->q_starts)
        e.q_len = d->q_starts[b + 1] - d->q_starts[b];
    if (d->kv_starts)
        e.kv_len = d->kv_starts[b + 1] - d->kv_starts[b];
    if (d->kv_lens)
        e.kv_len = d->kv_lens[b];
    e.q_offset = d->q_offsets ? d->q_offsets[b] : d->flags & ATTREE_USE_Q_OFFSET ? d->q_offset : e.kv_len - e.q_len;
    return e;
}

/* The keys that query i sees. */
static attree__keys keys_of(const attree_desc *d, const entry *e, int64_t i)
{
    const int64_t position = i + e->q_offset;
    attree__keys keys = {0, e->kv_len};
    if (d->shard_begin || d->shard_end)
        keys = (attree__keys){d->shard_begin, smaller(d->shard_end, e->kv_len)};
    if (d->flags & ATTREE_CAUSAL)
        keys.end = smaller(keys.end, position + 1);
    if (d->flags & ATTREE_USE_WINDOW && d->window_left >= 0)
        keys.first = larger(keys.first, position - d->window_left);
    if (d->flags & ATTREE_USE_WINDOW && d->window_right >= 0)
        keys.end = smaller(keys.end, position + d->window_right + 1);
    return keys;
}

/* ---- Segments: each by itself ---- */

static void check_entries(const subject *s, const attree__segment *g)
{
    const attree_desc *d = &s->c->desc;
    const entry e = entry_of(d, g->batch);
    claim(s, g->batch >= 0 && g->batches >= 0 && g->batch + g->batches <= d->batch, "a segment has entries that exist");
    claim(s,
          g->sequence.q_len == e.q_len && g->sequence.kv_len == e.kv_len &&
              (g->sequence.q_offset == e.q_offset || e.q_len == 0 || e.kv_len == 0),
          "a segment has its entries' lengths");
    claim(s, g->group_rows == e.q_len * (d->q_heads / d->kv_heads), "a group has the rows of its queries and heads");
    claim(s, g->blocks == ceil_div(e.kv_len, ATTREE__BLOCK), "a segment has the blocks of its keys");
}

static void check_tiles(const subject *s, const attree__segment *g)
{
    claim(s, (g->tiles == 0) == (g->group_rows == 0) && g->tiles >= 0, "there are tiles when there are rows");
    if (g->tiles == 0)
        return;
    claim(s, g->tile_rows >= 1 && g->tile_rows <= s->plan->tile_rows, "a tile is not longer than the plan's longest");
    claim(s, (g->tiles - 1) * g->tile_rows < g->group_rows, "no tile is empty");
    claim(s, g->tiles * g->tile_rows >= g->group_rows, "tiles cover all rows");
    claim(s, g->tiles == 1 || g->tile_rows % s->plan->kernels->bundle_rows == 0,
          "tiles but the last are whole register tiles");
}

static void check_chunks(const subject *s, const attree__segment *g)
{
    claim(s, g->chunk_blocks >= 1 && (g->chunk_blocks & (g->chunk_blocks - 1)) == 0,
          "a chunk is a node of the merge tree");
    claim(s, g->chunks >= 1 && (g->blocks == 0 || (g->chunks - 1) * g->chunk_blocks < g->blocks), "no chunk is empty");
    claim(s, g->blocks > 0 || g->chunks == 1, "without keys there is one chunk");
    claim(s, g->chunks * g->chunk_blocks >= g->blocks, "chunks cover all blocks");
}

/* Bytes from token to token where heads lie beside each other; 0: they do not. */
static int64_t bytes_beside(const attree_strides *strides, int32_t type)
{
    return llabs(strides->head) < llabs(strides->token) ? llabs(strides->token) * attree__dtype_bytes(type) : 0;
}

/* A chunk of the keys and values of all heads should fit in 8 MiB, where heads are read in turns. */
static void check_turns(const subject *s, const attree__segment *g)
{
    const attree__problem *p = &s->plan->problem;
    const int64_t k = bytes_beside(&p->k, p->k_type), v = bytes_beside(&p->v, p->v_type);
    const bool gains = p->kv_heads > 1 && k > 0 && v > 0 && g->group_rows <= 2 * (int64_t)s->c->kernels->bundle_rows;
    claim(s, g->heads_together == gains,
          "heads are read in turns where they lie beside each other and few rows share them");
    claim(s, !gains || g->chunk_blocks == 1 || g->chunk_blocks * ATTREE__BLOCK * 2 * larger(k, v) <= (int64_t)8 << 20,
          "what heads read in turns stays in reach");
}

/* ---- Segments: all of them ---- */

static void check_numbers(const subject *s)
{
    const attree_plan *plan = s->plan;
    int64_t tiles = 0, tasks = 0, states = 0;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const attree__segment *g = &plan->segments[n];
        claim(s, g->first_tile == tiles && g->first_task == tasks && (g->chunks == 1 || g->first_state == states),
              "segments' tiles, tasks and states follow each other");
        tiles += tiles_of(s, g);
        tasks += tiles_of(s, g) * g->chunks;
        states += g->chunks > 1 ? tiles_of(s, g) * g->chunks : 0;
    }
    claim(s, plan->tiles == tiles && plan->tasks == tasks && plan->states == states,
          "a plan has its segments' tiles, tasks and states");
    claim(s, plan->phases == (states > 0 ? 2 : 1) && attree_plan_phases(plan) == plan->phases,
          "there is a second phase when there are states");
    claim(s, plan->workers >= 1 && plan->workers <= threads_asked(s->c) && plan->workers <= larger(tasks, 1),
          "there are no more workers than threads and tasks, and one at least");
}

/* Each entry is in one segment. */
static void check_batch(const subject *s)
{
    uint64_t found = 0;
    int64_t count = 0;
    for (int64_t n = 0; n < s->plan->segment_count; n++) {
        const attree__segment *g = &s->plan->segments[n];
        count += g->batches;
        if (g->batches > 0)
            found |= (~UINT64_C(0) >> (64 - g->batches)) << g->batch;
    }
    const int64_t batch = s->c->desc.batch;
    claim(s, count == batch && (batch == 0 || found == ~UINT64_C(0) >> (64 - batch)), "each entry is in one segment");
}

static double task_work(const subject *s, const attree__segment *g)
{
    const int64_t tasks = tiles_of(s, g) * g->chunks;
    return tasks > 0 ? g->work / (double)tasks : 0.0;
}

static void check_order(const subject *s)
{
    const attree_plan *plan = s->plan;
    for (int64_t n = 1; n < plan->segment_count && plan->workers > 1; n++)
        claim(s, task_work(s, &plan->segments[n]) <= task_work(s, &plan->segments[n - 1]) * 1.000001,
              "several workers take the longest tasks first");
}

static void check_segments(const subject *s)
{
    for (int64_t n = 0; n < s->plan->segment_count; n++) {
        const attree__segment *g = &s->plan->segments[n];
        if (s->c->desc.batch == 0)
            continue;
        check_entries(s, g);
        check_tiles(s, g);
        check_chunks(s, g);
        check_turns(s, g);
    }
    check_numbers(s);
    check_batch(s);
    check_order(s);
}

/* ---- Tasks ---- */

/* Counts the tiles and chunks of a segment, without their order. */
static int64_t cell_of(const subject *s, const attree__tile *t, int64_t chunk)
{
    const attree__segment *g = t->segment;
    const int64_t group = (t->batch - g->batch) * s->plan->problem.kv_heads + t->group;
    return g->first_task + (group * g->tiles + t->row / g->tile_rows) * g->chunks + chunk;
}

static void check_tile(const subject *s, const attree__tile *t)
{
    const attree__segment *g = t->segment;
    claim(s, t->batch >= g->batch && t->batch < g->batch + g->batches, "a tile is of an entry of its segment");
    claim(s, t->group >= 0 && t->group < s->plan->problem.kv_heads, "a tile is of a key/value head that exists");
    claim(s, t->row >= 0 && t->row < g->group_rows && t->row % g->tile_rows == 0, "a tile starts where one may");
    claim(s, t->rows >= 1 && t->rows == smaller(g->tile_rows, g->group_rows - t->row),
          "a tile ends where the next starts");
    claim(s, g->chunks == 1 || (t->state >= 0 && t->state + g->chunks <= s->plan->states),
          "a tile's states are states of the plan");
}

/* A row's visible blocks, those of this chunk, are the task's. */
static void check_row(const subject *s, const attree__tile *t, const attree__keys *chunk, const attree__keys *blocks)
{
    const attree_desc *d = &s->c->desc;
    const entry e = entry_of(d, t->batch);
    const attree__keys keys = keys_of(d, &e, t->row / (d->q_heads / d->kv_heads));
    const int64_t first = larger(keys.first / ATTREE__BLOCK, chunk->first);
    const int64_t end = smaller(ceil_div(keys.end, ATTREE__BLOCK), chunk->end);
    claim(s, keys.first >= keys.end || first >= end || (blocks->first <= first && end <= blocks->end),
          "a task has all blocks of its chunk that a row sees");
}

static void check_blocks(const subject *s, const attree__tile *t, int64_t number)
{
    const attree__segment *g = t->segment;
    const attree__keys chunk = {number * g->chunk_blocks, smaller((number + 1) * g->chunk_blocks, g->blocks)};
    const attree__keys blocks = attree__plan_blocks(s->plan, t, number);
    claim(s, number >= 0 && number < g->chunks, "a task's chunk exists");
    claim(s, blocks.first == blocks.end || (blocks.first >= chunk.first && blocks.end <= chunk.end),
          "a task has blocks of its chunk only");
    const int64_t step = t->rows <= 4 ? 1 : (t->rows - 1) / 2;
    attree__tile row = *t;
    for (int64_t r = 0; r < t->rows; r += step) {
        row.row = t->row + r;
        check_row(s, &row, &chunk, &blocks);
    }
    row.row = t->row + t->rows - 1;
    check_row(s, &row, &chunk, &blocks);
}

/* Tiles in order: those that see most keys, the last of each group, come first. Notes each one's state. */
static void check_each_tile(const subject *s, int64_t *state_of)
{
    bool met[TASKS_MOST] = {false};
    int64_t row = 0;
    const attree__segment *segment = NULL;
    for (int64_t n = 0; n < s->plan->tiles; n++) {
        const attree__tile t = attree__plan_tile(s->plan, n);
        check_tile(s, &t);
        claim(s, t.segment != segment || t.row <= row, "tiles that see most keys come first");
        segment = t.segment;
        row = t.row;
        const int64_t cell = cell_of(s, &t, 0);
        claim(s, cell < s->plan->tasks && !met[cell], "no tile comes twice");
        met[cell] = true;
        state_of[cell] = t.state;
    }
}

static void check_each_task(const subject *s)
{
    int64_t state_of[TASKS_MOST];
    bool met[TASKS_MOST] = {false}, left[TASKS_MOST] = {false};
    attree__tile before = {.segment = NULL};
    int64_t chunk, chunk_before = 0;
    check_each_tile(s, state_of);
    for (int64_t n = 0; n < s->plan->tasks; n++, chunk_before = chunk) {
        const attree__tile t = attree__plan_task(s->plan, n, &chunk);
        const attree__segment *g = t.segment;
        check_tile(s, &t);
        check_blocks(s, &t, chunk);
        const int64_t cell = cell_of(s, &t, chunk);
        claim(s, cell < s->plan->tasks && !met[cell], "no task comes twice");
        met[cell] = true;
        claim(s, t.state == state_of[cell_of(s, &t, 0)], "both phases know a tile's states by the same numbers");
        if (before.segment == g)
            claim(s,
                  g->heads_together ? chunk >= chunk_before : chunk == 0 || cell_of(s, &before, 0) == cell_of(s, &t, 0),
                  "tasks of one chunk follow each other where heads take turns, else those of one tile");
        before = t;
        if (g->chunks == 1)
            continue;
        claim(s, !left[t.state + chunk], "no two tasks leave the same state");
        left[t.state + chunk] = true;
    }
}

/* Some tasks of a plan with many. A tile's states are where no other tile's are: its number times its chunks. */
static void check_some_tasks(const subject *s)
{
    random_source random = {s->c->seed + (uint64_t)s->plan->tasks};
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t n = i == 0 ? 0 : i == 1 ? s->plan->tasks - 1 : random_integer(&random, 0, s->plan->tasks - 1);
        int64_t chunk;
        const attree__tile t = attree__plan_task(s->plan, n, &chunk);
        const attree__segment *g = t.segment;
        check_tile(s, &t);
        check_blocks(s, &t, chunk);
        if (g->chunks == 1)
            continue;
        claim(s, t.state >= g->first_state && (t.state - g->first_state) % g->chunks == 0, "tiles' states lie apart");
        const attree__tile again = attree__plan_tile(s->plan, g->first_tile + (t.state - g->first_state) / g->chunks);
        claim(s, cell_of(s, &t, 0) == cell_of(s, &again, 0) && t.state == again.state,
              "both phases know a tile's states by the same numbers");
    }
}

static void check_tasks(const subject *s)
{
    if (s->plan->tasks > TASKS_MOST)
        check_some_tasks(s);
    else
        check_each_task(s);
}

/* ---- Updates ---- */

static bool same_segments(const attree__segment *a, const attree__segment *b)
{
    return a->batch == b->batch && a->batches == b->batches && a->blocks == b->blocks &&
           memcmp(&a->sequence, &b->sequence, sizeof a->sequence) == 0 && a->group_rows == b->group_rows &&
           a->tile_rows == b->tile_rows && a->tiles == b->tiles && a->chunk_blocks == b->chunk_blocks &&
           a->chunks == b->chunks && a->heads_together == b->heads_together && a->first_tile == b->first_tile &&
           a->first_task == b->first_task && a->first_state == b->first_state && a->work == b->work;
}

static bool same_plans(const attree_plan *a, const attree_plan *b)
{
    bool same = a->kernels == b->kernels && a->workers == b->workers && a->phases == b->phases &&
                a->levels == b->levels && a->tile_rows == b->tile_rows && a->tiles == b->tiles &&
                a->tasks == b->tasks && a->states == b->states && a->u_stride == b->u_stride &&
                a->segment_count == b->segment_count && a->states_offset == b->states_offset &&
                a->states_bytes == b->states_bytes && a->scratch_offset == b->scratch_offset &&
                a->scratch_bytes == b->scratch_bytes && a->packed_offset == b->packed_offset &&
                a->ranges_offset == b->ranges_offset && a->scales_offset == b->scales_offset &&
                a->gathered_k_offset == b->gathered_k_offset && a->gathered_v_offset == b->gathered_v_offset &&
                a->sinks_offset == b->sinks_offset && a->levels_offset == b->levels_offset &&
                a->kernel_offset == b->kernel_offset && a->workspace_bytes == b->workspace_bytes;
    for (int64_t n = 0; n < a->segment_count && same; n++)
        same = same_segments(&a->segments[n], &b->segments[n]);
    return same;
}

static void check_fresh(const subject *s)
{
    attree_plan *fresh;
    assert_int_equal(attree__plan_make(&fresh, &s->c->desc, open_threads), ATTREE_OK);
    const bool same = same_plans(s->plan, fresh);
    attree_plan_destroy(fresh);
    claim(s, same, "an update makes the plan that is made at once");
}

/* ---- Tests ---- */

/* Plans of each kind: the test says little when one is rare. */
enum { WITH_TASKS_LISTED, SHARED, SPLIT, UNLIKE, IN_TURNS, IN_STEP, GATHERED, UNEVEN, KINDS };
static const char *const kind_names[KINDS] = {"with each task looked at", "of several workers",      "with keys split",
                                              "of unlike entries",        "with heads in turns",     "folded in step",
                                              "of gathered rows",         "with a shorter last tile"};

static void count_kinds(const attree_plan *plan, int64_t *counts)
{
    bool uneven = false, in_turns = false;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const attree__segment *g = &plan->segments[n];
        uneven = uneven || (g->tiles > 0 && g->group_rows % g->tile_rows != 0);
        in_turns = in_turns || (g->heads_together && g->chunks > 1);
    }
    const bool is[KINDS] = {
        [WITH_TASKS_LISTED] = plan->tasks > 0 && plan->tasks <= TASKS_MOST,
        [SHARED] = plan->workers > 1,
        [SPLIT] = plan->states > 0,
        [UNLIKE] = plan->segment_count > 1,
        [IN_TURNS] = in_turns,
        [IN_STEP] = attree__plan_folds(plan, plan->tile_rows) > 1 && plan->levels > 1,
        [GATHERED] = attree__plan_gathers(plan),
        [UNEVEN] = uneven,
    };
    for (int kind = 0; kind < KINDS; kind++)
        counts[kind] += is[kind];
}

static void check(attree_plan *plan, int64_t number)
{
    static plan_case c; /* large */
    plan_case_make(&c, seed, number);
    const subject s = {&c, plan};
    if (attree__plan_remake(plan, &c.desc, open_threads) != ATTREE_OK)
        claim(&s, false, attree_last_error());
    check_segments(&s);
    check_tasks(&s);
    check_levels(&s);
    check_workspace(&s);
    if (number % FRESH_EVERY == 0)
        check_fresh(&s);
}

static attree_plan *some_plan(void)
{
    const attree_desc one = make_desc(1, 1, 1, 1, 1, 1, 1);
    attree_plan *plan;
    plan_case_use(NULL);
    assert_int_equal(attree_plan_create(&plan, &one), ATTREE_OK);
    return plan;
}

static void a_million_plans_are_right(void **state)
{
    (void)state;
    attree_plan *const plan = some_plan();
    int64_t checked = 0, counts[KINDS] = {0};
    if (only >= 0)
        check(plan, only);
    for (int64_t n = 0; n < PLANS && only < 0; n++) {
        if (thinned_out())
            continue;
        check(plan, n);
        count_kinds(plan, counts);
        checked++;
    }
    attree_plan_destroy(plan);
    if (only >= 0)
        return;
    print_message("%" PRId64 " plans of seed %" PRIu64 "\n", checked, seed);
    for (int kind = 0; kind < KINDS; kind++) {
        print_message("  %7" PRId64 " %s\n", counts[kind], kind_names[kind]);
        assert_true(counts[kind] >= checked / 100);
    }
}

/* Decode of Llama 3 8B with its cache as [B, K, G, D]: heads take turns, and sequences are taken longest first. */
static void a_decode_step_takes_turns_and_the_longest_first(void **state)
{
    (void)state;
    enum { SEQUENCES = 8, GROUPS = 8, WIDTH = 128, KEYS = 20000 };
    attree_desc d = make_desc(SEQUENCES, 32, GROUPS, 1, KEYS, WIDTH, WIDTH);
    d.k = d.v = (attree_strides){(int64_t)KEYS * GROUPS * WIDTH, WIDTH, GROUPS * WIDTH, 1};
    d.kv_lens = (int64_t[SEQUENCES]){100, 20000, 300, 5000, 256, 7000, 0, 257};
    d.threads = 4;
    attree_plan *plan;
    plan_case_use(NULL);
    assert_int_equal(attree_plan_create(&plan, &d), ATTREE_OK);
    assert_int_equal(plan->workers, 4);
    for (int64_t n = 0; n < SEQUENCES; n++)
        assert_true(plan->segments[n].heads_together);
    assert_int_equal(plan->segments[SEQUENCES - 1].batch, 6);
    assert_true(plan->segments[0].sequence.kv_len >= 5000);
    attree_plan_destroy(plan);
}

/* Products that make up the scratch fit 64 bits because no width is larger. */
static void widths_beyond_2_to_the_40_are_refused(void **state)
{
    (void)state;
    const int64_t most = (int64_t)1 << 40;
    const struct {
        int64_t qk_width, v_width;
        attree_status status;
    } cases[] = {
        {most, most, ATTREE_OK},
        {most + 1, 1, ATTREE_ERROR_OVERFLOW},
        {1, most + 1, ATTREE_ERROR_OVERFLOW},
        {(int64_t)1 << 50, (int64_t)1 << 50, ATTREE_ERROR_OVERFLOW},
    };
    plan_case_use(NULL);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        attree_desc d = make_desc(0, 1, 1, 1, 1, cases[n].qk_width, cases[n].v_width);
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &d), cases[n].status);
        if (cases[n].status != ATTREE_OK)
            assert_non_null(strstr(attree_last_error(), "at most 2^40"));
        attree_plan_destroy(plan);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        only = strtoll(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_those_of_walks),
        cmocka_unit_test(a_million_plans_are_right),
        cmocka_unit_test(a_decode_step_takes_turns_and_the_longest_first),
        cmocka_unit_test(widths_beyond_2_to_the_40_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
