/* Every slot of every kernel table against contract.c, bit for bit: all tails, all row counts, layouts, visible ranges,
 * with guard pages at both ends of every buffer and NaN wherever nothing may be read into a result. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../src/kernel.h"
#include "../src/cpu.h"
#include "../src/dtype.h"
#include "../src/quant.h"
#include "support.h"

static const attree__kernels *const tables[] = ATTREE__TABLES;
enum { TABLES = sizeof tables / sizeof *tables, ROWS_MOST = 64 };

typedef enum layout { KEY_MAJOR, PADDED, WIDTH_MAJOR, REVERSED, SPREAD, REPEATED, PANELS, SCATTERED, LAYOUTS } layout;

/* Rows in guarded memory, in one of the layouts; what lies between is NaN. */
typedef struct key_rows {
    guarded memory, scales;
    attree__rows rows;
} key_rows;

/* Guarded memory for `count` numbers of the type; the whole words before or after them are out of reach, too. */
static void *guarded_numbers(guarded *memory, int64_t count, int32_t type, bool at_start)
{
    const int64_t bytes = count * attree__dtype_bytes(type);
    *memory = guarded_floats((bytes + 3) / 4, at_start);
    return (char *)memory->data + (at_start ? 0 : (bytes + 3) / 4 * 4 - bytes);
}

/* Elements from row to row, from number to number, and of the first row; how many there are. */
typedef struct arrangement {
    int64_t token, width, origin, count;
} arrangement;

/* units: elements, or blocks, of a row. */
static arrangement arrange(int64_t keys, int64_t units, layout how)
{
    arrangement a = {units, 1, 0, keys * units};
    switch (how) {
    case PADDED: a.token = units + 3; break;
    case WIDTH_MAJOR: a.token = 1, a.width = keys; break;
    case REVERSED: a.token = -units, a.origin = (keys - 1) * units; break;
    case SPREAD: a.token = 2 * units + 1, a.width = 2; break;
    case REPEATED: a.token = 0; break; /* every key is the last one */
    default: break;
    }
    if (how == PADDED || how == SPREAD || how == REPEATED)
        a.count = (keys - 1) * a.token + (units - 1) * a.width + 1;
    return a;
}

static void write_rows(key_rows *r, const float *dense, int64_t keys, int64_t width)
{
    for (int64_t j = 0; j < keys; j++) {
        float *const scale = (float *)(uintptr_t)r->rows.scale;
        const attree__numbers numbers = {dense + j * width, ATTREE_F32, 1, width};
        if (scale || attree__dtype_has_blocks(r->rows.type))
            assert_int_equal(attree__quant_check(r->rows.type, &numbers), ATTREE_OK);
        attree__quant_row((void *)(uintptr_t)attree__row(&r->rows, j), r->rows.type, r->rows.width, &numbers,
                          scale ? scale + j : NULL);
    }
}

/* PANELS: 16 keys in a panel, the number's keys adjacent. SCATTERED: pieces of 16 keys in any order, as in a paged
 * cache. */
static void place_scattered(key_rows *r, char *data, int64_t keys, int64_t piece_bytes)
{
    const int64_t pieces = (keys + ATTREE__PIECE - 1) / ATTREE__PIECE;
    for (int64_t n = 0; n < pieces; n++)
        r->rows.piece[n] = data + (n * 7 + 3) % pieces * piece_bytes;
}

static key_rows lay_out(const float *dense, int64_t keys, int64_t width, layout how, int32_t type, bool at_start)
{
    if (attree__dtype_has_blocks(type) && how != KEY_MAJOR && how != PADDED && how != REVERSED)
        how = SCATTERED;
    const int64_t bytes = attree__dtype_bytes(type), units = attree__dtype_units(type, width);
    const int64_t pieces = (keys + ATTREE__PIECE - 1) / ATTREE__PIECE;
    arrangement a = arrange(keys, units, how);
    if (how == PANELS || (how == SCATTERED && pieces % 7 != 0)) /* 7 n + 3 visits every piece, or how would not do */
        a = (arrangement){units, 1, 0, pieces * ATTREE__PIECE * units};
    key_rows r = {.rows = {.token = a.token * bytes, .width = a.width, .type = type}};
    char *const data = guarded_numbers(&r.memory, keys > 0 && width > 0 ? a.count : 0, type, at_start);
    attree__rows_place(&r.rows, data + a.origin * bytes, ATTREE__PIECE * r.rows.token);
    if (how == PANELS) {
        r.rows.token = bytes;
        r.rows.width = ATTREE__PIECE;
    }
    if ((how == PANELS || how == SCATTERED) && pieces % 7 != 0)
        place_scattered(&r, data, keys, ATTREE__PIECE * units * bytes);
    r.scales = guarded_floats(type == ATTREE_I8 ? keys : 0, at_start);
    r.rows.scale = type == ATTREE_I8 ? r.scales.data : NULL;
    write_rows(&r, dense, keys, width);
    return r;
}

