/* Sequences side by side: ragged batches, lengths per entry, padding, empty entries; widths and lengths off every grid.
 * Numbers are those of README.md. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static void check_geometry(const job *j) { expect_attention(j, geometry); }

/* ---- An entry by itself ---- */

/* Copies [heads, `tokens` from `from` of `of`, width] into a dense tensor. */
static void copy_tokens(float *to, const float *heads_from, const int64_t size[4], int64_t width)
{
    const int64_t heads = size[0], from = size[1], tokens = size[2], of = size[3];
    for (int64_t h = 0; h < heads; h++)
        memcpy(to + h * tokens * width, heads_from + (h * of + from) * width, (size_t)(tokens * width) * sizeof(float));
}

/* Entry b of j as a batch of its own, without padding. */
static job alone(const job *j, int64_t b)
{
    const entry e = entry_of(j, b);
    attree_desc d = j->desc;
    d.batch = 1;
    d.q_len = e.q_len;
    d.kv_len = e.kv_len;
    d.kv_lens = d.q_offsets = d.q_starts = d.kv_starts = NULL;
    d.flags |= ATTREE_USE_Q_OFFSET;
    d.q_offset = e.q_offset;
    d.threads = 1;
    job one = make_job(&d, 1);
    one.args.alibi_slopes = j->args.alibi_slopes;
    one.args.sinks = j->args.sinks;
    one.args.alibi_heads = one.args.sink_heads = d.q_heads;
    const int64_t queries[4] = {d.q_heads, e.q_start, e.q_len, j->desc.q_len};
    const int64_t keys[4] = {d.kv_heads, e.kv_start, e.kv_len, j->desc.kv_len};
    const int64_t q_row = e.q_batch * d.q_heads * j->desc.q_len, kv_row = e.kv_batch * d.kv_heads * j->desc.kv_len;
    copy_tokens(one.t.q, j->t.q + q_row * d.qk_width, queries, d.qk_width);
    copy_tokens(one.t.k, j->t.k + kv_row * d.qk_width, keys, d.qk_width);
    copy_tokens(one.t.v, j->t.v + kv_row * d.v_width, keys, d.v_width);
    return one;
}

/* Every entry has the bits that it has alone. */
static void check_entries(const job *j)
{
    for (int64_t b = 0; b < j->desc.batch; b++) {
        job one = alone(j, b);
        solve(&one);
        for (int64_t row = 0; row < one.t.lse_count; row++) {
            const int64_t mine = row_of(j, b, row / one.desc.q_len, row % one.desc.q_len);
            assert_same_bits(one.t.o + row * one.desc.v_width, j->t.o + mine * one.desc.v_width, one.desc.v_width);
            assert_same_bits(one.t.lse + row, j->t.lse + mine, 1);
        }
        free_job(&one);
    }
}

static void check_entries_and_attention(const job *j)
{
    check_entries(j);
    expect_attention(j, geometry);
}

/* Starts of pieces of these lengths. */
static const int64_t *starts_of(int64_t *starts, const int64_t *lengths, int64_t count)
{
    starts[0] = 0;
    for (int64_t b = 0; b < count; b++)
        starts[b + 1] = starts[b] + lengths[b];
    return starts;
}

/* ---- Nothing there ---- */

/* cases 7, 8: ragged batches without any query, without any key, and without entries */
static void empty_ragged_batches(void **state)
{
    (void)state;
    const int64_t none[4] = {0, 0, 0, 0}, all[4] = {0, 4096, 4096, 4096}, some[4] = {0, 0, 30, 30};
    const struct {
        int64_t batch, q_len, kv_len;
        const int64_t *q_starts, *kv_starts;
    } cases[] = {{3, 0, 4096, none, all}, {3, 0, 4096, none, NULL}, {3, 0, 0, none, none},
                 {3, 30, 0, some, none},  {3, 30, 0, some, NULL},   {3, 30, 4096, some, all},
                 {0, 0, 0, none, none},   {0, 0, 0, NULL, none},    {0, 0, 4096, none, NULL}};
    for (size_t n = 0; n < COUNT_OF(cases) * 2; n++) {
        attree_desc d = make_desc(cases[n / 2].batch, 4, 2, cases[n / 2].q_len, cases[n / 2].kv_len, 4, 2);
        d.q_starts = cases[n / 2].q_starts;
        d.kv_starts = cases[n / 2].kv_starts;
        d.flags = n % 2 ? ATTREE_CAUSAL : 0;
        job j = make_job(&d, n);
        in_every_type(&j, check_entries_and_attention);
        free_job(&j);
    }
}

