/* See plans.h. */
#include "plans.h"

#include <inttypes.h>
#include <stdio.h>

#include "../src/cpu.h"
#include "../src/dispatch.h"
#include "../src/dtype.h"

/* ---- Register tiles ---- */

/* Stands in for that of kernels that this machine cannot run. Like theirs, it grows with everything. */
static int64_t stand_in_floats(int64_t qk_width, int64_t v_width, int64_t rows)
{
    return rows + (rows > 24 ? ATTREE__BLOCK : ATTREE__PIECE) * (qk_width + v_width);
}

static int64_t two_rows(int32_t k_type, int32_t v_type)
{
    return attree__dtype_is_float(k_type) && attree__dtype_is_float(v_type) ? 2 : 0;
}

static int64_t five_rows(int32_t k_type, int32_t v_type) { return two_rows(k_type, v_type) ? 5 : 0; }

/* Register tiles of instruction sets of other architectures, and of one that nobody has. */
static const attree__kernels elsewhere[] = {
    {.name = "as neon",
     .bundle_rows = 6,
     .decode_rows = 2 * 6,
     .interleaved_rows = two_rows,
     .scratch_floats = stand_in_floats},
    {.name = "as avx512",
     .bundle_rows = 12,
     .decode_rows = 2 * 12,
     .interleaved_rows = two_rows,
     .scratch_floats = stand_in_floats},
    {.name = "wider",
     .bundle_rows = 16,
     .decode_rows = 2 * 16,
     .interleaved_rows = five_rows,
     .scratch_floats = stand_in_floats},
};
static const attree__kernels *const here[] = ATTREE__TABLES;
enum { HERE = sizeof here / sizeof *here, ELSEWHERE = sizeof elsewhere / sizeof *elsewhere, TABLES = HERE + ELSEWHERE };

/* Table n, without code that this machine lacks. */
static const attree__kernels *table(int64_t n)
{
    static attree__kernels without_code[HERE];
    if (n >= HERE)
        return &elsewhere[n - HERE];
    if (attree__cpu_has((attree_isa)here[n]->isa))
        return here[n];
    without_code[n] = *here[n];
    without_code[n].scratch_floats = stand_in_floats;
    without_code[n].interleaved_rows = two_rows;
    return &without_code[n];
}

static const attree__kernels *in_use;

void plan_case_use(const attree__kernels *kernels) { in_use = kernels; }

/* The linker puts it in the place of attree__dispatch. */
attree_status __wrap_attree__dispatch(const attree__kernels **kernels, int32_t isa); /* NOLINT(bugprone-*,cert-*) */
attree_status __wrap_attree__dispatch(const attree__kernels **kernels, int32_t isa)  /* NOLINT(bugprone-*,cert-*) */
{
    (void)isa;
    *kernels = in_use ? in_use : table(0);
    return ATTREE_OK;
}

/* ---- Random parameters ---- */

/* As often between 1 and 2 as between 1000 and 2000. */
static int64_t log_uniform(random_source *random, int64_t least, int64_t most)
{
    int64_t halvings = 0;
    while ((most - least) >> halvings > 0)
        halvings++;
    return least + random_integer(random, 0, (most - least) >> random_integer(random, 0, halvings));
}

/* True once in n times. */
static bool once_in(random_source *random, int64_t n) { return random_integer(random, 1, n) == 1; }

/* A number of keys, often beside a block's end. */
static int64_t random_keys(random_source *random)
{
    const int64_t keys = log_uniform(random, 0, K_MOST);
    if (!once_in(random, 4))
        return keys;
    return smaller(keys / ATTREE__BLOCK * ATTREE__BLOCK + random_integer(random, 0, 1), K_MOST);
}

static const int64_t head_counts[][2] = {{1, 1}, {8, 1}, {8, 8}, {32, 8}, {64, 8}, {71, 1}, {5, 1}, {2, 1}};
enum { HEADS = sizeof head_counts / sizeof *head_counts };

