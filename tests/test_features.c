/* Random problems that combine any of the features: windows, ragged batches, masks, biases, ALiBi, soft caps, sinks, a
 * score function, element types, layouts. Each is compared with the formulas of attree.h, materialised in wide
 * arithmetic; and bit for bit between instruction sets and thread counts, also when everything that no query may see is
 * replaced by garbage. Every tensor ends, or begins, at a page that may not be touched. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "random_problems.h"

enum { CASES = 320 };

/* ---- The formulas ---- */

/* What decides whether a query sees a key. Each step reads only what the one before it did not already decide. */
typedef enum fate { OUTSIDE, MASKED, OVERRULED, BIASED_AWAY, SEEN } fate;

static bool inside(const problem *p, pair at)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    const int64_t position = at.i + e->q_offset;
    bool in = at.j < e->kv_len;
    if (d->flags & ATTREE_CAUSAL)
        in = in && at.j <= position;
    if (d->flags & ATTREE_USE_WINDOW && d->window_left >= 0)
        in = in && at.j >= position - d->window_left;
    if (d->flags & ATTREE_USE_WINDOW && d->window_right >= 0)
        in = in && at.j <= position + d->window_right;
    return in;
}

static int64_t pair_place(const problem *p, const grid *g, pair at)
{
    const entry *e = &p->entries[at.b];
    return place(g, at.b, at.h, e->q_start + at.i, e->kv_start + at.j);
}

static fate fate_of(const problem *p, pair at)
{
    if (!inside(p, at))
        return OUTSIDE;
    if (p->args.mask && get(&p->mask, pair_place(p, &p->mask, at)) == 0.0f)
        return MASKED;
    if (p->args.score && function_hides(at))
        return OVERRULED;
    if (p->args.bias && get(&p->bias, pair_place(p, &p->bias, at)) == -INFINITY)
        return BIASED_AWAY;
    return SEEN;
}

static wide magnitude(wide x) { return x < 0 ? -x : x; }

static wide wide_tanh(wide x) { return 1 - 2 / (wide_exp(2 * x) + 1); }

/* The score of a pair that is seen, and the sum of the magnitudes of what it is made of. */
static wide score_of(const problem *p, pair at, wide *size)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    const int64_t g = at.h / (d->q_heads / d->kv_heads);
    const wide scale = d->flags & ATTREE_USE_SCALE ? d->scale : 1.0f / sqrtf((float)d->qk_width);
    wide s = 0;
    *size = 0;
    for (int64_t c = 0; c < d->qk_width; c++) {
        const wide term = (wide)get(&p->q, place(&p->q, e->q_batch, at.h, e->q_start + at.i, c)) *
                          get(&p->k, place(&p->k, e->kv_batch, g, e->kv_start + at.j, c)) * scale;
        s += term;
        *size += magnitude(term);
    }
    if (d->softcap > 0.0f) {
        s = d->softcap * wide_tanh(s / d->softcap);
        *size += magnitude(s);
    }
    if (p->args.alibi_slopes) {
        const wide term = (wide)p->args.alibi_slopes[at.h] * (at.j - (at.i + e->q_offset));
        s += term;
        *size += magnitude(term);
    }
    if (p->args.bias) {
        const wide term = get(&p->bias, pair_place(p, &p->bias, at));
        s += term;
        *size += magnitude(term);
    }
    if (p->args.score) {
        s += function_adds(at, p->user);
        *size += function_adds(at, p->user);
    }
    return s;
}

/* A row by the formulas. */
typedef struct expectation {
    wide o[40], lse;
    wide size;  /* the greatest that score_of told */
    bool empty; /* nothing seen, and no sink */
} expectation;

static wide sink_of(const problem *p, int64_t h) { return p->args.sinks ? p->args.sinks[h] : -(wide)INFINITY; }

