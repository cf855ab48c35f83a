/* One text for every instruction set, which compilers turn into vectors: passes over a row that is in the cache.
 * See softmax.h. */
#include "softmax.h"

#include "element.h"

namespace bench {

namespace {

/* e^-86 and all that is multiplied on the way to it are normal numbers. */
constexpr float lowest = -86.0f;

/* Adding this leaves a whole number in the lowest bits of the sum: 1.5 * 2^23. */
constexpr float round_to_whole = 0x1.8p23f;

/* ln 2, as one number whose lowest bits are 0, so that its products with small whole numbers are exact, and the rest.
 */
constexpr float log2_e = 0x1.715476p0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;

/* e^x = 2^n e^r with |r| <= ln(2) / 2, for lowest <= x <= 0; e^r by its Taylor polynomial of degree 6, whose next term
 * is below 1.2e-7. */
inline __attribute__((always_inline)) float exponential(float x)
{
    const float shifted = __builtin_fmaf(x, log2_e, round_to_whole), n = shifted - round_to_whole;
    const float r = __builtin_fmaf(n, -ln2_low, __builtin_fmaf(n, -ln2_high, x));
    float p = 1.0f / 720.0f;
    p = __builtin_fmaf(p, r, 1.0f / 120.0f);
    p = __builtin_fmaf(p, r, 1.0f / 24.0f);
    p = __builtin_fmaf(p, r, 1.0f / 6.0f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return bits_float(float_bits(p) + (float_bits(shifted) << 23));
}

/* Clang vectorises no reduction of f32 numbers by itself, and not all that OpenMP asks it to. So sixteen maxima and
 * sixteen sums stand side by side. */
constexpr int lanes = 16;

inline __attribute__((always_inline)) float maximum(const float *row, std::int64_t count)
{
    float highest[lanes];
    for (float &lane : highest)
        lane = row[0];
    std::int64_t j = 0;
    for (; j + lanes <= count; j += lanes)
#pragma omp simd
        for (int lane = 0; lane < lanes; lane++)
            highest[lane] = row[j + lane] > highest[lane] ? row[j + lane] : highest[lane];
    for (; j < count; j++)
        highest[0] = row[j] > highest[0] ? row[j] : highest[0];
    for (int lane = 1; lane < lanes; lane++)
        highest[0] = highest[lane] > highest[0] ? highest[lane] : highest[0];
    return highest[0];
}

inline __attribute__((always_inline)) float total(const float *row, std::int64_t count)
{
    float sum[lanes] = {};
    std::int64_t j = 0;
    for (; j + lanes <= count; j += lanes)
#pragma omp simd
        for (int lane = 0; lane < lanes; lane++)
            sum[lane] += row[j + lane];
    for (; j < count; j++)
        sum[0] += row[j];
    for (int lane = 1; lane < lanes; lane++)
        sum[0] += sum[lane];
    return sum[0];
}

/* Of count numbers, at most `lanes`. */
inline __attribute__((always_inline)) void exponentials(float *row, float highest, int count)
{
    float weight[lanes];
#pragma omp simd
    for (int lane = 0; lane < count; lane++) {
        const float below = row[lane] - highest;
        weight[lane] = exponential(below > lowest ? below : lowest);
    }
    for (int lane = 0; lane < count; lane++)
        row[lane] = weight[lane];
}

inline __attribute__((always_inline)) void softmax(float *row, std::int64_t count)
{
    const float highest = maximum(row, count);
    std::int64_t j = 0;
    for (; j + lanes <= count; j += lanes)
        exponentials(row + j, highest, lanes);
    exponentials(row + j, highest, static_cast<int>(count - j));
    const float factor = 1.0f / total(row, count);
#pragma omp simd
    for (std::int64_t n = 0; n < count; n++)
        row[n] *= factor;
}

void softmax_any(float *row, std::int64_t count) { softmax(row, count); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void softmax_avx2(float *row, std::int64_t count) { softmax(row, count); }

__attribute__((target("avx512f,avx512dq,fma"))) void softmax_avx512(float *row, std::int64_t count)
{
    softmax(row, count);
}
#endif

} // namespace

#if defined(__x86_64__)
SoftmaxRow softmax_row()
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return softmax_avx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? softmax_avx2 : softmax_any;
}
#else
SoftmaxRow softmax_row() { return softmax_any; }
#endif

} // namespace bench
