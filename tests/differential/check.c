/* Comparing what the library has written. See run.h. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/dtype.h"
#include "run.h"

enum { WEIGHTS_ROW = 300, APPENDED, APPENDED_TYPE };

bool job_fails(const job *j, const char *format, ...)
{
    static const char *const isas[ISAS] = {"any", "scalar", "avx2", "avx512", "neon", "?", "?", "?"};
    const int length = snprintf(j->message, MESSAGE, "%s, %s: ", isas[j->isa], call_names[j->form]);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(j->message + length, (size_t)(MESSAGE - length), format, arguments);
    va_end(arguments);
    return false;
}

/* ---- The floating-point environment ---- */

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { STICKY = 0x3f };
static uint64_t get_mode(void) { return _mm_getcsr() & ~(unsigned)STICKY; }
static void set_mode(uint64_t mode) { _mm_setcsr((unsigned)mode); }
static uint64_t mode_of(const fields *f)
{
    return 0x1f80u | (uint64_t)f->rounding << 13 | (f->flush & 1 ? 1u << 15 : 0) | (f->flush & 2 ? 1u << 6 : 0);
}
#else
static uint64_t get_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void set_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
static uint64_t mode_of(const fields *f) { return (uint64_t)f->rounding << 22 | (f->flush ? 1u << 24 : 0); }
#endif

uint64_t mode_enter(const job *j)
{
    const uint64_t before = get_mode();
    set_mode(mode_of(j->t->f));
    return before;
}

bool mode_leave(const job *j, uint64_t before)
{
    const bool kept = get_mode() == mode_of(j->t->f);
    set_mode(before);
    return kept;
}

/* ---- Results ---- */

/* A number in memory, to be read. */
static double shown(const char *unit, int64_t bytes, const fields *f)
{
    return bytes == 4 ? (double)attree__load(unit, ATTREE_F32, 0) : (double)attree__load(unit, (int32_t)f->o_type, 0);
}

static char *row_of(const job *j, const tensor *o, char *data, const int64_t at[3], int64_t c)
{
    const entry *e = &j->t->s.entry[at[0]];
    return (char *)((uintptr_t)data + (uintptr_t)(unit_at(o, e->q_batch, at[1], e->q_start + at[2], c) * o->unit));
}

/* Row number n of the reference. */
static void find_row(const job *j, int64_t n, int64_t at[3])
{
    int64_t b = j->t->f->batch - 1;
    while (n < j->r->first_row[b])
        b--;
    const int64_t within = n - j->r->first_row[b], queries = j->t->s.entry[b].q_len;
    at[0] = b;
    at[1] = within / queries;
    at[2] = within % queries;
}

/* Says which is the first number that differs. */
static bool report(const job *j, const tensor *o, const char *rows, const char *name)
{
    for (int64_t n = 0; n < j->r->rows && rows; n++) {
        int64_t at[3];
        find_row(j, n, at);
        for (int64_t c = 0; c < o->size[3]; c++) {
            const char *const is = row_of(j, o, o->data, at, c), *const should = rows + (n * o->size[3] + c) * o->unit;
            if (memcmp(is, should, (size_t)o->unit) != 0)
                return job_fails(
                    j, "%s of batch %" PRId64 ", head %" PRId64 ", query %" PRId64 ", number %" PRId64 " is %a, not %a",
                    name, at[0], at[1], at[2], c, shown(is, o->unit, j->t->f), shown(should, o->unit, j->t->f));
        }
    }
    return job_fails(j, "%s is written where it has no elements", name);
}

bool check_output(const job *j, const tensor *o, const void *rows, const char *name)
{
    char *const image = malloc(o->bytes + 1);
    char *const data = (char *)((uintptr_t)image + (uintptr_t)(o->data - o->start));
    memset(image, UNTOUCHED, o->bytes);
    for (int64_t n = 0; n < j->r->rows && rows; n++) {
        int64_t at[3];
        find_row(j, n, at);
        for (int64_t c = 0; c < o->size[3]; c++)
            memcpy(row_of(j, o, data, at, c), (const char *)rows + (n * o->size[3] + c) * o->unit, (size_t)o->unit);
    }
    const bool same = memcmp(image, o->start, o->bytes) == 0 && memory_margin_is_kept(o->slot);
    free(image);
    return same || report(j, o, rows, name);
}

