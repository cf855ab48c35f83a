/* Errors against a wide oracle, and the reordering bound: the tree's order against one running state fed key by key.
 *
 * Write eps = 2^-24 (the unit roundoff of f32) and take the same f32 scores on both sides, so that only the order of
 * combining differs. To first order in eps, u[e] of a row accumulates, relative to sum_j p_j |v_j[e]|:
 *
 *   sequential, key by key (attree_state_push_key): key j's contribution is rounded once in its weight and its product,
 *     then once in each of the later fma and, when the maximum moves, once more in the rescaling and in the factor,
 * whose exp errs by 1 ulp = 2 eps and whose argument s - m errs by eps |s - m|. With n keys: at most (4 n + c) eps.
 *   tree: 256 fma in a block, then 2 roundings and 1 exp factor in each of ceil(log2 blocks) levels:
 *     (256 + 5 levels + c) eps.
 *
 * l has the same bounds. The arguments t = s - m of exp err by eps |t| absolutely, which is a relative error eps |t| of
 * a weight exp(t); the weighted mean of |t| is at most T = min(range of scores, log n + 1) on the data here. c = 8
 * covers the weight's own error (3 eps), the division and the last step. So with A = sum p |v| / l, against exact
 * arithmetic on the same scores,
 *
 *   |o - exact|     <= eps A (2 (256 + 5 levels + 8) + 3 T levels')   for the tree,       levels' = levels + 1
 *   |o - sequential| <= the same + eps A (2 (4 n + 8) + 3 T log2 n)     for the difference of the two orders.
 *
 * The factor 2 is for u and l, each of which may err. */
#include <math.h>
#include <stdlib.h>

#include "support.h"

enum { WIDTH = 3 };
#define EPS 0x1p-24

typedef struct error {
    double value, bound; /* the worst component: error, and bound of that component */
} error;

static double ratio(error e) { return e.bound > 0.0 ? e.value / e.bound : 0.0; }

/* Keys whose scores are exactly their only component (q = 1, scale = 1), so that both orders see the same f32 scores.
 */
static void measure(int64_t keys, float range, error *tree, error *reorder)
{
    attree_desc d = make_desc(1, 1, 1, 1, keys, 1, WIDTH);
    d.flags = ATTREE_USE_SCALE;
    d.scale = 1.0f;
    tensors t = make_tensors(&d, (uint64_t)keys);
    random_source random = {(uint64_t)keys * 2 + 77};
    fill_random(t.k, t.k_count, &random, -range, range);
    t.q[0] = 1.0f;
    run_tensors(&d, &t);

    float running[WIDTH + 2], sequential[WIDTH];
    assert_int_equal(attree_state_init_f32(running, WIDTH), ATTREE_OK);
    for (int64_t j = 0; j < keys; j++)
        assert_int_equal(attree_state_push_key_f32(running, WIDTH, t.k[j], t.v + j * WIDTH), ATTREE_OK);
    assert_int_equal(attree_state_finish_f32(running, WIDTH, sequential, NULL), ATTREE_OK);

    wide o[WIDTH];
    const double lse = (double)oracle_row(&d, &t, 0, 0, 0, o);
    double spread[WIDTH] = {0.0}; /* A: sum p |v| / l */
    for (int64_t j = 0; j < keys; j++)
        for (int e = 0; e < WIDTH; e++)
            spread[e] += exp((double)t.k[j] - lse) * fabs((double)t.v[j * WIDTH + e]);

    const double n = (double)keys, levels = ceil(log2(ceil(n / 256.0)));
    const double mean_t = fmin(2.0 * (double)range, log(n) + 1.0);
    *tree = *reorder = (error){0.0, 0.0};
    for (int e = 0; e < WIDTH; e++) {
        const double tree_bound =
            EPS * spread[e] * (2.0 * (256.0 + 5.0 * levels + 8.0) + 3.0 * mean_t * (levels + 1.0));
        const double order_bound =
            tree_bound + EPS * spread[e] * (2.0 * (4.0 * n + 8.0) + 3.0 * mean_t * log2(n + 1.0));
        const error to_oracle = {fabs((double)((wide)t.o[e] - o[e])), tree_bound};
        const error to_sequential = {fabs((double)t.o[e] - (double)sequential[e]), order_bound};
        if (ratio(to_oracle) >= ratio(*tree))
            *tree = to_oracle;
        if (ratio(to_sequential) >= ratio(*reorder))
            *reorder = to_sequential;
        const error sequential_to_oracle = {fabs((double)((wide)sequential[e] - o[e])), order_bound};
        assert_true(sequential_to_oracle.value <= sequential_to_oracle.bound);
    }
    assert_true(close_to((double)t.lse[0], lse, EPS * (fabs(lse) + 2.0 * (256.0 + 5.0 * levels + 8.0))));
    free_tensors(&t);
}

static void reordering_error_stays_within_its_bound(void **state)
{
    (void)state;
    const int64_t counts[] = {1, 2, 255, 256, 257, 1000, 4096, 65536};
    const float ranges[] = {1.0f, 10.0f, 1000.0f};
    print_message("%8s %8s %12s %8s %12s %8s\n", "keys", "scores", "tree error", "/bound", "reorder", "/bound");
    for (int n = 0; n < 8; n++)
        for (int a = 0; a < 3; a++) {
            error tree, reorder;
            measure(counts[n], ranges[a], &tree, &reorder);
            print_message("%8lld %8g %12.3g %8.4f %12.3g %8.4f\n", (long long)counts[n], (double)ranges[a], tree.value,
                          ratio(tree), reorder.value, ratio(reorder));
            assert_true(tree.value <= tree.bound);
            assert_true(reorder.value <= reorder.bound);
        }
}

/* Whole problems against the oracle, computed scores included: a few ulp of the values' size. */
static void attention_is_close_to_the_oracle(void **state)
{
    (void)state;
    const int64_t shapes[][7] = {
        {2, 4, 2, 9, 40, 8, 10}, {1, 3, 1, 2, 1000, 64, 64}, {1, 1, 1, 70, 70, 300, 5}, {1, 2, 2, 1, 5000, 16, 1}};
    for (int n = 0; n < 8; n++) {
        const int64_t *s = shapes[n / 2];
        attree_desc d = make_desc(s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
        d.flags = n % 2 ? ATTREE_CAUSAL : 0;
        tensors t = make_tensors(&d, (uint64_t)n);
        run_tensors(&d, &t);
        for (int64_t row = 0; row < t.lse_count; row++) {
            wide o[64];
            const wide lse = oracle_row(&d, &t, row / (s[1] * s[3]), row / s[3] % s[1], row % s[3], o);
            for (int64_t e = 0; e < s[6]; e++)
                assert_true(close_to((double)t.o[row * s[6] + e], (double)o[e], 1e-6));
            assert_true(close_to((double)t.lse[row], (double)lse, 2e-6));
        }
        free_tensors(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reordering_error_stays_within_its_bound),
        cmocka_unit_test(attention_is_close_to_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
