/* attree_append: the cache holds what attree_quantize makes of the new tokens, where they belong, and nothing else of
 * it has changed; token by token is all at once. Bad positions are errors that write nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "caches.h"

enum { B = 3, G = 2, H = 4, WIDEST = 64 };

typedef struct append_case {
    int32_t k_type, v_type, source_type;
    int64_t page_size; /* 0: dense */
    bool panels, token_major, strided, ragged, kv_lens;
    uint64_t seed;
} append_case;

/* Sequences of a ragged batch; those of other batches all have QUERIES new tokens. */
enum { ROOM = 70, QUERIES = 5, RAGGED_QUERIES = 24 };
static const int64_t ragged_starts[B + 1] = {0, 1, 1, RAGGED_QUERIES};
static const int64_t ragged_lens[B] = {ROOM, 33, 40};

typedef struct append_problem {
    const append_case *c;
    attree_desc desc;
    attree_new_tokens tokens;
    cache k, v, expected_k, expected_v;
    void *new_k, *new_v; /* of source_type */
    int32_t *table;
} append_problem;

static int64_t kv_len_of(const append_problem *p, int64_t b) { return p->c->kv_lens ? ragged_lens[b] : ROOM; }
static int64_t q_start_of(const append_problem *p, int64_t b) { return p->c->ragged ? ragged_starts[b] : 0; }
static int64_t q_len_of(const append_problem *p, int64_t b)
{
    return p->c->ragged ? ragged_starts[b + 1] - ragged_starts[b] : QUERIES;
}

/* Strides of new tokens, [B, G, Q, width]: dense, or with tokens outside of heads, and gaps. */
static attree_strides source_strides(const append_problem *p, int64_t width, bool explicit)
{
    const int64_t q = p->desc.q_len;
    if (p->c->strided)
        return (attree_strides){q * (G * (2 * width + 1) + 3), 2 * width + 1, G * (2 * width + 1) + 3, 2};
    return explicit ? (attree_strides){G * q * width, q * width, width, 1} : (attree_strides){0, 0, 0, 0};
}

/* Random numbers of the source type, enough for any of the strides. */
static void *make_source(const append_problem *p, int64_t width, random_source *random)
{
    const int64_t batches = p->c->ragged ? 1 : B, count = batches * p->desc.q_len * (G * (2 * width + 1) + 3);
    float *const numbers = malloc((size_t)count * sizeof *numbers);
    assert_non_null(numbers);
    fill_random(numbers, count, random, -2.0f, 2.0f);
    for (int64_t i = 0; i < count && p->c->source_type != ATTREE_F32; i++)
        attree__store(numbers, p->c->source_type, i, numbers[i]);
    return numbers;
}

static void fill_bytes(cache *c, random_source *random)
{
    const page_pool *const pools[] = {&c->rows, &c->scales};
    for (int i = 0; i < 2; i++)
        for (size_t n = 0; n < pools[i]->mapping_bytes; n++)
            ((uint8_t *)pools[i]->mapping)[n] = (uint8_t)random_integer(random, 0, 255);
}

/* What random bytes the cache has are canaries; the expected one has the same. */
static void make_pair(cache *c, cache *expected, const cache_layout *l, uint64_t seed)
{
    random_source one = {seed}, same = {seed};
    *c = make_cache(l);
    *expected = make_cache(l);
    fill_bytes(c, &one);
    fill_bytes(expected, &same);
}

static void make_table(append_problem *p)
{
    const int64_t width = p->desc.table_width;
    p->table = malloc((size_t)(B * width) * sizeof *p->table);
    assert_non_null(p->table);
    for (int64_t n = 0; n < B * width; n++) /* each page once, in an order of its own */
        p->table[n] = (int32_t)((n * 7 + 3) % p->desc.page_count);
    for (int64_t b = 0; b < B; b++) /* no page where nothing is appended */
        for (int64_t n = 0; n < width; n++) {
            const int64_t end = kv_len_of(p, b), from = end - q_len_of(p, b), size = p->desc.page_size;
            if ((n + 1) * size <= from || n * size >= end)
                p->table[b * width + n] = n % 2 ? -1 : INT32_MAX;
        }
}

