/* Random problems. See problem.h. */
#include "problem.h"

#include "../../src/dtype.h"

#include <math.h>
#include <string.h>

/* ---- The list of fields ---- */

#define FIELD(name, simplest, kind)                                                                                    \
    {                                                                                                                  \
#name, offsetof(fields, name), simplest, kind                                                                  \
    }

const field_info field_table[] = {
    FIELD(calls, 1 << CALL_RUN, FIELD_BITS),
    FIELD(isas, 1 << ATTREE_ISA_SCALAR, FIELD_BITS),
    FIELD(score, 0, FIELD_CHOICE),
    FIELD(mask, 0, FIELD_CHOICE),
    FIELD(bias, 0, FIELD_CHOICE),
    FIELD(page_size, 0, FIELD_SIZE),
    FIELD(panels, 0, FIELD_CHOICE),
    FIELD(q_starts, 0, FIELD_CHOICE),
    FIELD(kv_starts, 0, FIELD_CHOICE),
    FIELD(kv_lens, 0, FIELD_CHOICE),
    FIELD(q_offsets, 0, FIELD_CHOICE),
    FIELD(alibi, 0, FIELD_CHOICE),
    FIELD(sinks, 0, FIELD_CHOICE),
    FIELD(softcap, 0, FIELD_SIZE),
    FIELD(use_scale, 0, FIELD_CHOICE),
    FIELD(use_window, 0, FIELD_CHOICE),
    FIELD(causal, 0, FIELD_CHOICE),
    FIELD(use_q_offset, 0, FIELD_CHOICE),
    FIELD(q_type, 0, FIELD_CHOICE),
    FIELD(k_type, 0, FIELD_CHOICE),
    FIELD(v_type, 0, FIELD_CHOICE),
    FIELD(o_type, 0, FIELD_CHOICE),
    FIELD(q_values, 0, FIELD_CHOICE),
    FIELD(k_values, 0, FIELD_CHOICE),
    FIELD(v_values, 0, FIELD_CHOICE),
    FIELD(rounding, 0, FIELD_CHOICE),
    FIELD(flush, 0, FIELD_BITS),
    FIELD(empty_rows, 0, FIELD_CHOICE),
    FIELD(no_lse, 0, FIELD_CHOICE),
    FIELD(weights, 0, FIELD_CHOICE),
    FIELD(append, 0, FIELD_CHOICE),
    FIELD(q_layout, 0, FIELD_BITS),
    FIELD(k_layout, 0, FIELD_BITS),
    FIELD(v_layout, 0, FIELD_BITS),
    FIELD(o_layout, 0, FIELD_BITS),
    FIELD(lse_layout, 0, FIELD_BITS),
    FIELD(k_scales_layout, 0, FIELD_BITS),
    FIELD(v_scales_layout, 0, FIELD_BITS),
    FIELD(bias_layout, 0, FIELD_BITS),
    FIELD(bias_sizes, 0, FIELD_BITS),
    FIELD(bias_type, 0, FIELD_CHOICE),
    FIELD(mask_layout, 0, FIELD_BITS),
    FIELD(mask_sizes, 0, FIELD_BITS),
    FIELD(mask_shows, 8, FIELD_SIZE),
    FIELD(cell_queries, 1, FIELD_SIZE),
    FIELD(cell_keys, 1, FIELD_SIZE),
    FIELD(scale, 0, FIELD_SIZE),
    FIELD(window_left, 0, FIELD_SIZE),
    FIELD(window_right, 0, FIELD_SIZE),
    FIELD(q_offset, 0, FIELD_SIZE),
    FIELD(threads, 1, FIELD_SIZE),
    FIELD(workers, 1, FIELD_SIZE),
    FIELD(chunk, 1, FIELD_SIZE),
    FIELD(at_start, 0, FIELD_BITS),
    FIELD(batch, 1, FIELD_SIZE),
    FIELD(group, 1, FIELD_SIZE),
    FIELD(kv_heads, 1, FIELD_SIZE),
    FIELD(q_len, 1, FIELD_SIZE),
    FIELD(kv_len, 1, FIELD_SIZE),
    FIELD(qk_width, 1, FIELD_SIZE),
    FIELD(v_width, 1, FIELD_SIZE),
    FIELD(seed, 0, FIELD_SEED),
};
_Static_assert(sizeof field_table / sizeof *field_table == FIELDS, "every field is in the table");

