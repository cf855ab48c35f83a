/* Sizes and offsets beyond 31 and 32 bits: keys, strides of tokens, batch entries and pages. Memory is mapped without
 * being there until it is written to, and reads as zeros, so that little of it is in use. Results have the bits of the
 * same keys in a small problem.
 *
 * With the argument long: all keys of 2^31 + 7, once. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support.h"

#include "../src/dtype.h"

#define MANY (((int64_t)1 << 31) + 7)
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- Sparse tensors ---- */

typedef struct sparse {
    char *data;
    size_t bytes;
    int32_t type;
} sparse;

/* count numbers, all 0. Skips the test where so much address space is not to be had. */
static sparse make_sparse(int64_t count, int32_t type)
{
    sparse s = {.bytes = (size_t)(count * attree__dtype_bytes(type)), .type = type};
    void *const memory =
        mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        print_message("no %zu bytes of address space\n", s.bytes);
        skip();
    }
    s.data = memory;
    return s;
}

static void free_sparse(sparse *s) { munmap(s->data, s->bytes); }

/* Number n becomes x, which the type has. */
static void put(const sparse *s, int64_t n, float x)
{
    char *const at = s->data + n * attree__dtype_bytes(s->type);
    if (s->type == ATTREE_F8_E4M3 || s->type == ATTREE_I8) {
        float scale;
        unsigned char code = (unsigned char)(signed char)(int)x;
        if (s->type == ATTREE_F8_E4M3)
            assert_int_equal(attree_quantize(s->type, 1, &x, &code, &scale), ATTREE_OK);
        memcpy(at, &code, 1);
    } else
        attree__store(at, s->type, 0, x);
}

static float taken(const sparse *s, int64_t n) { return attree__load(s->data, s->type, n); }

/* Small numbers that all types have. */
static float number(int64_t n) { return (float)((n * 5 + n / 3) % 15 - 7); }

/* ---- Many keys ---- */

/* One query of one head over MANY keys of width 1. */
typedef struct many {
    attree_desc desc;
    sparse k, v;
    float q, o, lse;
} many;

static void make_many(many *m, int32_t type)
{
    *m = (many){.desc = make_desc(1, 1, 1, 1, MANY, 1, 1), .q = 0.25f};
    m->desc.k_type = m->desc.v_type = type;
    m->k = make_sparse(MANY, type);
    m->v = make_sparse(MANY, type);
}

static void free_many(many *m)
{
    free_sparse(&m->k);
    free_sparse(&m->v);
}

static void run_many(many *m, attree_args args)
{
    args.q = &m->q;
    args.k = m->k.data;
    args.v = m->v.data;
    args.o = &m->o;
    args.lse = &m->lse;
    m->o = m->lse = NAN;
    run_expecting(ATTREE_OK, &m->desc, &args);
}

/* A window of the last keys, on both sides of key 2^31: the same keys at the same places of their blocks, in a problem
 * of 512 + 7, where the tree joins these blocks as well. */
static void a_window_at_the_end_of_many_keys(void **state)
{
    (void)state;
    static const int32_t types[] = {ATTREE_F8_E4M3, ATTREE_F16};
    enum { FEW = 512 + 7 };
    const int64_t shift = MANY - FEW;
    for (size_t n = 0; n < COUNT_OF(types); n++) {
        many m, few;
        make_many(&m, types[n]);
        make_many(&few, types[n]);
        few.desc.kv_len = FEW;
        for (int64_t j = FEW - 200; j < FEW; j++) {
            put(&m.k, j + shift, number(j));
            put(&m.v, j + shift, number(j * 7));
            put(&few.k, j, number(j));
            put(&few.v, j, number(j * 7));
        }
        m.desc.flags = few.desc.flags = ATTREE_CAUSAL | ATTREE_USE_WINDOW;
        m.desc.window_left = few.desc.window_left = 149;
        m.desc.window_right = few.desc.window_right = -1;
        attree_isa isas[8];
        const int count = available_isas(isas);
        for (int i = 0; i < count; i++) {
            m.desc.isa = few.desc.isa = (int32_t)isas[i];
            run_many(&few, (attree_args){.size = sizeof(attree_args)});
            run_many(&m, (attree_args){.size = sizeof(attree_args)});
            assert_same_bits(&few.o, &m.o, 1);
            assert_same_bits(&few.lse, &m.lse, 1);
            assert_true(m.o != 0.0f);
        }
        free_many(&m);
        free_many(&few);
    }
}

