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
    const int64_t q_batch = desc->q_starts && p->batch > 0 ? 1 : p->batch;
    const int64_t kv_batch = desc->kv_starts && p->batch > 0 ? 1 : p->batch;
    const tensor tensors[] = {
        {"q", &desc->q, {q_batch, p->q_heads, p->q_len, p->qk_width}, p->q_type, false, &p->q, &p->q_span},
        {"k", &desc->k, {kv_batch, p->kv_heads, p->kv_len, p->qk_width}, p->k_type, false, &p->k, &p->k_span},
        {"v", &desc->v, {kv_batch, p->kv_heads, p->kv_len, p->v_width}, p->v_type, false, &p->v, &p->v_span},
        {"o", &desc->o, {q_batch, p->q_heads, p->q_len, p->v_width}, p->o_type, true, &p->o, &p->o_span},
        {"lse", &lse, {q_batch, p->q_heads, p->q_len, 1}, ATTREE_F32, true, &p->lse, &p->lse_span},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const attree_status status = resolve_tensor(&tensors[i]);
        if (status != ATTREE_OK)
            return status;
    }
    return ATTREE_OK;
}

/* Whether nobody said how a tensor over pairs lies, and a dense one would not fit 64 bits: an error only when it is
 * given to a run. */
static bool overflows_by_default(const attree_pairs *given, const int64_t size[4])
{
    if (given->batch_stride || given->head_stride || given->query_stride || given->key_stride)
        return false;
    int64_t count = (int64_t)sizeof(float);
    for (int d = 0; d < 4; d++)
        if (size[d] == 0)
            return false;
    for (int d = 0; d < 4; d++)
        if (attree__mul_overflows(count, size[d], &count) || count >= LIMIT)
            return true;
    return false;
}

/* A tensor over pairs: its sizes, then its layout as for any tensor. Its elements are of a type of 4 or 2 bytes; those
 * of a mask are measured as if they were floats, and then made bytes or bits. */
static attree_status resolve_pairs(attree__pairs *pairs, const char *name, const attree_pairs *given,
                                   const attree__problem *p, int32_t type)
{
    static const char *const dimensions[] = {"batches", "heads", "queries", "keys"};
    const int64_t whole[4] = {p->batch, p->q_heads, p->q_len, p->kv_len};
    const int64_t asked[4] = {given->batches, given->heads, given->queries, given->keys};
    attree_strides strides = {given->batch_stride, given->head_stride, given->query_stride, given->key_stride};
    tensor t = {.name = name, .given = &strides, .type = type, .span = &pairs->span};
    for (int d = 0; d < 4; d++) {
        if (asked[d] != 0 && asked[d] != 1 && asked[d] != whole[d])
            return attree__fail(ATTREE_ERROR_SHAPE,
                                "%s.%s is %" PRId64 "; it must be 1, to be the same for all, or %" PRId64, name,
                                dimensions[d], asked[d], whole[d]);
        t.size[d] = asked[d] == 1 && whole[d] > 0 ? 1 : whole[d];
    }
    if (overflows_by_default(given, t.size)) {
        *pairs = (attree__pairs){.span = {0, -1}};
        return ATTREE_OK;
    }
    attree_strides resolved;
    t.strides = &resolved;
    const attree_status status = resolve_tensor(&t);
    pairs->batch = resolved.batch;
    pairs->head = resolved.head;
    pairs->query = resolved.token;
    pairs->key = resolved.width;
    return status;
}

/* floor(x / 8) */
static int64_t whole_bytes(int64_t bits) { return bits >= 0 ? bits / 8 : -((7 - bits) / 8); }

