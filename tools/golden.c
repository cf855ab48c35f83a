/* The golden hash. See golden.h. Everything here is integer arithmetic but for one exact multiplication, so that no
 * compiler or machine can make other inputs. */
#include "golden.h"

#include <stdbool.h>

#include <stdlib.h>
#include <string.h>

enum { HEADS_MOST = 16 };

/* Which parts of a problem a case has. */
enum { WINDOW = 1, SOFTCAP = 2, ALIBI = 4, BIAS = 8, MASK = 16, SINKS = 32, LENGTHS = 64, ALL = 127 };

typedef struct golden_case {
    int64_t batch, q_heads, kv_heads, q_len, kv_len, qk_width, v_width;
    int32_t q_type, k_type, v_type, o_type;
    int32_t scale; /* 0: the default */
    bool causal;
    int parts;
    attree_isa isa;
    int32_t threads;
} golden_case;

/* xorshift64*. */
static uint64_t next_bits(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* A multiple of 2^-22 in [-1, 1). */
static float next_number(uint64_t *state) { return (float)((int32_t)(next_bits(state) >> 41) - (1 << 22)) * 0x1p-22f; }

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Memory of one case, freed as a whole. */
typedef struct tensors {
    void *q, *k, *v, *o, *k_scales, *v_scales, *lse, *bias, *mask;
    size_t o_bytes, lse_bytes;
    float slopes[HEADS_MOST], sinks[HEADS_MOST];
    int64_t kv_lens[4];
} tensors;

static void free_tensors(tensors *t)
{
    void *const all[] = {t->q, t->k, t->v, t->o, t->k_scales, t->v_scales, t->lse, t->bias, t->mask};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* rows rows of random numbers of the type. NULL without memory. */
static void *make_rows(int32_t type, int64_t rows, int64_t width, void **scales, uint64_t *random)
{
    const size_t bytes = attree_row_bytes(type, width);
    char *const made = malloc((size_t)rows * bytes + 1);
    float *const numbers = malloc((size_t)width * sizeof *numbers), *const scale = malloc((size_t)rows * sizeof *scale);
    bool fine = made && numbers && scale;
    for (int64_t r = 0; r < rows && fine; r++) {
        for (int64_t c = 0; c < width; c++)
            numbers[c] = next_number(random);
        fine = attree_quantize(type, width, numbers, made + (size_t)r * bytes, scale + r) == ATTREE_OK;
    }
    free(numbers);
    if (fine && scales)
        *scales = scale;
    else
        free(scale);
    if (fine)
        return made;
    free(made);
    return NULL;
}

static bool make_tensors(tensors *t, const golden_case *c, uint64_t *random)
{
    const int64_t queries = c->batch * c->q_heads * c->q_len, keys = c->batch * c->kv_heads * c->kv_len;
    const int64_t pairs = c->q_heads * c->q_len; /* of one batch entry, all share them */
    t->q = make_rows(c->q_type, queries, c->qk_width, NULL, random);
    t->k = make_rows(c->k_type, keys, c->qk_width, &t->k_scales, random);
    t->v = make_rows(c->v_type, keys, c->v_width, &t->v_scales, random);
    t->bias = make_rows(ATTREE_F32, pairs, c->kv_len, NULL, random);
    t->o_bytes = (size_t)queries * attree_row_bytes(c->o_type, c->v_width);
    t->lse_bytes = (size_t)queries * sizeof(float);
    t->o = calloc(t->o_bytes, 1);
    t->lse = calloc(t->lse_bytes, 1);
    const size_t mask_bytes = (size_t)(pairs * c->kv_len + 7) / 8;
    unsigned char *const mask = malloc(mask_bytes);
    t->mask = mask;
    for (size_t i = 0; i < mask_bytes && mask; i++)
        mask[i] = (unsigned char)(next_bits(random) >> 56 | next_bits(random) >> 56);
    for (int h = 0; h < HEADS_MOST; h++) {
        t->slopes[h] = next_number(random) / 16.0f;
        t->sinks[h] = next_number(random) * 2.0f;
    }
    for (int b = 0; b < 4; b++)
        t->kv_lens[b] = c->kv_len - (int64_t)(next_bits(random) % (uint64_t)(c->kv_len / 2 + 1));
    return t->q && t->k && t->v && t->bias && t->o && t->lse && t->mask;
}

static attree_desc describe(const golden_case *c, const tensors *t)
{
    attree_desc d = {.size = sizeof d};
    d.batch = c->batch;
    d.q_heads = c->q_heads;
    d.kv_heads = c->kv_heads;
    d.q_len = c->q_len;
    d.kv_len = c->kv_len;
    d.qk_width = c->qk_width;
    d.v_width = c->v_width;
    d.q_type = c->q_type;
    d.k_type = c->k_type;
    d.v_type = c->v_type;
    d.o_type = c->o_type;
    d.flags = (c->causal ? ATTREE_CAUSAL : 0u) | (c->scale ? ATTREE_USE_SCALE : 0u) |
              (c->parts & WINDOW ? ATTREE_USE_WINDOW : 0u);
    d.scale = (float)c->scale;
    d.window_left = c->kv_len / 3;
    d.window_right = 5;
    d.softcap = c->parts & SOFTCAP ? 3.0f : 0.0f;
    d.bias.batches = d.mask.batches = 1;
    d.mask_kind = ATTREE_MASK_BITS;
    d.kv_lens = c->parts & LENGTHS ? t->kv_lens : NULL;
    d.isa = (int32_t)c->isa;
    d.threads = c->threads;
    return d;
}

static attree_status hash_case(uint64_t *hash, const golden_case *c, uint64_t seed)
{
    uint64_t random = 2 * seed + 1;
    tensors t = {.q = NULL};
    attree_status status = ATTREE_ERROR_MEMORY;
    if (make_tensors(&t, c, &random)) {
        const attree_desc d = describe(c, &t);
        attree_args args = {.size = sizeof args, .q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
        args.k_scales = t.k_scales;
        args.v_scales = t.v_scales;
        args.bias = c->parts & BIAS ? t.bias : NULL;
        args.mask = c->parts & MASK ? t.mask : NULL;
        args.alibi_slopes = c->parts & ALIBI ? t.slopes : NULL;
        args.sinks = c->parts & SINKS ? t.sinks : NULL;
        args.alibi_heads = args.sink_heads = c->q_heads;
        status = attree_attention(&d, &args);
    }
    if (status == ATTREE_OK) {
        *hash = hash_bytes(*hash, t.o, t.o_bytes);
        *hash = hash_bytes(*hash, t.lse, t.lse_bytes);
    }
    free_tensors(&t);
    return status;
}

attree_status attree_golden_hash(attree_isa isa, int32_t threads, uint64_t *hash)
{
    static const int64_t shapes[][7] = {
        {1, 1, 1, 1, 1, 1, 1},      {1, 4, 2, 5, 300, 40, 24},  {1, 8, 1, 1, 1300, 33, 65},
        {2, 3, 3, 40, 513, 15, 15}, {1, 7, 1, 3, 1030, 96, 80}, {1, 2, 2, 60, 257, 128, 128},
        {1, 1, 1, 17, 17, 64, 200}, {1, 16, 2, 2, 700, 64, 64},
    };
    *hash = UINT64_C(14695981039346656037);
    attree_status status = ATTREE_OK;
    for (int n = 0; n < 64 && status == ATTREE_OK; n++) {
        const int64_t *s = shapes[n % 8];
        golden_case c = {s[0], s[1], s[2], s[3], s[4], s[5], s[6], .q_type = n % 3, .o_type = n % 5 % 3};
        c.isa = isa;
        c.threads = threads;
        c.k_type = n / 8;
        c.v_type = n < 56 ? (n / 8 + n) % 7 : n % 8; /* types in the order in which they came */
        if (c.k_type == ATTREE_Q8_0 || c.k_type == ATTREE_Q4_0)
            c.qk_width = (c.qk_width + 31) / 32 * 32;
        if (c.v_type == ATTREE_Q8_0 || c.v_type == ATTREE_Q4_0)
            c.v_width = (c.v_width + 31) / 32 * 32;
        c.scale = n % 3; /* scores that span tens, so that weights and merges are not all alike */
        c.causal = n % 2;
        c.parts = n < 16 ? 0 : n * 37 % (ALL + 1);
        status = hash_case(hash, &c, (uint64_t)n);
    }
    return status;
}
