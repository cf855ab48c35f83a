/* Where the elements of a tensor lie. See layout.h. */
#include "layout.h"

#include <inttypes.h>
#include <stdlib.h>

#include "dtype.h"
#include "error.h"

attree_status attree__layout_check_type(const char *name, int32_t type, bool of_cache)
{
    if (!of_cache && !attree__dtype_is_float(type))
        return attree__fail(ATTREE_ERROR_TYPE, "%s is %" PRId32 "; it must be f32, f16 or bf16 (0 to 2)", name, type);
    if (!attree__dtype_exists(type))
        return attree__fail(ATTREE_ERROR_TYPE, "%s is %" PRId32 "; it must be an attree_dtype, 0 to %" PRId32, name,
                            type, ATTREE__DTYPE_COUNT - 1);
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
           !attree__mul_overflows(high, bytes, &span->high) && span->low > -ATTREE__LIMIT && span->high < ATTREE__LIMIT;
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

attree_status attree__layout_resolve(const attree__tensor *t)
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
