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

/* The block of numbers from c on: its scale as f16, and the codes after it. */
typedef struct block_format {
    int64_t bytes;
    float (*scale)(float largest);
    void (*codes)(uint8_t *codes, const attree__numbers *from, int64_t c, float scale);
} block_format;

static float q8_0_scale(float largest) { return fabsf(largest) / 127.0f; }

static void q8_0_codes(uint8_t *codes, const attree__numbers *from, int64_t c, float scale)
{
    for (int i = 0; i < ATTREE__QUANT_BLOCK; i++)
        codes[i] = (uint8_t)(int8_t)code(number(from, c + i), scale, -127, 127);
}

static const block_format q8_0 = {34, q8_0_scale, q8_0_codes};

/* The largest magnitude gets the code -8, the one that has no opposite. */
static float q4_0_scale(float largest) { return largest / -8.0f; }

static void q4_0_codes(uint8_t *codes, const attree__numbers *from, int64_t c, float scale)
{
    const int half = ATTREE__QUANT_BLOCK / 2;
    for (int i = 0; i < half; i++) {
        const int low = code(number(from, c + i), scale, -8, 7) + 8;
        const int high = code(number(from, c + i + half), scale, -8, 7) + 8;
        codes[i] = (uint8_t)(low | high << 4);
    }
}

static const block_format q4_0 = {18, q4_0_scale, q4_0_codes};

static attree_status block_scale(const block_format *format, const attree__numbers *from, int64_t c, uint16_t *scale)
{
    float largest;
    const attree_status status = find_largest(from, c, ATTREE__QUANT_BLOCK, &largest);
    if (status != ATTREE_OK)
        return status;
    const float exact = format->scale(largest);
    *scale = largest == 0.0f ? 0 : attree__to_f16(exact);
    if (!isfinite(attree__from_f16(*scale)))
        return attree__fail(ATTREE_ERROR_NONFINITE, "the scale of a block is %g; it must be at most 65504",
                            (double)exact);
    return ATTREE_OK;
}

static attree_status check_blocks(const block_format *format, const attree__numbers *from)
{
    uint16_t scale;
    attree_status status = ATTREE_OK;
    for (int64_t c = 0; c < from->count && status == ATTREE_OK; c += ATTREE__QUANT_BLOCK)
        status = block_scale(format, from, c, &scale);
    return status;
}

static void write_blocks(const block_format *format, uint8_t *row, const attree__numbers *from)
{
    uint16_t scale = 0;
    for (int64_t c = 0; c < from->count; c += ATTREE__QUANT_BLOCK, row += format->bytes) {
        (void)block_scale(format, from, c, &scale);
        row[0] = (uint8_t)(scale & 255u);
        row[1] = (uint8_t)(scale >> 8);
        format->codes(row + 2, from, c, attree__from_f16(scale));
    }
}

/* ---- Types ---- */

/* Where a row goes: elements `width` apart. */
typedef struct row_target {
    void *row;
    int64_t width;
    float *scale;
} row_target;

/* Finite numbers stay finite. */
static attree_status check_range(int32_t type, const attree__numbers *from)
{
    for (int64_t c = 0; c < from->count && type != from->type; c++) {
        const float x = number(from, c);
        float stored;
        attree__store(&stored, type, 0, x);
        if (attree__is_finite(x) && !attree__is_finite(attree__load(&stored, type, 0)))
            return attree__fail(ATTREE_ERROR_NONFINITE, "number %" PRId64 " is %g; it becomes infinite in %s", c,
                                (double)x, attree__dtypes[type].name);
    }
    return ATTREE_OK;
}

static attree_status check_f32(const attree__numbers *from) { return check_range(ATTREE_F32, from); }
static attree_status check_f16(const attree__numbers *from) { return check_range(ATTREE_F16, from); }
static attree_status check_bf16(const attree__numbers *from) { return check_range(ATTREE_BF16, from); }
static attree_status check_q8_0(const attree__numbers *from) { return check_blocks(&q8_0, from); }
static attree_status check_q4_0(const attree__numbers *from) { return check_blocks(&q4_0, from); }

static attree_status check_i8(const attree__numbers *from)
{
    float scale;
    return row_scale(from, &scale);
}

/* Saturating types take all. */
static attree_status check_f8(const attree__numbers *from)
{
    (void)from;
    return ATTREE_OK;
}

static attree_status check_f8_e5m2(const attree__numbers *from) { return check_f8(from); }

static void write_floats(int32_t type, const row_target *to, const attree__numbers *from)
{
    for (int64_t c = 0; c < from->count; c++)
        attree__store(to->row, type, c * to->width, number(from, c));
}

static void write_f32(const row_target *to, const attree__numbers *from) { write_floats(ATTREE_F32, to, from); }
static void write_f16(const row_target *to, const attree__numbers *from) { write_floats(ATTREE_F16, to, from); }
static void write_bf16(const row_target *to, const attree__numbers *from) { write_floats(ATTREE_BF16, to, from); }
static void write_q8_0(const row_target *to, const attree__numbers *from) { write_blocks(&q8_0, to->row, from); }
static void write_q4_0(const row_target *to, const attree__numbers *from) { write_blocks(&q4_0, to->row, from); }

static void write_i8(const row_target *to, const attree__numbers *from)
{
    int8_t *const codes = to->row;
    (void)row_scale(from, to->scale);
    for (int64_t c = 0; c < from->count; c++)
        codes[c * to->width] = (int8_t)code(number(from, c), *to->scale, -127, 127);
}

static void write_f8(const row_target *to, const attree__numbers *from)
{
    uint8_t *const codes = to->row;
    for (int64_t c = 0; c < from->count; c++)
        codes[c * to->width] = attree__to_f8(number(from, c));
}

static void write_f8_e5m2(const row_target *to, const attree__numbers *from)
{
    uint8_t *const codes = to->row;
    for (int64_t c = 0; c < from->count; c++)
        codes[c * to->width] = attree__to_e5m2(number(from, c));
}

typedef struct quantiser {
    attree_status (*check)(const attree__numbers *from);
    void (*write)(const row_target *to, const attree__numbers *from);
} quantiser;

#define ENTRY(TYPE, name, ...) {check_##name, write_##name},

static const quantiser quantisers[] = {ATTREE__DTYPES(ENTRY)};

attree_status attree__quant_check(int32_t type, const attree__numbers *from) { return quantisers[type].check(from); }

/* NOLINTNEXTLINE(readability-non-const-parameter): write_i8 writes it */
void attree__quant_row(void *row, int32_t type, int64_t width, const attree__numbers *from, float *scale)
{
    const row_target to = {row, width, scale};
    quantisers[type].write(&to, from);
}

size_t attree_row_bytes(int32_t type, int64_t width)
{
    if (!attree__dtype_exists(type) || width < 0 || width > INT64_MAX / 8 ||
        (attree__dtype_has_blocks(type) && width % ATTREE__QUANT_BLOCK != 0))
        return 0;
    return (size_t)attree__dtype_row_bytes(type, width);
}

static attree_status check_row(int32_t type, int64_t width, const void *numbers, const void *row)
{
    if (!attree__dtype_exists(type))
        return attree__fail(ATTREE_ERROR_TYPE, "type is %" PRId32 "; it must be an attree_dtype, 0 to %" PRId32, type,
                            ATTREE__DTYPE_COUNT - 1);
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
    if (attree__dtype_has_row_scales(type) && !scale)
        return attree__fail(ATTREE_ERROR_NULL, "scale is NULL; %s needs one", attree__dtypes[type].name);
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
