/* Random problems that combine any of the features: windows, ragged batches, masks, biases, ALiBi, soft caps, sinks, a
 * score function, element types, layouts. Each is compared with the formulas of attree.h, materialised in wide
 * arithmetic; and bit for bit between instruction sets and thread counts, also when everything that no query may see is
 * replaced by garbage. Every tensor ends, or begins, at a page that may not be touched. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

#include "../src/dtype.h"

enum { CASES = 320, ENTRIES = 3, MASK_BYTES = 10, MASK_BITS = 11 };

/* ---- Tensors in guarded memory ---- */

/* Element (a, b, c, d) is number a * stride[0] + ... from data; low and high are the least and the greatest number. */
typedef struct grid {
    int64_t size[4], stride[4], low, high;
    int64_t given[4]; /* strides as the library is told: all zero for some dense ones */
    int32_t type;     /* attree_dtype, MASK_BYTES or MASK_BITS */
    guarded pages;
    void *data;
    char *bytes; /* where memory starts */
    size_t byte_count;
} grid;

static int64_t place(const grid *g, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return a * g->stride[0] + b * g->stride[1] + c * g->stride[2] + d * g->stride[3];
}

static float get(const grid *g, int64_t n)
{
    const uint8_t *const bytes = g->data;
    switch (g->type) {
    case MASK_BYTES: return bytes[n] != 0 ? 1.0f : 0.0f;
    case MASK_BITS: return bytes[n >> 3] >> (n & 7) & 1 ? 1.0f : 0.0f;
    default: return attree__load(g->data, g->type, n);
    }
}

static void set(const grid *g, int64_t n, float x)
{
    uint8_t *const bytes = g->data;
    const uint8_t bit = (uint8_t)(1u << (n & 7));
    switch (g->type) {
    case MASK_BYTES: bytes[n] = x != 0.0f ? (uint8_t)(1 + (n & 127)) : 0; break;
    case MASK_BITS: bytes[n >> 3] = (uint8_t)(x != 0.0f ? bytes[n >> 3] | bit : bytes[n >> 3] & ~bit); break;
    default: attree__store(g->data, g->type, n, x); break;
    }
}

/* The byte that holds element n begins here; element n begins in it. */
static int64_t byte_of(const grid *g, int64_t n)
{
    switch (g->type) {
    case MASK_BYTES: return n;
    case MASK_BITS: return n >> 3;
    default: return n * attree__dtype_bytes(g->type);
    }
}

static void set_strides(grid *g, const int order[4], random_source *random, bool spread)
{
    int64_t step = spread ? random_integer(random, 1, 3) : 1;
    for (int d = 3; d >= 0; d--) {
        const int64_t size = g->size[order[d]];
        g->stride[order[d]] = step;
        if (spread && random_integer(random, 0, 7) == 0)
            g->stride[order[d]] = -step;
        step = step * (size > 0 ? size : 1) + (spread ? random_integer(random, 0, 2) : 0);
    }
}

/* Any layout: dense, permuted, with gaps, backwards; inputs with some dimension repeated. */
static void lay_out(grid *g, random_source *random, bool input)
{
    static const int orders[][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 1, 3, 2}, {3, 1, 0, 2}};
    const bool spread = random_integer(random, 0, 2) > 0;
    set_strides(g, orders[spread ? random_integer(random, 0, 3) : 0], random, spread);
    if (spread && input && random_integer(random, 0, 5) == 0)
        g->stride[random_integer(random, 0, 3)] = 0;
    bool silent = !spread && random_integer(random, 0, 1) == 0, some = false;
    for (int d = 0; d < 4; d++) {
        g->given[d] = silent ? 0 : g->stride[d];
        some = some || g->given[d] != 0;
    }
    assert_true(some || silent);
    g->low = g->high = 0;
    bool empty = false;
    for (int d = 0; d < 4; d++) {
        empty = empty || g->size[d] == 0;
        if (g->size[d] == 1)
            g->stride[d] = 0;
        const int64_t reach = g->stride[d] * (g->size[d] - 1);
        g->low += reach < 0 ? reach : 0;
        g->high += reach > 0 ? reach : 0;
    }
    if (empty) {
        g->low = 0;
        g->high = -1;
    }
}

