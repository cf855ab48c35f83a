/* One number for all results of a fixed set of problems. It is the same on every machine, compiler and instruction set:
 * any machine can check itself against every other. */
#ifndef ATTREE_GOLDEN_H
#define ATTREE_GOLDEN_H

#include "attree/attree.h"

#ifdef __cplusplus
extern "C" {
#endif

/* When the contract changes, and only then, this changes with it. */
#define ATTREE_GOLDEN UINT64_C(0x27c8cd59c445bca5)

/* Computes it with one instruction set and number of workers (0: OpenMP's default), in some tenths of a second; scalar,
 * in a few seconds. */
attree_status attree_golden_hash(attree_isa isa, int32_t threads, uint64_t *hash);

#ifdef __cplusplus
}
#endif

#endif /* ATTREE_GOLDEN_H */
