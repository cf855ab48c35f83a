/* What a caller hands over. See args.h. */
#include "args.h"

#include <inttypes.h>

#include "dtype.h"
#include "error.h"
#include "layout.h"
#include "pages.h"
#include "sized.h"

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

/* Scales of rows, of types that have them. */
static const void *if_scaled(int32_t type, const float *scales)
{
    return attree__dtype_has_row_scales(type) ? scales : NULL;
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

static memory control_of(const attree_args *args)
{
    const attree__span span = {0, (int64_t)sizeof *args->control};
    return (memory){"control", args->control, span_if(args->control, span), 8, true};
}

/* What a pointer to numbers for each head spans. */
static attree__span per_head(const attree__problem *p, const void *pointer)
{
    int64_t bytes;
    if (!pointer || attree__mul_overflows(p->q_heads, (int64_t)sizeof(float), &bytes))
        bytes = 0; /* nobody has the memory for so many heads */
    return (attree__span){0, bytes};
}

/* lse is read when weights are written, and need not be there otherwise. */
static attree__span lse_span(const attree__problem *p, const attree_args *args)
{
    return p->weights ? p->lse_span : p->states ? (attree__span){0, 0} : span_if(args->lse, p->lse_span);
}

static attree_status check_memory(const attree__problem *p, const attree_args *args)
{
    if ((args->mask && p->mask.span.high < 0) || (args->bias && p->bias.span.high < 0))
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "the size of a dense %s overflows 64 bits; give its sizes or strides",
                            args->mask && p->mask.span.high < 0 ? "mask" : "bias");
    if (p->weights && !args->weights && !args->key_weights)
        return attree__fail(ATTREE_ERROR_NULL, "weights and key_weights are NULL; one of them must be given");
    const attree__span none = {0, 0};
    const memory tensors[] = {
        {"q", args->q, p->q_span, attree__dtype_bytes(p->q_type), false},
        {"k", args->k, p->k_span, attree__dtype_alignment(p->k_type), false},
        {"v", args->v, p->weights ? none : p->v_span, attree__dtype_alignment(p->v_type), false},
        {"k_scales", if_scaled(p->k_type, args->k_scales), p->k_scales_span, 4, false},
        {"v_scales", if_scaled(p->v_type, args->v_scales), p->weights ? none : p->v_scales_span, 4, false},
        {"page_table", args->page_table, span_if(args->page_table, p->table_span), 4, false},
        {"mask", args->mask, span_if(args->mask, p->mask.span), 1, false},
        {"bias", args->bias, span_if(args->bias, p->bias.span), attree__dtype_bytes(p->bias_type), false},
        {"alibi_slopes", args->alibi_slopes, per_head(p, args->alibi_slopes), 4, false},
        {"sinks", args->sinks, per_head(p, args->sinks), 4, false},
        {"o", args->o, p->states || p->weights ? none : p->o_span, attree__dtype_bytes(p->o_type), true},
        {"lse", args->lse, lse_span(p, args), 4, !p->weights},
        {"weights", args->weights, span_if(p->weights ? args->weights : NULL, p->weights_span),
         attree__dtype_bytes(p->weights_type), true},
        {"key_weights", args->key_weights, span_if(p->weights ? args->key_weights : NULL, p->key_weights_span), 4,
         true},
        {"states", args->states, p->states ? p->states_span : none, 4, true},
        control_of(args),
        workspace_of(args),
    };
    return check_tensors(tensors, sizeof tensors / sizeof *tensors);
}

attree_status attree__args_copy(attree_args *whole, const attree_args *args)
{
    const attree__sized kind = {"args", sizeof(attree_args), offsetof(attree_args, mask)};
    return attree__sized_copy(whole, args, &kind);
}

attree_status attree__args_check_workspace(attree_args *whole, const attree_plan *plan, const attree_args *args)
{
    if (!plan)
        return attree__fail(ATTREE_ERROR_NULL, "plan is NULL");
    const attree_status status = attree__args_copy(whole, args);
    if (status != ATTREE_OK)
        return status;
    if (!whole->workspace)
        return attree__fail(ATTREE_ERROR_NULL, "workspace is NULL; it must point to %zu bytes", plan->workspace_bytes);
    if (whole->workspace_bytes < plan->workspace_bytes)
        return attree__fail(ATTREE_ERROR_WORKSPACE, "workspace_bytes is %zu; it must be at least %zu",
                            whole->workspace_bytes, plan->workspace_bytes);
    return ATTREE_OK;
}