/* cases 8, 17: no keys at all, in one entry or in all, with a sink and without; the sink is then all of lse */
static void no_keys_with_and_without_sinks(void **state)
{
    (void)state;
    const float sinks[2] = {1.5f, -INFINITY};
    const int64_t lengths[3] = {0, 2, 0};
    for (int n = 0; n < 16; n++) {
        attree_desc d = make_desc(3, 2, 1, n % 2 ? 3 : 30, n / 8 ? 2 : 0, 4, 5);
        d.flags = n / 2 % 2 ? ATTREE_CAUSAL : 0;
        d.kv_lens = n / 8 ? lengths : NULL;
        job j = make_job(&d, 1);
        j.args.sinks = n / 4 % 2 ? sinks : NULL;
        j.args.sink_heads = 2;
        in_every_type(&j, check_geometry);
        free_job(&j);
    }
}

/* case 10: scores without a width are 0 */
static void no_query_width(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        attree_desc d = make_desc(1, 16, n % 2 ? 16 : 4, 16, 16, 0, n / 2 ? 8 : 1);
        d.flags = n % 2 ? ATTREE_CAUSAL : 0;
        job j = make_counting_job(&d);
        in_every_type(&j, check_geometry);
        free_job(&j);
    }
}

/* ---- Ragged batches ---- */

typedef struct ragged {
    int64_t batch, q_lens[8], kv_lens[8];
    int64_t q_heads, kv_heads, width;
} ragged;

static const ragged ragged_cases[] = {
    {4, {0, 1, 0, 1}, {0, 3, 0, 5}, 9, 3, 64},             /* case 11 */
    {4, {0, 0, 1, 0}, {7, 0, 300, 2}, 21, 7, 120},         /* case 11: fewer tokens than entries */
    {4, {0, 2, 0, 1}, {0, 3, 0, 5}, 9, 3, 64},             /* case 11 */
    {3, {2, 3, 1}, {4, 0, 5}, 4, 2, 8},                    /* case 116 */
    {5, {1, 1, 1, 1, 1}, {1, 257, 0, 6000, 30}, 4, 2, 16}, /* case 80: some entries are split */
    {4, {30, 1, 40, 7}, {30, 600, 20, 256}, 6, 2, 12},
    {8, {1, 0, 2, 29, 0, 1, 60, 3}, {0, 9, 300, 29, 1, 513, 61, 2}, 2, 2, 5},
};

/* cases 11, 80, 116, 112: entries of a ragged batch have the bits that they have alone */
static void ragged_entries_are_as_alone(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(ragged_cases) * 4; n++) {
        const ragged *r = &ragged_cases[n / 4];
        int64_t q_starts[9], kv_starts[9];
        starts_of(q_starts, r->q_lens, r->batch);
        starts_of(kv_starts, r->kv_lens, r->batch);
        attree_desc d =
            make_desc(r->batch, r->q_heads, r->kv_heads, q_starts[r->batch], kv_starts[r->batch], r->width, 7);
        d.q_starts = q_starts;
        d.kv_starts = kv_starts;
        d.flags = (n % 2 ? ATTREE_CAUSAL : 0) | (n % 4 == 3 ? ATTREE_USE_WINDOW : 0);
        d.window_left = 4;
        job j = make_job(&d, n);
        in_every_type(&j, check_entries_and_attention);
        free_job(&j);
    }
}