typedef struct fold_case {
    int64_t rows, keys, qk_width, v_width;
    int32_t k_type, v_type;
    layout how;
    bool at_start, ragged; /* ragged: each row sees its own range of keys */
    float span;            /* scores are roughly within +-span */
    bool special;          /* some scores NaN and infinite, hidden keys' values NaN */
    uint32_t terms;        /* which of step 2: see make_terms */
} fold_case;

typedef struct fold_input {
    float q[ROWS_MOST * 320], k[ATTREE__BLOCK * 320], v[ATTREE__BLOCK * 320];
    int32_t first[ROWS_MOST], end[ROWS_MOST];
} fold_input;

static void make_input(fold_input *in, const fold_case *c, random_source *random)
{
    const float reach = c->qk_width > 0 ? sqrtf(c->span / (float)c->qk_width) * 1.7f : 0.0f;
    fill_random(in->q, c->rows * c->qk_width, random, -reach, reach);
    fill_random(in->k, c->keys * c->qk_width, random, -reach, reach);
    fill_random(in->v, c->keys * c->v_width, random, -2.0f, 2.0f);
    for (int64_t r = 0; r < c->rows; r++) {
        in->first[r] = c->ragged ? (int32_t)random_integer(random, 0, c->keys) : 0;
        in->end[r] = c->ragged ? (int32_t)random_integer(random, 0, c->keys) : (int32_t)c->keys;
        if (in->first[r] >= in->end[r])
            in->first[r] = in->end[r] = 0;
    }
    if (!c->special || c->qk_width == 0 || c->k_type > ATTREE_BF16 || c->v_type > ATTREE_BF16)
        return;
    const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    for (int i = 0; i < 5; i++) {
        in->k[random_integer(random, 0, c->keys - 1) * c->qk_width + random_integer(random, 0, c->qk_width - 1)] =
            odd[i];
        in->v[random_integer(random, 0, c->keys - 1) * c->v_width + random_integer(random, 0, c->v_width - 1)] = odd[i];
    }
}

typedef struct fold_output {
    float m[ROWS_MOST], l[ROWS_MOST], u[ROWS_MOST * 320];
} fold_output;

/* Step 2 of a case: what its terms point to. */
typedef struct term_data {
    attree__terms terms;
    guarded bias, mask;
    float slopes[8];
} term_data;

enum { SOFTCAP = 1, ALIBI = 2, BIAS = 4, MASK = 8, SCORE = 16, ALL_TERMS = 31, FIRST_ROW = 1 };

static int64_t heads_of(const fold_case *c) { return 1 + c->rows % 4; }

/* A score function that depends on all that it may depend on, and hides some keys. */
static void change_scores(const attree_score_tile *tile, void *user)
{
    const float *const factor = user;
    for (int64_t i = 0; i < tile->queries; i++)
        for (int64_t j = 0; j < tile->keys; j++) {
            float *const s = tile->scores + i * tile->query_stride + j;
            const int64_t mix = tile->batch + 3 * tile->head + 5 * (tile->first_query + i) + 7 * (tile->first_key + j);
            *s = mix % 11 == 0 ? -INFINITY : *s * *factor + (float)(mix % 13);
        }
}

/* Layout of a tensor over pairs [queries][heads][keys], keys a stride apart; key stride 0 repeats. */
static attree__pair_source pair_layout(const fold_case *c, int64_t key_stride, int64_t base, int32_t type)
{
    const int64_t row = (c->keys - 1) * key_stride + 1;
    return (attree__pair_source){
        .base = base, .query = heads_of(c) * row, .head = row, .key = key_stride, .type = type};
}