static attree_status resolve_mask_and_bias(attree__problem *p, const attree_desc *desc)
{
    if (desc->mask_kind < ATTREE_MASK_BYTES || desc->mask_kind > ATTREE_MASK_BITS)
        return attree__fail(ATTREE_ERROR_VALUE, "mask_kind is %" PRId32 "; it must be an attree_mask, 0 or 1",
                            desc->mask_kind);
    p->mask_kind = desc->mask_kind;
    p->bias_type = desc->bias_type;
    attree_status status = check_type("bias_type", desc->bias_type);
    if (status == ATTREE_OK)
        status = resolve_pairs(&p->bias, "bias", &desc->bias, p, p->bias_type);
    if (status == ATTREE_OK)
        status = resolve_pairs(&p->mask, "mask", &desc->mask, p, ATTREE_F32);
    attree__span *const span = &p->mask.span; /* of floats, so far */
    if (status != ATTREE_OK || span->high < 0)
        return status;
    span->low /= 4;
    span->high /= 4;
    if (p->mask_kind == ATTREE_MASK_BITS) {
        span->low = whole_bytes(span->low);
        span->high = whole_bytes(span->high + 7);
    }
    return status;
}

/* 1 / sqrt(D) as the contract rounds it, whatever the caller's rounding mode is. */
static float default_scale(int64_t qk_width)
{
    const attree__fpenv caller = attree__fpenv_enter();
    const float scale = qk_width > 0 ? 1.0f / sqrtf((float)qk_width) : 1.0f;
    attree__fpenv_leave(caller);
    return scale;
}

static attree_status resolve_window(attree__problem *p, const attree_desc *desc)
{
    p->window_left = p->window_right = -1;
    if (desc->flags & ATTREE_USE_WINDOW) {
        const struct {
            const char *name;
            int64_t given;
            int64_t *side;
        } sides[] = {{"window_left", desc->window_left, &p->window_left},
                     {"window_right", desc->window_right, &p->window_right}};
        for (int i = 0; i < 2; i++) {
            if (sides[i].given < -1)
                return attree__fail(ATTREE_ERROR_VALUE, "%s is %" PRId64 "; it must be at least 0, or -1 for no limit",
                                    sides[i].name, sides[i].given);
            *sides[i].side = sides[i].given;
        }
    }
    if (desc->flags & ATTREE_CAUSAL)
        p->window_right = 0;
    return ATTREE_OK;
}

static attree_status check_q_offset(const char *name, int64_t offset)
{
    if (offset < -LIMIT || offset > LIMIT)
        return attree__fail(ATTREE_ERROR_OVERFLOW, "%s is %" PRId64 "; it must be within +-2^62", name, offset);
    return ATTREE_OK;
}

static attree_status resolve_scores(attree__problem *p, const attree_desc *desc)
{
    p->default_q_offset = !(desc->flags & ATTREE_USE_Q_OFFSET);
    if (!p->default_q_offset) {
        const attree_status status = check_q_offset("q_offset", desc->q_offset);
        if (status != ATTREE_OK)
            return status;
        p->q_offset = desc->q_offset;
    }
    p->scale = default_scale(p->qk_width);
    if (desc->flags & ATTREE_USE_SCALE) {
        if (!isfinite(desc->scale))
            return attree__fail(ATTREE_ERROR_VALUE, "scale is %g; it must be finite", (double)desc->scale);
        p->scale = desc->scale;
    }
    if (!isfinite(desc->softcap) || desc->softcap < 0.0f)
        return attree__fail(ATTREE_ERROR_VALUE, "softcap is %g; it must be positive, or 0 for none",
                            (double)desc->softcap);
    p->softcap = desc->softcap;
    return ATTREE_OK;
}

static attree_status resolve_options(attree__problem *p, const attree_desc *desc)
{
    const uint32_t known = ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET | ATTREE_USE_SCALE | ATTREE_USE_WINDOW;
    if (desc->flags & ~known)
        return attree__fail(ATTREE_ERROR_VALUE, "flags is 0x%" PRIx32 "; bits 0x%" PRIx32 " are unknown", desc->flags,
                            desc->flags & ~known);
    if (desc->empty_rows < ATTREE_EMPTY_ZERO || desc->empty_rows > ATTREE_EMPTY_ERROR)
        return attree__fail(ATTREE_ERROR_VALUE, "empty_rows is %" PRId32 "; it must be an attree_empty, 0 to 2",
                            desc->empty_rows);
    p->empty_rows = (attree_empty)desc->empty_rows;
    const attree_status status = resolve_window(p, desc);
    return status == ATTREE_OK ? resolve_scores(p, desc) : status;
}

