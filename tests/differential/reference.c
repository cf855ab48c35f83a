/* The bits that a problem must have. See reference.h. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/kernel.h"

/* All rows of one batch entry and head. */
typedef struct head_rows {
    const tensors *t;
    const entry *e;
    int64_t batch, head;
    float *q; /* f32, one row after the other */
    bool wrong;
    score_user user;
} head_rows;

static attree__states make_states(int64_t rows, int64_t v_width)
{
    const int64_t stride = (v_width + ATTREE__LANES - 1) / ATTREE__LANES * ATTREE__LANES;
    float *const m = calloc((size_t)(rows * (stride + 2) + 1), sizeof *m);
    return (attree__states){m, m + rows, m + 2 * rows, stride};
}

static float scale_of(const fields *f)
{
    if (f->use_scale)
        return (float)f->scale / 1000.0f;
    return f->qk_width > 0 ? 1.0f / sqrtf((float)f->qk_width) : 1.0f;
}

static attree__rows rows_from(const head_rows *h, const cache *c, int64_t first)
{
    const fields *f = h->t->f;
    const int64_t g = h->head / f->group;
    const int64_t row = (h->e->kv_batch * f->kv_heads + g) * f->kv_len + h->e->kv_start + first;
    attree__rows rows = {.token = c->row_bytes, .width = 1, .type = c->type};
    attree__rows_place(&rows, c->rows + row * c->row_bytes, ATTREE__PIECE * c->row_bytes);
    rows.scale = c->scales ? c->scales + row : NULL;
    return rows;
}

/* Of the elements as they are kept, with sizes of 1 repeated. */
static attree__pair_source source_of(const head_rows *h, const pairs *p, int32_t type, int64_t first)
{
    const int64_t at[4] = {h->batch, h->head, h->e->q_start, h->e->kv_start + first};
    int64_t stride[4], step = 1, base = 0;
    for (int d = 3; d >= 0; d--) {
        stride[d] = p->size[d] == 1 ? 0 : step;
        base += at[d] * stride[d];
        step *= p->size[d];
    }
    return (attree__pair_source){p->elements, base, stride[2], stride[1], stride[3], type};
}

static attree__terms terms_of(head_rows *h, int64_t first)
{
    const tensors *t = h->t;
    const fields *f = t->f;
    attree__terms terms = {
        .heads = 1,
        .softcap = (float)f->softcap / 1000.0f,
        .slopes = f->alibi ? t->slopes + h->head : NULL,
        .distance = first - h->e->q_offset,
        .score = f->score ? score_function : NULL,
        .user = &h->user,
        .batch = h->batch,
        .first_head = h->head,
        .first_key = first,
    };
    if (f->bias)
        terms.bias = source_of(h, &t->bias, (int32_t)f->bias_type, first);
    if (f->mask)
        terms.mask = source_of(h, &t->mask, ATTREE_MASK_BYTES, first);
    return terms;
}

/* The rows against the block that starts at key `first`; ranges has room for two numbers for each row. */
static attree__fold fold_of(const head_rows *h, int64_t first, int32_t *ranges)
{
    const fields *f = h->t->f;
    const int64_t rows = h->e->q_len;
    for (int64_t i = 0; i < rows; i++) {
        const key_range seen = keys_seen(f, h->e, i);
        const int64_t from = seen.first > first ? seen.first - first : 0;
        const int64_t end = seen.end - first < BLOCK ? seen.end - first : BLOCK;
        ranges[i] = from < end ? (int32_t)from : 0;
        ranges[rows + i] = from < end ? (int32_t)end : 0;
    }
    return (attree__fold){.qk_width = f->qk_width,
                          .v_width = f->v_width,
                          .scale = scale_of(f),
                          .q = h->q,
                          .rows = rows,
                          .k = rows_from(h, &h->t->k, first),
                          .v = rows_from(h, &h->t->v, first),
                          .first = ranges,
                          .end = ranges + rows};
}

static void fold_block(head_rows *h, int64_t block, const attree__states *out)
{
    int32_t *const ranges = malloc((size_t)(2 * h->e->q_len) * sizeof *ranges);
    const attree__terms terms = terms_of(h, block * BLOCK);
    attree__fold fold = fold_of(h, block * BLOCK, ranges);
    fold.terms = &terms;
    fold.out = *out;
    const attree__fold *const folds[] = {&fold};
    attree__kernels_contract.fold(folds, 1);
    free(ranges);
}

/* Contract, step 6: blocks first ... first + count - 1 into *out. */
static void fold_tree(head_rows *h, int64_t first, int64_t count, const attree__states *out)
{
    if (count == 1) {
        fold_block(h, first, out);
        return;
    }
    int64_t split = 1;
    while (2 * split < count)
        split *= 2;
    const attree__states right = make_states(h->e->q_len, h->t->f->v_width);
    fold_tree(h, first, split, out);
    fold_tree(h, first + split, count - split, &right);
    attree__kernels_contract.combine(out, &right, h->e->q_len, h->t->f->v_width);
    free(right.m);
}

