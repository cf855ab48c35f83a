/* See support.h. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/dtype.h"

#if defined(__SIZEOF_FLOAT128__)
/* From libquadmath, whose header only gcc finds. */
extern __float128 expq(__float128);
extern __float128 logq(__float128);
wide wide_exp(wide x) { return expq(x); }
wide wide_log(wide x) { return logq(x); }
#else
wide wide_exp(wide x) { return expl(x); }
wide wide_log(wide x) { return logl(x); }
#endif

static uint64_t random_bits(random_source *random)
{
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return random->state * UINT64_C(2685821657736338717);
}

float random_float(random_source *random, float low, float high)
{
    return low + (high - low) * ((float)(random_bits(random) >> 40) * 0x1p-24f);
}

int64_t random_integer(random_source *random, int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits(random) % (uint64_t)(high - low + 1));
}

void fill_random(float *numbers, int64_t count, random_source *random, float low, float high)
{
    for (int64_t i = 0; i < count; i++)
        numbers[i] = random_float(random, low, high);
}

guarded guarded_floats(int64_t count, bool at_start)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)count * sizeof(float);
    const size_t inner = (bytes + page - 1) / page * page;
    guarded g = {.mapping_bytes = inner + 2 * page};
    g.mapping = mmap(NULL, g.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.mapping != MAP_FAILED);
    char *const first = (char *)g.mapping + page;
    if (inner > 0)
        assert_int_equal(mprotect(first, inner, PROT_READ | PROT_WRITE), 0);
    memset(first, 0xff, inner);
    g.data = (float *)(void *)(at_start ? first : first + inner - bytes);
    return g;
}

void guarded_free(guarded *memory) { munmap(memory->mapping, memory->mapping_bytes); }

attree_desc make_desc(int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t qk_width,
                      int64_t v_width)
{
    return (attree_desc){
        .size = sizeof(attree_desc),
        .batch = batch,
        .q_heads = q_heads,
        .kv_heads = kv_heads,
        .q_len = q_len,
        .kv_len = kv_len,
        .qk_width = qk_width,
        .v_width = v_width,
        .threads = 1,
    };
}

float *nan_floats(int64_t count)
{
    float *const numbers = malloc((size_t)count * sizeof(float) + 1);
    assert_non_null(numbers);
    memset(numbers, 0xff, (size_t)count * sizeof(float));
    return numbers;
}

float *random_floats(int64_t count, uint64_t seed, float low, float high)
{
    random_source random = {seed * 2 + 1};
    float *const numbers = nan_floats(count);
    fill_random(numbers, count, &random, low, high);
    return numbers;
}

/* Converts a tensor to the type in place. */
static void narrow(float *numbers, int64_t count, int32_t type)
{
    for (int64_t i = 0; i < count && type != ATTREE_F32; i++)
        attree__store(numbers, type, i, numbers[i]);
}

tensors make_tensors(const attree_desc *d, uint64_t seed)
{
    random_source random = {seed * 2 + 1};
    tensors t = {
        .q_count = d->batch * d->q_heads * d->q_len * d->qk_width,
        .k_count = d->batch * d->kv_heads * d->kv_len * d->qk_width,
        .v_count = d->batch * d->kv_heads * d->kv_len * d->v_width,
        .o_count = d->batch * d->q_heads * d->q_len * d->v_width,
        .lse_count = d->batch * d->q_heads * d->q_len,
    };
    t.q = nan_floats(t.q_count);
    t.k = nan_floats(t.k_count);
    t.v = nan_floats(t.v_count);
    t.o = nan_floats(t.o_count);
    t.lse = nan_floats(t.lse_count);
    fill_random(t.q, t.q_count, &random, -1.0f, 1.0f);
    fill_random(t.k, t.k_count, &random, -1.0f, 1.0f);
    fill_random(t.v, t.v_count, &random, -1.0f, 1.0f);
    narrow(t.q, t.q_count, d->q_type);
    narrow(t.k, t.k_count, d->k_type);
    narrow(t.v, t.v_count, d->v_type);
    return t;
}

void free_tensors(tensors *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->o);
    free(t->lse);
}

void run_expecting(attree_status expected, const attree_desc *desc, const attree_args *args)
{
    attree_plan *plan;
    attree_status status = attree_plan_create(&plan, desc);
    if (status == ATTREE_OK) {
        attree_args run = *args;
        run.size = sizeof run;
        run.workspace_bytes = attree_plan_workspace(plan);
        run.workspace = aligned_alloc(64, run.workspace_bytes);
        assert_non_null(run.workspace);
        memset(run.workspace, 0xff, run.workspace_bytes);
        status = attree_run(plan, &run);
        free(run.workspace);
        attree_plan_destroy(plan);
    }
    if (status != expected)
        fail_msg("status is %s, not %s: %s", attree_status_name(status), attree_status_name(expected),
                 attree_last_error());
}

