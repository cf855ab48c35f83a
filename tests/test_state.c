/* The public state algebra: worked numbers, accuracy, neutrality, the order of merging, errors, the caller's rounding.
 *
 * Nearly every test runs in f32 and in f64, through one table of functions on untyped arrays; expectations are f64.
 * Expected numbers are sums over all keys at once (a softmax written out), never another running state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fenv.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attree/attree.h"

#ifndef ATTREE_TEST_DATA
#define ATTREE_TEST_DATA "tests/data"
#endif

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

static double get_f32(const void *array, size_t i) { return (double)((const float *)array)[i]; }

static void set_f32(void *array, size_t i, double x) { ((float *)array)[i] = (float)x; }

static attree_status init_f32(void *state, int64_t v_width) { return attree_state_init_f32(state, v_width); }

static attree_status push_f32(void *state, int64_t v_width, int64_t n, const void *scores, const void *values,
                              int64_t stride)
{
    return attree_state_push_f32(state, v_width, n, scores, values, stride);
}

static attree_status push_key_f32(void *state, int64_t v_width, double score, const void *value)
{
    return attree_state_push_key_f32(state, v_width, (float)score, value);
}

static attree_status merge_f32(void *result, const void *left, const void *right, int64_t v_width)
{
    return attree_state_merge_f32(result, left, right, v_width);
}

static attree_status finish_f32(const void *state, int64_t v_width, void *o, void *lse)
{
    return attree_state_finish_f32(state, v_width, o, lse);
}

static double get_f64(const void *array, size_t i) { return ((const double *)array)[i]; }

static void set_f64(void *array, size_t i, double x) { ((double *)array)[i] = x; }

static attree_status init_f64(void *state, int64_t v_width) { return attree_state_init_f64(state, v_width); }

static attree_status push_f64(void *state, int64_t v_width, int64_t n, const void *scores, const void *values,
                              int64_t stride)
{
    return attree_state_push_f64(state, v_width, n, scores, values, stride);
}

static attree_status push_key_f64(void *state, int64_t v_width, double score, const void *value)
{
    return attree_state_push_key_f64(state, v_width, score, value);
}

static attree_status merge_f64(void *result, const void *left, const void *right, int64_t v_width)
{
    return attree_state_merge_f64(result, left, right, v_width);
}

static attree_status finish_f64(const void *state, int64_t v_width, void *o, void *lse)
{
    return attree_state_finish_f64(state, v_width, o, lse);
}

static const algebra algebras[] = {
    {"f32", sizeof(float), (double)FLT_EPSILON, (double)FLT_MAX, get_f32, set_f32, init_f32, push_f32, push_key_f32,
     merge_f32, finish_f32},
    {"f64", sizeof(double), DBL_EPSILON, DBL_MAX, get_f64, set_f64, init_f64, push_f64, push_key_f64, merge_f64,
     finish_f64},
};
static const algebra *const f64 = &algebras[1];
enum { ALGEBRAS = COUNT_OF(algebras) };

static void *at(const algebra *a, void *array, size_t i) { return (char *)array + i * a->size; }

static numbers of(const algebra *a, const double *from, size_t count)
{
    numbers to;
    memset(&to, 0, sizeof to);
    for (size_t i = 0; i < count; i++)
        a->set(&to, i, from[i]);
    return to;
}

static numbers empty_state(const algebra *a, int64_t v_width)
{
    numbers state;
    memset(&state, 0, sizeof state);
    assert_int_equal(a->init(&state, v_width), ATTREE_OK);
    return state;
}

/* ---- Comparing ---- */

/* Whether all `count` numbers agree within tolerance; NaN agrees with nothing. A right answer needs every component:
 * one that comes out right proves nothing about the others (see test_rescaling_l_but_not_u). */
static bool all_near(const double *got, const double *want, size_t count, double tolerance)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance))
            return false;
    return true;
}

static void expect_within(const char *what, const double *got, const double *want, size_t count, double tolerance)
{
    if (all_near(got, want, count, tolerance))
        return;
    for (size_t i = 0; i < count; i++)
        print_message("%s[%zu]: %.17g, expected %.17g within %g\n", what, i, got[i], want[i], tolerance);
    fail_msg("%s is wrong", what);
}

/* f64 far inside the 1e-9 that is asked for; f32 to a few units in the last place of numbers below 4. */
static double tolerance_of(const algebra *a) { return 16 * a->epsilon; }

/* Within tolerance_of(a), times the largest expected number when that is above 1. */
static void expect_near(const algebra *a, const char *what, const numbers *got, const double *want, size_t count)
{
    double wide[NUMBERS] = {0}, largest = 1.0;
    for (size_t i = 0; i < count; i++) {
        wide[i] = a->get(got, i);
        largest = fmax(largest, fabs(want[i]));
    }
    expect_within(what, wide, want, count, tolerance_of(a) * largest);
}

static void expect_same_bits(const algebra *a, const char *what, const numbers *got, const numbers *want, size_t count)
{
    if (memcmp(got, want, count * a->size) == 0)
        return;
    for (size_t i = 0; i < count; i++)
        print_message("%s, %s[%zu]: %a, expected %a\n", a->name, what, i, a->get(got, i), a->get(want, i));
    fail_msg("%s, %s has other bits", a->name, what);
}

/* The status, and a sentence that holds `word`; one-letter words must stand alone. */
static void expect_error(const char *what, attree_status got, attree_status want, const char *word)
{
    if (got != want)
        fail_msg("%s: %s, expected %s", what, attree_status_name(got), attree_status_name(want));
    const char *const sentence = attree_last_error();
    for (const char *hit = strstr(sentence, word); hit; hit = strstr(hit + 1, word)) {
        const char before = hit == sentence ? ' ' : hit[-1], after = hit[strlen(word)];
        if (strlen(word) > 1 || (before == ' ' && (after == ' ' || after == '\0')))
            return;
    }
    fail_msg("%s: \"%s\" does not name %s", what, sentence, word);
}

/* Overwrites the last error, so that a sentence left over from an earlier call cannot pass for a new one. */
static void forget_last_error(void) { assert_int_equal(attree_plan_create(NULL, NULL), ATTREE_ERROR_NULL); }

/* ---- Random numbers and written-out softmax ---- */

static uint64_t random_state = 0x9e3779b97f4a7c15u;

/* splitmix64 (Steele, Lea and Flood, 2014), scaled. */
static double uniform(double low, double high)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return low + (high - low) * ((double)(z >> 11) * 0x1p-53);
}

/* m, l, u[v_width] of all keys at once. */
static void written_out(double *state, size_t v_width, size_t n, const double *scores, const double *values)
{
    double m = -INFINITY, l = 0.0;
    for (size_t j = 0; j < n; j++)
        m = fmax(m, scores[j]);
    for (size_t e = 0; e < v_width; e++)
        state[2 + e] = 0.0;
    for (size_t j = 0; j < n; j++) {
        const double p = exp(scores[j] - m);
        l += p;
        for (size_t e = 0; e < v_width; e++)
            state[2 + e] += p * values[j * v_width + e];
    }
    state[0] = m;
    state[1] = l;
}

typedef struct key_block {
    size_t count, v_width;
    numbers scores, values; /* dense */
} key_block;

static key_block keys_of(const algebra *a, size_t count, size_t v_width, const double *scores, const double *values)
{
    return (key_block){count, v_width, of(a, scores, count), of(a, values, count * v_width)};
}

/* A state of keys 0 ... count - 1, pushed in blocks, the last of which may be short. */
static numbers state_of_keys(const algebra *a, key_block *k, size_t block)
{
    const int64_t v_width = (int64_t)k->v_width;
    numbers state = empty_state(a, v_width);
    for (size_t j = 0; j < k->count; j += block) {
        const size_t count = k->count - j < block ? k->count - j : block;
        void *const scores = at(a, &k->scores, j), *const values = at(a, &k->values, j * k->v_width);
        assert_int_equal(a->push(&state, v_width, (int64_t)count, scores, values, v_width), ATTREE_OK);
    }
    return state;
}

