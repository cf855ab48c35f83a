/* The parts of the contract that are scalar on every instruction set. */
#ifndef ATTREE_CONTRACT_H
#define ATTREE_CONTRACT_H

#include <math.h>
#include <stdbool.h>

#include "attree/attree.h"
#include "kernel.h"

/* Any NaN as the one NaN that results may hold (0x7fc00000): machines differ in the NaN that an operation makes. */
static inline float attree__canonical(float x) { return isnan(x) ? NAN : x; }

/* Step 7: m + log(l). */
float attree__contract_lse(float m, float l);

#endif /* ATTREE_CONTRACT_H */
