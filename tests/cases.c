/* See cases.h. */
#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"

/* ---- Problems ---- */

job make_job(const attree_desc *desc, uint64_t seed)
{
    attree_desc plain = *desc;
    plain.q_type = plain.k_type = plain.v_type = plain.o_type = ATTREE_F32;
    job j = {.desc = *desc, .t = make_tensors(&plain, seed)};
    if (desc->batch > 0 && desc->q_starts) {
        j.t.q_count /= desc->batch;
        j.t.o_count /= desc->batch;
        j.t.lse_count /= desc->batch;
    }
    if (desc->batch > 0 && desc->kv_starts) {
        j.t.k_count /= desc->batch;
        j.t.v_count /= desc->batch;
    }
    return j;
}

job make_counting_job(const attree_desc *desc)
{
    job j = make_job(desc, 1);
    memset(j.t.k, 0, (size_t)j.t.k_count * sizeof(float));
    for (int64_t i = 0; i < j.t.v_count; i++)
        j.t.v[i] = (float)(i / desc->v_width % desc->kv_len);
    return j;
}

void free_job(job *j)
{
    free_tensors(&j->t);
    free(j->mask);
    free(j->bias);
}

entry entry_of(const job *j, int64_t b)
{
    const attree_desc *d = &j->desc;
    entry e = {b, 0, d->q_len, b, 0, d->kv_len, 0};
    if (d->q_starts)
        e = (entry){0, d->q_starts[b], d->q_starts[b + 1] - d->q_starts[b], b, 0, d->kv_len, 0};
    if (d->kv_starts) {
        e.kv_batch = 0;
        e.kv_start = d->kv_starts[b];
        e.kv_len = d->kv_starts[b + 1] - e.kv_start;
    }
    if (d->kv_lens)
        e.kv_len = d->kv_lens[b];
    e.q_offset = d->flags & ATTREE_USE_Q_OFFSET ? d->q_offset : e.kv_len - e.q_len;
    if (d->q_offsets)
        e.q_offset = d->q_offsets[b];
    return e;
}

int64_t position(const job *j, int64_t b, int64_t i) { return i + entry_of(j, b).q_offset; }

int64_t row_of(const job *j, int64_t b, int64_t h, int64_t i)
{
    const entry e = entry_of(j, b);
    return (e.q_batch * j->desc.q_heads + h) * j->desc.q_len + e.q_start + i;
}

double geometry(const job *j, const int64_t at[4], double s)
{
    const attree_desc *d = &j->desc;
    const int64_t distance = at[3] - position(j, at[0], at[2]);
    bool hidden = d->flags & ATTREE_CAUSAL && distance > 0;
    if (d->flags & ATTREE_USE_WINDOW)
        hidden = hidden || (d->window_left >= 0 && -distance > d->window_left) ||
                 (d->window_right >= 0 && distance > d->window_right);
    return hidden ? -(double)INFINITY : s;
}

/* ---- Masks and biases ---- */

/* Calls put(j, number of the pair in a dense [B, H, q_len, kv_len], score by the rule of 0) for the pairs of each
 * entry. */
static void for_each_pair(job *j, score_rule rule, void (*put)(job *, int64_t, double))
{
    const attree_desc *d = &j->desc;
    for (int64_t b = 0; b < d->batch; b++) {
        const entry e = entry_of(j, b);
        for (int64_t row = 0; row < d->q_heads * e.q_len; row++)
            for (int64_t key = 0; key < e.kv_len; key++) {
                const int64_t h = row / e.q_len, i = row % e.q_len;
                const int64_t query = (b * d->q_heads + h) * d->q_len + e.q_start + i;
                put(j, query * d->kv_len + e.kv_start + key, rule(j, (const int64_t[4]){b, h, i, key}, 0.0));
            }
    }
}

static void put_byte(job *j, int64_t n, double s)
{
    static const unsigned char shown[] = {1, 2, 0x80, 0xff, 0x10};
    ((unsigned char *)j->mask)[n] = isinf(s) ? 0 : shown[n % 5];
}

