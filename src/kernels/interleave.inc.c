/* Several blocks in step, for few rows and types without scales: a few keys of each block in turn. What limits few rows
 * is reading keys and values, and some cores (attree__cpu_streams) read several streams, far apart, faster than one:
 * each hardware prefetcher runs just so far ahead. Quantised types gain nothing: arithmetic limits them.
 *
 * Each block's arithmetic is that of a fold of its own. */

/* The most rows. With more, each block on its own is faster: there is more to compute for what is read, and u would be
 * loaded and stored too often. */
#define INTERLEAVED_ROWS 2

/* The most bytes of keys whose scores are computed together. With as many asked for in advance they take 16 KiB, half
 * of a small first-level cache: keys of several blocks often fall into the same sets, so that more would evict each
 * other.
 */
#define INTERLEAVED_KEY_BYTES 8192

/* Keys of a block whose values are folded before it is the next block's turn. Few, so that no stream pauses for long;
 * but u is loaded and stored at each turn, which for one key of a narrow type would take longer than its values do. */
ATTREE_INLINE int64_t interleaved_keys(const int32_t type)
{
    return attree__dtype_bytes(type) == (int64_t)sizeof(float) ? 1 : 2;
}

/* Keys from those whose values are folded to those that are asked for, where that helps. */
#define INTERLEAVED_AHEAD 4

/* Floats from the scores of one block to those of the next. */
#define INTERLEAVED_SCORES (INTERLEAVED_ROWS * SCORE_STRIDE)

/* The most rows of tiles with these types; 0 for types that are better folded block after block. */
static int64_t interleaved_rows(int32_t k_type, int32_t v_type)
{
    const bool can = rows_of(k_type)->interleaved_scores && rows_of(v_type)->interleaved_values;
    return can ? INTERLEAVED_ROWS : 0;
}

/* Whether all of the block is seen by all rows, its keys and values can be used without packing, and are streams: their
 * rows have no gaps between them. */
static bool goes_interleaved(const attree__fold *f)
{
    if (f->rows > interleaved_rows(f->k.type, f->v.type) || f->v_width % ATTREE__LANES != 0 ||
        !without_gaps(&f->k, f->qk_width) || !without_gaps(&f->v, f->v_width))
        return false;
    for (int64_t r = 0; r < f->rows; r++)
        if (f->first[r] > 0 || f->end[r] < ATTREE__BLOCK)
            return false;
    return true;
}

/* The scores of keys j ... of `left` blocks, or of the first of them; returns of how many. */
ATTREE_INLINE int32_t score_in_turn(const int rows, const int32_t type, const score_job *job, const square *at,
                                    int32_t left)
{
    if (rows == 1 && left >= 4 && 4 * VF_LANES * attree__dtype_row_bytes(type, job->width) <= INTERLEAVED_KEY_BYTES) {
        score_squares(1, 4, type, job, at);
        return 4;
    }
    if (left >= 2) {
        score_squares(rows, 2, type, job, at);
        return 2;
    }
    score_squares(rows, 1, type, job, at);
    return 1;
}

ATTREE_INLINE void interleaved_row_scores(const int rows, const int32_t type, const strip *strips, int32_t count)
{
    const score_job job = bundle_scores(strips, 0, NULL, 0);
    for (int64_t j = 0; j < ATTREE__BLOCK; j += VF_LANES) {
        square at[ATTREE__FOLDS];
        for (int32_t s = 0; s < count; s++) {
            const attree__rows *const k = &strips[s].fold->k;
            at[s] = (square){k, j, attree__row(k, j + VF_LANES), strips[s].scores + j};
        }
        for (int32_t s = 0; s < count;)
            s += score_in_turn(rows, type, &job, at + s, count - s);
    }
}

/* Scores of all keys. */
ATTREE_INLINE void interleaved_scores_of(const int32_t type, const strip *strips, int32_t count)
{
    if (strips->rows == 1)
        interleaved_row_scores(1, type, strips, count);
    else
        interleaved_row_scores(2, type, strips, count);
}

