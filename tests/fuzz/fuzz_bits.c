/* A random problem that is valid: every instruction set, number of threads and layout of keys and values has the bits
 * of the scalar kernels with one thread and dense tensors. */
#include <math.h>

#include "../caches.h"
#include "fuzz.h"

enum { QUERIES = 40, KEYS = 600, WIDTH = 64, BATCH = 2, GROUPS = 2, GROUP = 4 };

typedef struct problem {
    attree_desc desc;
    attree_args args;
    int64_t kv_lens[BATCH];
    float slopes[GROUPS * GROUP], sinks[GROUPS * GROUP];
    float *q, *k, *v, *bias; /* [B, H, Q, D], [B, G, K, D], [B, G, K, E], [1, H, Q, K]; q in its type */
    uint8_t *mask;           /* [B, 1, Q, K] */
} problem;

static bool has_scale(int32_t type) { return type >= ATTREE_I8 && type <= ATTREE_Q4_0; }

/* A sequence of numbers that the input starts. */
typedef struct source {
    uint64_t state;
    bool special;
} source;

static float next(source *s, bool finite)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f, -1e-45f, -0.0f};
    s->state ^= s->state >> 12;
    s->state ^= s->state << 25;
    s->state ^= s->state >> 27;
    const uint64_t bits = s->state * UINT64_C(2685821657736338717);
    if (s->special && bits % 97 == 0)
        return odd[bits / 97 % 8 < 5 && finite ? 7 : bits / 97 % 8];
    return (float)(int32_t)(bits >> 32) * 0x1p-31f;
}

static float *numbers(int64_t count, source *s, bool finite)
{
    float *const made = malloc((size_t)count * sizeof *made + 1);
    FUZZ_REQUIRE(made);
    for (int64_t i = 0; i < count; i++)
        made[i] = next(s, finite);
    return made;
}

static void any_shape(attree_desc *d, fuzz_input *in)
{
    *d = (attree_desc){.size = sizeof *d, .batch = fuzz_integer(in, 1, BATCH), .kv_heads = fuzz_integer(in, 1, GROUPS)};
    d->q_heads = d->kv_heads * fuzz_integer(in, 1, GROUP);
    d->q_len = fuzz_integer(in, 1, fuzz_chance(in, 5) ? QUERIES : 3);
    d->kv_len = fuzz_integer(in, 0, fuzz_chance(in, 6) ? KEYS : 40);
    d->qk_width = fuzz_integer(in, 0, 36);
    d->v_width = fuzz_integer(in, 1, 36);
    d->k_type = (int32_t)fuzz_integer(in, 0, 6);
    d->v_type = (int32_t)fuzz_integer(in, 0, 6);
    d->o_type = (int32_t)fuzz_integer(in, 0, 2);
    if (d->k_type == ATTREE_Q8_0 || d->k_type == ATTREE_Q4_0)
        d->qk_width = d->qk_width % 2 ? 32 : 64;
    if (d->v_type == ATTREE_Q8_0 || d->v_type == ATTREE_Q4_0)
        d->v_width = d->v_width % 2 ? 32 : 64;
    d->flags = fuzz_byte(in) & (ATTREE_CAUSAL | ATTREE_USE_WINDOW | ATTREE_USE_Q_OFFSET | ATTREE_USE_SCALE);
    d->q_offset = fuzz_integer(in, -5, d->kv_len + 5);
    d->window_left = fuzz_integer(in, -1, 300);
    d->window_right = fuzz_integer(in, -1, 20);
    d->scale = (float)fuzz_integer(in, -20, 90) * 0.125f;
    d->softcap = fuzz_chance(in, 3) ? (float)fuzz_integer(in, 1, 200) * 0.25f : 0.0f;
    d->empty_rows = (int32_t)fuzz_integer(in, 0, 1);
}

static void any_terms(problem *p, source *s, fuzz_input *in)
{
    attree_desc *const d = &p->desc;
    const uint8_t wanted = fuzz_byte(in);
    for (int64_t h = 0; h < d->q_heads; h++) {
        p->slopes[h] = (float)fuzz_integer(in, -40, 40) * 0.03f;
        p->sinks[h] = fuzz_chance(in, 5) ? -INFINITY : (float)fuzz_integer(in, -40, 40) * 0.2f;
    }
    p->args.alibi_slopes = wanted & 1u ? p->slopes : NULL;
    p->args.sinks = wanted & 2u ? p->sinks : NULL;
    p->args.alibi_heads = p->args.sink_heads = d->q_heads;
    const int64_t pairs = d->q_len * d->kv_len;
    p->bias = numbers(d->q_heads * pairs, s, false);
    p->mask = malloc((size_t)(d->batch * pairs) + 1);
    for (int64_t n = 0; n < d->batch * pairs; n++)
        p->mask[n] = next(s, true) > -0.5f;
    d->bias.batches = d->mask.heads = 1;
    p->args.bias = wanted & 4u ? p->bias : NULL;
    p->args.mask = wanted & 8u ? p->mask : NULL;
    for (int64_t b = 0; b < d->batch; b++)
        p->kv_lens[b] = fuzz_integer(in, 0, d->kv_len);
    d->kv_lens = wanted & 16u ? p->kv_lens : NULL;
}

static void make_problem(problem *p, fuzz_input *in)
{
    *p = (problem){.args = {.size = sizeof(attree_args)}};
    source s = {.state = fuzz_bits(in, 8) | 1u};
    s.special = fuzz_chance(in, 2);
    any_shape(&p->desc, in);
    any_terms(p, &s, in);
    const attree_desc *d = &p->desc;
    const int64_t keys = d->batch * d->kv_heads * d->kv_len;
    p->q = numbers(d->batch * d->q_heads * d->q_len * d->qk_width, &s, false);
    p->k = numbers(keys * d->qk_width, &s, has_scale(d->k_type));
    p->v = numbers(keys * d->v_width, &s, has_scale(d->v_type));
}

