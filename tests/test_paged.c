/* Paged caches: o and lse have the bits that they have over the same keys and values in a dense cache, for any page
 * size, order of pages, sharing, type, layout, instruction set and number of threads. What no query can see is
 * inaccessible memory, NaN, or a page number that is garbage. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/dtype.h"
#include "caches.h"

enum { B = 3, H = 4, G = 2, NO_WINDOW = -1 };

typedef struct paged_case {
    int64_t page_size, q_len, kv_most, window_left;
    uint32_t flags;
    int32_t k_type, v_type;
    bool panels, token_major, apart, at_start;
    bool spread; /* numbers of a row are not adjacent */
    bool shared; /* sequences share pages, and one has a page twice */
    uint64_t seed;
} paged_case;

/* One problem, with its keys and values in pages and dense. */
typedef struct paged_problem {
    attree_desc paged, dense;
    attree_args paged_args, dense_args;
    cache paged_k, paged_v, dense_k, dense_v;
    int64_t kv_lens[B];
    guarded table;
    float *q, *k, *v; /* k, v: of [page][head][token], as they were before they became of their types */
    bool *written;    /* [page][token] */
    int64_t o_count, lse_count;
} paged_problem;

static float *random_numbers(int64_t count, random_source *random)
{
    float *const numbers = nan_floats(count);
    fill_random(numbers, count, random, -1.0f, 1.0f);
    return numbers;
}

static int32_t *table_of(const paged_problem *p) { return (int32_t *)(void *)p->table.data; }

/* The keys of sequence b that some query sees: first <= j < kv_lens[b]. */
static int64_t first_seen(const paged_problem *p, int64_t b)
{
    const int64_t first = p->kv_lens[b] - p->dense.q_len - p->dense.window_left;
    return p->dense.flags & ATTREE_USE_WINDOW && first > 0 ? first : 0;
}

static void describe_problem(paged_problem *p, const paged_case *c)
{
    p->dense =
        make_desc(B, H, G, c->q_len, c->kv_most, has_blocks(c->k_type) ? 32 : 19, has_blocks(c->v_type) ? 64 : 37);
    p->dense.flags = c->flags | (c->window_left >= 0 ? ATTREE_USE_WINDOW : 0u);
    p->dense.window_left = c->window_left;
    p->dense.window_right = -1;
    p->kv_lens[0] = c->kv_most;
    p->kv_lens[1] = c->kv_most * 5 / 8 + 1;
    p->kv_lens[2] = c->kv_most / 30 + 1;
    p->dense.kv_lens = p->kv_lens;
    p->paged = p->dense;
    p->paged.page_size = c->page_size;
    p->paged.table_width = (c->kv_most + c->page_size - 1) / c->page_size + 2;
    p->o_count = B * H * c->q_len * p->dense.v_width;
    p->lse_count = B * H * c->q_len;
}

/* Numbers 0 ... count - 1 in any order. */
static int32_t *permutation(int64_t count, random_source *random)
{
    int32_t *const order = malloc((size_t)count * sizeof *order);
    assert_non_null(order);
    for (int64_t n = 0; n < count; n++) {
        const int64_t other = random_integer(random, 0, n);
        order[n] = order[other];
        order[other] = (int32_t)n;
    }
    return order;
}

/* Fills the table; where no key is seen with what is no page, or one that nobody uses. */
static void make_table(paged_problem *p, const paged_case *c, random_source *random)
{
    const int64_t width = p->paged.table_width;
    p->paged.page_count = B * width;
    p->table = guarded_floats(B * width, c->at_start);
    int32_t *const table = table_of(p), *const order = permutation(p->paged.page_count, random);
    const int32_t garbage[] = {-1, INT32_MAX, INT32_MIN, (int32_t)p->paged.page_count, order[p->paged.page_count - 1]};
    int64_t used = 0;
    for (int64_t b = 0; b < B; b++) {
        const int64_t from = first_seen(p, b) / c->page_size, to = (p->kv_lens[b] - 1) / c->page_size;
        for (int64_t n = 0; n < width; n++) {
            int32_t *const entry = &table[b * width + n];
            if (n < from || n > to)
                *entry = garbage[random_integer(random, 0, 4)];
            else if (c->shared && b == 1 && n >= first_seen(p, 0) / c->page_size)
                *entry = table[n];
            else if (c->shared && n == to && n > from && b != 1)
                *entry = table[b * width + from];
            else
                *entry = order[used++];
        }
    }
    free(order);
}

