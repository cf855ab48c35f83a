/* A small inference engine around attree: how a host uses plans, paged caches and ragged batches, and what the
 * contract of equal bits is good for. Run it with --help.
 *
 * The model is a decoder-only transformer as they are today: RMSNorm, rotary positions, grouped heads, SwiGLU, a tied
 * or separate output head. Its weights come from a seeded generator, so it babbles; but it babbles reproducibly. The
 * scheduler is that of a server: requests arrive over time and are batched continuously, prompts are prefilled in
 * chunks, and every request has its own pages of the cache.
 *
 * Everything outside attention is written so that a token's numbers depend on the token alone: each matrix product sums
 * in one fixed order, and threads divide outputs, never sums. attree promises the same of attention. Together: a
 * request's logits have the same bits whatever the threads, the batch, the chunks and the pages.
 *
 * Tools are in tools.c, the model's weights in model.c. Here: requests, the engine's memory, attention by attree,
 * attention by naive loops, the forward pass, the scheduler, comparison, benchmark. main.c has the command line. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attree/attree.h"
#include "engine.h"
#include "model.h"
#include "tools.h"

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

uint64_t hash_words(uint64_t hash, const void *words, int64_t count)
{
    for (int64_t i = 0; i < count; i++) { /* FNV-1a, 32 bits at a time */
        uint32_t word;
        memcpy(&word, (const char *)words + 4 * i, sizeof word);
        hash = (hash ^ word) * 0x100000001B3U;
        hash ^= hash >> 32;
    }
    return hash;
}

static request empty_request(arena *a, const options *o, int64_t id, int64_t prompt, int64_t goal)
{
    request r = {.id = id, .prompt = prompt, .goal = goal, .known = prompt, .hash = 0xCBF29CE484222325U};
    r.tokens = allocate(a, goal, sizeof *r.tokens);
    if (o->compare)
        r.logits = floats(a, goal * o->vocabulary);
    if (o->naive)
        r.own_cache = floats(a, o->layers * 2 * o->groups * goal * (o->width / o->heads));
    else
        r.pages = allocate(a, pieces(goal, o->page), sizeof *r.pages);
    return r;
}

/* Everything about request `id` follows from the seed and the id, whoever else there is. Every third step one comes. */
static request make_request(arena *a, const options *o, int64_t id)
{
    uint64_t random = 0xD1B54A32D192ED03U * (uint64_t)(o->seed * 1000 + id + 1);
    for (int i = 0; i < 4; i++)
        (void)next_random(&random);
    const int64_t prompt = 1 + (int64_t)((next_random(&random) * 0.5f + 0.5f) * (float)o->prompt * 0.999f);
    request r = empty_request(a, o, id, prompt, prompt + o->tokens);
    r.arrival = 3 * id;
    for (int64_t i = 0; i < prompt; i++)
        r.tokens[i] = (int32_t)((next_random(&random) * 0.5f + 0.5f) * (float)o->vocabulary * 0.999f);
    return r;
}

/* ---- The engine -------------------------------------------------------------------------------------------------- */

/* What attree needs of a layer: keys and values of all pages, [pages][G][page][row], and their scales for int8. */
typedef struct layer_cache {
    void *k, *v;
    float *k_scales, *v_scales; /* [pages][G][page] */
} layer_cache;

typedef struct engine {
    const options *o;
    arena memory;
    model m;
    int64_t head_width, qkv_width;
    int64_t positions; /* tokens of the longest sequence */
    float *rotation;   /* [positions][head width / 2][2]: cosine and sine */
    uint64_t random;   /* for the benchmark's keys */

    /* The cache: one memory for each layer, one page table for all. */
    layer_cache *caches;
    int64_t page_count, free_count, table_width;
    int32_t *free_pages; /* a stack */

    /* The batch of a step: sequence s has tokens starts[s] ... starts[s + 1] - 1, and lengths[s] keys. */
    request **members;
    int64_t count, *starts, *lengths;
    int32_t *table;                  /* [count][table_width] */
    int32_t *tokens;                 /* [starts[count]] */
    int64_t *places;                 /* their positions */
    float *x, *normed, *qkv, *heads; /* activations, [tokens][...] */
    float *gate_up, *gated, *delta, *logits;

    attree_plan *plan;
    void *workspace;
    size_t workspace_bytes;

    float *scores; /* naive: [heads][positions] */
    void *row;
    double attention_seconds;
} engine;