static int64_t pair_count(const fold_case *c, const attree__pair_source *p)
{
    return p->base + ((c->rows + FIRST_ROW - 1) / heads_of(c) + 1) * p->query;
}

/* Numbers for the pairs that a row sees, NaN for the others, when they do not share an element. */
static void fill_bias(const fold_case *c, const fold_input *in, attree__pair_source *p, void *data,
                      random_source *random)
{
    for (int64_t n = 0; n < pair_count(c, p); n++)
        attree__store(data, p->type, n, NAN);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t j = in->first[r]; j < in->end[r]; j++) {
            const int64_t row = r + FIRST_ROW, heads = heads_of(c);
            const float x = random_integer(random, 0, 9) == 0 ? -INFINITY : random_float(random, -3.0f, 3.0f);
            attree__store(data, p->type, p->base + row / heads * p->query + row % heads * p->head + j * p->key, x);
        }
    p->data = data;
}

static void make_terms(term_data *t, const fold_case *c, const fold_input *in, random_source *random)
{
    static float factor = 0.5f;
    t->terms = (attree__terms){.heads = heads_of(c), .first = FIRST_ROW, .batch = 2, .first_head = 3, .first_key = 512};
    t->terms.softcap = c->terms & SOFTCAP ? 5.0f : 0.0f;
    fill_random(t->slopes, 8, random, 0.0f, 0.3f);
    t->terms.slopes = c->terms & ALIBI ? t->slopes : NULL;
    t->terms.distance = random_integer(random, 0, 3) == 0 ? ((int64_t)1 << 33) + 77 : random_integer(random, -400, 10);
    t->terms.score = c->terms & SCORE ? change_scores : NULL;
    t->terms.user = &factor;
    t->terms.bias = pair_layout(c, random_integer(random, 0, 2), random_integer(random, 0, 5), (int32_t)(c->keys % 3));
    t->terms.mask = pair_layout(c, random_integer(random, 0, 2), random_integer(random, 0, 17), (int32_t)(c->rows % 2));
    const int64_t biases = pair_count(c, &t->terms.bias), masks = pair_count(c, &t->terms.mask);
    void *const bias = guarded_numbers(&t->bias, biases, t->terms.bias.type, c->at_start);
    const int64_t mask_bytes = t->terms.mask.type == ATTREE_MASK_BITS ? (masks + 7) / 8 : masks;
    t->mask = guarded_floats((mask_bytes + 3) / 4, c->at_start);
    uint8_t *const mask = (uint8_t *)t->mask.data + (c->at_start ? 0 : (mask_bytes + 3) / 4 * 4 - mask_bytes);
    const bool padding = c->keys % 2; /* one mask for all rows, in runs, as of padding */
    for (int64_t n = 0; n < mask_bytes; n++)
        mask[n] = padding ? (uint8_t)(n / 40 % 3 == 1 ? 0 : 255)
                          : (uint8_t)random_integer(random, 0, t->terms.mask.type == ATTREE_MASK_BITS ? 255 : 3);
    if (padding)
        t->terms.mask.query = t->terms.mask.head = 0;
    if (c->terms & BIAS)
        fill_bias(c, in, &t->terms.bias, bias, random);
    t->terms.mask.data = c->terms & MASK ? mask : NULL;
}

/* The case's queries in guarded memory, of a type, spread and number of heads that vary from case to case, from one row
 * before the tile on. */
static attree__queries lay_out_queries(const fold_case *c, const float *q, guarded *memory)
{
    const int32_t type = (int32_t)(c->rows + c->keys) % 3;
    const int64_t heads = heads_of(c), width = 1 + c->keys % 2, head = c->qk_width * width;
    const int64_t tokens = c->rows / heads + 1, count = (tokens * heads * c->qk_width - 1) * width + 1;
    void *const data = guarded_numbers(memory, c->qk_width > 0 ? count : 0, type, c->at_start);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t i = 0; i < c->qk_width; i++)
            attree__store(data, type, (r + FIRST_ROW) * head + i * width, q[r * c->qk_width + i]);
    return (attree__queries){data, heads * head, head, width, type, heads, FIRST_ROW, c->rows};
}

/* What a case's folds read. */
typedef struct fold_memory {
    key_rows k, v;
    term_data data;
} fold_memory;

