/* Where the elements of a tensor lie: strides made whole, and the bytes they span. */
#ifndef ATTREE_LAYOUT_H
#define ATTREE_LAYOUT_H

#include <stdbool.h>

#include "attree/attree.h"

/* Half of the 64-bit range: sums of two such numbers cannot overflow. */
#define ATTREE__LIMIT (INT64_MAX / 2)

/* The bytes that a tensor's elements span, from its pointer: [low, high), low <= 0. Empty tensors: low = high = 0. */
typedef struct attree__span {
    int64_t low, high;
} attree__span;

typedef struct attree__tensor {
    const char *name;
    const attree_strides *given;
    int64_t size[4]; /* batch, head, token, width */
    int32_t type;
    bool output;             /* its elements must be apart */
    attree_strides *strides; /* results */
    attree__span *span;
} attree__tensor;

/* Dense strides where all are 0, 0 along dimensions of size 0 or 1. All offsets fit 64 bits. */
attree_status attree__layout_resolve(const attree__tensor *tensor);

/* A float type; of K and V, any. */
attree_status attree__layout_check_type(const char *name, int32_t type, bool of_cache);

#endif /* ATTREE_LAYOUT_H */
