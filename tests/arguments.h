/* A valid problem, and what tests of bad arguments expect of it: each fault gives its status and a sentence that names
 * the argument, and nothing is written. Everything a run may touch lies in one block of memory, so that "nothing is
 * written" is one comparison. */
#ifndef ATTREE_TESTS_ARGUMENTS_H
#define ATTREE_TESTS_ARGUMENTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include "attree/attree.h"
#include "support.h"

#define TWO_TO(n) ((int64_t)1 << (n))
#define MOST (INT64_MAX / 2)
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- A valid problem ---- */

/* No dimension is 0 or 1, so that every stride counts. */
enum { B = 2, H = 4, G = 2, Q = 3, K = 5, D = 2, E = 3 };
enum { Q_COUNT = B * H * Q * D, K_COUNT = B * G * K * D, V_COUNT = B * G * K * E };
enum { O_COUNT = B * H * Q * E, LSE_COUNT = B * H * Q };

typedef enum tensor { IN_Q, IN_K, IN_V, OUT_O, OUT_LSE, WORKSPACE, MEMORIES } tensor;

static const struct {
    const char *name;
    size_t at, count; /* floats from the start of memory; the workspace's size is the plan's */
} places[MEMORIES] = {
    [IN_Q] = {"q", 256, Q_COUNT},   [IN_K] = {"k", 512, K_COUNT},         [IN_V] = {"v", 768, V_COUNT},
    [OUT_O] = {"o", 1024, O_COUNT}, [OUT_LSE] = {"lse", 1280, LSE_COUNT}, [WORKSPACE] = {"workspace", 1536, 0},
};
enum { MARGIN = 256 }; /* floats after the workspace */

typedef struct problem {
    attree_desc desc;
    attree_args args;
    attree_plan *plan;
    float *memory, *before;           /* before: a copy, to compare with */
    size_t floats, workspace_floats;  /* of memory; of the workspace, rounded up */
    float o[O_COUNT], lse[LSE_COUNT]; /* the right results, dense */
} problem;

attree_desc valid_desc(void);

attree_desc shaped(const int64_t shape[7]);

void point(attree_args *args, tensor which, void *to);

/* Everything holds 0xa5 bytes but the inputs. */
void reset(problem *p);

void expect_untouched(const problem *p);

int make_problem(void **state);

int free_problem(void **state);

/* ---- Expectations ---- */

/* desc may be shorter than it says, or NULL. */
void expect_bad_desc(const problem *p, const attree_desc *desc, attree_status want, const char *name);

void expect_bad_args_of_a_plan(const problem *p, const attree_args *args, attree_status want, const char *name);

/* For faults outside the workspace, which attree_attention ignores. */
void expect_bad_args(const problem *p, const attree_args *args, attree_status want, const char *name);

void expect_right(const problem *p, const float *o, const float *lse);

/* desc is accepted and the results are those of the valid problem. */
void expect_accepted(problem *p, const attree_desc *desc);

attree_status plan_status(const attree_desc *desc);

#define WITH_PROBLEM(test) cmocka_unit_test_setup_teardown(test, make_problem, free_problem)

#endif /* ATTREE_TESTS_ARGUMENTS_H */