/* cases 80, 112: only the queries are ragged, or only the keys */
static void half_ragged_batches(void **state)
{
    (void)state;
    const int64_t lens[4] = {3, 0, 40, 1}, offsets[4] = {0, -2, 7, 100}, used[4] = {2, 0, 33, 1};
    int64_t starts[5];
    starts_of(starts, lens, 4);
    for (int n = 0; n < 8; n++) {
        attree_desc d = make_desc(4, 4, 2, n % 2 ? 44 : 5, n % 2 ? 290 : 44, 6, 7);
        if (n % 2)
            d.q_starts = starts;
        else
            d.kv_starts = starts;
        d.flags = ATTREE_CAUSAL;
        d.q_offsets = n / 2 % 2 ? offsets : NULL;
        d.kv_lens = n / 4 ? used : NULL;
        job j = make_job(&d, (uint64_t)n);
        in_every_type(&j, check_entries_and_attention);
        free_job(&j);
    }
}

/* cases 8, 65, 80: entries before all of their keys, next to those whose keys are split */
static void entries_that_see_nothing_among_long_ones(void **state)
{
    (void)state;
    const float sinks[2] = {0.5f, -1.0f};
    const int64_t offsets[3] = {-10, 19999, -40};
    for (int n = 0; n < 4; n++) {
        attree_desc d = make_desc(3, 2, 1, n % 2 ? 30 : 1, 20000, 16, 16);
        d.flags = ATTREE_CAUSAL;
        d.q_offsets = offsets;
        job j = make_job(&d, (uint64_t)n);
        j.args.sinks = n / 2 ? sinks : NULL;
        j.args.sink_heads = 2;
        on_every_path(&j, check_entries_and_attention);
        free_job(&j);
    }
}

/* case 112: one sequence alone, and with 1, 6 and 32 mates that are longer and shorter */
static void mates_do_not_matter(void **state)
{
    (void)state;
    const int64_t counts[] = {2, 7, 33};
    for (size_t n = 0; n < COUNT_OF(counts) * 2; n++) {
        random_source random = {n + 5};
        int64_t q_lens[33], kv_lens[33], q_starts[34], kv_starts[34];
        for (int64_t b = 0; b < counts[n / 2]; b++) {
            q_lens[b] = n % 2 ? 1 : random_integer(&random, 0, 20);
            kv_lens[b] = random_integer(&random, 0, b % 4 == 3 ? 3000 : 300);
        }
        kv_lens[1] = 700;
        const int64_t queries = starts_of(q_starts, q_lens, counts[n / 2])[counts[n / 2]];
        const int64_t keys = starts_of(kv_starts, kv_lens, counts[n / 2])[counts[n / 2]];
        attree_desc d = make_desc(counts[n / 2], 4, 2, queries, keys, 8, 8);
        d.q_starts = q_starts;
        d.kv_starts = kv_starts;
        d.flags = ATTREE_CAUSAL;
        job j = make_job(&d, n);
        on_every_path(&j, check_entries);
        free_job(&j);
    }
}

static double bias_of_all(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return s + (double)((at[0] + 3 * at[1] + 5 * at[2] + 7 * at[3]) % 11) / 8.0;
}

static double mask_of_all(const job *j, const int64_t at[4], double s)
{
    (void)j;
    return (at[0] + at[1] + at[2] + at[3]) % 5 == 0 ? -(double)INFINITY : s;
}

static double all_terms(const job *j, const int64_t at[4], double s)
{
    const double cap = (double)j->desc.softcap, slope = (double)j->args.alibi_slopes[at[1]];
    s = cap * tanh(s / cap) + slope * (double)(at[3] - position(j, at[0], at[2]));
    return geometry(j, at, mask_of_all(j, at, bias_of_all(j, at, s)));
}

static void check_all_terms(const job *j) { expect_attention(j, all_terms); }

