/* Random problems with all features at once, as test_features runs them, in memory where each tensor is laid out and
 * guarded anew. */
#ifndef ATTREE_TESTS_RANDOM_PROBLEMS_H
#define ATTREE_TESTS_RANDOM_PROBLEMS_H

#include "support.h"

enum { ENTRIES = 3, MASK_BYTES = 10, MASK_BITS = 11 };

/* ---- Tensors in guarded memory ---- */

/* Element (a, b, c, d) is number a * stride[0] + ... from data; low and high are the least and the greatest number. */
typedef struct grid {
    int64_t size[4], stride[4], low, high;
    int64_t given[4]; /* strides as the library is told: all zero for some dense ones */
    int32_t type;     /* attree_dtype, MASK_BYTES or MASK_BITS */
    guarded pages;
    void *data;
    char *bytes; /* where memory starts */
    size_t byte_count;
} grid;

int64_t place(const grid *g, int64_t a, int64_t b, int64_t c, int64_t d);

float get(const grid *g, int64_t n);

void set(const grid *g, int64_t n, float x);

/* The byte that holds element n begins here; element n begins in it. */
int64_t byte_of(const grid *g, int64_t n);

/* ---- Problems ---- */

/* One batch entry, as the header's text has it. */
typedef struct entry {
    int64_t q_start, q_len, kv_start, kv_len, q_offset;
    int64_t q_batch, kv_batch; /* which batch of q, k, v, o, lse it is in */
} entry;

typedef struct problem {
    int number;
    attree_desc desc;
    attree_args args;
    grid q, k, v, o, lse, mask, bias;
    guarded slopes, sinks;
    entry entries[ENTRIES];
    int64_t kv_lens[ENTRIES], q_offsets[ENTRIES], q_starts[ENTRIES + 1], kv_starts[ENTRIES + 1];
    float user; /* what the score function is given */
} problem;

typedef struct pair {
    int64_t b, h, i, j;
} pair;

/* What the score function does to a score. */
bool function_hides(pair at);

float function_adds(pair at, float user);

/* Number n is always the same problem; its results are 0xff bytes. */
problem *make_problem(int n);

void free_problem(problem *p);

/* Prints it. */
void describe(const problem *p);

#endif /* ATTREE_TESTS_RANDOM_PROBLEMS_H */