/* ---- Worked numbers ---- */

enum { KEYS = 4, WIDTH = KEYS + 2 };

/* Four keys with values of two numbers. Printed numbers have three digits after the point; NAN: not printed. */
typedef struct worked {
    double scores[KEYS], values[KEYS][2];
    double first_m, first_l, first_u[2]; /* after the first two keys */
    double m, l, u[2], weights[KEYS], o[2];
} worked;

static const worked examples[] = {
    {.scores = {2, 4, 1, 3},
     .values = {{1, 0}, {0, 1}, {1, 1}, {0, 0}},
     .first_m = 4,
     .first_l = 1.135,
     .first_u = {NAN, NAN},
     .m = 4,
     .l = 1.553,
     .u = {NAN, NAN},
     .weights = {0.087, 0.644, 0.032, 0.237},
     .o = {0.119, 0.676}},
    {.scores = {1, 2, 5, 3},
     .values = {{1, 0}, {0, 1}, {2, 0}, {0, 2}},
     .first_m = 2,
     .first_l = 1.368,
     .first_u = {0.368, 1.000},
     .m = 5,
     .l = 1.203,
     .u = {2.018, 0.320},
     .weights = {0.015, 0.041, 0.831, 0.112}, /* 0.0414; printed as 0.042 where the four are to add up to 1 */
     .o = {1.677, 0.266}},
};

static void expect_printed(const char *what, double got, double printed)
{
    if (!isnan(printed) && !(fabs(got - printed) <= 0.0005))
        fail_msg("%s is %.6f, expected %.3f", what, got, printed);
}

/* Each key's value: a one in its own place, so that u[0 ... 3] / l are the softmax weights, then its two numbers. */
static void widened_values(double *to, const worked *w)
{
    memset(to, 0, sizeof(double[KEYS * WIDTH]));
    for (size_t j = 0; j < KEYS; j++) {
        to[j * WIDTH + j] = 1.0;
        memcpy(to + j * WIDTH + KEYS, w->values[j], sizeof w->values[j]);
    }
}

static void check_printed(const algebra *a, const worked *w, const numbers *state, const numbers *o)
{
    assert_true(a->get(state, 0) == w->m);
    expect_printed("l", a->get(state, 1), w->l);
    for (size_t j = 0; j < KEYS; j++)
        expect_printed("weight", a->get(o, j), w->weights[j]);
    for (size_t e = 0; e < 2; e++) {
        expect_printed("u", a->get(state, 2 + KEYS + e), w->u[e]);
        expect_printed("o", a->get(o, KEYS + e), w->o[e]);
    }
}

static void check_worked(const algebra *a, const worked *w, size_t block)
{
    double wide_values[KEYS * WIDTH], want[WIDTH + 2], want_o[WIDTH];
    widened_values(wide_values, w);
    key_block two = keys_of(a, 2, WIDTH, w->scores, wide_values), all = keys_of(a, KEYS, WIDTH, w->scores, wide_values);

    numbers state = state_of_keys(a, &two, block), o, lse;
    written_out(want, WIDTH, 2, w->scores, wide_values);
    expect_near(a, "state after two keys", &state, want, WIDTH + 2);
    assert_true(a->get(&state, 0) == w->first_m);
    expect_printed("first l", a->get(&state, 1), w->first_l);
    for (size_t e = 0; e < 2; e++)
        expect_printed("first u", a->get(&state, 2 + KEYS + e), w->first_u[e]);

    state = state_of_keys(a, &all, block);
    written_out(want, WIDTH, KEYS, w->scores, wide_values);
    expect_near(a, "state", &state, want, WIDTH + 2);
    assert_int_equal(a->finish(&state, WIDTH, &o, &lse), ATTREE_OK);
    for (size_t e = 0; e < WIDTH; e++)
        want_o[e] = want[2 + e] / want[1];
    expect_near(a, "o", &o, want_o, WIDTH);
    const double want_lse = want[0] + log(want[1]);
    expect_near(a, "lse", &lse, &want_lse, 1);
    check_printed(a, w, &state, &o);
}

static void test_worked_numbers(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t example = 0; example < COUNT_OF(examples); example++)
            for (size_t block = 1; block <= KEYS; block++)
                check_worked(&algebras[i], &examples[example], block);
}

/* Only differences of scores matter: the softmax of (100, 102, 99, 101) has the bits of that of (2, 4, 1, 3). */
static void test_shifted_scores(void **unused)
{
    (void)unused;
    double wide_values[KEYS * WIDTH];
    widened_values(wide_values, &examples[0]);
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        key_block low = keys_of(a, KEYS, WIDTH, examples[0].scores, wide_values);
        key_block high = keys_of(a, KEYS, WIDTH, (const double[]){100, 102, 99, 101}, wide_values);
        const numbers low_state = state_of_keys(a, &low, 2), high_state = state_of_keys(a, &high, 2);
        numbers low_o, high_o;
        assert_int_equal(a->finish(&low_state, WIDTH, &low_o, NULL), ATTREE_OK);
        assert_int_equal(a->finish(&high_state, WIDTH, &high_o, NULL), ATTREE_OK);
        expect_same_bits(a, "o of shifted scores", &high_o, &low_o, WIDTH);
        assert_true(a->get(&high_state, 0) == 102.0);
    }
}

/* Two keys with values 1 and 2. */
static void test_scores_beyond_the_range_of_exp(void **unused)
{
    (void)unused;
    const struct {
        double scores[2], o, lse;
    } cases[] = {
        {{151.29, 0.0}, 1.0, 151.29},   {{-151.29, -300.0}, 1.0, -151.29}, {{710.0, 710.0}, 1.5, 710.0 + log(2)},
        {{711.0, 1000.0}, 2.0, 1000.0}, {{1e4, -1e4}, 1.0, 1e4},           {{-1e4, 1e4}, 2.0, 1e4},
        {{1e30, 1e30}, 1.5, 1e30},      {{-1e30, 1e30}, 2.0, 1e30},        {{1e-40, -1e-40}, 1.5, log(2)},
        {{-3e38, 3e38}, 2.0, 3e38},
    };
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t c = 0; c < COUNT_OF(cases); c++)
            for (size_t block = 1; block <= 2; block++) {
                const algebra *a = &algebras[i];
                key_block two = keys_of(a, 2, 1, cases[c].scores, (const double[]){1, 2});
                const numbers state = state_of_keys(a, &two, block);
                numbers o, lse;
                assert_int_equal(a->finish(&state, 1, &o, &lse), ATTREE_OK);
                expect_near(a, "o", &o, &cases[c].o, 1);
                expect_near(a, "lse", &lse, &cases[c].lse, 1);
            }
}

/* The lowest finite score: log 2 vanishes in lse, and any normal state outweighs it. */
static void test_lowest_finite_score(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        const double lowest = -a->largest;
        key_block two = keys_of(a, 2, 1, (const double[]){lowest, lowest}, (const double[]){1, 2});
        const numbers low = state_of_keys(a, &two, 2);
        numbers o, lse, both;
        assert_int_equal(a->finish(&low, 1, &o, &lse), ATTREE_OK);
        assert_true(a->get(&o, 0) == 1.5);
        assert_true(a->get(&lse, 0) == lowest);

        const numbers normals[] = {of(a, (const double[]){0.25, 1.5, 7}, 3),
                                   of(a, (const double[]){a->largest, 1.5, 7}, 3)};
        for (size_t n = 0; n < COUNT_OF(normals); n++) {
            assert_int_equal(a->merge(&both, &normals[n], &low, 1), ATTREE_OK);
            expect_same_bits(a, "normal with lowest", &both, &normals[n], 3);
            assert_int_equal(a->merge(&both, &low, &normals[n], 1), ATTREE_OK);
            expect_same_bits(a, "lowest with normal", &both, &normals[n], 3);
        }
    }
}