/* cases 80, 116, 11, with every term: a mask and a bias of a ragged batch have the numbers of its tokens */
static void ragged_batches_with_every_term(void **state)
{
    (void)state;
    const float slopes[2] = {0.125f, 0.5f}, sinks[2] = {0.5f, -1.0f};
    const int64_t q_lens[4] = {3, 0, 33, 1}, kv_lens[4] = {5, 9, 300, 270}, used[4] = {4, 9, 290, 0};
    int64_t q_starts[5], kv_starts[5];
    starts_of(q_starts, q_lens, 4);
    starts_of(kv_starts, kv_lens, 4);
    for (int n = 0; n < 12; n++) {
        attree_desc d = make_desc(4, 2, 1, n % 3 ? 37 : 6, n % 3 != 1 ? 584 : 300, 6, 5);
        d.q_starts = n % 3 ? q_starts : NULL;
        d.kv_starts = n % 3 != 1 ? kv_starts : NULL;
        d.kv_lens = n / 6 ? used : NULL;
        d.softcap = 2.0f;
        d.flags = n / 3 % 2 ? ATTREE_CAUSAL : 0;
        job j = make_job(&d, (uint64_t)n);
        j.args.alibi_slopes = slopes;
        j.args.sinks = sinks;
        j.args.alibi_heads = j.args.sink_heads = 2;
        give_bias(&j, n % 3, bias_of_all);
        give_mask(&j, (attree_mask)(n % 2), mask_of_all);
        in_every_type(&j, check_all_terms);
        free_job(&j);
    }
}

static void check_poisoned_entry(const job *j)
{
    check_entries(j);
    for (int64_t row = 0; row < j->t.lse_count; row++) {
        const int64_t token = row % j->desc.q_len;
        const bool poisoned = token >= j->desc.q_starts[2] && token < j->desc.q_starts[3];
        for (int64_t c = 0; c < j->desc.v_width; c++)
            assert_int_equal(isnan(j->t.o[row * j->desc.v_width + c]), poisoned);
        assert_int_equal(isnan(j->t.lse[row]), poisoned);
    }
}

/* case 40: an entry that is NaN throughout changes no bit of its neighbours, though they share tiles and tasks */
static void an_entry_of_nan_keeps_to_itself(void **state)
{
    (void)state;
    const int64_t lens[][4] = {{1, 1, 1, 1}, {2, 3, 5, 4}, {20, 40, 30, 26}}, keys[4] = {300, 60, 270, 59};
    for (size_t n = 0; n < COUNT_OF(lens); n++) {
        int64_t q_starts[5], kv_starts[5];
        starts_of(q_starts, lens[n], 4);
        starts_of(kv_starts, keys, 4);
        attree_desc d = make_desc(4, 4, 2, q_starts[4], kv_starts[4], 8, 6);
        d.q_starts = q_starts;
        d.kv_starts = kv_starts;
        d.flags = n == 1 ? 0 : ATTREE_CAUSAL;
        job j = make_job(&d, n);
        fill_keys(&j, 2, 0, keys[2], NAN);
        for (int64_t h = 0; h < 4; h++)
            for (int64_t c = 0; c < lens[n][2] * 8; c++)
                j.t.q[row_of(&j, 2, h, 0) * 8 + c] = NAN;
        in_every_type(&j, check_poisoned_entry);
        free_job(&j);
    }
}

/* ---- Padding after the keys of an entry ---- */

static const struct padded {
    int64_t batch, lens[4], room, q_len, q_heads, kv_heads, width;
} padded_cases[] = {
    {2, {1, 3}, 3, 1, 1, 1, 64},               /* case 35 */
    {4, {32, 64, 96, 48}, 128, 1, 8, 8, 64},   /* case 35 */
    {2, {5, 2}, 8, 1, 2, 1, 8},                /* case 43 */
    {4, {1, 255, 256, 257}, 300, 1, 2, 1, 9},  /* cases 35, 44: around a block */
    {4, {257, 0, 512, 511}, 520, 30, 2, 1, 6}, /* cases 35, 44: many rows */
    {3, {15, 16, 17}, 40, 26, 3, 1, 20},
};