static void make_rotation(engine *e)
{
    const int64_t half = e->head_width / 2;
    e->rotation = floats(&e->memory, e->positions * half * 2);
    for (int64_t p = 0; p < e->positions; p++)
        for (int64_t i = 0; i < half; i++) {
            const double angle = (double)p * pow(10000.0, -(double)i / (double)half);
            e->rotation[(p * half + i) * 2] = (float)cos(angle);
            e->rotation[(p * half + i) * 2 + 1] = (float)sin(angle);
        }
}

static void make_cache(engine *e)
{
    const options *const o = e->o;
    const int64_t rows = e->page_count * o->groups * o->page;
    e->caches = allocate(&e->memory, o->layers, sizeof *e->caches);
    e->free_pages = allocate(&e->memory, e->page_count, sizeof *e->free_pages);
    for (int64_t i = 0; i < o->layers && !o->naive; i++) {
        const size_t bytes = attree_row_bytes(o->type, e->head_width);
        if (bytes == 0)
            die("the head's width does not suit the type", type_names[o->type]);
        e->caches[i].k = allocate(&e->memory, rows, bytes);
        e->caches[i].v = allocate(&e->memory, rows, bytes);
        memset(e->caches[i].k, 0xFF, (size_t)rows * bytes); /* NaN, for most types: nobody may look */
        memset(e->caches[i].v, 0xFF, (size_t)rows * bytes);
        if (o->type == ATTREE_I8) {
            e->caches[i].k_scales = floats(&e->memory, rows);
            e->caches[i].v_scales = floats(&e->memory, rows);
        }
    }
    for (e->free_count = 0; e->free_count < e->page_count; e->free_count++)
        e->free_pages[e->free_count] = (int32_t)e->free_count;
}

/* For sequences of at most `positions` tokens. */
static engine *make_engine(const options *o, int64_t positions)
{
    engine *const e = calloc(1, sizeof *e);
    if (!e)
        die("no memory", "");
    arena *const a = &e->memory;
    const int64_t tokens = o->batch * (o->chunk ? smaller(o->chunk, positions) : positions);
    e->o = o;
    e->m = make_model(a, o);
    e->head_width = o->width / o->heads;
    e->qkv_width = (o->heads + 2 * o->groups) * e->head_width;
    e->positions = positions;
    e->random = 1;
    e->table_width = pieces(positions, o->page);
    e->page_count = o->batch * e->table_width;
    make_rotation(e);
    make_cache(e);
    e->members = allocate(a, o->batch, sizeof *e->members);
    e->starts = allocate(a, o->batch + 1, sizeof *e->starts);
    e->lengths = allocate(a, o->batch, sizeof *e->lengths);
    e->table = allocate(a, o->batch * e->table_width, sizeof *e->table);
    e->tokens = allocate(a, tokens, sizeof *e->tokens);
    e->places = allocate(a, tokens, sizeof *e->places);
    e->x = floats(a, tokens * o->width);
    e->normed = floats(a, tokens * o->width);
    e->qkv = floats(a, tokens * e->qkv_width);
    e->heads = floats(a, tokens * o->width);
    e->gate_up = floats(a, tokens * o->hidden * 2);
    e->gated = floats(a, tokens * o->hidden);
    e->delta = floats(a, tokens * o->width);
    e->logits = floats(a, tokens * o->vocabulary);
    e->scores = floats(a, o->heads * positions);
    e->row = floats(a, e->head_width + 16); /* no type takes more */
    return e;
}

static void free_engine(engine *e)
{
    attree_plan_destroy(e->plan);
    free(e->workspace);
    free_arena(&e->memory);
    free(e);
}

/* A member of the batch is done: its pages are free for others. Its place goes to the last, as order means nothing. */
static void leave(engine *e, int64_t member)
{
    request *const r = e->members[member];
    while (r->page_count > 0)
        e->free_pages[e->free_count++] = r->pages[--r->page_count];
    e->members[member] = e->members[--e->count];
}

/* ---- Attention by attree ----------------------------------------------------------------------------------------- */

/* Once in a step: the plan for this batch, for all layers. Everything that a tensor's layout needs is in the desc;
 * pointers come with each run. */