static void expect_row(const problem *p, pair at, expectation *r)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    const int64_t g = at.h / (d->q_heads / d->kv_heads);
    wide *const s = malloc((size_t)(e->kv_len + 1) * sizeof *s), sink = sink_of(p, at.h), m = sink, l = 0;
    assert_non_null(s);
    *r = (expectation){.size = 0};
    for (at.j = 0; at.j < e->kv_len; at.j++) {
        wide size = 0;
        s[at.j] = fate_of(p, at) == SEEN ? score_of(p, at, &size) : -(wide)INFINITY;
        m = s[at.j] > m ? s[at.j] : m;
        r->size = size > r->size ? size : r->size;
    }
    r->empty = m == -(wide)INFINITY;
    if (sink > -(wide)INFINITY)
        l = wide_exp(sink - m);
    for (int64_t j = 0; j < e->kv_len; j++) {
        if (s[j] == -(wide)INFINITY)
            continue;
        const wide weight = wide_exp(s[j] - m);
        l += weight;
        for (int64_t c = 0; c < d->v_width; c++)
            r->o[c] += weight * get(&p->v, place(&p->v, e->kv_batch, g, e->kv_start + j, c));
    }
    for (int64_t c = 0; c < d->v_width && !r->empty; c++)
        r->o[c] /= l;
    r->lse = r->empty ? -(wide)INFINITY : m + wide_log(l);
    if (r->empty && d->empty_rows == ATTREE_EMPTY_NAN) {
        r->lse = NAN;
        for (int64_t c = 0; c < d->v_width; c++)
            r->o[c] = NAN;
    }
    free(s);
}

/* Half a unit in the last place of x as a number of the type, at least. */
static double half_unit(int32_t type, double x)
{
    switch (type) {
    case ATTREE_F16: return fabs(x) * 0x1p-11 + 0x1p-25;
    case ATTREE_BF16: return fabs(x) * 0x1p-8;
    default: return fabs(x) * 0x1p-24;
    }
}

/* A score is off by at most D + 8 roundings of the sum of magnitudes; so is the logarithm of a weight. Sums of up to
 * 256 numbers, then a few steps for each, round once for each. Values are at most 1 in magnitude. */
static void check_row(const problem *p, pair at)
{
    const attree_desc *d = &p->desc;
    const entry *e = &p->entries[at.b];
    expectation expected;
    expect_row(p, at, &expected);
    const double score_error = (double)expected.size * (double)(d->qk_width + 8) * 0x1p-24;
    const double sum_error = (double)((e->kv_len < 256 ? e->kv_len : 256) + 30) * 0x1p-24;
    const double lse = (double)get(&p->lse, place(&p->lse, e->q_batch, at.h, e->q_start + at.i, 0));
    const double want_lse = (double)expected.lse;
    bool right = close_to(lse, want_lse, score_error + sum_error + 0x1p-22 * fabs(want_lse));
    double o = 0.0, want = 0.0;
    for (int64_t c = 0; c < d->v_width && right; c++) {
        o = (double)get(&p->o, place(&p->o, e->q_batch, at.h, e->q_start + at.i, c));
        want = (double)expected.o[c];
        right = close_to(o, want, 2.0 * (score_error + sum_error) + half_unit(d->o_type, want));
    }
    if (right)
        return;
    describe(p);
    fail_msg("batch %" PRId64 ", head %" PRId64 ", query %" PRId64 ": o %g, not %g; lse %.9g, not %.9g", at.b, at.h,
             at.i, o, want, lse, want_lse);
}

/* ---- Running ---- */

static bool is_empty(const problem *p, pair at)
{
    if (sink_of(p, at.h) > -(wide)INFINITY)
        return false;
    for (at.j = 0; at.j < p->entries[at.b].kv_len; at.j++)
        if (fate_of(p, at) == SEEN)
            return false;
    return true;
}

/* The next row after at, entry by entry, head by head. Returns false after the last one; start from {0, 0, -1, 0}. */
static bool next_row(const problem *p, pair *at)
{
    at->i++;
    while (at->b < p->desc.batch && at->i >= p->entries[at->b].q_len) {
        at->i = 0;
        if (++at->h == p->desc.q_heads) {
            at->h = 0;
            at->b++;
        }
    }
    return at->b < p->desc.batch;
}

