/* Draws the elements of the tensors of a problem. */
#ifndef ATTREE_TESTS_DIFFERENTIAL_VALUES_H
#define ATTREE_TESTS_DIFFERENTIAL_VALUES_H

#include "tensors.h"

/* Which list of hashes rows are drawn from, which dimensions repeat, and what kind of numbers they have. */
typedef struct row_source {
    uint64_t what;
    int64_t layout;
    bool panels;
    int64_t values;
} row_source;

void values_draw(tensors *t);

#endif /* ATTREE_TESTS_DIFFERENTIAL_VALUES_H */