int64_t *field_of(fields *f, int n) { return (int64_t *)(void *)((char *)f + field_table[n].offset); }

int64_t field_value(const fields *f, int n)
{
    int64_t value;
    memcpy(&value, (const char *)f + field_table[n].offset, sizeof value);
    return value;
}

static void append(char **to, const char *end, const char *text)
{
    while (*text && *to < end)
        *(*to)++ = *text++;
}

static void append_number(char **to, const char *end, int64_t value)
{
    char digits[24], *at = digits + sizeof digits - 1;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    *at = 0;
    do
        *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0)
        *--at = '-';
    append(to, end, at);
}

void print_fields(const fields *f, char *text, size_t capacity)
{
    char *to = text;
    const char *const end = text + capacity - 1;
    for (int n = 0; n < FIELDS; n++) {
        if (field_value(f, n) == field_table[n].simplest)
            continue;
        append(&to, end, to == text ? "" : " ");
        append(&to, end, field_table[n].name);
        append(&to, end, "=");
        append_number(&to, end, field_value(f, n));
    }
    *to = 0;
}

/* Reads an integer at *text, and goes on to what comes after it. */
static bool read_number(const char **text, int64_t *value)
{
    const bool minus = **text == '-';
    const char *at = *text + minus, *const first = at;
    uint64_t number = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        number = number * 10 + (uint64_t)(*at - '0');
    *value = (int64_t)(minus ? 0 - number : number);
    *text = at;
    return at > first && (*at == 0 || *at == ' ');
}

bool read_fields(fields *f, const char *text, const char **wrong)
{
    for (int n = 0; n < FIELDS; n++)
        *field_of(f, n) = field_table[n].simplest;
    for (;;) {
        text += strspn(text, " ");
        if (!*text)
            return true;
        *wrong = text;
        const size_t length = strcspn(text, "= ");
        int n = 0;
        while (n < FIELDS &&
               !(strlen(field_table[n].name) == length && strncmp(text, field_table[n].name, length) == 0))
            n++;
        text += length;
        if (n == FIELDS || *text++ != '=' || !read_number(&text, field_of(f, n)))
            return false;
    }
}

/* ---- Drawing ---- */

/* The last steps of splitmix64. */
uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t hash_of(const fields *f, uint64_t what, uint64_t n) { return mix(mix((uint64_t)f->seed + what) + n); }

typedef struct drawer {
    uint64_t state;
} drawer;

static int64_t draw(drawer *d, int64_t low, int64_t high)
{
    d->state = mix(d->state);
    return low + (int64_t)(d->state % (uint64_t)(high - low + 1));
}

/* True in so many of a thousand. */
static bool often(drawer *d, int64_t thousandths) { return draw(d, 0, 999) < thousandths; }

static const int64_t tails[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 127, 128, 129};

static int64_t draw_tail(drawer *d) { return tails[draw(d, 0, (int64_t)(sizeof tails / sizeof *tails) - 1)]; }

static int64_t draw_width(drawer *d)
{
    const int64_t kind = draw(d, 0, 99);
    if (kind < 45)
        return draw(d, 1, 40);
    return kind < 90 ? draw_tail(d) : kind < 97 ? draw(d, 250, 260) : draw(d, 512, 1100);
}

static int64_t draw_queries(drawer *d)
{
    const int64_t kind = draw(d, 0, 99);
    if (kind < 25)
        return 1;
    if (kind < 55)
        return draw(d, 1, 9);
    return kind < 75 ? draw_tail(d) : kind < 90 ? draw(d, 9, 70) : kind < 98 ? draw(d, 90, 600) : draw(d, 0, 4000);
}

static int64_t draw_keys(drawer *d)
{
    const int64_t kind = draw(d, 0, 99);
    if (kind < 25)
        return draw(d, 0, 40);
    if (kind < 45)
        return draw_tail(d);
    if (kind < 60)
        return draw(d, 1, 4) * 256 + draw(d, -2, 2);
    return kind < 90 ? draw(d, 200, 1300) : draw(d, 1300, 6000);
}

