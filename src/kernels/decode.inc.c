/* Few rows: the strip is the whole tile, and keys and values are packed some at a time just before their only use, so
 * that they are read from memory once and never written back to it. */

/* Floats of scores in scratch: of a strip, which is more than ATTREE__FOLDS blocks of INTERLEAVED_ROWS rows need. */
#define SCORES (STRIP_ROWS * SCORE_STRIDE)

/* Scratch: scores, then packed keys, then packed values. */
static int64_t decode_floats(int64_t qk_width, int64_t v_width)
{
    return SCORES + SLAB * qk_width + VALUE_CHUNK * round_up(v_width, SLAB);
}

/* Keys that several rows share are asked for in advance while the rows are computed. Of quantised types packing takes
 * so much longer that it is better done there. */
ATTREE_INLINE bool asks_meanwhile(int64_t rows, int32_t type)
{
    return rows > DIRECT_ROWS && attree__dtype_is_float(type);
}

/* Scores of the strip's rows against keys that are packed in slab, from key j on. */
static void slab_scores(const strip *s, const float *slab, int64_t j, lines_ahead *ahead, int64_t lines)
{
    for (int64_t r = 0; r < s->rows; r += BUNDLE_ROWS) {
        score_job job = bundle_scores(s, r, slab, j);
        job.ahead = ahead;
        job.lines = lines;
        score_bundle(at_most(BUNDLE_ROWS, s->rows - r), &job);
    }
}

/* The same, packing them first. */
static void packed_scores(const strip *s, float *slab, int64_t j)
{
    const attree__fold *const f = s->fold;
    const bool asks = asks_meanwhile(s->rows, f->k.type);
    const int64_t bundles = (s->rows + BUNDLE_ROWS - 1) / BUNDLE_ROWS,
                  slices = (f->qk_width + SCORE_SLICE - 1) / SCORE_SLICE;
    lines_ahead ahead[SLAB_PIECES];
    for (int64_t n = 0; n < SLAB_PIECES; n++)
        ahead[n] = lines_of(&f->k, f->k.type, row_ahead(&f->k, j + n * ATTREE__PIECE), f->qk_width);
    const int64_t lines = ATTREE__PIECE * ((attree__dtype_row_bytes(f->k.type, f->qk_width) + 63) / 64);
    s->k->pack_keys(slab, &(key_job){&f->k, j, s->seen, f->qk_width, asks});
    slab_scores(s, slab, j, asks ? ahead : NULL, slices > 0 ? (lines + bundles * slices - 1) / (bundles * slices) : 0);
}

/* Scores of KEY_SPAN keys, as far as the strip sees them. */
static void span_scores(const strip *s, float *slab, int64_t j)
{
    const attree__fold *f = s->fold;
    const bool whole = j >= s->seen.from && j + KEY_SPAN <= s->seen.to;
    if (whole && s->rows <= s->k->direct_rows) {
        const score_job job = bundle_scores(s, 0, NULL, j);
        if (adjacent_keys(&f->k, f->k.type)) {
            s->k->score_panels(s->rows, &job);
            return;
        }
        if (f->k.width == 1) {
            s->k->score_direct(s->rows, &job);
            return;
        }
    }
    for (int64_t i = j; i < at_most(s->seen.to, j + KEY_SPAN); i += SLAB)
        if (i + SLAB > s->seen.from)
            packed_scores(s, slab, i);
}

/* Scores of all keys that the strip sees. slab: room for packed keys. */
static void strip_scores(const strip *s, float *slab)
{
    for (int64_t j = s->seen.from / KEY_SPAN * KEY_SPAN; j < s->seen.to; j += KEY_SPAN)
        span_scores(s, slab, j);
}