/* Writes keys and values of token j of sequence b, to its page unless it is there already, and to the dense cache. */
static void write_token(paged_problem *p, int64_t b, int64_t j)
{
    const int64_t size = p->paged.page_size, page = table_of(p)[b * p->paged.table_width + j / size], token = j % size;
    bool *const written = &p->written[page * size + token];
    for (int64_t g = 0; g < G; g++) {
        const float *const k = p->k + ((page * G + g) * size + token) * p->dense.qk_width;
        const float *const v = p->v + ((page * G + g) * size + token) * p->dense.v_width;
        cache_write(&p->dense_k, (cache_at){b, g, j}, k);
        cache_write(&p->dense_v, (cache_at){b, g, j}, v);
        if (*written)
            continue;
        cache_write(&p->paged_k, (cache_at){page, g, token}, k);
        cache_write(&p->paged_v, (cache_at){page, g, token}, v);
    }
    *written = true;
}

static void make_caches(paged_problem *p, const paged_case *c)
{
    const int64_t kv = c->kv_most, size = c->page_size;
    p->dense_k = make_cache(&(cache_layout){B, G, kv, p->dense.qk_width, c->k_type, false, false, false, false, false});
    p->dense_v = make_cache(&(cache_layout){B, G, kv, p->dense.v_width, c->v_type, false, false, false, false, false});
    p->paged_k =
        make_cache(&(cache_layout){p->paged.page_count, G, size, p->dense.qk_width, c->k_type, c->panels,
                                   c->token_major, c->apart, c->at_start, c->spread && !has_blocks(c->k_type)});
    p->paged_v =
        make_cache(&(cache_layout){p->paged.page_count, G, size, p->dense.v_width, c->v_type, false, c->token_major,
                                   c->apart, c->at_start, c->spread && !has_blocks(c->v_type)});
    describe_keys(&p->dense, &p->dense_k);
    describe_values(&p->dense, &p->dense_v);
    describe_keys(&p->paged, &p->paged_k);
    describe_values(&p->paged, &p->paged_v);
    p->dense_args = p->paged_args = (attree_args){.size = sizeof(attree_args), .q = p->q};
    point_to_caches(&p->dense_args, &p->dense_k, &p->dense_v);
    point_to_caches(&p->paged_args, &p->paged_k, &p->paged_v);
    p->paged_args.page_table = table_of(p);
}

/* Into *p, which desc->kv_lens points into. */
static void make_problem(paged_problem *p, const paged_case *c)
{
    random_source random = {c->seed * 2 + 1};
    *p = (paged_problem){.q = NULL};
    describe_problem(p, c);
    make_table(p, c, &random);
    const int64_t tokens = p->paged.page_count * c->page_size;
    p->q = random_numbers(B * H * c->q_len * p->dense.qk_width, &random);
    p->k = random_numbers(tokens * G * p->dense.qk_width, &random);
    p->v = random_numbers(tokens * G * p->dense.v_width, &random);
    p->written = calloc((size_t)tokens, sizeof(bool));
    assert_non_null(p->written);
    make_caches(p, c);
    for (int64_t b = 0; b < B; b++)
        for (int64_t j = first_seen(p, b); j < p->kv_lens[b]; j++)
            write_token(p, b, j);
}

static void free_problem(paged_problem *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->written);
    guarded_free(&p->table);
    free_cache(&p->dense_k);
    free_cache(&p->dense_v);
    free_cache(&p->paged_k);
    free_cache(&p->paged_v);
}

/* o, then lse. Freed by the caller. */
static float *run_problem(const paged_problem *p, const attree_desc *desc, const attree_args *args)
{
    float *const result = malloc((size_t)(p->o_count + p->lse_count) * sizeof *result);
    assert_non_null(result);
    memset(result, 0xff, (size_t)(p->o_count + p->lse_count) * sizeof *result);
    attree_args run = *args;
    run.o = result;
    run.lse = result + p->o_count;
    run_expecting(ATTREE_OK, desc, &run);
    return result;
}

static void print_case(const paged_case *c, int isa)
{
    print_error("isa %d: page_size %lld q_len %lld kv_most %lld window %lld flags %x types %s %s panels %d token_major "
                "%d apart %d at_start %d shared %d seed %llu\n",
                isa, (long long)c->page_size, (long long)c->q_len, (long long)c->kv_most, (long long)c->window_left,
                c->flags, type_name(c->k_type), type_name(c->v_type), c->panels, c->token_major, c->apart, c->at_start,
                c->shared, (unsigned long long)c->seed);
}

