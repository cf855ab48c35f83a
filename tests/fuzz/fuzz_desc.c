/* Descriptors and arguments of which every field may be anything. A plan is made, or there is an error with a sentence;
 * a plan whose tensors are small is run in allocations of exactly the spans that the library worked out. */
#include <stdatomic.h>

#include "../../src/plan.h"
#include "fuzz.h"

enum { ENTRIES = 6, SPAN_MOST = 1 << 18, WORK_MOST = 1 << 16, WORKSPACE_MOST = 1 << 24 };

/* Anything; small numbers are likely. */
static int64_t any_integer(fuzz_input *in)
{
    static const int64_t special[] = {INT64_MAX,
                                      INT64_MIN,
                                      INT64_MAX / 2,
                                      INT64_MAX / 2 + 1,
                                      (int64_t)1 << 40,
                                      INT32_MAX,
                                      INT32_MIN,
                                      (int64_t)1 << 32,
                                      256,
                                      512,
                                      -256,
                                      65536};
    const uint8_t choice = fuzz_byte(in);
    if (choice < 160)
        return choice % 20;
    if (choice < 200)
        return (choice - 180) * 16;
    if (choice < 224)
        return special[choice % 12];
    return (int64_t)fuzz_bits(in, choice < 240 ? 8 : 2);
}

/* Mostly 0: the default. */
static int64_t any_stride(fuzz_input *in) { return fuzz_byte(in) < 200 ? 0 : any_integer(in); }

static attree_strides any_strides(fuzz_input *in)
{
    if (fuzz_byte(in) < 160)
        return (attree_strides){0};
    return (attree_strides){any_integer(in), any_integer(in), any_integer(in), any_integer(in)};
}

static attree_pairs any_pairs(fuzz_input *in)
{
    attree_pairs p = {0};
    if (fuzz_byte(in) >= 128)
        p = (attree_pairs){any_stride(in), any_stride(in), any_stride(in), any_stride(in),
                           any_stride(in), any_stride(in), any_stride(in), any_stride(in)};
    return p;
}

/* A number of an enumeration, now and then beyond it. */
static int32_t any_choice(fuzz_input *in, int count)
{
    const uint8_t choice = fuzz_byte(in);
    return choice == 255 ? (int32_t)fuzz_bits(in, 4) : choice % count;
}

static float any_float(fuzz_input *in)
{
    const uint32_t bits = (uint32_t)fuzz_bits(in, 4);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

typedef struct lists {
    int64_t kv_lens[ENTRIES], q_offsets[ENTRIES], q_starts[ENTRIES + 1], kv_starts[ENTRIES + 1];
} lists;

static void any_sizes(attree_desc *d, fuzz_input *in)
{
    d->size = fuzz_chance(in, 50) ? (size_t)any_integer(in) : sizeof *d;
    d->batch = any_integer(in);
    d->kv_heads = any_integer(in);
    d->q_heads = fuzz_chance(in, 8) ? any_integer(in) : (int64_t)((uint64_t)d->kv_heads * (fuzz_byte(in) % 5u));
    d->q_len = any_integer(in);
    d->kv_len = any_integer(in);
    d->qk_width = any_integer(in);
    d->v_width = any_integer(in);
    if (fuzz_chance(in, 3)) { /* whole blocks */
        d->qk_width = (int64_t)((uint64_t)d->qk_width * 32);
        d->v_width = (int64_t)((uint64_t)d->v_width * 32);
    }
}

static void any_options(attree_desc *d, fuzz_input *in)
{
    d->flags = (uint32_t)(fuzz_chance(in, 60) ? fuzz_bits(in, 4) : fuzz_byte(in) & 63u);
    d->scale = any_float(in);
    d->softcap = fuzz_chance(in, 4) ? any_float(in) : 0.0f;
    d->q_offset = any_integer(in);
    d->empty_rows = any_choice(in, 3);
    d->isa = any_choice(in, 4);
    d->threads = any_choice(in, 9);
    d->window_left = any_integer(in);
    d->window_right = any_integer(in);
    d->mask_kind = any_choice(in, 2);
    d->bias_type = any_choice(in, 3);
    d->q_type = any_choice(in, 3);
    d->k_type = any_choice(in, 7);
    d->v_type = any_choice(in, 7);
    d->o_type = any_choice(in, 3);
    if (fuzz_chance(in, 3)) {
        d->page_size = any_integer(in);
        d->page_count = any_integer(in);
        d->table_width = any_integer(in);
    }
    if (fuzz_chance(in, 4)) {
        d->shard_begin = any_integer(in) * (fuzz_chance(in, 2) ? 1 : 0);
        d->shard_end = any_integer(in);
    }
}

/* Starts are sorted, or not; their last one is often what it must be. */
static const int64_t *any_list(int64_t *list, int count, int64_t total, fuzz_input *in)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        list[i] = total < 0 ? any_integer(in) : sum;
        sum += fuzz_chance(in, 20) ? -1 : fuzz_byte(in) % 4;
    }
    if (total >= 0 && !fuzz_chance(in, 4))
        list[count - 1] = total;
    return list;
}

