/* Errors against a wide oracle, and what the tree's order changes, each divided by its bound. The bounds, their
 * derivation and the letters used here are in accuracy.md.
 *
 *   test_accuracy          a few seconds of cases
 *   test_accuracy long     up to 1,048,576 keys
 *   test_accuracy K D      K keys of width D; 1048576 576 takes a quarter of an hour and 3 GB
 *   test_accuracy --csv    no test: numbers for scripts/plot_accuracy.py */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/kernel.h"
#include "../src/tree.h"
#include "support.h"

enum { WIDTH = 5 };
#define EPS 0x1p-24                      /* unit roundoff of f32 */
#define EPS1 (0x1p-24 / (1.0 - 0x1p-23)) /* n roundings, or n/2 exp, change a number by a factor exp(+-n EPS1) */
#define SLACK (1.0 + 0x1p-20)            /* the bounds are evaluated in double */

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

typedef enum score_set { UNIFORM, LAST, CANCEL, EQUAL, OUTLIER, DESCENDING, ASCENDING, SETS } score_set;
static const char *const set_names[SETS] = {"uniform", "last", "cancel", "equal", "outlier", "descend", "ascend"};

typedef struct one_row {
    score_set set;
    float range; /* scores lie in +-range, but for an outlier */
    int64_t keys, width;
    attree_desc desc;
    tensors t;
    /* Per key. Two kinds of scores: exact ones, and those of step 1, which both orders share. */
    double *exact, *given;
    double *delta;               /* bound of |given - exact| */
    double *of_exact, *of_given; /* softmax */
    double lse_given, largest_given, largest_delta, spread_of_scores;
} one_row;

/* The score that a set wants key j to have. */
static float wanted_score(const one_row *r, int64_t j, random_source *random)
{
    const float a = r->range, at = r->keys > 1 ? (float)j / (float)(r->keys - 1) : 1.0f;
    switch (r->set) {
    case LAST: /* the maximum of a block comes last, and that of the last block is the largest */
        return j % ATTREE__BLOCK == ATTREE__BLOCK - 1 || j == r->keys - 1 ? a * (0.5f + 0.5f * at)
                                                                          : random_float(random, -a, 0.5f * a);
    case EQUAL: return a;
    case OUTLIER: return j == r->keys / 2 ? 8.0f * a : random_float(random, -a, a);
    case DESCENDING: return a * (1.0f - 2.0f * at);
    case ASCENDING: return a * (2.0f * at - 1.0f);
    default: return random_float(random, -a, a);
    }
}

/* Keys with about the scores wanted; in some sets with products q[c] * k[c] that largely cancel. */
static void make_keys(one_row *r, double scale, random_source *random)
{
    float *const q = r->t.q;
    double norm = 0.0;
    for (int64_t c = 0; c < r->width; c++) {
        q[c] = random_float(random, 0.5f, 1.0f) * (c % 3 == 1 ? -1.0f : 1.0f);
        norm += (double)q[c] * (double)q[c];
    }
    const bool noisy = r->set == UNIFORM || r->set == LAST || r->set == OUTLIER;
    for (int64_t j = 0; j < r->keys; j++) {
        float *const k = r->t.k + j * r->width;
        if (r->set == CANCEL && j % 2 == 1) { /* as the key before it */
            memcpy(k, k - r->width, (size_t)r->width * sizeof *k);
            continue;
        }
        const float wanted = wanted_score(r, j, random);
        for (int64_t c = 0; c < r->width; c++)
            k[c] = (float)((double)wanted * (double)q[c] / (scale * norm));
        const float noise = (float)((double)r->range / (scale * (double)r->width));
        for (int64_t c = 0; c + 1 < r->width && noisy; c += 2) {
            const float z = random_float(random, -2.0f * noise, 2.0f * noise);
            k[c] += z * q[c + 1];
            k[c + 1] -= z * q[c];
        }
    }
}

