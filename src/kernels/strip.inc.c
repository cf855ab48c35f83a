/* A strip: the rows that go through scores, softmax and values together. */

/* Rows that share one pass over the packed block: their scores (12 KiB on AVX2) stay in the first-level cache beside
 * one panel. */
#define STRIP_ROWS (2 * TILE_ROWS)

/* Rows of one register tile: which keys some of them see, and which all see with no key hidden by its score. The dense
 * ones are a part of those seen; when there are none they lie at the end. */
typedef struct row_group {
    int64_t row, rows;
    key_range seen, dense;
} row_group;

/* A strip of rows, in groups. */
typedef struct strip {
    const attree__fold *fold;
    int64_t row, rows;
    key_range seen; /* by some row; empty when from >= to */
    float *scores;  /* row r of the strip at scores + r * SCORE_STRIDE */
    row_group groups[STRIP_ROWS / TILE_ROWS];
} strip;

ATTREE_INLINE key_range intersection(key_range a, key_range b)
{
    return (key_range){a.from > b.from ? a.from : b.from, at_most(a.to, b.to)};
}

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

static strip make_strip(const attree__fold *f, int64_t row, int64_t rows)
{
    return (strip){.fold = f, .row = row, .rows = rows, .seen = union_of_rows(f, row, rows), .scores = f->scratch};
}

/* The score job of the group that starts at row r of the strip, for keys j, j + 1, ..., packed in panel if so. */
ATTREE_INLINE score_job group_scores(const strip *s, int64_t r, const float *panel, int64_t j)
{
    const attree__fold *f = s->fold;
    return (score_job){
        .q = f->q + (s->row + r) * f->qk_width,
        .panel = panel,
        .k = &f->k,
        .j = j,
        .scores = s->scores + r * SCORE_STRIDE + j,
        .width = f->qk_width,
        .scale = f->scale,
    };
}

/* Softmax of the rows of one group: m, l and weights; and what the group sees. */
static row_group group_softmax(const strip *s, int64_t r, key_range range)
{
    const attree__fold *f = s->fold;
    row_group group = {.row = s->row + r, .rows = at_most(TILE_ROWS, s->rows - r)};
    group.seen = union_of_rows(f, group.row, group.rows);
    group.dense = group.seen;
    for (int64_t i = 0; i < group.rows; i++) {
        const int64_t row = group.row + i;
        const softmax_row job = {s->scores + (r + i) * SCORE_STRIDE, range, {f->first[row], f->end[row]}};
        const bool pierced = softmax(&job, f->out.m + row, f->out.l + row);
        group.dense = intersection(group.dense, (key_range){f->first[row], pierced ? 0 : f->end[row]});
    }
    if (group.dense.from >= group.dense.to)
        group.dense = (key_range){group.seen.to, group.seen.to};
    return group;
}

/* span: what the strip's scores were computed in multiples of. */
static void strip_softmax(strip *s, int64_t span)
{
    const key_range range = {s->seen.from / span * span, round_up(s->seen.to, span)};
    for (int64_t r = 0; r < s->rows; r += TILE_ROWS)
        s->groups[r / TILE_ROWS] = group_softmax(s, r, range);
}

/* Values of some keys: those of the i-th are the row i * row_bytes on, from its number `column` on. */
typedef struct value_source {
    const void *at;
    int32_t type;
    int64_t row_bytes, column;
    const float *scale; /* of key j at scale[j], for ATTREE_I8 */
    int64_t ahead;      /* bytes from there to the values to ask for in advance */
    bool streamed;      /* they come from memory, not from a buffer in cache */
    bool fresh;         /* they are the first for u */
} value_source;

/* The value job of group g for the keys in part, whose values source gives, for columns e, e + 1, ... of u. */
ATTREE_INLINE value_job group_values(const strip *s, int64_t g, key_range part, const value_source *source, int64_t e)
{
    const attree__fold *f = s->fold;
    const row_group *group = &s->groups[g];
    const key_range seen = intersection(part, group->seen), dense = intersection(seen, group->dense);
    return (value_job){
        .weights = s->scores + g * TILE_ROWS * SCORE_STRIDE,
        .values = (const char *)source->at + (seen.from - part.from) * source->row_bytes,
        .row_bytes = source->row_bytes,
        .column = source->column,
        .scale = source->scale,
        .ahead = source->ahead,
        .seen = seen,
        .fresh = source->fresh,
        .dense = dense.from < dense.to ? dense : (key_range){seen.to, seen.to},
        .u = f->out.u + group->row * f->out.u_stride + e,
        .u_stride = f->out.u_stride,
    };
}

static void clear_values(const attree__fold *f, int64_t row, int64_t rows)
{
    memset(f->out.u + row * f->out.u_stride, 0, (size_t)(rows * f->out.u_stride) * sizeof(float));
}

static void empty_rows(const attree__fold *f, int64_t row, int64_t rows)
{
    for (int64_t r = row; r < row + rows; r++) {
        f->out.m[r] = -INFINITY;
        f->out.l[r] = 0.0f;
    }
    clear_values(f, row, rows);
}
