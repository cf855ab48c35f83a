/* Rows of caches. See cache_numbers.h. */
#include "cache_numbers.h"

#include <cmath>

#include "element.h"
#include "random.h"
#include "shape.h"

namespace bench {

namespace {

using Byte = unsigned char;

float signed_byte(Byte byte) { return static_cast<float>(static_cast<int>(byte) - (byte >= 128 ? 256 : 0)); }

float block_scale(const Byte *bytes) { return widen_f16(static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8)); }

/* OCP FP8 E4M3: bias 7, no infinities, NaN where all other bits are set. */
float widen_f8(Byte byte)
{
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                    : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    if ((byte & 127) == 127)
        magnitude = std::nanf("");
    return byte >= 128 ? -magnitude : magnitude;
}

void decode_q8_0(const Byte *bytes, float *numbers)
{
    for (std::int64_t i = 0; i < block; i++)
        numbers[i] = block_scale(bytes) * signed_byte(bytes[2 + i]);
}

void decode_q4_0(const Byte *bytes, float *numbers)
{
    for (std::int64_t i = 0; i < block / 2; i++) {
        numbers[i] = block_scale(bytes) * static_cast<float>((bytes[2 + i] & 15) - 8);
        numbers[i + block / 2] = block_scale(bytes) * static_cast<float>((bytes[2 + i] >> 4) - 8);
    }
}

} // namespace

void random_row(Tensor tensor, std::int64_t n, std::vector<float> &numbers)
{
    const std::uint64_t first = static_cast<std::uint64_t>(n) * numbers.size();
    for (std::size_t c = 0; c < numbers.size(); c++)
        numbers[c] = random_normal(static_cast<std::uint64_t>(tensor), first + c);
}

attree_status encode_row(attree_dtype type, const std::vector<float> &numbers, void *row, float *scale)
{
    *scale = 0.0f;
    if (is_quantised(type))
        return attree_quantize(type, static_cast<std::int64_t>(numbers.size()), numbers.data(), row, scale);
    for (std::size_t c = 0; c < numbers.size(); c++)
        store_element(type, row, static_cast<std::int64_t>(c), numbers[c]);
    return ATTREE_OK;
}

void decode_row(attree_dtype type, const void *row, float scale, std::vector<float> &numbers)
{
    const Byte *const bytes = static_cast<const Byte *>(row);
    for (std::size_t c = 0; c < numbers.size(); c++) {
        switch (type) {
        case ATTREE_I8: numbers[c] = scale * signed_byte(bytes[c]); break;
        case ATTREE_F8_E4M3: numbers[c] = widen_f8(bytes[c]); break;
        case ATTREE_F8_E5M2: numbers[c] = widen_f16(static_cast<std::uint16_t>(bytes[c] << 8)); break;
        case ATTREE_Q8_0:
            if (c % block == 0)
                decode_q8_0(bytes + c / block * 34, numbers.data() + c);
            break;
        case ATTREE_Q4_0:
            if (c % block == 0)
                decode_q4_0(bytes + c / block * 18, numbers.data() + c);
            break;
        default: numbers[c] = load_element(type, row, static_cast<std::int64_t>(c));
        }
    }
}

std::int64_t row_bytes(attree_dtype type, std::int64_t width)
{
    switch (type) {
    case ATTREE_F32: return width * 4;
    case ATTREE_F16:
    case ATTREE_BF16: return width * 2;
    case ATTREE_Q8_0: return width / 32 * 34;
    case ATTREE_Q4_0: return width / 32 * 18;
    default: return width;
    }
}

} // namespace bench
