/* Quantised rows: codes are the nearest ones, blocks lie as ggml's do, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/dtype.h"
#include "caches.h"

#define COUNT_OF(array) (int64_t)(sizeof(array) / sizeof *(array))

enum { BLOCK = 32, Q8_BYTES = 34, Q4_BYTES = 18 };

/* ---- Numbers of formats, from their definitions ---- */

static double f16_value(unsigned bits)
{
    const int exponent = (int)(bits >> 10 & 31u), fraction = (int)(bits & 1023u);
    const double magnitude = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000u ? -magnitude : magnitude;
}

static double f8_value(unsigned bits)
{
    const int exponent = (int)(bits >> 3 & 15u), fraction = (int)(bits & 7u);
    const double magnitude = (bits & 127u) == 127u ? (double)NAN
                             : exponent == 0       ? ldexp(fraction, -9)
                                                   : ldexp(8 + fraction, exponent - 10);
    return bits & 0x80u ? -magnitude : magnitude;
}

/* ---- Rounding ---- */

/* A row of any type. */
typedef struct row {
    uint8_t bytes[8 * Q8_BYTES];
    float scale;
} row;

static row quantised(int32_t type, int64_t width, const float *numbers)
{
    row r = {.scale = -77.0f};
    memset(r.bytes, 0xa5, sizeof r.bytes);
    assert_int_equal(attree_quantize(type, width, numbers, r.bytes, &r.scale), ATTREE_OK);
    for (size_t i = attree_row_bytes(type, width); i < sizeof r.bytes; i++)
        assert_int_equal(r.bytes[i], 0xa5);
    if (type != ATTREE_I8)
        assert_true(r.scale == -77.0f);
    return r;
}

/* Scale and code of number c. */
static double scale_of(const row *r, int32_t type, int64_t c)
{
    if (type == ATTREE_I8)
        return (double)r->scale;
    const uint8_t *const block = r->bytes + c / BLOCK * (type == ATTREE_Q8_0 ? Q8_BYTES : Q4_BYTES);
    return f16_value(block[0] | (unsigned)block[1] << 8);
}

static int code_of(const row *r, int32_t type, int64_t c)
{
    const int64_t i = c % BLOCK;
    if (type == ATTREE_I8)
        return (int8_t)r->bytes[c];
    if (type == ATTREE_Q8_0)
        return (int8_t)r->bytes[c / BLOCK * Q8_BYTES + 2 + i];
    const uint8_t pair = r->bytes[c / BLOCK * Q4_BYTES + 2 + i % 16];
    return (i < 16 ? pair & 15 : pair >> 4) - 8;
}

/* No code is nearer to x than the row's by more than the rounding of a quotient; no -128. */
static void check_code(const row *r, int32_t type, int64_t c, float x)
{
    const int low = type == ATTREE_Q4_0 ? -8 : -127, high = type == ATTREE_Q4_0 ? 7 : 127;
    const double scale = scale_of(r, type, c);
    const int code = code_of(r, type, c);
    assert_in_range(code - low, 0, high - low);
    const double distance = fabs((double)x - scale * code), slack = fabs(scale) * 0x1p-17;
    for (int other = low; other <= high; other++)
        if (fabs((double)x - scale * other) < distance - slack)
            fail_msg("%s: %a at scale %a is %d, although %d is nearer", type_name(type), (double)x, scale, code, other);
}

static void check_scale(const row *r, int32_t type, int64_t first, int64_t count, const float *x)
{
    double largest = 0.0;
    for (int64_t c = first; c < first + count; c++)
        largest = fabs((double)x[c]) > fabs(largest) ? (double)x[c] : largest;
    const double exact = type == ATTREE_Q4_0 ? largest / -8.0 : fabs(largest) / 127.0, scale = scale_of(r, type, first);
    /* half a unit in the last place of f32, or of f16 (which may be subnormal) and the quotient in f32 before it */
    const double half = type == ATTREE_I8 ? 0x1p-24 : 0x1.01p-11, least = type == ATTREE_I8 ? 0x1p-150 : 0x1p-25;
    assert_true(fabs(scale - exact) <= fmax(fabs(exact) * half, least * 1.001));
}