/* All bytes 0xff: every number a NaN, every key shown. */
static void allocate(grid *g, bool at_start)
{
    const bool empty = g->low > g->high;
    const int64_t low = empty ? 0 : byte_of(g, g->low);
    const int64_t end = empty ? 0 : g->type == MASK_BITS ? byte_of(g, g->high) + 1 : byte_of(g, g->high + 1);
    const int64_t floats = (end - low + 3) / 4;
    g->byte_count = (size_t)(end - low);
    g->pages = guarded_floats(floats, at_start);
    g->bytes = at_start ? (char *)g->pages.data : (char *)(g->pages.data + floats) - g->byte_count;
    g->data = g->bytes - low;
}

static void make_grid(grid *g, const int64_t size[4], int32_t type, random_source *random, bool input)
{
    memcpy(g->size, size, sizeof g->size);
    g->type = type;
    lay_out(g, random, input);
    allocate(g, random_integer(random, 0, 3) == 0);
}

/* Every element is what fill says. */
static void fill_grid(grid *g, random_source *random, float (*fill)(random_source *))
{
    for (int64_t a = 0; a < g->size[0]; a++)
        for (int64_t b = 0; b < g->size[1]; b++)
            for (int64_t c = 0; c < g->size[2]; c++)
                for (int64_t d = 0; d < g->size[3]; d++)
                    set(g, place(g, a, b, c, d), fill(random));
}

static float number(random_source *random) { return random_float(random, -1.0f, 1.0f); }
static float mostly_shown(random_source *random) { return random_integer(random, 0, 4) > 0 ? 1.0f : 0.0f; }
static float mostly_hidden(random_source *random) { return random_integer(random, 0, 9) > 0 ? 0.0f : 1.0f; }
static float some_bias(random_source *random)
{
    return random_integer(random, 0, 9) > 0 ? random_float(random, -2.0f, 2.0f) : -INFINITY;
}

/* ---- Problems ---- */

/* One batch entry, as the header's text has it. */
typedef struct entry {
    int64_t q_start, q_len, kv_start, kv_len, q_offset;
    int64_t q_batch, kv_batch; /* which batch of q, k, v, o, lse it is in */
} entry;

typedef struct problem {
    int number;
    attree_desc desc;
    attree_args args;
    grid q, k, v, o, lse, mask, bias;
    guarded slopes, sinks;
    entry entries[ENTRIES];
    int64_t kv_lens[ENTRIES], q_offsets[ENTRIES], q_starts[ENTRIES + 1], kv_starts[ENTRIES + 1];
    float user; /* what the score function is given */
} problem;

typedef struct pair {
    int64_t b, h, i, j;
} pair;

static bool function_hides(pair at) { return (at.i + 2 * at.j + at.h) % 5 == 0; }
static float function_adds(pair at, float user) { return user * (float)((3 * at.i + 5 * at.j + at.h + 7 * at.b) % 9); }

static void score_function(const attree_score_tile *t, void *user)
{
    const float *const factor = user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++) {
            const pair at = {t->batch, t->head, t->first_query + i, t->first_key + j};
            float *const s = t->scores + i * t->query_stride + j;
            *s = function_hides(at) ? -INFINITY : *s + function_adds(at, *factor);
        }
}

/* 25 .. 60 queries, or more keys than two blocks, in some; the others are small. */
static void choose_shape(problem *p, random_source *random, int64_t queries[2], int64_t keys[2])
{
    static const int64_t ranges[8][6] = {
        {0, 12, 0, 40, 3, 4}, {1, 8, 0, 20, 3, 3},    {0, 3, 1, 70, 3, 4},     {1, 8, 250, 300, 2, 3},
        {1, 1, 1, 40, 3, 8},  {25, 60, 1, 100, 2, 2}, {1, 8, 500, 1100, 2, 2}, {25, 40, 513, 800, 1, 2},
    };
    const int64_t *const r = ranges[p->number % 8];
    attree_desc *const d = &p->desc;
    const int64_t group = random_integer(random, 1, r[5]);
    *d = make_desc(random_integer(random, 1, r[4]), 0, random_integer(random, 1, 2), 0, 0,
                   random_integer(random, 1, 24), random_integer(random, 1, 40));
    d->q_heads = d->kv_heads * group;
    queries[0] = r[0], queries[1] = r[1];
    keys[0] = r[2], keys[1] = r[3];
}

