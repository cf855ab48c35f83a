/* The arithmetic contract in scalar C: what every kernel must compute, bit for bit. Also the portable fallback.
 *
 * IEEE binary32, round to nearest even, no contraction but the fmaf written here. Steps are those of docs/contract.md, "The
 * contract". Hidden keys are skipped, never multiplied by zero, so nothing in them can reach a result. */
#include "contract.h"

#include <math.h>

#include "dtype.h"
#include "kernel.h"
#include "query_row.h"
#include "simd/exp.h"

static void pack_queries(float *packed, const attree__queries *q, int64_t qk_width)
{
    for (int64_t r = 0; r < q->rows; r++) {
        const attree__query_row row = attree__query_row_at(q->first + r, q->heads);
        const int64_t start = row.query * q->token + row.head * q->head;
        for (int64_t c = 0; c < qk_width; c++)
            packed[r * qk_width + c] = attree__load(q->data, q->type, start + c * q->width);
    }
}

/* Step 1, for key j. */
static float score(const float *q, const attree__rows *k, int64_t j, int64_t qk_width, float scale)
{
    const char *const row = attree__row(k, j);
    const float of_key = k->scale ? k->scale[j] : 0.0f;
    float sum = 0.0f;
    for (int64_t c = 0; c < qk_width; c++)
        sum = fmaf(q[c], attree__row_number(row, k->type, k->width, c, of_key), sum);
    return sum * scale;
}

/* Step 2, for query i of head h and key j, but for the score function and the mask. */
static float adjust(const attree__terms *t, int64_t i, int64_t h, int64_t j, float s)
{
    if (t->softcap > 0.0f)
        s = t->softcap * attree__tanhf(s / t->softcap);
    if (t->slopes)
        s = fmaf(t->slopes[h], (float)(t->distance + j - i), s);
    if (t->bias.data) {
        const float bias = attree__pair_bias(&t->bias, i, h, j);
        s = bias == -INFINITY ? -INFINITY : s + bias;
    }
    return s;
}

static void apply_terms(const attree__fold *f, int64_t r, float *s)
{
    const attree__terms *t = f->terms;
    const attree__query_row row = attree__query_row_at(t->first + r, t->heads);
    const int64_t i = row.query, h = row.head;
    const int32_t first = f->first[r], end = f->end[r];
    for (int32_t j = first; j < end; j++)
        s[j] = adjust(t, i, h, j, s[j]);
    if (t->score && first < end) {
        const attree_score_tile tile = {s + first,  0, t->batch, t->first_head + h, i, 1, t->first_key + first,
                                        end - first};
        t->score(&tile, t->user);
    }
    for (int32_t j = first; j < end && t->mask.data; j++)
        if (!attree__pair_shown(&t->mask, i, h, j))
            s[j] = -INFINITY;
}

void attree__contract_scores(const attree__fold *f, int64_t r, float *scores)
{
    for (int32_t j = f->first[r]; j < f->end[r]; j++)
        scores[j] = score(f->q + r * f->qk_width, &f->k, j, f->qk_width, f->scale);
    if (f->terms)
        apply_terms(f, r, scores);
}

/* exp(0) is 1 exactly, without a call: it is one of the two weights of every step 6. */
float attree__contract_weight(float t) { return t == 0.0f ? 1.0f : t < ATTREE__CUTOFF ? 0.0f : attree__expf(t); }

