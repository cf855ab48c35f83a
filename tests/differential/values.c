/* Elements of the tensors. See values.h. */
#include "values.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/dtype.h"

enum { OF_Q = 1, OF_K, OF_V, OF_K_SCALES, OF_V_SCALES, OF_MASK, OF_BIAS, OF_SLOPES, OF_SINKS };

static float between(uint64_t hash, float low, float high)
{
    return low + (high - low) * ((float)(hash >> 40) * 0x1p-24f);
}

float number_of(int64_t kind, uint64_t hash)
{
    const float x = between(hash, -1.0f, 1.0f);
    const uint64_t rest = hash & 0xffffff;
    const float sign = rest & 1 ? -1.0f : 1.0f;
    switch (kind) {
    case VALUES_NAN: return rest % 200 == 7 ? NAN : x;
    case VALUES_INFINITE: return rest % 200 == 7 ? sign * INFINITY : x;
    case VALUES_SUBNORMAL: return rest % 8 == 0 ? x : x * 0x1p-127f;
    case VALUES_LARGEST: return rest % 16 == 0 ? sign * FLT_MAX : x;
    case VALUES_HUGE: return x * 300.0f;
    case VALUES_EQUAL: return 1.0f;
    case VALUES_INTEGERS: return (float)((int)(rest % 5) - 2) * (rest & 64 ? -1.0f : 1.0f); /* also -0 */
    case VALUES_WIDE: return ldexpf(x, (int)(rest % 240) - 120);
    default: return x;
    }
}

/* What a row is drawn from. */
typedef struct row_kind {
    int32_t type;
    int64_t width, values;
    bool repeat; /* all its elements are the same */
} row_kind;

static uint8_t code_of(int64_t values, uint64_t hash) { return values == VALUES_EQUAL ? 1 : (uint8_t)(hash >> 20); }

static void draw_block(char *to, const row_kind *k, uint64_t seed)
{
    uint8_t *const bytes = (uint8_t *)to;
    const uint16_t scale = attree__to_f16(number_of(k->values, mix(seed)) * (k->type == ATTREE_Q8_0 ? 0.01f : 0.2f));
    bytes[0] = (uint8_t)(scale & 255u);
    bytes[1] = (uint8_t)(scale >> 8);
    for (int64_t i = 2; i < attree__dtype_bytes(k->type); i++)
        bytes[i] = code_of(k->values, mix(seed + (uint64_t)i));
}

static void draw_row(char *to, const row_kind *k, uint64_t seed)
{
    const int64_t units = attree__dtype_units(k->type, k->width), unit = attree__dtype_bytes(k->type);
    for (int64_t c = 0; c < units; c++) {
        const uint64_t hash = mix(seed + 1000u * (uint64_t)(k->repeat ? 0 : c));
        switch (k->type) {
        case ATTREE_Q8_0:
        case ATTREE_Q4_0: draw_block(to + c * unit, k, hash); break;
        case ATTREE_I8: to[c] = (char)code_of(k->values, hash); break;
        case ATTREE_F8_E5M2: to[c] = (char)attree__to_e5m2(number_of(k->values, hash)); break;
        case ATTREE_F8_E4M3: to[c] = (char)attree__to_f8(number_of(k->values, hash)); break;
        default: attree__store(to, k->type, c, number_of(k->values, hash)); break;
        }
    }
}

/* Index of what is drawn for element (b, h, t): some dimensions repeat. */
static uint64_t drawn_index(const int64_t at[3], int64_t layout, bool panels)
{
    const int64_t b = layout & LAYOUT_REPEAT ? 0 : at[0], h = layout & LAYOUT_REPEAT << 1 ? 0 : at[1];
    const int64_t t = layout & LAYOUT_REPEAT << 2 ? panels ? at[2] % 16 : 0 : at[2];
    return (uint64_t)((b * 1024 + h) * 1048576 + t);
}

static char *draw_rows(const fields *f, const int64_t size[3], const row_kind *k, const row_source *source)
{
    const int64_t row_bytes = attree__dtype_row_bytes(k->type, k->width);
    char *const rows = calloc((size_t)(size[0] * size[1] * size[2] * row_bytes + 1), 1);
    for (int64_t n = 0; n < size[0] * size[1] * size[2]; n++) {
        const int64_t at[3] = {n / size[2] / size[1], n / size[2] % size[1], n % size[2]};
        draw_row(rows + n * row_bytes, k, hash_of(f, source->what, drawn_index(at, source->layout, source->panels)));
    }
    return rows;
}