static const int32_t thread_counts[] = {1, 2, 3, 4, 7, 8, 13, 25, 32, 64, 65536, 0};
enum { THREADS = sizeof thread_counts / sizeof *thread_counts };

static void choose_sizes(plan_case *c, random_source *random)
{
    attree_desc *const d = &c->desc;
    const int64_t heads = random_integer(random, 0, HEADS - 1);
    *d = make_desc(once_in(random, 100) ? 0 : log_uniform(random, 1, BATCH_MOST), head_counts[heads][0],
                   head_counts[heads][1], log_uniform(random, 0, Q_MOST), random_keys(random),
                   random_integer(random, 1, WIDTH_LARGEST), random_integer(random, 1, WIDTH_LARGEST));
    if (once_in(random, 2)) /* as models have them */
        d->qk_width = d->v_width = (int64_t)64 << random_integer(random, 0, 2);
    if (once_in(random, 4)) { /* a step of decoding */
        d->q_len = random_integer(random, 1, 3);
        d->q_heads = once_in(random, 2) ? d->kv_heads : d->q_heads;
    }
    if (once_in(random, 64))
        d->qk_width = 0;
    d->threads = once_in(random, 3) ? (int32_t)random_integer(random, 1, 64)
                                    : thread_counts[random_integer(random, 0, THREADS - 1)];
    c->kernels = table(random_integer(random, 0, TABLES - 1));
}

static void choose_types(attree_desc *d, random_source *random)
{
    const int32_t last = once_in(random, 2) ? ATTREE_BF16 : ATTREE__DTYPE_COUNT - 1;
    d->q_type = (int32_t)random_integer(random, 0, ATTREE_BF16);
    d->o_type = (int32_t)random_integer(random, 0, ATTREE_BF16);
    d->k_type = (int32_t)random_integer(random, 0, last);
    d->v_type = (int32_t)random_integer(random, 0, last);
    if (attree__dtype_has_blocks(d->k_type))
        d->qk_width = ceil_div(d->qk_width, ATTREE__QUANT_BLOCK) * ATTREE__QUANT_BLOCK;
    if (attree__dtype_has_blocks(d->v_type))
        d->v_width = ceil_div(d->v_width, ATTREE__QUANT_BLOCK) * ATTREE__QUANT_BLOCK;
}

static void choose_masks(attree_desc *d, random_source *random)
{
    d->flags |= once_in(random, 2) ? ATTREE_CAUSAL : 0u;
    d->flags |= once_in(random, 8) ? ATTREE_STATES : 0u;
    if (once_in(random, 4)) {
        d->flags |= ATTREE_USE_WINDOW;
        d->window_left = log_uniform(random, -1, 20000);
        d->window_right = log_uniform(random, -1, 2000);
    }
    if (once_in(random, 4)) {
        d->flags |= ATTREE_USE_Q_OFFSET;
        d->q_offset = random_integer(random, -d->q_len - 10, d->kv_len + 10);
    }
}

/* Lengths of entries one after the other; returns their sum. */
static int64_t choose_starts(int64_t *starts, int64_t batch, int64_t most, random_source *random)
{
    starts[0] = 0;
    for (int64_t b = 0; b < batch; b++)
        starts[b + 1] = starts[b] + log_uniform(random, 0, most);
    return starts[batch];
}

static void choose_sequences(plan_case *c, random_source *random)
{
    attree_desc *const d = &c->desc;
    if (once_in(random, 2)) {
        d->q_len = choose_starts(c->q_starts, d->batch, once_in(random, 3) ? 2 : Q_MOST, random);
        d->q_starts = c->q_starts;
    }
    if (once_in(random, 3)) {
        d->kv_len = choose_starts(c->kv_starts, d->batch, K_MOST, random);
        d->kv_starts = c->kv_starts;
    }
    if (once_in(random, 2)) {
        for (int64_t b = 0; b < d->batch; b++) {
            const int64_t room = d->kv_starts ? c->kv_starts[b + 1] - c->kv_starts[b] : d->kv_len;
            c->kv_lens[b] = once_in(random, 4) ? room : log_uniform(random, 0, room);
        }
        d->kv_lens = c->kv_lens;
    }
    if (once_in(random, 4)) {
        for (int64_t b = 0; b < d->batch; b++)
            c->q_offsets[b] = random_integer(random, -10, K_MOST);
        d->q_offsets = c->q_offsets;
    }
}