static void plan_step(engine *e)
{
    const options *const o = e->o;
    const attree_strides of_q = {.head = e->head_width, .token = e->qkv_width, .width = 1};
    const attree_strides of_o = {.head = e->head_width, .token = o->width, .width = 1};
    attree_desc desc = {.size = sizeof desc,
                        .batch = e->count,
                        .q_heads = o->heads,
                        .kv_heads = o->groups,
                        .q_len = e->starts[e->count],
                        .qk_width = e->head_width,
                        .v_width = e->head_width,
                        .q = of_q,
                        .o = of_o,
                        .k_type = o->type,
                        .v_type = o->type,
                        .flags = ATTREE_CAUSAL | (o->panels ? ATTREE_K_PANELS : 0),
                        .threads = (int32_t)o->threads,
                        .q_starts = e->starts,
                        .kv_len = e->positions, /* at most; each sequence has its own: */
                        .kv_lens = e->lengths,
                        .page_size = o->page,
                        .page_count = e->page_count,
                        .table_width = e->table_width};
    must(e->plan ? attree_plan_update(e->plan, &desc) : attree_plan_create(&e->plan, &desc));
    if (attree_plan_workspace(e->plan) > e->workspace_bytes) {
        free(e->workspace);
        e->workspace_bytes = attree_plan_workspace(e->plan);
        e->workspace = aligned_alloc(64, e->workspace_bytes); /* a multiple of 64 */
        if (!e->workspace)
            die("no memory", "");
    }
}

/* Writes the step's keys and values into the pages, in the type of the cache. */
static void append_attree(engine *e, int64_t layer)
{
    const layer_cache *const c = &e->caches[layer];
    const attree_strides strides = {.head = e->head_width, .token = e->qkv_width, .width = 1};
    const attree_new_tokens new_tokens = {.size = sizeof new_tokens,
                                          .k = e->qkv + e->o->width,
                                          .v = e->qkv + e->o->width + e->o->groups * e->head_width,
                                          .k_strides = strides,
                                          .v_strides = strides,
                                          .cache_k = c->k,
                                          .cache_v = c->v,
                                          .cache_k_scales = c->k_scales,
                                          .cache_v_scales = c->v_scales,
                                          .page_table = e->table};
    must(attree_append(e->plan, &new_tokens));
}

static void attend_attree(engine *e, int64_t layer)
{
    const layer_cache *const c = &e->caches[layer];
    const attree_args args = {.size = sizeof args,
                              .q = e->qkv,
                              .k = c->k,
                              .v = c->v,
                              .k_scales = c->k_scales,
                              .v_scales = c->v_scales,
                              .page_table = e->table,
                              .o = e->heads,
                              .workspace = e->workspace,
                              .workspace_bytes = e->workspace_bytes};
    must(attree_run(e->plan, &args));
}

/* ---- Attention by naive loops ------------------------------------------------------------------------------------ */

/* The reference shares nothing with attree but the rounding of what is cached: each request has a dense cache of its
 * own, in f32, scores are materialised, and a row is softmaxed as a textbook does it. */
static float *naive_row(const engine *e, const request *r, int64_t tensor, int64_t group, int64_t position)
{
    return r->own_cache + ((tensor * e->o->groups + group) * r->goal + position) * e->head_width;
}

static void append_naive(engine *e, int64_t layer)
{
    for (int64_t s = 0; s < e->count; s++)
        for (int64_t t = e->starts[s]; t < e->starts[s + 1]; t++)
            for (int64_t g = 0; g < 2 * e->o->groups; g++) { /* the keys' groups, then the values' */
                float scale = 0;
                const float *const from = e->qkv + t * e->qkv_width + e->o->width + g * e->head_width;
                float *const to = naive_row(e, e->members[s], 2 * layer, g, e->places[t]);
                must(attree_quantize(e->o->type, e->head_width, from, e->row, &scale));
                must(attree_dequantize(e->o->type, e->head_width, e->row, scale, to));
            }
}