attree_status attree__args_check(attree_args *whole, const attree_plan *plan, const attree_args *args)
{
    attree_status status = attree__args_check_workspace(whole, plan, args);
    if (status == ATTREE_OK)
        status = check_slopes_and_sinks(&plan->problem, whole);
    if (status == ATTREE_OK)
        status = check_memory(&plan->problem, whole);
    return status == ATTREE_OK ? attree__pages_check(plan, whole->page_table, false) : status;
}

/* The memory of attree_finish. */
static attree_status check_finished(const attree__problem *p, const attree_args *args)
{
    if (p->weights)
        return attree__fail(ATTREE_ERROR_VALUE, "the plan has ATTREE_WEIGHTS; it must not, to finish states");
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

attree_status attree__args_check_finish(attree_args *whole, const attree_plan *plan, const attree_args *args)
{
    attree_status status = attree__args_check_workspace(whole, plan, args);
    if (status == ATTREE_OK)
        status = check_slopes_and_sinks(&plan->problem, whole);
    return status == ATTREE_OK ? check_finished(&plan->problem, whole) : status;
}

/* ---- New tokens ---- */

/* The new tokens of every sequence must be keys that it has. */
static attree_status check_positions(const attree_plan *plan)
{
    const attree__problem *p = &plan->problem;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const attree__sequence *s = &plan->segments[n].sequence;
        const int64_t end = s->kv_len < p->shard.end ? s->kv_len : p->shard.end;
        if (s->q_len > 0 && plan->segments[n].batches > 0 &&
            (s->q_offset < p->shard.first || s->q_offset > end - s->q_len))
            return attree__fail(ATTREE_ERROR_SHAPE,
                                "batch entry %" PRId64 " has new tokens %" PRId64 " to %" PRId64
                                "; they must be among its keys, %" PRId64 " to %" PRId64,
                                plan->segments[n].batch, s->q_offset, s->q_offset + s->q_len - 1, p->shard.first,
                                end - 1);
    }
    return ATTREE_OK;
}

/* The memory of new tokens, whose strides are resolved, too. */
static attree_status check_new_memory(const attree__problem *p, attree_new_tokens *t)
{
    const int64_t batch = attree__problem_q_batches(p);
    const attree_strides k = t->k_strides, v = t->v_strides;
    attree__span spans[2];
    const attree__tensor news[] = {
        {"k", &k, {batch, p->kv_heads, p->q_len, p->qk_width}, t->k_type, false, &t->k_strides, &spans[0]},
        {"v", &v, {batch, p->kv_heads, p->q_len, p->v_width}, t->v_type, false, &t->v_strides, &spans[1]},
    };
    attree_status status = attree__layout_check_type("k_type", t->k_type, false);
    if (status == ATTREE_OK)
        status = attree__layout_check_type("v_type", t->v_type, false);
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
        {"cache_k_scales", if_scaled(p->k_type, t->cache_k_scales), p->k_scales_span, 4, true},
        {"cache_v_scales", if_scaled(p->v_type, t->cache_v_scales), p->v_scales_span, 4, true},
    };
    return check_tensors(tensors, sizeof tensors / sizeof *tensors);
}

attree_status attree__args_check_append(attree_new_tokens *whole, const attree_plan *plan,
                                        const attree_new_tokens *tokens)
{
    const attree__sized kind = {"tokens", sizeof(attree_new_tokens), offsetof(attree_new_tokens, cache_k_scales)};
    if (!plan)
        return attree__fail(ATTREE_ERROR_NULL, "plan is NULL");
    attree_status status = attree__sized_copy(whole, tokens, &kind);
    if (status == ATTREE_OK)
        status = check_positions(plan);
    if (status == ATTREE_OK)
        status = check_new_memory(&plan->problem, whole);
    return status == ATTREE_OK ? attree__pages_check(plan, whole->page_table, true) : status;
}
