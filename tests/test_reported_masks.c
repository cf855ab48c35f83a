/* Which keys a row sees: rows that see none, masks, causal alignment, windows. Numbers are those of README.md. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* Shapes of most cases: decode, many rows, groups, both sides of a block, batches. */
static const int64_t shapes[][7] = {
    {1, 1, 1, 8, 8, 8, 8},     {5, 4, 2, 1, 300, 16, 5},  {1, 1, 1, 1, 64, 8, 8},
    {1, 6, 2, 40, 257, 20, 9}, {2, 2, 1, 33, 600, 8, 33}, {1, 7, 1, 30, 256, 12, 16},
};

static attree_desc desc_of(const int64_t shape[7])
{
    return make_desc(shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6]);
}

static void check_geometry(const job *j) { expect_attention(j, geometry); }

/* ---- Rows that see no key ---- */

/* Four rows of eight see the first half of the keys, the other four nothing. */
static double half_and_nothing(const job *j, const int64_t at[4], double s)
{
    return (at[0] + at[2]) % 8 < 4 && at[3] < (j->desc.kv_len + 1) / 2 ? s : -(double)INFINITY;
}

static void check_half_and_nothing(const job *j) { expect_attention(j, half_and_nothing); }

/* cases 1, 2, 29, 37: such a row is zero, not NaN and not the average of V, and no bit of what it hides reaches it */
static void a_mask_may_hide_every_key(void **state)
{
    (void)state;
    const float garbage[] = {0.5f, NAN, INFINITY, -INFINITY};
    for (size_t n = 0; n < COUNT_OF(shapes); n++)
        for (int way = 0; way < WAYS_TO_HIDE; way++) {
            const attree_desc d = desc_of(shapes[n]);
            job j = make_job(&d, n);
            for (int64_t b = 0; b < d.batch; b++)
                fill_keys(&j, b, (d.kv_len + 1) / 2, d.kv_len, garbage[(n + (size_t)way) % 4]);
            hide(&j, way, half_and_nothing);
            in_every_type(&j, check_half_and_nothing);
            free_job(&j);
        }
}

static double even_heads_only(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return at[1] % 2 ? -(double)INFINITY : s;
}

static void check_even_heads_only(const job *j) { expect_attention(j, even_heads_only); }

/* cases 1, 2: heads of one group, of which some see everything and others nothing */
static void a_mask_may_hide_whole_heads(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(shapes); n++)
        for (int way = 0; way < WAYS_TO_HIDE; way++) {
            const attree_desc d = desc_of(shapes[n]);
            job j = make_job(&d, n);
            hide(&j, way, even_heads_only);
            in_every_type(&j, check_even_heads_only);
            free_job(&j);
        }
}

static double nothing(const job *j, const int64_t at[4], double s)
{
    (void)j, (void)at, (void)s;
    return -(double)INFINITY;
}

static void check_nothing(const job *j) { expect_attention(j, nothing); }

/* cases 29, 1: zero is assigned, not multiplied: all of V and K is garbage */
static void empty_rows_do_not_touch_garbage(void **state)
{
    (void)state;
    const float garbage[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t n = 0; n < COUNT_OF(shapes); n++)
        for (int way = 0; way < WAYS_TO_HIDE; way++) {
            const attree_desc d = desc_of(shapes[n]);
            job j = make_job(&d, 1);
            for (int64_t b = 0; b < d.batch; b++)
                fill_keys(&j, b, 0, d.kv_len, garbage[(n + (size_t)way) % 4]);
            hide(&j, way, nothing);
            in_every_type(&j, check_nothing);
            free_job(&j);
        }
}

static double all_but_row_1(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return at[2] == 1 ? -(double)INFINITY : s;
}