/* How many tokens each entry has: different numbers when starts are given. Returns the size of the token dimension. */
static int64_t choose_tokens(const attree_desc *d, const int64_t range[2], int64_t *starts, bool ragged,
                             random_source *random)
{
    starts[0] = 0;
    const int64_t tokens = random_integer(random, range[0], range[1]);
    for (int64_t b = 0; b < d->batch; b++)
        starts[b + 1] =
            starts[b] +
            (ragged ? random_integer(random, 0, 3) > 0 ? random_integer(random, range[0], range[1]) : 0 : tokens);
    return ragged ? starts[d->batch] : tokens;
}

static void choose_sequences(problem *p, random_source *random)
{
    attree_desc *const d = &p->desc;
    int64_t queries[2], keys[2];
    choose_shape(p, random, queries, keys);
    const bool q_ragged = random_integer(random, 0, 4) == 0, kv_ragged = random_integer(random, 0, 4) == 0;
    const bool lens = random_integer(random, 0, 3) == 0, offsets = random_integer(random, 0, 4) == 0;
    d->q_len = choose_tokens(d, queries, p->q_starts, q_ragged, random);
    d->kv_len = choose_tokens(d, keys, p->kv_starts, kv_ragged, random);
    d->q_starts = q_ragged ? p->q_starts : NULL;
    d->kv_starts = kv_ragged ? p->kv_starts : NULL;
    d->kv_lens = lens ? p->kv_lens : NULL;
    d->q_offsets = offsets ? p->q_offsets : NULL;
    const bool one_offset = random_integer(random, 0, 3) == 0;
    d->flags |= one_offset ? ATTREE_USE_Q_OFFSET : 0;
    d->q_offset = one_offset ? random_integer(random, -3, keys[1]) : INT64_MIN; /* ignored */
    for (int64_t b = 0; b < d->batch; b++) {
        entry *const e = &p->entries[b];
        const int64_t room = p->kv_starts[b + 1] - p->kv_starts[b];
        p->kv_lens[b] = random_integer(random, 0, 2) > 0 ? random_integer(random, 0, room) : room;
        p->q_offsets[b] = random_integer(random, -5, room + 5);
        *e = (entry){.q_start = q_ragged ? p->q_starts[b] : 0,
                     .q_len = p->q_starts[b + 1] - p->q_starts[b],
                     .kv_start = kv_ragged ? p->kv_starts[b] : 0,
                     .kv_len = lens ? p->kv_lens[b] : room,
                     .q_batch = q_ragged ? 0 : b,
                     .kv_batch = kv_ragged ? 0 : b};
        e->q_offset = offsets ? p->q_offsets[b] : one_offset ? d->q_offset : e->kv_len - e->q_len;
    }
}

static void choose_options(problem *p, random_source *random)
{
    attree_desc *const d = &p->desc;
    const uint32_t flags = (uint32_t)random_integer(random, 0, 15);
    d->flags |= flags & ATTREE_CAUSAL ? ATTREE_CAUSAL : 0;
    d->flags |= flags & ATTREE_USE_WINDOW && p->number % 3 ? ATTREE_USE_WINDOW : 0;
    d->flags |= flags & ATTREE_USE_SCALE ? ATTREE_USE_SCALE : 0;
    const bool window = d->flags & ATTREE_USE_WINDOW;
    d->window_left = window ? random_integer(random, -1, d->kv_len < 6 ? 6 : d->kv_len) : -77; /* ignored */
    d->window_right = window ? random_integer(random, -1, 8) : INT64_MIN;
    d->scale = d->flags & ATTREE_USE_SCALE ? random_float(random, -2.0f, 2.0f) : NAN;
    d->softcap = random_integer(random, 0, 2) == 0 ? random_float(random, 0.3f, 8.0f) : 0.0f;
    d->empty_rows = (int32_t)random_integer(random, 0, 2);
    const bool narrow = random_integer(random, 0, 1);
    d->q_type = narrow ? (int32_t)random_integer(random, 0, 2) : ATTREE_F32;
    d->k_type = narrow ? (int32_t)random_integer(random, 0, 2) : ATTREE_F32;
    d->v_type = narrow ? (int32_t)random_integer(random, 0, 2) : ATTREE_F32;
    d->o_type = narrow ? (int32_t)random_integer(random, 0, 2) : ATTREE_F32;
}

static attree_strides strides_of(const grid *g)
{
    return (attree_strides){g->given[0], g->given[1], g->given[2], g->given[3]};
}

