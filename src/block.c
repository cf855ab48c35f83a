/* One tile against one block of keys. See block.h. */
#include "block.h"

#include "dtype.h"

/* Queries that the caller's block function is asked about at once: few enough that a pattern made of small blocks costs
 * little more than what it keeps. */
#define CLASS_QUERIES 64

/* The tensor's element (batch, head, token, 0); NULL for a tensor without memory. */
static const char *element(const void *tensor, int32_t type, const attree_strides *s, const int64_t at[3])
{
    if (!tensor)
        return NULL;
    return (const char *)tensor + (at[0] * s->batch + at[1] * s->head + at[2] * s->token) * attree__dtype_bytes(type);
}

attree__queries attree__block_queries(const attree_plan *plan, const attree_args *args, const attree__tile *tile)
{
    const attree__problem *p = &plan->problem;
    const int64_t at[3] = {tile->batch, tile->group * p->group, tile->segment->sequence.q_start};
    return (attree__queries){
        .data = element(args->q, p->q_type, &p->q, at),
        .token = p->q.token,
        .head = p->q.head,
        .width = p->q.width,
        .type = p->q_type,
        .heads = p->group,
        .first = tile->row,
        .rows = tile->rows,
    };
}

/* The rows of the block that starts at key `first`, in a tensor of keys or values. */
static attree__rows block_rows(const void *tensor, int32_t type, const attree_strides *s, const attree__tile *tile,
                               int64_t first)
{
    const int64_t at[3] = {tile->batch, tile->group, tile->segment->sequence.kv_start + first};
    return (attree__rows){element(tensor, type, s, at), s->token, s->width, type};
}

static attree__pair_source pair_source(const void *data, const attree__pairs *p, int32_t type, const attree__tile *tile,
                                       const int64_t at[2])
{
    const attree__sequence *s = &tile->segment->sequence;
    return (attree__pair_source){
        .data = data,
        .base = tile->batch * p->batch + at[0] * p->head + s->q_start * p->query + (s->kv_start + at[1]) * p->key,
        .query = p->query,
        .head = p->head,
        .key = p->key,
        .type = type,
    };
}

/* The block's terms, or NULL when scores are taken as they are. */
static const attree__terms *init_terms(attree__terms *terms, const attree__problem *p, const attree_args *args,
                                       const attree__tile *tile, int64_t first)
{
    if (!(p->softcap > 0.0f) && !args->alibi_slopes && !args->bias && !args->mask && !args->score)
        return NULL;
    const int64_t at[2] = {tile->group * p->group, first};
    *terms = (attree__terms){
        .heads = p->group,
        .first = tile->row,
        .softcap = p->softcap,
        .slopes = args->alibi_slopes ? args->alibi_slopes + at[0] : NULL,
        .distance = first - tile->segment->sequence.q_offset,
        .bias = pair_source(args->bias, &p->bias, p->bias_type, tile, at),
        .mask = pair_source(args->mask, &p->mask, p->mask_kind, tile, at),
        .score = args->score,
        .user = args->user,
        .batch = tile->batch,
        .first_head = at[0],
        .first_key = first,
    };
    return terms;
}

/* Which keys of the block each row sees, by geometry. Returns whether any row sees any. */
static bool find_ranges(const attree__fold *f, const attree__problem *p, const attree__tile *tile, int64_t base,
                        int32_t *ranges)
{
    bool any = false;
    for (int64_t r = 0; r < f->rows; r++) {
        attree__keys keys = attree__problem_visible(p, &tile->segment->sequence, (tile->row + r) / p->group);
        keys.first = keys.first > base ? keys.first - base : 0;
        keys.end = keys.end < base + ATTREE__BLOCK ? keys.end - base : ATTREE__BLOCK;
        const bool none = keys.first >= keys.end;
        ranges[r] = none ? 0 : (int32_t)keys.first;
        ranges[f->rows + r] = none ? 0 : (int32_t)keys.end;
        any = any || !none;
    }
    return any;
}

/* Rows of queries part->first_query ... of head part->head see no key. */
static void skip_rows(const attree__block *block, const attree_score_tile *part, int32_t *ranges)
{
    const attree__terms *t = &block->terms;
    for (int64_t i = part->first_query; i < part->first_query + part->queries; i++) {
        const int64_t r = i * t->heads + part->head - t->first_head - t->first;
        if (r >= 0 && r < block->fold.rows)
            ranges[r] = ranges[block->fold.rows + r] = 0;
    }
}

/* Asks the caller's block function about each head and every CLASS_QUERIES queries. Returns whether any row still sees
 * keys; when nothing is partial the score function is dropped. */
static bool classify(attree__block *block, const attree_args *args, int64_t keys, int32_t *ranges)
{
    attree__terms *const t = &block->terms;
    const int64_t last = (t->first + block->fold.rows - 1) / t->heads;
    bool kept = false, partial = false;
    for (int64_t i = t->first / t->heads; i <= last;) {
        const int64_t end =
            (i / CLASS_QUERIES + 1) * CLASS_QUERIES <= last ? (i / CLASS_QUERIES + 1) * CLASS_QUERIES : last + 1;
        for (int64_t h = 0; h < t->heads; h++) {
            const attree_score_tile part = {NULL, 0, t->batch, t->first_head + h, i, end - i, t->first_key, keys};
            const attree_block kind = args->block(&part, args->user);
            if (kind == ATTREE_BLOCK_SKIP)
                skip_rows(block, &part, ranges);
            kept = kept || kind != ATTREE_BLOCK_SKIP;
            partial = partial || kind == ATTREE_BLOCK_PARTIAL;
        }
        i = end;
    }
    if (!partial)
        t->score = NULL;
    return kept;
}

bool attree__block_init(attree__block *block, const attree_plan *plan, const attree_args *args,
                        const attree__tile *tile, int64_t b, int32_t *ranges)
{
    const attree__problem *p = &plan->problem;
    const int64_t first = b * ATTREE__BLOCK, left = tile->segment->sequence.kv_len - first;
    block->fold = (attree__fold){
        .qk_width = p->qk_width,
        .v_width = p->v_width,
        .scale = p->scale,
        .rows = tile->rows,
        .k = block_rows(args->k, p->k_type, &p->k, tile, first),
        .v = block_rows(args->v, p->v_type, &p->v, tile, first),
        .first = ranges,
        .end = ranges + tile->rows,
        .terms = init_terms(&block->terms, p, args, tile, first),
    };
    if (!find_ranges(&block->fold, p, tile, first, ranges))
        return false;
    return !args->block || classify(block, args, left < ATTREE__BLOCK ? left : ATTREE__BLOCK, ranges);
}