/* One head of one token. */
static void attend_naive_row(engine *e, const request *r, int64_t layer, int64_t token, int64_t head)
{
    const int64_t width = e->head_width, group = head / (e->o->heads / e->o->groups), keys = e->places[token] + 1;
    const float *const q = e->qkv + token * e->qkv_width + head * width;
    const float *const k = naive_row(e, r, 2 * layer, group, 0), *const v = naive_row(e, r, 2 * layer + 1, group, 0);
    float *const out = e->heads + token * e->o->width + head * width, *const scores = e->scores + head * e->positions;
    float most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = 0;
        for (int64_t c = 0; c < width; c++)
            scores[j] += q[c] * k[j * width + c];
        scores[j] /= sqrtf((float)width);
        most = fmaxf(most, scores[j]);
    }
    memset(out, 0, (size_t)width * sizeof(float));
    for (int64_t j = 0; j < keys; j++) {
        const float weight = expf(scores[j] - most);
        sum += weight;
        for (int64_t c = 0; c < width; c++)
            out[c] += weight * v[j * width + c];
    }
    for (int64_t c = 0; c < width; c++)
        out[c] /= sum;
}

static void attend_naive(engine *e, int64_t layer)
{
#pragma omp parallel for num_threads((int)e->o->threads)
    for (int64_t h = 0; h < e->o->heads; h++)
        for (int64_t s = 0; s < e->count; s++)
            for (int64_t t = e->starts[s]; t < e->starts[s + 1]; t++)
                attend_naive_row(e, e->members[s], layer, t, h);
}

/* ---- The forward pass -------------------------------------------------------------------------------------------- */

/* out = x w: each output is a sum over the inputs in ascending order, whoever computes it and whatever stands beside
 * it. Vectors run across outputs, so they change nothing. */
static void multiply(const engine *e, float *out, const float *x, const matrix *w)
{
    const int64_t tokens = e->starts[e->count], panels = pieces(w->outputs, PANEL);
#pragma omp parallel for collapse(2) num_threads((int)e->o->threads)
    for (int64_t n = 0; n < panels; n++)
        for (int64_t t = 0; t < tokens; t++) {
            const float *const from = x + t * w->inputs, *const weights = w->panels + n * w->inputs * PANEL;
            float sums[PANEL] = {0};
            for (int64_t c = 0; c < w->inputs; c++)
                for (int64_t i = 0; i < PANEL; i++)
                    sums[i] += from[c] * weights[c * PANEL + i];
            memcpy(out + t * w->outputs + n * PANEL, sums,
                   (size_t)smaller(PANEL, w->outputs - n * PANEL) * sizeof(float));
        }
}

static void normalise(const engine *e, float *out, const float *x, const float *weights)
{
    const int64_t width = e->o->width;
    for (int64_t t = 0; t < e->starts[e->count]; t++) {
        float squares = 0;
        for (int64_t c = 0; c < width; c++)
            squares += x[t * width + c] * x[t * width + c];
        const float factor = 1.0f / sqrtf(squares / (float)width + 1e-5f);
        for (int64_t c = 0; c < width; c++)
            out[t * width + c] = x[t * width + c] * factor * weights[c];
    }
}

/* Rotary positions: in queries and keys, numbers i and i + half of a head are a plane that turns with the position. */
static void rotate(const engine *e)
{
    const int64_t half = e->head_width / 2;
    for (int64_t t = 0; t < e->starts[e->count]; t++)
        for (int64_t h = 0; h < e->o->heads + e->o->groups; h++) {
            float *const row = e->qkv + t * e->qkv_width + h * e->head_width;
            const float *const turn = e->rotation + e->places[t] * half * 2;
            for (int64_t i = 0; i < half; i++) {
                const float a = row[i], b = row[i + half], cosine = turn[2 * i], sine = turn[2 * i + 1];
                row[i] = a * cosine - b * sine;
                row[i + half] = a * sine + b * cosine;
            }
        }
}

/* SwiGLU: gate / (1 + exp(-gate)) * up. */
static void gate(const engine *e)
{
    const int64_t hidden = e->o->hidden;
    for (int64_t t = 0; t < e->starts[e->count]; t++) {
        const float *const gates = e->gate_up + t * 2 * hidden, *const ups = gates + hidden;
        for (int64_t c = 0; c < hidden; c++)
            e->gated[t * hidden + c] = gates[c] / (1.0f + expf(-gates[c])) * ups[c];
    }
}

static void add_delta(const engine *e)
{
    for (int64_t i = 0; i < e->starts[e->count] * e->o->width; i++)
        e->x[i] += e->delta[i];
}

