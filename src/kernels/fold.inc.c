/* The fold slot: one block of keys for a tile of query rows.
 *
 * Many rows: the block is packed once, then strips of rows that fit the first-level cache go through scores, softmax
 * and values. Few rows: a strip is the whole tile, and keys and values are packed a panel at a time just before their
 * only use, so that they are read from memory once and never written back to it. */

/* Rows that share one pass over the packed block: their scores (12 KiB on AVX2) stay in the first-level cache beside
 * one panel. */
#define STRIP_ROWS (2 * TILE_ROWS)

/* Keys whose values are folded together in the few-rows path. */
#define VALUE_CHUNK 16

/* Floats between panels of a packed block of values, not a multiple of 4 KiB / 4, so that writing a row of values, a
 * piece to each panel, does not hit one cache set again and again; and the same for a chunk. */
#define VALUE_STRIDE ((ATTREE__BLOCK + 1) * PANEL)
#define CHUNK_STRIDE (VALUE_CHUNK * PANEL)

/* Scratch: scores of a strip, then packed keys, then packed values. */
static int64_t scratch_floats(int64_t qk_width, int64_t v_width, int64_t rows)
{
    const int64_t scores = STRIP_ROWS * SCORE_STRIDE, panels = round_up(v_width, PANEL) / PANEL;
    if (rows <= STRIP_ROWS)
        return scores + PANEL * qk_width + panels * CHUNK_STRIDE;
    return scores + ATTREE__BLOCK * qk_width + panels * VALUE_STRIDE;
}

/* A strip of rows: their places, and the visible keys of all of them. */
typedef struct strip {
    const attree__fold *fold;
    int64_t row, rows;
    key_range seen; /* union over the rows; empty when from >= to */
    float *scores;  /* row r of the strip at scores + r * SCORE_STRIDE */
    bool pierced[STRIP_ROWS];
} strip;

static key_range union_of_rows(const attree__fold *f, int64_t row, int64_t rows)
{
    key_range all = {ATTREE__BLOCK, 0};
    for (int64_t r = row; r < row + rows; r++)
        if (f->first[r] < f->end[r]) {
            all.from = f->first[r] < all.from ? f->first[r] : all.from;
            all.to = f->end[r] > all.to ? f->end[r] : all.to;
        }
    return all;
}

/* Scores of the strip's rows against the panel of keys that starts at key j. */
static void strip_scores(const strip *s, const float *panel, int64_t j)
{
    const attree__fold *f = s->fold;
    for (int64_t r = 0; r < s->rows; r += TILE_ROWS) {
        const score_job job = {f->q + (s->row + r) * f->qk_width, panel, s->scores + r * SCORE_STRIDE + j, f->qk_width,
                               f->scale};
        score_group(at_most(TILE_ROWS, s->rows - r), &job);
    }
}

/* Scores become weights; m and l of each row are written, and u is cleared. */
static void strip_softmax(strip *s)
{
    const attree__fold *f = s->fold;
    const key_range range = {s->seen.from / PANEL * PANEL, round_up(s->seen.to, PANEL)};
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t row = s->row + r;
        const softmax_row job = {s->scores + r * SCORE_STRIDE, range, {f->first[row], f->end[row]}};
        memset(f->out.u + row * f->out.u_stride, 0, (size_t)f->out.u_stride * sizeof(float));
        s->pierced[r] = softmax(&job, f->out.m + row, f->out.l + row);
    }
}

ATTREE_INLINE key_range intersection(key_range a, key_range b)
{
    return (key_range){a.from > b.from ? a.from : b.from, at_most(a.to, b.to)};
}

/* The part of seen that has no hidden key for any of the rows; empty ones lie at its end. */
static key_range dense_keys(const strip *s, int64_t r, int64_t rows, key_range seen)
{
    key_range dense = seen;
    for (int64_t i = r; i < r + rows; i++) {
        const int64_t row = s->row + i;
        dense = intersection(dense, (key_range){s->fold->first[row], s->pierced[i] ? 0 : s->fold->end[row]});
    }
    return dense.from < dense.to ? dense : (key_range){seen.to, seen.to};
}

/* Adds the values of keys in part, in columns e ... of the panel, to u of each row. values points to key part.from. */
static void strip_values(const strip *s, const float *values, int64_t step, int64_t e, key_range part)
{
    const attree__fold *f = s->fold;
    for (int64_t r = 0; r < s->rows; r += TILE_ROWS) {
        const int64_t rows = at_most(TILE_ROWS, s->rows - r);
        const key_range seen = intersection(part, union_of_rows(f, s->row + r, rows));
        if (seen.from >= seen.to)
            continue;
        const value_job job = {
            .weights = s->scores + r * SCORE_STRIDE,
            .values = values + (seen.from - part.from) * step,
            .step = step,
            .seen = seen,
            .dense = dense_keys(s, r, rows, seen),
            .u = f->out.u + (s->row + r) * f->out.u_stride + e,
            .u_stride = f->out.u_stride,
        };
        value_group(rows, at_most(PANEL, f->out.u_stride - e), &job);
    }
}

