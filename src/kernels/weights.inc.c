/* Softmax weights of rows whose lse is known: scores as in a fold, then exp(s - lse), written out or summed up. */

/* Beyond this a weight is not computed by `exponential`, whose exponent would overflow. No lse that a run has written
 * leads here. */
#define LARGEST_EXPONENT 80.0f

/* Scores of keys from ... to - 1 become weights: canonical, and +0 where the key is hidden. */
static void weights_in_place(const softmax_row *row, float lse)
{
    const vf shift = vf_all(lse);
    hide_unseen(row);
    if (!(find_extremes(row).largest - lse < LARGEST_EXPONENT)) { /* also NaN, and rows that see nothing */
        for (int64_t j = row->range.from; j < row->range.to; j++)
            row->scores[j] = attree__contract_row_weight(row->scores[j], lse);
        return;
    }
    for (int64_t j = row->range.from; j < row->range.to; j += VF_LANES) {
        const vf p = weights(vf_load(row->scores + j), shift); /* 0 where the key is hidden */
        vf_store(row->scores + j, vf_replace_nan(p, vf_all(NAN)));
    }
}

ATTREE_INLINE void store_weights(void *to, const int32_t type, const float *from, int64_t count)
{
    int64_t j = 0;
    for (; j + VF_LANES <= count; j += VF_LANES)
        store_numbers(to, type, j, vf_load(from + j));
    if (j < count)
        store_first_numbers(to, type, j, count - j, vf_load(from + j));
}

/* Row n of the group. Numbers beyond the block's keys may be read: rows of scores are padded. */
static void write_weights(const attree__weights_sink *sink, attree__query_row at, const float *from)
{
    const int64_t first = at.query * sink->query + at.head * sink->head;
    void *const to = (char *)sink->data + first * attree__dtype_bytes(sink->type);
    if (sink->key != 1)
        for (int64_t j = 0; j < sink->keys; j++)
            attree__store(to, sink->type, j * sink->key, from[j]);
    else if (sink->type == ATTREE_F32)
        store_weights(to, ATTREE_F32, from, sink->keys);
    else if (sink->type == ATTREE_F16)
        store_weights(to, ATTREE_F16, from, sink->keys);
    else
        store_weights(to, ATTREE_BF16, from, sink->keys);
}

/* Weights of a strip whose scores are there, rows in order. */
static void strip_weights(const strip *s, const attree__weights_sink *sink)
{
    const attree__fold *f = s->fold;
    const key_range range = {s->seen.from / ATTREE__LANES * ATTREE__LANES, round_up(s->seen.to, ATTREE__LANES)};
    const bool any = s->seen.from < s->seen.to;
    for (int64_t r = 0; r < s->rows && (any || sink->data); r++) {
        const int64_t row = s->row + r;
        const attree__query_row at = attree__query_row_at(sink->first + row, sink->heads);
        float *const scores = s->scores + r * SCORE_STRIDE;
        if (any) {
            const softmax_row job = {scores, range, {f->first[row], f->end[row]}};
            weights_in_place(&job, sink->lse[row]);
        }
        if (any && sink->sums) {
            float *const sums = sink->sums + at.head * ATTREE__BLOCK;
            for (int64_t j = range.from; j < range.to; j += VF_LANES)
                vf_store(sums + j, vf_add(vf_load(sums + j), vf_load(scores + j)));
        }
        if (sink->data) {
            memset(scores, 0, (size_t)(any ? range.from : ATTREE__BLOCK) * sizeof *scores);
            if (any)
                memset(scores + range.to, 0, (size_t)(ATTREE__BLOCK - range.to) * sizeof *scores);
            write_weights(sink, at, scores);
        }
    }
}

static void fold_weights(const attree__fold *f, const attree__weights_sink *sink)
{
    const key_range all = union_of_rows(f, 0, f->rows);
    float *const keys = f->scratch + SCORES;
    const bool few = f->rows <= STRIP_ROWS;
    for (int64_t j = all.from / SLAB * SLAB; j < all.to && !few; j += SLAB)
        rows_of(f->k.type)->pack_keys(keys + j * f->qk_width, &(key_job){&f->k, j, all, f->qk_width, false});
    for (int64_t row = 0; row < f->rows; row += STRIP_ROWS) {
        const strip s = make_strip(f, row, at_most(STRIP_ROWS, f->rows - row));
        if (s.seen.from < s.seen.to) {
            if (few)
                strip_scores(&s, keys);
            for (int64_t j = s.seen.from / SLAB * SLAB; j < s.seen.to && !few; j += SLAB)
                slab_scores(&s, keys + j * f->qk_width, j, NULL, 0);
            strip_terms(&s);
        }
        strip_weights(&s, sink);
    }
}