/* Shards, pages, panels. */
static void choose_memory(attree_desc *d, random_source *random)
{
    static const int64_t page_sizes[] = {1, 7, 16, 64, 100, 256, 1000};
    const bool panels = once_in(random, 6) && !attree__dtype_has_blocks(d->k_type);
    if (d->kv_starts)
        return;
    if (once_in(random, 5)) {
        d->shard_begin = random_integer(random, 0, d->kv_len) / ATTREE__BLOCK * ATTREE__BLOCK;
        d->shard_end = random_integer(random, d->shard_begin, d->kv_len) / ATTREE__BLOCK * ATTREE__BLOCK;
        if (once_in(random, 2))
            d->shard_end = d->kv_len;
    }
    if (once_in(random, 3)) {
        d->page_size = page_sizes[random_integer(random, 0, 6)];
        d->page_count = random_integer(random, 1, 1000);
        d->table_width = ceil_div(d->kv_len, d->page_size);
    }
    if (panels && d->page_size % ATTREE__PIECE == 0)
        d->flags |= ATTREE_K_PANELS;
}

/* [B, tokens, G, numbers] */
static attree_strides heads_beside(const attree_desc *d, int64_t tokens, int64_t numbers)
{
    return (attree_strides){tokens * d->kv_heads * numbers, numbers, d->kv_heads * numbers, 1};
}

static void choose_layout(attree_desc *d, random_source *random)
{
    const int64_t tokens = d->page_size > 0 ? d->page_size : d->kv_len;
    const bool panels = (d->flags & ATTREE_K_PANELS) != 0;
    if (once_in(random, 2))
        return;
    d->k = heads_beside(d, panels ? ceil_div(tokens, ATTREE__PIECE) : tokens,
                        panels ? d->qk_width * ATTREE__PIECE : attree__dtype_units(d->k_type, d->qk_width));
    if (!once_in(random, 8))
        d->v = heads_beside(d, tokens, attree__dtype_units(d->v_type, d->v_width));
}

/* ---- Problems ---- */

enum { GRID_Q = 64, GRID_K = 8, GRID_THREADS = 8 };

int64_t plan_case_grid(void) { return (int64_t)TABLES * GRID_Q * GRID_K * HEADS * GRID_THREADS; }

/* Batches of one or more plain sequences. */
static void make_grid_case(plan_case *c, random_source *random)
{
    static const int64_t keys[GRID_K] = {0, 4, 256, 300, 1025, 8192, K_MOST, -1};
    int64_t n = c->number;
    c->kernels = table(n % TABLES);
    n /= TABLES;
    const int64_t threads = n % GRID_THREADS, heads = n / GRID_THREADS % HEADS;
    n /= (int64_t)GRID_THREADS * HEADS;
    const int64_t q_len = n % GRID_Q * (Q_MOST / GRID_Q) + random_integer(random, 0, Q_MOST / GRID_Q);
    const int64_t k = keys[n / GRID_Q];
    const int64_t width = (int64_t)64 << random_integer(random, 0, 1);
    c->desc = make_desc(once_in(random, 4) ? random_integer(random, 1, BATCH_MOST) : 1, head_counts[heads][0],
                        head_counts[heads][1], q_len, k < 0 ? q_len : k, width, width);
    c->desc.flags = once_in(random, 2) ? ATTREE_CAUSAL : 0u;
    c->desc.threads = thread_counts[threads];
    if (threads == GRID_THREADS - 1) /* one each time of those that have no place of their own */
        c->desc.threads = thread_counts[random_integer(random, threads, THREADS - 1)];
}

