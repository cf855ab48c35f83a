/* See random_problems.h. */
#include "random_problems.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"

/* ---- Tensors in guarded memory ---- */

int64_t place(const grid *g, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return a * g->stride[0] + b * g->stride[1] + c * g->stride[2] + d * g->stride[3];
}

float get(const grid *g, int64_t n)
{
    const uint8_t *const bytes = g->data;
    switch (g->type) {
    case MASK_BYTES: return bytes[n] != 0 ? 1.0f : 0.0f;
    case MASK_BITS: return bytes[n >> 3] >> (n & 7) & 1 ? 1.0f : 0.0f;
    default: return attree__load(g->data, g->type, n);
    }
}

void set(const grid *g, int64_t n, float x)
{
    uint8_t *const bytes = g->data;
    const uint8_t bit = (uint8_t)(1u << (n & 7));
    switch (g->type) {
    case MASK_BYTES: bytes[n] = x != 0.0f ? (uint8_t)(1 + (n & 127)) : 0; break;
    case MASK_BITS: bytes[n >> 3] = (uint8_t)(x != 0.0f ? bytes[n >> 3] | bit : bytes[n >> 3] & ~bit); break;
    default: attree__store(g->data, g->type, n, x); break;
    }
}

int64_t byte_of(const grid *g, int64_t n)
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

bool function_hides(pair at) { return (at.i + 2 * at.j + at.h) % 5 == 0; }

float function_adds(pair at, float user) { return user * (float)((3 * at.i + 5 * at.j + at.h + 7 * at.b) % 9); }

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

problem *make_problem(int n)
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

void free_problem(problem *p)
{
    guarded *const all[9] = {&p->q.pages,    &p->k.pages,    &p->v.pages, &p->o.pages, &p->lse.pages,
                             &p->mask.pages, &p->bias.pages, &p->slopes,  &p->sinks};
    for (int n = 0; n < 9; n++)
        if (all[n]->mapping)
            guarded_free(all[n]);
    free(p);
}

void describe(const problem *p)
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