static void append_and_attend(engine *e, int64_t layer)
{
    const double start = now();
    (e->o->naive ? append_naive : append_attree)(e, layer);
    (e->o->naive ? attend_naive : attend_attree)(e, layer);
    e->attention_seconds += now() - start;
}

/* Logits of all tokens of the batch. */
static void forward(engine *e)
{
    const int64_t tokens = e->starts[e->count], width = e->o->width;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t c = 0; c < width; c++)
            e->x[t * width + c] = *matrix_at(&e->m.embedding, c, e->tokens[t]);
    for (int64_t i = 0; i < e->o->layers; i++) {
        const layer_weights *const l = &e->m.layers[i];
        normalise(e, e->normed, e->x, l->attention_norm);
        multiply(e, e->qkv, e->normed, &l->qkv);
        rotate(e);
        append_and_attend(e, i);
        multiply(e, e->delta, e->heads, &l->attention_out);
        add_delta(e);
        normalise(e, e->normed, e->x, l->mlp_norm);
        multiply(e, e->gate_up, e->normed, &l->gate_up);
        gate(e);
        multiply(e, e->delta, e->gated, &l->down);
        add_delta(e);
    }
    normalise(e, e->normed, e->x, e->m.final_norm);
    multiply(e, e->logits, e->normed, &e->m.head);
}

/* ---- The scheduler ----------------------------------------------------------------------------------------------- */

/* A step's batch: of each member the next chunk of its prompt, or the token that it said last. */
static void schedule(engine *e)
{
    const int64_t page = e->o->page, chunk = e->o->chunk ? e->o->chunk : INT64_MAX;
    for (int64_t s = 0; s < e->count; s++) {
        request *const r = e->members[s];
        const int64_t taken = smaller(r->known - r->cached, chunk);
        e->starts[s + 1] = e->starts[s] + taken;
        e->lengths[s] = r->cached + taken;
        for (int64_t i = 0; i < taken; i++) {
            e->tokens[e->starts[s] + i] = r->tokens[r->cached + i];
            e->places[e->starts[s] + i] = r->cached + i;
        }
        if (e->o->naive)
            continue;
        while (r->page_count * page < e->lengths[s])
            r->pages[r->page_count++] = e->free_pages[--e->free_count];
        memcpy(e->table + s * e->table_width, r->pages, (size_t)r->page_count * sizeof *r->pages);
    }
    const double start = now();
    if (!e->o->naive)
        plan_step(e);
    e->attention_seconds += now() - start;
}

/* The greedy token; of equals, the first. */
static int32_t best_token(const float *logits, int64_t vocabulary)
{
    int32_t best = 0;
    for (int32_t n = 1; n < vocabulary; n++)
        if (logits[n] > logits[best])
            best = n;
    return best;
}

/* What a member learns from a step. Returns whether it is done. */
static bool take_logits(engine *e, int64_t member)
{
    request *const r = e->members[member];
    const int64_t vocabulary = e->o->vocabulary, tokens = e->starts[member + 1] - e->starts[member];
    const float *const logits = e->logits + e->starts[member] * vocabulary;
    r->hash = hash_words(r->hash, logits, tokens * vocabulary);
    if (r->logits)
        memcpy(r->logits + r->cached * vocabulary, logits, (size_t)(tokens * vocabulary) * sizeof(float));
    r->cached += tokens;
    if (r->cached == r->known)
        r->tokens[r->known++] = best_token(logits + (tokens - 1) * vocabulary, vocabulary);
    return r->known == r->goal;
}

/* Continuous batching. Returns the number of steps. */
static int64_t serve(engine *e, request *requests, int64_t count)
{
    int64_t step = 0;
    for (int64_t next = 0; next < count || e->count > 0; step++) {
        while (next < count && e->count < e->o->batch && requests[next].arrival <= step)
            e->members[e->count++] = &requests[next++];
        if (e->count == 0)
            continue;
        schedule(e);
        forward(e);
        for (int64_t s = e->count - 1; s >= 0; s--)
            if (take_logits(e, s))
                leave(e, s);
    }
    return step;
}

/* The requests that the options ask for, answered. The caller frees the memory. */
answers answer(const options *o)
{
    answers all = {.count = o->only >= 0 ? 1 : o->requests};
    all.requests = allocate(&all.memory, all.count, sizeof *all.requests);
    for (int64_t i = 0; i < all.count; i++)
        all.requests[i] = make_request(&all.memory, o, o->only >= 0 ? o->only : i);
    engine *const e = make_engine(o, o->prompt + o->tokens);
    const double start = now();
    all.steps = serve(e, all.requests, all.count);
    all.seconds = now() - start;
    all.attention_seconds = e->attention_seconds;
    free_engine(e);
    return all;
}