static void expect_weight(const algebra *a, const numbers *state, double want)
{
    const double got = a->get(state, 2);
    if (!(fabs(got - want) <= 2 * a->epsilon * want))
        fail_msg("%s: weight %.17g, expected %.17g", a->name, got, want);
}

/* The weight of a key with score t beside one with score 0 is u, when its value is 1 and the other's 0. */
static void check_weight(const algebra *a, double t, double want)
{
    const double scores[2][2] = {{0, t}, {t, 0}}, values[2][2] = {{0, 1}, {1, 0}};
    for (size_t order = 0; order < 2; order++)
        for (size_t block = 1; block <= 2; block++) {
            key_block two = keys_of(a, 2, 1, scores[order], values[order]);
            const numbers state = state_of_keys(a, &two, block);
            expect_weight(a, &state, want);
        }
    const numbers zero = of(a, (const double[]){0, 1, 0}, 3), low = of(a, (const double[]){t, 1, 1}, 3);
    numbers both;
    assert_int_equal(a->merge(&both, &zero, &low, 1), ATTREE_OK);
    expect_weight(a, &both, want);
    assert_int_equal(a->merge(&both, &low, &zero, 1), ATTREE_OK);
    expect_weight(a, &both, want);
}

/* Right down to the smallest normal number; exactly zero below it. */
static void test_small_weights(void **unused)
{
    (void)unused;
    const double edges[ALGEBRAS] = {-87.33654, -708.3964185322641}; /* just above its logarithm */
    const double factors[] = {0, 0.01, 0.5, 0.9, 0.98, 0.9999, 1.0001, 1.001, 1.02, 1.2, 10, 1e28};
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t n = 0; n < COUNT_OF(factors); n++) {
            const algebra *a = &algebras[i];
            const double exact = factors[n] * edges[i];
            const numbers rounded = of(a, &exact, 1);
            const double t = a->get(&rounded, 0);
            check_weight(a, t, factors[n] < 1 ? exp(t) : 0.0);
        }
}

/* What was in the state is scaled by exp(m - m') exactly once for each new maximum. */
static void test_scale_of_what_was_there(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers state = of(a, (const double[]){3, 2.5, 2.5, -2.5}, 4);
        const numbers seven = of(a, (const double[]){7}, 1), zero = of(a, (const double[]){0, 0}, 2);
        const double old = 2.5 * exp(-4.0);
        assert_int_equal(a->push(&state, 2, 1, &seven, &zero, 2), ATTREE_OK);
        expect_printed("old l", a->get(&state, 1) - 1.0, 0.0458);
        expect_near(a, "m = 7", &state, (const double[]){7, 1 + old, old, -old}, 4);

        state = empty_state(a, 3);
        const double one_hot[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
        for (size_t j = 0; j < 3; j++) {
            const numbers value = of(a, one_hot[j], 3);
            assert_int_equal(a->push_key(&state, 3, 10.0 * (double)(j + 1), &value), ATTREE_OK);
        }
        const double twice[] = {30, 1 + exp(-10) + exp(-20), exp(-20), exp(-10), 1};
        expect_near(a, "scores 10, 20, 30", &state, twice, 5);
        for (size_t e = 0; e < 3; e++) /* relative: these are small */
            assert_true(fabs(a->get(&state, 2 + e) / twice[2 + e] - 1) <= tolerance_of(a));
    }
}

/* The running state with the mistake that this test is about: l is rescaled, u is not. */
static void push_key_rescaling_l_only(double state[4], double score, const double value[2])
{
    const double m = fmax(state[0], score), p = exp(score - m);
    state[1] = state[1] * exp(state[0] - m) + p;
    for (size_t e = 0; e < 2; e++)
        state[2 + e] += p * value[e];
    state[0] = m;
}

static void test_rescaling_l_but_not_u(void **unused)
{
    (void)unused;
    const double scores[] = {1000, 1001, 999}, values[][2] = {{1, 0}, {0, 2}, {3, -1}};
    const double want[] = {0.514820191, 1.240451338}, wrong_first = 0.935332675;
    const double digits = 0.5e-9;

    double wrong[] = {-INFINITY, 0, 0, 0};
    for (size_t j = 0; j < 3; j++)
        push_key_rescaling_l_only(wrong, scores[j], values[j]);
    const double wrong_o[] = {wrong[2] / wrong[1], wrong[3] / wrong[1]};
    assert_true(all_near(&wrong_o[0], &wrong_first, 1, digits));
    assert_true(all_near(&wrong_o[1], &want[1], 1, digits)); /* the second component alone would pass */
    assert_false(all_near(wrong_o, want, 2, digits));        /* both together do not */
    assert_false(all_near(wrong_o, want, 2, tolerance_of(&algebras[0])));

    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t block = 1; block <= 3; block++) {
            const algebra *a = &algebras[i];
            key_block three = keys_of(a, 3, 2, scores, values[0]);
            const numbers state = state_of_keys(a, &three, block);
            numbers o;
            assert_int_equal(a->finish(&state, 2, &o, NULL), ATTREE_OK);
            const double got[] = {a->get(&o, 0), a->get(&o, 1)};
            expect_within("o", got, want, 2, fmax(digits, tolerance_of(a)));
        }
}

/* Two queries over the same keys, pushed by turns into neighbouring states: one has its maximum in the first block, the
 * other in the second. */
static void test_queries_are_independent(void **unused)
{
    (void)unused;
    enum { STATE = 2 + 2 };
    const double scores[2][KEYS] = {{9, 1, 2, 3}, {1, 2, 3, 9}};
    const double values[KEYS * 2] = {1, 0, 0, 1, 2, 0, 0, 2};
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers both, v = of(a, values, KEYS * 2);
        for (size_t query = 0; query < 2; query++)
            assert_int_equal(a->init(at(a, &both, query * STATE), 2), ATTREE_OK);
        for (size_t j = 0; j < KEYS; j += 2)
            for (size_t query = 0; query < 2; query++) {
                const numbers s = of(a, &scores[query][j], 2);
                assert_int_equal(a->push(at(a, &both, query * STATE), 2, 2, &s, at(a, &v, 2 * j), 2), ATTREE_OK);
                if (j == 0)
                    assert_true(a->get(&both, query * STATE) == (query == 0 ? 9.0 : 2.0));
            }
        for (size_t query = 0; query < 2; query++) {
            double want[STATE];
            numbers one;
            memcpy(&one, at(a, &both, query * STATE), STATE * a->size);
            written_out(want, 2, KEYS, scores[query], values);
            expect_near(a, "one of two states", &one, want, STATE);
        }
    }
}

/* ---- 257 keys against softmax in f64 ---- */

enum { FIXTURE_KEYS = 257, FIXTURE_WIDTH = 4, FIXTURE_RANGES = 3 };

typedef struct softmax_fixture {
    double range[FIXTURE_RANGES], exact[FIXTURE_RANGES][FIXTURE_WIDTH];
    double scores[FIXTURE_KEYS], values[FIXTURE_KEYS][FIXTURE_WIDTH];
} softmax_fixture;

