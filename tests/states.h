/* The public state algebra in two number types, behind one interface of functions on untyped arrays; comparisons,
 * random numbers, and softmax written out: expected numbers are sums over all keys at once, never another running
 * state. */
#ifndef ATTREE_TESTS_STATES_H
#define ATTREE_TESTS_STATES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include "attree/attree.h"
#include "support.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- Two number types, one interface ---- */

/* Room for the values of the largest test, 257 keys of 4 numbers. */
enum { NUMBERS = 1028 };

typedef union numbers {
    float f32[NUMBERS];
    double f64[NUMBERS];
} numbers;

typedef struct algebra {
    const char *name;
    size_t size; /* bytes of a number */
    double epsilon, largest;
    double (*get)(const void *array, size_t i);
    void (*set)(void *array, size_t i, double x);
    attree_status (*init)(void *state, int64_t v_width);
    attree_status (*push)(void *state, int64_t v_width, int64_t n, const void *scores, const void *values,
                          int64_t stride);
    attree_status (*push_key)(void *state, int64_t v_width, double score, const void *value);
    attree_status (*merge)(void *result, const void *left, const void *right, int64_t v_width);
    attree_status (*finish)(const void *state, int64_t v_width, void *o, void *lse);
} algebra;

enum { ALGEBRAS = 2 };
extern const algebra algebras[ALGEBRAS]; /* f32, f64 */
extern const algebra *const f64;

void *at(const algebra *a, void *array, size_t i);

numbers of(const algebra *a, const double *from, size_t count);

numbers empty_state(const algebra *a, int64_t v_width);

/* ---- Comparing ---- */

/* Whether all `count` numbers agree within tolerance; NaN agrees with nothing. A right answer needs every component:
 * one that comes out right proves nothing about the others (see test_rescaling_l_but_not_u). */
bool all_near(const double *got, const double *want, size_t count, double tolerance);

void expect_within(const char *what, const double *got, const double *want, size_t count, double tolerance);

/* f64 far inside the 1e-9 that is asked for; f32 to a few units in the last place of numbers below 4. */
double tolerance_of(const algebra *a);

/* Within tolerance_of(a), times the largest expected number when that is above 1. */
void expect_near(const algebra *a, const char *what, const numbers *got, const double *want, size_t count);

void expect_same_bits(const algebra *a, const char *what, const numbers *got, const numbers *want, size_t count);

/* ---- Random numbers and written-out softmax ---- */

/* splitmix64 (Steele, Lea and Flood, 2014), scaled. */
double uniform(double low, double high);

/* m, l, u[v_width] of all keys at once. */
void written_out(double *state, size_t v_width, size_t n, const double *scores, const double *values);

typedef struct key_block {
    size_t count, v_width;
    numbers scores, values; /* dense */
} key_block;

key_block keys_of(const algebra *a, size_t count, size_t v_width, const double *scores, const double *values);

/* A state of keys 0 ... count - 1, pushed in blocks, the last of which may be short. */
numbers state_of_keys(const algebra *a, key_block *k, size_t block);

#endif /* ATTREE_TESTS_STATES_H */
