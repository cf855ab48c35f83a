/* One tile against one block of keys. See block.h. */
#include "block.h"

#include <string.h>

#include "dtype.h"
#include "place.h"
#include "query_row.h"

/* Queries that the caller's block function is asked about at once: few enough that a pattern made of small blocks costs
 * little more than what it keeps. */
#define CLASS_QUERIES 64

/* What is asked for in advance should be some 8 KiB on: twice the 4 KB that a core reads at 40 GB/s in the 100 ns that
 * memory takes to answer, and a fraction of a first-level cache. Rows of so many bytes have 8 KiB in one piece of 16
 * keys, shorter ones in two. (Measured on Zen 5: asking 16 keys ahead takes 0.93 of the time of 32 for rows of 512
 * bytes, 1.06 to 1.13 for rows of 256.) */
#define LONG_ROW_BYTES 512

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

/* ---- Where keys are ---- */

/* Pieces of the block that starts at key `first`. Those of which no query sees a key are left as NULL. */
static void place_pieces(attree__rows *rows, const attree__place *s, const attree__keys *active, int64_t first)
{
    for (int64_t n = 0; n < ATTREE__BLOCK / ATTREE__PIECE + 2; n++) {
        const int64_t j = first + n * ATTREE__PIECE;
        rows->piece[n] = j < active->end && j + ATTREE__PIECE > active->first ? attree__place_at(s, j) : NULL;
    }
}

/* Units of `unit` bytes each, width units apart, to adjacent ones. */
static void copy_row(char *to, const char *from, int64_t units, int64_t unit, int64_t width)
{
    if (units == 0) /* D = 0: there may be no memory at all */
        return;
    if (width == 1 || units == 1) {
        memcpy(to, from, (size_t)(units * unit));
        return;
    }
    for (int64_t c = 0; c < units; c++)
        memcpy(to + c * unit, from + c * width * unit, (size_t)unit);
}

/* Copies the rows of the seen keys to memory, adjacent to each other. */
static void gather_rows(attree__rows *rows, const attree__place *s, int64_t units, char *memory,
                        const attree__keys *seen)
{
    const int64_t unit = attree__dtype_bytes(rows->type), row_bytes = units * unit;
    const int64_t size = s->page_size, end = s->first + seen->end; /* tokens, as those of the page table */
    for (int64_t at = s->first + seen->first; at < end;) {
        const int64_t page = at / size, last = (page + 1) * size < end ? (page + 1) * size : end;
        const char *from = s->data + s->table[page] * s->page + (at - page * size) * s->token;
        char *to = memory + (at - s->first) % ATTREE__BLOCK * row_bytes;
        for (; at < last; at++, from += s->token, to += row_bytes)
            copy_row(to, from, units, unit, rows->width);
    }
    rows->token = row_bytes;
    rows->width = 1;
    attree__rows_place(rows, memory, ATTREE__PIECE * row_bytes);
}

/* Which of the block's keys the rows of a tile see: their union, as absolute keys. */
static attree__keys seen_keys(const attree__fold *f, int64_t first)
{
    attree__keys seen = {ATTREE__BLOCK, 0};
    for (int64_t r = 0; r < f->rows; r++)
        if (f->first[r] < f->end[r]) {
            seen.first = f->first[r] < seen.first ? f->first[r] : seen.first;
            seen.end = f->end[r] > seen.end ? f->end[r] : seen.end;
        }
    return (attree__keys){first + seen.first, first + seen.end};
}

/* Keys or values, as block_rows needs them. */
typedef struct row_source {
    attree__cache rows, scales;
    int32_t type;
    int64_t width;
    char *gathered;    /* room for a block's rows */
    float *scale_room; /* and scales */
} row_source;

/* The scales of the block's keys: where they lie when all are seen and adjacent, or copies of those that are seen. */
static const float *block_scales(const attree__problem *p, const attree__tile *tile, const row_source *source,
                                 const attree__keys *seen)
{
    const attree__place s = attree__place_make(p, &source->scales, &tile->segment->sequence, tile->batch, tile->group);
    const bool adjacent = s.token == (int64_t)sizeof(float);
    if (!s.table && adjacent && seen->end - seen->first == ATTREE__BLOCK)
        return (const float *)(const void *)attree__place_at(&s, seen->first);
    int64_t run = 0;
    for (int64_t j = seen->first; j < seen->end; j += run) { /* those of a page that are found together */
        const int64_t left = s.table ? s.page_size - (s.first + j) % s.page_size : ATTREE__BLOCK;
        run = left < seen->end - j ? left : seen->end - j;
        const char *const at = attree__place_at(&s, j);
        float *const to = source->scale_room + j % ATTREE__BLOCK;
        if (adjacent)
            memcpy(to, at, (size_t)run * sizeof(float));
        else
            for (int64_t i = 0; i < run; i++)
                memcpy(to + i, at + i * s.token, sizeof(float));
    }
    return source->scale_room;
}

/* The rows of the block that the seen keys are in. */
static attree__rows block_rows(const attree_plan *plan, const attree__tile *tile, const row_source *source,
                               const attree__keys *seen)
{
    const attree__problem *p = &plan->problem;
    const attree__sequence *sequence = &tile->segment->sequence;
    const int64_t first = seen->first / ATTREE__BLOCK * ATTREE__BLOCK;
    const attree__place s = attree__place_make(p, &source->rows, sequence, tile->batch, tile->group);
    const bool long_rows = attree__dtype_row_bytes(source->type, source->width) >= LONG_ROW_BYTES;
    attree__rows rows = {
        .token = s.token, .width = source->rows.strides->width, .type = source->type, .ahead = long_rows ? 1 : 2};
    if (source->rows.panels) { /* a panel is a piece, whose keys are adjacent */
        rows.token = s.panel_token;
        rows.width = ATTREE__PIECE;
    }
    if (attree__plan_gathers(plan))
        gather_rows(&rows, &s, attree__dtype_units(source->type, source->width), source->gathered, seen);
    else if (s.table || source->rows.panels) {
        const attree__keys active = attree__problem_active_keys(p, sequence);
        place_pieces(&rows, &s, &active, first);
    } else
        attree__rows_place(&rows, attree__place_at(&s, first), ATTREE__PIECE * rows.token);
    if (attree__dtype_has_row_scales(source->type))
        rows.scale = block_scales(p, tile, source, seen);
    return rows;
}