/* See the file's first line. */
static void read_fixture(softmax_fixture *x)
{
    const char *const path = ATTREE_TEST_DATA "/softmax_257.txt";
    FILE *const file = fopen(path, "r");
    if (!file)
        fail_msg("cannot open %s", path);
    int read = fscanf(file, "#%*[^\n]");
    for (size_t r = 0; r < FIXTURE_RANGES; r++) {
        double *o = x->exact[r];
        read += fscanf(file, " expect %lf %lf %lf %lf %lf", &x->range[r], &o[0], &o[1], &o[2], &o[3]);
    }
    for (size_t j = 0; j < FIXTURE_KEYS; j++) {
        double *v = x->values[j];
        read += fscanf(file, "%lf %lf %lf %lf %lf", &x->scores[j], &v[0], &v[1], &v[2], &v[3]);
    }
    fclose(file);
    assert_int_equal(read, 5 * (FIXTURE_RANGES + FIXTURE_KEYS));
}

/* All weights first, then their products with the values. */
static void materialised_softmax(double *o, const softmax_fixture *x, const double *scores)
{
    double state[2 + FIXTURE_WIDTH];
    written_out(state, FIXTURE_WIDTH, FIXTURE_KEYS, scores, x->values[0]);
    for (size_t e = 0; e < FIXTURE_WIDTH; e++)
        o[e] = 0.0;
    for (size_t j = 0; j < FIXTURE_KEYS; j++) {
        const double weight = exp(scores[j] - state[0]) / state[1];
        for (size_t e = 0; e < FIXTURE_WIDTH; e++)
            o[e] += weight * x->values[j][e];
    }
}

static double largest_difference(const double *a, const double *b, size_t count)
{
    double largest = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fabs(a[i] - b[i]) <= largest ? largest : fabs(a[i] - b[i]); /* keeps a NaN */
    return largest;
}

static void test_257_keys(void **unused)
{
    (void)unused;
    const double bound = 1e-15;
    const size_t blocks[] = {1, 7, 32, 257};
    softmax_fixture x;
    read_fixture(&x);
    double worst = 0.0, worst_exact = 0.0;
    for (size_t r = 0; r < FIXTURE_RANGES; r++) {
        double scores[FIXTURE_KEYS], want[FIXTURE_WIDTH];
        for (size_t j = 0; j < FIXTURE_KEYS; j++)
            scores[j] = x.range[r] * x.scores[j];
        materialised_softmax(want, &x, scores);
        key_block all = keys_of(f64, FIXTURE_KEYS, FIXTURE_WIDTH, scores, x.values[0]);
        for (size_t b = 0; b < COUNT_OF(blocks); b++) {
            const numbers state = state_of_keys(f64, &all, blocks[b]);
            numbers o;
            assert_int_equal(f64->finish(&state, FIXTURE_WIDTH, &o, NULL), ATTREE_OK);
            expect_within("o of 257 keys", o.f64, want, FIXTURE_WIDTH, bound);
            expect_within("o of 257 keys, exactly", o.f64, x.exact[r], FIXTURE_WIDTH, bound);
            worst = fmax(worst, largest_difference(o.f64, want, FIXTURE_WIDTH));
            worst_exact = fmax(worst_exact, largest_difference(o.f64, x.exact[r], FIXTURE_WIDTH));
        }
    }
    print_message(
        "257 keys, 12 comparisons: largest absolute error %.3g against softmax in f64, %.3g against 60 digits\n", worst,
        worst_exact);
}

/* ---- Size ---- */

static void test_state_size(void **unused)
{
    (void)unused;
    assert_int_equal(attree_state_count(64) * sizeof(float), 264);
    assert_int_equal(attree_state_count(1), 3);
    assert_int_equal(attree_state_count(128), 130);
    assert_int_equal(attree_state_count((int64_t)1 << 40), ((size_t)1 << 40) + 2);
    const int64_t impossible[] = {0, -1, INT64_MIN, INT64_MAX, INT64_MAX - 2};
    for (size_t i = 0; i < COUNT_OF(impossible); i++)
        assert_int_equal(attree_state_count(impossible[i]), 0);
}

/* A state uses attree_state_count numbers and no more, whatever is done with it; o uses v_width, lse one. */
static void test_state_keeps_within_its_numbers(void **unused)
{
    (void)unused;
    enum { E = 64, GUARD = 8, STATE = E + 2 };
    const double canary = -12345.0;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers memory, scores, values, other, o, lse;
        for (size_t n = 0; n < NUMBERS; n++) {
            a->set(&memory, n, canary);
            a->set(&o, n, canary);
            a->set(&lse, n, canary);
            a->set(&values, n, uniform(-1, 1));
            a->set(&scores, n, uniform(-9, 9));
        }
        void *const state = at(a, &memory, GUARD);
        assert_int_equal(a->init(state, E), ATTREE_OK);
        assert_int_equal(a->push(state, E, 16, &scores, &values, E), ATTREE_OK);
        assert_int_equal(a->push_key(state, E, 10.0, &values), ATTREE_OK);
        memcpy(&other, state, STATE * a->size); /* a copy is a state */
        assert_int_equal(a->merge(state, state, &other, E), ATTREE_OK);
        assert_int_equal(a->finish(state, E, at(a, &o, GUARD), at(a, &lse, GUARD)), ATTREE_OK);
        for (size_t n = 0; n < NUMBERS; n++) {
            assert_true((a->get(&memory, n) == canary) == (n < GUARD || n >= GUARD + STATE));
            assert_true((a->get(&o, n) == canary) == (n < GUARD || n >= GUARD + E));
            assert_true((a->get(&lse, n) == canary) == (n != GUARD));
        }
    }
}

static void test_empty_state_is_as_documented(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers state, want = of(a, (const double[]){-INFINITY, 0, 0, 0, 0}, 5);
        memset(&state, 0xa5, sizeof state);
        assert_int_equal(a->init(&state, 3), ATTREE_OK);
        expect_same_bits(a, "empty state", &state, &want, 5);
    }
}

/* The values of a key are adjacent; those of the next one are a stride away, which may skip, repeat or go backwards. */
static void test_value_stride(void **unused)
{
    (void)unused;
    enum { N = 5, E = 3 };
    const int64_t strides[] = {E, E + 4, 1, 0, -E, -E - 2};
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t s = 0; s < COUNT_OF(strides); s++) {
            const algebra *a = &algebras[i];
            numbers scores, values, packed = of(a, NULL, 0);
            for (size_t n = 0; n < 64; n++) {
                a->set(&scores, n, uniform(-3, 3));
                a->set(&values, n, uniform(-2, 2));
            }
            const size_t first = strides[s] < 0 ? 40 : 0;
            for (int64_t j = 0; j < N; j++)
                for (int64_t e = 0; e < E; e++)
                    a->set(&packed, (size_t)(j * E + e),
                           a->get(&values, (size_t)((int64_t)first + j * strides[s] + e)));
            numbers got = empty_state(a, E), want = got;
            assert_int_equal(a->push(&got, E, N, &scores, at(a, &values, first), strides[s]), ATTREE_OK);
            assert_int_equal(a->push(&want, E, N, &scores, &packed, E), ATTREE_OK);
            expect_same_bits(a, "state of strided values", &got, &want, E + 2);
        }
}

/* One key at a time by push_key has the bits of push with n = 1; n = 0 changes nothing and reads nothing. */
static void test_push_of_one_key_and_of_none(void **unused)
{
    (void)unused;
    enum { E = 3 };
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers by_key = empty_state(a, E), by_block = by_key;
        for (size_t j = 0; j < 20; j++) {
            const numbers score = of(a, (const double[]){uniform(-30, 30)}, 1);
            const numbers value = of(a, (const double[]){uniform(-2, 2), uniform(-2, 2), uniform(-2, 2)}, E);
            assert_int_equal(a->push_key(&by_key, E, a->get(&score, 0), &value), ATTREE_OK);
            assert_int_equal(a->push(&by_block, E, 1, &score, &value, E), ATTREE_OK);
            expect_same_bits(a, "state", &by_key, &by_block, E + 2);
        }
        const numbers before = by_key;
        assert_int_equal(a->push(&by_key, E, 0, NULL, NULL, 0), ATTREE_OK);
        expect_same_bits(a, "state after no key", &by_key, &before, E + 2);
        by_key = empty_state(a, E);
        assert_int_equal(a->push(&by_key, E, 0, NULL, NULL, 0), ATTREE_OK);
        assert_true(a->get(&by_key, 0) == -INFINITY);
    }
}