/* Folds of as many blocks as possible: the same keys and values, piece by piece in another order in each. When
 * not all is seen, the second does not see the last piece, the third not the first; these must not be read. */
typedef struct several_folds {
    attree__fold fold[ATTREE__FOLDS];
    const attree__fold *each[ATTREE__FOLDS];
    int32_t none[ATTREE__BLOCK], some[ATTREE__BLOCK], most[ATTREE__BLOCK], all[ATTREE__BLOCK]; /* of fewer rows */
    float *memory;
} several_folds;

static void rotate(attree__rows *rows, int32_t by)
{
    const attree__rows from = *rows;
    for (int32_t n = 0; n < ATTREE__BLOCK / ATTREE__PIECE; n++)
        rows->piece[n] = from.piece[(n + by) % (ATTREE__BLOCK / ATTREE__PIECE)];
}

static void see(attree__fold *fold, const int32_t *first, const int32_t *end, int hidden_piece)
{
    fold->first = first;
    fold->end = end;
    fold->k.piece[hidden_piece] = fold->v.piece[hidden_piece] = NULL;
}

static void make_several(several_folds *s, const attree__fold *fold, bool all_seen)
{
    const int64_t u = fold->rows * fold->out.u_stride, floats = u + 2 * fold->rows;
    s->memory = calloc((size_t)(ATTREE__FOLDS * floats), sizeof(float));
    assert_non_null(s->memory);
    for (int32_t n = 0; n < ATTREE__FOLDS; n++) {
        float *const memory = s->memory + n * floats;
        s->fold[n] = *fold;
        s->fold[n].out = (attree__states){memory + u, memory + u + fold->rows, memory, fold->out.u_stride};
        rotate(&s->fold[n].k, n);
        rotate(&s->fold[n].v, 2 * n);
        s->each[n] = &s->fold[n];
    }
    if (all_seen)
        return;
    for (int64_t r = 0; r < fold->rows; r++) {
        s->none[r] = 0;
        s->some[r] = ATTREE__PIECE + (int32_t)r % 2;
        s->most[r] = ATTREE__BLOCK - s->some[r];
        s->all[r] = ATTREE__BLOCK;
    }
    see(&s->fold[1], s->none, s->most, ATTREE__BLOCK / ATTREE__PIECE - 1);
    see(&s->fold[2], s->some, s->all, 0);
}

/* Folds at once have the bits of each alone. */
static void check_at_once(const attree__kernels *table, const attree__fold *fold, bool all_seen)
{
    several_folds alone, together;
    make_several(&alone, fold, all_seen);
    for (int32_t n = 0; n < ATTREE__FOLDS; n++)
        table->fold(&alone.each[n], 1);
    for (int32_t count = 2; count <= ATTREE__FOLDS; count++) {
        make_several(&together, fold, all_seen);
        table->fold(together.each, count);
        const int64_t floats = count * fold->rows * (fold->out.u_stride + 2);
        for (int64_t i = 0; i < floats; i++) {
            const float got = attree__canonical(together.memory[i]), expected = attree__canonical(alone.memory[i]);
            assert_int_equal(attree__bits_of(got), attree__bits_of(expected));
        }
        free(together.memory);
    }
    free(alone.memory);
}

static void run_fold(const attree__kernels *table, const fold_case *c, const fold_input *in, const fold_memory *memory,
                     fold_output *out)
{
    const int64_t group = table->bundle_rows, groups = (c->rows + group - 1) / group;
    const int64_t u_stride = (c->v_width + ATTREE__LANES - 1) / ATTREE__LANES * ATTREE__LANES;
    guarded q = guarded_floats(groups * group * c->qk_width + ATTREE__LANES, c->at_start);
    guarded u = guarded_floats(c->rows * u_stride, c->at_start);
    int64_t scratch_count = (table->scratch_floats(c->qk_width, c->v_width, c->rows) + 15) / 16 * 16;
    guarded scratch = guarded_floats(scratch_count, c->at_start);
    guarded query_memory;
    const attree__queries queries = lay_out_queries(c, in->q, &query_memory);
    table->pack_queries(q.data, &queries, c->qk_width);
    memset(out, 0xff, sizeof *out);
    const attree__fold fold = {
        .qk_width = c->qk_width,
        .v_width = c->v_width,
        .scale = 0.7f,
        .q = q.data,
        .rows = c->rows,
        .k = memory->k.rows,
        .v = memory->v.rows,
        .first = in->first,
        .end = in->end,
        .terms = c->terms ? &memory->data.terms : NULL,
        .out = {out->m, out->l, u.data, u_stride},
        .scratch = scratch.data,
    };
    table->fold(&(const attree__fold *){&fold}, 1);
    if (c->keys == ATTREE__BLOCK && !c->ragged) {
        check_at_once(table, &fold, true);
        check_at_once(table, &fold, false);
    }
    for (int64_t r = 0; r < c->rows; r++) {
        for (int64_t e = 0; e < c->v_width; e++)
            out->u[r * c->v_width + e] = attree__canonical(u.data[r * u_stride + e]);
        out->l[r] = attree__canonical(out->l[r]);
    }
    guarded_free(&q);
    guarded_free(&query_memory);
    guarded_free(&u);
    guarded_free(&scratch);
}

