/* Where the elements of a problem lie. See tensors.h. */
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

#include "values.h"

#include "../../src/dtype.h"

enum { LAYOUT_ROOMS = 50, TABLE_IDS, TABLE_PLACES };

/* How a tensor is to lie. */
typedef struct lay {
    int64_t layout;
    bool output;   /* nothing repeats */
    bool adjacent; /* units of a row follow each other */
    bool paged;    /* batch is pages: that does not repeat */
} lay;

/* Order number n of 24. */
static void order_of(int64_t n, int order[4])
{
    int left[4] = {0, 1, 2, 3};
    static const int64_t divisor[4] = {6, 2, 1, 1};
    for (int k = 0; k < 4; k++) {
        const int64_t at = n / divisor[k] % (4 - k);
        order[k] = left[at];
        memmove(left + at, left + at + 1, (size_t)(3 - at) * sizeof *left);
    }
}

static void last_is_width(int order[4])
{
    int n = 0;
    for (int k = 0; k < 4; k++)
        if (order[k] != 3)
            order[n++] = order[k];
    order[3] = 3;
}

static void set_strides(tensor *t, const lay *l, uint64_t seed)
{
    int order[4];
    order_of(l->layout & LAYOUT_ORDER, order);
    if (l->adjacent)
        last_is_width(order);
    const bool free_order = l->layout & LAYOUT_GIVEN;
    int64_t step = free_order && l->layout & LAYOUT_SPREAD && !l->adjacent ? 3 : 1;
    for (int k = 3; k >= 0; k--) {
        const int d = free_order ? order[k] : k;
        const bool fixed = !free_order || (d == 3 && l->adjacent);
        const bool repeat = !fixed && !l->output && !(l->paged && d == 0) && l->layout & LAYOUT_REPEAT << d;
        t->stride[d] = fixed || !(l->layout & LAYOUT_BACKWARDS << d) ? step : -step;
        if (repeat && t->size[d] > 1)
            t->stride[d] = 0;
        else
            step *= t->size[d] > 1 ? t->size[d] : 1;
        if (!fixed && l->layout & LAYOUT_ROOM << d)
            step += 1 + (int64_t)(mix(seed + (uint64_t)d) % 5);
    }
}

static void measure(tensor *t)
{
    t->low = t->high = 0;
    bool empty = false;
    for (int d = 0; d < 4; d++) {
        empty = empty || t->size[d] == 0;
        if (t->size[d] <= 1)
            t->stride[d] = 0;
        const int64_t reach = t->stride[d] * (t->size[d] - 1);
        t->low += reach < 0 ? reach : 0;
        t->high += reach > 0 ? reach : 0;
    }
    if (empty) {
        t->low = 0;
        t->high = -1;
    }
}

static int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

static bool take(tensor *t, bool at_start, int fill)
{
    const int64_t from = t->unit ? t->low * t->unit : floor_div(t->low, 8);
    const int64_t end = t->high < t->low ? from : t->unit ? (t->high + 1) * t->unit : floor_div(t->high, 8) + 1;
    t->bytes = (size_t)(end - from);
    t->start = memory_take(t->slot, t->bytes, at_start, fill);
    t->data = (char *)((uintptr_t)t->start - (uintptr_t)from);
    return t->start != NULL;
}

static bool place(const tensors *all, tensor *t, const lay *l)
{
    t->given = l->layout & LAYOUT_GIVEN;
    set_strides(t, l, hash_of(all->f, LAYOUT_ROOMS, (uint64_t)t->slot));
    measure(t);
    return take(t, all->f->at_start >> t->slot & 1, l->output ? UNTOUCHED : GARBAGE);
}

int64_t unit_at(const tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return a * t->stride[0] + b * t->stride[1] + c * t->stride[2] + d * t->stride[3];
}

attree_strides said_strides(const tensor *t)
{
    int64_t s[4];
    for (int d = 0; d < 4; d++)
        s[d] = t->size[d] <= 1 ? 12345 + d : t->stride[d]; /* ignored, and not zero */
    return (attree_strides){s[0], s[1], s[2], s[3]};
}

/* ---- Queries ---- */

