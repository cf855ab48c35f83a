/* Partial results: shards merged along the tree have the bits of one run, merged in any other way they are near it; and
 * results in the form (o, lse). */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "support.h"

enum { BLOCK = 256 };

/* ---- A problem over all keys ---- */

enum {
    SINKS = 1,
    ALIBI = 2,
    MASK = 4,
    BIAS = 8,
    SCORE = 16,
    SHORT = 32,   /* kv_lens, less than some shards' keys */
    RAGGED = 64,  /* q_starts */
    PANELS = 128, /* of the shards' keys; those of the whole are dense */
    BITS = 256,   /* the mask's kind */
    PAGES = 512   /* of the shards' keys: of 16, 24 or 256 tokens */
};

enum { ENTRIES = 3, HEADS = 6, QUERIES = 40 }; /* the most of any problem here */

typedef struct problem {
    attree_desc desc;
    attree_args args;
    tensors t;
    unsigned features;
    uint8_t *mask;
    float *bias, *k_scales, *v_scales;
    float slopes[HEADS], sinks[HEADS];
    int64_t lens[ENTRIES], starts[ENTRIES + 1];
} problem;

static void *filled(size_t bytes)
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

/* desc with q_heads and so on set; pointers in the problem point into it, so it stays where it is. */
static void make_problem(problem *p, const attree_desc *desc, unsigned features, uint64_t seed)
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
    memset(p->t.o, 0xff, (size_t)p->t.o_count * sizeof(float));
    memset(p->t.lse, 0xff, (size_t)p->t.lse_count * sizeof(float));
}

static void free_problem(problem *p)
{
    free(p->mask);
    free(p->bias);
    free(p->k_scales);
    free(p->v_scales);
    free_tensors(&p->t);
}

static int64_t rows_of(const problem *p)
{
    return (p->desc.q_starts ? 1 : p->desc.batch) * p->desc.q_heads * p->desc.q_len;
}

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

/* The states of the keys begin <= j < end. Each shard on another instruction set, by turns with one thread and three.
 * Freed by the caller. */
static float *states_of_keys(const problem *p, int64_t begin, int64_t end)
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

static void merge_states(const problem *p, float *result, const float *left, const float *right)
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

/* The states of a node of the tree, cut `depth` times; where random is given, only half of the cuts are made, and empty
 * shards come in between. */
static float *states_of_node(const problem *p, int64_t first, int64_t count, int depth, random_source *random)
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

static attree_status finish(const attree_desc *d, const attree_args *args)
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

/* o and lse of the states, as a pair concatenated; by the plan of a shard, or of all keys. Freed by the caller. */
static float *finished(const problem *p, float *states, bool by_shard)
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

static void assert_finishes_to_the_bits_of_one_run(const problem *p, float *states, bool by_shard)
{
    float *const result = finished(p, states, by_shard);
    assert_same_bits(p->t.o, result, p->t.o_count);
    assert_same_bits(p->t.lse, result + p->t.o_count, p->t.lse_count);
    free(result);
}

/* ---- Shards ---- */

typedef struct kind {
    int64_t batch, q_heads, kv_heads, q_len;
    uint32_t flags;
    unsigned features;
    int32_t q_type, k_type, v_type, o_type;
    float softcap;
    int64_t left, right;
} kind;