static void describe(append_problem *p)
{
    const append_case *c = p->c;
    p->desc = make_desc(B, H, G, c->ragged ? RAGGED_QUERIES : QUERIES, ROOM, has_blocks(c->k_type) ? 64 : 21,
                        has_blocks(c->v_type) ? 32 : 37);
    p->desc.flags = ATTREE_CAUSAL;
    p->desc.q_starts = c->ragged ? ragged_starts : NULL;
    p->desc.kv_lens = c->kv_lens ? ragged_lens : NULL;
    p->desc.page_size = c->page_size;
    if (c->page_size > 0) {
        p->desc.table_width = (ROOM + c->page_size - 1) / c->page_size;
        p->desc.page_count = B * p->desc.table_width;
        while (p->desc.page_count % 7 == 0) /* so that 7 n + 3 visits every page */
            p->desc.page_count++;
    }
}

static void make_problem(append_problem *p, const append_case *c)
{
    random_source random = {c->seed * 2 + 1};
    *p = (append_problem){.c = c};
    describe(p);
    const int64_t pages = c->page_size > 0 ? p->desc.page_count : B, size = c->page_size > 0 ? c->page_size : ROOM;
    const cache_layout k = {pages, G,     size, p->desc.qk_width, c->k_type, c->panels, c->token_major,
                            false, false, false};
    const cache_layout v = {pages, G, size, p->desc.v_width, c->v_type, false, c->token_major, false, false, false};
    make_pair(&p->k, &p->expected_k, &k, c->seed * 2 + 1);
    make_pair(&p->v, &p->expected_v, &v, c->seed * 4 + 1);
    describe_keys(&p->desc, &p->k);
    describe_values(&p->desc, &p->v);
    if (c->page_size > 0)
        make_table(p);
    p->new_k = make_source(p, p->desc.qk_width, &random);
    p->new_v = make_source(p, p->desc.v_width, &random);
    p->tokens = (attree_new_tokens){.size = sizeof p->tokens,
                                    .k = p->new_k,
                                    .v = p->new_v,
                                    .k_type = c->source_type,
                                    .v_type = c->source_type,
                                    .k_strides = source_strides(p, p->desc.qk_width, false),
                                    .v_strides = source_strides(p, p->desc.v_width, false),
                                    .cache_k = cache_data(&p->k),
                                    .cache_v = cache_data(&p->v),
                                    .cache_k_scales = cache_scales(&p->k),
                                    .cache_v_scales = cache_scales(&p->v),
                                    .page_table = p->table};
}

static void free_problem(append_problem *p)
{
    free_cache(&p->k);
    free_cache(&p->v);
    free_cache(&p->expected_k);
    free_cache(&p->expected_v);
    free(p->new_k);
    free(p->new_v);
    free(p->table);
}

/* The numbers of new token i of sequence b. */
static void source_row(const append_problem *p, bool values, cache_at at, float *numbers)
{
    const int64_t width = values ? p->desc.v_width : p->desc.qk_width;
    const attree_strides s = source_strides(p, width, true);
    const int64_t start = (p->c->ragged ? 0 : at.page) * s.batch + at.head * s.head + at.token * s.token;
    for (int64_t n = 0; n < width; n++)
        numbers[n] = attree__load(values ? p->new_v : p->new_k, p->c->source_type, start + n * s.width);
}

/* Token j of sequence b in the cache. */
static cache_at place_of(const append_problem *p, int64_t b, int64_t g, int64_t j)
{
    if (!p->table)
        return (cache_at){b, g, j};
    return (cache_at){p->table[b * p->desc.table_width + j / p->c->page_size], g, j % p->c->page_size};
}

static void write_expected(append_problem *p)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t g = 0; g < G; g++)
            for (int64_t i = 0; i < q_len_of(p, b); i++) {
                float numbers[WIDEST];
                const int64_t j = kv_len_of(p, b) - q_len_of(p, b) + i;
                const cache_at from = {b, g, q_start_of(p, b) + i}, to = place_of(p, b, g, j);
                source_row(p, false, from, numbers);
                cache_write(&p->expected_k, to, numbers);
                source_row(p, true, from, numbers);
                cache_write(&p->expected_v, to, numbers);
            }
}

static attree_status append(const attree_desc *desc, const attree_new_tokens *tokens)
{
    attree_plan *plan;
    assert_int_equal(attree_plan_create(&plan, desc), ATTREE_OK);
    const attree_status status = attree_append(plan, tokens);
    attree_plan_destroy(plan);
    return status;
}

