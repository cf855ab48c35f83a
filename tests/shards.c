/* See shards.h. */
#include "shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"

/* ---- A problem over all keys ---- */

void *filled(size_t bytes)
{
    void *const memory = malloc(bytes + 1);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

static void change_scores(const attree_score_tile *tile, void *user)
{
    (void)user;
    for (int64_t i = 0; i < tile->queries; i++)
        for (int64_t j = 0; j < tile->keys; j++) {
            float *const s = &tile->scores[i * tile->query_stride + j];
            const int64_t key = tile->first_key + j;
            const int64_t kind = (tile->batch + tile->head + tile->first_query + i + key) % 5;
            if (kind == 0 || (key / BLOCK == 1 && tile->head % 2 == 1))
                *s = -INFINITY;
            else
                *s += (float)kind * 0.125f;
        }
}

/* A third of the keys is hidden, and for half of the queries a whole block. */
static uint8_t *make_mask(int64_t heads, int64_t queries, int64_t keys, bool bits, random_source *random)
{
    uint8_t *const mask = calloc((size_t)(heads * queries * keys + 1), 1);
    assert_non_null(mask);
    for (int64_t n = 0; n < heads * queries * keys; n++) {
        const bool shown = random_integer(random, 0, 2) > 0 && !(n / keys % 2 == 0 && n % keys / BLOCK == 1);
        if (bits)
            mask[n / 8] = (uint8_t)(mask[n / 8] | (unsigned)shown << n % 8);
        else
            mask[n] = shown;
    }
    return mask;
}

/* Poison beyond the keys that an entry has. */
static void poison_padding(const problem *p)
{
    const attree_desc *d = &p->desc;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t g = 0; g < d->kv_heads; g++) {
            const int64_t first = (b * d->kv_heads + g) * d->kv_len + p->lens[b], keys = d->kv_len - p->lens[b];
            const int64_t k = attree__dtype_bytes(d->k_type) * d->qk_width;
            const int64_t v = attree__dtype_bytes(d->v_type) * d->v_width;
            memset((char *)p->t.k + first * k, 0xff, (size_t)(keys * k));
            memset((char *)p->t.v + first * v, 0xff, (size_t)(keys * v));
        }
}

static void add_terms(problem *p, random_source *random)
{
    attree_desc *const d = &p->desc;
    fill_random(p->slopes, HEADS, random, 0.0f, 0.01f);
    fill_random(p->sinks, HEADS, random, -2.0f, 5.0f);
    if (p->features & SINKS)
        p->args.sinks = p->sinks;
    if (p->features & ALIBI)
        p->args.alibi_slopes = p->slopes;
    p->args.sink_heads = p->args.alibi_heads = d->q_heads;
    if (p->features & MASK) {
        p->mask = make_mask(d->q_heads, d->q_len, d->kv_len, p->features & BITS, random);
        p->args.mask = p->mask;
        d->mask.batches = 1;
        d->mask_kind = p->features & BITS ? ATTREE_MASK_BITS : ATTREE_MASK_BYTES;
    }
    if (p->features & BIAS) {
        p->bias = filled((size_t)(d->q_len * d->kv_len) * sizeof(float));
        fill_random(p->bias, d->q_len * d->kv_len, random, -1.0f, 1.0f);
        for (int64_t n = 0; n < d->q_len * d->kv_len; n += 7)
            p->bias[n] = -INFINITY;
        p->args.bias = p->bias;
        d->bias.batches = d->bias.heads = 1;
    }
    if (p->features & SCORE)
        p->args.score = change_scores;
}

void make_problem(problem *p, const attree_desc *desc, unsigned features, uint64_t seed)
{
    random_source random = {seed * 2 + 12345};
    *p = (problem){.desc = *desc, .features = features, .t = make_tensors(desc, seed)};
    attree_desc *const d = &p->desc;
    p->args = (attree_args){.q = p->t.q, .k = p->t.k, .v = p->t.v, .o = p->t.o, .lse = p->t.lse};
    if (d->k_type == ATTREE_I8 || d->v_type == ATTREE_I8) {
        const int64_t count = d->batch * d->kv_heads * d->kv_len;
        p->k_scales = filled((size_t)count * sizeof(float));
        p->v_scales = filled((size_t)count * sizeof(float));
        fill_random(p->k_scales, count, &random, 0.0f, 0.01f);
        fill_random(p->v_scales, count, &random, 0.0f, 0.01f);
        p->args.k_scales = p->k_scales;
        p->args.v_scales = p->v_scales;
    }
    if (features & SHORT) { /* one entry has all keys, one a third of them, one a single key */
        for (int64_t b = 0; b < d->batch; b++)
            p->lens[b] = b == 0 ? d->kv_len : b == 1 ? d->kv_len / 3 : 1;
        d->kv_lens = p->lens;
        poison_padding(p);
    }
    if (features & RAGGED) {
        for (int64_t b = 1; b < d->batch; b++)
            p->starts[b] = b;
        p->starts[d->batch] = d->q_len;
        d->q_starts = p->starts;
    }
    add_terms(p, &random);
    forget_results(&p->t);
}