/* Into o and lse; everything but their elements stays 0xff. */
static void run(problem *p)
{
    memset(p->o.bytes, 0xff, p->o.byte_count);
    memset(p->lse.bytes, 0xff, p->lse.byte_count);
    attree_status expected = ATTREE_OK;
    pair at = {0, 0, -1, 0}, first = {0};
    while (p->desc.empty_rows == ATTREE_EMPTY_ERROR && expected == ATTREE_OK && next_row(p, &at))
        if (is_empty(p, at)) {
            expected = ATTREE_ERROR_EMPTY;
            first = at;
        }
    run_expecting(expected, &p->desc, &p->args);
    char sentence[128];
    (void)snprintf(sentence, sizeof sentence, "query %" PRId64 " of head %" PRId64 ", batch %" PRId64, first.i, first.h,
                   first.b);
    if (expected == ATTREE_ERROR_EMPTY && !strstr(attree_last_error(), sentence))
        fail_msg("case %d: \"%s\" does not name %s", p->number, attree_last_error(), sentence);
}

static void mark(const grid *g, char *used, int64_t n)
{
    if (used)
        used[n - g->low] = 1;
}

static char *nothing_used(const grid *g)
{
    char *const used = calloc((size_t)(g->high - g->low + 2), 1);
    assert_non_null(used);
    return used;
}

/* Between the elements of an output nothing is written. */
static void check_gaps(const grid *g)
{
    char *const used = nothing_used(g);
    for (int64_t a = 0; a < g->size[0]; a++)
        for (int64_t b = 0; b < g->size[1]; b++)
            for (int64_t c = 0; c < g->size[2]; c++)
                for (int64_t d = 0; d < g->size[3]; d++)
                    mark(g, used, place(g, a, b, c, d));
    const signed char untouched[4] = {-1, -1, -1, -1};
    const size_t bytes = (size_t)attree__dtype_bytes(g->type);
    for (int64_t n = g->low; n <= g->high; n++)
        if (!used[n - g->low])
            assert_memory_equal((char *)g->data + byte_of(g, n), untouched, bytes);
    free(used);
}

static void random_problems_follow_the_formulas(void **state)
{
    (void)state;
    for (int n = 0; n < CASES; n++) {
        if (thinned_out())
            continue;
        problem *const p = make_problem(n);
        run(p);
        check_gaps(&p->o);
        check_gaps(&p->lse);
        int64_t rows = 0, row = 0;
        for (pair at = {0, 0, -1, 0}; next_row(p, &at);)
            rows++;
        const int64_t step = 1 + rows * p->desc.kv_len / 3000; /* wide arithmetic is slow */
        for (pair at = {0, 0, -1, 0}; next_row(p, &at); row++)
            if (row % step == 0 || row == rows - 1)
                check_row(p, at);
        free_problem(p);
    }
}

/* ---- Garbage ---- */

typedef struct usage {
    char *q, *k, *v, *mask, *bias;
} usage;

static void mark_row(const grid *g, char *used, pair row)
{
    for (int64_t c = 0; c < g->size[3]; c++)
        mark(g, used, place(g, row.b, row.h, row.i, c));
}

static void mark_pair(const problem *p, const usage *u, pair at)
{
    const entry *e = &p->entries[at.b];
    const fate f = fate_of(p, at);
    if (p->args.mask && f >= MASKED)
        mark(&p->mask, u->mask, pair_place(p, &p->mask, at));
    if (p->args.bias && f >= BIASED_AWAY)
        mark(&p->bias, u->bias, pair_place(p, &p->bias, at));
    if (f != SEEN)
        return;
    const int64_t g = at.h / (p->desc.q_heads / p->desc.kv_heads);
    mark_row(&p->q, u->q, (pair){e->q_batch, at.h, e->q_start + at.i, 0});
    mark_row(&p->k, u->k, (pair){e->kv_batch, g, e->kv_start + at.j, 0});
    mark_row(&p->v, u->v, (pair){e->kv_batch, g, e->kv_start + at.j, 0});
}