static void check_case_2(const job *j)
{
    const float zero[2] = {0.0f, 0.0f};
    assert_same_bits(zero, j->t.o + 2, 2);
    assert_true(j->t.lse[1] == -INFINITY);
    for (int64_t row = 0; row < 4; row += 1 + (row == 0)) {
        assert_true(close_to((double)j->t.o[2 * row], 4.0, 1e-5));
        assert_true(close_to((double)j->t.o[2 * row + 1], 5.0, 1e-5));
        assert_true(close_to((double)j->t.lse[row], log(4.0), 1e-6));
    }
}

/* case 2, its own numbers: (4, 5), the average of V, would be wrong in row 1 */
static void a_hidden_row_is_not_the_average(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS_TO_HIDE; way++) {
        const attree_desc d = make_desc(1, 1, 1, 4, 4, 2, 2);
        job j = make_counting_job(&d);
        for (int i = 0; i < 8; i++)
            j.t.v[i] = (float)i + 1.0f;
        hide(&j, way, all_but_row_1);
        in_every_type(&j, check_case_2);
        free_job(&j);
    }
}

/* number[0] is the first of 14 hidden rows. */
static double fourteen_rows_hidden(const job *j, const int64_t at[4], double s)
{
    return at[2] >= j->number[0] && at[2] < j->number[0] + 14 ? -(double)INFINITY : s;
}

static void check_case_4(const job *j)
{
    expect_attention(j, fourteen_rows_hidden);
    for (int64_t row = 0; row < j->t.lse_count; row++)
        if (row % 32 < j->number[0] || row % 32 >= j->number[0] + 14)
            expect_row(j, row, 64.0 / 65.0, log(65.0));
}

/* case 4: hidden rows with a sink, at the start of the rows, in the middle and at the end */
static void hidden_rows_with_a_sink_are_zero_wherever_they_are(void **state)
{
    (void)state;
    const float sinks[3] = {0.0f, 0.0f, 0.0f};
    const int64_t first[] = {0, 9, 18}, widths[] = {512, 3};
    for (size_t n = 0; n < 6; n++) {
        const attree_desc d = make_desc(1, 3, 1, 32, 64, widths[n / 3], widths[n / 3]);
        job j = make_counting_job(&d);
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] = 1.0f;
        j.args.sinks = sinks;
        j.args.sink_heads = 3;
        j.number[0] = first[n % 3];
        hide(&j, (int)n % WAYS_TO_HIDE, fourteen_rows_hidden);
        in_every_type(&j, check_case_4);
        free_job(&j);
    }
}

/* number[0] keys of padding on the left. */
static double left_padding(const job *j, const int64_t at[4], double s)
{
    return at[3] < j->number[0] ? -(double)INFINITY : s;
}

static double causal_with_left_padding(const job *j, const int64_t at[4], double s)
{
    return left_padding(j, at, geometry(j, at, s)) + j->real[0];
}

static double lowered(const job *j, const int64_t at[4], double s)
{
    (void)at;
    return s + j->real[0];
}

static void check_causal_with_left_padding(const job *j) { expect_attention(j, causal_with_left_padding); }

/* case 5: causal and a mask, each harmless alone, hide everything for the first rows; the same with every score 20000
 * lower, which a floor under the maximum would damage */
static void causal_and_padding_together_hide_all(void **state)
{
    (void)state;
    const int64_t sizes[][3] = {{4, 4, 2}, {40, 40, 17}, {1, 300, 299}, {1, 2, 2}, {35, 290, 257}};
    for (size_t n = 0; n < 2 * COUNT_OF(sizes); n++) {
        const int64_t *const size = sizes[n / 2];
        attree_desc d = make_desc(2, 2, 1, size[0], size[1], 4, 3);
        d.flags = ATTREE_CAUSAL;
        job j = make_job(&d, n);
        for (int64_t i = 0; i < j.t.k_count; i++) /* scores are multiples of 1/8, exact beside 20000 */
            j.t.k[i] = rintf(j.t.k[i] * 4.0f);
        for (int64_t i = 0; i < j.t.q_count; i++)
            j.t.q[i] = rintf(j.t.q[i] * 2.0f) / 4.0f;
        j.number[0] = size[2];
        give_mask(&j, ATTREE_MASK_BYTES, left_padding);
        if (n % 2) {
            j.real[0] = -20000.0;
            give_bias(&j, ATTREE_F32, lowered);
        }
        in_every_type(&j, check_causal_with_left_padding);
        free_job(&j);
    }
}

