/* Element types in memory, and their exact conversions in portable integer arithmetic.
 *
 * To f32 every conversion is exact. From f32 it rounds once, to nearest even; NaN becomes the type's canonical one. */
#ifndef ATTREE_DTYPE_H
#define ATTREE_DTYPE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "attree/attree.h"
#include "dtypes.h"

/* Numbers of a block of ATTREE_Q8_0 and ATTREE_Q4_0. */
#define ATTREE__QUANT_BLOCK 32

typedef struct attree__dtype {
    const char *name;
    attree__scales scales;
    uint8_t bytes, numbers; /* of a unit */
    bool is_float;
} attree__dtype;

#define ATTREE__FLOAT_ENTRY(TYPE, name, bytes, numbers, scales) {#name, scales, bytes, numbers, true},
#define ATTREE__CACHE_ENTRY(TYPE, name, bytes, numbers, scales) {#name, scales, bytes, numbers, false},

/* By attree_dtype. */
static const attree__dtype attree__dtypes[] = {ATTREE__FLOAT_DTYPES(ATTREE__FLOAT_ENTRY)
                                                   ATTREE__CACHE_DTYPES(ATTREE__CACHE_ENTRY)};

#undef ATTREE__FLOAT_ENTRY
#undef ATTREE__CACHE_ENTRY

#define ATTREE__DTYPE_COUNT ((int32_t)(sizeof attree__dtypes / sizeof *attree__dtypes))

static inline bool attree__dtype_exists(int32_t type) { return type >= 0 && type < ATTREE__DTYPE_COUNT; }

/* Whether it may be the type of any tensor. */
static inline bool attree__dtype_is_float(int32_t type)
{
    return attree__dtype_exists(type) && attree__dtypes[type].is_float;
}

/* Bytes of an element; of a whole block, for types that have blocks. */
static inline int64_t attree__dtype_bytes(int32_t type) { return attree__dtypes[type].bytes; }

static inline bool attree__dtype_has_blocks(int32_t type) { return attree__dtypes[type].numbers > 1; }

/* Whether each row has a scale, which lies beside it. */
static inline bool attree__dtype_has_row_scales(int32_t type)
{
    return attree__dtypes[type].scales == ATTREE__ROW_SCALE;
}

static inline int64_t attree__dtype_alignment(int32_t type)
{
    return attree__dtype_has_blocks(type) ? 2 : attree__dtype_bytes(type);
}

/* Elements, or blocks, of a row of `width` numbers. */
static inline int64_t attree__dtype_units(int32_t type, int64_t width)
{
    return attree__dtype_has_blocks(type) ? width / ATTREE__QUANT_BLOCK : width;
}

/* Of a row of `width` numbers that are adjacent. */
static inline int64_t attree__dtype_row_bytes(int32_t type, int64_t width)
{
    return attree__dtype_units(type, width) * attree__dtype_bytes(type);
}

static inline uint32_t attree__bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float attree__float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Classes by bits: a comparison would raise the invalid flag for a NaN, whatever a compiler makes of isnan and
 * isfinite.
 */
static inline bool attree__is_finite(float x) { return (attree__bits_of(x) & 0x7fffffffu) < 0x7f800000u; }

static inline bool attree__is_nan_or_plus_inf(float x)
{
    const uint32_t bits = attree__bits_of(x);
    return bits == 0x7f800000u || (bits & 0x7fffffffu) > 0x7f800000u;
}

static inline float attree__from_bf16(uint16_t x) { return attree__float_of((uint32_t)x << 16); }

/* Adding half a unit less the lowest kept bit rounds to nearest even; an overflow runs into infinity as it should. */
static inline uint16_t attree__to_bf16(float x)
{
    if (isnan(x))
        return 0x7fc0;
    const uint32_t bits = attree__bits_of(x);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* binary16: 5 bits of exponent, bias 15, 10 bits of fraction. */
static inline float attree__from_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = x >> 10 & 31u, fraction = x & 1023u;
    if (exponent == 31)
        return attree__float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact */
        const float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return attree__float_of(sign | (exponent + 112u) << 23 | fraction << 13);
}

static inline uint16_t attree__to_f16(float x)
{
    if (isnan(x))
        return 0x7e00;
    const uint32_t bits = attree__bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x477ff000u) /* 65520, halfway beyond the largest finite number, and above */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: the float addition rounds to a multiple of 2^-24 */
        const float shifted = attree__float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (attree__bits_of(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | rounded >> 13);
}

/* e4m3: 4 bits of exponent, bias 7, 3 bits of fraction; all ones is NaN. */
static inline float attree__from_f8(uint8_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x80u) << 24, magnitude = x & 0x7fu;
    if (magnitude == 0x7fu)
        return attree__float_of(0x7fc00000u);
    if (magnitude < 8u) { /* zero or subnormal: fraction * 2^-9, exact */
        const float small = (float)magnitude * 0x1p-9f;
        return sign ? -small : small;
    }
    return attree__float_of(sign | (magnitude + (120u << 3)) << 20);
}

