/* Descriptor to problem. See desc.h. */
#include "desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "dtype.h"
#include "error.h"
#include "simd/fpenv.h"

/* Half of the 64-bit range: sums of two such numbers cannot overflow. */
#define LIMIT (INT64_MAX / 2)

typedef struct tensor {
    const char *name;
    const attree_strides *given;
    int64_t size[4]; /* batch, head, token, width */
    int32_t type;
    bool output;
    attree_strides *strides;
    attree__span *span;
} tensor;

static attree_status check_dimension(const char *name, int64_t value, int64_t least)
{
    if (value < least)
        return attree__fail(ATTREE_ERROR_SHAPE, "%s is %" PRId64 "; it must be at least %" PRId64, name, value, least);
    if (value > LIMIT)
        return attree__fail(ATTREE_ERROR_OVERFLOW, "%s is %" PRId64 "; it must be at most %" PRId64, name, value,
                            (int64_t)LIMIT);
    return ATTREE_OK;
}

static attree_status check_dimensions(const attree_desc *desc)
{
    const struct {
        const char *name;
        int64_t value, least;
    } dimensions[] = {
        {"batch", desc->batch, 0},     {"q_heads", desc->q_heads, 1}, {"kv_heads", desc->kv_heads, 1},
        {"q_len", desc->q_len, 0},     {"kv_len", desc->kv_len, 0},   {"qk_width", desc->qk_width, 0},
        {"v_width", desc->v_width, 1},
    };
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++) {
        const attree_status status = check_dimension(dimensions[i].name, dimensions[i].value, dimensions[i].least);
        if (status != ATTREE_OK)
            return status;
    }
    if (desc->q_heads % desc->kv_heads != 0)
        return attree__fail(ATTREE_ERROR_SHAPE, "q_heads is %" PRId64 "; it must be a multiple of kv_heads, %" PRId64,
                            desc->q_heads, desc->kv_heads);
    return ATTREE_OK;
}

static attree_status check_type(const char *name, int32_t type)
{
    if (type < ATTREE_F32 || type > ATTREE_BF16)
        return attree__fail(ATTREE_ERROR_TYPE, "%s is %" PRId32 "; it must be an attree_dtype, 0 to 2", name, type);
    return ATTREE_OK;
}

/* Dense strides of [B, heads, tokens, width], none of them 0. Returns false on overflow. */
static bool dense_strides(int64_t stride[4], const int64_t size[4])
{
    stride[3] = 1;
    for (int d = 2; d >= 0; d--)
        if (attree__mul_overflows(stride[d + 1], size[d + 1], &stride[d]))
            return false;
    return true;
}

/* The span of a tensor. Returns false on overflow. */
static bool measure_span(attree__span *span, const int64_t stride[4], const int64_t size[4], int32_t type)
{
    const int64_t bytes = attree__dtype_bytes(type);
    int64_t low = 0, high = 0, reach;
    for (int d = 0; d < 4; d++) {
        if (attree__mul_overflows(stride[d], size[d] - 1, &reach))
            return false;
        int64_t *const side = reach < 0 ? &low : &high;
        if (attree__add_overflows(*side, reach, side))
            return false;
    }
    return !attree__add_overflows(high, 1, &high) && !attree__mul_overflows(low, bytes, &span->low) &&
           !attree__mul_overflows(high, bytes, &span->high) && span->low > -LIMIT && span->high < LIMIT;
}

/* Whether each dimension's stride steps over all that the dimensions with smaller strides span. Elements are then
 * distinct. (Some interleaved layouts with distinct elements are refused, too; nobody has asked for them.) */
static bool elements_are_distinct(const int64_t stride[4], const int64_t size[4])
{
    bool placed[4] = {false};
    int64_t reach = 0; /* farthest element of the dimensions placed so far; fits: it is within the span */
    for (int round = 0; round < 4; round++) {
        int smallest = -1;
        for (int d = 0; d < 4; d++)
            if (!placed[d] && (smallest < 0 || llabs(stride[d]) < llabs(stride[smallest])))
                smallest = d;
        placed[smallest] = true;
        if (size[smallest] == 1)
            continue;
        if (llabs(stride[smallest]) <= reach)
            return false;
        reach += llabs(stride[smallest]) * (size[smallest] - 1);
    }
    return true;
}