#define WINDOW ATTREE_USE_WINDOW
static const kind kinds[] = {
    {1, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},                                        /* decode */
    {2, 4, 2, 33, ATTREE_CAUSAL, 0, 0, 0, 0, 0, 0, 0, 0},                           /* prefill at the end */
    {1, 6, 1, 40, ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET, SINKS, 0, 0, 0, 0, 0, 0, 0}, /* at the start: sees one block */
    {1, 6, 2, 5, WINDOW, SINKS | ALIBI, 0, 0, 0, ATTREE_F16, 0, 300, 10},           /* some shards see nothing */
    {1, 2, 2, 9, 0, MASK | BIAS, 0, 0, 0, ATTREE_BF16, 1.5f, 0, 0},                 /* terms of all sorts */
    {2, 3, 3, 4, 0, MASK | BITS | SINKS, 1, 2, 1, 0, 0, 0, 0},                      /* types */
    {3, 4, 2, 3, ATTREE_CAUSAL, SHORT | SINKS, 0, 0, 0, 0, 0, 0, 0},                /* short entries */
    {3, 4, 2, 3, WINDOW, SHORT | ALIBI, 0, 1, 2, 0, 3.0f, 100, 100},                /* windows of short entries */
    {3, 6, 2, 7, ATTREE_CAUSAL, RAGGED | SHORT | SINKS, 0, 0, 0, ATTREE_F16, 0, 0, 0} /* ragged */,
    {2, 4, 1, 6, ATTREE_CAUSAL, SCORE | ALIBI | SINKS, 0, 0, 0, 0, 0, 0, 0}, /* the caller's function */
    {2, 4, 2, 2, ATTREE_CAUSAL, PAGES | SHORT, 0, 0, 0, 0, 0, 0, 0},         /* pages */
    {3, 4, 2, 5, 0, PAGES | RAGGED | BIAS | SINKS, 0, ATTREE_BF16, ATTREE_F16, 0, 0, 0, 0},
    {2, 4, 2, 3, ATTREE_CAUSAL, PANELS, 0, 0, 0, 0, 0, 0, 0},                          /* panels */
    {2, 4, 2, 3, 0, SINKS, 0, ATTREE_I8, ATTREE_I8, 0, 0, 0, 0},                       /* scales */
    {2, 4, 2, 3, WINDOW, PAGES, 0, ATTREE_I8, ATTREE_F8_E4M3, ATTREE_BF16, 0, 900, 0}, /* scales in pages */
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void make_kind(problem *p, int n, int64_t kv_len, uint64_t seed)
{
    const kind *k = &kinds[n];
    attree_desc d = make_desc(k->batch, k->q_heads, k->kv_heads, k->q_len, kv_len, 20, 24);
    d.flags = k->flags;
    d.q_type = k->q_type;
    d.k_type = k->k_type;
    d.v_type = k->v_type;
    d.o_type = k->o_type;
    d.softcap = k->softcap;
    d.window_left = k->left;
    d.window_right = k->right;
    make_problem(p, &d, k->features, seed);
}

static void shards_along_the_tree_give_the_bits_of_one_run(void **state)
{
    (void)state;
    const int64_t blocks[] = {1, 2, 3, 5, 7, 8, 13}, last[] = {256, 1, 100, 255};
    random_source random = {77};
    for (int n = 0; n < KINDS; n++)
        for (int c = 0; c < 7; c++) {
            if (thinned_out())
                continue;
            problem p;
            make_kind(&p, n, (blocks[c] - 1) * BLOCK + last[(n + c) % 4], (uint64_t)(n * 7 + c));
            run_expecting(ATTREE_OK, &p.desc, &p.args);
            bool whole = false; /* cut into single blocks */
            for (int depth = 0; !whole; depth++) {
                float *const states = states_of_node(&p, 0, blocks[c], depth, NULL);
                assert_finishes_to_the_bits_of_one_run(&p, states, depth % 2 == 0);
                free(states);
                whole = (int64_t)1 << depth >= blocks[c];
            }
            float *const states = states_of_node(&p, 0, blocks[c], 64, &random);
            assert_finishes_to_the_bits_of_one_run(&p, states, true);
            free(states);
            free_problem(&p);
        }
}

/* Enough queries that a shard's run has three workers, with and without chunks of keys. */
static void shards_of_several_workers_give_the_bits_of_one_run(void **state)
{
    (void)state;
    const int64_t q_lens[] = {1, 300};
    for (int n = 0; n < 2; n++) {
        attree_desc d = make_desc(1, 4, 1, q_lens[n], 7 * BLOCK + 11, 64, 72);
        d.flags = ATTREE_CAUSAL;
        problem p;
        make_problem(&p, &d, SINKS, 500 + (uint64_t)n);
        run_expecting(ATTREE_OK, &p.desc, &p.args);
        for (int depth = 0; depth < 4; depth++) {
            if (depth != 2 && thinned_out())
                continue;
            float *const states = states_of_node(&p, 0, 8, depth, NULL);
            assert_finishes_to_the_bits_of_one_run(&p, states, depth % 2 == 0);
            free(states);
        }
        free_problem(&p);
    }
}

/* States do not depend on the instruction set or the number of threads either, those of rows with a NaN or an infinite
 * score included. */
static void states_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int n = 0; n < 3 * KINDS; n++) {
        attree_isa isas[8];
        const int turns = 2 * available_isas(isas);
        problem p;
        make_kind(&p, n / 3, 3 * BLOCK + 50, 300 + (uint64_t)n);
        const float spoilt[] = {p.t.q[0], -NAN, INFINITY}; /* in the first query */
        attree__store(p.t.q, p.desc.q_type, 0, spoilt[n % 3]);
        const int64_t count = rows_of(&p) * (p.desc.v_width + 2);
        float *const first = states_of_keys(&p, 2 * BLOCK, p.desc.kv_len);
        for (int turn = 1; turn < turns; turn++) {
            float *const next = states_of_keys(&p, 2 * BLOCK, p.desc.kv_len);
            assert_same_bits(first, next, count);
            free(next);
        }
        free(first);
        free_problem(&p);
    }
}

/* A merge costs a weight, whose exp has 1 ulp and whose argument is a rounded difference of scores within +-5 (together
 * 5 * 2^-23 relative), and two roundings (2^-23): 6 * 2^-23 for l and for u, twice that for o. No key passes through
 * more than `blocks` merges on either side of the comparison, and no value is beyond 1: blocks * 24 * 2^-23, and half
 * of it for lse, which is itself rounded (values up to 16: 2^-20). */
static double merging_bound(int64_t blocks) { return (double)blocks * 24 * 0x1p-23 + 0x1p-20; }