/* Adds the values of some keys to u of the strip's rows. */
ATTREE_INLINE void interleaved_row_values(const int rows, const int32_t type, const strip *s, key_range keys)
{
    const attree__fold *const f = s->fold;
    const int vecs = rows == 1 ? WIDEST_VECS : WIDE_VECS;
    value_job job = {.weights = s->scores,
                     .values = attree__row(&f->v, keys.from),
                     .row_bytes = f->v.token,
                     .keys = keys,
                     .u = f->out.u,
                     .u_stride = f->out.u_stride};
    for (; job.column + vecs * VF_LANES <= f->v_width; job.column += vecs * VF_LANES, job.u += vecs * VF_LANES)
        value_tile(rows, vecs, type, DENSE, &job);
    for (; job.column < f->v_width; job.column += ATTREE__LANES, job.u += ATTREE__LANES)
        value_tile(rows, UNIT_VECS, type, DENSE, &job);
}

/* Whether the pieces of a block are apart from each other, as pages are: then hardware prefetchers, which go on with
 * what comes next in memory, do not find the next piece. */
static bool lie_apart(const attree__rows *rows)
{
    return (uintptr_t)rows->piece[1] - (uintptr_t)rows->piece[0] != (uintptr_t)(ATTREE__PIECE * rows->token);
}

/* Asks for the values that come INTERLEAVED_AHEAD keys after some keys. */
ATTREE_INLINE void prefetch_values(const int32_t type, const attree__fold *f, key_range keys)
{
    const int64_t lines = (attree__dtype_row_bytes(type, f->v_width) + 63) / 64;
    for (int64_t j = keys.from + INTERLEAVED_AHEAD; j < keys.to + INTERLEAVED_AHEAD; j++) {
        lines_ahead ahead = lines_from((uintptr_t)attree__row(&f->v, j), 0, 0, false);
        ask(&ahead, lines);
    }
}

ATTREE_INLINE void interleaved_block_values(const int rows, const int32_t type, const strip *const *strips,
                                            int32_t count)
{
    const bool apart = lie_apart(&strips[0]->fold->v);
    for (int64_t j = 0; j < ATTREE__BLOCK; j += interleaved_keys(type))
        for (int32_t s = 0; s < count; s++) {
            const key_range keys = {j, j + interleaved_keys(type)};
            if (apart)
                prefetch_values(type, strips[s]->fold, keys);
            interleaved_row_values(rows, type, strips[s], keys);
        }
}

/* Adds the values of all keys to u. */
ATTREE_INLINE void interleaved_values_of(const int32_t type, const strip *const *strips, int32_t count)
{
    if (strips[0]->rows == 1)
        interleaved_block_values(1, type, strips, count);
    else
        interleaved_block_values(2, type, strips, count);
}

/* count > 1 folds that go in step. */
static void fold_interleaved(const attree__fold *const *folds, int32_t count)
{
    strip strips[ATTREE__FOLDS] = {0};
    const strip *whole[ATTREE__FOLDS];
    int32_t found = 0;
    float *const room = folds[0]->scratch + SCORES;
    for (int32_t n = 0; n < count; n++) {
        strips[n] = make_strip(folds[n], 0, folds[n]->rows);
        strips[n].scores += n * INTERLEAVED_SCORES;
    }
    strips->k->interleaved_scores(strips, count);
    for (int32_t n = 0; n < count; n++) {
        strip_terms(&strips[n]);
        strip_softmax(&strips[n]);
        clear_values(folds[n], 0, folds[n]->rows);
        if (strips[n].bundles[0].pierced)
            strip_values(&strips[n], room + SLAB * folds[n]->qk_width);
        else
            whole[found++] = &strips[n];
    }
    if (found > 0)
        strips->v->interleaved_values(whole, found);
}