static void make_tensors_of(problem *p, random_source *random)
{
    attree_desc *const d = &p->desc;
    const int64_t q_batch = d->q_starts ? 1 : d->batch, kv_batch = d->kv_starts ? 1 : d->batch;
    make_grid(&p->q, (int64_t[]){q_batch, d->q_heads, d->q_len, d->qk_width}, d->q_type, random, true);
    make_grid(&p->k, (int64_t[]){kv_batch, d->kv_heads, d->kv_len, d->qk_width}, d->k_type, random, true);
    make_grid(&p->v, (int64_t[]){kv_batch, d->kv_heads, d->kv_len, d->v_width}, d->v_type, random, true);
    make_grid(&p->o, (int64_t[]){q_batch, d->q_heads, d->q_len, d->v_width}, d->o_type, random, false);
    make_grid(&p->lse, (int64_t[]){q_batch, d->q_heads, d->q_len, 1}, ATTREE_F32, random, false);
    fill_grid(&p->q, random, number);
    fill_grid(&p->k, random, number);
    fill_grid(&p->v, random, number);
    d->q = strides_of(&p->q);
    d->k = strides_of(&p->k);
    d->v = strides_of(&p->v);
    d->o = strides_of(&p->o);
    d->lse = strides_of(&p->lse);
    p->args = (attree_args){.q = p->q.data, .k = p->k.data, .v = p->v.data, .o = p->o.data, .lse = p->lse.data};
}

/* A tensor over pairs, with the dimensions whose bit of `broadcast` is set of size 1. */
static attree_pairs make_pairs(grid *g, const attree_desc *d, int broadcast, int32_t type, random_source *random)
{
    int64_t size[4] = {d->batch, d->q_heads, d->q_len, d->kv_len}, told[4];
    for (int n = 0; n < 4; n++) {
        const bool one = broadcast >> n & 1;
        told[n] = one ? 1 : random_integer(random, 0, 1) ? size[n] : 0;
        size[n] = one && size[n] > 0 ? 1 : size[n];
    }
    make_grid(g, size, type, random, true);
    return (attree_pairs){told[0], told[1], told[2], told[3], g->given[0], g->given[1], g->given[2], g->given[3]};
}

static void choose_pairs(problem *p, random_source *random)
{
    attree_desc *const d = &p->desc;
    if (random_integer(random, 0, 1)) {
        d->mask_kind = (int32_t)random_integer(random, 0, 1);
        const int32_t type = d->mask_kind == ATTREE_MASK_BITS ? MASK_BITS : MASK_BYTES;
        d->mask = make_pairs(&p->mask, d, p->number / 8 % 16, type, random);
        fill_grid(&p->mask, random, random_integer(random, 0, 3) > 0 ? mostly_shown : mostly_hidden);
        p->args.mask = p->mask.data;
    }
    if (random_integer(random, 0, 1)) {
        d->bias_type = (int32_t)random_integer(random, 0, 2);
        d->bias = make_pairs(&p->bias, d, (p->number / 8 + p->number) % 16, d->bias_type, random);
        fill_grid(&p->bias, random, some_bias);
        p->args.bias = p->bias.data;
    }
}

static void choose_extras(problem *p, random_source *random)
{
    const int64_t heads = p->desc.q_heads;
    if (random_integer(random, 0, 2) == 0) {
        p->slopes = guarded_floats(heads, false);
        fill_random(p->slopes.data, heads, random, -0.1f, 0.3f);
        p->args.alibi_slopes = p->slopes.data;
        p->args.alibi_heads = heads;
    }
    if (random_integer(random, 0, 2) == 0) {
        p->sinks = guarded_floats(heads, false);
        for (int64_t h = 0; h < heads; h++)
            p->sinks.data[h] = random_integer(random, 0, 4) ? random_float(random, -3.0f, 3.0f) : -INFINITY;
        p->args.sinks = p->sinks.data;
        p->args.sink_heads = heads;
    }
    p->user = 0.125f;
    if (random_integer(random, 0, 3) == 0) {
        p->args.score = score_function;
        p->args.user = &p->user;
    }
}

static problem *make_problem(int n)
{
    problem *const p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->number = n;
    random_source random = {(uint64_t)n * 2654435761u + 99};
    for (int i = 0; i < 8; i++)
        random_integer(&random, 0, 1); /* neighbouring seeds are alike at first */
    choose_sequences(p, &random);
    choose_options(p, &random);
    make_tensors_of(p, &random);
    choose_pairs(p, &random);
    choose_extras(p, &random);
    return p;
}