/* cases 35, 43, 44: whatever lies beyond the keys of an entry, its bits are those it has alone */
static void padding_is_not_read(void **state)
{
    (void)state;
    const float garbage[] = {NAN, INFINITY, -INFINITY, 1e38f};
    for (size_t n = 0; n < COUNT_OF(padded_cases) * COUNT_OF(garbage) * 2; n++) {
        const struct padded *p = &padded_cases[n / 2 / COUNT_OF(garbage)];
        attree_desc d = make_desc(p->batch, p->q_heads, p->kv_heads, p->q_len, p->room, p->width, p->width);
        d.kv_lens = p->lens;
        d.flags = n % 2 ? ATTREE_CAUSAL : 0;
        job j = make_job(&d, n);
        for (int64_t b = 0; b < p->batch; b++)
            fill_keys(&j, b, p->lens[b], p->room, garbage[n / 2 % COUNT_OF(garbage)]);
        in_every_type(&j, check_entries_and_attention);
        free_job(&j);
    }
}

/* ---- Bad lengths ---- */

enum { ENTRIES = 3, TOKENS = 10 };

typedef struct bad_lengths {
    const char *name; /* in the sentence */
    int64_t numbers[ENTRIES + 1];
} bad_lengths;

static const bad_lengths bad[] = {
    {"kv_lens[1]", {1, -1, 1}},
    {"kv_lens[0]", {INT32_MIN, 1, 1}},
    {"kv_lens[2]", {1, 1, TOKENS + 1}},
    {"kv_lens[2]", {0, TOKENS, INT64_MAX}},
    {"kv_lens[1]", {0, INT64_MIN, 0}},
    {"q_starts[0]", {1, 3, 4, TOKENS}},
    {"q_starts[0]", {-1, 3, 4, TOKENS}},
    {"q_starts[2]", {0, 5, 4, TOKENS}},
    {"q_starts[1]", {0, -5, 4, TOKENS}},
    {"q_starts[3]", {0, 3, 4, TOKENS - 1}},
    {"q_starts[3]", {0, 3, TOKENS + 1, TOKENS}},
    {"q_starts[3]", {0, 3, 4, INT64_MAX}},
    {"kv_starts[0]", {INT64_MIN, 3, 4, TOKENS}},
    {"kv_starts[2]", {0, INT64_MAX, 4, TOKENS}},
    {"kv_starts[3]", {0, 3, 4, TOKENS + 1}},
    {"q_offsets", {0, INT64_MAX, 0}},
    {"q_offsets", {0, 0, INT64_MIN}},
};

/* case 95: lengths and starts that make no sense are refused, by name, before anything is read or written */
static void bad_lengths_are_refused(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(bad); n++) {
        attree_desc d = make_desc(ENTRIES, 2, 1, TOKENS, TOKENS, 4, 4);
        const int64_t **const field = bad[n].name[0] == 'q'   ? bad[n].name[2] == 's' ? &d.q_starts : &d.q_offsets
                                      : bad[n].name[3] == 's' ? &d.kv_starts
                                                              : &d.kv_lens;
        tensors t = make_tensors(&d, 1);
        float *const before = malloc((size_t)t.o_count * sizeof(float));
        assert_non_null(before);
        memcpy(before, t.o, (size_t)t.o_count * sizeof(float));
        *field = bad[n].numbers;
        const attree_args args = {.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
        run_expecting(field == &d.q_offsets ? ATTREE_ERROR_OVERFLOW : ATTREE_ERROR_SHAPE, &d, &args);
        if (!strstr(attree_last_error(), bad[n].name))
            fail_msg("\"%s\" does not name %s", attree_last_error(), bad[n].name);
        assert_same_bits(before, t.o, t.o_count);
        free(before);
        free_tensors(&t);
    }
}

