/* See states.h. */
#include "states.h"

#include <float.h>
#include <math.h>
#include <string.h>

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

const algebra algebras[ALGEBRAS] = {
    {"f32", sizeof(float), (double)FLT_EPSILON, (double)FLT_MAX, get_f32, set_f32, init_f32, push_f32, push_key_f32,
     merge_f32, finish_f32},
    {"f64", sizeof(double), DBL_EPSILON, DBL_MAX, get_f64, set_f64, init_f64, push_f64, push_key_f64, merge_f64,
     finish_f64},
};
const algebra *const f64 = &algebras[1];

void *at(const algebra *a, void *array, size_t i) { return (char *)array + i * a->size; }

numbers of(const algebra *a, const double *from, size_t count)
{
    numbers to;
    memset(&to, 0, sizeof to);
    for (size_t i = 0; i < count; i++)
        a->set(&to, i, from[i]);
    return to;
}

numbers empty_state(const algebra *a, int64_t v_width)
{
    numbers state;
    memset(&state, 0, sizeof state);
    assert_int_equal(a->init(&state, v_width), ATTREE_OK);
    return state;
}

bool all_near(const double *got, const double *want, size_t count, double tolerance)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance))
            return false;
    return true;
}

void expect_within(const char *what, const double *got, const double *want, size_t count, double tolerance)
{
    if (all_near(got, want, count, tolerance))
        return;
    for (size_t i = 0; i < count; i++)
        print_message("%s[%zu]: %.17g, expected %.17g within %g\n", what, i, got[i], want[i], tolerance);
    fail_msg("%s is wrong", what);
}

double tolerance_of(const algebra *a) { return 16 * a->epsilon; }

void expect_near(const algebra *a, const char *what, const numbers *got, const double *want, size_t count)
{
    double widened[NUMBERS] = {0}, largest = 1.0;
    for (size_t i = 0; i < count; i++) {
        widened[i] = a->get(got, i);
        largest = fmax(largest, fabs(want[i]));
    }
    expect_within(what, widened, want, count, tolerance_of(a) * largest);
}

void expect_same_bits(const algebra *a, const char *what, const numbers *got, const numbers *want, size_t count)
{
    if (memcmp(got, want, count * a->size) == 0)
        return;
    for (size_t i = 0; i < count; i++)
        print_message("%s, %s[%zu]: %a, expected %a\n", a->name, what, i, a->get(got, i), a->get(want, i));
    fail_msg("%s, %s has other bits", a->name, what);
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;

double uniform(double low, double high)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return low + (high - low) * ((double)(z >> 11) * 0x1p-53);
}

void written_out(double *state, size_t v_width, size_t n, const double *scores, const double *values)
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

key_block keys_of(const algebra *a, size_t count, size_t v_width, const double *scores, const double *values)
{
    return (key_block){count, v_width, of(a, scores, count), of(a, values, count * v_width)};
}

numbers state_of_keys(const algebra *a, key_block *k, size_t block)
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
