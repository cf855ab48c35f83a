/* Problems to plan: of every kind, in every mix, each made from a seed and a number alone. */
#ifndef ATTREE_TESTS_PLANS_H
#define ATTREE_TESTS_PLANS_H

#include "support.h"

#include "../src/kernel.h"

enum { BATCH_MOST = 64, Q_MOST = 10000, K_MOST = 100000, WIDTH_LARGEST = 576 };

/* What a problem consists of. desc points into it. */
typedef struct plan_case {
    attree_desc desc;
    const attree__kernels *kernels; /* attree__dispatch gives these for it */
    int64_t kv_lens[BATCH_MOST], q_offsets[BATCH_MOST], q_starts[BATCH_MOST + 1], kv_starts[BATCH_MOST + 1];
    uint64_t seed;
    int64_t number;
} plan_case;

/* How many problems are the grid's. */
int64_t plan_case_grid(void);

/* Problem `number` of a seed: those of the grid first, then random ones without end. */
void plan_case_make(plan_case *c, uint64_t seed, int64_t number);

/* For plans that are made of no plan_case. */
void plan_case_use(const attree__kernels *kernels);

/* Everything a person needs to make the plan again. */
void plan_case_describe(const plan_case *c, char *text, size_t capacity);

#endif /* ATTREE_TESTS_PLANS_H */
