/* Element types in memory, and their exact conversions in portable integer arithmetic.
 *
 * To f32 every conversion is exact. From f32 it rounds once, to nearest even; NaN becomes the type's canonical one. */
#ifndef ATTREE_DTYPE_H
#define ATTREE_DTYPE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "attree/attree.h"

/* Bytes of an element. */
static inline int64_t attree__dtype_bytes(int32_t type) { return type == ATTREE_F32 ? 4 : 2; }

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

/* Element `index` of an array of the type. */
static inline float attree__load(const void *data, int32_t type, int64_t index)
{
    switch (type) {
    case ATTREE_F16: return attree__from_f16(((const uint16_t *)data)[index]);
    case ATTREE_BF16: return attree__from_bf16(((const uint16_t *)data)[index]);
    default: return ((const float *)data)[index];
    }
}

static inline void attree__store(void *data, int32_t type, int64_t index, float x)
{
    switch (type) {
    case ATTREE_F16: ((uint16_t *)data)[index] = attree__to_f16(x); break;
    case ATTREE_BF16: ((uint16_t *)data)[index] = attree__to_bf16(x); break;
    default: ((float *)data)[index] = x; break;
    }
}

#endif /* ATTREE_DTYPE_H */