static void check_row(int32_t type, int64_t width, const float *numbers)
{
    const row r = quantised(type, width, numbers);
    const int64_t unit = type == ATTREE_I8 ? width : BLOCK;
    for (int64_t first = 0; first < width; first += unit)
        check_scale(&r, type, first, unit, numbers);
    for (int64_t c = 0; c < width; c++)
        check_code(&r, type, c, numbers[c]);
    float back[8 * BLOCK];
    assert_int_equal(attree_dequantize(type, width, r.bytes, r.scale, back), ATTREE_OK);
    for (int64_t c = 0; c < width; c++)
        assert_true(back[c] == (float)scale_of(&r, type, c) * (float)code_of(&r, type, c));
}

/* Of every magnitude, subnormal ones and those near the largest too. */
static void codes_are_the_nearest(void **state)
{
    (void)state;
    random_source random = {7};
    for (int n = 0; n < 3; n++)
        for (int exponent = -149; exponent < 127; exponent++)
            for (int64_t width = 32; width <= 96; width += has_blocks(quantised_types[n]) ? 32 : 13) {
                float numbers[8 * BLOCK];
                const bool fits = quantised_types[n] == ATTREE_I8 || exponent < 18;
                fill_random(numbers, width, &random, -1.0f, 1.0f);
                for (int64_t c = 0; c < width; c++)
                    numbers[c] = ldexpf(numbers[c], exponent);
                if (fits && !thinned_out())
                    check_row(quantised_types[n], width, numbers);
            }
}

static void ties_go_to_the_even_code(void **state)
{
    (void)state;
    float numbers[8 * BLOCK];
    /* The largest is 127 / 4: scale 1/4. Then halves: 0.5, -0.5, 1.5, -1.5 ... of a step. */
    for (int64_t c = 0; c < 256; c++)
        numbers[c] = (c % 2 ? -0.125f : 0.125f) * (float)(c - c % 2 + 1);
    numbers[0] = 31.75f; /* which was half a step */
    const row i8 = quantised(ATTREE_I8, 254, numbers);
    assert_true(i8.scale == 0.25f);
    for (int64_t c = 1; c < 254; c++) {
        const int even = (int)(c / 2 + 1) / 2 * 2;
        assert_int_equal(code_of(&i8, ATTREE_I8, c), c % 2 ? -even : even);
    }
    for (int64_t c = 0; c < 256; c += BLOCK)
        numbers[c] = 31.75f;
    const row q8 = quantised(ATTREE_Q8_0, 224, numbers);
    for (int64_t c = 1; c < 224; c++) {
        const int even = (int)(c / 2 + 1) / 2 * 2;
        if (c % BLOCK != 0)
            assert_int_equal(code_of(&q8, ATTREE_Q8_0, c), c % 2 ? -even : even);
    }
    /* The largest is -4: scale 1/2. */
    for (int64_t c = 0; c < BLOCK; c++)
        numbers[c] = 0.5f * ((float)(c % 15) - 7.5f);
    numbers[31] = -4.0f;
    const row q4 = quantised(ATTREE_Q4_0, BLOCK, numbers);
    static const int evens[15] = {-8, -6, -6, -4, -4, -2, -2, 0, 0, 2, 2, 4, 4, 6, 6};
    for (int64_t c = 0; c < 31; c++)
        assert_int_equal(code_of(&q4, ATTREE_Q4_0, c), evens[c % 15]);
}