/* Multiply-adds, and what else takes about as long. */
static double work_of(const fields *f)
{
    return (double)(f->batch * f->kv_heads * f->group) * (double)f->q_len * (double)f->kv_len *
           (double)(f->qk_width + f->v_width + 16);
}

static void draw_heads_and_widths(fields *f, drawer *d)
{
    f->batch = often(d, 8) ? 0 : often(d, 500) ? 1 : often(d, 30) ? draw(d, 5, BATCH_MOST) : draw(d, 1, 4);
    f->kv_heads = often(d, 600) ? 1 : often(d, 900) ? draw(d, 1, 4) : draw(d, 5, 9);
    f->group = often(d, 500) ? 1 : often(d, 900) ? draw(d, 1, 8) : draw(d, 9, 71);
    f->qk_width = often(d, 10) ? 0 : draw_width(d);
    f->v_width = often(d, 300) && f->qk_width > 0 ? f->qk_width : draw_width(d);
}

/* Rows enough for many tiles. */
static void draw_prefill(fields *f, drawer *d)
{
    f->batch = draw(d, 1, 2);
    f->group = draw(d, 1, 8);
    f->q_len = draw(d, 100, 3000) / f->group;
    f->kv_heads = often(d, 700) ? 1 : 2;
    f->kv_len = draw(d, 2, 80);
}

static void draw_shape(fields *f, drawer *d)
{
    draw_heads_and_widths(f, d);
    f->q_len = draw_queries(d);
    f->kv_len = draw_keys(d);
    const bool prefill = often(d, 80);
    if (prefill)
        draw_prefill(f, d);
    /* Several threads have work from 2^19 multiply-adds on. */
    const double most = prefill ? 2e6 : often(d, 600) ? 5e4 : often(d, 750) ? 1e6 : 4e6;
    int64_t *const sizes[] = {&f->qk_width, &f->v_width, &f->kv_len, &f->batch, &f->kv_heads, &f->group, &f->q_len};
    while (work_of(f) > most) {
        int64_t *const size = sizes[draw(d, 0, prefill ? 4 : 6)];
        *size = *size > 1 ? (*size + draw(d, 0, 1)) / 2 : *size;
    }
}

static int64_t draw_layout(drawer *d)
{
    if (often(d, 350))
        return 0;
    int64_t layout = LAYOUT_GIVEN + draw(d, 0, 23);
    layout += often(d, 400) ? LAYOUT_BACKWARDS * draw(d, 0, 15) : 0;
    layout += often(d, 600) ? LAYOUT_ROOM * draw(d, 0, 15) : 0;
    layout += often(d, 120) ? LAYOUT_REPEAT * ((int64_t)1 << draw(d, 0, 3)) : 0;
    return layout + (often(d, 200) ? LAYOUT_SPREAD : 0);
}

static void draw_layouts(fields *f, drawer *d)
{
    int64_t *const layouts[] = {&f->q_layout,        &f->k_layout,    &f->v_layout,
                                &f->o_layout,        &f->lse_layout,  &f->k_scales_layout,
                                &f->v_scales_layout, &f->bias_layout, &f->mask_layout};
    const bool all_dense = often(d, 200);
    for (size_t n = 0; n < sizeof layouts / sizeof *layouts; n++)
        *layouts[n] = all_dense ? 0 : draw_layout(d);
    if (often(d, 150)) /* heads of a token beside each other */
        f->k_layout = f->v_layout = LAYOUT_GIVEN + 2;
    f->at_start = often(d, 700) ? draw(d, 0, 0xffff) & draw(d, 0, 0xffff) : 0;
    f->q_starts = often(d, 170);
    f->kv_starts = often(d, 120);
    f->kv_lens = often(d, 250);
    f->q_offsets = often(d, 150);
    f->panels = often(d, 200);
    f->page_size = often(d, 650)   ? 0
                   : often(d, 600) ? draw(d, 1, 8) * 16
                   : often(d, 700) ? draw(d, 1, 70)
                                   : draw(d, 1, 600);
}