/* ---- Merging ---- */

/* result apart from both, then in the place of left, then of right: the same bits. */
static void expect_merge(const algebra *a, const numbers *left, const numbers *right, const numbers *want,
                         int64_t v_width)
{
    const size_t count = attree_state_count(v_width);
    numbers l = *left, r = *right, result;
    memset(&result, 0xa5, sizeof result);
    assert_int_equal(a->merge(&result, &l, &r, v_width), ATTREE_OK);
    expect_same_bits(a, "result", &result, want, count);
    expect_same_bits(a, "left, which is only read", &l, left, count);
    expect_same_bits(a, "right, which is only read", &r, right, count);
    assert_int_equal(a->merge(&l, &l, &r, v_width), ATTREE_OK);
    expect_same_bits(a, "result in place of left", &l, want, count);
    l = *left;
    assert_int_equal(a->merge(&r, &l, &r, v_width), ATTREE_OK);
    expect_same_bits(a, "result in place of right", &r, want, count);
}

static void test_empty_is_neutral(void **unused)
{
    (void)unused;
    enum { E = 3 };
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        const numbers empty = empty_state(a, E);
        /* -0 and the smallest subnormal do not survive arithmetic in every mode; they must survive this. */
        const double smallest = i == 0 ? 0x1p-149 : 0x1p-1074;
        const numbers x = of(a, (const double[]){1.5, 1, 7, -0.0, smallest}, E + 2);
        const numbers doubled = of(a, (const double[]){1.5, 2, 14, -0.0, 2 * smallest}, E + 2);
        expect_merge(a, &empty, &empty, &empty, E);
        expect_merge(a, &empty, &x, &x, E);
        expect_merge(a, &x, &empty, &x, E);
        expect_merge(a, &x, &x, &doubled, E);

        numbers same = x; /* all three arguments one state */
        assert_int_equal(a->merge(&same, &same, &same, E), ATTREE_OK);
        expect_same_bits(a, "x with itself in place", &same, &doubled, E + 2);
        same = empty;
        assert_int_equal(a->merge(&same, &same, &same, E), ATTREE_OK);
        expect_same_bits(a, "empty with itself in place", &same, &empty, E + 2);
    }
}

/* Empty states anywhere in a list, and a list of nothing else. */
static void test_empty_in_a_list(void **unused)
{
    (void)unused;
    enum { E = 2, LIST = 5 };
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (unsigned full = 0; full < 1u << LIST; full++) { /* bit n: state n is not empty */
            const algebra *a = &algebras[i];
            numbers with = empty_state(a, E), without = with;
            const numbers empty = with;
            for (unsigned n = 0; n < LIST; n++) {
                const numbers x = of(a, (const double[]){3.0 * n - 0.7 * n * n, 1.0 + n, 0.5 - n, 2.0}, E + 2);
                const bool present = (full >> n & 1) != 0;
                assert_int_equal(a->merge(&with, &with, present ? &x : &empty, E), ATTREE_OK);
                if (present)
                    assert_int_equal(a->merge(&without, &without, &x, E), ATTREE_OK);
            }
            expect_same_bits(a, "merged list", &with, &without, E + 2);
        }
}

/* A state with all components of one sign, so that units in the last place mean something. */
static numbers random_state_at(const algebra *a, double m, int64_t v_width)
{
    numbers state = of(a, (const double[]){m, uniform(1, 100)}, 2);
    for (int64_t e = 0; e < v_width; e++)
        a->set(&state, 2 + (size_t)e, uniform(0.5, 200));
    return state;
}

static numbers merged(const algebra *a, const numbers *left, const numbers *right, int64_t v_width)
{
    numbers result = *left;
    assert_int_equal(a->merge(&result, left, right, v_width), ATTREE_OK);
    return result;
}

static void test_merge_in_place_has_the_same_bits(void **unused)
{
    (void)unused;
    enum { E = 5 };
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (int repeat = 0; repeat < 100; repeat++) {
            const algebra *a = &algebras[i];
            const numbers left = random_state_at(a, uniform(-5, 5), E), right = random_state_at(a, uniform(-5, 5), E);
            const numbers want = merged(a, &left, &right, E);
            expect_merge(a, &left, &right, &want, E);
        }
}

/* How far apart, in units in the last place of the larger. */
static double ulps_apart(const algebra *a, double x, double y)
{
    if (x == y)
        return 0.0;
    return fabs(x - y) / ldexp(a->epsilon, ilogb(fmax(fabs(x), fabs(y))));
}

static double most_ulps_apart(const algebra *a, const numbers *x, const numbers *y, size_t count)
{
    double most = 0.0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, ulps_apart(a, a->get(x, i), a->get(y, i)));
    return most;
}

static void test_merge_commutes_and_associates(void **unused)
{
    (void)unused;
    enum { E = 4 };
    const double differences[] = {0, 1e-8, 1, 50, 100, 1e4, 1e30};
    const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        double commuting = 0.0, associating = 0.0;
        for (size_t d = 0; d < COUNT_OF(differences); d++)
            for (size_t order = 0; order < COUNT_OF(orders); order++)
                for (int repeat = 0; repeat < 200; repeat++) {
                    numbers x[3];
                    for (size_t n = 0; n < 3; n++)
                        x[n] = random_state_at(a, differences[d] * orders[order][n], E);
                    const numbers xy = merged(a, &x[0], &x[1], E), yx = merged(a, &x[1], &x[0], E);
                    const numbers yz = merged(a, &x[1], &x[2], E);
                    const numbers left = merged(a, &xy, &x[2], E), right = merged(a, &x[0], &yz, E);
                    commuting = fmax(commuting, most_ulps_apart(a, &xy, &yx, E + 2));
                    associating = fmax(associating, most_ulps_apart(a, &left, &right, E + 2));
                }
        print_message("%s: merge commutes within %.2g ulp, associates within %.2g ulp\n", a->name, commuting,
                      associating);
        assert_true(commuting <= 2.0);
        assert_true(associating <= 2.0);
    }
}

/* At |m| = 1e5 the weights still depend on differences alone. */
static void test_merge_far_from_zero(void **unused)
{
    (void)unused;
    const double bases[] = {-1e5, 1e5};
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t b = 0; b < COUNT_OF(bases); b++) {
            const algebra *a = &algebras[i];
            const numbers x = of(a, (const double[]){bases[b], 1, 1, 0}, 4),
                          y = of(a, (const double[]){bases[b] + 1, 1, 0, 1}, 4);
            numbers both = merged(a, &x, &y, 2), o;
            assert_int_equal(a->finish(&both, 2, &o, NULL), ATTREE_OK);
            const double total = 1 + exp(-1), want[] = {exp(-1) / total, 1 / total};
            expect_near(a, "o", &o, want, 2);
        }
}

enum { CHAIN = 1000, CHAIN_WIDTH = 4 };

static numbers merge_as_tree(const algebra *a, const numbers *states, size_t count)
{
    if (count == 1)
        return states[0];
    const numbers left = merge_as_tree(a, states, count / 2);
    const numbers right = merge_as_tree(a, states + count / 2, count - count / 2);
    return merged(a, &left, &right, CHAIN_WIDTH);
}