static void free_problem(problem *p)
{
    guarded *const all[9] = {&p->q.pages,    &p->k.pages,    &p->v.pages, &p->o.pages, &p->lse.pages,
                             &p->mask.pages, &p->bias.pages, &p->slopes,  &p->sinks};
    for (int n = 0; n < 9; n++)
        if (all[n]->mapping)
            guarded_free(all[n]);
    free(p);
}

static void describe(const problem *p)
{
    const attree_desc *d = &p->desc;
    print_error("case %d: B %" PRId64 " H %" PRId64 " G %" PRId64 " Q %" PRId64 " K %" PRId64 " D %" PRId64
                " E %" PRId64 ", flags %u, types %d %d %d %d, isa %d, threads %d\n",
                p->number, d->batch, d->q_heads, d->kv_heads, d->q_len, d->kv_len, d->qk_width, d->v_width, d->flags,
                d->q_type, d->k_type, d->v_type, d->o_type, d->isa, d->threads);
    print_error("with%s%s%s%s%s%s%s%s%s%s\n", d->q_starts ? " q_starts" : "", d->kv_starts ? " kv_starts" : "",
                d->kv_lens ? " kv_lens" : "", d->q_offsets ? " q_offsets" : "", d->softcap > 0.0f ? " softcap" : "",
                p->args.mask ? " mask" : "", p->args.bias ? " bias" : "", p->args.alibi_slopes ? " slopes" : "",
                p->args.sinks ? " sinks" : "", p->args.score ? " score" : "");
}

/* ---- The formulas ---- */

/* What decides whether a query sees a key. Each step reads only what the one before it did not already decide. */
typedef enum fate { OUTSIDE, MASKED, OVERRULED, BIASED_AWAY, SEEN } fate;

static bool inside(const problem *p, pair at)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    const int64_t position = at.i + e->q_offset;
    bool in = at.j < e->kv_len;
    if (d->flags & ATTREE_CAUSAL)
        in = in && at.j <= position;
    if (d->flags & ATTREE_USE_WINDOW && d->window_left >= 0)
        in = in && at.j >= position - d->window_left;
    if (d->flags & ATTREE_USE_WINDOW && d->window_right >= 0)
        in = in && at.j <= position + d->window_right;
    return in;
}

static int64_t pair_place(const problem *p, const grid *g, pair at)
{
    const entry *e = &p->entries[at.b];
    return place(g, at.b, at.h, e->q_start + at.i, e->kv_start + at.j);
}

static fate fate_of(const problem *p, pair at)
{
    if (!inside(p, at))
        return OUTSIDE;
    if (p->args.mask && get(&p->mask, pair_place(p, &p->mask, at)) == 0.0f)
        return MASKED;
    if (p->args.score && function_hides(at))
        return OVERRULED;
    if (p->args.bias && get(&p->bias, pair_place(p, &p->bias, at)) == -INFINITY)
        return BIASED_AWAY;
    return SEEN;
}

static wide magnitude(wide x) { return x < 0 ? -x : x; }

static wide wide_tanh(wide x) { return 1 - 2 / (wide_exp(2 * x) + 1); }

/* The score of a pair that is seen, and the sum of the magnitudes of what it is made of. */
static wide score_of(const problem *p, pair at, wide *size)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    const int64_t g = at.h / (d->q_heads / d->kv_heads);
    const wide scale = d->flags & ATTREE_USE_SCALE ? d->scale : 1.0f / sqrtf((float)d->qk_width);
    wide s = 0;
    *size = 0;
    for (int64_t c = 0; c < d->qk_width; c++) {
        const wide term = (wide)get(&p->q, place(&p->q, e->q_batch, at.h, e->q_start + at.i, c)) *
                          get(&p->k, place(&p->k, e->kv_batch, g, e->kv_start + at.j, c)) * scale;
        s += term;
        *size += magnitude(term);
    }
    if (d->softcap > 0.0f) {
        s = d->softcap * wide_tanh(s / d->softcap);
        *size += magnitude(s);
    }
    if (p->args.alibi_slopes) {
        const wide term = (wide)p->args.alibi_slopes[at.h] * (at.j - (at.i + e->q_offset));
        s += term;
        *size += magnitude(term);
    }
    if (p->args.bias) {
        const wide term = get(&p->bias, pair_place(p, &p->bias, at));
        s += term;
        *size += magnitude(term);
    }
    if (p->args.score) {
        s += function_adds(at, p->user);
        *size += function_adds(at, p->user);
    }
    return s;
}