static void check_fold(const fold_case *c, uint64_t seed)
{
    static fold_input in;
    static fold_output expected, got;
    if (thinned_out())
        return;
    random_source random = {seed * 2 + 1};
    make_input(&in, c, &random);
    fold_memory memory = {.k = lay_out(in.k, c->keys, c->qk_width, c->how, c->k_type, c->at_start),
                          .v = lay_out(in.v, c->keys, c->v_width, c->how, c->v_type, c->at_start)};
    make_terms(&memory.data, c, &in, &random);
    run_fold(&attree__kernels_contract, c, &in, &memory, &expected);
    for (int i = 0; i < TABLES; i++) {
        if (!attree__cpu_has((attree_isa)tables[i]->isa))
            continue;
        run_fold(tables[i], c, &in, &memory, &got);
        if (memcmp(&expected, &got, sizeof got) != 0)
            print_error(
                "%s: rows %lld keys %lld D %lld E %lld types %d %d layout %d ragged %d span %g special %d terms %x\n",
                tables[i]->name, (long long)c->rows, (long long)c->keys, (long long)c->qk_width, (long long)c->v_width,
                c->k_type, c->v_type, (int)c->how, (int)c->ragged, (double)c->span, (int)c->special, c->terms);
        assert_same_bits(expected.m, got.m, c->rows);
        assert_same_bits(expected.l, got.l, c->rows);
        assert_same_bits(expected.u, got.u, c->rows * c->v_width);
    }
    guarded_free(&memory.k.memory);
    guarded_free(&memory.k.scales);
    guarded_free(&memory.v.memory);
    guarded_free(&memory.v.scales);
    guarded_free(&memory.data.bias);
    guarded_free(&memory.data.mask);
}

static void fold_has_the_bits_of_the_contract_for_every_width(void **state)
{
    (void)state;
    for (int64_t width = 1; width <= 130; width++)
        for (int at_start = 0; at_start < 2; at_start++) {
            const int32_t type = (int32_t)width % 3, other = (int32_t)width / 3 % 3;
            check_fold(&(fold_case){3, 19, width, 131 - width, type, other, KEY_MAJOR, at_start, false, 4.0f, false, 0},
                       (uint64_t)width);
            check_fold(&(fold_case){29, 35, width, 131 - width, other, type, PADDED, at_start, true, 4.0f, false, 0},
                       (uint64_t)width);
        }
    check_fold(&(fold_case){5, 256, 0, 1, ATTREE_F32, ATTREE_F32, KEY_MAJOR, false, false, 1.0f, false, 0}, 1);
    check_fold(&(fold_case){40, 256, 300, 257, ATTREE_F16, ATTREE_BF16, KEY_MAJOR, false, true, 1.0f, false, ALL_TERMS},
               1);
}

static void fold_has_the_bits_of_the_contract_for_every_key_count(void **state)
{
    (void)state;
    for (int64_t keys = 1; keys <= ATTREE__BLOCK; keys++)
        for (int many = 0; many < 2; many++)
            check_fold(&(fold_case){many ? 31 : 4, keys, 17, 18, (int32_t)keys % 3, (int32_t)keys / 3 % 3,
                                    (layout)(keys % LAYOUTS), keys % 2, keys % 3 == 0, (float)keys, false,
                                    (uint32_t)keys % (ALL_TERMS + 1)},
                       (uint64_t)keys);
}