/* With every instruction set. */
static void check_case(const paged_case *c, int32_t threads)
{
    if (thinned_out())
        return;
    attree_isa isas[8];
    const int count = available_isas(isas);
    paged_problem p;
    make_problem(&p, c);
    float *const expected = run_problem(&p, &p.dense, &p.dense_args);
    const int64_t numbers = p.o_count + p.lse_count;
    p.paged.threads = threads;
    for (int i = 0; i < count; i++) {
        p.paged.isa = (int32_t)isas[i];
        float *const got = run_problem(&p, &p.paged, &p.paged_args);
        if (memcmp(expected, got, (size_t)numbers * sizeof *got) != 0)
            print_case(c, (int)isas[i]);
        assert_same_bits(expected, got, numbers);
        free(got);
    }
    free(expected);
    free_problem(&p);
}

/* A case of everything but the page size and the types. */
static paged_case random_case(random_source *random)
{
    static const int64_t q_lens[] = {1, 2, 3, 5, 7, 30};
    paged_case c = {
        .q_len = q_lens[random_integer(random, 0, 5)],
        .flags = random_integer(random, 0, 2) ? ATTREE_CAUSAL : 0,
        .token_major = random_integer(random, 0, 1),
        .apart = random_integer(random, 0, 2) != 0,
        .at_start = random_integer(random, 0, 1),
        .shared = random_integer(random, 0, 2) == 0,
        .seed = (uint64_t)random_integer(random, 0, 1 << 30),
    };
    c.window_left = random_integer(random, 0, 2) ? NO_WINDOW : random_integer(random, 0, 200);
    c.kv_most = c.q_len < 10 ? random_integer(random, 257, 700) : random_integer(random, 257, 350);
    return c;
}

static const int64_t page_sizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 24, 32, 48, 64, 256, 300};
enum { PAGE_SIZES = sizeof page_sizes / sizeof *page_sizes };

static void pages_have_the_bits_of_a_dense_cache(void **state)
{
    (void)state;
    random_source random = {1};
    for (int n = 0; n < PAGE_SIZES; n++)
        for (int32_t type = ATTREE_F32; type < ATTREE__DTYPE_COUNT; type++)
            for (int round = 0; round < 3; round++) {
                paged_case c = random_case(&random);
                c.page_size = page_sizes[n];
                c.k_type = type;
                c.v_type = (type + round) % ATTREE__DTYPE_COUNT;
                check_case(&c, 1);
            }
}

static void pages_of_spread_rows_have_the_bits_of_a_dense_cache(void **state)
{
    (void)state;
    random_source random = {5};
    for (int n = 0; n < PAGE_SIZES; n++)
        for (int32_t type = ATTREE_F32; type < ATTREE__DTYPE_COUNT; type++) {
            paged_case c = random_case(&random);
            c.page_size = page_sizes[n];
            c.spread = true;
            c.k_type = type;
            c.v_type = (type + n) % ATTREE__DTYPE_COUNT;
            check_case(&c, 1);
        }
}

static void pages_of_panels_have_the_bits_of_a_dense_cache(void **state)
{
    (void)state;
    static const int32_t types[] = {ATTREE_F32, ATTREE_F16, ATTREE_BF16, ATTREE_I8, ATTREE_F8_E4M3, ATTREE_F8_E5M2};
    random_source random = {3};
    for (int n = 0; n < PAGE_SIZES; n++)
        for (int t = 0; t < 6; t++)
            for (int round = 0; round < 3; round++) {
                paged_case c = random_case(&random);
                c.page_size = page_sizes[n];
                c.panels = true;
                c.k_type = types[t];
                c.v_type = (types[t] + round) % ATTREE__DTYPE_COUNT;
                if (c.page_size % 16 == 0)
                    check_case(&c, 1);
            }
}

