/* The parts of the contract that are scalar on every instruction set. */
#ifndef ATTREE_CONTRACT_H
#define ATTREE_CONTRACT_H

#include <math.h>
#include <stdbool.h>

#include "attree/attree.h"
#include "dtype.h"
#include "kernel.h"

/* Any NaN as the one NaN that results may hold (0x7fc00000): machines differ in the NaN that an operation makes. */
static inline float attree__canonical(float x) { return isnan(x) ? NAN : x; }

/* Steps 1 and 2 for one row of a fold: scores[j] of the keys the row sees; -inf for those hidden by bias, score
 * function or mask. f->q as attree__kernels_contract packs it. */
void attree__contract_scores(const attree__fold *f, int64_t r, float *scores);

/* exp(t), exactly zero where the result would be subnormal; NaN stays NaN. */
float attree__contract_weight(float t);

/* Step 7: m + log(l). */
float attree__contract_lse(float m, float l);

/* Bias and mask of a row of a fold, for key j. */
static inline float attree__pair_bias(const attree__pair_source *p, int64_t query, int64_t head, int64_t j)
{
    return attree__load(p->data, p->type, p->base + query * p->query + head * p->head + j * p->key);
}

static inline bool attree__pair_shown(const attree__pair_source *p, int64_t query, int64_t head, int64_t j)
{
    const int64_t n = p->base + query * p->query + head * p->head + j * p->key;
    const uint8_t *const bytes = p->data;
    return p->type == ATTREE_MASK_BYTES ? bytes[n] != 0 : (bytes[n >> 3] >> (n & 7) & 1) != 0;
}

#endif /* ATTREE_CONTRACT_H */