static void zeros_stay_zeros(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof quantised_types / sizeof *quantised_types; n++) {
        float numbers[8 * BLOCK] = {0.0f}, back[8 * BLOCK];
        numbers[3] = -0.0f;
        row r = quantised(quantised_types[n], 64, numbers);
        if (attree__dtypes[quantised_types[n]].scales != ATTREE__NO_SCALE)
            assert_true(scale_of(&r, quantised_types[n], 0) == 0.0);
        memset(back, 0xff, sizeof back);
        assert_int_equal(attree_dequantize(quantised_types[n], 64, r.bytes, r.scale, back), ATTREE_OK);
        for (int64_t c = 0; c < 64; c++)
            assert_true(back[c] == 0.0f);
        /* a block of zeros next to one that is not */
        numbers[40] = 5.0f;
        r = quantised(quantised_types[n], 64, numbers);
        assert_int_equal(attree_dequantize(quantised_types[n], 64, r.bytes, r.scale, back), ATTREE_OK);
        for (int64_t c = 0; c < 64; c++)
            assert_true(c == 40 ? fabsf(back[c] - 5.0f) < 0.01f : back[c] == 0.0f);
    }
}

/* A scale that was rounded down asks for more than 127 steps. */
static void no_code_is_minus_128(void **state)
{
    (void)state;
    random_source random = {9};
    for (int n = 0; n < 20000; n++) {
        float numbers[BLOCK] = {0.0f};
        numbers[0] = -ldexpf(random_float(&random, 1.0f, 2.0f), (int)random_integer(&random, -24, 10));
        numbers[1] = -numbers[0];
        for (int type = ATTREE_I8; type <= ATTREE_Q8_0; type++) {
            const row r = quantised(type, BLOCK, numbers);
            assert_int_equal(code_of(&r, type, 0), -code_of(&r, type, 1));
            assert_true(code_of(&r, type, 0) >= -127);
        }
    }
}

/* A constant row or channel is within half a step, with a finite scale. */
static void constants_are_kept(void **state)
{
    (void)state;
    const float constants[] = {3.7f, -3.7f, 1e-3f, 65504.0f, -1.0f};
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 5; i++) {
            float numbers[BLOCK], back[BLOCK];
            for (int64_t c = 0; c < BLOCK; c++)
                numbers[c] = constants[i];
            const row r = quantised(quantised_types[n], BLOCK, numbers);
            assert_true(isfinite(scale_of(&r, quantised_types[n], 0)));
            assert_int_equal(attree_dequantize(quantised_types[n], BLOCK, r.bytes, r.scale, back), ATTREE_OK);
            for (int64_t c = 0; c < BLOCK; c++)
                assert_true(fabsf(back[c] - constants[i]) <= fabsf(constants[i]) * 0.004f);
        }
}

/* ---- ggml's blocks ---- */

static void q8_0_blocks_lie_as_ggmls(void **state)
{
    (void)state;
    float numbers[2 * BLOCK];
    uint8_t bytes[2 * Q8_BYTES] = {0x00, 0x3c};         /* the largest is 127: scale 1.0 in f16 */
    bytes[Q8_BYTES] = 0x00, bytes[Q8_BYTES + 1] = 0x38; /* 63.5: scale 0.5 */
    for (int i = 0; i < BLOCK; i++) {
        const int code = i % 2 ? 127 - 8 * i : -127 + 7 * i;
        numbers[i] = (float)code;
        numbers[BLOCK + i] = 0.5f * (float)-code;
        bytes[2 + i] = (uint8_t)(int8_t)code;
        bytes[Q8_BYTES + 2 + i] = (uint8_t)(int8_t)-code;
    }
    const row r = quantised(ATTREE_Q8_0, 2 * BLOCK, numbers);
    assert_int_equal(attree_row_bytes(ATTREE_Q8_0, 2 * BLOCK), sizeof bytes);
    assert_memory_equal(r.bytes, bytes, sizeof bytes);
    float back[2 * BLOCK];
    assert_int_equal(attree_dequantize(ATTREE_Q8_0, 2 * BLOCK, bytes, 0.0f, back), ATTREE_OK);
    assert_same_bits(numbers, back, 2 * BLOCK);
}