static void make_random_case(plan_case *c, random_source *random)
{
    choose_sizes(c, random);
    choose_types(&c->desc, random);
    if (once_in(random, 3))
        choose_sequences(c, random);
    choose_masks(&c->desc, random);
    choose_memory(&c->desc, random);
    choose_layout(&c->desc, random);
}

/* A random state that has nothing to do with that of the next number (the end of splitmix64). */
static uint64_t scrambled(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) | 1u;
}

void plan_case_make(plan_case *c, uint64_t seed, int64_t number)
{
    random_source random = {scrambled(scrambled(seed) + (uint64_t)number * UINT64_C(0x9e3779b97f4a7c15))};
    c->seed = seed;
    c->number = number;
    if (number < plan_case_grid())
        make_grid_case(c, &random);
    else
        make_random_case(c, &random);
    plan_case_use(c->kernels);
}

/* ---- For people ---- */

typedef struct page {
    char *text;
    size_t capacity, used;
} page;

static ATTREE_PRINTF(2, 3) void print(page *p, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(p->text + p->used, p->capacity - p->used, format, arguments);
    va_end(arguments);
    if (length > 0)
        p->used = p->used + (size_t)length < p->capacity ? p->used + (size_t)length : p->capacity - 1;
}

static void print_numbers(page *p, const char *name, const int64_t *numbers, int64_t count)
{
    if (!numbers)
        return;
    print(p, "; %s", name);
    for (int64_t n = 0; n < count; n++)
        print(p, " %" PRId64, numbers[n]);
}

static void print_strides(page *p, const char *name, const attree_strides *s)
{
    if (s->batch || s->head || s->token || s->width)
        print(p, "; %s strides %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, name, s->batch, s->head, s->token,
              s->width);
}

static void describe(const plan_case *c, char *text, size_t capacity)
{
    page p = {.text = text, .capacity = capacity};
    const attree_desc *d = &c->desc;
    print(&p,
          "plan %" PRId64 " of seed %" PRIu64 ": kernels %s of %" PRId32 " rows, %" PRId32 " threads, B %" PRId64
          " H %" PRId64 " G %" PRId64 " Q %" PRId64 " K %" PRId64 " D %" PRId64 " E %" PRId64,
          c->number, c->seed, c->kernels->name, c->kernels->bundle_rows, d->threads, d->batch, d->q_heads, d->kv_heads,
          d->q_len, d->kv_len, d->qk_width, d->v_width);
    print(&p, ", types %" PRId32 " %" PRId32 " %" PRId32 " %" PRId32 ", flags 0x%" PRIx32, d->q_type, d->k_type,
          d->v_type, d->o_type, d->flags);
    if (d->flags & ATTREE_USE_Q_OFFSET)
        print(&p, "; q_offset %" PRId64, d->q_offset);
    if (d->flags & ATTREE_USE_WINDOW)
        print(&p, "; window %" PRId64 " %" PRId64, d->window_left, d->window_right);
    if (d->shard_begin || d->shard_end)
        print(&p, "; shard %" PRId64 " %" PRId64, d->shard_begin, d->shard_end);
    if (d->page_size)
        print(&p, "; %" PRId64 " pages of %" PRId64, d->page_count, d->page_size);
    print_strides(&p, "k", &d->k);
    print_strides(&p, "v", &d->v);
    print_numbers(&p, "kv_lens", d->kv_lens, d->batch);
    print_numbers(&p, "q_offsets", d->q_offsets, d->batch);
    print_numbers(&p, "q_starts", d->q_starts, d->batch + 1);
    print_numbers(&p, "kv_starts", d->kv_starts, d->batch + 1);
}

void claim(const subject *s, bool holds, const char *what)
{
    if (holds)
        return;
    char text[8192], plan[512];
    describe(s->c, text, sizeof text);
    (void)attree_plan_describe(s->plan, plan, sizeof plan);
    fail_msg("not so: %s\n%s\n%s", what, text, plan);
}