/* Step 4: sixteen partial sums, then halves onto halves. Hidden keys have weight +0, which changes no partial sum. */
static float lane_sum(const float *p, int64_t keys)
{
    float lane[ATTREE__LANES] = {0.0f};
    for (int64_t j = 0; j < keys; j++)
        lane[j % ATTREE__LANES] += p[j];
    for (int half = ATTREE__LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* Steps 3 to 5 for row r, from its scores of the keys it sees. A score of -inf hides its key. */
static void fold_scores(const attree__fold *f, int64_t r, const float *s)
{
    const int32_t first = f->first[r], end = f->end[r];
    float m = -INFINITY;
    for (int32_t j = first; j < end; j++)
        if (s[j] > m)
            m = s[j];

    float p[ATTREE__BLOCK] = {0.0f};
    float *const u = f->out.u + r * f->out.u_stride;
    for (int64_t e = 0; e < f->v_width; e++)
        u[e] = 0.0f;
    for (int32_t j = first; j < end; j++) {
        if (s[j] == -INFINITY)
            continue;
        p[j] = attree__contract_weight(s[j] - m);
        const char *const row = attree__row(&f->v, j);
        const float of_key = f->v.scale ? f->v.scale[j] : 0.0f;
        for (int64_t e = 0; e < f->v_width; e++)
            u[e] = fmaf(p[j], attree__row_number(row, f->v.type, f->v.width, e, of_key), u[e]);
    }
    const float l = lane_sum(p, ATTREE__BLOCK);
    f->out.l[r] = l;
    f->out.m[r] = isnan(l) ? INFINITY : m; /* some score was NaN or +inf: mark the row so that combining keeps it so */
}

static void fold_block(const attree__fold *f)
{
    for (int64_t r = 0; r < f->rows; r++) {
        float s[ATTREE__BLOCK];
        attree__contract_scores(f, r, s);
        fold_scores(f, r, s);
    }
}

static void fold(const attree__fold *const *folds, int32_t count)
{
    for (int32_t n = 0; n < count; n++)
        fold_block(folds[n]);
}

float attree__contract_row_weight(float s, float lse)
{
    return s == -INFINITY ? 0.0f : attree__canonical(attree__contract_weight(s - lse));
}

/* Sums are added up row by row. */
static void fold_weights(const attree__fold *f, const attree__weights_sink *sink)
{
    for (int64_t r = 0; r < f->rows; r++) {
        const attree__query_row at = attree__query_row_at(sink->first + r, sink->heads);
        float s[ATTREE__BLOCK], p[ATTREE__BLOCK] = {0.0f};
        attree__contract_scores(f, r, s);
        for (int32_t j = f->first[r]; j < f->end[r]; j++)
            p[j] = attree__contract_row_weight(s[j], sink->lse[r]);
        for (int64_t j = 0; j < ATTREE__BLOCK && sink->sums; j++)
            sink->sums[at.head * ATTREE__BLOCK + j] += p[j];
        for (int64_t j = 0; j < sink->keys && sink->data; j++)
            attree__store(sink->data, sink->type, at.query * sink->query + at.head * sink->head + j * sink->key, p[j]);
    }
}

attree__factors attree__contract_factors(float a, float b)
{
    const float m = a > b ? a : b;
    return (attree__factors){m, attree__contract_weight(a - m), attree__contract_weight(b - m)};
}

/* Step 6. The empty state, m = -inf, is neutral bit for bit. */
static void combine(const attree__states *a, const attree__states *b, int64_t rows, int64_t v_width)
{
    for (int64_t r = 0; r < rows; r++) {
        float *au = a->u + r * a->u_stride;
        const float *bu = b->u + r * b->u_stride;
        if (b->m[r] == -INFINITY)
            continue;
        const bool a_empty = a->m[r] == -INFINITY;
        const attree__factors f = attree__contract_factors(a->m[r], b->m[r]);
        for (int64_t e = 0; e < v_width; e++)
            au[e] = a_empty ? bu[e] : fmaf(bu[e], f.b, au[e] * f.a);
        a->l[r] = a_empty ? b->l[r] : fmaf(b->l[r], f.b, a->l[r] * f.a);
        a->m[r] = f.m;
    }
}

/* Step 7. */
static void divide(void *o, int32_t type, const float *u, float l, int64_t v_width)
{
    for (int64_t e = 0; e < v_width; e++)
        attree__store(o, type, e, attree__canonical(u[e] / l));
}

float attree__contract_lse(float m, float l) { return attree__canonical(m + attree__logf(l)); }

static int64_t interleaved_rows(int32_t k_type, int32_t v_type)
{
    (void)k_type, (void)v_type;
    return 0;
}

static int64_t scratch_floats(int64_t qk_width, int64_t v_width, int64_t rows)
{
    (void)qk_width, (void)v_width, (void)rows;
    return 0;
}

const attree__kernels attree__kernels_contract = {
    .name = "scalar",
    .isa = ATTREE_ISA_SCALAR,
    .bundle_rows = 1,
    .decode_rows = 2,
    .interleaved_rows = interleaved_rows,
    .pack_queries = pack_queries,
    .scratch_floats = scratch_floats,
    .fold = fold,
    .weights = fold_weights,
    .combine = combine,
    .divide = divide,
};
