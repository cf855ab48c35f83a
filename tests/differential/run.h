/* Runs a problem in its forms and with its instruction sets, and compares all that is written with the reference. */
#ifndef ATTREE_TESTS_DIFFERENTIAL_RUN_H
#define ATTREE_TESTS_DIFFERENTIAL_RUN_H

#include "../../src/dtype.h"
#include "reference.h"

enum { MESSAGE = 512, ISAS = 8 };

typedef struct counts {
    int64_t problems, too_large, with[FIELDS]; /* fields that are not the simplest, by their number */
    int64_t calls[CALL_FORMS], isas[ISAS], types[4][ATTREE__DTYPE_COUNT], weights, appended, two_phases;
    int64_t values[VALUES_KINDS];
} counts;

extern const char *const call_names[CALL_FORMS];

/* False, and what differs in message[MESSAGE], when the library is wrong. */
bool run_problem(const fields *f, counts *c, char *message);

/* One call of the library after the other. */
typedef struct job {
    tensors *t;
    const reference *r;
    int32_t isa;
    call_form form;
    counts *counts;
    score_user user;
    attree_control control;
    bool wrong; /* a tile of the caller's functions was outside */
    uint64_t mode;
    char *message;
} job;

/* Says what is wrong; returns false. */
bool job_fails(const job *j, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The floating-point environment of the caller. */
uint64_t mode_enter(const job *j);
bool mode_leave(const job *j, uint64_t before);

/* Compares a tensor with its rows, of which nothing is written if rows is NULL. */
bool check_output(const job *j, const tensor *o, const void *rows, const char *name);
bool check_results(const job *j);

/* A row of weights, by a plan and the arguments of its run. */
bool check_weights(const job *j, const attree_plan *plan, const attree_args *a);

/* What a run with ATTREE_WEIGHTS writes for one head: `weights` as plan_weights says, the sums of each query head and
 * of each key/value head. d and a are those of a run that wrote lse. */
typedef struct weights_run {
    attree_desc d;
    attree_args a;
    int64_t keys; /* of a row: those of the longest entry */
    char *weights;
    float *sums;
} weights_run;
bool make_weights_run(const job *j, const attree_desc *d, const attree_args *a, weights_run *w);
bool check_weights_run(const job *j, const weights_run *w);
void free_weights_run(weights_run *w);

/* attree_append to the problem's cache. */
bool check_append(const job *j);

#endif /* ATTREE_TESTS_DIFFERENTIAL_RUN_H */