static void put_bit(job *j, int64_t n, double s)
{
    if (!isinf(s))
        ((unsigned char *)j->mask)[n / 8] |= (unsigned char)(1u << n % 8);
}

static void put_bias(job *j, int64_t n, double s) { attree__store(j->bias, j->desc.bias_type, n, (float)s); }

static size_t pair_count(const job *j)
{
    return (size_t)(j->desc.batch * j->desc.q_heads * j->desc.q_len * j->desc.kv_len);
}

void give_mask(job *j, attree_mask kind, score_rule rule)
{
    free(j->mask);
    j->mask = calloc(pair_count(j) + 1, 1);
    assert_non_null(j->mask);
    j->args.mask = j->mask;
    j->desc.mask_kind = (int32_t)kind;
    for_each_pair(j, rule, kind == ATTREE_MASK_BITS ? put_bit : put_byte);
}

void give_bias(job *j, int32_t type, score_rule rule)
{
    free(j->bias);
    j->bias = calloc(pair_count(j) + 1, sizeof(float));
    assert_non_null(j->bias);
    j->args.bias = j->bias;
    j->desc.bias_type = type;
    for_each_pair(j, rule, put_bias);
}

static void score_by_rule(const attree_score_tile *tile, void *user)
{
    const job *const j = user;
    for (int64_t i = 0; i < tile->queries; i++)
        for (int64_t key = 0; key < tile->keys; key++) {
            float *const s = tile->scores + i * tile->query_stride + key;
            *s = (float)j->rule(
                j, (const int64_t[4]){tile->batch, tile->head, tile->first_query + i, tile->first_key + key},
                (double)*s);
        }
}

void give_score_function(job *j, score_rule rule)
{
    j->rule = rule;
    j->args.score = score_by_rule;
    j->args.user = j;
}

static attree_block_answer block_by_rule(const attree_score_tile *tile, void *user)
{
    const job *const j = user;
    int64_t hidden = 0;
    for (int64_t i = 0; i < tile->queries; i++)
        for (int64_t key = 0; key < tile->keys; key++) {
            const int64_t at[4] = {tile->batch, tile->head, tile->first_query + i, tile->first_key + key};
            hidden += j->rule(j, at, 0.0) == -(double)INFINITY;
        }
    return hidden == 0                            ? ATTREE_BLOCK_FULL
           : hidden == tile->queries * tile->keys ? ATTREE_BLOCK_SKIP
                                                  : ATTREE_BLOCK_PARTIAL;
}

void hide(job *j, int way, score_rule rule)
{
    if (way == HIDE_BY_FUNCTION || way == HIDE_BY_BLOCKS)
        give_score_function(j, rule);
    if (way == HIDE_BY_BLOCKS)
        j->args.block = block_by_rule;
    if (way == HIDE_BY_BIAS)
        give_bias(j, ATTREE_F32, rule);
    if (way == HIDE_BY_BITS || way == HIDE_BY_BYTES)
        give_mask(j, way == HIDE_BY_BITS ? ATTREE_MASK_BITS : ATTREE_MASK_BYTES, rule);
}

void fill_keys(job *j, int64_t b, int64_t first, int64_t end, float number)
{
    const attree_desc *d = &j->desc;
    const entry e = entry_of(j, b);
    for (int64_t g = 0; g < d->kv_heads; g++)
        for (int64_t key = first; key < end; key++) {
            const int64_t row = (e.kv_batch * d->kv_heads + g) * d->kv_len + e.kv_start + key;
            for (int64_t c = 0; c < d->qk_width; c++)
                j->t.k[row * d->qk_width + c] = number;
            for (int64_t c = 0; c < d->v_width; c++)
                j->t.v[row * d->v_width + c] = number;
        }
}

/* ---- Running ---- */

/* The numbers in memory of the type; freed by the caller. */
static void *converted(const float *numbers, int64_t count, int32_t type)
{
    void *const memory = malloc((size_t)(count * attree__dtype_bytes(type)) + 1);
    assert_non_null(memory);
    for (int64_t i = 0; i < count; i++)
        attree__store(memory, type, i, numbers[i]);
    return memory;
}