static void q4_0_blocks_lie_as_ggmls(void **state)
{
    (void)state;
    /* The largest magnitude is -8: scale 1.0. Byte i: number i in the low half, number i + 16 in the high one, plus 8.
     */
    const float first[BLOCK] = {-8, -7, -6, -5, -4, -3, -2, -1, 0,  1,  2,  3,  4,  5,  6,  7,
                                7,  6,  5,  4,  3,  2,  1,  0,  -1, -2, -3, -4, -5, -6, -7, -8};
    const uint8_t codes[] = {0xf0, 0xe1, 0xd2, 0xc3, 0xb4, 0xa5, 0x96, 0x87,
                             0x78, 0x69, 0x5a, 0x4b, 0x3c, 0x2d, 0x1e, 0x0f};
    /* The second block is -1/2 of the first: the largest is 4, scale -0.5, the same codes. */
    uint8_t bytes[2 * Q4_BYTES] = {0x00, 0x3c, [Q4_BYTES] = 0x00, [Q4_BYTES + 1] = 0xb8};
    memcpy(bytes + 2, codes, sizeof codes);
    memcpy(bytes + Q4_BYTES + 2, codes, sizeof codes);
    float numbers[2 * BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        numbers[i] = first[i];
        numbers[BLOCK + i] = -0.5f * first[i];
    }
    const row r = quantised(ATTREE_Q4_0, 2 * BLOCK, numbers);
    assert_int_equal(attree_row_bytes(ATTREE_Q4_0, 2 * BLOCK), sizeof bytes);
    assert_memory_equal(r.bytes, bytes, sizeof bytes);
    float back[2 * BLOCK];
    assert_int_equal(attree_dequantize(ATTREE_Q4_0, 2 * BLOCK, bytes, 0.0f, back), ATTREE_OK);
    for (int i = 0; i < 2 * BLOCK; i++)
        assert_true(back[i] == numbers[i]);
}

/* Every scale, with every code, as attree_dequantize and as the formula say. */
static void every_code_of_a_block_is_decoded(void **state)
{
    (void)state;
    for (unsigned scale = 0; scale < 65536; scale += 1 + scale / 700) {
        uint8_t block[Q8_BYTES] = {(uint8_t)scale, (uint8_t)(scale >> 8)};
        float back[BLOCK];
        for (unsigned i = 0; i < BLOCK; i++)
            block[2 + i] = (uint8_t)(i * 8 + scale % 8);
        assert_int_equal(attree_dequantize(ATTREE_Q8_0, BLOCK, block, 0.0f, back), ATTREE_OK);
        for (int i = 0; i < BLOCK; i++)
            assert_true(
                close_to((double)back[i], (double)((float)f16_value(scale) * (float)(int8_t)block[2 + i]), 0.0));
        assert_int_equal(attree_dequantize(ATTREE_Q4_0, BLOCK, block, 0.0f, back), ATTREE_OK);
        for (int i = 0; i < BLOCK; i++) {
            const int code = (i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4) - 8;
            assert_true(close_to((double)back[i], (double)((float)f16_value(scale) * (float)code), 0.0));
        }
    }
}

/* ---- f8 ---- */

static uint8_t code_of_f8(int32_t type, float x)
{
    uint8_t bits;
    assert_int_equal(attree_quantize(type, 1, &x, &bits, NULL), ATTREE_OK);
    return bits;
}

static uint8_t f8_of(float x) { return code_of_f8(ATTREE_F8_E4M3, x); }

static uint8_t e5m2_of(float x) { return code_of_f8(ATTREE_F8_E5M2, x); }

static double value_of_f8(int32_t type, unsigned x) { return type == ATTREE_F8_E4M3 ? f8_value(x) : f16_value(x << 8); }

/* Every code, and the numbers between it and its successor: halfway goes to the even one, anything else to the nearer.
 */
static void check_f8_codes(int32_t type, unsigned largest)
{
    for (unsigned x = 0; x < 256; x++) {
        const uint8_t bits = (uint8_t)x;
        float value;
        assert_int_equal(attree_dequantize(type, 1, &bits, 0.0f, &value), ATTREE_OK);
        assert_true(close_to((double)value, value_of_f8(type, x), 0.0));
        if ((x & 127u) > largest)
            continue;
        assert_int_equal(signbit(value) != 0, x >> 7);
        assert_int_equal(code_of_f8(type, value), x);
        if ((x & 127u) == largest)
            continue;
        const float next = (float)value_of_f8(type, x + 1), middle = (value + next) / 2.0f;
        assert_int_equal(code_of_f8(type, middle), x + (x & 1u));
        assert_int_equal(code_of_f8(type, nextafterf(middle, value)), x);
        assert_int_equal(code_of_f8(type, nextafterf(middle, next)), x + 1);
    }
}