/* ---- Comparison with the naive path ------------------------------------------------------------------------------ */

/* Naive attention is not expected to have the same bits. So that a tie of two tokens does not send the two paths
 * different ways, the naive one is given what attree's said as its prompt: then logits at all positions compare. */
comparison compare_paths(const options *o)
{
    comparison result = {0, 0, 0};
    options attree = *o, naive = *o;
    attree.compare = naive.compare = 1;
    naive.naive = 1;
    answers all = answer(&attree);
    request *const forced = allocate(&all.memory, all.count, sizeof *forced);
    for (int64_t i = 0; i < all.count; i++) {
        const request *const r = &all.requests[i];
        forced[i] = empty_request(&all.memory, &naive, r->id, r->goal - 1, r->goal);
        memcpy(forced[i].tokens, r->tokens, (size_t)(r->goal - 1) * sizeof *r->tokens);
    }
    engine *const e = make_engine(&naive, o->prompt + o->tokens);
    serve(e, forced, all.count);
    for (int64_t i = 0; i < all.count; i++)
        for (int64_t p = 0; p < forced[i].prompt; p++) {
            const float *const a = all.requests[i].logits + p * o->vocabulary;
            const float *const b = forced[i].logits + p * o->vocabulary;
            for (int64_t n = 0; n < o->vocabulary; n++)
                result.difference = fmax(result.difference, fabs((double)a[n] - (double)b[n]));
            result.positions++;
            result.same_tokens += best_token(a, o->vocabulary) == best_token(b, o->vocabulary);
        }
    free_engine(e);
    free_arena(&all.memory);
    return result;
}

/* ---- Benchmark --------------------------------------------------------------------------------------------------- */

/* Random keys and values for the first `count` tokens: attention does not care where they come from, and a prefill
 * would take minutes. */
static void fill_cache(engine *e, request *r, int64_t count)
{
    while (r->cached < count) {
        schedule(e);
        for (int64_t i = 0; i < e->o->layers; i++) {
            for (int64_t n = 0; n < e->starts[1] * e->qkv_width; n++)
                e->qkv[n] = next_random(&e->random);
            (e->o->naive ? append_naive : append_attree)(e, i);
        }
        r->cached += e->starts[1];
    }
}

/* One sequence decodes after `context` tokens, a multiple of the chunk, for two seconds or `most` tokens. */
static void bench_context(const options *o, int64_t context)
{
    enum { MOST = 128, WARM_UP = 2 };
    engine *const e = make_engine(o, context + MOST + WARM_UP + 1);
    request r = empty_request(&e->memory, o, 0, context + 1, e->positions);
    e->members[e->count++] = &r;
    fill_cache(e, &r, context);
    double start = now();
    int64_t said = -WARM_UP;
    for (; said < MOST && (said < 8 || now() - start < 2); said++) {
        if (said == 0) {
            e->attention_seconds = 0;
            start = now();
        }
        schedule(e);
        forward(e);
        (void)take_logits(e, 0);
    }
    const double seconds = now() - start;
    printf("%7" PRId64 "  %8.1f  %8.2f  %7.2f ms  %5.1f %%\n", context, (double)said / seconds,
           1e3 * seconds / (double)said, 1e3 * e->attention_seconds / (double)said,
           100 * e->attention_seconds / seconds);
    leave(e, 0);
    free_engine(e);
}

void bench(const options *o)
{
    options one = *o;
    one.batch = 1;
    one.chunk = 1024; /* of keys that are written at once */
    printf("%s attention, %s cache, %" PRId64 " threads; %" PRId64 " layers, %" PRId64 "/%" PRId64 " heads of %" PRId64
           ", hidden %" PRId64 "\n",
           o->naive ? "naive" : "attree", type_names[o->type], o->threads, o->layers, o->heads, o->groups,
           o->width / o->heads, o->hidden);
    printf("context  tokens/s  ms/token   attention   share\n");
    for (int64_t context = 1024; context <= 32768; context = context == 8192 ? 32768 : 8 * context)
        bench_context(&one, context);
}