/* Every number of rows from a decode step to more than a register tile, at both ends of the pages. */
static void every_row_count_has_the_bits_of_a_dense_cache(void **state)
{
    (void)state;
    const int64_t rows[] = {1, 2, 3, 4, 5, 6, 8, 11, 12, 13, 24, 25, 40};
    for (int n = 0; n < 13; n++)
        for (int variant = 0; variant < 8; variant++) {
            const paged_case c = {
                .page_size = variant & 1 ? 16 : 7,
                .q_len = rows[n],
                .kv_most = 270,
                .window_left = n % 3 ? NO_WINDOW : 40,
                .flags = ATTREE_CAUSAL,
                .k_type = (n + variant) % ATTREE__DTYPE_COUNT,
                .v_type = (n + variant / 2) % ATTREE__DTYPE_COUNT,
                .apart = true,
                .at_start = variant & 2,
                .token_major = variant & 4,
                .panels = variant & 1 && !has_blocks((n + variant) % ATTREE__DTYPE_COUNT),
                .seed = (uint64_t)(n * 8 + variant),
            };
            check_case(&c, 1);
        }
}

/* Fewer keys than a page, or a piece of 16. */
static void few_keys_have_the_bits_of_a_dense_cache(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 2, 16, 64};
    for (int64_t keys = 1; keys <= 17; keys++)
        for (int n = 0; n < 4; n++)
            for (int64_t queries = 1; queries <= keys + 1; queries += 1 + keys / 4) {
                const paged_case c = {.page_size = sizes[n],
                                      .q_len = queries,
                                      .kv_most = keys,
                                      .window_left = keys % 4 == 3 ? 2 : NO_WINDOW,
                                      .flags = ATTREE_CAUSAL,
                                      .k_type = (int32_t)(keys + n) % ATTREE__DTYPE_COUNT,
                                      .v_type = (int32_t)(keys + queries) % ATTREE__DTYPE_COUNT,
                                      .apart = keys % 2,
                                      .at_start = queries % 2,
                                      .shared = keys % 3 == 0,
                                      .seed = (uint64_t)keys};
                check_case(&c, 1);
            }
}

static void threads_have_the_bits_of_a_dense_cache(void **state)
{
    (void)state;
    for (int n = 0; n < 8; n++) {
        const paged_case c = {.page_size = page_sizes[n + 2],
                              .q_len = n % 2 ? 2 : 26,
                              .kv_most = n % 2 ? 3000 : 600,
                              .window_left = n % 3 ? NO_WINDOW : 520,
                              .flags = n % 4 < 2 ? ATTREE_CAUSAL : 0,
                              .k_type = n % ATTREE__DTYPE_COUNT,
                              .v_type = (n + 3) % ATTREE__DTYPE_COUNT,
                              .token_major = n % 3 == 0,
                              .shared = n % 4 == 1,
                              .seed = (uint64_t)n};
        check_case(&c, 3);
        paged_problem p;
        char text[256];
        attree_plan *plan;
        make_problem(&p, &c);
        p.paged.threads = 3;
        assert_int_equal(attree_plan_create(&plan, &p.paged), ATTREE_OK);
        assert_int_equal(attree_plan_describe(plan, text, sizeof text), ATTREE_OK);
        assert_non_null(strstr(text, c.window_left < 0 || n % 2 == 0 ? "3 workers" : "workers"));
        attree_plan_destroy(plan);
        free_problem(&p);
    }
}

/* ---- A table of which the start is not even memory ---- */

