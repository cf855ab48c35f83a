/* A strip: the rows that go through scores, softmax and values together. */

/* Rows that share one pass over the packed block: their scores (12 KiB on AVX2) stay in the first-level cache beside
 * one slab. */
#define STRIP_ROWS (2 * BUNDLE_ROWS)

/* Rows of one register tile, and which keys they see. seen: some row does. dense: all rows do; a part of seen, empty at
 * its end when there is no such key. A score of -inf hides a key that its row would see: such a bundle is pierced, and
 * `mixed` and `none` say for each 16 keys what dense cannot. */
typedef struct row_bundle {
    int64_t row, rows;
    key_range seen, dense;
    bool pierced;
    uint32_t mixed, none; /* bit n, of keys 16 n ... 16 n + 15: some row does not see some; no row sees any */
} row_bundle;

/* A strip of rows, in bundles. */
typedef struct strip {
    const attree__fold *fold;
    const row_kernels *k, *v; /* of the types of keys and values */
    int64_t row, rows;
    key_range seen; /* by some row; empty when from >= to */
    float *scores;  /* row r of the strip at scores + r * SCORE_STRIDE */
    row_bundle bundles[STRIP_ROWS / BUNDLE_ROWS];
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

static strip make_strip(const attree__fold *f, int64_t row, int64_t rows)
{
    return (strip){.fold = f,
                   .k = rows_of(f->k.type),
                   .v = rows_of(f->v.type),
                   .row = row,
                   .rows = rows,
                   .seen = union_of_rows(f, row, rows),
                   .scores = f->scratch};
}

/* The score job of the bundle that starts at row r of the strip, for keys j, j + 1, ..., packed in slab if so. */
ATTREE_INLINE score_job bundle_scores(const strip *s, int64_t r, const float *slab, int64_t j)
{
    const attree__fold *f = s->fold;
    return (score_job){
        .q = f->q + (s->row + r) * f->qk_width,
        .slab = slab,
        .k = &f->k,
        .j = j,
        .scores = s->scores + r * SCORE_STRIDE + j,
        .width = f->qk_width,
        .scale = f->scale,
    };
}

/* Finds out from the weights which units of 16 keys are hidden, in part or as a whole. */
static void find_hidden(const strip *s, int64_t r, row_bundle *bundle)
{
    const key_range units = {bundle->seen.from / ATTREE__LANES, (bundle->seen.to - 1) / ATTREE__LANES};
    for (int64_t n = units.from; n <= units.to; n++) {
        uint32_t some = 0, all = UINT32_MAX;
        for (int64_t i = r; i < r + bundle->rows; i++) {
            const float *const unit = s->scores + i * SCORE_STRIDE + n * ATTREE__LANES;
            for (int64_t lane = 0; lane < ATTREE__LANES; lane++) {
                const uint32_t bits = attree__bits_of(unit[lane]);
                some |= bits;
                all &= bits;
            }
        }
        bundle->mixed |= (some >> 31) << n;
        bundle->none |= (all >> 31) << n;
    }
}

/* Softmax of the rows of one bundle: m, l and weights; and what the bundle sees. */
static row_bundle bundle_softmax(const strip *s, int64_t r, key_range range)
{
    const attree__fold *f = s->fold;
    row_bundle bundle = {.row = s->row + r, .rows = at_most(BUNDLE_ROWS, s->rows - r)};
    bundle.seen = union_of_rows(f, bundle.row, bundle.rows);
    bundle.dense = bundle.seen;
    for (int64_t i = 0; i < bundle.rows; i++) {
        const int64_t row = bundle.row + i;
        const softmax_row job = {s->scores + (r + i) * SCORE_STRIDE, range, {f->first[row], f->end[row]}};
        bundle.pierced |= softmax(&job, f->out.m + row, f->out.l + row);
        bundle.dense = intersection(bundle.dense, (key_range){f->first[row], f->end[row]});
    }
    if (bundle.pierced && bundle.seen.from < bundle.seen.to)
        find_hidden(s, r, &bundle);
    if (bundle.dense.from >= bundle.dense.to)
        bundle.dense = (key_range){bundle.seen.to, bundle.seen.to};
    return bundle;
}

/* Of the keys there are, as whole units of 16. */
static void strip_softmax(strip *s)
{
    const key_range range = {s->seen.from / ATTREE__LANES * ATTREE__LANES, round_up(s->seen.to, ATTREE__LANES)};
    for (int64_t r = 0; r < s->rows; r += BUNDLE_ROWS)
        s->bundles[r / BUNDLE_ROWS] = bundle_softmax(s, r, range);
}

/* Values of some keys: those of key j are the row (j - first) * row_bytes on, from its number `column` on. */
typedef struct value_source {
    const void *at;
    int64_t first;
    const row_kernels *kernels; /* of their type */
    int64_t row_bytes, column;
    const float *scale; /* of key j at scale[j], for types with scales of rows */
    chunk_ahead ahead;
    bool streamed; /* they come from memory, not from a buffer in cache */
    bool fresh;    /* they are the first for u */
} value_source;

/* Keys whose values are folded at once. */
typedef struct value_run {
    key_range keys;
    bool mixed; /* some rows do not see some of them */
} value_run;

/* Of a pierced bundle: units that are all mixed, or all dense; units that are hidden are passed over. */
static value_run pierced_run(const row_bundle *bundle, key_range keys)
{
    int64_t n = keys.from / ATTREE__LANES;
    while (n * ATTREE__LANES < keys.to && (bundle->none >> n & 1u))
        n++;
    const bool mixed = bundle->mixed >> n & 1u;
    int64_t end = n + 1;
    while (end * ATTREE__LANES < keys.to && !(bundle->none >> end & 1u) && (bundle->mixed >> end & 1u) == mixed)
        end++;
    return (value_run){intersection(keys, (key_range){n * ATTREE__LANES, end * ATTREE__LANES}), mixed};
}

/* Of another bundle: what comes first of the keys before the dense ones, the dense ones, and those after them. */
static value_run geometric_run(const row_bundle *bundle, key_range keys)
{
    const key_range dense = bundle->dense;
    if (keys.from < dense.from)
        return (value_run){{keys.from, at_most(keys.to, dense.from)}, true};
    if (keys.from < dense.to)
        return (value_run){{keys.from, at_most(keys.to, dense.to)}, false};
    return (value_run){keys, true};
}

/* The next run of keys of the bundle in part, from key `from` on; false: there are no more. */
static bool next_run(const row_bundle *bundle, key_range part, int64_t from, value_run *run)
{
    key_range keys = intersection(part, bundle->seen);
    keys.from = from > keys.from ? from : keys.from;
    if (keys.from >= keys.to)
        return false;
    *run = bundle->pierced ? pierced_run(bundle, keys) : geometric_run(bundle, keys);
    return run->keys.from < run->keys.to;
}

/* The value job of bundle g for a run of the keys in part, whose values source gives, for columns e, e + 1, ... of u.
 */
ATTREE_INLINE value_job run_values(const strip *s, int64_t g, const value_run *run, const value_source *source,
                                   int64_t e)
{
    const attree__fold *f = s->fold;
    const row_bundle *bundle = &s->bundles[g];
    return (value_job){
        .weights = s->scores + g * BUNDLE_ROWS * SCORE_STRIDE,
        .values = (const char *)source->at + (run->keys.from - source->first) * source->row_bytes,
        .row_bytes = source->row_bytes,
        .column = source->column,
        .scale = source->scale,
        .ahead = source->ahead,
        .keys = run->keys,
        .fresh = source->fresh,
        .u = f->out.u + bundle->row * f->out.u_stride + e,
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