static void any_lists(attree_desc *d, lists *l, fuzz_input *in)
{
    const uint8_t choice = fuzz_byte(in);
    if (d->batch < 0 || d->batch > ENTRIES) /* a caller with that many entries has arrays for them */
        return;
    const int batch = (int)d->batch;
    d->kv_lens = choice & 1u ? any_list(l->kv_lens, batch, -1, in) : NULL;
    d->q_offsets = choice & 2u ? any_list(l->q_offsets, batch, -1, in) : NULL;
    d->q_starts = choice & 4u ? any_list(l->q_starts, batch + 1, d->q_len < 0 ? 0 : d->q_len, in) : NULL;
    d->kv_starts = choice & 8u ? any_list(l->kv_starts, batch + 1, d->kv_len < 0 ? 0 : d->kv_len, in) : NULL;
}

static void any_desc(attree_desc *d, lists *l, fuzz_input *in)
{
    *d = (attree_desc){0};
    any_sizes(d, in);
    any_options(d, in);
    d->q = any_strides(in);
    d->k = any_strides(in);
    d->v = any_strides(in);
    d->o = any_strides(in);
    d->lse = any_strides(in);
    d->k_scales = any_strides(in);
    d->v_scales = any_strides(in);
    d->mask = any_pairs(in);
    d->bias = any_pairs(in);
    any_lists(d, l, in);
}

/* ---- Running ---- */

enum { TENSORS = 20 };

typedef struct tensors {
    void *memory[TENSORS], *pointer[TENSORS];
    int count;
} tensors;

/* Memory of a span; now and then none, or at an odd address. */
static void *allocate(tensors *t, attree__span span, fuzz_input *in)
{
    const size_t bytes = span.high > span.low ? (size_t)(span.high - span.low) : 0;
    char *const memory = malloc(bytes + 1);
    FUZZ_REQUIRE(memory);
    fuzz_fill(in, memory, bytes);
    const uint8_t choice = fuzz_byte(in);
    t->memory[t->count++] = memory;
    if (choice == 255)
        return NULL;
    return choice == 254 ? memory + 1 - span.low : memory - span.low;
}

static bool small_span(attree__span s) { return s.low >= -SPAN_MOST && s.high <= SPAN_MOST; }

static bool is_small(const attree__problem *p)
{
    const attree__span spans[] = {p->q_span,      p->k_span,        p->v_span,        p->o_span,
                                  p->lse_span,    p->k_scales_span, p->v_scales_span, p->table_span,
                                  p->states_span, p->mask.span,     p->bias.span};
    double work = (double)(p->batch + 1) * (double)p->q_heads * (double)(p->q_len + 1);
    work *= (double)(p->kv_len + 1) * (double)(p->qk_width + p->v_width);
    bool small = work < WORK_MOST * 8.0 && (double)(p->batch + 1) * (double)p->kv_heads < WORK_MOST;
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        small = small && small_span(spans[i]);
    return small;
}