/* Any cut at block boundaries, merged in any order, right before left too. */
static void shards_in_any_order_are_near_one_run(void **state)
{
    (void)state;
    enum { BLOCKS = 13 };
    random_source random = {5};
    for (int n = 0; n < 60; n++) {
        if (thinned_out() || kinds[n % KINDS].o_type != ATTREE_F32)
            continue;
        problem p;
        make_kind(&p, n % KINDS, BLOCKS * BLOCK - random_integer(&random, 0, 255), 700 + (uint64_t)n);
        run_expecting(ATTREE_OK, &p.desc, &p.args);
        float *parts[BLOCKS + 1];
        int count = 0;
        for (int64_t from = 0; from < BLOCKS;) {
            const int64_t to = from + random_integer(&random, 1, n % 2 ? 3 : BLOCKS - from);
            const int64_t end = to * BLOCK < p.desc.kv_len ? to * BLOCK : p.desc.kv_len;
            parts[count++] = states_of_keys(&p, from * BLOCK, end);
            from = to;
        }
        while (count > 1) {
            const int64_t a = random_integer(&random, 0, count - 1);
            const int64_t b = (a + random_integer(&random, 1, count - 1)) % count;
            merge_states(&p, parts[a], parts[a], parts[b]);
            free(parts[b]);
            parts[b] = parts[--count];
        }
        float *const result = finished(&p, parts[0], true);
        for (int64_t i = 0; i < p.t.o_count + p.t.lse_count; i++) {
            const float expected = i < p.t.o_count ? p.t.o[i] : p.t.lse[i - p.t.o_count];
            assert_true(close_to((double)expected, (double)result[i], merging_bound(BLOCKS)));
        }
        free(result);
        free(parts[0]);
        free_problem(&p);
    }
}

static void assert_empty_state(const float *s, int64_t v_width)
{
    float empty[64];
    assert_int_equal(attree_state_init_f32(empty, v_width), ATTREE_OK);
    assert_same_bits(empty, s, v_width + 2);
}

/* Whatever hides the keys, and with values that would show if they were multiplied by zero. */
static void rows_that_see_nothing_have_the_empty_state(void **state)
{
    (void)state;
    enum { K = 3 * BLOCK, Q = 5, E = 24 };
    static uint8_t mask[Q * K];
    static float bias[K];
    for (int j = 0; j < K; j++)
        bias[j] = j >= BLOCK && j < 2 * BLOCK ? -INFINITY : 0.0f;
    for (int n = 0; n < Q * K; n++)
        mask[n] = bias[n % K] == 0.0f;
    for (int way = 0; way < 5; way++)
        for (int turn = 0; turn < 8; turn++) { /* instruction sets */
            attree_desc d = make_desc(2, 2, 1, Q, K, 20, E);
            d.q_offset = way == 0 ? BLOCK - Q : 2 * BLOCK + 10;
            d.flags = ATTREE_USE_Q_OFFSET | (way == 0 ? ATTREE_CAUSAL : way == 1 ? ATTREE_USE_WINDOW : 0);
            d.window_left = d.window_right = 5;
            d.mask.batches = d.mask.heads = d.bias.batches = d.bias.heads = d.bias.queries = 1;
            problem p;
            make_problem(&p, &d, SINKS, 900);
            const int64_t lens[] = {BLOCK, 7};
            p.desc.kv_lens = way == 2 ? lens : NULL;
            p.args.mask = way == 3 ? mask : NULL;
            p.args.bias = way == 4 ? bias : NULL;
            for (int64_t n = 0; n < p.t.v_count; n += 3)
                p.t.v[n] = n % 2 ? INFINITY : NAN;
            float *const states = states_of_keys(&p, BLOCK, 2 * BLOCK);
            for (int64_t r = 0; r < rows_of(&p); r++)
                assert_empty_state(states + r * (E + 2), E);
            free(states);
            free_problem(&p);
        }
}

static void empty_shards_have_empty_states(void **state)
{
    (void)state;
    const int64_t at[] = {256, 512, 700};
    for (int n = 0; n < KINDS; n++)
        for (int i = 0; i < 3; i++) {
            problem p;
            make_kind(&p, n, 700, 950);
            float *const states = states_of_keys(&p, at[i], at[i]);
            for (int64_t r = 0; r < rows_of(&p); r++)
                assert_empty_state(states + r * 26, 24);
            free(states);
            free_problem(&p);
        }
}

/* Keys of NaN or infinity: in the shard that holds them, rows that see them have m = inf and l = NaN; finished they are
 * NaN, and all other rows have the bits that they have without them. */
static void poisoned_rows_stay_so_and_spoil_no_other(void **state)
{
    (void)state;
    enum { K = 4 * BLOCK + 9, Q = 12, D = 20, E = 24, BAD = K - 6 };
    for (int turn = 0; turn < 24; turn++) {
        attree_desc d = make_desc(1, 2, 1, Q, K, D, E);
        d.flags = ATTREE_CAUSAL;
        problem p;
        make_problem(&p, &d, turn % 2 ? SINKS : 0, 1000);
        for (int64_t n = 0; n < p.t.q_count; n++)
            p.t.q[n] = fabsf(p.t.q[n]) + 0.5f; /* a key of infinities has the score inf, not inf - inf */
        float *const clean = result_of(&p.desc, &p.t);
        for (int64_t c = 0; c < D; c++)
            p.t.k[(int64_t)BAD * D + c] = turn % 4 < 2 ? NAN : INFINITY;
        run_expecting(ATTREE_OK, &p.desc, &p.args);
        float *const states = states_of_node(&p, 0, 5, 1 + turn % 3, NULL);
        assert_finishes_to_the_bits_of_one_run(&p, states, true);
        for (int64_t r = 0; r < rows_of(&p); r++) {
            const bool bad = r % Q + K - Q >= BAD;
            const float *const s = states + r * (E + 2);
            assert_true(bad ? s[0] == INFINITY && isnan(s[1]) : isfinite(s[0]) && isfinite(s[1]));
            assert_true((isnan(p.t.o[r * E]) != 0) == bad);
            if (!bad && !p.args.sinks)
                assert_same_bits(clean + r * E, p.t.o + r * E, E);
        }
        free(states);
        free(clean);
        free_problem(&p);
    }
}