void solve(job *j)
{
    const attree_desc *d = &j->desc;
    void *const q = converted(j->t.q, j->t.q_count, d->q_type), *const k = converted(j->t.k, j->t.k_count, d->k_type),
                *const v = converted(j->t.v, j->t.v_count, d->v_type);
    forget_results(&j->t);
    attree_args args = j->args;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = j->t.o;
    args.lse = j->t.lse;
    run_expecting(ATTREE_OK, d, &args);
    for (int64_t i = j->t.o_count - 1; i >= 0 && d->o_type != ATTREE_F32; i--)
        j->t.o[i] = attree__load(j->t.o, d->o_type, i);
    free(q);
    free(k);
    free(v);
}

static float *result_copy(const job *j)
{
    float *const copy = malloc((size_t)(j->t.o_count + j->t.lse_count) * sizeof(float) + 1);
    assert_non_null(copy);
    memcpy(copy, j->t.o, (size_t)j->t.o_count * sizeof(float));
    memcpy(copy + j->t.o_count, j->t.lse, (size_t)j->t.lse_count * sizeof(float));
    return copy;
}

void on_every_path(job *j, void (*check)(const job *))
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    float *first = NULL;
    for (int path = 0; path < 2 * count; path++) {
        if (first && thinned_out())
            continue;
        j->desc.isa = (int32_t)isas[path / 2];
        j->desc.threads = path % 2 ? 3 : 1;
        solve(j);
        if (first) {
            assert_same_bits(first, j->t.o, j->t.o_count);
            assert_same_bits(first + j->t.o_count, j->t.lse, j->t.lse_count);
        } else {
            check(j);
            first = result_copy(j);
        }
    }
    free(first);
}

void set_type(job *j, int32_t type)
{
    j->desc.q_type = j->desc.k_type = j->desc.v_type = j->desc.o_type = type;
    const struct {
        float *numbers;
        int64_t count;
    } inputs[] = {{j->t.q, j->t.q_count}, {j->t.k, j->t.k_count}, {j->t.v, j->t.v_count}};
    for (int n = 0; n < 3; n++)
        for (int64_t i = 0; i < inputs[n].count; i++) {
            uint32_t memory = 0;
            attree__store(&memory, type, 0, inputs[n].numbers[i]);
            inputs[n].numbers[i] = attree__load(&memory, type, 0);
        }
}

void in_every_type(job *j, void (*check)(const job *))
{
    for (int32_t type = ATTREE_F32; type <= ATTREE_BF16; type++) {
        if (type != ATTREE_F32 && thinned_out())
            continue;
        set_type(j, type);
        on_every_path(j, check);
    }
}

/* ---- Answers ---- */

/* Column -1 is lse. Tolerances are relative to 1 + |want|. */
static void expect_number(const job *j, int64_t row, int64_t column, double got, double want)
{
    static const double tolerances[] = {[ATTREE_F32] = 2e-5, [ATTREE_F16] = 6e-4, [ATTREE_BF16] = 4.5e-3};
    const double tolerance = column < 0 ? 1e-5 : tolerances[j->desc.o_type];
    if (!close_to(got, want, tolerance * (1.0 + fabs(want))))
        fail_msg("row %lld, %s %lld: %.9g is not %.9g (instruction set %d, %d threads, type %d)", (long long)row,
                 column < 0 ? "lse" : "o", (long long)column, got, want, (int)j->desc.isa, (int)j->desc.threads,
                 (int)j->desc.o_type);
}

void expect_row(const job *j, int64_t row, double o, double lse)
{
    const int64_t width = j->desc.v_width;
    for (int64_t c = 0; c < width; c++)
        expect_number(j, row, c, (double)j->t.o[row * width + c], o);
    expect_number(j, row, -1, (double)j->t.lse[row], lse);
}

static void expect_empty(const job *j, int64_t row, double sink)
{
    const float zero = 0.0f;
    for (int64_t c = 0; c < j->desc.v_width; c++)
        assert_same_bits(&zero, j->t.o + row * j->desc.v_width + c, 1);
    expect_number(j, row, -1, (double)j->t.lse[row], sink);
}