static bool place_queries(tensors *t)
{
    const fields *f = t->f;
    const int64_t unit = attree__dtype_bytes((int32_t)f->q_type);
    t->q = (tensor){{t->q_batches, t->heads, f->q_len, f->qk_width}, .unit = unit, .slot = SLOT_Q};
    if (!place(t, &t->q, &(lay){f->q_layout, false, false, false}))
        return false;
    for (int64_t b = 0; b < f->batch; b++) {
        const entry *e = &t->s.entry[b];
        for (int64_t i = 0; i < e->q_len; i++) {
            const key_range seen = keys_seen(f, e, i);
            for (int64_t h = 0; h < t->heads && seen.first < seen.end; h++) { /* others are garbage */
                const int64_t token = e->q_start + i;
                const char *row = t->q_rows + ((e->q_batch * t->heads + h) * f->q_len + token) * f->qk_width * unit;
                for (int64_t c = 0; c < f->qk_width; c++)
                    memcpy(t->q.data + unit_at(&t->q, e->q_batch, h, token, c) * unit, row + c * unit, (size_t)unit);
            }
        }
    }
    return true;
}

/* ---- Keys and values ---- */

/* Row j of batch entry b, head g, is at (batch or page, head, token): which. */
static void place_of_key(const tensors *t, const int64_t at[3], int64_t to[3])
{
    const entry *e = &t->s.entry[at[0]];
    const int64_t token = e->kv_start + at[2] - t->there.first, size = t->f->page_size;
    to[0] = size > 0 ? t->table[at[0] * t->pages_each + token / size] : e->kv_batch;
    to[1] = at[1];
    to[2] = size > 0 ? token % size : token;
}

int64_t scale_at(const tensors *t, const cache *c, const int64_t at[3])
{
    int64_t to[3];
    place_of_key(t, at, to);
    return unit_at(&c->scales_in_memory, to[0], to[1], to[2], 0);
}

void put_key(const tensors *t, const cache *c, char *data, const int64_t at[3], const char *row)
{
    const tensor *m = &c->in_memory;
    const int64_t unit = m->unit, units = c->panels ? c->width : m->size[3];
    int64_t to[3];
    place_of_key(t, at, to);
    for (int64_t n = 0; n < units; n++) {
        const int64_t where =
            c->panels ? unit_at(m, to[0], to[1], to[2] / 16, n * 16 + to[2] % 16) : unit_at(m, to[0], to[1], to[2], n);
        memcpy((char *)((uintptr_t)data + (uintptr_t)(where * unit)), row + n * unit, (size_t)unit);
    }
}

/* Which keys of a batch entry some query sees: seen[j] is 0 for the others. */
static void find_seen(const tensors *t, int64_t b, int32_t *seen)
{
    const entry *e = &t->s.entry[b];
    memset(seen, 0, (size_t)(t->f->kv_len + 1) * sizeof *seen);
    for (int64_t i = 0; i < e->q_len; i++) {
        const key_range keys = t->all_seen ? (key_range){0, e->kv_len} : keys_seen(t->f, e, i);
        if (keys.first < keys.end) {
            seen[keys.first]++;
            seen[keys.end]--;
        }
    }
    for (int64_t j = 1; j < t->f->kv_len; j++)
        seen[j] += seen[j - 1];
}

/* Keys that one mask for all queries and heads hides are garbage, too. */
static void forget_masked(const tensors *t, int64_t b, int32_t *seen)
{
    const pairs *m = &t->mask;
    if (!m->elements || m->size[1] != 1 || m->size[2] != 1 || t->all_seen)
        return;
    const char *const row = m->elements + (m->size[0] == 1 ? 0 : b) * m->size[3];
    for (int64_t j = 0; j < t->s.entry[b].kv_len; j++)
        if (!row[m->size[3] == 1 ? 0 : t->s.entry[b].kv_start + j])
            seen[j] = 0;
}

static void fill_cache(const tensors *t, const cache *c)
{
    const fields *f = t->f;
    int32_t *const seen = malloc((size_t)(f->kv_len + 1) * sizeof *seen);
    for (int64_t b = 0; b < f->batch; b++) {
        const entry *e = &t->s.entry[b];
        find_seen(t, b, seen);
        forget_masked(t, b, seen);
        for (int64_t j = t->there.first; j < t->there.end && j < e->kv_len; j++)
            for (int64_t g = 0; g < f->kv_heads && seen[j]; g++) {
                const int64_t row = (e->kv_batch * f->kv_heads + g) * f->kv_len + e->kv_start + j;
                const int64_t at[3] = {b, g, j};
                put_key(t, c, c->in_memory.data, at, c->rows + row * c->row_bytes);
                if (c->scales)
                    memcpy(c->scales_in_memory.data + scale_at(t, c, at) * 4, &c->scales[row], 4);
            }
    }
    free(seen);
}