/* starts[B + 1] must cut `tokens` tokens into pieces. */
static attree_status check_starts(const char *name, const int64_t *starts, int64_t batch, int64_t tokens)
{
    if (!starts)
        return ATTREE_OK;
    if (starts[0] != 0)
        return attree__fail(ATTREE_ERROR_SHAPE, "%s[0] is %" PRId64 "; it must be 0", name, starts[0]);
    for (int64_t b = 0; b < batch; b++)
        if (starts[b + 1] < starts[b])
            return attree__fail(ATTREE_ERROR_SHAPE,
                                "%s[%" PRId64 "] is %" PRId64 "; it must be at least %" PRId64 ", the one before it",
                                name, b + 1, starts[b + 1], starts[b]);
    if (starts[batch] != tokens)
        return attree__fail(ATTREE_ERROR_SHAPE,
                            "%s[%" PRId64 "] is %" PRId64 "; it must be the number of tokens, %" PRId64, name, batch,
                            starts[batch], tokens);
    return ATTREE_OK;
}

static attree_status check_sequences(const attree__problem *p, const attree_desc *desc)
{
    attree_status status = check_starts("q_starts", desc->q_starts, p->batch, p->q_len);
    if (status == ATTREE_OK)
        status = check_starts("kv_starts", desc->kv_starts, p->batch, p->kv_len);
    for (int64_t b = 0; b < p->batch && status == ATTREE_OK && (desc->kv_lens || desc->q_offsets); b++) {
        const int64_t room = desc->kv_starts ? desc->kv_starts[b + 1] - desc->kv_starts[b] : p->kv_len;
        if (desc->kv_lens && (desc->kv_lens[b] < 0 || desc->kv_lens[b] > room))
            status = attree__fail(ATTREE_ERROR_SHAPE, "kv_lens[%" PRId64 "] is %" PRId64 "; it must be 0 to %" PRId64,
                                  b, desc->kv_lens[b], room);
        else if (desc->q_offsets)
            status = check_q_offset("one of q_offsets", desc->q_offsets[b]);
    }
    return status;
}

bool attree__problem_has_sequences(const attree_desc *desc)
{
    return desc->kv_lens || desc->q_offsets || desc->q_starts || desc->kv_starts;
}

attree__sequence attree__problem_sequence(const attree__problem *p, const attree_desc *desc, int64_t b)
{
    attree__sequence s = {0, p->q_len, 0, p->kv_len, p->q_offset};
    if (desc->q_starts) {
        s.q_start = desc->q_starts[b];
        s.q_len = desc->q_starts[b + 1] - s.q_start;
    }
    if (desc->kv_starts) {
        s.kv_start = desc->kv_starts[b];
        s.kv_len = desc->kv_starts[b + 1] - s.kv_start;
    }
    if (desc->kv_lens)
        s.kv_len = desc->kv_lens[b];
    if (desc->q_offsets)
        s.q_offset = desc->q_offsets[b];
    else if (p->default_q_offset)
        s.q_offset = s.kv_len - s.q_len;
    return s;
}

static attree_status check_types(const attree_desc *desc)
{
    const struct {
        const char *name;
        int32_t type;
    } types[] = {
        {"q_type", desc->q_type}, {"k_type", desc->k_type}, {"v_type", desc->v_type}, {"o_type", desc->o_type}};
    attree_status status = ATTREE_OK;
    for (int i = 0; i < 4 && status == ATTREE_OK; i++)
        status = check_type(types[i].name, types[i].type);
    return status;
}