void free_problem(problem *p)
{
    free(p->mask);
    free(p->bias);
    free(p->k_scales);
    free(p->v_scales);
    free_tensors(&p->t);
}

int64_t rows_of(const problem *p) { return (p->desc.q_starts ? 1 : p->desc.batch) * p->desc.q_heads * p->desc.q_len; }

/* ---- A shard of it, in memory that ends where the shard's keys do ---- */

typedef struct shard {
    int64_t begin, tokens, page, table_width; /* page 0: not paged */
    int32_t *table;
    guarded k, v, k_scales, v_scales;
} shard;

/* The tokens of a tensor that are in the shard; row_bytes of each. */
static guarded slice(const problem *p, const shard *s, const void *from, int64_t row_bytes)
{
    const attree_desc *d = &p->desc;
    const int64_t heads = d->kv_heads;
    const int64_t rows = d->batch * heads * (s->page ? (s->table_width + 1) * s->page : s->tokens);
    const guarded to = guarded_floats((rows * row_bytes + 3) / 4, false);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t g = 0; g < heads; g++)
            for (int64_t j = 0; j < s->tokens; j++) {
                int64_t row = (b * heads + g) * s->tokens + j;
                if (s->page)
                    row = (s->table[b * s->table_width + j / s->page] * heads + g) * s->page + j % s->page;
                memcpy((char *)to.data + row * row_bytes,
                       (const char *)from + ((b * heads + g) * d->kv_len + s->begin + j) * row_bytes,
                       (size_t)row_bytes);
            }
    return to;
}

/* The same for f32 keys in panels. */
static guarded slice_panels(const problem *p, const shard *s)
{
    const attree_desc *d = &p->desc;
    const int64_t panels = (s->tokens + 15) / 16, width = d->qk_width;
    const guarded to = guarded_floats(d->batch * d->kv_heads * panels * width * 16, false);
    for (int64_t n = 0; n < d->batch * d->kv_heads; n++)
        for (int64_t j = 0; j < s->tokens; j++)
            for (int64_t c = 0; c < width; c++)
                to.data[((n * panels + j / 16) * width + c) * 16 + j % 16] =
                    p->t.k[(n * d->kv_len + s->begin + j) * width + c];
    return to;
}

/* Entries of different sequences alternate, and one page in the middle belongs to nobody. */
static void make_table(const problem *p, shard *s)
{
    static const int64_t sizes[] = {16, 24, 256};
    const int64_t batch = p->desc.batch;
    s->page = sizes[s->begin / BLOCK % 3];
    s->table_width = (s->tokens + s->page - 1) / s->page;
    s->table = filled((size_t)(batch * s->table_width) * sizeof *s->table);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t n = 0; n < s->table_width; n++)
            s->table[b * s->table_width + n] = (int32_t)(n * batch + b + (n * batch + b >= 2));
}

static void make_shard(shard *s, const problem *p, int64_t begin, int64_t end)
{
    const attree_desc *d = &p->desc;
    *s = (shard){.begin = begin, .tokens = end - begin};
    if (p->features & PAGES)
        make_table(p, s);
    s->k =
        p->features & PANELS ? slice_panels(p, s) : slice(p, s, p->t.k, d->qk_width * attree__dtype_bytes(d->k_type));
    s->v = slice(p, s, p->t.v, d->v_width * attree__dtype_bytes(d->v_type));
    s->k_scales = slice(p, s, p->k_scales ? p->k_scales : p->t.k, p->k_scales ? 4 : 0);
    s->v_scales = slice(p, s, p->v_scales ? p->v_scales : p->t.v, p->v_scales ? 4 : 0);
}