/* Token i of sequence b alone. */
static void append_one(const append_problem *p, int64_t b, int64_t i)
{
    const int64_t bytes = attree__dtype_bytes(p->c->source_type), batch = p->c->ragged ? 0 : b;
    attree_desc one = p->desc;
    attree_new_tokens token = p->tokens;
    one.batch = 1;
    one.q_len = 1;
    one.q_starts = one.kv_lens = NULL;
    one.flags |= ATTREE_USE_Q_OFFSET;
    one.q_offset = kv_len_of(p, b) - q_len_of(p, b) + i;
    const attree_strides k = source_strides(p, p->desc.qk_width, true);
    const attree_strides v = source_strides(p, p->desc.v_width, true);
    token.k_strides = k;
    token.v_strides = v;
    token.k = (char *)p->new_k + (batch * k.batch + (q_start_of(p, b) + i) * k.token) * bytes;
    token.v = (char *)p->new_v + (batch * v.batch + (q_start_of(p, b) + i) * v.token) * bytes;
    if (p->c->page_size > 0)
        token.page_table += b * p->desc.table_width;
    else { /* the sequence's part of a dense cache */
        token.cache_k = p->k.rows.first + b * p->k.rows.stride;
        token.cache_v = p->v.rows.first + b * p->v.rows.stride;
        token.cache_k_scales += token.cache_k_scales ? b * p->k.scale_strides.batch : 0;
        token.cache_v_scales += token.cache_v_scales ? b * p->v.scale_strides.batch : 0;
    }
    assert_int_equal(append(&one, &token), ATTREE_OK);
}

static void append_one_by_one(const append_problem *p)
{
    for (int64_t i = 0; i < p->desc.q_len; i++)
        for (int64_t b = 0; b < B; b++)
            if (i < q_len_of(p, b))
                append_one(p, b, i);
}

static void print_case(const append_case *c)
{
    print_error("types %s %s from %s, page_size %lld panels %d token_major %d strided %d ragged %d kv_lens %d\n",
                type_name(c->k_type), type_name(c->v_type), type_name(c->source_type), (long long)c->page_size,
                c->panels, c->token_major, c->strided, c->ragged, c->kv_lens);
}

static bool same_bytes(const cache *a, const cache *b)
{
    return memcmp(a->rows.mapping, b->rows.mapping, a->rows.mapping_bytes) == 0 &&
           (!a->scales.mapping || memcmp(a->scales.mapping, b->scales.mapping, a->scales.mapping_bytes) == 0);
}

static void check_case(const append_case *c)
{
    if (thinned_out())
        return;
    for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
        append_problem p;
        make_problem(&p, c);
        write_expected(&p);
        if (one_by_one)
            append_one_by_one(&p);
        else
            assert_int_equal(append(&p.desc, &p.tokens), ATTREE_OK);
        if (!same_bytes(&p.k, &p.expected_k) || !same_bytes(&p.v, &p.expected_v))
            print_case(c);
        assert_same_caches(&p.k, &p.expected_k);
        assert_same_caches(&p.v, &p.expected_v);
        free_problem(&p);
    }
}

static void new_tokens_go_where_they_belong(void **state)
{
    (void)state;
    static const int64_t page_sizes[] = {0, 1, 3, 16, 32, 48};
    uint64_t n = 0;
    for (int32_t type = ATTREE_F32; type < ATTREE__DTYPE_COUNT; type++)
        for (int i = 0; i < 6; i++)
            for (int variant = 0; variant < 16; variant++, n++) {
                const append_case c = {.k_type = type,
                                       .v_type = (int32_t)((n + n / 16) % ATTREE__DTYPE_COUNT),
                                       .source_type = (int32_t)(n / 2 % 3),
                                       .page_size = page_sizes[i],
                                       .panels = variant & 1 && !has_blocks(type) && page_sizes[i] % 16 == 0,
                                       .token_major = variant & 2,
                                       .strided = variant & 4,
                                       .ragged = variant & 8,
                                       .kv_lens = n % 3 != 0,
                                       .seed = n};
                check_case(&c);
            }
}

/* ---- The whole life of a cache: prefill, then single tokens, each followed by attention over it ---- */

enum { TOKENS = 40, PREFILL = 29, WIDTH = 32, PAGE = 16, PAGES = 5 };
static const int32_t life_table[3] = {3, 0, 4};
static const attree_strides life_strides = {0, TOKENS *WIDTH, WIDTH, 1};

