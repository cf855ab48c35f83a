/* Step 2 on a strip of scores in cache, between scores and softmax: soft cap, ALiBi, bias, the caller's score function,
 * mask. A key that one of them hides gets the score -inf. */

/* Scores of one row. */
typedef struct term_row {
    float *scores;       /* of key j at scores[j] */
    key_range seen;      /* the keys that geometry lets the row see: nothing of others is read */
    int64_t query, head; /* head of the group */
} term_row;

/* The first of the vectors of scores that hold seen keys. */
ATTREE_INLINE int64_t first_vector(const term_row *row) { return row->seen.from / VF_LANES * VF_LANES; }

/* Whether all keys j ... j + VF_LANES - 1 are seen. */
ATTREE_INLINE bool whole_vector(const term_row *row, int64_t j)
{
    return j >= row->seen.from && j + VF_LANES <= row->seen.to;
}

static void cap_scores(const attree__terms *t, const term_row *row)
{
    const vf cap = vf_all(t->softcap);
    for (int64_t j = first_vector(row); j < row->seen.to; j += VF_LANES)
        vf_store(row->scores + j, vf_mul(cap, vf_tanh(vf_div(vf_load(row->scores + j), cap))));
}

/* (float)(distance + i), i < VF_LANES, each rounded once. */
ATTREE_INLINE vf distances(int64_t distance)
{
    if (distance > INT32_MIN && distance < INT32_MAX - VF_LANES)
        return vf_from(vi_ramp((int32_t)distance));
    float far[VF_LANES];
    for (int i = 0; i < VF_LANES; i++)
        far[i] = (float)(distance + i);
    return vf_load(far);
}

static void add_alibi(const attree__terms *t, const term_row *row)
{
    const vf slope = vf_all(t->slopes[row->head]);
    for (int64_t j = first_vector(row); j < row->seen.to; j += VF_LANES) {
        const vf distance = distances(t->distance + j - row->query);
        vf_store(row->scores + j, vf_fma(slope, distance, vf_load(row->scores + j)));
    }
}

/* The element of the row and key 0. */
ATTREE_INLINE int64_t pair_start(const attree__pair_source *p, const term_row *row)
{
    return p->base + row->query * p->query + row->head * p->head;
}

/* Keys j ... of the row's bias; 0 for those not seen. */
ATTREE_INLINE vf load_bias(const attree__pair_source *p, const int32_t type, const term_row *row, int64_t j)
{
    const int64_t start = pair_start(p, row);
    if (p->key == 1 && whole_vector(row, j))
        return load_numbers(p->data, type, start + j);
    float part[VF_LANES] = {0.0f};
    for (int i = 0; i < VF_LANES; i++)
        if (j + i >= row->seen.from && j + i < row->seen.to)
            part[i] = attree__load(p->data, type, start + (j + i) * p->key);
    return vf_load(part);
}

ATTREE_INLINE void add_bias_of(const attree__pair_source *p, const int32_t type, const term_row *row)
{
    const vf hidden = vf_all(-INFINITY);
    for (int64_t j = first_vector(row); j < row->seen.to; j += VF_LANES) {
        const vf bias = load_bias(p, type, row, j), sum = vf_add(vf_load(row->scores + j), bias);
        vf_store(row->scores + j, vf_replace_equal(sum, hidden, bias, hidden));
    }
}

/* Bits n ... n + VF_LANES - 1 of a packed mask; reads no byte that holds none of them. */
ATTREE_INLINE uint32_t load_bits(const uint8_t *bytes, int64_t n)
{
    const int64_t first = n >> 3, last = (n + VF_LANES - 1) >> 3;
    uint32_t bits = bytes[first];
    for (int64_t byte = first + 1; byte <= last; byte++)
        bits |= (uint32_t)bytes[byte] << 8 * (byte - first);
    return bits >> (n & 7);
}

/* Keys j ... of the row's mask as numbers, 0 for those that it hides. */
ATTREE_INLINE vf load_mask(const attree__pair_source *p, const int32_t kind, const term_row *row, int64_t j)
{
    const int64_t start = pair_start(p, row);
    float part[VF_LANES] = {0.0f};
    if (p->key != 1 || !whole_vector(row, j)) {
        for (int i = 0; i < VF_LANES; i++)
            if (j + i >= row->seen.from && j + i < row->seen.to)
                part[i] = attree__pair_shown(p, row->query, row->head, j + i) ? 1.0f : 0.0f;
    } else if (kind == ATTREE_MASK_BYTES) {
        const uint8_t *const bytes = (const uint8_t *)p->data + start + j;
        for (int i = 0; i < VF_LANES; i++)
            part[i] = (float)bytes[i];
    } else {
        const uint32_t bits = load_bits(p->data, start + j);
        for (int i = 0; i < VF_LANES; i++)
            part[i] = (float)(int32_t)(bits >> i & 1u);
    }
    return vf_load(part);
}

ATTREE_INLINE void apply_mask_of(const attree__pair_source *p, const int32_t kind, const term_row *row)
{
    const vf hidden = vf_all(-INFINITY);
    for (int64_t j = first_vector(row); j < row->seen.to; j += VF_LANES) {
        const vf s = vf_load(row->scores + j);
        vf_store(row->scores + j, vf_replace_equal(s, hidden, load_mask(p, kind, row, j), vf_zero()));
    }
}

static void apply_mask(const attree__pair_source *p, const term_row *row)
{
    if (p->type == ATTREE_MASK_BITS)
        apply_mask_of(p, ATTREE_MASK_BITS, row);
    else
        apply_mask_of(p, ATTREE_MASK_BYTES, row);
}

/* ---- The strip ---- */

/* Row r of the strip. */
ATTREE_INLINE term_row strip_row(const strip *s, int64_t r)
{
    const attree__terms *t = s->fold->terms;
    const attree__query_row row = attree__query_row_at(t->first + s->row + r, t->heads);
    return (term_row){
        .scores = s->scores + r * SCORE_STRIDE,
        .seen = {s->fold->first[s->row + r], s->fold->end[s->row + r]},
        .query = row.query,
        .head = row.head,
    };
}

static void row_terms(const attree__terms *t, const term_row *row)
{
    if (t->softcap > 0.0f)
        cap_scores(t, row);
    if (t->slopes)
        add_alibi(t, row);
    if (t->bias.data)
        rows_of(t->bias.type)->add_bias(&t->bias, row);
}

/* Calls the score function for the rows of each head, which are `heads` rows apart. */
static void call_score_function(const strip *s)
{
    const attree__terms *t = s->fold->terms;
    for (int64_t r = 0; r < s->rows && r < t->heads; r++) {
        const term_row row = strip_row(s, r);
        const attree_score_tile tile = {
            .scores = row.scores + s->seen.from,
            .query_stride = t->heads * SCORE_STRIDE,
            .batch = t->batch,
            .head = t->first_head + row.head,
            .first_query = row.query,
            .queries = (s->rows - r + t->heads - 1) / t->heads,
            .first_key = t->first_key + s->seen.from,
            .keys = s->seen.to - s->seen.from,
        };
        t->score(&tile, t->user);
    }
}

static void strip_terms(const strip *s)
{
    const attree__terms *t = s->fold->terms;
    if (!t)
        return;
    for (int64_t r = 0; r < s->rows; r++) {
        const term_row row = strip_row(s, r);
        row_terms(t, &row);
    }
    if (t->score)
        call_score_function(s);
    for (int64_t r = 0; r < s->rows && t->mask.data; r++) {
        const term_row row = strip_row(s, r);
        apply_mask(&t->mask, &row);
    }
}