/* A row by the formulas. */
typedef struct expectation {
    wide o[40], lse;
    wide size;  /* the greatest that score_of told */
    bool empty; /* nothing seen, and no sink */
} expectation;

static wide sink_of(const problem *p, int64_t h) { return p->args.sinks ? p->args.sinks[h] : -(wide)INFINITY; }

static void expect_row(const problem *p, pair at, expectation *r)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    const int64_t g = at.h / (d->q_heads / d->kv_heads);
    wide *const s = malloc((size_t)(e->kv_len + 1) * sizeof *s), sink = sink_of(p, at.h), m = sink, l = 0;
    assert_non_null(s);
    *r = (expectation){.size = 0};
    for (at.j = 0; at.j < e->kv_len; at.j++) {
        wide size = 0;
        s[at.j] = fate_of(p, at) == SEEN ? score_of(p, at, &size) : -(wide)INFINITY;
        m = s[at.j] > m ? s[at.j] : m;
        r->size = size > r->size ? size : r->size;
    }
    r->empty = m == -(wide)INFINITY;
    if (sink > -(wide)INFINITY)
        l = wide_exp(sink - m);
    for (int64_t j = 0; j < e->kv_len; j++) {
        if (s[j] == -(wide)INFINITY)
            continue;
        const wide weight = wide_exp(s[j] - m);
        l += weight;
        for (int64_t c = 0; c < d->v_width; c++)
            r->o[c] += weight * get(&p->v, place(&p->v, e->kv_batch, g, e->kv_start + j, c));
    }
    for (int64_t c = 0; c < d->v_width && !r->empty; c++)
        r->o[c] /= l;
    r->lse = r->empty ? -(wide)INFINITY : m + wide_log(l);
    if (r->empty && d->empty_rows == ATTREE_EMPTY_NAN) {
        r->lse = NAN;
        for (int64_t c = 0; c < d->v_width; c++)
            r->o[c] = NAN;
    }
    free(s);
}

/* Half a unit in the last place of x as a number of the type, at least. */
static double half_unit(int32_t type, double x)
{
    switch (type) {
    case ATTREE_F16: return fabs(x) * 0x1p-11 + 0x1p-25;
    case ATTREE_BF16: return fabs(x) * 0x1p-8;
    default: return fabs(x) * 0x1p-24;
    }
}

/* A score is off by at most D + 8 roundings of the sum of magnitudes; so is the logarithm of a weight. Sums of up to
 * 256 numbers, then a few steps for each, round once for each. Values are at most 1 in magnitude. */
static void check_row(const problem *p, pair at)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    expectation expected;
    expect_row(p, at, &expected);
    const double score_error = (double)expected.size * (double)(d->qk_width + 8) * 0x1p-24;
    const double sum_error = (double)((e->kv_len < 256 ? e->kv_len : 256) + 30) * 0x1p-24;
    const double lse = (double)get(&p->lse, place(&p->lse, e->q_batch, at.h, e->q_start + at.i, 0));
    const double want_lse = (double)expected.lse;
    bool right = close_to(lse, want_lse, score_error + sum_error + 0x1p-22 * fabs(want_lse));
    double o = 0.0, want = 0.0;
    for (int64_t c = 0; c < d->v_width && right; c++) {
        o = (double)get(&p->o, place(&p->o, e->q_batch, at.h, e->q_start + at.i, c));
        want = (double)expected.o[c];
        right = close_to(o, want, 2.0 * (score_error + sum_error) + half_unit(d->o_type, want));
    }
    if (right)
        return;
    describe(p);
    fail_msg("batch %" PRId64 ", head %" PRId64 ", query %" PRId64 ": o %g, not %g; lse %.9g, not %.9g", at.b, at.h,
             at.i, o, want, lse, want_lse);
}

/* ---- Running ---- */

static bool is_empty(const problem *p, pair at)
{
    if (sink_of(p, at.h) > -(wide)INFINITY)
        return false;
    for (at.j = 0; at.j < p->entries[at.b].kv_len; at.j++)
        if (fate_of(p, at) == SEEN)
            return false;
    return true;
}

