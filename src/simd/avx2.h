/* Vector operations on AVX2 + FMA: 8 floats. The list of operations, and their meaning, is the same in every file here.
 *
 * Register tile: 6 rows x 2 vectors = 12 accumulators, 2 vectors of keys or values, 1 broadcast, of 16 registers.
 * Twelve independent chains cover 2 FMA a cycle at a latency of 4 or 5; 8 loads feed 12 FMA. */
#ifndef ATTREE_SIMD_AVX2_H
#define ATTREE_SIMD_AVX2_H
#define ATTREE_SIMD_AVX2

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "../compiler.h"

#define VF_LANES 8
#define BUNDLE_ROWS 6
#define SLAB_VECS 2

typedef __m256 vf;
typedef __m256i vi; /* as many 32-bit integers */

ATTREE_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
ATTREE_INLINE vf vf_all(float x) { return _mm256_set1_ps(x); }
ATTREE_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
ATTREE_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }

/* 16-bit numbers to f32, exactly; and back, rounded to nearest even, NaN canonical. */
ATTREE_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
ATTREE_INLINE vf vf_load_bf16(const uint16_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* int8 as numbers; reads VF_LANES bytes. The binary16 at p in every lane. */
ATTREE_INLINE vf vf_load_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
ATTREE_INLINE vf vf_all_f16(const void *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

/* Low or high halves of bytes, less 8, as numbers; shift is 0 or 4. Reads VF_LANES bytes. */
ATTREE_INLINE vf vf_load_u4(const void *p, int shift)
{
    const vi bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    const vi halves = _mm256_and_si256(_mm256_srl_epi32(bytes, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(halves, _mm256_set1_epi32(8)));
}

/* Bytes as e4m3. See attree__from_f8. */
ATTREE_INLINE vf avx2_from_f8(vi x)
{
    const vi magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
    const vi sign = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x80)), 24);
    const vi bits = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
    const vf small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
    const vi is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
    const vi is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    const vf finite = _mm256_blendv_ps(_mm256_castsi256_ps(bits), small, _mm256_castsi256_ps(is_small));
    return _mm256_or_ps(finite, _mm256_castsi256_ps(_mm256_or_si256(sign, is_nan)));
}

/* e4m3 as numbers; reads VF_LANES bytes. */
ATTREE_INLINE vf vf_load_f8(const void *p)
{
    return avx2_from_f8(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* e5m2 as numbers, the upper halves of binary16; reads VF_LANES bytes. */
ATTREE_INLINE vf avx2_from_e5m2(__m128i halves) { return _mm256_cvtph_ps(_mm_slli_epi16(halves, 8)); }
ATTREE_INLINE vf vf_load_e5m2(const void *p)
{
    return avx2_from_e5m2(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p)));
}

/* VF_LANES lanes of 32 bits, each with 2 or 4 numbers of a narrower type; and number n of each. */
ATTREE_INLINE vf vf_load_bits(const void *p) { return _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)p)); }
ATTREE_INLINE vf vf_bf16_of(vf lanes, int n)
{
    const vi x = _mm256_castps_si256(lanes);
    return _mm256_castsi256_ps(n == 0 ? _mm256_slli_epi32(x, 16) : _mm256_and_si256(x, _mm256_set1_epi32(-65536)));
}
ATTREE_INLINE vf vf_i8_of(vf lanes, int n)
{
    const vi top = _mm256_slli_epi32(_mm256_castps_si256(lanes), 24 - 8 * n);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
}
/* Halves of bytes, low ones unless bits is 4, less 8: vf_halves moves high ones down first. */
ATTREE_INLINE vf vf_halves(vf lanes, int bits)
{
    return _mm256_castsi256_ps(_mm256_srl_epi32(_mm256_castps_si256(lanes), _mm_cvtsi32_si128(bits)));
}
ATTREE_INLINE vf vf_u4_of(vf lanes, int n)
{
    const vi half = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(lanes), 8 * n), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(half, _mm256_set1_epi32(8)));
}
ATTREE_INLINE vf vf_f8_of(vf lanes, int n)
{
    const vi low = _mm256_srli_epi32(_mm256_castps_si256(lanes), 8 * n);
    return avx2_from_f8(_mm256_and_si256(low, _mm256_set1_epi32(0xff)));
}