static void draw_terms(fields *f, drawer *d)
{
    f->use_scale = often(d, 300);
    f->scale = often(d, 100) ? 0 : draw(d, -2000, 2000);
    f->causal = often(d, 400);
    f->use_window = often(d, 300);
    f->window_left = often(d, 200) ? -1 : draw(d, 0, often(d, 500) ? 20 : f->kv_len);
    f->window_right = often(d, 300) ? -1 : draw(d, 0, often(d, 700) ? 8 : f->kv_len);
    f->use_q_offset = often(d, 200);
    f->q_offset = draw(d, -6, f->kv_len + 6);
    f->softcap = often(d, 750) ? 0 : draw(d, 1, 9000);
    f->alibi = often(d, 200);
    f->sinks = often(d, 700) ? 0 : draw(d, 1, 2);
    f->bias = often(d, 750) ? 0 : draw(d, 1, 2);
    f->bias_type = often(d, 500) ? 0 : draw(d, 0, 2);
    f->bias_sizes = often(d, 500) ? 0 : draw(d, 0, 15);
    f->mask = often(d, 650) ? 0 : draw(d, 1, 2);
    f->mask_sizes = often(d, 400) ? 0 : often(d, 400) ? draw(d, 6, 7) : draw(d, 0, 15);
    f->mask_shows = draw(d, 0, 16);
    f->score = often(d, 700) ? 0 : draw(d, 1, 2);
    static const int64_t cells[] = {1, 16, 64, 256, 1024};
    f->cell_queries = cells[draw(d, 0, 4)];
    f->cell_keys = cells[draw(d, 0, 4)];
    f->empty_rows = draw(d, 0, 2);
}

/* Most problems have few kinds of things at once in their numbers and types: many do not reach far. */
static void draw_numbers(fields *f, drawer *d)
{
    f->q_type = often(d, 500) ? 0 : draw(d, 0, 2);
    f->k_type = often(d, 350) ? 0 : draw(d, 0, 6);
    f->v_type = often(d, 500) ? f->k_type : draw(d, 0, 6);
    f->o_type = often(d, 600) ? 0 : draw(d, 0, 2);
    f->q_values = often(d, 750) ? 0 : draw(d, 0, VALUES_KINDS - 1);
    f->k_values = often(d, 750) ? 0 : draw(d, 0, VALUES_KINDS - 1);
    f->v_values = often(d, 800) ? 0 : draw(d, 0, VALUES_KINDS - 1);
    f->rounding = often(d, 700) ? 0 : draw(d, 0, 3);
    f->flush = often(d, 700) ? 0 : draw(d, 0, 3);
    f->no_lse = often(d, 150);
    f->weights = often(d, 100);
    f->append = often(d, 100);
}

/* One token of a long sequence, in whole vectors one after the other: what decoders do, and random sizes hardly ever.
 */
static void draw_decode(fields *f, drawer *d)
{
    f->batch = 1;
    f->q_len = draw(d, 1, 2);
    f->group = draw(d, 1, 3);
    f->kv_len = draw(d, 500, 2500);
    f->qk_width = 16 * draw(d, 1, 6);
    f->v_width = 16 * draw(d, 1, 6);
    f->k_layout = f->v_layout = often(d, 700) ? 0 : LAYOUT_GIVEN + 2;
    f->k_type = draw(d, 0, 2);
    f->v_type = draw(d, 0, 2);
    f->panels = f->kv_starts = 0;
    f->use_window = often(d, 200);
    f->mask = often(d, 500) ? 0 : draw(d, 1, 2);
    f->mask_sizes = draw(d, 6, 7);
}

fields draw_problem(uint64_t seed, int64_t isas)
{
    fields f = {.seed = (int64_t)(mix(seed) >> 1)};
    drawer d = {seed};
    draw_shape(&f, &d);
    draw_layouts(&f, &d);
    draw_terms(&f, &d);
    draw_numbers(&f, &d);
    if (often(&d, 80))
        draw_decode(&f, &d);
    f.isas = isas & (often(&d, 300) ? -1 : ~((int64_t)1 << ATTREE_ISA_SCALAR));
    f.calls = ((int64_t)1 << draw(&d, 0, CALL_FORMS - 1)) | ((int64_t)1 << draw(&d, 0, CALL_FORMS - 1));
    f.threads = often(&d, 300) ? 1 : often(&d, 850) ? draw(&d, 2, 5) : draw(&d, 6, 33);
    f.workers = often(&d, 900) ? draw(&d, 1, 5) : draw(&d, 6, 36);
    f.chunk = often(&d, 500) ? draw(&d, 1, 9) : draw(&d, 1, 300);
    mend_fields(&f, isas);
    return f;
}