static void empty_rows(const attree__fold *f, int64_t row, int64_t rows)
{
    for (int64_t r = row; r < row + rows; r++) {
        f->out.m[r] = -INFINITY;
        f->out.l[r] = 0.0f;
        memset(f->out.u + r * f->out.u_stride, 0, (size_t)f->out.u_stride * sizeof(float));
    }
}

/* Adds the values of a chunk of keys to u of each row of the strip. f32 values are used where they lie, but for a last panel
 * that is not full; others are packed first. */
static void chunk_values(const strip *s, bool in_place, float *packed, key_range part)
{
    const attree__fold *f = s->fold;
    const value_panels panels = {packed, part.from, CHUNK_STRIDE};
    const int64_t whole = in_place ? f->v_width / PANEL * PANEL : 0;
    for (int64_t e = 0; e < whole; e += PANEL) {
        for (int64_t j = part.from; j < part.to; j++)
            for (int64_t i = 0; i < PANEL; i += VF_LANES)
                prefetch_number(&f->v, ATTREE_F32, j + KEYS_AHEAD, e + i);
        strip_values(s, (const float *)f->v.data + part.from * f->v.token + e, f->v.token, e, part);
    }
    if (whole == f->v_width)
        return;
    const attree__rows rest = {(const float *)f->v.data + whole, f->v.token, f->v.width, f->v.type};
    pack_values(&panels, in_place ? &rest : &f->v, part, f->v_width - whole);
    for (int64_t e = whole; e < f->v_width; e += PANEL)
        strip_values(s, value_panel(&panels, part.from, e - whole), PANEL, e, part);
}

static void fold_few_rows(const attree__fold *f)
{
    strip s = {f, 0, f->rows, union_of_rows(f, 0, f->rows), f->scratch, {false}};
    float *const key_panel = f->scratch + STRIP_ROWS * SCORE_STRIDE;
    float *const values = key_panel + PANEL * f->qk_width;
    if (s.seen.from >= s.seen.to) {
        empty_rows(f, 0, f->rows);
        return;
    }
    for (int64_t j = s.seen.from / PANEL * PANEL; j < s.seen.to; j += PANEL) {
        pack_keys(key_panel, &f->k, j, s.seen, f->qk_width);
        strip_scores(&s, key_panel, j);
    }
    strip_softmax(&s);
    const bool in_place = f->v.type == ATTREE_F32 && (f->v.width == 1 || f->v_width == 1);
    for (int64_t j = s.seen.from; j < s.seen.to; j += VALUE_CHUNK)
        chunk_values(&s, in_place, values, (key_range){j, at_most(s.seen.to, j + VALUE_CHUNK)});
}

static void fold_many_rows(const attree__fold *f)
{
    const key_range all = union_of_rows(f, 0, f->rows);
    float *const keys = f->scratch + STRIP_ROWS * SCORE_STRIDE;
    float *const values = keys + ATTREE__BLOCK * f->qk_width;
    for (int64_t j = all.from / PANEL * PANEL; j < all.to; j += PANEL)
        pack_keys(keys + j * f->qk_width, &f->k, j, all, f->qk_width);
    const value_panels panels = {values, 0, VALUE_STRIDE};
    pack_values(&panels, &f->v, all, f->v_width);

    for (int64_t row = 0; row < f->rows; row += STRIP_ROWS) {
        const int64_t rows = at_most(STRIP_ROWS, f->rows - row);
        strip s = {f, row, rows, union_of_rows(f, row, rows), f->scratch, {false}};
        if (s.seen.from >= s.seen.to) {
            empty_rows(f, row, rows);
            continue;
        }
        for (int64_t j = s.seen.from / PANEL * PANEL; j < s.seen.to; j += PANEL)
            strip_scores(&s, keys + j * f->qk_width, j);
        strip_softmax(&s);
        for (int64_t e = 0; e < f->v_width; e += PANEL)
            strip_values(&s, value_panel(&panels, s.seen.from, e), PANEL, e, s.seen);
    }
}

static void fold(const attree__fold *f)
{
    if (f->rows <= STRIP_ROWS)
        fold_few_rows(f);
    else
        fold_many_rows(f);
}