/* 1000 states of one key each, merged from left to right and as a balanced tree.
 *
 * Bound. A state's share of l or u passes through at most 999 merges in either order. A merge multiplies it by a weight
 * and adds: with exp to 1 ulp (<= epsilon), one product and one fma (<= epsilon / 2 each), a factor 1 + 2 epsilon. A
 * weight's argument is rounded, to epsilon / 2 of itself; the arguments that a share meets add up to at most the range
 * 2 a (from its score to its first maximum, then up to the last one), so another a * epsilon. With |v| <= 2 that makes
 * the relative error of l, and the error of u against 2 l, r = (2 * 999 + a) * epsilon, to first order. o = u / l then
 * errs by 4 r in either order. */
static void test_chain_of_merges_equals_tree(void **unused)
{
    (void)unused;
    const double ranges[] = {1, 10, 1000};
    numbers *const states = calloc(CHAIN, sizeof *states);
    assert_non_null(states);
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t r = 0; r < COUNT_OF(ranges); r++) {
            const algebra *a = &algebras[i];
            for (size_t n = 0; n < CHAIN; n++) {
                numbers value = of(a, NULL, 0);
                for (size_t e = 0; e < CHAIN_WIDTH; e++)
                    a->set(&value, e, uniform(-2, 2));
                states[n] = empty_state(a, CHAIN_WIDTH);
                assert_int_equal(a->push_key(&states[n], CHAIN_WIDTH, uniform(-ranges[r], ranges[r]), &value),
                                 ATTREE_OK);
            }
            numbers chain = states[0], chain_o, tree_o;
            for (size_t n = 1; n < CHAIN; n++)
                chain = merged(a, &chain, &states[n], CHAIN_WIDTH);
            const numbers tree = merge_as_tree(a, states, CHAIN);
            assert_int_equal(a->finish(&chain, CHAIN_WIDTH, &chain_o, NULL), ATTREE_OK);
            assert_int_equal(a->finish(&tree, CHAIN_WIDTH, &tree_o, NULL), ATTREE_OK);

            const double relative = (2.0 * (CHAIN - 1) + ranges[r]) * a->epsilon;
            double got[CHAIN_WIDTH], want[CHAIN_WIDTH];
            for (size_t e = 0; e < CHAIN_WIDTH; e++) {
                got[e] = a->get(&chain_o, e);
                want[e] = a->get(&tree_o, e);
            }
            assert_true(a->get(&chain, 0) == a->get(&tree, 0));
            assert_true(fabs(a->get(&chain, 1) / a->get(&tree, 1) - 1) <= 2 * relative);
            expect_within("o of a chain", got, want, CHAIN_WIDTH, 8 * relative);
        }
    free(states);
}

/* ---- Errors ---- */

static void test_finishing_an_empty_state(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        const numbers state = empty_state(a, 2), before = of(a, (const double[]){5, 6}, 2);
        numbers o = before, lse = before;
        forget_last_error();
        expect_error("finish", a->finish(&state, 2, &o, &lse), ATTREE_ERROR_EMPTY, "state");
        expect_same_bits(a, "o", &o, &before, 2);
        expect_same_bits(a, "lse", &lse, &before, 2);
        expect_error("finish without lse", a->finish(&state, 2, &o, NULL), ATTREE_ERROR_EMPTY, "state");
    }
}

static const double not_finite[] = {NAN, INFINITY, -INFINITY};

/* A bad number anywhere in a block of good ones. Position n * E + e is component e of value n. */
static void check_bad_block(const algebra *a, const numbers *before, bool in_score, size_t position, double bad)
{
    enum { N = 40, E = 3 };
    numbers state = *before, scores, values;
    for (size_t n = 0; n < N * E; n++) {
        a->set(&scores, n, uniform(-3, 3));
        a->set(&values, n, uniform(-3, 3));
    }
    a->set(in_score ? &scores : &values, position, bad);
    forget_last_error();
    expect_error("push", a->push(&state, E, N, &scores, &values, E), ATTREE_ERROR_NONFINITE,
                 in_score ? "score" : "value");
    expect_same_bits(a, "state", &state, before, E + 2);
    if (in_score ? position > 0 : position >= E)
        return;
    forget_last_error();
    expect_error("push_key", a->push_key(&state, E, a->get(&scores, 0), &values), ATTREE_ERROR_NONFINITE,
                 in_score ? "score" : "value");
    expect_same_bits(a, "state", &state, before, E + 2);
}

static void test_push_of_nonfinite_numbers(void **unused)
{
    (void)unused;
    const size_t score_positions[] = {0, 20, 39}, value_positions[] = {0, 1, 2, 61, 117, 119};
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        const numbers states[] = {empty_state(a, 3), of(a, (const double[]){1.5, 2.5, 3, -4, 5}, 5)};
        for (size_t s = 0; s < COUNT_OF(states); s++)
            for (size_t b = 0; b < COUNT_OF(not_finite); b++) {
                for (size_t p = 0; p < COUNT_OF(score_positions); p++)
                    check_bad_block(a, &states[s], true, score_positions[p], not_finite[b]);
                for (size_t p = 0; p < COUNT_OF(value_positions); p++)
                    check_bad_block(a, &states[s], false, value_positions[p], not_finite[b]);
            }
    }
}

/* Numbers between the values of two keys are padding: nobody reads them. */
static void test_nonfinite_padding_is_not_read(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers state = empty_state(a, 2), o;
        const numbers scores = of(a, (const double[]){0, 0, NAN}, 3);
        const numbers values = of(a, (const double[]){1, 2, NAN, 3, 4, INFINITY}, 6);
        assert_int_equal(a->push(&state, 2, 2, &scores, &values, 3), ATTREE_OK);
        assert_int_equal(a->finish(&state, 2, &o, NULL), ATTREE_OK);
        assert_true(a->get(&o, 0) == 2.0 && a->get(&o, 1) == 3.0);
    }
}

/* States that no sequence of pushes makes; some other programs mark an empty state with +inf. */
static void test_merge_refuses_broken_states(void **unused)
{
    (void)unused;
    const double broken[][4] = {{INFINITY, 0, 0, 0}, {INFINITY, 1, 1, 1}, {NAN, 1, 1, 1}, {0, NAN, 1, 1}};
    for (size_t i = 0; i < ALGEBRAS; i++)
        for (size_t b = 0; b < COUNT_OF(broken); b++) {
            const algebra *a = &algebras[i];
            const numbers bad = of(a, broken[b], 4),
                          partners[] = {of(a, (const double[]){1, 2, 3, 4}, 4), empty_state(a, 2)};
            for (size_t p = 0; p < COUNT_OF(partners); p++) {
                const numbers good = partners[p];
                numbers result = good;
                forget_last_error();
                expect_error("bad left", a->merge(&result, &bad, &good, 2), ATTREE_ERROR_NONFINITE, "left");
                expect_same_bits(a, "result", &result, &good, 4);
                expect_error("bad left in place of right", a->merge(&result, &bad, &result, 2), ATTREE_ERROR_NONFINITE,
                             "left");
                expect_same_bits(a, "result", &result, &good, 4);
                forget_last_error();
                expect_error("bad right", a->merge(&result, &good, &bad, 2), ATTREE_ERROR_NONFINITE, "right");
                expect_same_bits(a, "result", &result, &good, 4);
                result = bad;
                expect_error("bad right in place", a->merge(&result, &good, &result, 2), ATTREE_ERROR_NONFINITE,
                             "right");
                expect_same_bits(a, "result", &result, &bad, 4);
            }
        }
}