ATTREE_INLINE vf vf_e5m2_of(vf lanes, int n)
{
    const vi low = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(lanes), 8 * n), _mm256_set1_epi32(0xff));
    return avx2_from_e5m2(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

ATTREE_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ATTREE_INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    const __m256i bits = _mm256_castps_si256(x),
                  odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i upper = _mm256_srli_epi32(rounded, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
}

ATTREE_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
ATTREE_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
ATTREE_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
ATTREE_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }

/* a * b + c, rounded once. */
ATTREE_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }

/* The nearest integers, halves to even; integers as numbers; x * 2^n, where x and the result are normal. */
ATTREE_INLINE vi vf_nearest(vf x) { return _mm256_cvtps_epi32(x); }
ATTREE_INLINE vf vf_from(vi n) { return _mm256_cvtepi32_ps(n); }
ATTREE_INLINE vf vf_scale(vf x, vi n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(n, 23)));
}

/* first, first + 1, first + 2, ... */
ATTREE_INLINE vi vi_ramp(int32_t first)
{
    return _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The larger, the smaller; b where a is NaN. */
ATTREE_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
ATTREE_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }

/* Lane indices smaller than n. */
ATTREE_INLINE __m256i avx2_below(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* p[0] ... p[n-1], then zeros; 0 <= n <= VF_LANES. Reads nothing beyond. */
ATTREE_INLINE vf vf_load_first(const float *p, int64_t n) { return _mm256_maskload_ps(p, avx2_below(n)); }

/* Lanes i < n from a, the others from b; any n. */
ATTREE_INLINE vf vf_first(int64_t n, vf a, vf b)
{
    const int64_t clamped = n < 0 ? 0 : n > VF_LANES ? VF_LANES : n;
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(avx2_below(clamped)));
}

/* x, but +0 where t < bound. */
ATTREE_INLINE vf vf_zero_below(vf x, vf t, vf bound)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(t, bound, _CMP_LT_OQ), x);
}

/* x, but y where a == b. */
ATTREE_INLINE vf vf_replace_equal(vf x, vf y, vf a, vf b)
{
    return _mm256_blendv_ps(x, y, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

/* x, but y where the sign bit of sign is set. */
ATTREE_INLINE vf vf_replace_negative(vf x, vf y, vf sign) { return _mm256_blendv_ps(x, y, sign); }

/* x, but y where x is NaN. */
ATTREE_INLINE vf vf_replace_nan(vf x, vf y) { return _mm256_blendv_ps(x, y, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

/* Lane i of the low half and lane i of the high half, by one operation. */
ATTREE_INLINE __m128 avx2_low(vf x) { return _mm256_castps256_ps128(x); }
ATTREE_INLINE __m128 avx2_high(vf x) { return _mm256_extractf128_ps(x, 1); }

/* Sum of sixteen lanes held in 16 / VF_LANES vectors: lane i with i + 8, i + 4, i + 2, i + 1. */
ATTREE_INLINE float vf_sum16(const vf *x)
{
    const vf s8 = vf_add(x[0], x[1]);
    const __m128 s4 = _mm_add_ps(avx2_low(s8), avx2_high(s8));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* The largest lane of a vector without NaN, the smallest. */
ATTREE_INLINE float vf_largest(vf x)
{
    const __m128 s4 = _mm_max_ps(avx2_low(x), avx2_high(x));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

ATTREE_INLINE float vf_smallest(vf x)
{
    const __m128 s4 = _mm_min_ps(avx2_low(x), avx2_high(x));
    const __m128 s2 = _mm_min_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_min_ss(s2, _mm_movehdup_ps(s2)));
}

/* 16 bytes of each of VF_LANES rows, at[L] + i * token that of row 4 L + i: lane r of x[n] is 32-bit lane n of row r.
 */
ATTREE_INLINE void vf_load_quarters(vf x[4], const char *const at[2], int64_t token)
{
    vf row[4], pair[4];
    for (int i = 0; i < 4; i++)
        row[i] = _mm256_loadu2_m128((const float *)(const void *)(at[1] + i * token),
                                    (const float *)(const void *)(at[0] + i * token));
    for (int i = 0; i < 4; i += 2) {
        pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        x[2 * i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        x[2 * i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    }
}

/* x[i] lane j becomes x[j] lane i. */
ATTREE_INLINE void vf_transpose(vf x[VF_LANES])
{
    vf pair[8], quad[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
        quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31);
    }
}

#endif /* ATTREE_SIMD_AVX2_H */