static void fold_has_the_bits_of_the_contract_for_every_row_count(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= ROWS_MOST; rows++)
        for (int how = 0; how < LAYOUTS; how++)
            check_fold(&(fold_case){rows, 70, 12, 33, how % 3, (int32_t)rows % 3, (layout)how, rows % 2, true, 30.0f,
                                    false, (uint32_t)rows % 3 == 0 ? BIAS | MASK : 0},
                       (uint64_t)rows);
}

static void fold_has_the_bits_of_the_contract_for_random_and_special_numbers(void **state)
{
    (void)state;
    random_source random = {99};
    const float spans[] = {0.01f, 1.0f, 30.0f, 1000.0f, 1e6f};
    for (int n = 0; n < 3000; n++) {
        const fold_case c = {
            .rows = random_integer(&random, 1, ROWS_MOST),
            .keys = random_integer(&random, 1, ATTREE__BLOCK),
            .qk_width = random_integer(&random, 1, 40),
            .v_width = random_integer(&random, 1, 70),
            .k_type = (int32_t)random_integer(&random, 0, 2),
            .v_type = (int32_t)random_integer(&random, 0, 2),
            .how = (layout)random_integer(&random, 0, LAYOUTS - 1),
            .at_start = n % 2,
            .ragged = n % 3 != 0,
            .span = spans[random_integer(&random, 0, 4)],
            .special = n % 2,
            .terms = n % 3 == 0 ? 0 : (uint32_t)random_integer(&random, 0, ALL_TERMS),
        };
        check_fold(&c, (uint64_t)n + 7);
    }
}

static void folds_at_once_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    for (int32_t type = ATTREE_F32; type <= ATTREE_BF16; type++)
        for (int64_t rows = 1; rows <= 5; rows++)
            for (int64_t width = 16; width <= 272; width += 128)
                for (int32_t terms = 0; terms < 2; terms++)
                    check_fold(&(fold_case){rows, ATTREE__BLOCK, width + rows, width, type, (type + 1) % 3, KEY_MAJOR,
                                            terms == 0, false, 4.0f, terms > 0, terms ? ALL_TERMS : 0},
                               (uint64_t)(rows + width));
}

/* Every type of cache, in every mix, layout and kernel path. */
static void fold_has_the_bits_of_the_contract_for_quantised_rows(void **state)
{
    (void)state;
    random_source random = {123};
    for (int n = 0; n < 2000; n++) {
        fold_case c = {
            .rows = random_integer(&random, 1, n % 2 ? 8 : ROWS_MOST),
            .keys = random_integer(&random, 1, ATTREE__BLOCK),
            .qk_width = random_integer(&random, 1, 70),
            .v_width = random_integer(&random, 1, 100),
            .k_type = (int32_t)random_integer(&random, 0, ATTREE__DTYPE_COUNT - 1),
            .v_type = (int32_t)random_integer(&random, 0, ATTREE__DTYPE_COUNT - 1),
            .how = (layout)random_integer(&random, 0, LAYOUTS - 1),
            .at_start = n % 2,
            .ragged = n % 3 != 0,
            .span = 20.0f,
        };
        if (attree__dtype_has_blocks(c.k_type))
            c.qk_width = 32 * (1 + c.qk_width % 4);
        if (attree__dtype_has_blocks(c.v_type))
            c.v_width = 32 * (1 + c.v_width % 4);
        check_fold(&c, (uint64_t)n + 1000);
    }
}

/* States with everything that can meet in a merge: empty, poisoned, near, far. */
static void make_states(float *m, float *l, float *u, int64_t rows, random_source *random)
{
    for (int64_t r = 0; r < rows; r++) {
        const int64_t kind = random_integer(random, 0, 5);
        m[r] = kind == 0 ? -INFINITY : kind == 1 ? INFINITY : random_float(random, -100.0f, 100.0f);
        l[r] = kind == 0 ? 0.0f : kind == 1 ? NAN : random_float(random, 1.0f, 256.0f);
        for (int64_t e = 0; e < 320; e++)
            u[r * 320 + e] = kind == 0 ? 0.0f : kind == 1 ? NAN : random_float(random, -3.0f, 3.0f);
    }
}