/* ---- Keys that a mask hides ---- */

static double all_but_key_1(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return at[3] == 1 ? -(double)INFINITY : s;
}

static void check_first_value(const job *j)
{
    for (int64_t row = 0; row < 2; row++)
        assert_same_bits(j->t.v, j->t.o + 4 * row, 4);
}

/* cases 37, 38: q = k = v = 0 ... 7, key 1 hidden and full of garbage; -inf in a bias hides a NaN score as a mask does
 */
static void garbage_in_a_hidden_key(void **state)
{
    (void)state;
    const float garbage[] = {NAN, INFINITY, -INFINITY, 1e10f, -NAN};
    for (size_t n = 0; n < COUNT_OF(garbage) * 2 * WAYS_TO_HIDE; n++) {
        const attree_desc d = make_desc(1, 1, 1, 2, 2, 4, 4);
        job j = make_job(&d, 1);
        for (int i = 0; i < 8; i++)
            j.t.q[i] = j.t.k[i] = j.t.v[i] = (float)i;
        (n / WAYS_TO_HIDE % 2 ? j.t.v : j.t.k)[4] = garbage[n / WAYS_TO_HIDE / 2];
        hide(&j, (int)n % WAYS_TO_HIDE, all_but_key_1);
        in_every_type(&j, check_first_value);
        free_job(&j);
    }
}

/* Even rows do not see key number[0]. */
static double one_key_for_odd_rows(const job *j, const int64_t at[4], double s)
{
    return at[3] == j->number[0] && at[2] % 2 == 0 ? -(double)INFINITY : s;
}

static void check_one_key_for_odd_rows(const job *j) { expect_attention(j, one_key_for_odd_rows); }

/* cases 28, 37, 38: a NaN in a key makes just those rows NaN that see it */
static void a_nan_key_is_seen_by_those_who_may_see_it(void **state)
{
    (void)state;
    const int64_t keys[] = {0, 7, 8, 255, 256, 299};
    for (size_t n = 0; n < COUNT_OF(keys) * 8; n++) {
        const attree_desc d = make_desc(1, 2, 1, n / 4 % 2 ? 2 : 40, 300, 12, 6);
        job j = make_job(&d, n);
        j.number[0] = keys[n / 8];
        j.t.k[keys[n / 8] * 12 + (int64_t)n % 12] = NAN;
        hide(&j, (int)n % WAYS_TO_HIDE, one_key_for_odd_rows);
        on_every_path(&j, check_one_key_for_odd_rows);
        free_job(&j);
    }
}

/* ---- Causal alignment ---- */

static const struct corner {
    int64_t q_len, kv_len;
    bool first_key; /* the first query sees the first key; else the last the last */
    double o[5], visible[5];
} corners[] = {
    {2, 5, false, {2.5, 3.0}, {4, 5}},
    {2, 5, true, {1.0, 1.5}, {1, 2}},
    {5, 2, false, {0, 0, 0, 1.0, 1.5}, {0, 0, 0, 1, 2}},
    {1, 4, false, {2.5}, {4}},
    {1, 4, true, {1.0}, {1}},
};

/* number[0] is the corner. */
static void check_corner(const job *j)
{
    const struct corner *c = &corners[j->number[0]];
    for (int64_t row = 0; row < j->t.lse_count; row++)
        expect_row(j, row, c->o[row % c->q_len], log(c->visible[row % c->q_len]));
}