static void free_problem(problem *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->bias);
    free(p->mask);
}

/* ---- Layouts ---- */

typedef struct variant {
    bool panels, token_major, spread;
    int64_t page; /* tokens; 0: dense */
    int32_t isa, threads;
} variant;

static cache write_cache(const problem *p, const variant *w, const float *from, bool keys)
{
    const attree_desc *d = &p->desc;
    const int64_t width = keys ? d->qk_width : d->v_width, tokens = d->kv_len;
    const int64_t pages = w->page ? (tokens + w->page - 1) / w->page : 1;
    const int32_t type = keys ? d->k_type : d->v_type;
    const bool blocks = type == ATTREE_Q8_0 || type == ATTREE_Q4_0, panels = keys && w->panels;
    const cache_layout l = {.pages = d->batch * pages,
                            .heads = d->kv_heads,
                            .tokens = w->page ? w->page : tokens,
                            .width = width,
                            .type = type,
                            .panels = panels,
                            .token_major = w->token_major,
                            .spread = w->spread && !blocks && !panels};
    cache c = make_cache(&l);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t g = 0; g < d->kv_heads; g++)
            for (int64_t j = 0; j < tokens && width > 0; j++) {
                const int64_t page = w->page ? l.pages - 1 - (b * pages + j / w->page) : b;
                cache_write(&c, (cache_at){page, g, w->page ? j % w->page : j},
                            from + ((b * d->kv_heads + g) * tokens + j) * width);
            }
    return c;
}

/* Pages in reverse. */
static int32_t *make_table(attree_desc *d, const variant *w)
{
    d->page_size = w->page;
    d->table_width = (d->kv_len + w->page - 1) / w->page;
    d->page_count = d->batch * d->table_width;
    int32_t *const table = malloc((size_t)d->page_count * sizeof *table + 1);
    for (int64_t n = 0; n < d->page_count; n++)
        table[n] = (int32_t)(d->page_count - 1 - n);
    return table;
}

/* o, then lse. */
static void run(const problem *p, const variant *w, float *result)
{
    attree_desc d = p->desc;
    attree_args args = p->args;
    cache k = write_cache(p, w, p->k, true), v = write_cache(p, w, p->v, false);
    describe_keys(&d, &k);
    describe_values(&d, &v);
    point_to_caches(&args, &k, &v);
    int32_t *const table = w->page ? make_table(&d, w) : NULL;
    args.page_table = table;
    args.q = p->q;
    args.o = result;
    args.lse = result + d.batch * d.q_heads * d.q_len * d.v_width;
    d.isa = w->isa;
    d.threads = w->threads;
    const attree_status status = attree_attention(&d, &args);
    if (status != ATTREE_OK)
        fprintf(stderr, "%s: %s\n", attree_status_name(status), attree_last_error());
    FUZZ_REQUIRE(status == ATTREE_OK);
    free(table);
    free_cache(&k);
    free_cache(&v);
}

static variant any_variant(const attree_desc *d, fuzz_input *in)
{
    static const int32_t isas[] = {ATTREE_ISA_AUTO, ATTREE_ISA_SCALAR, ATTREE_ISA_AUTO,
                                   ATTREE_ISA_AVX2, ATTREE_ISA_AVX512, ATTREE_ISA_NEON};
    variant w = {.token_major = fuzz_chance(in, 2), .spread = fuzz_chance(in, 3)};
    const bool blocks = d->k_type == ATTREE_Q8_0 || d->k_type == ATTREE_Q4_0;
    w.panels = fuzz_chance(in, 3) && !blocks;
    w.page = fuzz_chance(in, 2) ? fuzz_integer(in, 1, 50) : 0;
    w.page = w.panels ? (w.page + 15) / 16 * 16 : w.page;
    if (w.panels && w.page == 0)
        w.token_major = false;
    w.isa = isas[fuzz_byte(in) % 6];
    w.threads = (int32_t)fuzz_integer(in, 1, 3);
    attree_desc probe = {.size = sizeof probe, .q_heads = 1, .kv_heads = 1, .v_width = 1, .isa = w.isa};
    attree_plan *plan;
    if (attree_plan_create(&plan, &probe) != ATTREE_OK)
        w.isa = ATTREE_ISA_AUTO; /* not on this machine */
    attree_plan_destroy(plan);
    return w;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    problem p;
    make_problem(&p, &in);
    const attree_desc *d = &p.desc;
    const size_t bytes = (size_t)(d->batch * d->q_heads * d->q_len * (d->v_width + 1)) * sizeof(float);
    float *const expected = malloc(bytes), *const got = malloc(bytes);
    memset(expected, 0xff, bytes);
    run(&p, &(variant){.isa = ATTREE_ISA_SCALAR, .threads = 1}, expected);
    for (int n = 0; n < 3; n++) {
        const variant w = any_variant(d, &in);
        memset(got, 0xff, bytes);
        run(&p, &w, got);
        if (memcmp(expected, got, bytes) != 0)
            fprintf(stderr, "panels %d, token major %d, spread %d, page %d, isa %d, threads %d\n", w.panels,
                    w.token_major, w.spread, (int)w.page, w.isa, w.threads);
        FUZZ_REQUIRE(memcmp(expected, got, bytes) == 0);
    }
    free(expected);
    free(got);
    free_problem(&p);
    return 0;
}