/* A state that somebody else spoilt, in m, in l or in u, is NaN where it was spoilt, whatever it is merged with. */
static void merging_keeps_nan(void **state)
{
    (void)state;
    const float others[] = {-1e30f, -100.0f, 0.0f, 100.0f, 1e30f};
    for (int n = 0; n < 5 * 3 * 2; n++) {
        const int spoilt = n / 2 % 3;
        float bad[4] = {1.0f, 2.0f, 3.0f, 4.0f}, merged[4];
        bad[spoilt] = NAN;
        const float good[4] = {others[n / 6], 2.0f, 3.0f, 4.0f};
        assert_int_equal(attree_states_merge(merged, n % 2 ? good : bad, n % 2 ? bad : good, 1, 2), ATTREE_OK);
        attree_desc d = make_desc(1, 1, 1, 1, 8, 4, 2);
        float o[2], lse;
        assert_int_equal(finish(&d, &(attree_args){.states = merged, .o = o, .lse = &lse}), ATTREE_OK);
        assert_true(isnan(o[0]));
        assert_true(spoilt == 2 ? isfinite(o[1]) && isfinite(lse) : isnan(o[1]) && isnan(lse));
    }
}

/* Many rows at once have the bits of each alone by the state algebra, in place too; empty states are neutral. */
static void merging_rows_is_merging_each(void **state)
{
    (void)state;
    enum { ROWS = 200, E = 13, N = E + 2 };
    random_source random = {31};
    float left[ROWS * N], right[ROWS * N], expected[ROWS * N], result[ROWS * N];
    for (int r = 0; r < ROWS; r++) {
        fill_random(left + r * N, N, &random, -1.0f, 1.0f);
        fill_random(right + r * N, N, &random, -1.0f, 1.0f);
        left[r * N] = random_float(&random, -60.0f, 60.0f);
        right[r * N] = random_float(&random, -60.0f, 60.0f);
        left[r * N + 5] = -0.0f;
        right[r * N + 5] = r % 2 ? -0.0f : 0.0f;
        if (r % 5 == 0)
            attree_state_init_f32(left + r * N, E);
        if (r % 7 == 0)
            attree_state_init_f32(right + r * N, E);
        assert_int_equal(attree_state_merge_f32(expected + r * N, left + r * N, right + r * N, E), ATTREE_OK);
        if (r % 5 == 0 || r % 7 == 0)
            assert_same_bits(expected + r * N, (r % 7 == 0 ? left : right) + r * N, N);
    }
    assert_int_equal(attree_states_merge(result, left, right, ROWS, E), ATTREE_OK);
    assert_same_bits(expected, result, ROWS * N);
    memcpy(result, left, sizeof left);
    assert_int_equal(attree_states_merge(result, result, right, ROWS, E), ATTREE_OK);
    assert_same_bits(expected, result, ROWS * N);
    memcpy(result, right, sizeof right);
    assert_int_equal(attree_states_merge(result, left, result, ROWS, E), ATTREE_OK);
    assert_same_bits(expected, result, ROWS * N);
    assert_int_equal(attree_states_merge(NULL, NULL, NULL, 0, E), ATTREE_OK);
}

/* ---- Finishing ---- */

/* A sink counts once however many shards there are and whichever of them are empty; it may be all that a row has. */
static void a_sink_counts_once(void **state)
{
    (void)state;
    const int64_t shards[] = {1, 2, 3, 8};
    for (int n = 0; n < 4; n++)
        for (int hidden = 0; hidden < 3; hidden++) { /* nothing; the first shard; everything */
            const int64_t keys = shards[n] * BLOCK;
            attree_desc d = make_desc(1, 1, 1, 1, keys, 4, 2);
            problem p;
            make_problem(&p, &d, SINKS, 1);
            memset(p.t.k, 0, (size_t)p.t.k_count * sizeof(float));
            for (int64_t i = 0; i < p.t.v_count; i++)
                p.t.v[i] = 1.0f;
            p.sinks[0] = 1.0f;
            p.mask = calloc((size_t)keys, 1);
            const int64_t from = hidden == 0 ? 0 : hidden == 1 ? BLOCK : keys;
            memset(p.mask + from, 1, (size_t)(keys - from));
            p.args.mask = p.mask;
            float *const states = states_of_node(&p, 0, shards[n], 64, NULL);
            float *const result = finished(&p, states, true);
            const double seen = (double)(keys - from), all = seen + exp(1.0);
            assert_true(close_to(seen / all, (double)result[0], 0x1p-22));
            assert_true(close_to(log(all), (double)result[2], 0x1p-20));
            if (from == keys) {
                assert_same_bits(result, ((float[2]){0.0f, 0.0f}), 2);
                assert_same_bits(result + 2, p.sinks, 1);
            }
            free(result);
            free(states);
            free_problem(&p);
        }
}