/* cases 46, 47, 13 */
static void the_last_query_sees_the_last_key(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(corners); n++) {
        attree_desc d = make_desc(2, 6, 2, corners[n].q_len, corners[n].kv_len, 4, 3);
        d.flags = ATTREE_CAUSAL | (corners[n].first_key ? ATTREE_USE_Q_OFFSET : 0);
        job j = make_counting_job(&d);
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] += 1.0f;
        j.number[0] = (int64_t)n;
        in_every_type(&j, check_corner);
        free_job(&j);
    }
}

/* cases 46, 47, 49, 13, the kind: any lengths, offsets and groups, random numbers */
static void causal_rows_see_what_they_should(void **state)
{
    (void)state;
    const int64_t sizes[][4] = {{3, 128, 4, 2}, {1, 300, 7, 1},  {40, 290, 3, 1}, {60, 20, 2, 2},
                                {1, 257, 8, 1}, {30, 30, 12, 1}, {26, 513, 6, 2}};
    const int64_t offsets[] = {0, -5, 11, 250};
    for (size_t n = 0; n < COUNT_OF(sizes); n++)
        for (size_t k = 0; k <= COUNT_OF(offsets); k++) {
            attree_desc d = make_desc(1, sizes[n][2], sizes[n][3], sizes[n][0], sizes[n][1], 8, 5);
            d.flags = ATTREE_CAUSAL | (k ? ATTREE_USE_Q_OFFSET : 0);
            d.q_offset = k ? offsets[k - 1] : 0;
            job j = make_job(&d, n);
            on_every_path(&j, check_geometry);
            free_job(&j);
        }
}

static void check_threes(const job *j)
{
    for (int64_t row = 0; row < j->t.lse_count; row++)
        expect_row(j, row, 3.0, log(5.0));
}

/* case 50: no option is on by itself, and one that is off may hold anything */
static void defaults_are_neutral(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        attree_desc d = {.size = sizeof d, .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 5, .kv_len = 5};
        d.qk_width = d.v_width = 2;
        if (n == 1) {
            d.q_offset = INT64_MIN;
            d.scale = NAN;
            d.window_left = d.window_right = -77;
        }
        job j = make_counting_job(&d);
        for (int64_t i = 0; i < j.t.v_count; i++)
            j.t.v[i] += 1.0f;
        solve(&j); /* instruction set and threads are defaults, too */
        check_threes(&j);
        in_every_type(&j, check_threes);
        free_job(&j);
    }
}

/* ---- Windows ---- */

/* case 52: the last row of a windowed prefill has the bits of the decode step */
static void prefill_and_decode_have_the_same_window(void **state)
{
    (void)state;
    const int64_t lefts[] = {0, 1, 7, 8, 15, 16, 255, 256, 300};
    for (size_t l = 0; l < COUNT_OF(lefts); l++)
        for (int64_t n = 1; n <= 45; n++) {
            const int64_t tokens = n <= 40 ? n : 200 + 60 * (n - 40);
            attree_desc d = make_desc(1, 2, 1, tokens < 50 ? tokens : 50, tokens, 4, 3);
            d.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
            d.window_left = lefts[l];
            d.window_right = n % 3 - 1; /* causal anyway */
            job all = make_job(&d, (uint64_t)n);
            d.q_len = 1;
            job last = make_job(&d, 1);
            memcpy(last.t.k, all.t.k, (size_t)all.t.k_count * sizeof(float));
            memcpy(last.t.v, all.t.v, (size_t)all.t.v_count * sizeof(float));
            for (int64_t h = 0; h < 2; h++)
                memcpy(last.t.q + 4 * h, all.t.q + (row_of(&all, 0, h, 0) + all.desc.q_len - 1) * 4, 4 * sizeof(float));
            on_every_path(&all, check_geometry);
            on_every_path(&last, check_geometry);
            for (int64_t h = 0; h < 2; h++) {
                const int64_t row = row_of(&all, 0, h, 0) + all.desc.q_len - 1;
                assert_same_bits(all.t.o + 3 * row, last.t.o + 3 * h, 3);
                assert_same_bits(all.t.lse + row, last.t.lse + h, 1);
            }
            free_job(&all);
            free_job(&last);
        }
}