bool check_results(const job *j)
{
    return check_output(j, &j->t->o, j->r->o, "o") &&
           check_output(j, &j->t->lse, j->t->f->no_lse ? NULL : j->r->lse, "lse");
}

bool check_weights(const job *j, const attree_plan *plan, const attree_args *a)
{
    const fields *f = j->t->f;
    int64_t at[3];
    find_row(j, (int64_t)(hash_of(f, WEIGHTS_ROW, 0) % (uint64_t)j->r->rows), at);
    const int64_t keys = j->t->s.entry[at[0]].kv_len, written = f->kv_starts ? keys : f->kv_len; /* the rest is 0 */
    float *const weights = (float *)(void *)memory_take(SLOT_WEIGHTS, (size_t)f->kv_len * sizeof(float),
                                                        f->at_start >> SLOT_WEIGHTS & 1, UNTOUCHED);
    const uint64_t before = mode_enter(j);
    const attree_status status = attree_weights(plan, a, at[0], at[1], at[2], weights);
    if (!mode_leave(j, before) || status != ATTREE_OK)
        return job_fails(j, "attree_weights: %s", attree_status_name(status));
    float *const expected = calloc((size_t)written + 1, sizeof *expected);
    reference_weights(j->t, j->r, at, expected);
    int64_t n = 0;
    while (n < written && memcmp(&weights[n], &expected[n], sizeof *weights) == 0)
        n++;
    const float should = expected[n];
    free(expected);
    j->counts->weights++;
    if (n < written)
        return job_fails(
            j, "weight of batch %" PRId64 ", head %" PRId64 ", query %" PRId64 ", key %" PRId64 " is %a, not %a", at[0],
            at[1], at[2], n, (double)weights[n], (double)should);
    return memory_margin_is_kept(SLOT_WEIGHTS) && check_results(j);
}

/* ---- Appending ---- */

/* New rows of keys or values. */
typedef struct fresh {
    cache *c;
    int32_t type;
    char *numbers; /* of that type, [q_batches][G][Q][width] */
    char *image;   /* what the cache should be */
    char *scales_image;
} fresh;

static void draw_fresh(const job *j, fresh *n, uint64_t what)
{
    const tensors *t = j->t;
    const int64_t count = t->q_batches * t->f->kv_heads * t->f->q_len * n->c->width;
    n->type = (int32_t)(hash_of(t->f, APPENDED_TYPE, what) % 3);
    n->numbers = malloc((size_t)count * sizeof(float) + 1);
    for (int64_t i = 0; i < count; i++)
        attree__store(n->numbers, n->type, i,
                      number_of(VALUES_PLAIN, hash_of(t->f, APPENDED + 10 * what, (uint64_t)i)));
}

/* The row of a new key, as attree_quantize has it, into the images. */
static void put_fresh(const job *j, const fresh *n, const int64_t at[3], int64_t i)
{
    const tensors *t = j->t;
    const entry *e = &t->s.entry[at[0]];
    const int64_t width = n->c->width;
    const int64_t from = ((e->q_batch * t->f->kv_heads + at[1]) * t->f->q_len + e->q_start + i) * width;
    float *const numbers = malloc((size_t)(width + 1) * sizeof *numbers);
    char *const row = malloc((size_t)(n->c->row_bytes + 4));
    float scale = 0.0f;
    for (int64_t c = 0; c < width; c++)
        numbers[c] = attree__load(n->numbers, n->type, from + c);
    (void)attree_quantize(n->c->type, width, numbers, row, &scale);
    const tensor *m = &n->c->in_memory, *scales = &n->c->scales_in_memory;
    put_key(t, n->c, (char *)((uintptr_t)n->image + (uintptr_t)(m->data - m->start)), at, row);
    if (n->c->scales)
        memcpy(n->scales_image + (scales->data - scales->start) + scale_at(t, n->c, at) * 4, &scale, sizeof scale);
    free(row);
    free(numbers);
}