/* One sequence with pages of one token and a window: entries before the window lie in inaccessible memory. */
static void entries_of_keys_outside_the_window_are_not_read(void **state)
{
    (void)state;
    enum { WINDOW = 40, PAST = 90 };
    const int64_t system = sysconf(_SC_PAGESIZE), hidden = system / (int64_t)sizeof(int32_t), keys = hidden + PAST;
    char *const mapping = mmap(NULL, (size_t)(2 * system), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(mapping != MAP_FAILED);
    assert_int_equal(mprotect(mapping + system, (size_t)system, PROT_READ | PROT_WRITE), 0);
    const int32_t *const table = (const int32_t *)(const void *)mapping;
    int32_t *const seen = (int32_t *)(void *)(mapping + system);

    attree_desc dense = make_desc(1, 1, 1, 2, keys, 8, 8);
    dense.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
    dense.window_left = WINDOW;
    dense.window_right = -1;
    tensors t = make_tensors(&dense, 5);
    run_tensors(&dense, &t);
    attree_desc paged = dense;
    paged.page_size = 1;
    paged.page_count = PAST;
    paged.table_width = keys;
    for (int32_t n = 0; n < PAST; n++)
        seen[n] = n < PAST - WINDOW - 2 ? -1 : n;
    float o[2 * 8], lse[2];
    const attree_args args = {
        .q = t.q, .k = t.k + hidden * 8, .v = t.v + hidden * 8, .o = o, .lse = lse, .page_table = table};
    run_expecting(ATTREE_OK, &paged, &args);
    assert_same_bits(t.o, o, t.o_count);
    assert_same_bits(t.lse, lse, t.lse_count);
    free_tensors(&t);
    munmap(mapping, (size_t)(2 * system));
}

/* ---- Ragged queries: prefill and decode rows in one call ---- */

enum { SEQUENCES = 6, RAGGED_PAGES = 64 };

typedef struct ragged_problem {
    attree_desc desc;
    attree_args args;
    cache k, v;
    int32_t table[SEQUENCES * RAGGED_PAGES];
    float *q, *o, *lse;
} ragged_problem;

static const int64_t ragged_starts[SEQUENCES + 1] = {0, 1, 31, 31, 32, 37, 77};
static const int64_t ragged_kv_lens[SEQUENCES] = {523, 30, 12, 1, 260, 300};

static void make_ragged(ragged_problem *p, int64_t page_size, int32_t type, bool panels)
{
    const int64_t queries = ragged_starts[SEQUENCES];
    random_source random = {(uint64_t)page_size * 2 + 1};
    *p = (ragged_problem){.desc = make_desc(SEQUENCES, H, G, queries, 523, 32, 64)};
    p->desc.flags = ATTREE_CAUSAL;
    p->desc.q_starts = ragged_starts;
    p->desc.kv_lens = ragged_kv_lens;
    p->desc.page_size = page_size;
    p->desc.table_width = RAGGED_PAGES;
    p->desc.page_count = 6 * (523 / page_size + 1);
    p->k = make_cache(&(cache_layout){p->desc.page_count, G, page_size, 32, type, panels, false, true, false, false});
    p->v = make_cache(&(cache_layout){p->desc.page_count, G, page_size, 64, type, false, true, true, true, false});
    describe_keys(&p->desc, &p->k);
    describe_values(&p->desc, &p->v);
    int32_t *const order = permutation(p->desc.page_count, &random);
    memset(p->table, 0xff, sizeof p->table);
    int64_t used = 0;
    for (int64_t b = 0; b < SEQUENCES; b++)
        for (int64_t j = 0; j < ragged_kv_lens[b]; j++) {
            int32_t *const page = &p->table[b * RAGGED_PAGES + j / page_size];
            *page = *page < 0 ? order[used++] : *page;
            for (int64_t g = 0; g < G; g++) {
                float numbers[64];
                fill_random(numbers, 64, &random, -1.0f, 1.0f);
                cache_write(&p->k, (cache_at){*page, g, j % page_size}, numbers);
                cache_write(&p->v, (cache_at){*page, g, j % page_size}, numbers);
            }
        }
    free(order);
    p->q = random_numbers(H * queries * 32, &random);
    p->o = random_numbers(H * queries * 64, &random);
    p->lse = random_numbers(H * queries, &random);
    p->args = (attree_args){.q = p->q, .o = p->o, .lse = p->lse, .page_table = p->table};
    point_to_caches(&p->args, &p->k, &p->v);
}

static void free_ragged(ragged_problem *p)
{
    free(p->q);
    free(p->o);
    free(p->lse);
    free_cache(&p->k);
    free_cache(&p->v);
}

/* Each sequence of it, with the same pages, in a call of its own. */
static void check_sequences_alone(const ragged_problem *p)
{
    const int64_t all = ragged_starts[SEQUENCES];
    for (int64_t b = 0; b < SEQUENCES; b++) {
        const int64_t start = ragged_starts[b], queries = ragged_starts[b + 1] - start;
        attree_desc alone = p->desc;
        alone.batch = 1;
        alone.q_starts = alone.kv_lens = NULL;
        alone.q_len = queries;
        alone.kv_len = ragged_kv_lens[b];
        alone.q = (attree_strides){0, all * 32, 32, 1};
        float o[H * 40 * 64], lse[H * 40];
        attree_args args = p->args;
        args.q = p->q + start * 32;
        args.o = o;
        args.lse = lse;
        args.page_table = p->table + b * RAGGED_PAGES;
        run_expecting(ATTREE_OK, &alone, &args);
        for (int64_t h = 0; h < H; h++) {
            assert_same_bits(o + h * queries * 64, p->o + (h * all + start) * 64, queries * 64);
            assert_same_bits(lse + h * queries, p->lse + h * all + start, queries);
        }
    }
}

static void prefill_and_decode_in_one_call_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    const int64_t sizes[] = {16, 48, 11, 64};
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int32_t type = ATTREE_F32; type < ATTREE__DTYPE_COUNT; type++)
        for (int n = 0; n < 4; n++) {
            if (thinned_out())
                continue;
            ragged_problem p;
            make_ragged(&p, sizes[n], type, n % 2 && !has_blocks(type));
            p.desc.isa = (int32_t)isas[(type + n) % count];
            p.desc.threads = n % 2 ? 3 : 1;
            memset(p.o, 0xff, (size_t)(H * ragged_starts[SEQUENCES] * 64) * sizeof(float));
            run_expecting(ATTREE_OK, &p.desc, &p.args);
            p.desc.isa = ATTREE_ISA_AUTO;
            check_sequences_alone(&p);
            free_ragged(&p);
        }
}