static bool place_cache(tensors *t, cache *c, int64_t layout, int64_t scales_layout)
{
    const fields *f = t->f;
    const bool paged = f->page_size > 0, blocks = attree__dtype_has_blocks(c->type);
    const int64_t batches = paged ? t->page_count : t->kv_batches;
    const int64_t tokens = paged ? f->page_size : t->there.end - t->there.first;
    const int64_t units = attree__dtype_units(c->type, c->width);
    const slot rows = c == &t->k ? SLOT_K : SLOT_V, scales = c == &t->k ? SLOT_K_SCALES : SLOT_V_SCALES;
    c->in_memory =
        (tensor){{batches, f->kv_heads, c->panels ? (tokens + 15) / 16 : tokens, c->panels ? units * 16 : units},
                 .unit = attree__dtype_bytes(c->type),
                 .slot = rows};
    c->scales_in_memory = (tensor){{batches, f->kv_heads, tokens, 1}, .unit = 4, .slot = scales};
    if (!place(t, &c->in_memory, &(lay){layout, false, c->panels || blocks, paged}) ||
        !place(t, &c->scales_in_memory, &(lay){scales_layout, false, false, paged}))
        return false;
    fill_cache(t, c);
    return true;
}

/* Whether all that pages hold repeats along a dimension, so that pages can be shared. */
static bool all_repeat(const tensors *t, int d)
{
    const fields *f = t->f;
    const int64_t bit = LAYOUT_REPEAT << d;
    return f->k_layout & bit && f->v_layout & bit && (!t->k.scales || f->k_scales_layout & bit) &&
           (!t->v.scales || f->v_scales_layout & bit);
}

/* Entries of keys that nobody sees, or that are not there, are garbage. */
static void fill_table(tensors *t, int32_t *memory)
{
    const fields *f = t->f;
    int32_t *const seen = malloc((size_t)(f->kv_len + 1) * sizeof *seen);
    for (int64_t b = 0; b < f->batch; b++) {
        find_seen(t, b, seen);
        for (int64_t j = t->there.first; j < t->there.end; j++) {
            const int64_t page = (j - t->there.first) / f->page_size;
            if (seen[j])
                memory[b * t->table_width + page] = t->table[b * t->pages_each + page];
        }
    }
    free(seen);
}

/* Pages in any order; entries have the same where all that they hold is the same. */
static bool make_table(tensors *t)
{
    const fields *f = t->f;
    const uint64_t hash = hash_of(f, TABLE_PLACES, (uint64_t)t->there.first);
    free(t->table);
    t->pages_each = (t->there.end - t->there.first + f->page_size - 1) / f->page_size;
    t->table_width = t->pages_each + (int64_t)(hash % 3);
    t->page_count = f->batch * t->pages_each + 1 + (int64_t)(hash / 3 % 3);
    int32_t *const ids = malloc((size_t)t->page_count * sizeof *ids);
    for (int64_t n = 0; n < t->page_count; n++) {
        const int64_t other = (int64_t)(hash_of(f, TABLE_IDS, (uint64_t)n) % (uint64_t)(n + 1));
        ids[n] = ids[other];
        ids[other] = (int32_t)n;
    }
    t->table = calloc((size_t)(f->batch * t->pages_each + 1), sizeof *t->table);
    const bool share_entries = all_repeat(t, 0), share_tokens = all_repeat(t, 2);
    for (int64_t n = 0; n < f->batch * t->pages_each; n++) {
        const int64_t b = share_entries ? 0 : n / t->pages_each;
        const int64_t page = share_tokens ? (int64_t)(hash_of(f, TABLE_PLACES, (uint64_t)n) % (uint64_t)t->pages_each)
                                          : n % t->pages_each;
        t->table[n] = ids[b * t->pages_each + page];
    }
    free(ids);
    const int64_t entries = f->batch * t->table_width - (t->table_width - t->pages_each);
    char *const memory =
        memory_take(SLOT_TABLE, (size_t)entries * sizeof(int32_t), f->at_start >> SLOT_TABLE & 1, GARBAGE);
    if (!memory)
        return false;
    fill_table(t, (int32_t *)(void *)memory);
    t->table_in_memory = (const int32_t *)(const void *)memory_read_only(SLOT_TABLE, memory);
    return true;
}

bool tensors_place_keys(tensors *t, key_range keys)
{
    t->there = keys;
    t->table_in_memory = NULL;
    if (t->f->page_size > 0 && !make_table(t))
        return false;
    return place_cache(t, &t->k, t->f->k_layout, t->f->k_scales_layout) &&
           place_cache(t, &t->v, t->f->v_layout, t->f->v_scales_layout);
}

