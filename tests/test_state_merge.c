/* Merging states: neutrality, order, trees; and what the state algebra refuses. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests_name("state_merge", tests, NULL, NULL);
}