attree_status attree__problem_init(attree__problem *problem, const attree_desc *desc)
{
    if (!desc)
        return attree__fail(ATTREE_ERROR_NULL, "desc is NULL; it must point to an attree_desc");
    if (desc->size != sizeof(attree_desc))
        return attree__fail(ATTREE_ERROR_SIZE, "desc->size is %zu; this library knows %zu", desc->size,
                            sizeof(attree_desc));
    attree_status status = check_dimensions(desc);
    if (status == ATTREE_OK)
        status = check_types(desc);
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
    if (status == ATTREE_OK)
        status = check_sequences(problem, desc);
    if (status == ATTREE_OK)
        status = resolve_tensors(problem, desc);
    return status == ATTREE_OK ? resolve_mask_and_bias(problem, desc) : status;
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
        if (args->alibi_slopes && !isfinite(args->alibi_slopes[h]))
            status = attree__fail(ATTREE_ERROR_NONFINITE, "alibi_slopes[%" PRId64 "] is %g; it must be finite", h,
                                  (double)args->alibi_slopes[h]);
        else if (args->sinks && !(args->sinks[h] < INFINITY))
            status =
                attree__fail(ATTREE_ERROR_NONFINITE, "sinks[%" PRId64 "] is %g; it must be finite, or -inf for none", h,
                             (double)args->sinks[h]);
    }
    if (status == ATTREE_OK && args->block && !args->score)
        status = attree__fail(ATTREE_ERROR_NULL, "score is NULL; it must be given with block");
    return status;
}

static attree__span span_if(const void *pointer, attree__span span) { return pointer ? span : (attree__span){0, 0}; }

static attree_status check_memory(const attree__problem *p, const attree_args *args)
{
    if ((args->mask && p->mask.span.high < 0) || (args->bias && p->bias.span.high < 0))
        return attree__fail(ATTREE_ERROR_OVERFLOW,
                            "the size of a dense %s overflows 64 bits; give its sizes or strides",
                            args->mask && p->mask.span.high < 0 ? "mask" : "bias");
    const attree__span work = {0, (int64_t)(args->workspace_bytes < LIMIT ? args->workspace_bytes : LIMIT)};
    const attree__span heads = {0, p->q_heads * (int64_t)sizeof(float)};
    const memory tensors[] = {
        {"q", args->q, p->q_span, attree__dtype_bytes(p->q_type), false},
        {"k", args->k, p->k_span, attree__dtype_bytes(p->k_type), false},
        {"v", args->v, p->v_span, attree__dtype_bytes(p->v_type), false},
        {"mask", args->mask, span_if(args->mask, p->mask.span), 1, false},
        {"bias", args->bias, span_if(args->bias, p->bias.span), attree__dtype_bytes(p->bias_type), false},
        {"alibi_slopes", args->alibi_slopes, span_if(args->alibi_slopes, heads), 4, false},
        {"sinks", args->sinks, span_if(args->sinks, heads), 4, false},
        {"o", args->o, p->o_span, attree__dtype_bytes(p->o_type), true},
        {"lse", args->lse, span_if(args->lse, p->lse_span), 4, true},
        {"workspace", args->workspace, span_if(args->workspace, work), 64, true},
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

attree_status attree__problem_check(const attree__problem *p, const attree_args *args)
{
    const attree_status status = check_slopes_and_sinks(p, args);
    return status == ATTREE_OK ? check_memory(p, args) : status;
}

attree__keys attree__problem_visible(const attree__problem *p, const attree__sequence *s, int64_t i)
{
    const int64_t position = i + s->q_offset; /* nothing here overflows: |q_offset| and sizes are within LIMIT */
    attree__keys keys = {0, s->kv_len};
    if (p->window_left >= 0 && p->window_left < position)
        keys.first = position - p->window_left < s->kv_len ? position - p->window_left : s->kv_len;
    if (p->window_right >= 0 && p->window_right < s->kv_len - position - 1) {
        const int64_t end = position + p->window_right + 1;
        keys.end = end > 0 ? end : 0;
    }
    return keys;
}