static attree_status resolve_tensor(const tensor *t)
{
    int64_t stride[4] = {t->given->batch, t->given->head, t->given->token, t->given->width};
    bool empty = false;
    for (int d = 0; d < 4; d++)
        empty = empty || t->size[d] == 0;
    *t->strides = (attree_strides){0, 0, 0, 0};
    *t->span = (attree__span){0, 0};
    if (empty)
        return ATTREE_OK;
    const bool dense = !stride[0] && !stride[1] && !stride[2] && !stride[3];
    if (dense && !dense_strides(stride, t->size))
        return attree__fail(ATTREE_ERROR_OVERFLOW, "the size of %s overflows 64 bits", t->name);
    for (int d = 0; d < 4; d++)
        if (t->size[d] == 1)
            stride[d] = 0;
    *t->strides = (attree_strides){stride[0], stride[1], stride[2], stride[3]};
    for (int d = 0; d < 4; d++)
        if (stride[d] == INT64_MIN)
            return attree__fail(ATTREE_ERROR_OVERFLOW, "a stride of %s is INT64_MIN; offsets would overflow 64 bits",
                                t->name);
    if (!measure_span(t->span, stride, t->size, t->type))
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "an offset in %s overflows 64 bits; strides are %" PRId64 ", %" PRId64 ", %" PRId64
                            ", %" PRId64,
                            t->name, stride[0], stride[1], stride[2], stride[3]);
    if (t->output && !elements_are_distinct(stride, t->size))
        return attree__fail(ATTREE_ERROR_STRIDE,
                            "strides of %s are %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                            "; they must keep its elements apart",
                            t->name, stride[0], stride[1], stride[2], stride[3]);
    return ATTREE_OK;
}

static attree_status resolve_tensors(attree__problem *p, const attree_desc *desc)
{
    attree_strides lse = desc->lse;
    lse.width = 0;
    const tensor tensors[] = {
        {"q", &desc->q, {p->batch, p->q_heads, p->q_len, p->qk_width}, p->q_type, false, &p->q, &p->q_span},
        {"k", &desc->k, {p->batch, p->kv_heads, p->kv_len, p->qk_width}, p->k_type, false, &p->k, &p->k_span},
        {"v", &desc->v, {p->batch, p->kv_heads, p->kv_len, p->v_width}, p->v_type, false, &p->v, &p->v_span},
        {"o", &desc->o, {p->batch, p->q_heads, p->q_len, p->v_width}, p->o_type, true, &p->o, &p->o_span},
        {"lse", &lse, {p->batch, p->q_heads, p->q_len, 1}, ATTREE_F32, true, &p->lse, &p->lse_span},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const attree_status status = resolve_tensor(&tensors[i]);
        if (status != ATTREE_OK)
            return status;
    }
    return ATTREE_OK;
}

/* 1 / sqrt(D) as the contract rounds it, whatever the caller's rounding mode is. */
static float default_scale(int64_t qk_width)
{
    const attree__fpenv caller = attree__fpenv_enter();
    const float scale = qk_width > 0 ? 1.0f / sqrtf((float)qk_width) : 1.0f;
    attree__fpenv_leave(caller);
    return scale;
}

