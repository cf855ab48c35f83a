/* Rows of numbers into rows of any type, rounded to nearest even. */
#ifndef ATTREE_QUANT_H
#define ATTREE_QUANT_H

#include "attree/attree.h"

/* count numbers of a float type, each stride elements from the one before. */
typedef struct attree__numbers {
    const void *data;
    int32_t type;
    int64_t stride, count;
} attree__numbers;

/* Whether the type can hold them, as attree_quantize says. */
attree_status attree__quant_check(int32_t type, const attree__numbers *from);

/* Writes them as a row of the type, elements width apart (1 for types with blocks), and *scale for types with scales of
 * rows. They have been checked. Both need the contract's rounding mode. */
void attree__quant_row(void *row, int32_t type, int64_t width, const attree__numbers *from, float *scale);

#endif /* ATTREE_QUANT_H */