static void pack(head_rows *h)
{
    const tensors *t = h->t;
    const fields *f = t->f;
    const int64_t token = (h->e->q_batch * t->heads + h->head) * f->q_len + h->e->q_start;
    h->q = malloc((size_t)(h->e->q_len * f->qk_width + ATTREE__LANES) * sizeof *h->q);
    for (int64_t n = 0; n < h->e->q_len * f->qk_width; n++)
        h->q[n] = attree__load(t->q_rows, (int32_t)f->q_type, token * f->qk_width + n);
}

static void export_state(float *to, const attree__states *s, int64_t row, int64_t v_width)
{
    to[0] = s->m[row] + 0.0f; /* never -0 */
    to[1] = attree__canonical(s->l[row]);
    for (int64_t e = 0; e < v_width; e++)
        to[2 + e] = attree__canonical(s->u[row * s->u_stride + e]);
}

static void add_sink(const tensors *t, int64_t head, const attree__states *s, int64_t rows)
{
    const attree__states sink = make_states(1, t->f->v_width);
    sink.m[0] = t->sinks[head];
    sink.l[0] = 1.0f;
    for (int64_t i = 0; i < rows; i++) {
        const attree__states one = {s->m + i, s->l + i, s->u + i * s->u_stride, s->u_stride};
        attree__kernels_contract.combine(&one, &sink, 1, t->f->v_width);
    }
    free(sink.m);
}

static void finish(reference *r, const tensors *t, int64_t row, const attree__states *s, int64_t i)
{
    const fields *f = t->f;
    const int32_t type = (int32_t)f->o_type;
    char *const o = r->o + row * f->v_width * attree__dtype_bytes(type);
    r->empty[row] = s->m[i] == -INFINITY;
    if (!r->empty[row]) {
        attree__kernels_contract.divide(o, type, s->u + i * s->u_stride, s->l[i], f->v_width);
        r->lse[row] = attree__contract_lse(s->m[i], s->l[i]);
        return;
    }
    const bool nan = f->empty_rows == ATTREE_EMPTY_NAN;
    for (int64_t e = 0; e < f->v_width; e++)
        attree__store(o, type, e, nan ? NAN : 0.0f);
    r->lse[row] = nan ? NAN : -INFINITY;
}

static void make_head(reference *r, const tensors *t, int64_t b, int64_t head)
{
    const fields *f = t->f;
    head_rows h = {.t = t, .e = &t->s.entry[b], .batch = b, .head = head};
    h.user = (score_user){f, &t->s, 0, &h.wrong};
    const int64_t rows = h.e->q_len, blocks = (h.e->kv_len + BLOCK - 1) / BLOCK;
    const attree__states s = make_states(rows, f->v_width);
    for (int64_t i = 0; i < rows; i++)
        s.m[i] = -INFINITY;
    pack(&h);
    if (rows > 0 && blocks > 0)
        fold_tree(&h, 0, blocks, &s);
    const int64_t first = r->first_row[b] + head * rows;
    for (int64_t i = 0; i < rows; i++)
        export_state(r->states + (first + i) * (f->v_width + 2), &s, i, f->v_width);
    if (f->sinks)
        add_sink(t, head, &s, rows);
    for (int64_t i = 0; i < rows; i++)
        finish(r, t, first + i, &s, i);
    free(h.q);
    free(s.m);
}

void reference_make(reference *r, const tensors *t)
{
    const fields *f = t->f;
    *r = (reference){0};
    for (int64_t b = 0; b < f->batch; b++) {
        r->first_row[b] = r->rows;
        r->rows += t->heads * t->s.entry[b].q_len;
    }
    r->states = calloc((size_t)(r->rows * (f->v_width + 2) + 1), sizeof *r->states);
    r->o = calloc((size_t)(r->rows * f->v_width + 1), (size_t)attree__dtype_bytes((int32_t)f->o_type));
    r->lse = calloc((size_t)(r->rows + 1), sizeof *r->lse);
    r->empty = calloc((size_t)(r->rows + 1), sizeof *r->empty);
    for (int64_t b = 0; b < f->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            make_head(r, t, b, h);
}

void reference_free(reference *r)
{
    free(r->states);
    free(r->o);
    free(r->lse);
    free(r->empty);
}

void reference_weights(const tensors *t, const reference *r, const int64_t at[3], float *weights)
{
    const fields *f = t->f;
    const entry *e = &t->s.entry[at[0]];
    head_rows h = {.t = t, .e = e, .batch = at[0], .head = at[1]};
    h.user = (score_user){f, &t->s, 0, &h.wrong};
    const float lse = r->lse[r->first_row[at[0]] + at[1] * e->q_len + at[2]];
    int32_t *const ranges = malloc((size_t)(2 * e->q_len) * sizeof *ranges);
    memset(weights, 0, (size_t)e->kv_len * sizeof *weights);
    pack(&h);
    for (int64_t first = 0; first < e->kv_len; first += BLOCK) {
        const attree__terms terms = terms_of(&h, first);
        attree__fold fold = fold_of(&h, first, ranges);
        fold.terms = &terms;
        float s[BLOCK];
        attree__contract_scores(&fold, at[2], s);
        for (int32_t j = fold.first[at[2]]; j < fold.end[at[2]]; j++)
            weights[first + j] = s[j] == -INFINITY ? 0.0f : attree__canonical(attree__contract_weight(s[j] - lse));
    }
    free(ranges);
    free(h.q);
}
