/* Steps 3 and 4 for one row of scores in cache: scores become weights in place; m and l come out.
 *
 * A hidden key's weight is written as -0: it adds nothing to l, and its sign tells tile_multiply_visible to skip it. A
 * visible weight is never negative. */

typedef struct softmax_row {
    float *scores;   /* of keys from ... to - 1; both multiples of ATTREE__LANES */
    key_range range; /* from, to */
    key_range seen;  /* the row's visible keys, inside range, or empty */
} softmax_row;

typedef struct extremes {
    float largest, smallest;
} extremes;

/* NaN is passed over; it reaches l through its weight. */
ATTREE_INLINE extremes find_extremes(const softmax_row *row)
{
    vf most[2] = {vf_all(-INFINITY), vf_all(-INFINITY)}, least[2] = {vf_all(INFINITY), vf_all(INFINITY)};
    for (int64_t j = row->range.from; j < row->range.to; j += ATTREE__LANES)
        for (int i = 0; i < ATTREE__LANES / VF_LANES; i++) {
            const vf s = vf_load(row->scores + j + i * VF_LANES);
            most[i % 2] = vf_max(s, most[i % 2]);
            least[i % 2] = vf_min(s, least[i % 2]);
        }
    return (extremes){vf_largest(vf_max(most[0], most[1])), vf_smallest(vf_min(least[0], least[1]))};
}

/* Scores outside the visible keys become -inf. */
static void hide_unseen(const softmax_row *row)
{
    const vf hidden = vf_all(-INFINITY);
    for (int64_t j = row->range.from; j < row->range.to; j += VF_LANES) {
        if (j >= row->seen.from && j + VF_LANES <= row->seen.to)
            continue;
        const vf s = vf_load(row->scores + j);
        const vf tail_hidden = vf_first(row->seen.to - j, s, hidden);
        vf_store(row->scores + j, vf_first(row->seen.from - j, hidden, tail_hidden));
    }
}

/* exp(t) where t <= 0 is not below the cut-off, with the bits of SLEEF 3.5.1's finz expf (u10). A call for each vector
 * would take twice as long. tests/test_exp.c compares every such float.
 *
 * The steps are SLEEF's: t = n log 2 + r, with log 2 in two parts; a polynomial of degree 7 for exp(r); times 2^n.
 * SLEEF multiplies by 2^n in two steps, so that subnormal results come out right. There are none above the cut-off:
 * adding n to the exponent gives the same. NaN stays NaN. */
ATTREE_INLINE vf exponential(vf t)
{
    const vi n = vf_nearest(vf_mul(t, vf_all(1.44269504088896340736f))); /* 1 / log 2 */
    const vf k = vf_from(n);
    const vf r = vf_fma(k, vf_all(-1.428606765330187045e-06f), vf_fma(k, vf_all(-0.693145751953125f), t));
    vf p = vf_all(0.000198527617612853646278381f);
    p = vf_fma(p, r, vf_all(0.00139304355252534151077271f));
    p = vf_fma(p, r, vf_all(0.00833336077630519866943359f));
    p = vf_fma(p, r, vf_all(0.0416664853692054748535156f));
    p = vf_fma(p, r, vf_all(0.166666671633720397949219f));
    p = vf_fma(p, r, vf_all(0.5f));
    p = vf_add(vf_all(1.0f), vf_fma(vf_mul(r, r), p, r));
    return vf_scale(p, n);
}

/* The weights of scores s against the maximum m. */
ATTREE_INLINE vf weights(vf s, vf m)
{
    const vf t = vf_sub(s, m);
    return vf_zero_below(exponential(t), t, vf_all(ATTREE__CUTOFF));
}

/* Takes the sign off NaN weights (inf - inf has one on x86), so that they do not look hidden. */
static void clear_nan_signs(const softmax_row *row)
{
    for (int64_t j = row->range.from; j < row->range.to; j += VF_LANES)
        vf_store(row->scores + j, vf_replace_nan(vf_load(row->scores + j), vf_all(NAN)));
}

/* Writes weights over the scores and returns l. With mark, hidden keys get -0. */
ATTREE_INLINE float exponentiate(const softmax_row *row, float m, const bool mark)
{
    const vf maximum = vf_all(m == -INFINITY ? 0.0f : m); /* all hidden: -inf - 0 gives weights of zero */
    vf lanes[ATTREE__LANES / VF_LANES];
    for (int i = 0; i < ATTREE__LANES / VF_LANES; i++)
        lanes[i] = vf_zero();
    for (int64_t j = row->range.from; j < row->range.to; j += ATTREE__LANES)
        for (int i = 0; i < ATTREE__LANES / VF_LANES; i++) {
            float *at = row->scores + j + i * VF_LANES;
            const vf s = vf_load(at);
            const vf p = weights(s, maximum);
            lanes[i] = vf_add(lanes[i], p);
            vf_store(at, mark ? vf_replace_equal(p, vf_all(-0.0f), s, vf_all(-INFINITY)) : p);
        }
    return vf_sum16(lanes);
}

/* Returns whether a key that the row sees may have a score of -inf, so that its weight may be -0. */
static bool softmax(const softmax_row *row, float *m, float *l)
{
    extremes found = find_extremes(row);
    const bool pierced = found.smallest == -INFINITY;
    const bool partial = row->seen.from > row->range.from || row->seen.to < row->range.to;
    if (partial) {
        hide_unseen(row);
        found = find_extremes(row);
    }
    *m = found.largest;
    *l = partial || pierced ? exponentiate(row, *m, true) : exponentiate(row, *m, false);
    if (isnan(*l)) {
        *m = INFINITY;
        clear_nan_signs(row);
    }
    return pierced;
}
