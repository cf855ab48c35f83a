/* The fold slot: blocks of keys for a tile of query rows. Up to a strip of rows the tile is limited by what is read
 * (decode.inc.c, interleave.inc.c), beyond by what is computed (prefill.inc.c). */

static int64_t scratch_floats(int64_t qk_width, int64_t v_width, int64_t rows)
{
    return rows <= STRIP_ROWS ? decode_floats(qk_width, v_width) : prefill_floats(qk_width, v_width);
}

static void fold_alone(const attree__fold *f)
{
    if (f->rows <= STRIP_ROWS)
        fold_decode(f);
    else
        fold_prefill(f);
}

static void fold(const attree__fold *const *folds, int32_t count)
{
    const attree__fold *together[ATTREE__FOLDS];
    int32_t found = 0;
    for (int32_t n = 0; n < count; n++)
        if (count > 1 && goes_interleaved(folds[n]))
            together[found++] = folds[n];
        else
            fold_alone(folds[n]);
    if (found == 1)
        fold_alone(together[0]);
    else if (found > 1)
        fold_interleaved(together, found);
}
