/* The arguments of a run, of attree_finish and of attree_append against a problem. See desc.h. */
#include <inttypes.h>

#include "desc.h"
#include "dtype.h"
#include "error.h"
#include "layout.h"

typedef struct memory {
    const char *name;
    const void *pointer;
    attree__span span;
    int64_t alignment;
    bool output;
} memory;

static bool overlap(const memory *a, const memory *b)
{
    if (a->span.low == a->span.high || b->span.low == b->span.high)
        return false;
    const uintptr_t a0 = (uintptr_t)a->pointer, b0 = (uintptr_t)b->pointer;
    return a0 + (uintptr_t)a->span.low < b0 + (uintptr_t)b->span.high &&
           b0 + (uintptr_t)b->span.low < a0 + (uintptr_t)a->span.high;
}

/* values[count] for each head. */
static attree_status check_heads(const attree__problem *p, const char *name, const float *values, int64_t count)
{
    if (!values)
        return ATTREE_OK;
    if (count != p->q_heads)
        return attree__fail(ATTREE_ERROR_SHAPE, "%s has %" PRId64 " heads; it must have %" PRId64, name, count,
                            p->q_heads);
    if ((uintptr_t)values % sizeof *values != 0)
        return attree__fail(ATTREE_ERROR_ALIGN, "%s is %p; it must be aligned to 4 bytes", name, (const void *)values);
    return ATTREE_OK;
}

static attree_status check_slopes_and_sinks(const attree__problem *p, const attree_args *args)
{
    attree_status status = check_heads(p, "alibi_slopes", args->alibi_slopes, args->alibi_heads);
    if (status == ATTREE_OK)
        status = check_heads(p, "sinks", args->sinks, args->sink_heads);
    for (int64_t h = 0; h < p->q_heads && status == ATTREE_OK && (args->alibi_slopes || args->sinks); h++) {
        if (args->alibi_slopes && !attree__is_finite(args->alibi_slopes[h]))
            status = attree__fail(ATTREE_ERROR_NONFINITE, "alibi_slopes[%" PRId64 "] is %g; it must be finite", h,
                                  (double)args->alibi_slopes[h]);
        else if (args->sinks && attree__is_nan_or_plus_inf(args->sinks[h]))
            status =
                attree__fail(ATTREE_ERROR_NONFINITE, "sinks[%" PRId64 "] is %g; it must be finite, or -inf for none", h,
                             (double)args->sinks[h]);
    }
    if (status == ATTREE_OK && args->block && !args->score)
        status = attree__fail(ATTREE_ERROR_NULL, "score is NULL; it must be given with block");
    return status;
}

static attree__span span_if(const void *pointer, attree__span span) { return pointer ? span : (attree__span){0, 0}; }

/* No pointer that is needed is NULL, all are aligned, and outputs overlap nothing. */
static attree_status check_tensors(const memory *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        const memory *t = &tensors[i];
        if (!t->pointer && t->span.low != t->span.high)
            return attree__fail(ATTREE_ERROR_NULL, "%s is NULL; it must point to %" PRId64 " bytes", t->name,
                                t->span.high - t->span.low);
        if ((uintptr_t)t->pointer % (uintptr_t)t->alignment != 0)
            return attree__fail(ATTREE_ERROR_ALIGN, "%s is %p; it must be aligned to %" PRId64 " bytes", t->name,
                                t->pointer, t->alignment);
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if ((tensors[i].output || tensors[j].output) && overlap(&tensors[i], &tensors[j]))
                return attree__fail(ATTREE_ERROR_ALIAS, "%s overlaps %s; an output must not overlap anything",
                                    tensors[i].name, tensors[j].name);
    return ATTREE_OK;
}

static memory workspace_of(const attree_args *args)
{
    const attree__span span = {
        0, (int64_t)(args->workspace_bytes < ATTREE__LIMIT ? args->workspace_bytes : ATTREE__LIMIT)};
    return (memory){"workspace", args->workspace, span_if(args->workspace, span), 64, true};
}

/* What a pointer to numbers for each head spans. */
static attree__span per_head(const attree__problem *p, const void *pointer)
{
    int64_t bytes;
    if (!pointer || attree__mul_overflows(p->q_heads, (int64_t)sizeof(float), &bytes))
        bytes = 0; /* nobody has the memory for so many heads */
    return (attree__span){0, bytes};
}