static void finishing_obeys_the_rule_for_empty_rows(void **state)
{
    (void)state;
    enum { K = 2 * BLOCK, Q = 4, E = 24 };
    for (int32_t rule = ATTREE_EMPTY_ZERO; rule <= ATTREE_EMPTY_ERROR; rule++)
        for (int with_lse = 0; with_lse < 2; with_lse++) {
            attree_desc d = make_desc(2, 2, 1, Q, K, 20, E);
            d.flags = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET;
            d.q_offset = -2; /* queries 0 and 1 see nothing */
            d.empty_rows = rule;
            d.o = (attree_strides){1, 2 * Q * E * 2, 2 * E * 2, 4}; /* batches interleaved, every other float free */
            problem p;
            make_problem(&p, &d, 0, 1100);
            float *const states = states_of_node(&p, 0, 2, 1, NULL);
            const attree_status expected = rule == ATTREE_EMPTY_ERROR ? ATTREE_ERROR_EMPTY : ATTREE_OK;
            float o[2][4 * 2 * 2 * Q * E], lse[2][2 * 2 * Q];
            memset(o, 0xff, sizeof o);
            memset(lse, 0xff, sizeof lse);
            p.args.o = o[0];
            p.args.lse = with_lse ? lse[0] : NULL;
            run_expecting(expected, &p.desc, &p.args);
            const attree_args args = {.states = states, .o = o[1], .lse = with_lse ? lse[1] : NULL};
            assert_int_equal(finish(&p.desc, &args), expected);
            if (rule == ATTREE_EMPTY_ERROR)
                assert_non_null(strstr(attree_last_error(), "query 0 of head 0, batch 0"));
            assert_same_bits(o[0], o[1], sizeof o[0] / sizeof(float));
            assert_same_bits(lse[0], lse[1], sizeof lse[0] / sizeof(float));
            const float first = o[1][0];
            assert_true(rule == ATTREE_EMPTY_NAN ? isnan(first) != 0 : first == 0.0f);
            free(states);
            free_problem(&p);
        }
}

static void finishing_refuses_what_it_must(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 1, 1, 2, 300, 4, 2);
    float states[8] = {0.0f, 1.0f, 1.0f, 1.0f, 0.0f, 1.0f, 1.0f, 1.0f}, o[4], lse[2], zeros[4] = {0.0f};
    const float nan_sink = NAN;
    memset(o, 0xff, sizeof o);
    const struct {
        attree_status status;
        attree_args args;
    } cases[] = {
        {ATTREE_ERROR_NULL, {.o = o, .lse = lse}},
        {ATTREE_ERROR_NULL, {.states = states, .lse = lse}},
        {ATTREE_ERROR_ALIAS, {.states = states, .o = states + 4, .lse = lse}},
        {ATTREE_ERROR_ALIAS, {.states = states, .o = o, .lse = states}},
        {ATTREE_ERROR_ALIAS, {.states = states, .o = zeros, .sinks = zeros + 3, .sink_heads = 1}},
        {ATTREE_ERROR_SHAPE, {.states = states, .o = o, .sinks = &nan_sink, .sink_heads = 2}},
        {ATTREE_ERROR_NONFINITE, {.states = states, .o = o, .sinks = &nan_sink, .sink_heads = 1}},
        {ATTREE_ERROR_ALIGN, {.states = (float *)(void *)((char *)states + 1), .o = o}},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        assert_int_equal(finish(&d, &cases[n].args), cases[n].status);
    assert_true(isnan(o[0]) && isnan(o[3]));
    d.q_len = 0;
    assert_int_equal(finish(&d, &(attree_args){.size = 0}), ATTREE_OK);
    assert_int_equal(attree_states_merge(states, NULL, states, 1, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_states_merge(states, states, states, -1, 2), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_states_merge(states, states, states, 1, 0), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_states_merge(states, states, states, INT64_MAX / 2, 2), ATTREE_ERROR_OVERFLOW);
}

/* o of two bytes for each row fits 64 bits, states of twelve do not. */
static void states_of_too_many_rows_are_not_finished(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 1, 1, (int64_t)1 << 59, 0, 0, 1);
    d.o_type = ATTREE_F16;
    float states[3] = {0.0f, 1.0f, 1.0f};
    assert_int_equal(finish(&d, &(attree_args){.states = states, .o = states}), ATTREE_ERROR_OVERFLOW);
}