/* The number that the type has for each. */
static void round_to_type(float *numbers, int32_t type)
{
    _Alignas(4) uint8_t row[WIDTH * 4];
    float scale = 0.0f;
    assert_int_equal(attree_quantize(type, WIDTH, numbers, row, &scale), ATTREE_OK);
    assert_int_equal(attree_dequantize(type, WIDTH, row, scale, numbers), ATTREE_OK);
}

typedef struct life {
    cache k, v;
    tensors original, right; /* right: keys and values as the cache has them, and results */
} life;

static void append_and_attend(life *l, int64_t from, int64_t step)
{
    attree_desc d = make_desc(1, H, G, step, from + step, WIDTH, WIDTH);
    d.flags = ATTREE_CAUSAL;
    d.q = life_strides;
    describe_keys(&d, &l->k);
    describe_values(&d, &l->v);
    d.page_size = PAGE;
    d.page_count = PAGES;
    d.table_width = 3;
    const attree_new_tokens tokens = {.size = sizeof tokens,
                                      .k = l->original.k + from * WIDTH,
                                      .v = l->original.v + from * WIDTH,
                                      .k_strides = life_strides,
                                      .v_strides = life_strides,
                                      .cache_k = cache_data(&l->k),
                                      .cache_v = cache_data(&l->v),
                                      .cache_k_scales = cache_scales(&l->k),
                                      .cache_v_scales = cache_scales(&l->v),
                                      .page_table = life_table};
    assert_int_equal(append(&d, &tokens), ATTREE_OK);
    float o[H * PREFILL * WIDTH], lse[H * PREFILL];
    attree_args args = {.q = l->right.q + from * WIDTH, .o = o, .lse = lse, .page_table = life_table};
    point_to_caches(&args, &l->k, &l->v);
    run_expecting(ATTREE_OK, &d, &args);
    for (int64_t h = 0; h < H; h++) {
        assert_same_bits(l->right.o + (h * TOKENS + from) * WIDTH, o + h * step * WIDTH, step * WIDTH);
        assert_same_bits(l->right.lse + h * TOKENS + from, lse + h * step, step);
    }
}

static void attention_follows_appending(void **state)
{
    (void)state;
    for (int32_t type = ATTREE_F32; type < ATTREE__DTYPE_COUNT; type++) {
        attree_desc whole = make_desc(1, H, G, TOKENS, TOKENS, WIDTH, WIDTH);
        whole.flags = ATTREE_CAUSAL;
        life l = {
            .k = make_cache(&(cache_layout){PAGES, G, PAGE, WIDTH, type, !has_blocks(type), true, false, false, false}),
            .v = make_cache(&(cache_layout){PAGES, G, PAGE, WIDTH, type, false, true, false, false, false}),
            .original = make_tensors(&whole, (uint64_t)type),
            .right = make_tensors(&whole, (uint64_t)type),
        };
        for (int64_t i = 0; i < G * TOKENS; i++) {
            round_to_type(l.right.k + i * WIDTH, type);
            round_to_type(l.right.v + i * WIDTH, type);
        }
        run_tensors(&whole, &l.right);
        append_and_attend(&l, 0, PREFILL);
        for (int64_t from = PREFILL; from < TOKENS; from++)
            append_and_attend(&l, from, 1);
        free_cache(&l.k);
        free_cache(&l.v);
        free_tensors(&l.original);
        free_tensors(&l.right);
    }
}

/* ---- What is refused ---- */

/* Neither cache may change. The problem's expected caches are untouched ones. */
static void expect_refused(append_problem *p, const attree_desc *desc, const attree_new_tokens *tokens,
                           attree_status status)
{
    const attree_status got = append(desc, tokens);
    if (got != status)
        fail_msg("status is %s, not %s: %s", attree_status_name(got), attree_status_name(status), attree_last_error());
    assert_same_caches(&p->k, &p->expected_k);
    assert_same_caches(&p->v, &p->expected_v);
}

static const append_case refused_case = {.k_type = ATTREE_I8, .v_type = ATTREE_Q8_0, .page_size = 3, .seed = 4};
static const append_case refused_dense = {.k_type = ATTREE_Q4_0, .v_type = ATTREE_I8, .seed = 4};