static attree_status check_memory(const attree__problem *p, const attree_args *args)
{
    if ((args->mask && p->mask.span.high < 0) || (args->bias && p->bias.span.high < 0))
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "the size of a dense %s overflows 64 bits; give its sizes or strides",
                            args->mask && p->mask.span.high < 0 ? "mask" : "bias");
    const attree__span none = {0, 0};
    const memory tensors[] = {
        {"q", args->q, p->q_span, attree__dtype_bytes(p->q_type), false},
        {"k", args->k, p->k_span, attree__dtype_alignment(p->k_type), false},
        {"v", args->v, p->v_span, attree__dtype_alignment(p->v_type), false},
        {"k_scales", p->k_type == ATTREE_I8 ? args->k_scales : NULL, p->k_scales_span, 4, false},
        {"v_scales", p->v_type == ATTREE_I8 ? args->v_scales : NULL, p->v_scales_span, 4, false},
        {"page_table", args->page_table, span_if(args->page_table, p->table_span), 4, false},
        {"mask", args->mask, span_if(args->mask, p->mask.span), 1, false},
        {"bias", args->bias, span_if(args->bias, p->bias.span), attree__dtype_bytes(p->bias_type), false},
        {"alibi_slopes", args->alibi_slopes, per_head(p, args->alibi_slopes), 4, false},
        {"sinks", args->sinks, per_head(p, args->sinks), 4, false},
        {"o", args->o, p->states ? none : p->o_span, attree__dtype_bytes(p->o_type), true},
        {"lse", args->lse, p->states ? none : span_if(args->lse, p->lse_span), 4, true},
        {"states", args->states, p->states ? p->states_span : none, 4, true},
        workspace_of(args),
    };
    return check_tensors(tensors, sizeof tensors / sizeof *tensors);
}

attree_status attree__problem_check(const attree__problem *p, const attree_args *args)
{
    const attree_status status = check_slopes_and_sinks(p, args);
    return status == ATTREE_OK ? check_memory(p, args) : status;
}

attree_status attree__problem_check_finish(const attree__problem *p, const attree_args *args)
{
    const attree_status status = check_slopes_and_sinks(p, args);
    if (status != ATTREE_OK)
        return status;
    if (p->states_span.high < 0)
        return attree__fail(ATTREE_ERROR_OVERFLOW, "the size of states overflows 64 bits");
    const memory tensors[] = {
        {"states", args->states, p->states_span, 4, false},
        {"sinks", args->sinks, per_head(p, args->sinks), 4, false},
        {"o", args->o, p->o_span, attree__dtype_bytes(p->o_type), true},
        {"lse", args->lse, span_if(args->lse, p->lse_span), 4, true},
        workspace_of(args),
    };
    return check_tensors(tensors, sizeof tensors / sizeof *tensors);
}

attree_status attree__problem_check_append(const attree__problem *p, const attree_new_tokens *t,
                                           attree_strides strides[2])
{
    const int64_t batch = attree__problem_q_batches(p);
    attree__span spans[2];
    const attree__tensor news[] = {
        {"k", &t->k_strides, {batch, p->kv_heads, p->q_len, p->qk_width}, t->k_type, false, &strides[0], &spans[0]},
        {"v", &t->v_strides, {batch, p->kv_heads, p->q_len, p->v_width}, t->v_type, false, &strides[1], &spans[1]},
    };
    attree_status status = attree__layout_check_type("k_type", t->k_type, ATTREE_BF16);
    if (status == ATTREE_OK)
        status = attree__layout_check_type("v_type", t->v_type, ATTREE_BF16);
    for (int i = 0; i < 2 && status == ATTREE_OK; i++)
        status = attree__layout_resolve(&news[i]);
    if (status != ATTREE_OK)
        return status;
    if (p->batch == 0 || p->q_len == 0) /* nothing is written, the cache may be missing */
        return ATTREE_OK;
    const memory tensors[] = {
        {"k", t->k, spans[0], attree__dtype_bytes(t->k_type), false},
        {"v", t->v, spans[1], attree__dtype_bytes(t->v_type), false},
        {"page_table", t->page_table, span_if(t->page_table, p->table_span), 4, false},
        {"cache_k", t->cache_k, p->k_span, attree__dtype_alignment(p->k_type), true},
        {"cache_v", t->cache_v, p->v_span, attree__dtype_alignment(p->v_type), true},
        {"cache_k_scales", p->k_type == ATTREE_I8 ? t->cache_k_scales : NULL, p->k_scales_span, 4, true},
        {"cache_v_scales", p->v_type == ATTREE_I8 ? t->cache_v_scales : NULL, p->v_scales_span, 4, true},
    };
    return check_tensors(tensors, sizeof tensors / sizeof *tensors);
}
