/* The contract's constants, and its parts that are scalar on every instruction set. */
#ifndef ATTREE_CONTRACT_H
#define ATTREE_CONTRACT_H

#include <math.h>

#include "attree/attree.h"

/* Keys of a block, by absolute key index (step 3). */
#define ATTREE__BLOCK ATTREE_BLOCK_KEYS

/* Partial sums of l (step 4). Also the granularity of padding: u rows are padded to a multiple of this. */
#define ATTREE__LANES 16

/* Weights are zero below this (step 3): just above log(2^-126), so that no weight is subnormal. */
#define ATTREE__CUTOFF (-87.33654f)

/* Any NaN as the one NaN that results may hold (0x7fc00000): machines differ in the NaN that an operation makes. */
static inline float attree__canonical(float x) { return isnan(x) ? NAN : x; }

/* exp(t), exactly zero where the result would be subnormal; NaN stays NaN. */
float attree__contract_weight(float t);

/* The softmax weight of a key with score s in a row with this lse: 0 when s is -inf. */
float attree__contract_row_weight(float s, float lse);

/* Queries whose weights are added up one after the other, from a multiple of this on: a leaf of the tree that adds up
 * the weights of a key. */
#define ATTREE__WEIGHT_QUERIES 128

/* Step 6 for maxima a and b, of which not both are -inf: the larger one, and what l and u of each side are multiplied
 * by. */
typedef struct attree__factors {
    float m, a, b;
} attree__factors;

attree__factors attree__contract_factors(float a, float b);

/* Step 7: m + log(l). */
float attree__contract_lse(float m, float l);

#endif /* ATTREE_CONTRACT_H */