static void f8_is_decoded_and_encoded_exactly(void **state)
{
    (void)state;
    check_f8_codes(ATTREE_F8_E4M3, 0x7e);
    const float large[] = {448.0f, 449.0f, 464.0f, 465.0f, 479.0f, 480.0f, 1e30f, INFINITY};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(f8_of(large[i]), 0x7e);
        assert_int_equal(f8_of(-large[i]), 0xfe);
    }
    assert_int_equal(f8_of(NAN) & 127, 127);
    assert_int_equal(f8_of(0x1p-149f), 0);
    assert_int_equal(f8_of(-0x1p-11f), 0x80);
    assert_int_equal(f8_of(0x1p-10f), 0);        /* half of the smallest: a tie, to 0 */
    assert_int_equal(f8_of(0x1.000002p-10f), 1); /* above it */
    assert_int_equal(f8_of(0x1.fffffep-10f), 1);
    assert_int_equal(f8_of(0x1.fffffep-7f), 8); /* the largest subnormal's neighbour rounds up to 2^-6 */
}

static void e5m2_is_decoded_and_encoded_exactly(void **state)
{
    (void)state;
    check_f8_codes(ATTREE_F8_E5M2, 0x7b);
    const float large[] = {57344.0f, 57345.0f, 61440.0f, 65504.0f, 65536.0f, 1e30f, INFINITY};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(e5m2_of(large[i]), 0x7b);
        assert_int_equal(e5m2_of(-large[i]), 0xfb);
    }
    assert_int_equal(e5m2_of(NAN), 0x7e);
    assert_int_equal(e5m2_of(0x1p-149f), 0);
    assert_int_equal(e5m2_of(-0x1p-18f), 0x80);
    assert_int_equal(e5m2_of(0x1p-17f), 0); /* half of the smallest: a tie, to 0 */
    assert_int_equal(e5m2_of(0x1.000002p-17f), 1);
    assert_int_equal(e5m2_of(0x1.fffffep-15f), 4); /* the largest subnormal's neighbour rounds up to 2^-14 */
}

/* ---- What is refused ---- */

static void expect_refused(int32_t type, int64_t width, const float *numbers)
{
    uint8_t bytes[4 * Q8_BYTES], before[4 * Q8_BYTES];
    float scale = -77.0f;
    memset(bytes, 0xa5, sizeof bytes);
    memcpy(before, bytes, sizeof before);
    if (attree_quantize(type, width, numbers, bytes, &scale) != ATTREE_ERROR_NONFINITE)
        fail_msg("%s is not refused", type_name(type));
    assert_memory_equal(bytes, before, sizeof before);
    assert_true(scale == -77.0f);
}

static void numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 3; i++)
            for (int64_t at = 0; at < 3 * BLOCK; at += 5) {
                float numbers[3 * BLOCK];
                for (int64_t c = 0; c < 3 * BLOCK; c++)
                    numbers[c] = (float)c;
                numbers[at] = bad[i];
                expect_refused(quantised_types[n], 3 * BLOCK, numbers);
            }
}

/* The scale of a block is an f16. */
static void numbers_too_large_for_the_scale_are_refused(void **state)
{
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2)
        for (int64_t at = 0; at < 3 * BLOCK; at += 31) {
            float numbers[3 * BLOCK] = {0.0f};
            numbers[at] = (float)sign * 127.0f * 65520.0f;
            expect_refused(ATTREE_Q8_0, 3 * BLOCK, numbers);
            numbers[at] = (float)sign * 127.0f * 65519.0f;
            check_row(ATTREE_Q8_0, 3 * BLOCK, numbers);
            numbers[at] = (float)sign * 8.0f * 65520.0f;
            expect_refused(ATTREE_Q4_0, 3 * BLOCK, numbers);
            numbers[at] = (float)sign * 8.0f * 65519.0f;
            check_row(ATTREE_Q4_0, 3 * BLOCK, numbers);
        }
}