static attree_status resolve_options(attree__problem *p, const attree_desc *desc)
{
    const uint32_t known = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET | ATTREE_USE_SCALE;
    if (desc->flags & ~known)
        return attree__fail(ATTREE_ERROR_VALUE, "flags is 0x%" PRIx32 "; bits 0x%" PRIx32 " are unknown", desc->flags,
                            desc->flags & ~known);
    if (desc->reserved != 0)
        return attree__fail(ATTREE_ERROR_VALUE, "reserved is %" PRId32 "; it must be 0", desc->reserved);
    if (desc->empty_rows < ATTREE_EMPTY_ZERO || desc->empty_rows > ATTREE_EMPTY_ERROR)
        return attree__fail(ATTREE_ERROR_VALUE, "empty_rows is %" PRId32 "; it must be an attree_empty, 0 to 2",
                            desc->empty_rows);
    p->empty_rows = (attree_empty)desc->empty_rows;
    p->causal = (desc->flags & ATTREE_CAUSAL) != 0;

    p->q_offset = p->kv_len - p->q_len;
    if (desc->flags & ATTREE_USE_Q_OFFSET) {
        if (desc->q_offset < -LIMIT || desc->q_offset > LIMIT)
            return attree__fail(ATTREE_ERROR_OVERFLOW, "q_offset is %" PRId64 "; it must be within +-2^62",
                                desc->q_offset);
        p->q_offset = desc->q_offset;
    }

    p->scale = default_scale(p->qk_width);
    if (desc->flags & ATTREE_USE_SCALE) {
        if (!isfinite(desc->scale))
            return attree__fail(ATTREE_ERROR_VALUE, "scale is %g; it must be finite", (double)desc->scale);
        p->scale = desc->scale;
    }
    return ATTREE_OK;
}

attree_status attree__problem_init(attree__problem *problem, const attree_desc *desc)
{
    if (!desc)
        return attree__fail(ATTREE_ERROR_NULL, "desc is NULL; it must point to an attree_desc");
    if (desc->size != sizeof(attree_desc))
        return attree__fail(ATTREE_ERROR_SIZE, "desc->size is %zu; this library knows %zu", desc->size,
                            sizeof(attree_desc));
    attree_status status = check_dimensions(desc);
    const struct {
        const char *name;
        int32_t type;
    } types[] = {
        {"q_type", desc->q_type}, {"k_type", desc->k_type}, {"v_type", desc->v_type}, {"o_type", desc->o_type}};
    for (int i = 0; i < 4 && status == ATTREE_OK; i++)
        status = check_type(types[i].name, types[i].type);
    if (status != ATTREE_OK)
        return status;

    *problem = (attree__problem){
        .batch = desc->batch,
        .q_heads = desc->q_heads,
        .kv_heads = desc->kv_heads,
        .group = desc->q_heads / desc->kv_heads,
        .q_len = desc->q_len,
        .kv_len = desc->kv_len,
        .qk_width = desc->qk_width,
        .v_width = desc->v_width,
        .q_type = desc->q_type,
        .k_type = desc->k_type,
        .v_type = desc->v_type,
        .o_type = desc->o_type,
    };
    status = resolve_options(problem, desc);
    return status == ATTREE_OK ? resolve_tensors(problem, desc) : status;
}

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

attree_status attree__problem_check(const attree__problem *p, const attree_args *args)
{
    const attree__span none = {0, 0};
    const attree__span work = {0, (int64_t)(args->workspace_bytes < LIMIT ? args->workspace_bytes : LIMIT)};
    const memory tensors[] = {
        {"q", args->q, p->q_span, attree__dtype_bytes(p->q_type), false},
        {"k", args->k, p->k_span, attree__dtype_bytes(p->k_type), false},
        {"v", args->v, p->v_span, attree__dtype_bytes(p->v_type), false},
        {"o", args->o, p->o_span, attree__dtype_bytes(p->o_type), true},
        {"lse", args->lse, args->lse ? p->lse_span : none, 4, true},
        {"workspace", args->workspace, args->workspace ? work : none, 64, true},
    };
    const int count = sizeof tensors / sizeof *tensors;
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

attree__keys attree__problem_visible(const attree__problem *p, int64_t i)
{
    int64_t end = p->kv_len;
    if (p->causal) {
        const int64_t position = i + p->q_offset;
        end = position < end ? position + 1 : end;
    }
    return end > 0 ? (attree__keys){0, end} : (attree__keys){0, 0};
}