static void test_null_pointers(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        const numbers before = of(a, (const double[]){1, 2, 3, 4}, 4);
        numbers x = before, y = before;
        forget_last_error();
        expect_error("init", a->init(NULL, 2), ATTREE_ERROR_NULL, "state");
        forget_last_error();
        expect_error("push", a->push(NULL, 2, 1, &y, &y, 2), ATTREE_ERROR_NULL, "state");
        expect_error("push", a->push(&x, 2, 1, NULL, &y, 2), ATTREE_ERROR_NULL, "scores");
        expect_error("push", a->push(&x, 2, 1, &y, NULL, 2), ATTREE_ERROR_NULL, "values");
        forget_last_error();
        expect_error("push_key", a->push_key(NULL, 2, 1, &y), ATTREE_ERROR_NULL, "state");
        expect_error("push_key", a->push_key(&x, 2, 1, NULL), ATTREE_ERROR_NULL, "value");
        expect_error("merge", a->merge(NULL, &x, &y, 2), ATTREE_ERROR_NULL, "result");
        expect_error("merge", a->merge(&x, NULL, &y, 2), ATTREE_ERROR_NULL, "left");
        expect_error("merge", a->merge(&x, &y, NULL, 2), ATTREE_ERROR_NULL, "right");
        expect_error("finish", a->finish(NULL, 2, &x, &y), ATTREE_ERROR_NULL, "state");
        expect_error("finish", a->finish(&y, 2, NULL, &x), ATTREE_ERROR_NULL, "o");
        expect_same_bits(a, "state", &x, &before, 4);
        expect_same_bits(a, "state", &y, &before, 4);
    }
}

static void test_misaligned_pointers(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        const numbers before = of(a, (const double[]){1, 2, 3, 4, 5, 6}, 6);
        numbers x = before, y = before;
        for (size_t shift = 1; shift < a->size; shift++) {
            char *const off = (char *)&x + shift;
            forget_last_error();
            expect_error("init", a->init(off, 2), ATTREE_ERROR_ALIGN, "state");
            forget_last_error();
            expect_error("push", a->push(off, 2, 1, &y, &y, 2), ATTREE_ERROR_ALIGN, "state");
            expect_error("push", a->push(&y, 2, 1, off, &x, 2), ATTREE_ERROR_ALIGN, "scores");
            expect_error("push", a->push(&y, 2, 1, &x, off, 2), ATTREE_ERROR_ALIGN, "values");
            forget_last_error();
            expect_error("push_key", a->push_key(off, 2, 1, &y), ATTREE_ERROR_ALIGN, "state");
            expect_error("push_key", a->push_key(&y, 2, 1, off), ATTREE_ERROR_ALIGN, "value");
            expect_error("merge", a->merge(off, &y, &y, 2), ATTREE_ERROR_ALIGN, "result");
            expect_error("merge", a->merge(&y, off, &y, 2), ATTREE_ERROR_ALIGN, "left");
            expect_error("merge", a->merge(&y, &y, off, 2), ATTREE_ERROR_ALIGN, "right");
            expect_error("finish", a->finish(off, 2, &y, NULL), ATTREE_ERROR_ALIGN, "state");
            expect_error("finish", a->finish(&y, 2, off, NULL), ATTREE_ERROR_ALIGN, "o");
            expect_error("finish", a->finish(&y, 2, &x, off), ATTREE_ERROR_ALIGN, "lse");
            expect_same_bits(a, "memory", &x, &before, 6);
            expect_same_bits(a, "memory", &y, &before, 6);
        }
    }
}

static void test_impossible_sizes(void **unused)
{
    (void)unused;
    const int64_t widths[] = {0, -1, INT64_MIN, INT64_MAX}, counts[] = {-1, INT64_MIN},
                  strides[] = {INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        const numbers before = of(a, (const double[]){1, 2, 3, 4, 5, 6}, 6);
        numbers x = before, y = before;
        for (size_t w = 0; w < COUNT_OF(widths); w++) {
            forget_last_error();
            expect_error("init", a->init(&x, widths[w]), ATTREE_ERROR_SHAPE, "v_width");
            forget_last_error();
            expect_error("push", a->push(&x, widths[w], 1, &y, &y, 2), ATTREE_ERROR_SHAPE, "v_width");
            forget_last_error();
            expect_error("push_key", a->push_key(&x, widths[w], 1, &y), ATTREE_ERROR_SHAPE, "v_width");
            forget_last_error();
            expect_error("merge", a->merge(&x, &y, &y, widths[w]), ATTREE_ERROR_SHAPE, "v_width");
            forget_last_error();
            expect_error("finish", a->finish(&y, widths[w], &x, NULL), ATTREE_ERROR_SHAPE, "v_width");
        }
        for (size_t n = 0; n < COUNT_OF(counts); n++)
            expect_error("push", a->push(&x, 2, counts[n], &y, &y, 2), ATTREE_ERROR_SHAPE, "n");
        for (size_t s = 0; s < COUNT_OF(strides); s++)
            expect_error("push", a->push(&x, 2, 3, &y, &y, strides[s]), ATTREE_ERROR_OVERFLOW, "value_stride");
        expect_same_bits(a, "memory", &x, &before, 6);
        expect_same_bits(a, "memory", &y, &before, 6);
        numbers one = empty_state(a, 2); /* the stride to a second key that is not there */
        assert_int_equal(a->push(&one, 2, 1, &y, &y, INT64_MAX), ATTREE_OK);
    }
}

/* ---- The same bits as attention ---- */

enum { BLOCK = 256, LONG = 700, WIDEST = 65 };

/* One query that is 1, D = 1, scale 1: the scores are the keys. */
static void attend(int64_t keys, int64_t v_width, const float *k, const float *v, float *o, float *lse)
{
    const float one = 1.0f;
    const attree_desc desc = {.size = sizeof desc,
                              .batch = 1,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .q_len = 1,
                              .kv_len = keys,
                              .qk_width = 1,
                              .v_width = v_width,
                              .flags = ATTREE_USE_SCALE,
                              .scale = 1.0f};
    const attree_args args = {.size = sizeof args, .q = &one, .k = k, .v = v, .o = o, .lse = lse};
    assert_int_equal(attree_attention(&desc, &args), ATTREE_OK);
}

static void expect_bits_of_attention(const float *state, int64_t keys, int64_t v_width, const float *k, const float *v)
{
    float o[WIDEST], lse, want_o[WIDEST], want_lse;
    attend(keys, v_width, k, v, want_o, &want_lse);
    assert_int_equal(attree_state_finish_f32(state, v_width, o, &lse), ATTREE_OK);
    assert_memory_equal(o, want_o, (size_t)v_width * sizeof *o);
    assert_memory_equal(&lse, &want_lse, sizeof lse);
}

static void fill(float *to, size_t count, double low, double high)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)uniform(low, high);
}

static void test_block_has_the_bits_of_attention(void **unused)
{
    (void)unused;
    const int64_t keys[] = {1, 2, 15, 16, 17, 100, 255, 256}, widths[] = {1, 3, 8, 16, 17, 64, WIDEST};
    const double ranges[] = {0.01, 1, 30, 100}; /* the last reaches weights that are cut off */
    static float k[BLOCK], v[BLOCK * WIDEST];
    float state[WIDEST + 2];
    for (size_t n = 0; n < COUNT_OF(keys); n++)
        for (size_t e = 0; e < COUNT_OF(widths); e++)
            for (size_t r = 0; r < COUNT_OF(ranges); r++) {
                fill(k, BLOCK, -ranges[r], ranges[r]);
                fill(v, BLOCK * WIDEST, -2, 2);
                assert_int_equal(attree_state_init_f32(state, widths[e]), ATTREE_OK);
                assert_int_equal(attree_state_push_f32(state, widths[e], keys[n], k, v, widths[e]), ATTREE_OK);
                expect_bits_of_attention(state, keys[n], widths[e], k, v);
            }
}

