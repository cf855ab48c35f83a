/* Rows of numbers into rows of any type. See quant.h. */
#include "quant.h"

#include <inttypes.h>
#include <math.h>

#include "dtype.h"
#include "error.h"
#include "simd/fpenv.h"

static float number(const attree__numbers *from, int64_t c)
{
    return attree__load(from->data, from->type, c * from->stride);
}

/* The number of largest magnitude, of count from number c on. */
static attree_status find_largest(const attree__numbers *from, int64_t c, int64_t count, float *largest)
{
    *largest = 0.0f;
    for (int64_t i = c; i < c + count; i++) {
        const float x = number(from, i);
        if (!isfinite(x))
            return attree__fail(ATTREE_ERROR_NONFINITE, "number %" PRId64 " is %g; it must be finite", i, (double)x);
        *largest = fabsf(x) > fabsf(*largest) ? x : *largest;
    }
    return ATTREE_OK;
}

/* x / scale to the nearest integer within low ... high; 0 for the scale 0. */
static int code(float x, float scale, int low, int high)
{
    if (scale == 0.0f)
        return 0;
    const float nearest = nearbyintf(x / scale);
    return nearest < (float)low ? low : nearest > (float)high ? high : (int)nearest;
}

static attree_status row_scale(const attree__numbers *from, float *scale)
{
    float largest;
    const attree_status status = find_largest(from, 0, from->count, &largest);
    *scale = fabsf(largest) / 127.0f;
    if (status == ATTREE_OK && !isfinite(127.0f * *scale))
        return attree__fail(ATTREE_ERROR_NONFINITE, "a number is %g; 127 times its scale must be finite",
                            (double)largest);
    return status;
}

static void write_i8(uint8_t *row, int64_t width, const attree__numbers *from, float *scale)
{
    (void)row_scale(from, scale);
    for (int64_t c = 0; c < from->count; c++)
        row[c * width] = (uint8_t)(int8_t)code(number(from, c), *scale, -127, 127);
}

/* The scale of the block of numbers from c on, as f16: of ATTREE_Q4_0 such that the largest magnitude gets the code -8,
 * the one that has no opposite. */
static attree_status block_scale(int32_t type, const attree__numbers *from, int64_t c, uint16_t *scale)
{
    float largest;
    const attree_status status = find_largest(from, c, ATTREE__QUANT_BLOCK, &largest);
    if (status != ATTREE_OK)
        return status;
    const float exact = type == ATTREE_Q8_0 ? fabsf(largest) / 127.0f : largest / -8.0f;
    *scale = largest == 0.0f ? 0 : attree__to_f16(exact);
    if (!isfinite(attree__from_f16(*scale)))
        return attree__fail(ATTREE_ERROR_NONFINITE, "the scale of a block is %g; it must be at most 65504",
                            (double)exact);
    return ATTREE_OK;
}

static void write_q8_0(uint8_t *codes, const attree__numbers *from, int64_t c, float scale)
{
    for (int i = 0; i < ATTREE__QUANT_BLOCK; i++)
        codes[i] = (uint8_t)(int8_t)code(number(from, c + i), scale, -127, 127);
}

static void write_q4_0(uint8_t *codes, const attree__numbers *from, int64_t c, float scale)
{
    const int half = ATTREE__QUANT_BLOCK / 2;
    for (int i = 0; i < half; i++) {
        const int low = code(number(from, c + i), scale, -8, 7) + 8;
        const int high = code(number(from, c + i + half), scale, -8, 7) + 8;
        codes[i] = (uint8_t)(low | high << 4);
    }
}

static attree_status check_blocks(int32_t type, const attree__numbers *from)
{
    uint16_t scale;
    attree_status status = ATTREE_OK;
    for (int64_t c = 0; c < from->count && status == ATTREE_OK; c += ATTREE__QUANT_BLOCK)
        status = block_scale(type, from, c, &scale);
    return status;
}

static void write_blocks(uint8_t *row, int32_t type, const attree__numbers *from)
{
    uint16_t scale = 0;
    for (int64_t c = 0; c < from->count; c += ATTREE__QUANT_BLOCK) {
        uint8_t *const block = row + c / ATTREE__QUANT_BLOCK * attree__dtype_bytes(type);
        (void)block_scale(type, from, c, &scale);
        block[0] = (uint8_t)(scale & 255u);
        block[1] = (uint8_t)(scale >> 8);
        if (type == ATTREE_Q8_0)
            write_q8_0(block + 2, from, c, attree__from_f16(scale));
        else
            write_q4_0(block + 2, from, c, attree__from_f16(scale));
    }
}

