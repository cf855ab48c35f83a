/* The bits that a problem must have, by the functions of src/contract.c and docs/contract.md, and by nothing of
 * the library that plans or schedules. */
#ifndef ATTREE_TESTS_DIFFERENTIAL_REFERENCE_H
#define ATTREE_TESTS_DIFFERENTIAL_REFERENCE_H

#include "tensors.h"

/* Rows in the order of batch entries, heads, queries. */
typedef struct reference {
    int64_t rows, first_row[BATCH_MOST + 1]; /* of each batch entry */
    float *states;                           /* [rows][E + 2], without sinks */
    char *o;                                 /* [rows][E] */
    float *lse;                              /* [rows] */
    bool *empty;                             /* [rows] */
} reference;

/* Needs the default floating-point environment. */
void reference_make(reference *r, const tensors *t);
void reference_free(reference *r);

/* What attree_weights says of a row: weights[kv_len of the entry]. */
void reference_weights(const tensors *t, const reference *r, const int64_t at[3], float *weights);

#endif /* ATTREE_TESTS_DIFFERENTIAL_REFERENCE_H */