/* What nothing used becomes garbage; keys that a mask shows, hidden, and the other way round. Frees used. */
static void poison(const grid *g, char *used)
{
    static const float garbage[] = {NAN, INFINITY, 1e38f, -INFINITY, -1e38f};
    for (int64_t n = g->low; n <= g->high && used; n++)
        if (!used[n - g->low])
            set(g, n, g->type >= MASK_BYTES ? 1.0f - get(g, n) : garbage[(n - g->low) % 5]);
    free(used);
}

/* Whatever no query may see: keys and values hidden from all queries, queries that see nothing, elements of the mask
 * outside of the geometry, bias of hidden pairs, padding. */
static void poison_hidden(const problem *p)
{
    const usage u = {
        .q = nothing_used(&p->q),
        .k = nothing_used(&p->k),
        .v = nothing_used(&p->v),
        .mask = p->args.mask ? nothing_used(&p->mask) : NULL,
        .bias = p->args.bias ? nothing_used(&p->bias) : NULL,
    };
    for (pair at = {0, 0, -1, 0}; next_row(p, &at);)
        for (pair one = at; one.j < p->entries[at.b].kv_len; one.j++)
            mark_pair(p, &u, one);
    poison(&p->q, u.q);
    poison(&p->k, u.k);
    poison(&p->v, u.v);
    poison(&p->bias, u.bias);
    poison(&p->mask, u.mask);
}

typedef struct result {
    char *o, *lse;
} result;

static char *copy_of(const grid *g)
{
    char *const copy = malloc(g->byte_count + 1);
    assert_non_null(copy);
    memcpy(copy, g->bytes, g->byte_count);
    return copy;
}

static void check_same(problem *p, const result *expected, const char *what)
{
    run(p);
    if (memcmp(p->o.bytes, expected->o, p->o.byte_count) == 0 &&
        memcmp(p->lse.bytes, expected->lse, p->lse.byte_count) == 0)
        return;
    describe(p);
    fail_msg("other bits: %s", what);
}

static void check_everywhere(problem *p, const result *expected, const char *what)
{
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++)
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            p->desc.isa = (int32_t)isas[i];
            p->desc.threads = threads;
            check_same(p, expected, what);
        }
}

static void random_problems_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int n = 0; n < CASES; n++) {
        if (thinned_out())
            continue;
        problem *const p = make_problem(n);
        p->desc.isa = ATTREE_ISA_SCALAR;
        run(p);
        const result expected = {copy_of(&p->o), copy_of(&p->lse)};
        check_everywhere(p, &expected, "instruction sets, threads");
        poison_hidden(p);
        check_everywhere(p, &expected, "garbage where nobody may look");
        free(expected.o);
        free(expected.lse);
        free_problem(p);
    }
}

/* The cases must be what the comment at the top says. */
static void every_feature_is_among_the_cases(void **state)
{
    (void)state;
    int64_t seen[16] = {0}, mask_sizes = 0, bias_sizes = 0;
    for (int n = 0; n < CASES; n++) {
        problem *const p = make_problem(n);
        const attree_desc *d = &p->desc;
        const attree_args *a = &p->args;
        const bool features[16] = {d->q_starts,       d->kv_starts,  d->kv_lens,      d->q_offsets,
                                   d->softcap > 0.0f, a->mask,       a->bias,         a->alibi_slopes,
                                   a->sinks,          a->score,      d->kv_len > 512, d->q_len > 24,
                                   d->flags & 1u,     d->flags & 2u, d->flags & 4u,   d->flags & 8u};
        for (int f = 0; f < 16; f++)
            seen[f] += features[f];
        if (a->mask)
            mask_sizes |= (int64_t)1 << (n / 8 % 16);
        if (a->bias)
            bias_sizes |= (int64_t)1 << ((n / 8 + n) % 16);
        free_problem(p);
    }
    for (int f = 0; f < 16; f++)
        assert_true(seen[f] >= CASES / 10);
    assert_int_equal(mask_sizes, 0xffff);
    assert_int_equal(bias_sizes, 0xffff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_feature_is_among_the_cases),
        cmocka_unit_test(random_problems_follow_the_formulas),
        cmocka_unit_test(random_problems_have_the_same_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