/* case 95: a length per entry is measured against the entry's own tokens */
static void lengths_beyond_a_ragged_entry_are_refused(void **state)
{
    (void)state;
    const int64_t starts[3] = {0, 3, 10}, good[2] = {3, 7}, bad_lens[2] = {4, 6};
    attree_desc d = make_desc(2, 1, 1, 1, 10, 4, 4);
    d.kv_starts = starts;
    d.kv_lens = good;
    job j = make_job(&d, 1);
    on_every_path(&j, check_entries_and_attention);
    j.desc.kv_lens = bad_lens;
    const attree_args args = {.q = j.t.q, .k = j.t.k, .v = j.t.v, .o = j.t.o, .lse = j.t.lse};
    run_expecting(ATTREE_ERROR_SHAPE, &j.desc, &args);
    assert_non_null(strstr(attree_last_error(), "kv_lens[0]"));
    free_job(&j);
}

/* ---- Layout of lse ---- */

/* case 116: q lengths 2, 3, 1, key lengths 4, 0, 5; lse is [tokens, heads] with a gap, and nothing else is written */
static void lse_of_a_ragged_batch_has_its_own_layout(void **state)
{
    (void)state;
    const int64_t q_starts[4] = {0, 2, 5, 6}, kv_starts[4] = {0, 4, 4, 9};
    enum { HEADS = 4, QUERIES = 6, GAP = 6, FRAME = 8, ROOM = 2 * FRAME + QUERIES * GAP };
    for (int32_t threads = 1; threads <= 3; threads++) {
        attree_desc d = make_desc(3, HEADS, 2, QUERIES, 9, 4, 4);
        d.q_starts = q_starts;
        d.kv_starts = kv_starts;
        d.threads = threads;
        job j = make_job(&d, 3);
        solve(&j);
        check_entries(&j);
        float lse[ROOM];
        for (int i = 0; i < ROOM; i++)
            lse[i] = 12345.0f;
        d.lse = (attree_strides){77, 1, GAP, 0}; /* the batch stride is of a dimension that is not there */
        const attree_args args = {.q = j.t.q, .k = j.t.k, .v = j.t.v, .o = j.t.o, .lse = lse + FRAME};
        run_expecting(ATTREE_OK, &d, &args);
        for (int i = 0; i < ROOM; i++) {
            const int token = (i - FRAME + GAP) / GAP - 1, head = (i - FRAME + GAP) % GAP;
            const bool written = i >= FRAME && token < QUERIES && head < HEADS;
            const float expected = written ? j.t.lse[head * QUERIES + token] : 12345.0f;
            assert_same_bits(&expected, lse + i, 1);
        }
        free_job(&j);
    }
}

/* ---- Lengths and widths off every grid ---- */

/* case 86: keys and values of different widths, beyond one block of keys */
static void query_and_value_widths_differ(void **state)
{
    (void)state;
    const int64_t widths[][2] = {{576, 512}, {192, 128}, {64, 128}, {1, 3}}, keys[] = {1, 100, 577, 1200};
    for (size_t n = 0; n < 32; n++) {
        attree_desc d = make_desc(1, 2, 1, n % 2 ? 14 : 1, keys[n / 2 % 4], widths[n / 8][0], widths[n / 8][1]);
        d.flags = n % 2 ? ATTREE_CAUSAL : 0;
        job j = make_job(&d, n);
        set_type(&j, (int32_t)n % 3);
        on_every_path(&j, check_geometry);
        free_job(&j);
    }
}

/* case 88: prefix 37, extended by 11, four heads to a group */
static void extending_a_prefix(void **state)
{
    (void)state;
    for (int64_t prefix = 37; prefix < 300; prefix = prefix * 2 + 3)
        for (int64_t more = 1; more < 40; more += 10) {
            attree_desc d = make_desc(2, 8, 2, more, prefix + more, 16, 20);
            d.flags = ATTREE_CAUSAL;
            job j = make_job(&d, (uint64_t)more);
            in_every_type(&j, check_geometry);
            free_job(&j);
        }
}