/* The next row after at, entry by entry, head by head. Returns false after the last one; start from {0, 0, -1, 0}. */
static bool next_row(const problem *p, pair *at)
{
    at->i++;
    while (at->b < p->desc.batch && at->i >= p->entries[at->b].q_len) {
        at->i = 0;
        if (++at->h == p->desc.q_heads) {
            at->h = 0;
            at->b++;
        }
    }
    return at->b < p->desc.batch;
}

/* Into o and lse; everything but their elements stays 0xff. */
static void run(problem *p)
{
    memset(p->o.bytes, 0xff, p->o.byte_count);
    memset(p->lse.bytes, 0xff, p->lse.byte_count);
    attree_status expected = ATTREE_OK;
    pair at = {0, 0, -1, 0}, first = {0};
    while (p->desc.empty_rows == ATTREE_EMPTY_ERROR && expected == ATTREE_OK && next_row(p, &at))
        if (is_empty(p, at)) {
            expected = ATTREE_ERROR_EMPTY;
            first = at;
        }
    run_expecting(expected, &p->desc, &p->args);
    char sentence[128];
    (void)snprintf(sentence, sizeof sentence, "query %" PRId64 " of head %" PRId64 ", batch %" PRId64, first.i, first.h,
                   first.b);
    if (expected == ATTREE_ERROR_EMPTY && !strstr(attree_last_error(), sentence))
        fail_msg("case %d: \"%s\" does not name %s", p->number, attree_last_error(), sentence);
}

static void mark(const grid *g, char *used, int64_t n)
{
    if (used)
        used[n - g->low] = 1;
}

static char *nothing_used(const grid *g)
{
    char *const used = calloc((size_t)(g->high - g->low + 2), 1);
    assert_non_null(used);
    return used;
}

/* Between the elements of an output nothing is written. */
static void check_gaps(const grid *g)
{
    char *const used = nothing_used(g);
    for (int64_t a = 0; a < g->size[0]; a++)
        for (int64_t b = 0; b < g->size[1]; b++)
            for (int64_t c = 0; c < g->size[2]; c++)
                for (int64_t d = 0; d < g->size[3]; d++)
                    mark(g, used, place(g, a, b, c, d));
    const signed char untouched[4] = {-1, -1, -1, -1};
    const size_t bytes = (size_t)attree__dtype_bytes(g->type);
    for (int64_t n = g->low; n <= g->high; n++)
        if (!used[n - g->low])
            assert_memory_equal((char *)g->data + byte_of(g, n), untouched, bytes);
    free(used);
}

static void random_problems_follow_the_formulas(void **state)
{
    (void)state;
    for (int n = 0; n < CASES; n++) {
        if (thinned_out())
            continue;
        problem *const p = make_problem(n);
        run(p);
        check_gaps(&p->o);
        check_gaps(&p->lse);
        int64_t rows = 0, row = 0;
        for (pair at = {0, 0, -1, 0}; next_row(p, &at);)
            rows++;
        const int64_t step = 1 + rows * p->desc.kv_len / 3000; /* wide arithmetic is slow */
        for (pair at = {0, 0, -1, 0}; next_row(p, &at); row++)
            if (row % step == 0 || row == rows - 1)
                check_row(p, at);
        free_problem(p);
    }
}

/* ---- Garbage ---- */

typedef struct usage {
    char *q, *k, *v, *mask, *bias;
} usage;

static void mark_row(const grid *g, char *used, pair row)
{
    for (int64_t c = 0; c < g->size[3]; c++)
        mark(g, used, place(g, row.b, row.h, row.i, c));
}

static void mark_pair(const problem *p, const usage *u, pair at)
{
    const entry *e = &p->entries[at.b];
    const fate f = fate_of(p, at);
    if (p->args.mask && f >= MASKED)
        mark(&p->mask, u->mask, pair_place(p, &p->mask, at));
    if (p->args.bias && f >= BIASED_AWAY)
        mark(&p->bias, u->bias, pair_place(p, &p->bias, at));
    if (f != SEEN)
        return;
    const int64_t g = at.h / (p->desc.q_heads / p->desc.kv_heads);
    mark_row(&p->q, u->q, (pair){e->q_batch, at.h, e->q_start + at.i, 0});
    mark_row(&p->k, u->k, (pair){e->kv_batch, g, e->kv_start + at.j, 0});
    mark_row(&p->v, u->v, (pair){e->kv_batch, g, e->kv_start + at.j, 0});
}