static void trees_split_at_the_largest_power_of_two_below(void **state)
{
    (void)state;
    const int64_t splits[][2] = {{-1, 0}, {0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 4}, {8, 4}, {9, 8}, {1000, 512}};
    for (int n = 0; n < 10; n++)
        assert_int_equal(attree_tree_split(splits[n][0]), splits[n][1]);
    assert_int_equal(attree_tree_split(INT64_MAX), (int64_t)1 << 62);
}

/* ---- Results in the form (o, lse) ---- */

typedef struct output {
    float o[16]; /* of any float type */
    float lse;
} output;

static output make_output(int32_t type, float o, float lse)
{
    output result = {.lse = lse};
    memset(result.o, 0xff, sizeof result.o);
    for (int e = 0; e < 5; e++)
        attree__store(result.o, type, e, o + 0.25f * (float)e);
    return result;
}

static void merge_outputs(output *to, const output *other, int32_t type)
{
    assert_int_equal(attree_merge_outputs(to->o, &to->lse, other->o, &other->lse, type, 1, 5), ATTREE_OK);
}

static double o_of(const output *a, int32_t type, int e) { return (double)attree__load(a->o, type, e); }

/* All orders of {empty, (7, 1.5)}, with rubbish in an empty side's o: the full side keeps its bits. */
static void an_empty_output_is_neutral(void **state)
{
    (void)state;
    for (int32_t type = ATTREE_F32; type <= ATTREE_BF16; type++) {
        const output full = make_output(type, 7.0f, 1.5f), none = make_output(type, NAN, -INFINITY);
        const output junk = make_output(type, 3e4f, -INFINITY);
        output a = full;
        merge_outputs(&a, &none, type);
        assert_memory_equal(&a, &full, sizeof a);
        a = none;
        merge_outputs(&a, &full, type);
        assert_memory_equal(&a, &full, sizeof a);
        a = none;
        merge_outputs(&a, &junk, type);
        assert_true(a.lse == -INFINITY);
        for (int e = 0; e < 5; e++)
            assert_true(o_of(&a, type, e) == 0.0 && !signbit(o_of(&a, type, e)));
        merge_outputs(&a, &full, type); /* and what came of it is neutral again */
        assert_memory_equal(a.o, full.o, 5 * (size_t)attree__dtype_bytes(type));
        a = full;
        merge_outputs(&a, &full, type); /* twice the weight, the same values */
        assert_memory_equal(a.o, full.o, sizeof a.o);
        assert_true(close_to((double)a.lse, 1.5 + log(2.0), 0x1p-22));
        a = full;
        merge_outputs(&a, &a, type); /* the other may be the same memory */
        assert_memory_equal(a.o, full.o, sizeof a.o);
    }
}

/* The last bit of a number near x. */
static double unit(int32_t type, double x)
{
    const int bits = type == ATTREE_F32 ? 24 : type == ATTREE_F16 ? 11 : 8;
    return ldexp(1.0, ilogb(x) + 1 - bits);
}

/* Log-add, not addition of lse; against double. In f32 the weights cost 3 units, the sum, the products and the quotient
 * 2 more each of the larger o; rounding to another type half a unit of it. */
static void outputs_merge_by_their_weights(void **state)
{
    (void)state;
    const float apart[] = {0.0f, 1e-8f, 1.0f, 50.0f, 100.0f, 1e4f, 1e30f}, at[] = {0.0f, 1.5f, -20.0f, 1e5f, -1e5f};
    for (int n = 0; n < 7 * 5 * 3 * 2; n++) {
        const int32_t type = n % 3;
        const float base = at[n / 3 % 5], other = n / 15 % 2 ? base + apart[n / 30] : base - apart[n / 30];
        const output a = make_output(type, 0.75f, base), b = make_output(type, -1.25f, other);
        output ab = a, ba = b;
        merge_outputs(&ab, &b, type);
        merge_outputs(&ba, &a, type);
        const double m = fmax((double)base, (double)other), w = exp((double)base - m), v = exp((double)other - m);
        const double tolerance = 8 * unit(ATTREE_F32, 1.75) + (type == ATTREE_F32 ? 0.0 : unit(type, 1.75) / 2);
        for (int e = 0; e < 5; e++) {
            const double expected = (w * o_of(&a, type, e) + v * o_of(&b, type, e)) / (w + v);
            assert_true(close_to(expected, o_of(&ab, type, e), tolerance));
            assert_true(close_to(expected, o_of(&ba, type, e), tolerance));
            assert_true(close_to(o_of(&ab, type, e), o_of(&ba, type, e), /* the order costs 2 units at most */
                                 2 * unit(type, 1.75)));
        }
        const double lse = m + log(w + v);
        assert_true(close_to(lse, (double)ab.lse, 2 * unit(ATTREE_F32, fmax(fabs(lse), 1.0))));
        assert_true(ab.lse == ba.lse);
    }
}