/* 700 keys are three blocks; the tree over three leaves is (0, 1), 2. */
static void test_merged_blocks_have_the_bits_of_attention(void **unused)
{
    (void)unused;
    enum { E = 17 };
    static float k[LONG], v[LONG * E];
    float state[3][E + 2];
    for (int repeat = 0; repeat < 20; repeat++) {
        fill(k, LONG, -20, 20);
        fill(v, COUNT_OF(v), -2, 2);
        for (size_t b = 0; b < 3; b++) {
            const int64_t count = b < 2 ? BLOCK : LONG - 2 * BLOCK;
            assert_int_equal(attree_state_init_f32(state[b], E), ATTREE_OK);
            assert_int_equal(attree_state_push_f32(state[b], E, count, k + b * BLOCK, v + b * BLOCK * E, E), ATTREE_OK);
        }
        assert_int_equal(attree_state_merge_f32(state[0], state[0], state[1], E), ATTREE_OK);
        assert_int_equal(attree_state_merge_f32(state[0], state[0], state[2], E), ATTREE_OK);
        expect_bits_of_attention(state[0], LONG, E, k, v);
    }
}

/* ---- The caller's rounding mode ---- */

static const int rounding_modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

/* Whether arithmetic rounds as `mode` says. fegetround may read another unit's mode than the one that does the sums. */
static bool rounds_as(int mode)
{
    volatile float one = 1.0f, tiny = 0x1p-40f, sum = one + tiny, difference = -one + tiny;
    const bool up = sum > 1.0f, toward_zero = difference > -1.0f;
    switch (mode) {
    case FE_UPWARD: return up && toward_zero;
    case FE_DOWNWARD: return !up && !toward_zero;
    case FE_TOWARDZERO: return !up && toward_zero;
    default: return !up && !toward_zero && -one - tiny == -1.0f;
    }
}

static void expect_mode(int mode)
{
    assert_int_equal(fegetround(), mode);
    assert_true(rounds_as(mode));
}

/* Everything there is to do with a state; results go to out, 4 * (E + 2) numbers. */
static void exercise(const algebra *a, int mode, const numbers *scores, const numbers *values, numbers *out)
{
    enum { E = 5, N = 50, STATE = E + 2 };
    memset(out, 0, sizeof *out);
    void *const first = out, *const second = at(a, out, STATE), *const both = at(a, out, 2 * STATE);
    void *const o = at(a, out, 3 * STATE), *const lse = at(a, out, 3 * STATE + E);
    attree_status status[8];
    status[0] = a->init(first, E);
    status[1] = a->init(second, E);
    status[2] = a->push(first, E, N, scores, values, E);
    expect_mode(mode);
    status[3] = a->push_key(second, E, 0.3125, values);
    expect_mode(mode);
    status[4] = a->push(second, E, N - 10, scores, values, E);
    status[5] = a->merge(both, first, second, E);
    expect_mode(mode);
    status[6] = a->finish(both, E, o, lse);
    expect_mode(mode);
    status[7] = a->push(both, E, -1, scores, values, E); /* an error keeps it, too */
    expect_mode(mode);
    for (size_t i = 0; i < COUNT_OF(status); i++)
        assert_int_equal(status[i], i < 7 ? ATTREE_OK : ATTREE_ERROR_SHAPE);
}

static void test_state_ignores_the_callers_rounding(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < ALGEBRAS; i++) {
        const algebra *a = &algebras[i];
        numbers scores, values, want, got;
        for (size_t n = 0; n < NUMBERS; n++) {
            a->set(&scores, n, uniform(-5, 5));
            a->set(&values, n, uniform(-2, 2));
        }
        exercise(a, FE_TONEAREST, &scores, &values, &want);
        for (size_t m = 0; m < COUNT_OF(rounding_modes); m++) {
            assert_int_equal(fesetround(rounding_modes[m]), 0);
            exercise(a, rounding_modes[m], &scores, &values, &got);
            assert_int_equal(fesetround(FE_TONEAREST), 0);
            expect_same_bits(a, "results under another rounding mode", &got, &want, 4 * 7);
        }
    }
}

/* Enough work for several workers; the scale, 1 / sqrt(D), is not exact for any of these D. */
static void test_attention_ignores_the_callers_rounding(void **unused)
{
    (void)unused;
    enum { Q = 70, K = 600, D_MOST = 13, E = 16 };
    static float q[Q * D_MOST], k[K * D_MOST], v[K * E], want[Q * (E + 1)], got[Q * (E + 1)];
    fill(q, COUNT_OF(q), -2, 2);
    fill(k, COUNT_OF(k), -2, 2);
    fill(v, COUNT_OF(v), -2, 2);
    const int64_t widths[] = {3, 5, 6, 7, 10, 11, D_MOST};
    for (size_t d = 0; d < COUNT_OF(widths); d++)
        for (int32_t threads = 1; threads <= 3; threads += 2)
            for (size_t m = 0; m < COUNT_OF(rounding_modes); m++) {
                const attree_desc desc = {.size = sizeof desc,
                                          .batch = 1,
                                          .q_heads = 1,
                                          .kv_heads = 1,
                                          .q_len = Q,
                                          .kv_len = K,
                                          .qk_width = widths[d],
                                          .v_width = E,
                                          .threads = threads};
                float *const out = m == 0 ? want : got;
                const attree_args args = {.size = sizeof args, .q = q, .k = k, .v = v, .o = out, .lse = out + Q * E};
                assert_int_equal(fesetround(rounding_modes[m]), 0);
                const attree_status status = attree_attention(&desc, &args);
                expect_mode(rounding_modes[m]);
                assert_int_equal(fesetround(FE_TONEAREST), 0);
                assert_int_equal(status, ATTREE_OK);
                if (memcmp(out, want, sizeof want) != 0)
                    fail_msg("D = %" PRId64 ", %" PRId32 " threads, rounding mode 0x%x: other bits", widths[d], threads,
                             (unsigned)rounding_modes[m]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_numbers),
        cmocka_unit_test(test_shifted_scores),
        cmocka_unit_test(test_scores_beyond_the_range_of_exp),
        cmocka_unit_test(test_lowest_finite_score),
        cmocka_unit_test(test_small_weights),
        cmocka_unit_test(test_scale_of_what_was_there),
        cmocka_unit_test(test_rescaling_l_but_not_u),
        cmocka_unit_test(test_queries_are_independent),
        cmocka_unit_test(test_257_keys),
        cmocka_unit_test(test_state_size),
        cmocka_unit_test(test_state_keeps_within_its_numbers),
        cmocka_unit_test(test_empty_state_is_as_documented),
        cmocka_unit_test(test_value_stride),
        cmocka_unit_test(test_push_of_one_key_and_of_none),
        cmocka_unit_test(test_empty_is_neutral),
        cmocka_unit_test(test_empty_in_a_list),
        cmocka_unit_test(test_merge_in_place_has_the_same_bits),
        cmocka_unit_test(test_merge_commutes_and_associates),
        cmocka_unit_test(test_merge_far_from_zero),
        cmocka_unit_test(test_chain_of_merges_equals_tree),
        cmocka_unit_test(test_finishing_an_empty_state),
        cmocka_unit_test(test_push_of_nonfinite_numbers),
        cmocka_unit_test(test_nonfinite_padding_is_not_read),
        cmocka_unit_test(test_merge_refuses_broken_states),
        cmocka_unit_test(test_null_pointers),
        cmocka_unit_test(test_misaligned_pointers),
        cmocka_unit_test(test_impossible_sizes),
        cmocka_unit_test(test_block_has_the_bits_of_attention),
        cmocka_unit_test(test_merged_blocks_have_the_bits_of_attention),
        cmocka_unit_test(test_state_ignores_the_callers_rounding),
        cmocka_unit_test(test_attention_ignores_the_callers_rounding),
    };
    return cmocka_run_group_tests_name("state", tests, NULL, NULL);
}