/* ---- What happens to scores ---- */

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

/* Which keys of the block each row sees, by geometry. */
static void find_ranges(const attree__fold *f, const attree__problem *p, const attree__tile *tile, int64_t base,
                        int32_t *ranges)
{
    for (int64_t r = 0; r < f->rows; r++) {
        attree__keys keys =
            attree__problem_visible(p, &tile->segment->sequence, attree__query_row_at(tile->row + r, p->group).query);
        keys.first = keys.first > base ? keys.first - base : 0;
        keys.end = keys.end < base + ATTREE__BLOCK ? keys.end - base : ATTREE__BLOCK;
        const bool none = keys.first >= keys.end;
        ranges[r] = none ? 0 : (int32_t)keys.first;
        ranges[f->rows + r] = none ? 0 : (int32_t)keys.end;
    }
}

/* Rows of queries part->first_query ... of head part->head see no key. */
static void skip_rows(const attree__block *block, const attree_score_tile *part, int32_t *ranges)
{
    const attree__terms *t = &block->terms;
    for (int64_t i = part->first_query; i < part->first_query + part->queries; i++) {
        const int64_t r = attree__query_row_number(i, part->head - t->first_head, t->heads) - t->first;
        if (r >= 0 && r < block->fold.rows)
            ranges[r] = ranges[block->fold.rows + r] = 0;
    }
}

/* Asks the caller's block function about each head and every CLASS_QUERIES queries: rows of skipped parts see no key;
 * when nothing is partial the score function is dropped. */
static void classify(attree__block *block, const attree_args *args, int64_t keys, int32_t *ranges)
{
    attree__terms *const t = &block->terms;
    const int64_t last = attree__query_row_at(t->first + block->fold.rows - 1, t->heads).query;
    bool partial = false;
    for (int64_t i = attree__query_row_at(t->first, t->heads).query; i <= last;) {
        const int64_t end =
            (i / CLASS_QUERIES + 1) * CLASS_QUERIES <= last ? (i / CLASS_QUERIES + 1) * CLASS_QUERIES : last + 1;
        for (int64_t h = 0; h < t->heads; h++) {
            const attree_score_tile part = {NULL, 0, t->batch, t->first_head + h, i, end - i, t->first_key, keys};
            const attree_block_answer kind = args->block(&part, args->user);
            if (kind == ATTREE_BLOCK_SKIP)
                skip_rows(block, &part, ranges);
            partial = partial || kind == ATTREE_BLOCK_PARTIAL;
        }
        i = end;
    }
    if (!partial)
        t->score = NULL;
}

static void place_rows(attree__fold *f, const attree__worker *w, const attree__tile *tile, const attree__keys *seen)
{
    const attree_plan *plan = w->plan;
    const attree__problem *p = &plan->problem;
    const int32_t *const table = w->args->page_table;
    float *const scales = (float *)(void *)(w->scratch + plan->scales_offset);
    const row_source k = {
        .rows = {w->args->k, &p->k, attree__dtype_bytes(p->k_type), p->panels, table},
        .scales = {w->args->k_scales, &p->k_scales, sizeof(float), false, table},
        .type = p->k_type,
        .width = p->qk_width,
        .gathered = w->scratch + plan->gathered_k_offset,
        .scale_room = scales,
    };
    const row_source v = {
        .rows = {w->args->v, &p->v, attree__dtype_bytes(p->v_type), false, table},
        .scales = {w->args->v_scales, &p->v_scales, sizeof(float), false, table},
        .type = p->v_type,
        .width = p->v_width,
        .gathered = w->scratch + plan->gathered_v_offset,
        .scale_room = scales + ATTREE__BLOCK,
    };
    f->k = block_rows(plan, tile, &k, seen);
    if (!p->weights)
        f->v = block_rows(plan, tile, &v, seen);
}

bool attree__block_init(attree__block *block, const attree__worker *worker, const attree__tile *tile, int64_t b,
                        int32_t slot)
{
    const attree_args *args = worker->args;
    const attree__problem *p = &worker->plan->problem;
    int32_t *const ranges = (int32_t *)(void *)(worker->scratch + worker->plan->ranges_offset) + 2 * slot * tile->rows;
    const int64_t first = b * ATTREE__BLOCK, left = tile->segment->sequence.kv_len - first;
    block->fold = (attree__fold){
        .qk_width = p->qk_width,
        .v_width = p->v_width,
        .scale = p->scale,
        .rows = tile->rows,
        .first = ranges,
        .end = ranges + tile->rows,
        .terms = init_terms(&block->terms, p, args, tile, first),
    };
    find_ranges(&block->fold, p, tile, first, ranges);
    if (args->block)
        classify(block, args, left < ATTREE__BLOCK ? left : ATTREE__BLOCK, ranges);
    if (block->fold.terms && !block->terms.score && worker->plan->kernels->scan)
        worker->plan->kernels->scan(&block->terms, tile->rows, ranges, ranges + tile->rows);
    const attree__keys seen = seen_keys(&block->fold, first);
    if (seen.first >= seen.end)
        return false;
    place_rows(&block->fold, worker, tile, &seen);
    return true;
}