static void draw_cache(tensors *t, cache *c, const row_source *rows, int64_t scales_layout)
{
    const fields *f = t->f;
    const int64_t size[3] = {t->kv_batches, f->kv_heads, f->kv_len};
    const bool repeat = rows->layout & LAYOUT_REPEAT << 3 && !rows->panels;
    const row_kind kind = {c->type, c->width, rows->values, repeat};
    c->row_bytes = attree__dtype_row_bytes(c->type, c->width);
    c->rows = draw_rows(f, size, &kind, rows);
    c->scales = NULL;
    if (c->type != ATTREE_I8)
        return;
    const row_kind one = {ATTREE_F32, 1, rows->values, false};
    const row_source source = {rows->what + 2, scales_layout, false, rows->values};
    c->scales = (float *)(void *)draw_rows(f, size, &one, &source);
    for (int64_t n = 0; n < size[0] * size[1] * size[2]; n++)
        c->scales[n] *= 0.01f;
}

static float bias_number(int64_t kind, uint64_t hash)
{
    const uint64_t rest = hash & 0xffff;
    if (rest % 10 == 0)
        return -INFINITY;
    if (kind == 2 && rest % 7 == 1)
        return -FLT_MAX;
    if (kind == 2 && rest % 700 == 2)
        return rest & 1 ? NAN : INFINITY;
    return between(hash, -2.0f, 2.0f);
}

/* A mask, as bytes, or a bias. */
static void draw_pairs(tensors *t, pairs *p, int64_t sizes, int64_t layout)
{
    const fields *f = t->f;
    const bool mask = p == &t->mask;
    const int64_t whole[4] = {f->batch, t->heads, f->q_len, f->kv_len};
    int64_t count = 1;
    for (int d = 0; d < 4; d++) {
        p->size[d] = sizes >> d & 1 && whole[d] > 0 ? 1 : whole[d];
        count *= p->size[d];
    }
    const int64_t unit = mask ? 1 : attree__dtype_bytes((int32_t)f->bias_type);
    p->elements = calloc((size_t)(count * unit + 1), 1);
    for (int64_t n = 0; n < count; n++) {
        int64_t at[4], left = n;
        for (int d = 3; d >= 0; d--) {
            at[d] = layout & LAYOUT_REPEAT << d ? 0 : left % p->size[d];
            left /= p->size[d];
        }
        const uint64_t hash =
            hash_of(f, mask ? OF_MASK : OF_BIAS, (uint64_t)(((at[0] * 1024 + at[1]) * 16384 + at[2]) * 131072 + at[3]));
        if (mask)
            p->elements[n] = (int64_t)(hash >> 50 & 15) < f->mask_shows;
        else
            attree__store(p->elements, (int32_t)f->bias_type, n, bias_number(f->bias, hash));
    }
}

static void draw_heads(tensors *t)
{
    t->slopes = calloc((size_t)t->heads, sizeof *t->slopes);
    t->sinks = calloc((size_t)t->heads, sizeof *t->sinks);
    for (int64_t h = 0; h < t->heads; h++) {
        const uint64_t hash = hash_of(t->f, OF_SINKS, (uint64_t)h);
        t->slopes[h] = between(hash_of(t->f, OF_SLOPES, (uint64_t)h), -0.6f, 0.4f);
        t->sinks[h] = t->f->sinks == 2 && hash % 3 == 0 ? -INFINITY : between(hash, -4.0f, 4.0f);
    }
}

void values_draw(tensors *t)
{
    const fields *f = t->f;
    const int64_t size[3] = {t->q_batches, t->heads, f->q_len};
    const row_kind q_kind = {(int32_t)f->q_type, f->qk_width, f->q_values, (f->q_layout & LAYOUT_REPEAT << 3) != 0};
    const row_source q = {OF_Q, f->q_layout, false, f->q_values};
    t->q_rows = draw_rows(f, size, &q_kind, &q);
    t->k = (cache){.type = (int32_t)f->k_type, .width = f->qk_width, .panels = f->panels};
    t->v = (cache){.type = (int32_t)f->v_type, .width = f->v_width};
    const row_source k = {OF_K, f->k_layout, f->panels, f->k_values}, v = {OF_V, f->v_layout, false, f->v_values};
    draw_cache(t, &t->k, &k, f->k_scales_layout);
    draw_cache(t, &t->v, &v, f->v_scales_layout);
    t->mask.elements = t->bias.elements = NULL;
    if (f->mask)
        draw_pairs(t, &t->mask, f->mask_sizes, f->mask_layout);
    if (f->bias)
        draw_pairs(t, &t->bias, f->bias_sizes, f->bias_layout);
    draw_heads(t);
}