static void bad_positions_are_refused(void **state)
{
    (void)state;
    const int64_t offsets[] = {-1, -QUERIES, -(INT64_MAX / 2), ROOM - QUERIES + 1, ROOM, INT64_MAX / 2};
    const append_case *const cases[] = {&refused_case, &refused_dense};
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 6; i++) {
            append_problem p;
            make_problem(&p, cases[n]);
            attree_desc d = p.desc;
            d.flags |= ATTREE_USE_Q_OFFSET;
            d.q_offset = offsets[i];
            expect_refused(&p, &d, &p.tokens, ATTREE_ERROR_SHAPE);
            /* of the last sequence only: the others are not written either */
            const int64_t each[B] = {0, 3, offsets[i]};
            d = p.desc;
            d.q_offsets = each;
            expect_refused(&p, &d, &p.tokens, ATTREE_ERROR_SHAPE);
            /* more new tokens than keys */
            const int64_t lens[B] = {ROOM, ROOM, i % QUERIES};
            d = p.desc;
            d.kv_lens = lens;
            expect_refused(&p, &d, &p.tokens, ATTREE_ERROR_SHAPE);
            free_problem(&p);
        }
}

static void bad_pages_are_refused(void **state)
{
    (void)state;
    append_problem p;
    make_problem(&p, &refused_case);
    const int32_t bad[] = {-1, INT32_MAX, INT32_MIN, (int32_t)p.desc.page_count};
    int32_t *const last = &p.table[B * p.desc.table_width - 1], right = *last;
    for (int i = 0; i < 4; i++) {
        *last = bad[i];
        expect_refused(&p, &p.desc, &p.tokens, ATTREE_ERROR_VALUE);
        assert_non_null(strstr(attree_last_error(), "page_table"));
    }
    *last = right;
    attree_new_tokens tokens = p.tokens;
    tokens.page_table = NULL;
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_NULL);
    tokens.page_table = (const int32_t *)(const void *)((const char *)p.table + 2);
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_ALIGN);
    attree_desc narrow = p.desc;
    narrow.table_width--;
    expect_refused(&p, &narrow, &p.tokens, ATTREE_ERROR_SHAPE);
    free_problem(&p);
    make_problem(&p, &refused_dense);
    const int32_t table[64] = {0};
    tokens = p.tokens;
    tokens.page_table = table;
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_VALUE);
    free_problem(&p);
}

static void bad_pointers_are_refused(void **state)
{
    (void)state;
    append_problem p;
    make_problem(&p, &refused_case);
    const struct {
        attree_status status;
        size_t field; /* a pointer that becomes NULL, or is moved by one byte */
    } pointers[] = {
        {ATTREE_ERROR_NULL, offsetof(attree_new_tokens, k)},
        {ATTREE_ERROR_NULL, offsetof(attree_new_tokens, v)},
        {ATTREE_ERROR_NULL, offsetof(attree_new_tokens, cache_k)},
        {ATTREE_ERROR_NULL, offsetof(attree_new_tokens, cache_v)},
        {ATTREE_ERROR_NULL, offsetof(attree_new_tokens, cache_k_scales)},
        {ATTREE_ERROR_ALIGN, offsetof(attree_new_tokens, k)},
        {ATTREE_ERROR_ALIGN, offsetof(attree_new_tokens, v)},
        {ATTREE_ERROR_ALIGN, offsetof(attree_new_tokens, cache_v)},
        {ATTREE_ERROR_ALIGN, offsetof(attree_new_tokens, cache_k_scales)},
    };
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        attree_new_tokens tokens = p.tokens;
        char *pointer;
        memcpy(&pointer, (char *)&tokens + pointers[i].field, sizeof pointer);
        pointer = pointers[i].status == ATTREE_ERROR_NULL ? NULL : pointer + 1;
        memcpy((char *)&tokens + pointers[i].field, &pointer, sizeof pointer);
        expect_refused(&p, &p.desc, &tokens, pointers[i].status);
    }
    attree_new_tokens tokens = p.tokens;
    tokens.size--;
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_SIZE);
    assert_int_equal(attree_append(NULL, &p.tokens), ATTREE_ERROR_NULL);
    free_problem(&p);
}

