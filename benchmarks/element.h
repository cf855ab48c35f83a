/* Elements of the types that attree knows, to f32 and back. Widening is exact; narrowing rounds to nearest even.
 *
 * Written apart from the library's own conversions, which max_error judges. */
#ifndef ATTREE_BENCH_ELEMENT_H
#define ATTREE_BENCH_ELEMENT_H

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "attree/attree.h"

namespace bench {

inline std::uint32_t float_bits(float value) { return __builtin_bit_cast(std::uint32_t, value); }
inline float bits_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

/* The exponent's bias is 15 instead of 127, and the fraction 13 bits shorter; multiplying by 2^(127 - 15) also makes
 * normal numbers of subnormal ones. */
inline float widen_f16(std::uint16_t half)
{
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
    if ((half & 0x7c00u) == 0x7c00u) // infinity or NaN
        return bits_float(sign | 0x7f800000u | magnitude);
    return bits_float(sign | float_bits(bits_float(magnitude) * 0x1p112f));
}

inline std::uint16_t narrow_f16(float value)
{
    const std::uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u;
    std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        magnitude = 0x7e00u; // NaN
    else if (magnitude >= float_bits(65520.0f))
        magnitude = 0x7c00u; // halfway between the largest number and the next, or beyond
    else if (magnitude < float_bits(0x1p-14f))
        magnitude = static_cast<std::uint32_t>(std::nearbyint(bits_float(magnitude) * 0x1p24f)); // subnormal
    else
        magnitude = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    return static_cast<std::uint16_t>(sign | magnitude);
}

inline float widen_bf16(std::uint16_t upper) { return bits_float(static_cast<std::uint32_t>(upper) << 16); }

inline std::uint16_t narrow_bf16(float value)
{
    const std::uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<std::uint16_t>(bits >> 16 | 0x40u); // NaN stays NaN
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* type: an attree_dtype, as the fields of attree_desc hold it. */
inline std::size_t element_bytes(std::int32_t type) { return type == ATTREE_F32 ? 4 : 2; }

inline float load_element(std::int32_t type, const void *elements, std::int64_t n)
{
    if (type == ATTREE_F32)
        return static_cast<const float *>(elements)[n];
    const std::uint16_t bits = static_cast<const std::uint16_t *>(elements)[n];
    return type == ATTREE_F16 ? widen_f16(bits) : widen_bf16(bits);
}

inline void store_element(std::int32_t type, void *elements, std::int64_t n, float value)
{
    if (type == ATTREE_F32)
        static_cast<float *>(elements)[n] = value;
    else
        static_cast<std::uint16_t *>(elements)[n] = type == ATTREE_F16 ? narrow_f16(value) : narrow_bf16(value);
}

} // namespace bench

#endif // ATTREE_BENCH_ELEMENT_H