void forget_results(const tensors *t)
{
    memset(t->o, 0xff, (size_t)t->o_count * sizeof(float));
    memset(t->lse, 0xff, (size_t)t->lse_count * sizeof(float));
}

void run_tensors(const attree_desc *desc, const tensors *t)
{
    forget_results(t);
    const attree_args args = {.q = t->q, .k = t->k, .v = t->v, .o = t->o, .lse = t->lse};
    run_expecting(ATTREE_OK, desc, &args);
}

float *result_of(const attree_desc *desc, const tensors *t)
{
    float *const result = nan_floats(t->o_count + t->lse_count);
    const attree_args args = {.q = t->q, .k = t->k, .v = t->v, .o = result, .lse = result + t->o_count};
    run_expecting(ATTREE_OK, desc, &args);
    return result;
}

int available_isas(attree_isa isas[8])
{
    int count = 0;
    for (int isa = ATTREE_ISA_SCALAR; isa < ATTREE_ISA_SCALAR + 8; isa++) {
        attree_desc desc = make_desc(1, 1, 1, 1, 1, 1, 1);
        desc.isa = isa;
        attree_plan *plan;
        if (attree_plan_create(&plan, &desc) == ATTREE_OK)
            isas[count++] = (attree_isa)isa;
        attree_plan_destroy(plan);
    }
    return count;
}

wide oracle_row(const attree_desc *d, const tensors *t, int64_t b, int64_t h, int64_t i, wide *o)
{
    const int64_t group = h / (d->q_heads / d->kv_heads);
    const float *const q = t->q + ((b * d->q_heads + h) * d->q_len + i) * d->qk_width;
    const float *const k = t->k + (b * d->kv_heads + group) * d->kv_len * d->qk_width;
    const float *const v = t->v + (b * d->kv_heads + group) * d->kv_len * d->v_width;
    const int64_t offset = d->flags & ATTREE_USE_Q_OFFSET ? d->q_offset : d->kv_len - d->q_len;
    const wide scale = d->flags & ATTREE_USE_SCALE ? d->scale : 1.0f / sqrtf((float)d->qk_width);
    int64_t keys = d->kv_len;
    if (d->flags & ATTREE_CAUSAL && i + offset + 1 < keys)
        keys = i + offset + 1;

    wide *const s = malloc((size_t)(keys > 0 ? keys : 1) * sizeof *s);
    assert_non_null(s);
    wide m = -(wide)INFINITY, l = 0;
    for (int64_t j = 0; j < keys; j++) {
        s[j] = 0;
        for (int64_t c = 0; c < d->qk_width; c++)
            s[j] += (wide)q[c] * k[j * d->qk_width + c];
        s[j] *= scale;
        m = s[j] > m ? s[j] : m;
    }
    for (int64_t e = 0; e < d->v_width; e++)
        o[e] = 0;
    for (int64_t j = 0; j < keys; j++) {
        const wide p = wide_exp(s[j] - m);
        l += p;
        for (int64_t e = 0; e < d->v_width; e++)
            o[e] += p * v[j * d->v_width + e];
    }
    for (int64_t e = 0; e < d->v_width && keys > 0; e++)
        o[e] /= l;
    free(s);
    return keys > 0 ? m + wide_log(l) : -(wide)INFINITY;
}

bool thinned_out(void)
{
    static unsigned long calls;
    const char *const thin = getenv("ATTREE_TEST_THIN");
    const unsigned long every = thin ? strtoul(thin, NULL, 10) : 1;
    return every > 1 && calls++ % every != 0;
}

void assert_same_bits_at(const float *a, const float *b, int64_t count, const char *file, int line)
{
    for (int64_t i = 0; i < count; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0) {
            print_error("number %lld of %lld: %a is not %a\n", (long long)i, (long long)count, (double)a[i],
                        (double)b[i]);
            _fail(file, line);
        }
}

bool close_to(double a, double b, double tolerance)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b))
        return a == b;
    return fabs(a - b) <= tolerance;
}

void forget_last_error(void) { assert_int_equal(attree_state_init_f32(NULL, 1), ATTREE_ERROR_NULL); }

bool last_error_names(const char *name)
{
    const char *const sentence = attree_last_error();
    const size_t length = strlen(name);
    for (const char *hit = strstr(sentence, name); hit; hit = strstr(hit + 1, name)) {
        const char before = hit == sentence ? ' ' : hit[-1], after = hit[length];
        if (length > 1 || (before == ' ' && (after == ' ' || after == ';' || after == '\0')))
            return true;
    }
    return false;
}

void expect_error(const char *what, attree_status got, attree_status want, const char *name)
{
    if (got != want)
        fail_msg("%s, %s: %s, expected %s", what, name, attree_status_name(got), attree_status_name(want));
    if (!last_error_names(name))
        fail_msg("%s: \"%s\" does not name %s", what, attree_last_error(), name);
}