bool tensors_place_all_keys(tensors *t)
{
    t->all_seen = true;
    return tensors_place_keys(t, (key_range){0, t->f->kv_len});
}

/* ---- Masks and biases ---- */

static void put_pair(pairs *p, const int64_t at[4], int64_t element)
{
    tensor *const m = &p->in_memory;
    const int64_t n = unit_at(m, at[0], at[1], at[2], at[3]);
    if (m->unit > 0) {
        memcpy(m->data + n * m->unit, p->elements + element * m->unit, (size_t)m->unit);
        return;
    }
    unsigned char *const byte = (unsigned char *)m->data + floor_div(n, 8);
    const unsigned bit = 1u << (n - floor_div(n, 8) * 8);
    *byte = (unsigned char)(p->elements[element] ? *byte | bit : *byte & ~bit);
}

/* Only what is asked about keys that a query sees. */
static void fill_pairs(const tensors *t, pairs *p)
{
    const fields *f = t->f;
    for (int64_t b = 0; b < f->batch; b++) {
        const entry *e = &t->s.entry[b];
        for (int64_t n = 0; n < t->heads * e->q_len; n++) {
            const int64_t h = n / e->q_len, i = n % e->q_len;
            const key_range seen = keys_seen(f, e, i);
            for (int64_t j = seen.first; j < seen.end; j++) {
                int64_t at[4] = {b, h, e->q_start + i, e->kv_start + j}, element = 0;
                for (int d = 0; d < 4; d++) {
                    at[d] = p->size[d] == 1 ? 0 : at[d];
                    element = element * p->size[d] + at[d];
                }
                put_pair(p, at, element);
            }
        }
    }
}

static bool place_pairs(tensors *t, pairs *p, int64_t unit, int64_t layout)
{
    if (!p->elements)
        return true;
    p->in_memory = (tensor){.unit = unit, .slot = p == &t->mask ? SLOT_MASK : SLOT_BIAS};
    memcpy(p->in_memory.size, p->size, sizeof p->size);
    if (!place(t, &p->in_memory, &(lay){layout, false, false, false}))
        return false;
    fill_pairs(t, p);
    return true;
}

static const float *place_heads(const tensors *t, const float *numbers, slot n)
{
    const size_t bytes = (size_t)t->heads * sizeof *numbers;
    char *const memory = memory_take(n, bytes, t->f->at_start >> n & 1, GARBAGE);
    memcpy(memory, numbers, bytes);
    return (const float *)(const void *)memory_read_only(n, memory);
}

/* ---- All ---- */

bool tensors_clear_outputs(tensors *t)
{
    const fields *f = t->f;
    const int64_t unit = attree__dtype_bytes((int32_t)f->o_type);
    t->o = (tensor){{t->q_batches, t->heads, f->q_len, f->v_width}, .unit = unit, .slot = SLOT_O};
    t->lse = (tensor){{t->q_batches, t->heads, f->q_len, 1}, .unit = 4, .slot = SLOT_LSE};
    t->states = (tensor){{t->q_batches, t->heads, f->q_len, f->v_width + 2}, .unit = 4, .slot = SLOT_STATES};
    return place(t, &t->o, &(lay){f->o_layout, true, false, false}) &&
           place(t, &t->lse, &(lay){f->lse_layout, true, false, false}) &&
           place(t, &t->states, &(lay){0, true, false, false});
}

bool tensors_make(tensors *t, const fields *f)
{
    *t = (tensors){.f = f, .s = sequences_of(f), .heads = f->kv_heads * f->group};
    t->q_batches = f->q_starts ? 1 : f->batch;
    t->kv_batches = f->kv_starts ? 1 : f->batch;
    values_draw(t);
    t->slopes_in_memory = place_heads(t, t->slopes, SLOT_SLOPES);
    t->sinks_in_memory = place_heads(t, t->sinks, SLOT_SINKS);
    return place_queries(t) && tensors_place_keys(t, (key_range){0, f->kv_len}) &&
           place_pairs(t, &t->mask, f->mask == 1 ? 1 : 0, f->mask_layout) &&
           place_pairs(t, &t->bias, attree__dtype_bytes((int32_t)f->bias_type), f->bias_layout) &&
           tensors_clear_outputs(t);
}

void tensors_free(tensors *t)
{
    void *const all[] = {t->q_rows, t->slopes,   t->sinks, t->k.rows,        t->k.scales,
                         t->v.rows, t->v.scales, t->table, t->mask.elements, t->bias.elements};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
}
