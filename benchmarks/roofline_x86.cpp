/* Calibration loops for x86-64. Each is compiled for its own instruction set and run only where the CPU has that.
 *
 * Reading folds every byte into four accumulators, so that nothing can be left out and no chain of additions is waited
 * for. Multiplying keeps more accumulators than two units of latency 4 (5 on older ones) need, 8 to 10, and as few as
 * fit the registers: 12 of 16. */
#include "roofline_kernels.h"

#include <immintrin.h>

#include <stdexcept>

namespace bench {

namespace {

constexpr int accumulators = 12;
constexpr int vectors_each = 4; // read from a stream before turning to the next

/* Starts at 1 and converges to addend / (1 - factor), far from overflow and from subnormals. */
constexpr float factor = 0.75f, addend = 0.5f;

inline void fetch(const char *data, std::size_t bytes)
{
    for (std::size_t line = 0; line < bytes; line += 64)
        _mm_prefetch(data + line, _MM_HINT_T0);
}

using Vector32 = long long __attribute__((vector_size(32)));
using Vector64 = long long __attribute__((vector_size(64)));

/* Inlined where the instruction set has the vector. */
template <typename Vector, int streams>
inline __attribute__((always_inline)) void read_vectors(const char *data, std::size_t bytes, std::size_t ahead)
{
    constexpr std::size_t step = vectors_each * sizeof(Vector);
    const std::size_t part = bytes / streams;
    Vector all[vectors_each] = {};
    for (std::size_t at = 0; at < part; at += step) {
#pragma GCC unroll 8
        for (std::size_t stream = 0; stream < streams; stream++) {
            const char *const from = data + stream * part + at;
            if (ahead)
                fetch(from + ahead, step);
#pragma GCC unroll 4
            for (int v = 0; v < vectors_each; v++)
                all[v] |= reinterpret_cast<const Vector *>(from)[v];
        }
    }
    for (const Vector &kept : all)
        __asm__ volatile("" : : "m"(kept));
}

template <int streams>
__attribute__((target("avx2"))) void read_avx2(const char *data, std::size_t bytes, std::size_t ahead)
{
    read_vectors<Vector32, streams>(data, bytes, ahead);
}

template <int streams>
__attribute__((target("avx512f"))) void read_avx512(const char *data, std::size_t bytes, std::size_t ahead)
{
    read_vectors<Vector64, streams>(data, bytes, ahead);
}

/* Any x86-64; only reached where attree itself would not run. */
template <int streams> void read_words(const char *data, std::size_t bytes, std::size_t ahead)
{
    const std::size_t part = bytes / streams;
    std::uint64_t all = 0;
    for (std::size_t at = 0; at < part; at += 64) {
        for (std::size_t stream = 0; stream < streams; stream++) {
            const char *const from = data + stream * part + at;
            if (ahead)
                fetch(from + ahead, 64);
            for (int word = 0; word < 8; word++)
                all |= reinterpret_cast<const std::uint64_t *>(from)[word];
        }
    }
    __asm__ volatile("" : : "r"(all));
}

/* The barrier keeps each number in a register of its own: compilers would make vectors of them. */
__attribute__((target("fma"))) void multiply_scalar(std::int64_t steps)
{
    float sum[accumulators];
    for (float &start : sum)
        start = 1.0f;
    for (std::int64_t step = 0; step < steps; step++) {
#pragma GCC unroll 12
        for (int n = 0; n < accumulators; n++) {
            float next = __builtin_fmaf(sum[n], factor, addend);
            __asm__ volatile("" : "+x"(next));
            sum[n] = next;
        }
    }
}

__attribute__((target("avx2,fma"))) void multiply_avx2(std::int64_t steps)
{
    const __m256 a = _mm256_set1_ps(factor), b = _mm256_set1_ps(addend);
    __m256 sum[accumulators];
    for (__m256 &start : sum)
        start = _mm256_set1_ps(1.0f);
    for (std::int64_t step = 0; step < steps; step++)
#pragma GCC unroll 12
        for (int n = 0; n < accumulators; n++)
            sum[n] = _mm256_fmadd_ps(sum[n], a, b);
    for (const __m256 &kept : sum)
        __asm__ volatile("" : : "x"(kept));
}

__attribute__((target("avx512f"))) void multiply_avx512(std::int64_t steps)
{
    const __m512 a = _mm512_set1_ps(factor), b = _mm512_set1_ps(addend);
    __m512 sum[accumulators];
    for (__m512 &start : sum)
        start = _mm512_set1_ps(1.0f);
    for (std::int64_t step = 0; step < steps; step++)
#pragma GCC unroll 12
        for (int n = 0; n < accumulators; n++)
            sum[n] = _mm512_fmadd_ps(sum[n], a, b);
    for (const __m512 &kept : sum)
        __asm__ volatile("" : : "v"(kept));
}

} // namespace

std::vector<ReadKernel> read_kernels()
{
    using Read = void (*)(const char *, std::size_t, std::size_t);
    std::vector<Read> reads = {read_words<1>, read_words<4>};
    if (__builtin_cpu_supports("avx512f"))
        reads = {read_avx512<1>, read_avx512<2>, read_avx512<4>, read_avx512<8>};
    else if (__builtin_cpu_supports("avx2"))
        reads = {read_avx2<1>, read_avx2<2>, read_avx2<4>, read_avx2<8>};
    std::vector<ReadKernel> kernels;
    for (const Read read : reads)
        for (const std::size_t ahead : {std::size_t{0}, std::size_t{512}, std::size_t{2048}})
            kernels.push_back({read, ahead});
    return kernels;
}

FmaKernel fma_kernel(const std::string &isa)
{
    constexpr std::int64_t operations = 2 * accumulators; // of one lane
    if (isa == "avx512")
        return {multiply_avx512, operations * 16};
    if (isa == "avx2")
        return {multiply_avx2, operations * 8};
    if (isa == "scalar")
        return {multiply_scalar, operations};
    throw std::runtime_error("no FMA calibration for the instruction set \"" + isa + "\"");
}

} // namespace bench