static void combine_and_divide_have_the_bits_of_the_contract(void **state)
{
    (void)state;
    static fold_output a, b, expected, got;
    random_source random = {5};
    for (int64_t width = 1; width <= 320; width++) {
        make_states(a.m, a.l, a.u, ROWS_MOST, &random);
        make_states(b.m, b.l, b.u, ROWS_MOST, &random);
        const attree__states right = {b.m, b.l, b.u, 320};
        expected = a;
        attree__kernels_contract.combine(&(attree__states){expected.m, expected.l, expected.u, 320}, &right, ROWS_MOST,
                                         width);
        for (int i = 0; i < TABLES; i++) {
            if (!attree__cpu_has((attree_isa)tables[i]->isa))
                continue;
            got = a;
            tables[i]->combine(&(attree__states){got.m, got.l, got.u, 320}, &right, ROWS_MOST, width);
            assert_same_bits(expected.m, got.m, ROWS_MOST);
            for (int64_t r = 0; r < ROWS_MOST; r++) {
                const int32_t type = (int32_t)(r + width) % 3;
                guarded memory;
                void *const o = guarded_numbers(&memory, width, type, r % 2);
                uint32_t quotient[320];
                attree__kernels_contract.divide(quotient, type, expected.u + r * 320, expected.l[r], width);
                tables[i]->divide(o, type, got.u + r * 320, got.l[r], width);
                assert_memory_equal(quotient, o, (size_t)(width * attree__dtype_bytes(type)));
                assert_true(close_to((double)expected.l[r], (double)got.l[r], 0.0));
                guarded_free(&memory);
            }
        }
    }
}

/* Every 16-bit number, and every f32 near a rounding boundary of either type. */
static void conversions_of_16_bit_types_are_exact(void **state)
{
    (void)state;
    for (uint32_t x = 0; x < 65536; x++) {
        const float half = attree__from_f16((uint16_t)x), brain = attree__from_bf16((uint16_t)x);
        const uint32_t exponent = x >> 10 & 31u;
        const double magnitude = exponent == 31  ? (x & 1023u ? (double)NAN : (double)INFINITY)
                                 : exponent == 0 ? (double)(x & 1023u) * 0x1p-24
                                                 : ldexp((double)(1024u + (x & 1023u)), (int)exponent - 25);
        assert_true(close_to((double)half, x & 0x8000u ? -magnitude : magnitude, 0.0));
        assert_int_equal(signbit(half) != 0, x >> 15);
        assert_int_equal(attree__to_f16(half), isnan(half) ? 0x7e00 : x);
        assert_int_equal(attree__to_bf16(brain), isnan(brain) ? 0x7fc0 : x);
        if (isnan(half) || isnan(brain) || (x & 0x7fff) >= 0x7bff)
            continue;
        /* between x and its successor: halfway goes to the even one, anything else to the nearer one */
        const float next = attree__from_f16((uint16_t)(x + 1)), middle = (half + next) / 2.0f;
        assert_int_equal(attree__to_f16(middle), x + (x & 1u));
        assert_int_equal(attree__to_f16(nextafterf(middle, half)), x);
        assert_int_equal(attree__to_f16(nextafterf(middle, next)), x + 1);
        assert_int_equal(attree__to_bf16(attree__float_of(x << 16 | 0x8000u)), x + (x & 1u));
        assert_int_equal(attree__to_bf16(attree__float_of(x << 16 | 0x7fffu)), x);
        assert_int_equal(attree__to_bf16(attree__float_of(x << 16 | 0x8001u)), x + 1);
    }
    assert_int_equal(attree__to_f16(65519.996f), 0x7bff);
    assert_int_equal(attree__to_f16(65520.0f), 0x7c00);
    assert_int_equal(attree__to_f16(-1e30f), 0xfc00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fold_has_the_bits_of_the_contract_for_every_width),
        cmocka_unit_test(fold_has_the_bits_of_the_contract_for_every_key_count),
        cmocka_unit_test(fold_has_the_bits_of_the_contract_for_every_row_count),
        cmocka_unit_test(fold_has_the_bits_of_the_contract_for_random_and_special_numbers),
        cmocka_unit_test(folds_at_once_have_the_bits_of_each_alone),
        cmocka_unit_test(fold_has_the_bits_of_the_contract_for_quantised_rows),
        cmocka_unit_test(conversions_of_16_bit_types_are_exact),
        cmocka_unit_test(combine_and_divide_have_the_bits_of_the_contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