static void free_shard(shard *s)
{
    guarded_free(&s->k);
    guarded_free(&s->v);
    guarded_free(&s->k_scales);
    guarded_free(&s->v_scales);
    free(s->table);
}

float *states_of_keys(const problem *p, int64_t begin, int64_t end)
{
    static int number;
    attree_isa isas[8];
    const int isa_count = available_isas(isas);
    shard s;
    make_shard(&s, p, begin, end);
    attree_desc d = p->desc;
    attree_args args = p->args;
    const size_t bytes = (size_t)(rows_of(p) * (d.v_width + 2)) * sizeof(float);
    d.flags |= ATTREE_STATES | (p->features & PANELS ? ATTREE_K_PANELS : 0);
    d.shard_begin = begin;
    d.shard_end = end;
    d.isa = (int32_t)isas[number % isa_count];
    d.threads = number / isa_count % 2 ? 3 : 1;
    number++;
    if (s.page) {
        d.page_size = s.page;
        d.page_count = d.batch * (s.table_width + 1);
        d.table_width = s.table_width;
        args.page_table = s.table;
    }
    args.k = s.k.data;
    args.v = s.v.data;
    args.k_scales = p->k_scales ? s.k_scales.data : NULL;
    args.v_scales = p->v_scales ? s.v_scales.data : NULL;
    args.o = NULL;
    args.lse = NULL;
    args.states = filled(bytes);
    run_expecting(ATTREE_OK, &d, &args); /* with sinks given, which must not count */
    free_shard(&s);
    return args.states;
}

void merge_states(const problem *p, float *result, const float *left, const float *right)
{
    assert_int_equal(attree_states_merge(result, left, right, rows_of(p), p->desc.v_width), ATTREE_OK);
}

/* As the header has it: at the largest power of two below n. */
static int64_t left_blocks(int64_t n)
{
    int64_t left = 1;
    while (left * 2 < n)
        left *= 2;
    return left;
}

float *states_of_node(const problem *p, int64_t first, int64_t count, int depth, random_source *random)
{
    const int64_t end = (first + count) * BLOCK < p->desc.kv_len ? (first + count) * BLOCK : p->desc.kv_len;
    if (depth == 0 || count == 1 || (random && random_integer(random, 0, 1) == 0))
        return states_of_keys(p, first * BLOCK, end);
    const int64_t split = left_blocks(count);
    float *const left = states_of_node(p, first, split, depth - 1, random);
    float *const right = states_of_node(p, first + split, count - split, depth - 1, random);
    if (random) {
        float *const none = states_of_keys(p, (first + split) * BLOCK, (first + split) * BLOCK);
        merge_states(p, left, left, none);
        merge_states(p, right, none, right);
        free(none);
    }
    merge_states(p, left, left, right);
    free(right);
    return left;
}

attree_status finish(const attree_desc *d, const attree_args *args)
{
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, d), ATTREE_OK);
    attree_args a = *args;
    a.size = sizeof a;
    a.workspace_bytes = attree_plan_workspace(plan);
    a.workspace = aligned_alloc(64, a.workspace_bytes);
    assert_non_null(a.workspace);
    memset(a.workspace, 0xff, a.workspace_bytes);
    const attree_status status = attree_finish(plan, &a);
    free(a.workspace);
    attree_plan_destroy(plan);
    return status;
}

float *finished(const problem *p, float *states, bool by_shard)
{
    attree_desc d = p->desc;
    if (by_shard) {
        d.flags |= ATTREE_STATES;
        d.shard_begin = d.shard_end = d.kv_len;
    }
    float *const result = filled((size_t)(p->t.o_count + p->t.lse_count) * sizeof(float));
    const attree_args args = {.states = states,
                              .o = result,
                              .lse = result + p->t.o_count,
                              .sinks = p->args.sinks,
                              .sink_heads = p->args.sink_heads};
    assert_int_equal(finish(&d, &args), ATTREE_OK);
    return result;
}

void assert_finishes_to_the_bits_of_one_run(const problem *p, float *states, bool by_shard)
{
    float *const result = finished(p, states, by_shard);
    assert_same_bits(p->t.o, result, p->t.o_count);
    assert_same_bits(p->t.lse, result + p->t.o_count, p->t.lse_count);
    free(result);
}

double merging_bound(int64_t blocks) { return (double)blocks * 24 * 0x1p-23 + 0x1p-20; }
