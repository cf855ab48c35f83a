/* The fold slot: blocks of keys for a tile of query rows. Few rows take the ways of few.inc.c and step.inc.c.
 *
 * Many rows: the block is packed once, then strips of rows that fit the first-level cache go through scores, softmax
 * and values. */

/* Floats between panels of a packed block of values, not a multiple of 4 KiB / 4, so that writing a row of values, a
 * piece to each panel, does not hit one cache set again and again. */
#define VALUE_STRIDE ((ATTREE__BLOCK + 1) * PANEL)

/* Scratch: scores of a strip, then packed keys, then packed values. */
static int64_t many_rows_floats(int64_t qk_width, int64_t v_width)
{
    return SCORES + ATTREE__BLOCK * qk_width + round_up(v_width, PANEL) / PANEL * VALUE_STRIDE;
}

/* Columns e ... of all keys that the strip sees. values: the panel, from key s->seen.from on. */
static void panel_values(const strip *s, const float *values, int64_t e)
{
    value_run run;
    for (int64_t g = 0; g * TILE_ROWS < s->rows; g++) {
        value_source source = {
            .at = values, .first = s->seen.from, .row_bytes = PANEL * (int64_t)sizeof(float), .fresh = true};
        for (int64_t j = s->seen.from; next_run(&s->groups[g], s->seen, j, &run); j = run.keys.to) {
            const value_job job = run_values(s, g, &run, &source, e);
            const int64_t columns = s->fold->out.u_stride - e;
            if (run.mixed)
                value_group_mixed(s->groups[g].rows, columns, &job);
            else
                value_group(s->groups[g].rows, columns, &job);
            source.fresh = false;
        }
    }
}

/* Whether no row of the group sees any key. */
static bool sees_nothing(const strip *s, int64_t g)
{
    value_run run;
    return !next_run(&s->groups[g], s->seen, 0, &run);
}

static void fold_strip(strip *s, const float *keys, const packed_values *values)
{
    const attree__fold *f = s->fold;
    for (int64_t j = s->seen.from / PANEL * PANEL; j < s->seen.to; j += PANEL)
        panel_scores(s, keys + j * f->qk_width, j, NULL, 0);
    strip_terms(s);
    strip_softmax(s);
    for (int64_t g = 0; g * TILE_ROWS < s->rows; g++)
        if (sees_nothing(s, g))
            clear_values(f, s->groups[g].row, s->groups[g].rows);
    for (int64_t e = 0; e < f->v_width; e += PANEL)
        panel_values(s, packed_value(values, s->seen.from, e), e);
}

static void fold_many_rows(const attree__fold *f)
{
    const key_range all = union_of_rows(f, 0, f->rows);
    float *const keys = f->scratch + SCORES;
    const packed_values values = {keys + ATTREE__BLOCK * f->qk_width, 0, VALUE_STRIDE, PANEL};
    for (int64_t j = all.from / PANEL * PANEL; j < all.to; j += PANEL)
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

static int64_t scratch_floats(int64_t qk_width, int64_t v_width, int64_t rows)
{
    return rows <= STRIP_ROWS ? few_rows_floats(qk_width, v_width) : many_rows_floats(qk_width, v_width);
}

static void fold_alone(const attree__fold *f)
{
    if (f->rows <= STRIP_ROWS)
        fold_few_rows(f);
    else
        fold_many_rows(f);
}

static void fold(const attree__fold *const *folds, int32_t count)
{
    const attree__fold *together[ATTREE__FOLDS];
    int32_t found = 0;
    for (int32_t n = 0; n < count; n++)
        if (count > 1 && goes_in_step(folds[n]))
            together[found++] = folds[n];
        else
            fold_alone(folds[n]);
    if (found == 1)
        fold_alone(together[0]);
    else if (found > 1)
        fold_in_step(together, found);
}