static const struct window_case {
    int64_t q_len, kv_len, left, right, width;
    uint32_t flags;
    double last, lse; /* of the last row; lse is the log of this */
    int64_t q_offset;
} window_cases[] = {
    {1, 40, 9, -1, 3, ATTREE_CAUSAL, 34.5, 10, 0},       /* case 53: no whole pages, blocks or tiles: single keys */
    {30, 40, 9, -1, 3, ATTREE_CAUSAL, 34.5, 10, 0},      /* case 53 */
    {200, 200, 495, -1, 2, ATTREE_CAUSAL, 99.5, 200, 0}, /* case 55 */
    {1, 800, 199, -1, 2, ATTREE_CAUSAL, 699.5, 200, 0},  /* case 55 */
    {1, 200, 399, 0, 2, 0, 99.5, 200, 0},                /* case 55 */
    {30, 300, 0, 0, 2, 0, 299, 1, 0},
    {30, 300, INT64_MAX, INT64_MAX, 2, 0, 149.5, 300, 0},
    {300, 30, 3, 3, 2, ATTREE_USE_Q_OFFSET, 0, 0, 0}, /* the last rows are beyond all keys */
    {50, 700, 300, 20, 40, ATTREE_USE_Q_OFFSET, 34.5, 70, 0},
    {1, 20000, 300, 5, 59, ATTREE_USE_Q_OFFSET, 0, 0, 30000}, /* all splits are empty */
    {1, 20000, -1, -1, 59, ATTREE_USE_Q_OFFSET | ATTREE_CAUSAL, 0, 0, -7},
    {30, 20000, 0, 0, 59, ATTREE_USE_Q_OFFSET, 0, 0, -300},
    {16, 20000, 0, 256, 59, 0, 19999, 1, 0}, /* case 56: nearly all blocks are empty for all rows */
    {1, 20000, 0, 256, 59, 0, 19999, 1, 0},  /* case 56 */
};

/* number[0] is the case. */
static void check_window(const job *j)
{
    const struct window_case *c = &window_cases[j->number[0]];
    expect_attention(j, geometry);
    if (j->desc.o_type == ATTREE_F32)
        expect_row(j, j->desc.q_len - 1, c->last, log(c->lse));
}

/* cases 53, 55, 56 */
static void windows_are_exact(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(window_cases); n++) {
        const struct window_case *c = &window_cases[n];
        attree_desc d = make_desc(1, 2, 1, c->q_len, c->kv_len, c->width, c->width);
        d.flags = c->flags | ATTREE_USE_WINDOW;
        d.window_left = c->left;
        d.window_right = c->right;
        d.q_offset = c->q_offset;
        job j = make_counting_job(&d);
        j.number[0] = (int64_t)n;
        in_every_type(&j, check_window);
        free_job(&j);
    }
}

/* ---- Masks made of the lowest number ---- */

static const struct lowest {
    int32_t type;
    float number;
} lowest[] = {
    {ATTREE_F32, -FLT_MAX}, {ATTREE_F16, -65504.0f}, {ATTREE_BF16, -0x1.fep127f},
    {ATTREE_F32, -1e9f},    {ATTREE_BF16, -0x1p30f},
};

/* The first number[0] keys have the lowest number, of number[1], added. */
static double lowest_first(const job *j, const int64_t at[4], double s)
{
    return at[3] < j->number[0] ? s + (double)lowest[j->number[1]].number : s;
}

static double lowest_first_causal(const job *j, const int64_t at[4], double s)
{
    return geometry(j, at, lowest_first(j, at, s));
}

static void check_lowest(const job *j) { expect_attention(j, lowest_first_causal); }

