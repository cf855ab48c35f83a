/* See relations.h. */
#include "relations.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void on_every_path(void (*check)(path))
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++)
        for (int32_t threads = 1; threads <= 3; threads += 2)
            if (!thinned_out())
                check((path){(int32_t)isas[i], threads});
}

attree_desc desc_on(path on, const int64_t shape[7])
{
    attree_desc d = make_desc(shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6]);
    d.isa = on.isa;
    d.threads = on.threads;
    return d;
}

float *result_with(const attree_desc *d, const tensors *t, const attree_args *extras)
{
    attree_args args = *extras;
    float *const result = nan_floats(t->o_count + t->lse_count);
    args.q = t->q;
    args.k = t->k;
    args.v = t->v;
    args.o = result;
    args.lse = result + t->o_count;
    run_expecting(ATTREE_OK, d, &args);
    return result;
}

void expect_same(float *a, float *b, const tensors *t)
{
    assert_same_bits(a, b, t->o_count + t->lse_count);
    free(a);
    free(b);
}

void expect_near(float *a, float *b, const tensors *t, const float *shift)
{
    for (int64_t n = 0; n < t->o_count; n++)
        if (!close_to((double)a[n], (double)b[n], ROUNDING))
            fail_msg("o %lld: %g is not %g", (long long)n, (double)a[n], (double)b[n]);
    for (int64_t n = 0; n < t->lse_count; n++) {
        const double before = (double)a[t->o_count + n], after = (double)b[t->o_count + n];
        if (!close_to(before + (shift ? (double)shift[n] : 0.0), after, ROUNDING * (1.0 + fabs(after))))
            fail_msg("lse %lld: %g is not %g", (long long)n, before, after);
    }
    free(a);
    free(b);
}

uint8_t *window_mask(const attree_desc *d, int64_t offset, int64_t left, int64_t right)
{
    uint8_t *const mask = malloc((size_t)(d->q_len * d->kv_len) + 1);
    assert_non_null(mask);
    for (int64_t i = 0; i < d->q_len; i++)
        for (int64_t j = 0; j < d->kv_len; j++) {
            const int64_t distance = j - (i + offset);
            mask[i * d->kv_len + j] = (left < 0 || distance >= -left) && (right < 0 || distance <= right);
        }
    return mask;
}

const attree_pairs queries_by_keys = {.batches = 1, .heads = 1};

bool odd_block(int64_t key) { return key / 256 % 2; }

void hide_odd_blocks(const attree_score_tile *t, void *user)
{
    atomic_int *const calls = user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            if (odd_block(t->first_key + j))
                t->scores[i * t->query_stride + j] = -INFINITY;
    atomic_fetch_add(&calls[odd_block(t->first_key) || odd_block(t->first_key + t->keys - 1)], 1);
}

attree_block_answer skip_odd_blocks(const attree_score_tile *t, void *user)
{
    (void)user;
    for (int64_t j = 0; j < t->keys; j++)
        if (!odd_block(t->first_key + j))
            return ATTREE_BLOCK_PARTIAL;
    return ATTREE_BLOCK_SKIP;
}