/* Columns columns.from ... of a run of keys of bundle g, whose values are in a buffer, or where they lie. */
static void run_columns(const strip *s, int64_t g, const value_run *run, key_range columns, value_source source)
{
    const int64_t rows = s->bundles[g].rows;
    const bool wide = !run->mixed && (source.streamed || rows <= WIDE_ROWS);
    for (int64_t e = columns.from; e < columns.to;) {
        const value_job job = run_values(s, g, run, &source, e);
        const int64_t left = columns.to - e;
        const int64_t done = wide         ? source.kernels->fold_values(rows, left, &job)
                             : run->mixed ? value_bundle_mixed(rows, left, &job)
                                          : value_bundle(rows, left, &job);
        source.column += done;
        e += done;
    }
}

/* The same for all runs of all bundles in part. */
static void span_values(const strip *s, key_range part, key_range columns, value_source source)
{
    value_run run;
    for (int64_t g = 0; g * BUNDLE_ROWS < s->rows; g++)
        for (int64_t j = part.from; next_run(&s->bundles[g], part, j, &run); j = run.keys.to)
            run_columns(s, g, &run, columns, source);
}

/* Whether every key of part that a row of a bundle sees is seen by all of them. */
static bool is_dense(const strip *s, key_range part)
{
    value_run run;
    for (int64_t g = 0; g * BUNDLE_ROWS < s->rows; g++)
        for (int64_t j = part.from; next_run(&s->bundles[g], part, j, &run); j = run.keys.to)
            if (run.mixed)
                return false;
    return true;
}

static chunk_ahead values_ahead(const attree__fold *f, int64_t j)
{
    return (chunk_ahead){(uintptr_t)row_ahead(&f->v, j), f->v.token, !without_gaps(&f->v, f->v_width)};
}

/* Adds the values of a chunk of keys to u of each row of the strip. What fills units and needs no conversion before is
 * used where it lies; the rest is converted first. */
/* NOLINTNEXTLINE(readability-non-const-parameter): pack_values writes it */
static void chunk_values(const strip *s, float *packed, key_range part)
{
    const attree__fold *f = s->fold;
    const int64_t width = f->v_width;
    const bool in_place = f->v.width == 1 && s->rows <= s->v->direct_value_rows && is_dense(s, part);
    const int64_t whole = in_place ? width / ATTREE__LANES * ATTREE__LANES : 0;
    if (whole > 0)
        span_values(s, part, (key_range){0, whole},
                    (value_source){.at = attree__row(&f->v, part.from),
                                   .first = part.from,
                                   .kernels = s->v,
                                   .row_bytes = f->v.token,
                                   .scale = f->v.scale,
                                   .ahead = values_ahead(f, part.from),
                                   .streamed = true});
    if (whole == width)
        return;
    const int64_t step = round_up(width - whole, SLAB), row_bytes = step * (int64_t)sizeof(float);
    const packed_values to = {packed, part.from, SLAB, step};
    pack_values(&to, &(values_job){&f->v, part, {whole, width}});
    span_values(s, part, (key_range){whole, f->out.u_stride},
                (value_source){.at = packed,
                               .first = part.from,
                               .kernels = rows_of(ATTREE_F32),
                               .row_bytes = row_bytes,
                               .ahead = {(uintptr_t)packed, row_bytes, true}}); /* itself: it is in cache */
}

/* All values that the strip sees. room: VALUE_CHUNK rows. */
static void strip_values(const strip *s, float *room)
{
    for (int64_t j = s->seen.from; j < s->seen.to; j = (j / VALUE_CHUNK + 1) * VALUE_CHUNK)
        chunk_values(s, room, (key_range){j, at_most(s->seen.to, (j / VALUE_CHUNK + 1) * VALUE_CHUNK)});
}

static void fold_decode(const attree__fold *f)
{
    float *const slab = f->scratch + SCORES;
    strip s = make_strip(f, 0, f->rows);
    if (s.seen.from >= s.seen.to) {
        empty_rows(f, 0, f->rows);
        return;
    }
    strip_scores(&s, slab);
    strip_terms(&s);
    strip_softmax(&s);
    clear_values(f, 0, f->rows);
    strip_values(&s, slab + SLAB * f->qk_width);
}