static void change_scores(const attree_score_tile *t, void *user)
{
    (void)user;
    for (int64_t i = 0; i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            t->scores[i * t->query_stride + j] += (float)((t->first_key + j) % 3);
}

static attree_block_answer classify(const attree_score_tile *t, void *user)
{
    (void)user;
    return (attree_block_answer)((t->first_key / 256 + t->first_query) % 3);
}

static void any_args(attree_args *a, tensors *t, const attree_plan *plan, fuzz_input *in)
{
    const attree__problem *p = &plan->problem;
    const attree__span heads = {0, p->q_heads * 4}, scales_k = p->k_scales_span, scales_v = p->v_scales_span;
    const uint8_t wanted = fuzz_byte(in);
    *a = (attree_args){.size = fuzz_chance(in, 60) ? 1 : sizeof *a};
    a->q = allocate(t, p->q_span, in);
    a->k = allocate(t, p->k_span, in);
    a->v = allocate(t, p->v_span, in);
    a->o = allocate(t, p->o_span, in);
    a->lse = wanted & 1u ? allocate(t, p->lse_span, in) : NULL;
    a->states = allocate(t, p->states_span, in);
    a->k_scales = allocate(t, scales_k, in);
    a->v_scales = allocate(t, scales_v, in);
    a->page_table = p->page_size > 0 || wanted & 128u ? allocate(t, p->table_span, in) : NULL;
    a->mask = wanted & 2u ? allocate(t, p->mask.span, in) : NULL;
    a->bias = wanted & 4u ? allocate(t, p->bias.span, in) : NULL;
    a->alibi_slopes = wanted & 8u ? allocate(t, heads, in) : NULL;
    a->sinks = wanted & 16u ? allocate(t, heads, in) : NULL;
    a->alibi_heads = a->sink_heads = p->q_heads + (fuzz_chance(in, 40) ? 1 : 0);
    a->score = wanted & 32u ? change_scores : NULL;
    a->block = wanted & 64u && (a->score || fuzz_chance(in, 10)) ? classify : NULL;
    a->workspace_bytes = plan->workspace_bytes - (fuzz_chance(in, 60) ? 1 : 0);
}

/* Page numbers that exist, but for some. */
static void any_pages(const attree_plan *plan, const attree_args *a, fuzz_input *in)
{
    const attree__problem *p = &plan->problem;
    for (int64_t n = 0; a->page_table && n < p->table_span.high / 4; n++) {
        const int32_t id = (int32_t)(fuzz_byte(in) == 255 ? -1 : p->page_count > 0 ? fuzz_byte(in) % p->page_count : 0);
        memcpy((char *)(uintptr_t)a->page_table + n * 4, &id, sizeof id);
    }
}

static void run(const attree_plan *plan, fuzz_input *in)
{
    tensors t = {.count = 0};
    attree_args a;
    any_args(&a, &t, plan, in);
    any_pages(plan, &a, in);
    a.workspace = aligned_alloc(64, plan->workspace_bytes);
    FUZZ_REQUIRE(a.workspace);
    attree_args aliased = a;
    const attree__span q_span = plan->problem.q_span, o_span = plan->problem.o_span;
    if (fuzz_chance(in, 30) && q_span.low <= o_span.low && q_span.high >= o_span.high) /* refused */
        aliased.o = (void *)(uintptr_t)a.q;
    (void)attree_run(plan, &aliased);
    const attree__problem *p = &plan->problem;
    if (a.lse && !p->states && p->batch > 0 && p->q_len > 0) {
        float *const weights = malloc((size_t)p->kv_len * sizeof *weights + 1);
        (void)attree_weights(plan, &a, fuzz_integer(in, 0, 2), fuzz_integer(in, 0, 2), fuzz_integer(in, 0, 2), weights);
        free(weights);
    }
    (void)attree_finish(plan, &a);
    attree_new_tokens tokens = {.size = sizeof tokens, .k_type = any_choice(in, 3), .v_type = any_choice(in, 3)};
    const int64_t rows = p->batch * p->kv_heads * p->q_len * 4;
    tokens.k = allocate(&t, (attree__span){0, rows * p->qk_width}, in);
    tokens.v = allocate(&t, (attree__span){0, rows * p->v_width}, in);
    tokens.cache_k = (void *)(uintptr_t)a.k;
    tokens.cache_v = (void *)(uintptr_t)a.v;
    tokens.cache_k_scales = (float *)(uintptr_t)a.k_scales;
    tokens.cache_v_scales = (float *)(uintptr_t)a.v_scales;
    tokens.page_table = a.page_table;
    (void)attree_append(plan, &tokens);
    free(a.workspace);
    for (int n = 0; n < t.count; n++)
        free(t.memory[n]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    attree_desc desc;
    lists l;
    attree_plan *plan;
    any_desc(&desc, &l, &in);
    const attree_status status = attree_plan_create(&plan, &desc);
    FUZZ_REQUIRE((status == ATTREE_OK) == (plan != NULL));
    if (status != ATTREE_OK) {
        FUZZ_REQUIRE(attree_last_error()[0] != 0);
        return 0;
    }
    char text[512];
    FUZZ_REQUIRE(attree_plan_describe(plan, text, sizeof text) == ATTREE_OK);
    if (is_small(&plan->problem) && plan->workspace_bytes <= WORKSPACE_MOST)
        run(plan, &in);
    (void)attree_plan_update(plan, &desc);
    attree_plan_destroy(plan);
    return 0;
}