/* ---- Weights ---- */

static void weights_over_pages_are_those_over_a_dense_cache(void **state)
{
    (void)state;
    for (int n = 0; n < PAGE_SIZES; n++) {
        const paged_case c = {.page_size = page_sizes[n],
                              .q_len = 2,
                              .kv_most = 320,
                              .window_left = n % 2 ? 100 : NO_WINDOW,
                              .flags = ATTREE_CAUSAL,
                              .k_type = n % ATTREE__DTYPE_COUNT,
                              .v_type = n % 5,
                              .apart = true,
                              .at_start = n % 2,
                              .panels = page_sizes[n] % 16 == 0 && !has_blocks(n % ATTREE__DTYPE_COUNT),
                              .seed = (uint64_t)n};
        paged_problem p;
        make_problem(&p, &c);
        float weights[2][320];
        for (int paged = 0; paged < 2; paged++) {
            const attree_desc *const desc = paged ? &p.paged : &p.dense;
            attree_args args = paged ? p.paged_args : p.dense_args;
            float *const result = run_problem(&p, desc, &args);
            args.o = result;
            args.lse = result + p.o_count;
            attree_plan *plan;
            assert_int_equal(attree_plan_create(&plan, desc), ATTREE_OK);
            args.workspace_bytes = attree_plan_workspace(plan);
            args.workspace = aligned_alloc(64, args.workspace_bytes);
            assert_non_null(args.workspace);
            memset(weights[paged], 0xff, sizeof weights[paged]);
            assert_int_equal(attree_weights(plan, &args, n % 2, 3, 1, weights[paged]), ATTREE_OK);
            free(args.workspace);
            attree_plan_destroy(plan);
            free(result);
        }
        assert_same_bits(weights[0], weights[1], 320);
        free_problem(&p);
    }
}

/* Keys of width 0 have no memory at all, also in pages whose rows are gathered: o is the mean of the values. */
static void keys_without_numbers_need_no_memory(void **state)
{
    (void)state;
    const int32_t types[] = {ATTREE_F32, ATTREE_I8, ATTREE_Q8_0, ATTREE_Q4_0};
    const int32_t table[] = {2, 0, 1};
    const float v[3] = {1.0f, 2.0f, 6.0f}, scales[3] = {1.0f, 1.0f, 1.0f};
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int n = 0; n < 4 * count; n++) {
        attree_desc d = make_desc(1, 1, 1, 1, 3, 0, 1);
        d.page_size = 1;
        d.page_count = d.table_width = 3;
        d.k_type = types[n % 4];
        d.isa = (int32_t)isas[n / 4];
        float o = 0.0f;
        const attree_args args = {.size = sizeof args, .v = v, .o = &o, .page_table = table, .k_scales = scales};
        run_expecting(ATTREE_OK, &d, &args);
        assert_true(o == 3.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_have_the_bits_of_a_dense_cache),
        cmocka_unit_test(pages_of_spread_rows_have_the_bits_of_a_dense_cache),
        cmocka_unit_test(pages_of_panels_have_the_bits_of_a_dense_cache),
        cmocka_unit_test(every_row_count_has_the_bits_of_a_dense_cache),
        cmocka_unit_test(few_keys_have_the_bits_of_a_dense_cache),
        cmocka_unit_test(threads_have_the_bits_of_a_dense_cache),
        cmocka_unit_test(entries_of_keys_outside_the_window_are_not_read),
        cmocka_unit_test(prefill_and_decode_in_one_call_have_the_bits_of_each_alone),
        cmocka_unit_test(keys_without_numbers_need_no_memory),
        cmocka_unit_test(weights_over_pages_are_those_over_a_dense_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