/* Lengths of batch entries and positions of queries, that many; entries share the memory. */
static void lengths_and_positions_of_many_keys(void **state)
{
    (void)state;
    enum { ENTRIES = 4 };
    many m;
    make_many(&m, ATTREE_F8_E4M3);
    const int64_t lens[ENTRIES] = {MANY, 5, MANY - 7, 0};
    const int64_t offsets[ENTRIES] = {MANY - 1, 4, MANY - 8, MANY};
    const float q[ENTRIES] = {0, 0, 0, 0};
    float o[ENTRIES], lse[ENTRIES];
    for (int64_t j = 0; j < 3; j++) {
        put(&m.v, MANY - 1 - j, 4.0f);
        put(&m.v, MANY - 8 - j, 8.0f);
        put(&m.v, 4 - j, 2.0f);
    }
    m.desc.batch = ENTRIES;
    m.desc.k = m.desc.v = (attree_strides){0, 0, 1, 1};
    m.desc.kv_lens = lens;
    m.desc.q_offsets = offsets;
    m.desc.flags = ATTREE_USE_WINDOW;
    m.desc.window_left = 2;
    m.desc.window_right = MANY;
    for (int32_t threads = 1; threads < 3; threads++) {
        m.desc.threads = threads;
        const attree_args args = {.size = sizeof args, .q = q, .k = m.k.data, .v = m.v.data, .o = o, .lse = lse};
        run_expecting(ATTREE_OK, &m.desc, &args);
        assert_true(o[0] == 4.0f && o[1] == 2.0f && o[2] == 8.0f && o[3] == 0.0f);
        assert_true(lse[0] == lse[1] && lse[0] == lse[2] && lse[3] == -INFINITY);
    }
    free_many(&m);
}

static bool is_kept(int64_t block) { return block == 0 || block == (1 << 23) - 1 || block == 1 << 23; }

static void pass_by(const attree_score_tile *tile, void *user)
{
    (void)tile;
    (void)user;
}

static attree_block_answer keep_some(const attree_score_tile *tile, void *user)
{
    (void)user;
    return is_kept(tile->first_key / 256) ? ATTREE_BLOCK_FULL : ATTREE_BLOCK_SKIP;
}

/* Almost all blocks are skipped: what is left is the first block, the last one below key 2^31, and what is beyond. */
static void many_keys_of_which_few_blocks_count(void **state)
{
    (void)state;
    many m;
    make_many(&m, ATTREE_F8_E4M3);
    const int64_t firsts[] = {0, ((int64_t)1 << 31) - 256, (int64_t)1 << 31};
    wide l = 0, u = 0;
    for (int n = 0; n < 3; n++)
        for (int64_t j = firsts[n]; j < firsts[n] + 256 && j < MANY; j++) {
            put(&m.k, j, number(j));
            put(&m.v, j, number(j + n));
            const wide weight = wide_exp((wide)(m.q * number(j)));
            l += weight;
            u += weight * number(j + n);
        }
    float first = NAN;
    for (int32_t threads = 1; threads < 4; threads += 2) {
        m.desc.threads = threads;
        run_many(&m, (attree_args){.size = sizeof(attree_args), .score = pass_by, .block = keep_some});
        assert_true(close_to((double)m.o, (double)(u / l), 1e-5));
        assert_true(close_to((double)m.lse, (double)wide_log(l), 1e-5));
        assert_true(threads == 1 || m.o == first);
        first = m.o;
    }
    free_many(&m);
}

