/* What each batch entry has and sees, and the caller's functions on scores. See problem.h. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "problem.h"

enum { Q_STARTS = 100, KV_STARTS, KV_LENS, Q_OFFSETS, CELLS };

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Cuts tokens into as many parts as there are entries; some are empty. */
static void cut_tokens(const fields *f, uint64_t what, int64_t tokens, int64_t *starts)
{
    starts[0] = 0;
    for (int64_t b = 1; b < f->batch; b++)
        starts[b] = (int64_t)(hash_of(f, what, (uint64_t)b) % (uint64_t)(tokens + 1));
    starts[f->batch] = tokens;
    if (f->batch > 1)
        qsort(starts + 1, (size_t)(f->batch - 1), sizeof *starts, compare);
}

/* All keys, or hardly any less, or any number. */
static int64_t some_keys(const fields *f, int64_t b, int64_t room)
{
    const uint64_t hash = hash_of(f, KV_LENS, (uint64_t)b), kind = hash >> 32;
    if (kind % 4 == 0)
        return room;
    const int64_t less = (int64_t)((uint32_t)hash % (kind % 4 == 1 ? 20u : (uint64_t)room + 1));
    return less < room ? room - less : 0;
}

sequences sequences_of(const fields *f)
{
    sequences s = {0};
    cut_tokens(f, Q_STARTS, f->q_len, s.q_starts);
    cut_tokens(f, KV_STARTS, f->kv_len, s.kv_starts);
    for (int64_t b = 0; b < f->batch; b++) {
        entry *const e = &s.entry[b];
        *e = (entry){.q_len = f->q_len, .kv_len = f->kv_len, .q_batch = b, .kv_batch = b};
        if (f->q_starts) {
            e->q_start = s.q_starts[b];
            e->q_len = s.q_starts[b + 1] - e->q_start;
            e->q_batch = 0;
        }
        if (f->kv_starts) {
            e->kv_start = s.kv_starts[b];
            e->kv_len = s.kv_starts[b + 1] - e->kv_start;
            e->kv_batch = 0;
        }
        s.kv_lens[b] = some_keys(f, b, e->kv_len);
        if (f->kv_lens)
            e->kv_len = s.kv_lens[b];
        const int64_t reach = e->kv_len + 12;
        s.q_offsets[b] = (int64_t)(hash_of(f, Q_OFFSETS, (uint64_t)b) % (uint64_t)reach) - 6;
        e->q_offset = f->q_offsets ? s.q_offsets[b] : f->use_q_offset ? f->q_offset : e->kv_len - e->q_len;
    }
    return s;
}

key_range keys_seen(const fields *f, const entry *e, int64_t i)
{
    const int64_t position = e->q_offset + i;
    int64_t first = 0, end = e->kv_len;
    if (f->use_window && f->window_left >= 0 && position - f->window_left > first)
        first = position - f->window_left;
    if (f->use_window && f->window_right >= 0 && position + f->window_right + 1 < end)
        end = position + f->window_right + 1;
    if (f->causal && position + 1 < end)
        end = position + 1;
    return first < end ? (key_range){first, end} : (key_range){0, 0};
}

/* ---- Score and block functions ---- */

/* What happens to the scores of a cell of queries and keys: a quarter is hidden, a half stays, a quarter is changed. */
static attree_block_answer cell_kind(const score_user *u, int64_t batch, int64_t head, const int64_t at[2])
{
    const fields *f = u->problem;
    const int64_t cell = (batch * 1000 + head) * 1000000 + at[0] / f->cell_queries * 100003 + at[1] / f->cell_keys;
    const uint64_t kind = hash_of(f, CELLS, (uint64_t)cell) >> 40 & 3;
    return kind == 0 ? ATTREE_BLOCK_SKIP : kind == 1 ? ATTREE_BLOCK_PARTIAL : ATTREE_BLOCK_FULL;
}

/* Tiles are inside the problem. */
static void check_tile(const score_user *u, const attree_score_tile *t)
{
    const fields *f = u->problem;
    const bool inside = t->batch >= 0 && t->batch < f->batch && t->head >= 0 && t->head < f->kv_heads * f->group;
    const entry *e = &u->entries->entry[inside ? t->batch : 0];
    if (!inside || t->queries < 1 || t->first_query < 0 || u->first_query + t->first_query + t->queries > e->q_len ||
        t->keys < 1 || t->first_key < 0 || t->first_key + t->keys > e->kv_len)
        __atomic_store_n(u->wrong, true, __ATOMIC_RELAXED);
}

void score_function(const attree_score_tile *t, void *user)
{
    const score_user *u = user;
    check_tile(u, t);
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++) {
            const int64_t at[2] = {u->first_query + t->first_query + i, t->first_key + j};
            float *const s = t->scores + i * t->query_stride + j;
            const attree_block_answer kind = cell_kind(u, t->batch, t->head, at);
            if (kind == ATTREE_BLOCK_SKIP || (kind == ATTREE_BLOCK_PARTIAL && (at[0] + 2 * at[1]) % 5 == 0))
                *s = -INFINITY;
            else if (kind == ATTREE_BLOCK_PARTIAL)
                *s += 0.37f * (float)((3 * at[0] + 5 * at[1] + t->head + 7 * t->batch) % 9);
        }
}

attree_block_answer block_function(const attree_score_tile *t, void *user)
{
    const score_user *u = user;
    const fields *f = u->problem;
    check_tile(u, t);
    const int64_t first_query = u->first_query + t->first_query, last_key = t->first_key + t->keys - 1;
    attree_block_answer all = ATTREE_BLOCK_PARTIAL;
    bool any = false;
    for (int64_t i = first_query / f->cell_queries; i <= (first_query + t->queries - 1) / f->cell_queries; i++)
        for (int64_t j = t->first_key / f->cell_keys; j <= last_key / f->cell_keys; j++) {
            const int64_t at[2] = {i * f->cell_queries, j * f->cell_keys};
            const attree_block_answer kind = cell_kind(u, t->batch, t->head, at);
            if (kind == ATTREE_BLOCK_PARTIAL || (any && kind != all))
                return ATTREE_BLOCK_PARTIAL;
            all = kind;
            any = true;
        }
    return all;
}