/* case 89: few keys, any number of queries */
static void short_sequences(void **state)
{
    (void)state;
    for (int64_t keys = 1; keys <= 17; keys++)
        for (int64_t queries = 1; queries <= keys; queries += 1 + keys / 8) {
            attree_desc d = make_desc(1, 14, 2, queries, keys, 64, 8);
            d.flags = ATTREE_CAUSAL;
            job j = make_job(&d, (uint64_t)queries);
            set_type(&j, (int32_t)(keys % 3));
            on_every_path(&j, check_geometry);
            free_job(&j);
        }
}

/* cases 91, 113: more threads than anything could need, tiny problems and larger ones */
static void any_number_of_threads(void **state)
{
    (void)state;
    const int32_t threads[] = {2, 3, 7, 8, 63, 64, 65, 66, 96, 128, 192, 1000};
    const int64_t shapes[][7] = {
        {1, 1, 1, 1, 1, 1, 1}, {1, 2, 1, 3, 70, 8, 8}, {1, 1, 1, 1, 20000, 16, 16}, {2, 4, 2, 65, 600, 24, 24}};
    for (size_t n = 0; n < COUNT_OF(shapes); n++) {
        const int64_t *const s = shapes[n];
        attree_desc d = make_desc(s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
        tensors t = make_tensors(&d, n);
        float *const expected = result_of(&d, &t);
        for (size_t i = 0; i < COUNT_OF(threads); i++) {
            d.threads = threads[i];
            run_tensors(&d, &t);
            assert_same_bits(expected, t.o, t.o_count);
            assert_same_bits(expected + t.o_count, t.lse, t.lse_count);
        }
        free(expected);
        free_tensors(&t);
    }
}

/* case 92: few keys for many threads, and keys that are split; lse wanted or not */
static void lse_is_not_needed_for_splitting(void **state)
{
    (void)state;
    const int64_t more[] = {255, 257, 513, 6000};
    for (int64_t n = 0; n <= 24; n++) {
        const attree_desc plain = make_desc(1, 2, 1, n % 2 ? 1 : 26, n <= 20 ? n : more[n - 21], 8, 8);
        attree_desc d = plain;
        d.threads = 8;
        tensors t = make_tensors(&d, (uint64_t)n);
        float *const expected = result_of(&plain, &t);
        run_tensors(&d, &t);
        assert_same_bits(expected, t.o, t.o_count);
        assert_same_bits(expected + t.o_count, t.lse, t.lse_count);
        memset(t.o, 0xff, (size_t)t.o_count * sizeof(float));
        const attree_args args = {.q = t.q, .k = t.k, .v = t.v, .o = t.o};
        run_expecting(ATTREE_OK, &d, &args);
        assert_same_bits(expected, t.o, t.o_count);
        free(expected);
        free_tensors(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_ragged_batches),
        cmocka_unit_test(no_keys_with_and_without_sinks),
        cmocka_unit_test(no_query_width),
        cmocka_unit_test(ragged_entries_are_as_alone),
        cmocka_unit_test(half_ragged_batches),
        cmocka_unit_test(entries_that_see_nothing_among_long_ones),
        cmocka_unit_test(mates_do_not_matter),
        cmocka_unit_test(ragged_batches_with_every_term),
        cmocka_unit_test(an_entry_of_nan_keeps_to_itself),
        cmocka_unit_test(padding_is_not_read),
        cmocka_unit_test(bad_lengths_are_refused),
        cmocka_unit_test(lengths_beyond_a_ragged_entry_are_refused),
        cmocka_unit_test(lse_of_a_ragged_batch_has_its_own_layout),
        cmocka_unit_test(query_and_value_widths_differ),
        cmocka_unit_test(extending_a_prefix),
        cmocka_unit_test(short_sequences),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(lse_is_not_needed_for_splitting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