/* Any row of int8 that is accepted stands for finite numbers, up to the largest float. */
static void the_largest_floats_stay_finite(void **state)
{
    (void)state;
    float x = INFINITY;
    for (int n = 0; n < 300; n++) {
        int8_t code;
        float scale, back;
        x = nextafterf(x, 0.0f);
        if (attree_quantize(ATTREE_I8, 1, &x, &code, &scale) == ATTREE_ERROR_NONFINITE)
            continue;
        assert_int_equal(attree_dequantize(ATTREE_I8, 1, &code, scale, &back), ATTREE_OK);
        if (!isfinite(back))
            fail_msg("%a becomes %d times %a, %g", (double)x, code, (double)scale, (double)back);
    }
}

static void bad_arguments_of_rows_are_refused(void **state)
{
    (void)state;
    _Alignas(4) uint8_t bytes[2 * Q8_BYTES] = {0};
    float numbers[2 * BLOCK] = {0.0f}, scale;
    assert_int_equal(attree_quantize(ATTREE_I8, 4, numbers, bytes, NULL), ATTREE_ERROR_NULL);
    assert_int_equal(attree_quantize(ATTREE_Q8_0, 40, numbers, bytes, &scale), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_dequantize(ATTREE_Q4_0, 31, bytes, 0.0f, numbers), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_quantize(ATTREE_I8, -1, numbers, bytes, &scale), ATTREE_ERROR_SHAPE);
    assert_int_equal(attree_quantize(ATTREE__DTYPE_COUNT, 4, numbers, bytes, &scale), ATTREE_ERROR_TYPE);
    assert_int_equal(attree_dequantize(-1, 4, bytes, 1.0f, numbers), ATTREE_ERROR_TYPE);
    assert_int_equal(attree_quantize(ATTREE_Q8_0, 32, numbers, bytes + 1, &scale), ATTREE_ERROR_ALIGN);
    assert_int_equal(attree_dequantize(ATTREE_F16, 4, bytes + 1, 0.0f, numbers), ATTREE_ERROR_ALIGN);
    assert_int_equal(attree_quantize(ATTREE_I8, 4, NULL, bytes, &scale), ATTREE_ERROR_NULL);
    assert_int_equal(attree_dequantize(ATTREE_I8, 4, NULL, 1.0f, numbers), ATTREE_ERROR_NULL);
    assert_int_equal(attree_row_bytes(ATTREE_F16, 5), 10);
    assert_int_equal(attree_row_bytes(ATTREE_I8, 5), 5);
    assert_int_equal(attree_row_bytes(ATTREE_Q4_0, 96), 3 * Q4_BYTES);
    assert_int_equal(attree_row_bytes(ATTREE_Q4_0, 33), 0);
    assert_int_equal(attree_row_bytes(ATTREE_F32, -1), 0);
    assert_int_equal(attree_row_bytes(ATTREE_F32, INT64_MAX), 0);
    assert_int_equal(attree_row_bytes(ATTREE__DTYPE_COUNT, 32), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(ties_go_to_the_even_code),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(no_code_is_minus_128),
        cmocka_unit_test(constants_are_kept),
        cmocka_unit_test(q8_0_blocks_lie_as_ggmls),
        cmocka_unit_test(q4_0_blocks_lie_as_ggmls),
        cmocka_unit_test(every_code_of_a_block_is_decoded),
        cmocka_unit_test(f8_is_decoded_and_encoded_exactly),
        cmocka_unit_test(e5m2_is_decoded_and_encoded_exactly),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(numbers_too_large_for_the_scale_are_refused),
        cmocka_unit_test(the_largest_floats_stay_finite),
        cmocka_unit_test(bad_arguments_of_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
