/* The public state algebra: worked numbers, accuracy, sizes. Nearly every test runs in f32 and in f64. */
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

#include "states.h"

#ifndef ATTREE_TEST_DATA
#define ATTREE_TEST_DATA "tests/data"
#endif

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
    };
    return cmocka_run_group_tests_name("state", tests, NULL, NULL);
}