/* The cache must not be where the new tokens are. */
static void overlaps_are_refused(void **state)
{
    (void)state;
    append_problem p;
    make_problem(&p, &refused_case);
    attree_new_tokens tokens = p.tokens;
    tokens.cache_k = p.new_v;
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_ALIAS);
    tokens = p.tokens;
    tokens.cache_v = p.new_k;
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_ALIAS);
    tokens = p.tokens;
    tokens.cache_k_scales = p.new_v;
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_ALIAS);
    free_problem(&p);
    make_problem(&p, &refused_dense);
    tokens = p.tokens;
    tokens.cache_v_scales = p.new_k;
    expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_ALIAS);
    free_problem(&p);
}

static void types_of_new_tokens_are_float_types(void **state)
{
    (void)state;
    append_problem p;
    make_problem(&p, &refused_case);
    const int32_t types[] = {-1, ATTREE_I8, ATTREE_Q8_0, ATTREE_F8_E4M3, ATTREE_F8_E5M2, 8, INT32_MAX};
    for (int i = 0; i < 6; i++) {
        attree_new_tokens tokens = p.tokens;
        tokens.k_type = types[i];
        expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_TYPE);
        tokens.k_type = ATTREE_F32;
        tokens.v_type = types[i];
        expect_refused(&p, &p.desc, &tokens, ATTREE_ERROR_TYPE);
    }
    free_problem(&p);
}

static void numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const append_case *const cases[] = {&refused_case, &refused_dense};
    for (int n = 0; n < 6; n++)
        for (int values = 0; values < 2; values++) {
            append_problem p;
            make_problem(&p, cases[n / 3]);
            ((float *)(values ? p.new_v : p.new_k))[(values ? p.desc.v_width : p.desc.qk_width) - 1] = bad[n % 3];
            expect_refused(&p, &p.desc, &p.tokens, ATTREE_ERROR_NONFINITE);
            free_problem(&p);
        }
}

/* In the last number of the last token of V, after all of K: nothing has been written. NaN and infinities are kept. */
static void numbers_that_would_become_infinite_are_refused(void **state)
{
    (void)state;
    static const struct {
        int32_t type;
        float fits, too_large;
    } cases[] = {{ATTREE_F16, 65519.0f, 65520.0f}, {ATTREE_BF16, 0x1.fefffep127f, 0x1.ffp127f}};
    const float kept[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 2; n++)
        for (int sign = -1; sign < 2; sign += 2) {
            const append_case c = {.k_type = cases[n].type, .v_type = cases[n].type, .seed = 5};
            append_problem p;
            make_problem(&p, &c);
            float *const last = (float *)p.new_v + B * G * p.desc.q_len * p.desc.v_width - 1;
            *last = (float)sign * cases[n].too_large;
            expect_refused(&p, &p.desc, &p.tokens, ATTREE_ERROR_NONFINITE);
            *last = (float)sign * cases[n].fits;
            assert_int_equal(append(&p.desc, &p.tokens), ATTREE_OK);
            for (int i = 0; i < 3; i++) {
                *last = kept[i];
                assert_int_equal(append(&p.desc, &p.tokens), ATTREE_OK);
            }
            uint16_t row[1];
            assert_int_equal(attree_quantize(c.v_type, 1, last, row, NULL), ATTREE_OK);
            *last = (float)sign * cases[n].too_large;
            assert_int_equal(attree_quantize(c.v_type, 1, last, row, NULL), ATTREE_ERROR_NONFINITE);
            free_problem(&p);
        }
}

/* Nothing to append needs no pointers. */
static void no_tokens_are_fine(void **state)
{
    (void)state;
    append_problem p;
    make_problem(&p, &refused_case);
    attree_desc d = p.desc;
    d.q_len = 0;
    const attree_new_tokens nothing = {.size = sizeof nothing};
    expect_refused(&p, &d, &nothing, ATTREE_OK);
    d = p.desc;
    d.batch = 0;
    expect_refused(&p, &d, &nothing, ATTREE_OK);
    free_problem(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_tokens_go_where_they_belong),
        cmocka_unit_test(attention_follows_appending),
        cmocka_unit_test(bad_positions_are_refused),
        cmocka_unit_test(bad_pages_are_refused),
        cmocka_unit_test(bad_pointers_are_refused),
        cmocka_unit_test(overlaps_are_refused),
        cmocka_unit_test(types_of_new_tokens_are_float_types),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(numbers_that_would_become_infinite_are_refused),
        cmocka_unit_test(no_tokens_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
