/* Many rows: the block is packed once, then strips of rows that fit the first-level cache go through scores, softmax
 * and values. */

/* Floats between slabs of a packed block of values, not a multiple of 4 KiB / 4, so that writing a row of values, a
 * piece to each slab, does not hit one cache set again and again. */
#define VALUE_STRIDE ((ATTREE__BLOCK + 1) * SLAB)

/* Scratch: scores of a strip, then packed keys, then packed values. */
static int64_t prefill_floats(int64_t qk_width, int64_t v_width)
{
    return SCORES + ATTREE__BLOCK * qk_width + round_up(v_width, SLAB) / SLAB * VALUE_STRIDE;
}

/* Columns e ... of all keys that the strip sees. values: the slab, from key s->seen.from on. */
static void slab_values(const strip *s, const float *values, int64_t e)
{
    value_run run;
    for (int64_t g = 0; g * BUNDLE_ROWS < s->rows; g++) {
        value_source source = {
            .at = values, .first = s->seen.from, .row_bytes = SLAB * (int64_t)sizeof(float), .fresh = true};
        for (int64_t j = s->seen.from; next_run(&s->bundles[g], s->seen, j, &run); j = run.keys.to) {
            const value_job job = run_values(s, g, &run, &source, e);
            const int64_t columns = s->fold->out.u_stride - e;
            if (run.mixed)
                value_bundle_mixed(s->bundles[g].rows, columns, &job);
            else
                value_bundle(s->bundles[g].rows, columns, &job);
            source.fresh = false;
        }
    }
}

/* Whether no row of the bundle sees any key. */
static bool sees_nothing(const strip *s, int64_t g)
{
    value_run run;
    return !next_run(&s->bundles[g], s->seen, 0, &run);
}

static void fold_strip(strip *s, const float *keys, const packed_values *values)
{
    const attree__fold *f = s->fold;
    for (int64_t j = s->seen.from / SLAB * SLAB; j < s->seen.to; j += SLAB)
        slab_scores(s, keys + j * f->qk_width, j, NULL, 0);
    strip_terms(s);
    strip_softmax(s);
    for (int64_t g = 0; g * BUNDLE_ROWS < s->rows; g++)
        if (sees_nothing(s, g))
            clear_values(f, s->bundles[g].row, s->bundles[g].rows);
    for (int64_t e = 0; e < f->v_width; e += SLAB)
        slab_values(s, packed_value(values, s->seen.from, e), e);
}

static void fold_prefill(const attree__fold *f)
{
    const key_range all = union_of_rows(f, 0, f->rows);
    float *const keys = f->scratch + SCORES;
    const packed_values values = {keys + ATTREE__BLOCK * f->qk_width, 0, VALUE_STRIDE, SLAB};
    for (int64_t j = all.from / SLAB * SLAB; j < all.to; j += SLAB)
        rows_of(f->k.type)->pack_keys(keys + j * f->qk_width, &(key_job){&f->k, j, all, f->qk_width, false});
    pack_values(&values, &(values_job){&f->v, all, {0, f->v_width}});

    for (int64_t row = 0; row < f->rows; row += STRIP_ROWS) {
        strip s = make_strip(f, row, at_most(STRIP_ROWS, f->rows - row));
        if (s.seen.from < s.seen.to)
            fold_strip(&s, keys, &values);
        else
            empty_rows(f, row, s.rows);
    }
}