/* The scores of a row in s[kv_len]; returns their greatest, or -inf. NaN is passed over. */
static double scores_of(const job *j, const int64_t at[3], score_rule rule, double *s)
{
    const attree_desc *d = &j->desc;
    const entry e = entry_of(j, at[0]);
    const double scale = d->flags & ATTREE_USE_SCALE ? (double)d->scale
                         : d->qk_width > 0           ? 1.0 / sqrt((double)d->qk_width)
                                                     : 1.0;
    const float *const q = j->t.q + row_of(j, at[0], at[1], at[2]) * d->qk_width;
    const int64_t group = at[1] / (d->q_heads / d->kv_heads);
    double greatest = -(double)INFINITY;
    for (int64_t key = 0; key < e.kv_len; key++) {
        const int64_t row = (e.kv_batch * d->kv_heads + group) * d->kv_len + e.kv_start + key;
        double sum = 0.0;
        for (int64_t c = 0; c < d->qk_width; c++)
            sum += (double)q[c] * (double)j->t.k[row * d->qk_width + c];
        s[key] = rule(j, (const int64_t[4]){at[0], at[1], at[2], key}, scale * sum);
        greatest = s[key] > greatest ? s[key] : greatest;
    }
    return greatest;
}

static void expect_attention_row(const job *j, const int64_t at[3], score_rule rule, double *s)
{
    const attree_desc *d = &j->desc;
    const entry e = entry_of(j, at[0]);
    const int64_t row = row_of(j, at[0], at[1], at[2]), group = at[1] / (d->q_heads / d->kv_heads);
    const double sink = j->args.sinks ? (double)j->args.sinks[at[1]] : -(double)INFINITY;
    double m = scores_of(j, at, rule, s), sum = 0.0;
    bool empty = true;
    m = sink > m ? sink : m;
    for (int64_t key = 0; key < e.kv_len; key++)
        if (s[key] != -(double)INFINITY) {
            empty = false;
            s[key] = exp(s[key] - m);
            sum += s[key];
        }
    if (empty) {
        expect_empty(j, row, sink);
        return;
    }
    sum += exp(sink - m);
    for (int64_t c = 0; c < d->v_width; c++) {
        const float *const v = j->t.v + ((e.kv_batch * d->kv_heads + group) * d->kv_len + e.kv_start) * d->v_width + c;
        double o = 0.0;
        for (int64_t key = 0; key < e.kv_len; key++)
            if (s[key] != -(double)INFINITY)
                o += s[key] * (double)v[key * d->v_width];
        expect_number(j, row, c, (double)j->t.o[row * d->v_width + c], isnan(sum) ? (double)NAN : o / sum);
    }
    expect_number(j, row, -1, (double)j->t.lse[row], m + log(sum));
}

void expect_attention(const job *j, score_rule rule)
{
    double *const s = malloc((size_t)(j->desc.kv_len + 1) * sizeof *s);
    assert_non_null(s);
    for (int64_t b = 0; b < j->desc.batch; b++)
        for (int64_t h = 0; h < j->desc.q_heads; h++)
            for (int64_t i = 0; i < entry_of(j, b).q_len; i++)
                expect_attention_row(j, (const int64_t[3]){b, h, i}, rule, s);
    free(s);
}

job make_given_job(const attree_desc *desc, const float *k, const float *v)
{
    attree_desc d = *desc;
    d.flags |= ATTREE_USE_SCALE;
    d.scale = desc->flags & ATTREE_USE_SCALE ? desc->scale : 1.0f;
    job j = make_job(&d, 1);
    for (int64_t i = 0; i < j.t.q_count; i++)
        j.t.q[i] = 1.0f;
    for (int64_t i = 0; i < j.t.k_count; i++)
        j.t.k[i] = k[i % d.kv_len];
    for (int64_t i = 0; i < j.t.v_count; i++)
        j.t.v[i] = v[i / d.v_width % d.kv_len];
    return j;
}

void check_given(const job *j)
{
    for (int64_t row = 0; row < j->t.lse_count; row++)
        expect_row(j, row, j->real[0], j->real[1]);
}