static void copy_images(fresh *n)
{
    const tensor *m = &n->c->in_memory, *scales = &n->c->scales_in_memory;
    n->image = malloc(m->bytes + 1);
    n->scales_image = malloc(scales->bytes + 1);
    memcpy(n->image, m->start, m->bytes);
    memcpy(n->scales_image, scales->start, scales->bytes);
}

static bool is_as_image(const fresh *n)
{
    const tensor *m = &n->c->in_memory, *scales = &n->c->scales_in_memory;
    return memcmp(n->image, m->start, m->bytes) == 0 && memcmp(n->scales_image, scales->start, scales->bytes) == 0 &&
           memory_margin_is_kept(m->slot) && memory_margin_is_kept(scales->slot);
}

/* Whether every row of the cache has a place of its own, and new tokens are keys that there are. */
static bool can_append(const tensors *t)
{
    const fields *f = t->f;
    const int64_t repeats = (f->k_layout | f->v_layout | f->k_scales_layout | f->v_scales_layout) & LAYOUT_REPEAT * 15;
    bool inside = true;
    for (int64_t b = 0; b < f->batch; b++) {
        const entry *e = &t->s.entry[b];
        inside = inside && (e->q_len == 0 || (e->q_offset >= 0 && e->q_offset + e->q_len <= e->kv_len));
    }
    return inside && !repeats && f->batch > 0 && f->qk_width > 0;
}

static bool append(const job *j, fresh news[2])
{
    tensors *const t = j->t;
    attree_desc d;
    attree_args a;
    attree_plan *plan;
    tensors_describe(t, &d, &a);
    const attree_new_tokens tokens = {.size = sizeof tokens,
                                      .k = news[0].numbers,
                                      .v = news[1].numbers,
                                      .k_type = news[0].type,
                                      .v_type = news[1].type,
                                      .cache_k = t->k.in_memory.data,
                                      .cache_v = t->v.in_memory.data,
                                      .cache_k_scales = (float *)(void *)t->k.scales_in_memory.data,
                                      .cache_v_scales = (float *)(void *)t->v.scales_in_memory.data,
                                      .page_table = t->table_in_memory};
    const uint64_t before = mode_enter(j);
    attree_status status = attree_plan_create(&plan, &d);
    if (status == ATTREE_OK)
        status = attree_append(plan, &tokens);
    attree_plan_destroy(plan);
    if (!mode_leave(j, before) || status != ATTREE_OK)
        return job_fails(j, "attree_append: %s %s", attree_status_name(status), attree_last_error());
    j->counts->appended++;
    return is_as_image(&news[0]) ? is_as_image(&news[1]) || job_fails(j, "attree_append writes other values")
                                 : job_fails(j, "attree_append writes other keys");
}

bool check_append(const job *j)
{
    tensors *const t = j->t;
    const fields *f = t->f;
    if (!can_append(t) || !tensors_place_all_keys(t))
        return true;
    fresh news[2] = {{.c = &t->k}, {.c = &t->v}};
    for (uint64_t n = 0; n < 2; n++) {
        draw_fresh(j, &news[n], n);
        copy_images(&news[n]);
    }
    for (int64_t b = 0; b < f->batch; b++)
        for (int64_t i = 0; i < t->s.entry[b].q_len; i++)
            for (int64_t g = 0; g < f->kv_heads; g++)
                for (int n = 0; n < 2; n++)
                    put_fresh(j, &news[n], (int64_t[]){b, g, t->s.entry[b].q_offset + i}, i);
    const bool good = append(j, news);
    for (int n = 0; n < 2; n++) {
        free(news[n].numbers);
        free(news[n].image);
        free(news[n].scales_image);
    }
    return good;
}
