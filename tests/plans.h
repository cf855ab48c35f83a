/* What test_plan is made of: problems of every kind, in every mix, each made from a seed and a number alone; and what
 * their plans set aside. */
#ifndef ATTREE_TESTS_PLANS_H
#define ATTREE_TESTS_PLANS_H

#include "support.h"

#include "../src/plan.h"

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

/* A problem and its plan. */
typedef struct subject {
    const plan_case *c;
    const attree_plan *plan;
} subject;

/* Fails the test, with what should be so and the parameters, unless it holds. */
void claim(const subject *s, bool holds, const char *what);

/* The stack of states is high enough, and all regions of the workspace are apart and large enough. (These are in
 * plan_space.c.) */
void check_levels(const subject *s);
void check_workspace(const subject *s);

/* A test: the levels that plans are held to are those of walks of fold_node, whatever is visible. */
void levels_are_those_of_walks(void **state);

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

#endif /* ATTREE_TESTS_PLANS_H */