static void check_case_110(const job *j)
{
    expect_attention(j, lowest_first_causal);
    if (j->desc.o_type == ATTREE_F32)
        for (int64_t row = 0; row < j->t.lse_count; row++)
            expect_row(j, row, 284.0, log(313.0));
}

/* cases 109, 110: keys with the type's lowest number have weight 0 beside others; among themselves they are equal, and
 * the row is their average, not NaN and not 0; with causal nothing is added up to -inf */
static void lowest_numbers_are_numbers(void **state)
{
    (void)state;
    const int64_t sizes[][3] = {{1, 5, 2},     {1, 5, 5},      {30, 30, 30},   {30, 30, 7},
                                {1, 600, 300}, {26, 600, 256}, {40, 300, 300}, {9, 4, 4}};
    for (size_t n = 0; n < COUNT_OF(sizes) * COUNT_OF(lowest); n++)
        for (uint32_t flags = 0; flags <= ATTREE_CAUSAL; flags++) {
            const int64_t *const size = sizes[n / COUNT_OF(lowest)];
            attree_desc d = make_desc(1, 2, 1, size[0], size[1], 4, 3);
            d.flags = flags;
            job j = make_counting_job(&d);
            j.number[0] = size[2];
            j.number[1] = (int64_t)(n % COUNT_OF(lowest));
            give_bias(&j, lowest[n % COUNT_OF(lowest)].type, lowest_first);
            in_every_type(&j, check_lowest);
            free_job(&j);
        }
}

/* case 110, its own numbers */
static void a_block_of_lowest_numbers(void **state)
{
    (void)state;
    for (size_t n = 0; n < 2 * COUNT_OF(lowest); n++) {
        const attree_desc d = make_desc(2, 3, 3, n % 2 ? 30 : 1, 441, 8, 4);
        job j = make_counting_job(&d);
        j.number[0] = 128;
        j.number[1] = (int64_t)n / 2;
        give_bias(&j, lowest[n / 2].type, lowest_first);
        in_every_type(&j, check_case_110);
        free_job(&j);
    }
}

/* case 109: a score beside the lowest number is absorbed, and two lowest numbers hide the key: -inf */
static void scores_beside_the_lowest_number(void **state)
{
    (void)state;
    const float v[3] = {3, 6, 9}, five[3] = {5, -5, 1}, low[3] = {-FLT_MAX, -FLT_MAX, 0};
    for (int n = 0; n < 4; n++) {
        const attree_desc d = make_desc(1, 1, 1, n % 2 ? 30 : 1, 3, 1, 2);
        job j = make_given_job(&d, n < 2 ? five : low, v);
        j.number[0] = n < 2 ? 3 : 2;
        give_bias(&j, ATTREE_F32, lowest_first);
        j.real[0] = n < 2 ? 6.0 : 9.0;
        j.real[1] = n < 2 ? -(double)FLT_MAX : 0.0;
        on_every_path(&j, check_given);
        free_job(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_may_hide_every_key),
        cmocka_unit_test(a_mask_may_hide_whole_heads),
        cmocka_unit_test(empty_rows_do_not_touch_garbage),
        cmocka_unit_test(a_hidden_row_is_not_the_average),
        cmocka_unit_test(hidden_rows_with_a_sink_are_zero_wherever_they_are),
        cmocka_unit_test(causal_and_padding_together_hide_all),
        cmocka_unit_test(garbage_in_a_hidden_key),
        cmocka_unit_test(a_nan_key_is_seen_by_those_who_may_see_it),
        cmocka_unit_test(the_last_query_sees_the_last_key),
        cmocka_unit_test(causal_rows_see_what_they_should),
        cmocka_unit_test(defaults_are_neutral),
        cmocka_unit_test(prefill_and_decode_have_the_same_window),
        cmocka_unit_test(windows_are_exact),
        cmocka_unit_test(lowest_numbers_are_numbers),
        cmocka_unit_test(a_block_of_lowest_numbers),
        cmocka_unit_test(scores_beside_the_lowest_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
