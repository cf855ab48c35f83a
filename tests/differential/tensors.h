/* The tensors of a problem: their elements, where these lie in memory, and what attree_desc and attree_args say of
 * that.
 *
 * Elements are kept as rows one after the other, which is what the reference reads; memory in the problem's layout is
 * filled from them, and only with what some query may see: all else is garbage. */
#ifndef ATTREE_TESTS_DIFFERENTIAL_TENSORS_H
#define ATTREE_TESTS_DIFFERENTIAL_TENSORS_H

#include "memory.h"
#include "problem.h"

/* Element (a, b, c, d) is unit number a * stride[0] + ... from data. Strides along dimensions of size 1 are 0. */
typedef struct tensor {
    int64_t size[4], stride[4];
    int64_t unit;      /* bytes; 0: bits */
    int64_t low, high; /* least and greatest unit number; high < low: no elements */
    bool given;        /* strides are said */
    slot slot;
    char *start; /* of memory, writable */
    size_t bytes;
    char *data; /* element 0, writable */
} tensor;

/* Keys or values. */
typedef struct cache {
    int32_t type;
    int64_t width, row_bytes;
    bool panels;
    char *rows;    /* [kv_batches][G][K] */
    float *scales; /* likewise; of ATTREE_I8 */
    tensor in_memory, scales_in_memory;
} cache;

/* A mask, a byte for each element here, or a bias. */
typedef struct pairs {
    int64_t size[4];
    char *elements; /* of those sizes; NULL: there is none */
    tensor in_memory;
} pairs;

typedef struct tensors {
    const fields *f;
    sequences s;
    int64_t heads, q_batches, kv_batches;
    char *q_rows; /* [q_batches][H][Q] */
    float *slopes, *sinks;
    const float *slopes_in_memory, *sinks_in_memory;
    tensor q, o, lse, states;
    cache k, v;
    pairs mask, bias;
    /* Of the keys that are in memory now. */
    key_range there;
    bool all_seen; /* no key is garbage */
    int64_t pages_each, page_count, table_width;
    int32_t *table; /* [B][pages_each] */
    const int32_t *table_in_memory;
} tensors;

/* Makes elements and fills memory; false when it is too much. */
bool tensors_make(tensors *t, const fields *f);
void tensors_free(tensors *t);

/* Fills the memory of keys and values with keys first ... end - 1. */
bool tensors_place_keys(tensors *t, key_range keys);

/* The same with all keys, also those that no query sees. */
bool tensors_place_all_keys(tensors *t);

/* o, lse and states are untouched. */
bool tensors_clear_outputs(tensors *t);

void tensors_describe(const tensors *t, attree_desc *desc, attree_args *args);

/* Strides that say everything; of dimensions of size 1, anything. */
attree_strides said_strides(const tensor *t);

int64_t unit_at(const tensor *t, int64_t a, int64_t b, int64_t c, int64_t d);

/* Writes the row of key j of batch entry b into memory of the cache's layout, of which data is element 0. */
void put_key(const tensors *t, const cache *c, char *data, const int64_t at[3], const char *row);
/* Which unit the scale of a key is. */
int64_t scale_at(const tensors *t, const cache *c, const int64_t at[3]);

/* A number of a kind of values. */
float number_of(int64_t kind, uint64_t hash);

#endif /* ATTREE_TESTS_DIFFERENTIAL_TENSORS_H */