/* Finite numbers stay finite. */
static attree_status check_range(int32_t type, const attree__numbers *from)
{
    for (int64_t c = 0; c < from->count; c++) {
        const float x = number(from, c);
        float stored;
        attree__store(&stored, type, 0, x);
        if (attree__is_finite(x) && !attree__is_finite(attree__load(&stored, type, 0)))
            return attree__fail(ATTREE_ERROR_NONFINITE, "number %" PRId64 " is %g; it becomes infinite in %s", c,
                                (double)x, type == ATTREE_F16 ? "f16" : "bf16");
    }
    return ATTREE_OK;
}

attree_status attree__quant_check(int32_t type, const attree__numbers *from)
{
    float scale;
    switch (type) {
    case ATTREE_F16:
    case ATTREE_BF16: return type == from->type ? ATTREE_OK : check_range(type, from);
    case ATTREE_I8: return row_scale(from, &scale);
    case ATTREE_Q8_0:
    case ATTREE_Q4_0: return check_blocks(type, from);
    default: return ATTREE_OK;
    }
}

void attree__quant_row(void *row, int32_t type, int64_t width, const attree__numbers *from, float *scale)
{
    uint8_t *const bytes = row;
    switch (type) {
    case ATTREE_I8: write_i8(bytes, width, from, scale); break;
    case ATTREE_Q8_0:
    case ATTREE_Q4_0: write_blocks(bytes, type, from); break;
    case ATTREE_F8_E4M3:
        for (int64_t c = 0; c < from->count; c++)
            bytes[c * width] = attree__to_f8(number(from, c));
        break;
    default:
        for (int64_t c = 0; c < from->count; c++)
            attree__store(row, type, c * width, number(from, c));
    }
}

size_t attree_row_bytes(int32_t type, int64_t width)
{
    if (type < ATTREE_F32 || type > ATTREE_F8_E4M3 || width < 0 || width > INT64_MAX / 8 ||
        (attree__dtype_has_blocks(type) && width % ATTREE__QUANT_BLOCK != 0))
        return 0;
    return (size_t)attree__dtype_row_bytes(type, width);
}

static attree_status check_row(int32_t type, int64_t width, const void *numbers, const void *row)
{
    if (type < ATTREE_F32 || type > ATTREE_F8_E4M3)
        return attree__fail(ATTREE_ERROR_TYPE, "type is %" PRId32 "; it must be an attree_dtype, 0 to 6", type);
    if (width < 0 || (width > 0 && attree_row_bytes(type, width) == 0))
        return attree__fail(ATTREE_ERROR_SHAPE,
                            "width is %" PRId64 "; it must be at least 0, and a multiple of 32 for types with blocks",
                            width);
    if (width > 0 && (!numbers || !row))
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", numbers ? "row" : "numbers");
    if ((uintptr_t)numbers % sizeof(float) != 0 || (uintptr_t)row % (uintptr_t)attree__dtype_alignment(type) != 0)
        return attree__fail(ATTREE_ERROR_ALIGN, "numbers is %p and row %p; they must be aligned to their elements",
                            numbers, row);
    return ATTREE_OK;
}

attree_status attree_quantize(int32_t type, int64_t width, const float *numbers, void *row, float *scale)
{
    const attree_status status = check_row(type, width, numbers, row);
    if (status != ATTREE_OK)
        return status;
    if (type == ATTREE_I8 && !scale)
        return attree__fail(ATTREE_ERROR_NULL, "scale is NULL; ATTREE_I8 needs one");
    const attree__fpenv caller = attree__fpenv_enter();
    const attree__numbers from = {numbers, ATTREE_F32, 1, width};
    const attree_status result = attree__quant_check(type, &from);
    if (result == ATTREE_OK)
        attree__quant_row(row, type, 1, &from, scale);
    attree__fpenv_leave(caller);
    return result;
}

attree_status attree_dequantize(int32_t type, int64_t width, const void *row, float scale, float *numbers)
{
    const attree_status status = check_row(type, width, numbers, row);
    if (status != ATTREE_OK)
        return status;
    const attree__fpenv caller = attree__fpenv_enter();
    for (int64_t c = 0; c < width; c++)
        numbers[c] = attree__row_number(row, type, 1, c, scale);
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}