/* (a b) c and a (b c), with lse a few apart: rounding of lse changes a weight by a unit of lse, relatively. */
static void merging_outputs_is_associative_within_rounding(void **state)
{
    (void)state;
    random_source random = {99};
    for (int n = 0; n < 3000; n++) {
        output x[3], left, right;
        for (int i = 0; i < 3; i++)
            x[i] = make_output(0, random_float(&random, -1.0f, 0.0f), random_float(&random, -4.0f, 4.0f));
        left = x[0];
        merge_outputs(&left, &x[1], 0);
        merge_outputs(&left, &x[2], 0);
        right = x[1];
        merge_outputs(&right, &x[2], 0);
        output first = x[0];
        merge_outputs(&first, &right, 0);
        for (int e = 0; e < 5; e++)
            assert_true(close_to(o_of(&left, 0, e), o_of(&first, 0, e), 0x1p-20));
        assert_true(close_to((double)left.lse, (double)first.lse, 2 * unit(ATTREE_F32, 5.0)));
    }
}

/* 1000 results, one after the other and pairwise, some of them empty; against double. An lse around 8 has units of
 * 2^-21; a chain may lose half a unit of it, and 8 of o, at each step, and a tree at each of its 10 levels. */
static void a_chain_of_outputs_is_near_a_tree(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static output x[COUNT];
    random_source random = {1};
    double sum[6] = {0.0};
    for (int n = 0; n < COUNT; n++) {
        x[n] = make_output(0, random_float(&random, -1.0f, 0.0f), random_float(&random, -2.0f, 2.0f));
        if (n % 10 == 0 || n == COUNT - 1)
            x[n] = make_output(0, NAN, -INFINITY);
        else
            sum[5] += exp((double)x[n].lse);
        for (int e = 0; e < 5 && x[n].lse > -INFINITY; e++)
            sum[e] += exp((double)x[n].lse) * o_of(&x[n], 0, e);
    }
    output chain = x[0];
    for (int n = 1; n < COUNT; n++)
        merge_outputs(&chain, &x[n], 0);
    for (int step = 1; step < COUNT; step *= 2)
        for (int n = 0; n + step < COUNT; n += 2 * step)
            merge_outputs(&x[n], &x[n + step], 0);
    for (int e = 0; e < 5; e++) {
        assert_true(close_to(sum[e] / sum[5], o_of(&chain, 0, e), COUNT * 0x1p-21));
        assert_true(close_to(sum[e] / sum[5], o_of(&x[0], 0, e), 10 * 0x1p-20));
    }
    assert_true(close_to(log(sum[5]), (double)chain.lse, COUNT * 0x1p-22));
    assert_true(close_to(log(sum[5]), (double)x[0].lse, 10 * 0x1p-21));
}

/* +inf in any row, on either side: refused, and no row has changed. NaN: that row only. */
static void outputs_that_are_not_numbers(void **state)
{
    (void)state;
    enum { ROWS = 4, E = 3 };
    for (int n = 0; n < ROWS * 3 * 4; n++) {
        const int32_t type = n % 3;
        const int row = n / 3 % ROWS, way = n / (3 * ROWS); /* inf or NaN, on one side or the other */
        float o[2][ROWS * E], lse[2][ROWS], before_o[2][ROWS * E], before_lse[2][ROWS];
        memset(o, 0, sizeof o);
        for (int i = 0; i < 2 * ROWS; i++) {
            lse[i / ROWS][i % ROWS] = 0.5f * (float)i;
            for (int e = 0; e < E; e++)
                attree__store(o[i / ROWS], type, i % ROWS * E + e, (float)(i + e));
        }
        lse[way % 2][row] = way < 2 ? INFINITY : NAN;
        if (row == 1)
            lse[1 - way % 2][row] = -INFINITY;
        memcpy(before_o, o, sizeof o);
        memcpy(before_lse, lse, sizeof lse);
        const attree_status status = attree_merge_outputs(o[0], lse[0], o[1], lse[1], type, ROWS, E);
        if (way < 2) {
            assert_int_equal(status, ATTREE_ERROR_NONFINITE);
            assert_memory_equal(o, before_o, sizeof o);
            assert_memory_equal(lse, before_lse, sizeof lse);
            continue;
        }
        assert_int_equal(status, ATTREE_OK);
        assert_memory_equal(o[1], before_o[1], sizeof o[1]);
        for (int i = 0; i < ROWS; i++) {
            assert_true((isnan(lse[0][i]) != 0) == (i == row));
            for (int e = 0; e < E; e++)
                assert_true((isnan(attree__load(o[0], type, i * E + e)) != 0) == (i == row));
        }
    }
}

static void merging_outputs_refuses_what_it_must(void **state)
{
    (void)state;
    float o[4] = {1.0f, 2.0f, 3.0f, 4.0f}, lse[2] = {0.0f, 0.0f};
    assert_int_equal(attree_merge_outputs(NULL, NULL, NULL, NULL, ATTREE_F16, 0, 2), ATTREE_OK);
    assert_int_equal(attree_merge_outputs(NULL, lse, o, lse, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, NULL, o, lse, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, lse, NULL, lse, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, lse, o, NULL, 0, 2, 2), ATTREE_ERROR_NULL);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, ATTREE_I8, 2, 2), ATTREE_ERROR_TYPE);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, 0, -1, 2), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, 0, 2, 0), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_merge_outputs(o, lse, o, lse, 0, INT64_MAX / 8, 64), ATTREE_ERROR_OVERFLOW);
    assert_int_equal(attree_merge_outputs((char *)o + 1, lse, o, lse, 1, 1, 1), ATTREE_ERROR_ALIGN);
    assert_true(o[0] == 1.0f && lse[0] == 0.0f);
}