/* Columns: random signs; positive; of very different sizes; and two whose partial sums all err to one side when the
 * weights are 1: in blocks of 256 keys, and in one sum of all keys. */
static void make_values(one_row *r, random_source *random)
{
    for (int64_t j = 0; j < r->keys; j++) {
        float *const v = r->t.v + j * WIDTH;
        v[0] = random_float(random, -1.0f, 1.0f);
        v[1] = random_float(random, 1.0f, 2.0f);
        v[2] = ldexpf(random_float(random, -1.0f, 1.0f), (int)random_integer(random, -10, 10));
        v[3] = 1.0f + 63.0f * 0x1p-23f;
        v[4] = 1.0f + floorf((float)r->keys * 0.25f) * 0x1p-23f - 0x1p-23f;
        if (r->set == OUTLIER && j == r->keys / 2)
            v[0] *= 1000.0f;
        if (r->set == CANCEL && j % 2 == 1)
            for (int e = 0; e < WIDTH; e++)
                v[e] = -v[e - WIDTH];
    }
}

static double *doubles(int64_t count)
{
    double *const numbers = calloc((size_t)count, sizeof *numbers);
    assert_non_null(numbers);
    return numbers;
}

/* n roundings: |product of (1 + d_i) - 1| <= gamma(n). */
static double gamma_of(double n) { return n * EPS / (1.0 - n * EPS); }

/* Returns lse. */
static double softmax(double *p, const double *s, int64_t keys)
{
    double m = -INFINITY, l = 0.0;
    for (int64_t j = 0; j < keys; j++)
        m = fmax(m, s[j]);
    for (int64_t j = 0; j < keys; j++)
        l += p[j] = exp(s[j] - m);
    for (int64_t j = 0; j < keys; j++)
        p[j] /= l;
    return m + log(l);
}

static void make_scores(one_row *r, float scale)
{
    double smallest = INFINITY;
    r->largest_given = -INFINITY;
    for (int64_t j = 0; j < r->keys; j++) {
        const float *const q = r->t.q, *const k = r->t.k + j * r->width;
        float sum = 0.0f; /* step 1 of the contract */
        double exact = 0.0, sizes = 0.0;
        for (int64_t c = 0; c < r->width; c++) {
            const double product = (double)q[c] * (double)k[c];
            sum = fmaf(q[c], k[c], sum);
            exact += product;
            sizes += fabs(product);
        }
        r->given[j] = (double)(sum * scale);
        r->exact[j] = exact * (double)scale;
        r->delta[j] = gamma_of((double)r->width + 1.0) * sizes * (double)scale + (double)(r->width + 1) * 0x1p-149;
        r->largest_given = fmax(r->largest_given, r->given[j]);
        smallest = fmin(smallest, r->given[j]);
        r->largest_delta = fmax(r->largest_delta, r->delta[j]);
    }
    r->spread_of_scores = r->largest_given - smallest;
    softmax(r->of_exact, r->exact, r->keys);
    r->lse_given = softmax(r->of_given, r->given, r->keys);
}

static one_row make_row(score_set set, float range, int64_t keys, int64_t width)
{
    one_row r = {.set = set, .range = range, .keys = keys, .width = width};
    r.desc = make_desc(1, 1, 1, 1, keys, width, WIDTH);
    r.t = make_tensors(&r.desc, 1);
    random_source random = {(uint64_t)(keys * 1000 + width) * 2 + 1};
    const float scale = 1.0f / sqrtf((float)width);
    make_keys(&r, (double)scale, &random);
    make_values(&r, &random);
    double **const arrays[] = {&r.exact, &r.given, &r.delta, &r.of_exact, &r.of_given};
    for (int i = 0; i < 5; i++)
        *arrays[i] = doubles(keys);
    make_scores(&r, scale);
    return r;
}

