/* Runs with ATTREE_WEIGHTS: all weights of one head, and all sums of its keys. See run.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/contract.h"
#include "run.h"

enum { LAYOUT = 320, TYPE, HEAD, ONLY, LARGEST = 1 << 22, LEAF = 128 };

static const int32_t types[] = {ATTREE_F32, ATTREE_F16, ATTREE_BF16};

/* Between rows of weights, in elements: keys follow each other, or rows do. */
static attree_strides strides_of(const job *j, const weights_run *w)
{
    const tensors *t = j->t;
    const int64_t rows = t->heads * t->f->q_len;
    if (hash_of(t->f, LAYOUT, 0) % 2)
        return (attree_strides){t->heads * t->f->q_len * w->keys, w->keys, t->heads * w->keys, 1};
    return (attree_strides){rows * w->keys, t->f->q_len, 1, rows};
}

bool make_weights_run(const job *j, const attree_desc *d, const attree_args *a, weights_run *w)
{
    const fields *f = j->t->f;
    *w = (weights_run){.d = *d, .a = *a};
    for (int64_t b = 0; b < f->batch; b++)
        w->keys = j->t->s.entry[b].kv_len > w->keys ? j->t->s.entry[b].kv_len : w->keys;
    w->keys = f->kv_starts ? w->keys : f->kv_len;
    w->d.flags |= ATTREE_WEIGHTS | ATTREE_WEIGHTS_BY_HEAD;
    w->d.weights = strides_of(j, w);
    w->d.weights_type = types[hash_of(f, TYPE, 0) % 3];
    const int64_t count = j->t->q_batches * j->t->heads * f->q_len * w->keys;
    const bool all = count < LARGEST && hash_of(f, ONLY, 0) % 4 > 0;
    const size_t bytes = (size_t)count * (size_t)attree__dtype_bytes(w->d.weights_type),
                 sums = (size_t)(f->batch * j->t->heads * w->keys) * sizeof *w->sums;
    w->sums = malloc(sums + 1);
    w->weights = all ? malloc(bytes + 1) : NULL;
    if (!w->sums || (all && !w->weights))
        return job_fails(j, "no memory for weights");
    memset(w->sums, 0xff, sums);
    if (all)
        memset(w->weights, 0xff, bytes);
    w->a.weights = w->weights;
    w->a.key_weights = w->sums;
    w->a.v = NULL;
    return true;
}

void free_weights_run(weights_run *w)
{
    free(w->weights);
    free(w->sums);
}

/* Of the row with weights `expected`. */
static bool check_row(const job *j, const weights_run *w, const int64_t at[3], const float *expected, int64_t keys)
{
    const entry *e = &j->t->s.entry[at[0]];
    const attree_strides *s = &w->d.weights;
    const int64_t first = e->q_batch * s->batch + at[1] * s->head + (e->q_start + at[2]) * s->token;
    for (int64_t n = 0; n < keys && w->weights; n++) {
        float stored = 0.0f;
        attree__store(&stored, w->d.weights_type, 0, expected[n]);
        const float is = attree__load(w->weights, w->d.weights_type, first + n * s->width);
        const float should = attree__load(&stored, w->d.weights_type, 0);
        if (memcmp(&is, &should, sizeof is) != 0)
            return job_fails(j,
                             "all weights: of batch %" PRId64 ", head %" PRId64 ", query %" PRId64 ", key %" PRId64
                             " is %a, not %a",
                             at[0], at[1], at[2], n, (double)is, (double)should);
    }
    return true;
}

/* Adds up leaves first ... first + count - 1 of `keys` sums each, into the first. */
static void add_leaves(float *leaves, int64_t keys, int64_t first, int64_t count)
{
    if (count < 2)
        return;
    int64_t split = 1;
    while (2 * split < count)
        split *= 2;
    add_leaves(leaves, keys, first, split);
    add_leaves(leaves, keys, first + split, count - split);
    for (int64_t n = 0; n < keys; n++)
        leaves[first * keys + n] += leaves[(first + split) * keys + n];
}

bool check_weights_run(const job *j, const weights_run *w)
{
    const fields *f = j->t->f;
    if (f->batch == 0)
        return true;
    const uint64_t hash = hash_of(f, HEAD, 0);
    int64_t at[3] = {(int64_t)(hash % (uint64_t)f->batch), (int64_t)((hash >> 32) % (uint64_t)j->t->heads), 0};
    const entry *e = &j->t->s.entry[at[0]];
    const int64_t keys = f->kv_starts ? e->kv_len : f->kv_len, leaf_count = (e->q_len + LEAF - 1) / LEAF;
    float *const row = calloc((size_t)keys + 1, sizeof *row);
    float *const leaves = calloc((size_t)((leaf_count + 1) * keys + 1), sizeof *leaves);
    bool good = row && leaves;
    for (; at[2] < e->q_len && good; at[2]++) {
        reference_weights(j->t, j->r, at, row);
        good = check_row(j, w, at, row, keys);
        for (int64_t n = 0; n < keys; n++)
            leaves[at[2] / LEAF * keys + n] += row[n];
    }
    add_leaves(leaves, keys, 0, leaf_count);
    const float *const sums = w->sums + (at[0] * j->t->heads + at[1]) * w->keys;
    for (int64_t n = 0; n < keys && good; n++) {
        const float should = attree__canonical(leaves[n]);
        if (memcmp(&sums[n], &should, sizeof should) != 0)
            good = job_fails(j, "key weight of batch %" PRId64 ", head %" PRId64 ", key %" PRId64 " is %a, not %a",
                             at[0], at[1], n, (double)sums[n], (double)should);
    }
    free(row);
    free(leaves);
    return good;
}