/* Saturates. */
static inline uint8_t attree__to_f8(float x)
{
    if (isnan(x))
        return 0x7f;
    const uint32_t bits = attree__bits_of(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x43e00000u) /* 448 and above */
        return (uint8_t)(sign | 0x7eu);
    if (magnitude < 0x3c800000u) { /* below 2^-6: the float addition rounds to a multiple of 2^-9 */
        const float shifted = attree__float_of(magnitude) + 0x1p14f;
        return (uint8_t)(sign | (attree__bits_of(shifted) - 0x46800000u));
    }
    const uint32_t rounded = magnitude - (120u << 23) + 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | rounded >> 20);
}

/* e5m2: the upper half of a binary16. */
static inline float attree__from_e5m2(uint8_t x) { return attree__from_f16((uint16_t)(x << 8)); }

/* Saturates. */
static inline uint8_t attree__to_e5m2(float x)
{
    if (isnan(x))
        return 0x7e;
    const uint32_t bits = attree__bits_of(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x47600000u) /* 57344 and above */
        return (uint8_t)(sign | 0x7bu);
    if (magnitude < 0x38800000u) { /* below 2^-14: the float addition rounds to a multiple of 2^-16 */
        const float shifted = attree__float_of(magnitude) + 0x1p7f;
        return (uint8_t)(sign | (attree__bits_of(shifted) - 0x43000000u));
    }
    const uint32_t rounded = magnitude - (112u << 23) + 0xfffffu + (magnitude >> 21 & 1u);
    return (uint8_t)(sign | rounded >> 21);
}

/* ---- Numbers ---- */

/* Element i of an array; number i of a row of blocks. Without scales of rows. */

static inline float attree__get_f32(const void *row, int64_t i) { return ((const float *)row)[i]; }

static inline float attree__get_f16(const void *row, int64_t i) { return attree__from_f16(((const uint16_t *)row)[i]); }

static inline float attree__get_bf16(const void *row, int64_t i)
{
    return attree__from_bf16(((const uint16_t *)row)[i]);
}

static inline float attree__get_i8(const void *row, int64_t i) { return (float)((const int8_t *)row)[i]; }

static inline float attree__get_f8(const void *row, int64_t i) { return attree__from_f8(((const uint8_t *)row)[i]); }

static inline float attree__get_f8_e5m2(const void *row, int64_t i)
{
    return attree__from_e5m2(((const uint8_t *)row)[i]);
}

/* Block `index` of a row: the scale, and the codes after it. */
static inline const uint8_t *attree__block_codes(const void *row, int64_t index, int64_t bytes, float *scale)
{
    const uint8_t *const block = (const uint8_t *)row + index * bytes;
    *scale = attree__from_f16((uint16_t)(block[0] | block[1] << 8));
    return block + 2;
}

static inline float attree__get_q8_0(const void *row, int64_t i)
{
    float scale;
    const uint8_t *const codes = attree__block_codes(row, i / ATTREE__QUANT_BLOCK, 34, &scale);
    const int8_t integer = (int8_t)codes[i % ATTREE__QUANT_BLOCK];
    return scale * (float)integer;
}

/* Low halves of the 16 bytes, then high ones. */
static inline float attree__get_q4_0(const void *row, int64_t i)
{
    float scale;
    const uint8_t *const codes = attree__block_codes(row, i / ATTREE__QUANT_BLOCK, 18, &scale);
    const int shift = i % ATTREE__QUANT_BLOCK < 16 ? 0 : 4;
    return scale * (float)((codes[i % 16] >> shift & 15) - 8);
}

static inline void attree__set_f32(void *row, int64_t i, float x) { ((float *)row)[i] = x; }

static inline void attree__set_f16(void *row, int64_t i, float x) { ((uint16_t *)row)[i] = attree__to_f16(x); }

static inline void attree__set_bf16(void *row, int64_t i, float x) { ((uint16_t *)row)[i] = attree__to_bf16(x); }

/* One of the above, by the type. */
static inline float attree__load(const void *row, int32_t type, int64_t i)
{
#define ATTREE__CASE(TYPE, name, ...)                                                                                  \
    case ATTREE_##TYPE: return attree__get_##name(row, i);
    switch ((attree_dtype)type) {
        ATTREE__DTYPES(ATTREE__CASE)
    }
#undef ATTREE__CASE
    return NAN;
}

/* Of a float type. */
static inline void attree__store(void *row, int32_t type, int64_t i, float x)
{
#define ATTREE__CASE(TYPE, name, ...)                                                                                  \
    case ATTREE_##TYPE: attree__set_##name(row, i, x); break;
    switch (type) {
        ATTREE__FLOAT_DTYPES(ATTREE__CASE)
    }
#undef ATTREE__CASE
}

/* Number c of a row of any type, whose elements are `width` apart; scale is the row's, if it has one. */
static inline float attree__row_number(const void *row, int32_t type, int64_t width, int64_t c, float scale)
{
    const float x = attree__load(row, type, c * width);
    return attree__dtype_has_row_scales(type) ? scale * x : x;
}

#endif /* ATTREE_DTYPE_H */
