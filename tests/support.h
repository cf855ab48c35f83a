/* What the test programs share: seeded numbers, guarded memory, running a problem with poisoned buffers, a wide oracle.
 */
#ifndef ATTREE_TESTS_SUPPORT_H
#define ATTREE_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attree/attree.h"

/* Numbers much wider than double: 113 bits of significand. */
#if defined(__SIZEOF_FLOAT128__)
typedef __float128 wide;
#else
typedef long double wide; /* binary128 on AArch64 */
#endif
wide wide_exp(wide x);
wide wide_log(wide x);

/* xorshift64*; the state must not be 0. */
typedef struct random_source {
    uint64_t state;
} random_source;

/* Uniform in [low, high). */
float random_float(random_source *random, float low, float high);
/* Uniform in {low, ..., high}. */
int64_t random_integer(random_source *random, int64_t low, int64_t high);
void fill_random(float *numbers, int64_t count, random_source *random, float low, float high);
/* Freed by the caller. NaN; uniform in [low, high). */
float *nan_floats(int64_t count);
float *random_floats(int64_t count, uint64_t seed, float low, float high);

/* count floats whose last (or first, with at_start) byte touches a page that may not be accessed, on both sides of the
 * mapping. Freed by guarded_free. All are NaN. */
typedef struct guarded {
    float *data;
    void *mapping;
    size_t mapping_bytes;
} guarded;
guarded guarded_floats(int64_t count, bool at_start);
void guarded_free(guarded *memory);

/* Tensors of a problem with dense layouts, allocated to fit. */
typedef struct tensors {
    float *q, *k, *v, *o, *lse;
    int64_t q_count, k_count, v_count, o_count, lse_count;
} tensors;

attree_desc make_desc(int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t qk_width,
                      int64_t v_width);
/* q, k, v uniform in [-1, 1), of the types that desc says, in memory for f32; o and lse NaN. */
tensors make_tensors(const attree_desc *desc, uint64_t seed);
void free_tensors(tensors *t);
/* Fills o and lse with NaN, so that what a run does not write shows. */
void forget_results(const tensors *t);

/* Plans and runs with o, lse and workspace filled with NaN bytes before; fails the test unless status is as expected.
 */
void run_expecting(attree_status expected, const attree_desc *desc, const attree_args *args);
void run_tensors(const attree_desc *desc, const tensors *t);

/* As run_tensors, into fresh o and lse: the pair concatenated, of o_count + lse_count floats. Freed by the caller. */
float *result_of(const attree_desc *desc, const tensors *t);

/* The instruction sets that this machine has, narrowest first; returns how many. */
int available_isas(attree_isa isas[8]);

/* Attention of one row, materialised, in wide arithmetic on f32 inputs with dense layouts. Returns lse. */
wide oracle_row(const attree_desc *desc, const tensors *t, int64_t b, int64_t h, int64_t i, wide *o);

/* For emulators, sanitizers and the like: with ATTREE_TEST_THIN=n in the environment, true but for every n-th call. A
 * test leaves out a case, one of many alike, when this is true. */
bool thinned_out(void);

/* Fails the test unless the floats are equal bit for bit; says where they differ. */
#define assert_same_bits(a, b, count) assert_same_bits_at(a, b, count, __FILE__, __LINE__)
void assert_same_bits_at(const float *a, const float *b, int64_t count, const char *file, int line);

/* Whether |a - b| <= tolerance, where NaN equals NaN only and infinities equal themselves only. */
bool close_to(double a, double b, double tolerance);

/* ---- Errors ---- */

/* Overwrites the last error, so that a sentence left over from an earlier call cannot pass for a new one. */
void forget_last_error(void);

/* Whether the last error holds `name`; a name of one letter must stand alone. */
bool last_error_names(const char *name);

/* The status, and a sentence that holds the name. */
void expect_error(const char *what, attree_status got, attree_status want, const char *name);

#endif /* ATTREE_TESTS_SUPPORT_H */