/* ---- Making them valid ---- */

static void keep_within(int64_t *x, int64_t low, int64_t high) { *x = *x < low ? low : *x > high ? high : *x; }

static bool has_blocks(int64_t type) { return type == ATTREE_Q8_0 || type == ATTREE_Q4_0; }

static void mend_sizes(fields *f)
{
    keep_within(&f->batch, 0, BATCH_MOST);
    keep_within(&f->kv_heads, 1, 64);
    keep_within(&f->group, 1, 128);
    keep_within(&f->q_len, 0, 10000);
    keep_within(&f->kv_len, 0, 100000);
    keep_within(&f->qk_width, 0, 2048);
    keep_within(&f->v_width, 1, 2048);
    if (has_blocks(f->k_type))
        f->qk_width = (f->qk_width + 31) / 32 * 32;
    if (has_blocks(f->v_type))
        f->v_width = (f->v_width + 31) / 32 * 32;
    keep_within(&f->threads, 1, 33);
    keep_within(&f->workers, 1, 40);
    keep_within(&f->chunk, 1, 10000);
}

static void mend_places(fields *f)
{
    keep_within(&f->page_size, 0, 4096);
    if (f->kv_starts || f->batch == 0)
        f->page_size = f->panels = 0;
    if (has_blocks(f->k_type))
        f->panels = 0;
    if (f->panels)
        f->page_size = (f->page_size + 15) / 16 * 16;
    if (f->batch == 0)
        f->q_starts = f->kv_starts = f->kv_lens = f->q_offsets = 0;
}

/* What some forms of a call cannot do is left out of them. */
static void mend_calls(fields *f, int64_t isas)
{
    f->isas &= isas;
    if (!f->isas)
        f->isas = (int64_t)1 << ATTREE_ISA_SCALAR;
    if (f->kv_starts)
        f->calls &= ~((int64_t)1 << CALL_SHARDS);
    if (f->q_starts || f->batch == 0)
        f->calls &= ~((int64_t)1 << CALL_CHUNKS);
    f->calls &= ((int64_t)1 << CALL_FORMS) - 1;
    if (!f->calls)
        f->calls = (int64_t)1 << CALL_RUN;
}

void mend_fields(fields *f, int64_t isas)
{
    int64_t *const narrow[] = {&f->q_type, &f->o_type, &f->bias_type, &f->mask,
                               &f->bias,   &f->sinks,  &f->score,     &f->empty_rows};
    for (size_t n = 0; n < sizeof narrow / sizeof *narrow; n++)
        keep_within(narrow[n], 0, 2);
    keep_within(&f->k_type, 0, ATTREE__DTYPE_COUNT - 1);
    keep_within(&f->v_type, 0, ATTREE__DTYPE_COUNT - 1);
    keep_within(&f->q_values, 0, VALUES_KINDS - 1);
    keep_within(&f->k_values, 0, VALUES_KINDS - 1);
    keep_within(&f->v_values, 0, VALUES_KINDS - 1);
    keep_within(&f->rounding, 0, 3);
    keep_within(&f->flush, 0, 3);
    keep_within(&f->window_left, -1, 1000000);
    keep_within(&f->window_right, -1, 1000000);
    keep_within(&f->softcap, 0, 1000000);
    keep_within(&f->cell_queries, 1, 1000000);
    keep_within(&f->cell_keys, 1, 1000000);
    keep_within(&f->mask_shows, 0, 16);
    mend_sizes(f);
    mend_places(f);
    mend_calls(f, isas);
    const int64_t room = (int64_t)1 << 30; /* of tensors in memory */
    while ((double)f->batch * (double)(f->kv_heads * f->group) * (double)f->q_len * (double)f->kv_len > (double)room)
        f->q_len /= 2;
}