/* Every key counts. All scores are 0, and all values but the last 7 and some before them. */
static void all_of_many_keys(void **state)
{
    (void)state;
    many m;
    make_many(&m, ATTREE_F8_E4M3);
    m.desc.threads = 2;
    for (int64_t j = MANY - 1000; j < MANY; j++)
        put(&m.v, j, 448.0f);
    run_many(&m, (attree_args){.size = sizeof(attree_args)});
    const double expected = 448.0 * 1000.0 / (double)MANY;
    assert_true(close_to((double)m.o, expected, expected * 1e-5));
    assert_true(close_to((double)m.lse, log((double)MANY), 1e-5));
    free_many(&m);
}

/* ---- Large strides ---- */

/* Which tensors have the large stride. */
typedef struct far {
    attree_desc desc; /* with the strides */
    int32_t type;
} far;

static int64_t reach(const attree_strides *s, const int64_t size[4])
{
    return s->batch * (size[0] - 1) + s->head * (size[1] - 1) + s->token * (size[2] - 1) + s->width * (size[3] - 1) + 1;
}

/* Copies all elements from one layout to another. */
static void copy(const sparse *to, const attree_strides *t, const sparse *from, const attree_strides *f,
                 const int64_t size[4])
{
    const size_t bytes = (size_t)attree__dtype_bytes(from->type);
    for (int64_t n = 0; n < size[0] * size[1] * size[2] * size[3]; n++) {
        const int64_t w = n % size[3], i = n / size[3] % size[2], h = n / size[3] / size[2] % size[1],
                      b = n / size[3] / size[2] / size[1];
        memcpy(to->data + (b * t->batch + h * t->head + i * t->token + w * t->width) * (int64_t)bytes,
               from->data + (b * f->batch + h * f->head + i * f->token + w * f->width) * (int64_t)bytes, bytes);
    }
}