/* What nothing used becomes garbage; keys that a mask shows, hidden, and the other way round. Frees used. */
static void poison(const grid *g, char *used)
{
    static const float garbage[] = {NAN, INFINITY, 1e38f, -INFINITY, -1e38f};
    for (int64_t n = g->low; n <= g->high && used; n++)
        if (!used[n - g->low])
            set(g, n, g->type >= MASK_BYTES ? 1.0f - get(g, n) : garbage[(n - g->low) % 5]);
    free(used);
}

/* Whatever no query may see: keys and values hidden from all queries, queries that see nothing, elements of the mask
 * outside of the geometry, bias of hidden pairs, padding. */
static void poison_hidden(const problem *p)
{
    const usage u = {
        .q = nothing_used(&p->q),
        .k = nothing_used(&p->k),
        .v = nothing_used(&p->v),
        .mask = p->args.mask ? nothing_used(&p->mask) : NULL,
        .bias = p->args.bias ? nothing_used(&p->bias) : NULL,
    };
    for (pair at = {0, 0, -1, 0}; next_row(p, &at);)
        for (pair one = at; one.j < p->entries[at.b].kv_len; one.j++)
            mark_pair(p, &u, one);
    poison(&p->q, u.q);
    poison(&p->k, u.k);
    poison(&p->v, u.v);
    poison(&p->bias, u.bias);
    poison(&p->mask, u.mask);
}

typedef struct result {
    char *o, *lse;
} result;

static char *copy_of(const grid *g)
{
    char *const copy = malloc(g->byte_count + 1);
    assert_non_null(copy);
    memcpy(copy, g->bytes, g->byte_count);
    return copy;
}

static void check_same(problem *p, const result *expected, const char *what)
{
    run(p);
    if (memcmp(p->o.bytes, expected->o, p->o.byte_count) == 0 &&
        memcmp(p->lse.bytes, expected->lse, p->lse.byte_count) == 0)
        return;
    describe(p);
    fail_msg("other bits: %s", what);
}

static void check_everywhere(problem *p, const result *expected, const char *what)
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++)
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            p->desc.isa = (int32_t)isas[i];
            p->desc.threads = threads;
            check_same(p, expected, what);
        }
}

static void random_problems_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int n = 0; n < CASES; n++) {
        if (thinned_out())
            continue;
        problem *const p = make_problem(n);
        p->desc.isa = ATTREE_ISA_SCALAR;
        run(p);
        const result expected = {copy_of(&p->o), copy_of(&p->lse)};
        check_everywhere(p, &expected, "instruction sets, threads");
        poison_hidden(p);
        check_everywhere(p, &expected, "garbage where nobody may look");
        free(expected.o);
        free(expected.lse);
        free_problem(p);
    }
}

/* The cases must be what the comment at the top says. */
static void every_feature_is_among_the_cases(void **state)
{
    (void)state;
    int64_t seen[16] = {0}, mask_sizes = 0, bias_sizes = 0;
    for (int n = 0; n < CASES; n++) {
        problem *const p = make_problem(n);
        const attree_desc *d = &p->desc;
        const attree_args *a = &p->args;
        const bool features[16] = {d->q_starts,       d->kv_starts,  d->kv_lens,      d->q_offsets,
                                   d->softcap > 0.0f, a->mask,       a->bias,         a->alibi_slopes,
                                   a->sinks,          a->score,      d->kv_len > 512, d->q_len > 24,
                                   d->flags & 1u,     d->flags & 2u, d->flags & 4u,   d->flags & 8u};
        for (int f = 0; f < 16; f++)
            seen[f] += features[f];
        if (a->mask)
            mask_sizes |= (int64_t)1 << (n / 8 % 16);
        if (a->bias)
            bias_sizes |= (int64_t)1 << ((n / 8 + n) % 16);
        free_problem(p);
    }
    for (int f = 0; f < 16; f++)
        assert_true(seen[f] >= CASES / 10);
    assert_int_equal(mask_sizes, 0xffff);
    assert_int_equal(bias_sizes, 0xffff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_feature_is_among_the_cases),
        cmocka_unit_test(random_problems_follow_the_formulas),
        cmocka_unit_test(random_problems_have_the_same_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