static void free_row(one_row *r)
{
    free(r->exact);
    free(r->given);
    free(r->delta);
    free(r->of_exact);
    free(r->of_given);
    free_tensors(&r->t);
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* What may round a key's part of u and of l, and exp other than exp(0) in its weight, on its way to the result. */
typedef struct way {
    int32_t u, l, factors;
} way;

static void add_to_ways(way *ways, int64_t keys, int32_t roundings, int32_t factors)
{
    for (int64_t j = 0; j < keys; j++) {
        ways[j].u += roundings;
        ways[j].l += roundings;
        ways[j].factors += factors;
    }
}

static float block_way(const one_row *r, int64_t first, int64_t keys, way *ways)
{
    double m = -INFINITY;
    for (int64_t j = first; j < first + keys; j++)
        m = fmax(m, r->given[j]);
    const int64_t steps = (keys + ATTREE__LANES - 1) / ATTREE__LANES;
    for (int64_t i = 0; i < keys; i++) {
        const int64_t step = i / ATTREE__LANES;
        ways[first + i].u = (int32_t)(keys - i);
        ways[first + i].l = (int32_t)(steps - (step > 1 ? step : 1) + 4);
        ways[first + i].factors = r->given[first + i] < m;
    }
    return (float)m;
}

/* Through the merge tree; returns the maximum of its blocks. */
static float tree_way(const one_row *r, int64_t first, int64_t blocks, way *ways)
{
    const int64_t begin = first * ATTREE__BLOCK, end = (first + blocks) * ATTREE__BLOCK;
    const int64_t keys = (end < r->keys ? end : r->keys) - begin;
    if (blocks == 1)
        return block_way(r, begin, keys, ways);
    const int64_t split = attree__tree_split(blocks), left_keys = split * ATTREE__BLOCK;
    const float left = tree_way(r, first, split, ways), right = tree_way(r, first + split, blocks - split, ways);
    add_to_ways(ways + begin, left_keys, left < right ? 2 : 1, left < right); /* a product with 1 is not rounded */
    add_to_ways(ways + begin + left_keys, keys - left_keys, 1, right < left);
    return left > right ? left : right;
}

/* Through one running state, key by key. Returns how often the maximum grew after the first key. */
static int32_t sequential_way(const one_row *r, way *ways)
{
    double m = -INFINITY;
    int32_t grew = -1;
    for (int64_t j = 0; j < r->keys; j++) {
        grew += r->given[j] > m;
        m = fmax(m, r->given[j]);
        ways[j] = (way){.u = -grew, .l = -grew, .factors = (r->given[j] < m) - grew};
    }
    for (int64_t j = 0; j < r->keys; j++) {
        ways[j].u += grew + (int32_t)(r->keys - j);
        ways[j].l += grew + (int32_t)(r->keys - (j > 1 ? j : 1));
        ways[j].factors += grew;
    }
    return grew;
}

static double value(const one_row *r, int64_t j, int e) { return (double)r->t.v[j * WIDTH + e]; }

/* Weights below the cut-off and products below 2^-126. */
static double tail(const one_row *r, double sum_of_values, double s)
{
    return 0x1p-124 * (sum_of_values + (double)r->keys * s) + (double)(2 * r->keys + 1) * 0x1p-149;
}

/* What a bound is about: the row, whether its scores are the given or the exact ones, and the order. */
typedef struct question {
    const one_row *row;
    bool given;
    const way *ways;
    double roundings; /* N of accuracy.md */
} question;

static double h_of(const question *a, int64_t j)
{
    const double below = a->row->largest_given - a->row->given[j];
    return expm1((a->given ? 0.0 : a->row->delta[j]) + EPS1 * (below + 2.0 * (double)a->ways[j].factors));
}

static const double *softmax_of(const question *a) { return a->given ? a->row->of_given : a->row->of_exact; }

/* In closed form, from S, the range of the scores and counts. */
static double closed_bound(const question *a, int e)
{
    const one_row *const r = a->row;
    const double *const p = softmax_of(a);
    double s = 0.0, sum = 0.0;
    for (int64_t j = 0; j < r->keys; j++) {
        s += p[j] * fabs(value(r, j, e));
        sum += fabs(value(r, j, e));
    }
    const double x = EPS1 * (a->roundings + 2.0 * r->spread_of_scores) + (a->given ? 0.0 : 2.0 * r->largest_delta);
    return SLACK * (s * expm1(x) + exp(x) * tail(r, sum, s));
}

typedef struct sums {
    double l; /* H: the largest relative error of l */
    double o; /* the part of it that is due to the roundings of l */
} sums;

static sums sums_of(const question *a)
{
    const double *const p = softmax_of(a);
    sums x = {0.0, 0.0};
    for (int64_t j = 0; j < a->row->keys; j++) {
        const double h = h_of(a, j), l = (1.0 + h) * gamma_of((double)a->ways[j].l);
        x.l += p[j] * (h + l);
        x.o += p[j] * l;
    }
    x.l += (double)a->row->keys * 0x1p-124;
    return x;
}

/* The sums over keys that the closed form replaces by their largest terms. */
static double keyed_bound(const question *a, const sums *x, int e)
{
    const one_row *const r = a->row;
    const double *const p = softmax_of(a);
    double o = 0.0, s = 0.0, sum = 0.0, error = 0.0;
    for (int64_t j = 0; j < r->keys; j++) {
        o += p[j] * value(r, j, e);
        s += p[j] * fabs(value(r, j, e));
        sum += fabs(value(r, j, e));
    }
    for (int64_t j = 0; j < r->keys; j++) {
        const double h = h_of(a, j), v = value(r, j, e);
        error += p[j] * (h * fabs(v - o) + (1.0 + h) * gamma_of((double)a->ways[j].u) * fabs(v));
    }
    if (x->l >= 1.0)
        return INFINITY;
    error = (error + x->o * fabs(o) + tail(r, sum, s)) / (1.0 - x->l);
    return SLACK * (error + EPS * (fabs(o) + error) + 0x1p-150);
}

static double lse_bound(const sums *x, double lse, double log_l)
{
    if (x->l >= 1.0)
        return INFINITY;
    const double of_l = -log1p(-x->l);
    return SLACK * (of_l + 2.0 * EPS1 * (log_l + of_l) + EPS * fabs(lse));
}

/* ---- Measurements ------------------------------------------------------------------------------------------------ */

/* An error with its two bounds: in closed form, and with sums over keys. */
typedef struct finding {
    double error, closed, keyed;
} finding;

typedef enum subject { TREE, REORDER, SEQUENTIAL, SUBJECTS } subject;

typedef struct findings {
    finding of[SUBJECTS]; /* each for the element with the largest error / closed */
    finding lse;
    double relative[SUBJECTS], bounds[SUBJECTS]; /* the largest error / S and bound / S */
} findings;

static double ratio(double error, double bound) { return bound > 0.0 ? error / bound : 0.0; }

static void note(findings *f, subject which, finding found, double s)
{
    finding *const worst = f->of + which;
    assert_true(found.error <= found.keyed);
    assert_true(found.error <= found.closed);
    if (worst->closed == 0.0 || ratio(found.error, found.closed) > ratio(worst->error, worst->closed))
        *worst = found;
    f->relative[which] = fmax(f->relative[which], ratio(found.error, s));
    f->bounds[which] = fmax(f->bounds[which], ratio(found.closed, s));
}

/* One running state, key by key, from the given scores. */
static void run_sequentially(const one_row *r, float *o)
{
    float running[WIDTH + 2];
    assert_int_equal(attree_state_init_f32(running, WIDTH), ATTREE_OK);
    for (int64_t j = 0; j < r->keys; j++)
        assert_int_equal(attree_state_push_key_f32(running, WIDTH, (float)r->given[j], r->t.v + j * WIDTH), ATTREE_OK);
    assert_int_equal(attree_state_finish_f32(running, WIDTH, o, NULL), ATTREE_OK);
}

static double size_of_values(const one_row *r, int e)
{
    double s = 0.0;
    for (int64_t j = 0; j < r->keys; j++)
        s += r->of_exact[j] * fabs(value(r, j, e));
    return s;
}

static finding bounds_of(const question *a, const sums *x, int e, double error)
{
    return (finding){error, closed_bound(a, e), keyed_bound(a, x, e)};
}

static findings measure(const one_row *r)
{
    const double n = (double)r->keys, block = fmin(n, ATTREE__BLOCK);
    const int64_t blocks = (r->keys + ATTREE__BLOCK - 1) / ATTREE__BLOCK;
    const double levels = attree__tree_depth(blocks) - 1;
    way *const ways = calloc((size_t)r->keys * 2, sizeof *ways), *const sequential_ways = ways + r->keys;
    assert_non_null(ways);
    tree_way(r, 0, blocks, ways);
    const double grew = sequential_way(r, sequential_ways);
    const double in_tree = block + ceil(block / ATTREE__LANES) + 3.0 + 1.0 + 4.0 + 8.0 * levels;
    const double in_sequence = 2.0 * n + 6.0 * grew + 4.0;
    const question tree = {r, false, ways, in_tree}, tree_given = {r, true, ways, in_tree};
    const question sequence = {r, false, sequential_ways, in_sequence};
    const question sequence_given = {r, true, sequential_ways, in_sequence};
    const sums of_tree = sums_of(&tree), of_tree_given = sums_of(&tree_given);
    const sums of_sequence = sums_of(&sequence), of_sequence_given = sums_of(&sequence_given);

    run_tensors(&r->desc, &r->t);
    float sequential[WIDTH];
    run_sequentially(r, sequential);
    wide o[WIDTH];
    const wide lse = oracle_row(&r->desc, &r->t, 0, 0, 0, o);

    findings f = {0};
    for (int e = 0; e < WIDTH; e++) {
        const double s = size_of_values(r, e);
        const double tree_error = fabs((double)((wide)r->t.o[e] - o[e]));
        const double sequence_error = fabs((double)((wide)sequential[e] - o[e]));
        note(&f, TREE, bounds_of(&tree, &of_tree, e, tree_error), s);
        note(&f, SEQUENTIAL, bounds_of(&sequence, &of_sequence, e, sequence_error), s);
        const finding one = bounds_of(&tree_given, &of_tree_given, e, 0.0);
        const finding other = bounds_of(&sequence_given, &of_sequence_given, e, 0.0);
        const double difference = fabs((double)r->t.o[e] - (double)sequential[e]);
        note(&f, REORDER, (finding){difference, one.closed + other.closed, one.keyed + other.keyed}, s);
    }
    f.lse.error = fabs((double)((wide)r->t.lse[0] - lse));
    f.lse.keyed = lse_bound(&of_tree, (double)lse, fabs(r->lse_given - r->largest_given));
    assert_true(f.lse.error <= f.lse.keyed);
    free(ways);
    return f;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

typedef int64_t shape[2]; /* keys, width */

static const shape small[] = {{1, 1},    {1, 576},  {2, 64},     {255, 64},  {256, 1},  {256, 576},
                              {257, 64}, {1000, 7}, {1024, 576}, {4096, 64}, {65536, 1}};
static const shape large[] = {{16384, 576}, {100000, 64}, {1048576, 16}};
static shape chosen[1]; /* by arguments */
static struct {
    const shape *at;
    size_t count;
} shapes = {small, sizeof small / sizeof *small};
static bool thinned;            /* some case was left out */
static double largest_ratio[7]; /* of the seven bounds */

static void print_findings(const one_row *r, const findings *f)
{
    double ratios[7];
    print_message("%8s %6g %8lld %5lld", set_names[r->set], (double)r->range, (long long)r->keys, (long long)r->width);
    for (int i = 0; i < SUBJECTS; i++) {
        const finding *const a = f->of + i;
        ratios[2 * i] = ratio(a->error, a->closed);
        ratios[2 * i + 1] = ratio(a->error, a->keyed);
        print_message(" | %8.1e %8.1e %7.5f %7.5f", a->error, a->closed, ratios[2 * i], ratios[2 * i + 1]);
    }
    ratios[6] = ratio(f->lse.error, f->lse.keyed);
    print_message(" | %7.5f\n", ratios[6]);
    for (int i = 0; i < 7; i++)
        largest_ratio[i] = fmax(largest_ratio[i], ratios[i]);
}

/* All sets and ranges. */
static void measure_shape(int64_t keys, int64_t width)
{
    const float ranges[] = {1.0f, 10.0f, 1000.0f};
    for (int s = 0; s < SETS; s++)
        for (int i = 0; i < 3; i++) {
            if (thinned_out()) {
                thinned = true;
                continue;
            }
            one_row r = make_row((score_set)s, ranges[i], keys, width);
            const findings f = measure(&r);
            print_findings(&r, &f);
            free_row(&r);
        }
}

static void errors_stay_within_bounds_that_are_not_vacuous(void **state)
{
    (void)state;
    print_message("%30s | %-34s | %-34s | %-34s | lse\n%8s %6s %8s %5s", "", "tree - exact", "tree - sequential",
                  "sequential - exact", "set", "range", "keys", "D");
    for (int i = 0; i < SUBJECTS; i++)
        print_message(" | %8s %8s %7s %7s", "error", "bound", "/closed", "/keyed");
    print_message(" | /keyed\n");
    for (size_t i = 0; i < shapes.count; i++)
        measure_shape(shapes.at[i][0], shapes.at[i][1]);
    print_message("largest ratios: tree %.4f %.4f, reordering %.4f %.4f, sequential %.4f %.4f, lse %.4f\n",
                  largest_ratio[0], largest_ratio[1], largest_ratio[2], largest_ratio[3], largest_ratio[4],
                  largest_ratio[5], largest_ratio[6]);
    for (int i = 0; i < 7; i++) {
        assert_true(largest_ratio[i] <= 1.0);
        assert_true(thinned || shapes.at == chosen || largest_ratio[i] >= 0.01);
    }
}

/* Whole problems, with batches, heads and causal masks. */
static void attention_is_close_to_the_oracle(void **state)
{
    (void)state;
    const int64_t problems[][7] = {
        {2, 4, 2, 9, 40, 8, 10}, {1, 3, 1, 2, 1000, 64, 64}, {1, 1, 1, 70, 70, 300, 5}, {1, 2, 2, 1, 5000, 16, 1}};
    for (int n = 0; n < 8; n++) {
        const int64_t *s = problems[n / 2];
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

static void print_csv(void)
{
    const struct {
        score_set set;
        float range;
    } series[] = {{UNIFORM, 1.0f}, {UNIFORM, 10.0f}, {ASCENDING, 1.0f}, {EQUAL, 1.0f}};
    printf("set,range,keys,tree_error,tree_bound,sequential_error,sequential_bound\n");
    for (int i = 0; i < 4; i++)
        for (int64_t keys = 1; keys <= 1 << 20; keys *= 2) {
            one_row r = make_row(series[i].set, series[i].range, keys, 16);
            const findings f = measure(&r);
            printf("%s,%g,%lld,%.3e,%.3e,%.3e,%.3e\n", set_names[r.set], (double)r.range, (long long)keys,
                   f.relative[TREE], f.bounds[TREE], f.relative[SEQUENTIAL], f.bounds[SEQUENTIAL]);
            free_row(&r);
        }
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "--csv") == 0) {
        print_csv();
        return 0;
    }
    if (count == 2 && strcmp(arguments[1], "long") == 0) {
        shapes.at = large;
        shapes.count = sizeof large / sizeof *large;
    } else if (count == 3) {
        chosen[0][0] = strtoll(arguments[1], NULL, 10);
        chosen[0][1] = strtoll(arguments[2], NULL, 10);
        shapes.at = chosen;
        shapes.count = 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_stay_within_bounds_that_are_not_vacuous),
        cmocka_unit_test(attention_is_close_to_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