static attree_strides dense(const int64_t size[4])
{
    return (attree_strides){size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
}

enum { TENSORS = 4 };

/* q, k, v, o; the same numbers in a dense problem and with the strides of far. */
static void check_far(const far *f)
{
    const attree_desc *d = &f->desc;
    const int64_t size[TENSORS][4] = {{d->batch, d->q_heads, d->q_len, d->qk_width},
                                      {d->batch, d->kv_heads, d->kv_len, d->qk_width},
                                      {d->batch, d->kv_heads, d->kv_len, d->v_width},
                                      {d->batch, d->q_heads, d->q_len, d->v_width}};
    const attree_strides *const strides[TENSORS] = {&d->q, &d->k, &d->v, &d->o};
    sparse near[TENSORS], spread[TENSORS];
    attree_strides packed[TENSORS];
    for (int n = 0; n < TENSORS; n++) {
        const int32_t type = n % 3 == 0 ? ATTREE_F32 : f->type;
        packed[n] = dense(size[n]);
        near[n] = make_sparse(reach(&packed[n], size[n]), type);
        spread[n] = make_sparse(reach(strides[n], size[n]), type);
        for (int64_t i = 0; i < reach(&packed[n], size[n]) && n < 3; i++)
            put(&near[n], i, number(i + n));
        copy(&spread[n], strides[n], &near[n], &packed[n], size[n]);
    }
    attree_desc plain = *d;
    plain.q = plain.k = plain.v = plain.o = (attree_strides){0};
    plain.k_type = plain.v_type = f->type;
    const attree_args args = {
        .size = sizeof args, .q = near[0].data, .k = near[1].data, .v = near[2].data, .o = near[3].data};
    run_expecting(ATTREE_OK, &plain, &args);
    attree_isa isas[8];
    const int count = available_isas(isas);
    for (int i = 0; i < count; i++) {
        attree_desc desc = *d;
        desc.k_type = desc.v_type = f->type;
        desc.isa = (int32_t)isas[i];
        const attree_args far_args = {
            .size = sizeof args, .q = spread[0].data, .k = spread[1].data, .v = spread[2].data, .o = spread[3].data};
        run_expecting(ATTREE_OK, &desc, &far_args);
        sparse gathered = make_sparse(reach(&packed[3], size[3]), ATTREE_F32);
        copy(&gathered, &packed[3], &spread[3], d->o.width ? &d->o : &packed[3], size[3]);
        assert_memory_equal(gathered.data, near[3].data, gathered.bytes);
        assert_true(taken(&gathered, 0) != 0.0f);
        free_sparse(&gathered);
    }
    for (int n = 0; n < TENSORS; n++) {
        free_sparse(&near[n]);
        free_sparse(&spread[n]);
    }
}

static void tokens_far_apart(void **state)
{
    (void)state;
    static const int32_t types[] = {ATTREE_F32, ATTREE_BF16, ATTREE_F8_E4M3};
    const int64_t step = ((int64_t)1 << 31) + 32;
    for (size_t n = 0; n < COUNT_OF(types); n++) {
        far f = {.desc = make_desc(1, 2, 1, 3, 4, 8, 16), .type = types[n]};
        f.desc.q = f.desc.o = (attree_strides){0, 16, step, 1};
        f.desc.k = f.desc.v = (attree_strides){0, 16, step, 1};
        check_far(&f);
    }
}

static void batch_entries_far_apart(void **state)
{
    (void)state;
    static const int32_t types[] = {ATTREE_F32, ATTREE_F8_E4M3};
    const int64_t step = (int64_t)1 << 30;
    for (size_t n = 0; n < COUNT_OF(types); n++) {
        far f = {.desc = make_desc(5, 2, 1, 3, 20, 8, 16), .type = types[n]};
        f.desc.q = (attree_strides){step, 24, 8, 1};
        f.desc.k = (attree_strides){step, 0, 8, 1};
        f.desc.v = (attree_strides){step, 0, 16, 1};
        f.desc.o = (attree_strides){step, 48, 16, 1};
        check_far(&f);
    }
}

/* Heads 2^31 apart, and the numbers of a row. */
static void heads_and_widths_far_apart(void **state)
{
    (void)state;
    far f = {.desc = make_desc(1, 2, 2, 3, 20, 2, 2), .type = ATTREE_BF16};
    const int64_t step = (int64_t)1 << 31;
    f.desc.q = f.desc.k = f.desc.v = f.desc.o = (attree_strides){0, step, 2, 1};
    check_far(&f);
    f.desc.q = f.desc.k = f.desc.v = f.desc.o = (attree_strides){0, 20, 1, step};
    check_far(&f);
}

/* ---- Pages ---- */

enum { PAGE = 16, PAGES = 34, KEYS = 41, WIDTH = 32 };

/* Pages 2^27 elements apart, of which a sequence has 0, 16 and 33; appended to and read. */
static void check_pages(int32_t type, bool panels)
{
    const int64_t step = (int64_t)1 << 27;
    static const int32_t table[] = {33, 0, 16}, small_table[] = {2, 0, 1};
    const int64_t rows = (int64_t)attree_row_bytes(type, WIDTH) / attree__dtype_bytes(type);
    attree_desc desc = make_desc(1, 2, 1, KEYS, KEYS, WIDTH, WIDTH);
    desc.k_type = desc.v_type = type;
    desc.flags = ATTREE_CAUSAL | (panels ? ATTREE_K_PANELS : 0);
    desc.page_size = PAGE;
    desc.table_width = 3;
    sparse caches[2][4];
    float o[2][2 * KEYS * WIDTH];
    tensors t = make_tensors(&desc, 4);
    for (int n = 0; n < 2; n++) { /* near, far */
        const int64_t stride = n == 0 ? PAGE * rows : step;
        desc.page_count = n == 0 ? 3 : PAGES;
        desc.k = (attree_strides){stride, 0, panels ? PAGE * WIDTH : rows, 1};
        desc.v = (attree_strides){stride, 0, rows, 1};
        desc.k_scales = desc.v_scales = (attree_strides){n == 0 ? PAGE : step, 0, 1, 0};
        for (int i = 0; i < 4; i++)
            caches[n][i] = make_sparse(desc.page_count * (n == 0 ? PAGE * WIDTH : step), i < 2 ? type : ATTREE_F32);
        attree_new_tokens new = {.size = sizeof new, .k = t.k, .v = t.v};
        new.cache_k = caches[n][0].data;
        new.cache_v = caches[n][1].data;
        new.cache_k_scales = (float *)(void *)caches[n][2].data;
        new.cache_v_scales = (float *)(void *)caches[n][3].data;
        new.page_table = n == 0 ? small_table : table;
        attree_plan *plan;
        assert_int_equal(attree_plan_create(&plan, &desc), ATTREE_OK);
        assert_int_equal(attree_append(plan, &new), ATTREE_OK);
        attree_plan_destroy(plan);
        attree_args args = {.size = sizeof args, .q = t.q, .k = new.cache_k, .v = new.cache_v, .o = o[n]};
        args.k_scales = new.cache_k_scales;
        args.v_scales = new.cache_v_scales;
        args.page_table = new.page_table;
        run_expecting(ATTREE_OK, &desc, &args);
    }
    assert_same_bits(o[0], o[1], 2 * KEYS * WIDTH);
    for (int n = 0; n < 8; n++)
        free_sparse(&caches[n / 4][n % 4]);
    free_tensors(&t);
}

static void pages_far_apart(void **state)
{
    (void)state;
    for (int32_t type = ATTREE_F32; type < ATTREE__DTYPE_COUNT; type++) {
        if (type != ATTREE_I8 && thinned_out())
            continue;
        check_pages(type, false);
        if (type != ATTREE_Q8_0 && type != ATTREE_Q4_0)
            check_pages(type, true);
    }
}

/* ---- Overflow ---- */

static void expect_overflow(const attree_desc *desc)
{
    attree_plan *plan;
    const attree_status status = attree_plan_create(&plan, desc);
    if (status != ATTREE_ERROR_OVERFLOW || plan)
        fail_msg("status is %s", attree_status_name(status));
}

/* Products of strides and sizes beyond 64 bits. */
static void offsets_that_overflow(void **state)
{
    (void)state;
    attree_desc d = make_desc(5, 4, 2, 33, 34, 8, 8);
    attree_strides *const all[] = {&d.q, &d.k, &d.v, &d.o, &d.lse};
    for (size_t n = 0; n < COUNT_OF(all); n++)
        for (int sign = -1; sign < 2; sign += 2)
            for (int dimension = 0; dimension < 3; dimension++) {
                const attree_strides kept = *all[n];
                const int64_t large = sign * ((int64_t)1 << (dimension == 2 ? 58 : 62));
                *all[n] = (attree_strides){dimension == 0 ? large : 1000, dimension == 1 ? large : 100,
                                           dimension == 2 ? large : 10, 1};
                expect_overflow(&d);
                *all[n] = kept;
            }
    d.page_size = 16;
    d.page_count = PAGES;
    d.table_width = 3;
    d.k = (attree_strides){(int64_t)1 << 57, 0, 8, 1}; /* times 33 pages, times 4 bytes */
    expect_overflow(&d);
    d.k = (attree_strides){0, 0, 0, 0};
    d.page_count = (int64_t)1 << 60;
    expect_overflow(&d);
    d.page_count = PAGES;
    d.table_width = (int64_t)1 << 61;
    expect_overflow(&d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_at_the_end_of_many_keys),
        cmocka_unit_test(lengths_and_positions_of_many_keys),
        cmocka_unit_test(many_keys_of_which_few_blocks_count),
        cmocka_unit_test(tokens_far_apart),
        cmocka_unit_test(batch_entries_far_apart),
        cmocka_unit_test(heads_and_widths_far_apart),
        cmocka_unit_test(pages_far_apart),
        cmocka_unit_test(offsets_that_overflow),
    };
    const struct CMUnitTest all_keys[] = {cmocka_unit_test(all_of_many_keys)};
    if (argc == 2 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(all_keys, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