/* Two runs over the keys before and after any token, as engines have them, against one run over all. */
static void merged_outputs_are_attention_over_the_union(void **state)
{
    (void)state;
    enum { K = 900, Q = 4, H = 4, G = 2, D = 32, E = 40 };
    const int64_t cuts[] = {0, 1, 100, 256, 899, 900};
    for (int n = 0; n < 6 * 3; n++) {
        const int32_t type = n % 3;
        attree_desc d = make_desc(1, H, G, Q, K, D, E);
        d.o_type = type;
        tensors t = make_tensors(&d, 1200);
        run_tensors(&d, &t);
        const int64_t begin[] = {0, cuts[n / 3]}, end[] = {cuts[n / 3], K};
        float o[2][H * Q * E], lse[2][H * Q];
        for (int part = 0; part < 2; part++) {
            attree_desc some = d;
            some.kv_len = end[part] - begin[part];
            some.k = (attree_strides){0, (int64_t)K * D, D, 1};
            some.v = (attree_strides){0, (int64_t)K * E, E, 1};
            const attree_args args = {
                .q = t.q, .k = t.k + begin[part] * D, .v = t.v + begin[part] * E, .o = o[part], .lse = lse[part]};
            run_expecting(ATTREE_OK, &some, &args);
        }
        assert_int_equal(attree_merge_outputs(o[0], lse[0], o[1], lse[1], type, H * Q, E), ATTREE_OK);
        /* three roundings to the type: of either side, of the sum */
        const double tolerance = merging_bound(4) + (type == ATTREE_F32 ? 0.0 : 1.5 * unit(type, 0.75));
        for (int64_t i = 0; i < t.o_count; i++)
            assert_true(close_to((double)attree__load(t.o, type, i), (double)attree__load(o[0], type, i), tolerance));
        for (int64_t i = 0; i < t.lse_count; i++)
            assert_true(close_to((double)t.lse[i], (double)lse[0][i], merging_bound(4)));
        free_tensors(&t);
    }
}

/* ---- The caller's rounding mode ---- */

static void rounding_mode_does_not_matter(void **state)
{
    (void)state;
    attree_desc d = make_desc(1, 2, 1, 3, 2 * BLOCK, 20, 24);
    problem p;
    make_problem(&p, &d, SINKS, 1300);
    float *const left = states_of_keys(&p, 0, BLOCK), *const right = states_of_keys(&p, BLOCK, 2 * BLOCK);
    float *const merged = filled(6 * 26 * sizeof(float)), *const again = filled(6 * 26 * sizeof(float));
    output a = make_output(0, 0.3f, 0.1f), b = a;
    const output other = make_output(0, -0.7f, 1.7f);
    merge_states(&p, merged, left, right);
    float *const result = finished(&p, merged, true);
    merge_outputs(&a, &other, 0);
    assert_int_equal(fesetround(FE_UPWARD), 0);
    merge_states(&p, again, left, right);
    float *const result_again = finished(&p, again, true);
    merge_outputs(&b, &other, 0);
    const int mode = fegetround();
    fesetround(FE_TONEAREST);
    assert_int_equal(mode, FE_UPWARD);
    assert_same_bits(merged, again, (int64_t)6 * 26);
    assert_same_bits(result, result_again, p.t.o_count + p.t.lse_count);
    assert_memory_equal(&a, &b, sizeof a);
    free(left);
    free(right);
    free(merged);
    free(again);
    free(result);
    free(result_again);
    free_problem(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_along_the_tree_give_the_bits_of_one_run),
        cmocka_unit_test(shards_of_several_workers_give_the_bits_of_one_run),
        cmocka_unit_test(states_have_the_same_bits_everywhere),
        cmocka_unit_test(shards_in_any_order_are_near_one_run),
        cmocka_unit_test(rows_that_see_nothing_have_the_empty_state),
        cmocka_unit_test(empty_shards_have_empty_states),
        cmocka_unit_test(poisoned_rows_stay_so_and_spoil_no_other),
        cmocka_unit_test(merging_keeps_nan),
        cmocka_unit_test(merging_rows_is_merging_each),
        cmocka_unit_test(a_sink_counts_once),
        cmocka_unit_test(finishing_obeys_the_rule_for_empty_rows),
        cmocka_unit_test(finishing_refuses_what_it_must),
        cmocka_unit_test(states_of_too_many_rows_are_not_finished),
        cmocka_unit_test(trees_split_at_the_largest_power_of_two_below),
        cmocka_unit_test(an_empty_output_is_neutral),
        cmocka_unit_test(outputs_merge_by_their_weights),
        cmocka_unit_test(merging_outputs_is_associative_within_rounding),
        cmocka_unit_test(a_chain_of_outputs_is_near_a_tree),
        cmocka_unit_test(outputs_that_are_not_numbers),
        cmocka_unit_test(merging_outputs_refuses_what_it_must),
        cmocka_unit_test(merged_outputs_are_attention_over_the_union),
        cmocka_unit_test(rounding_mode_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
