/* Vector operations on AVX-512 (F, BW, DQ, VL): 16 floats. Meaning of each operation: see avx2.h.
 *
 * Register tile: 12 rows x 2 vectors = 24 accumulators and 2 vectors of keys or values of 32 registers; the rows'
 * factors are broadcast from memory by the FMA itself. */
#ifndef ATTREE_SIMD_AVX512_H
#define ATTREE_SIMD_AVX512_H
#define ATTREE_SIMD_AVX512

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "../compiler.h"

#define VF_LANES 16
#define BUNDLE_ROWS 12
#define SLAB_VECS 2

typedef __m512 vf;
typedef __m512i vi;

ATTREE_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
ATTREE_INLINE vf vf_all(float x) { return _mm512_set1_ps(x); }
ATTREE_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
ATTREE_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
ATTREE_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
ATTREE_INLINE vf vf_load_bf16(const uint16_t *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* int8 as numbers; reads VF_LANES bytes. The binary16 at p in every lane. */
ATTREE_INLINE vf vf_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
ATTREE_INLINE vf vf_all_f16(const void *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

/* Low or high halves of bytes, less 8, as numbers; shift is 0 or 4. Reads VF_LANES bytes. */
ATTREE_INLINE vf vf_load_u4(const void *p, int shift)
{
    const vi bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    const vi halves = _mm512_and_si512(_mm512_srl_epi32(bytes, _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(15));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(halves, _mm512_set1_epi32(8)));
}

/* Bytes as e4m3. See attree__from_f8. */
ATTREE_INLINE vf avx512_from_f8(vi x)
{
    const vi magnitude = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
    const vi sign = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x80)), 24);
    const vi bits = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
    const vf small = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-9f));
    const __mmask16 is_small = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(8), magnitude);
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    const vi finite = _mm512_mask_blend_epi32(is_small, bits, _mm512_castps_si512(small));
    const vi both = _mm512_mask_blend_epi32(is_nan, finite, _mm512_set1_epi32(-1));
    return _mm512_castsi512_ps(_mm512_or_si512(both, sign));
}

/* e4m3 as numbers; reads VF_LANES bytes. */
ATTREE_INLINE vf vf_load_f8(const void *p)
{
    return avx512_from_f8(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* e5m2 as numbers, the upper halves of binary16; reads VF_LANES bytes. */
ATTREE_INLINE vf avx512_from_e5m2(__m256i halves) { return _mm512_cvtph_ps(_mm256_slli_epi16(halves, 8)); }
ATTREE_INLINE vf vf_load_e5m2(const void *p)
{
    return avx512_from_e5m2(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)));
}

/* VF_LANES lanes of 32 bits, each with 2 or 4 numbers of a narrower type; and number n of each. */
ATTREE_INLINE vf vf_load_bits(const void *p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }
ATTREE_INLINE vf vf_bf16_of(vf lanes, int n)
{
    const vi x = _mm512_castps_si512(lanes);
    return _mm512_castsi512_ps(n == 0 ? _mm512_slli_epi32(x, 16) : _mm512_and_si512(x, _mm512_set1_epi32(-65536)));
}
ATTREE_INLINE vf vf_i8_of(vf lanes, int n)
{
    const vi top = _mm512_slli_epi32(_mm512_castps_si512(lanes), (unsigned)(24 - 8 * n));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
}
/* Halves of bytes, low ones unless bits is 4, less 8: vf_halves moves high ones down first. */
ATTREE_INLINE vf vf_halves(vf lanes, int bits)
{
    return _mm512_castsi512_ps(_mm512_srl_epi32(_mm512_castps_si512(lanes), _mm_cvtsi32_si128(bits)));
}
ATTREE_INLINE vf vf_u4_of(vf lanes, int n)
{
    const vf numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_castps_si512(lanes), (unsigned)(8 * n)), numbers);
}
ATTREE_INLINE vf vf_f8_of(vf lanes, int n)
{
    const vi low = _mm512_srli_epi32(_mm512_castps_si512(lanes), (unsigned)(8 * n));
    return avx512_from_f8(_mm512_and_si512(low, _mm512_set1_epi32(0xff)));
}

ATTREE_INLINE vf vf_e5m2_of(vf lanes, int n)
{
    return avx512_from_e5m2(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(lanes), (unsigned)(8 * n))));
}

ATTREE_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ATTREE_INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    const __m512i bits = _mm512_castps_si512(x),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
ATTREE_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
ATTREE_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
ATTREE_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
ATTREE_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
ATTREE_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
ATTREE_INLINE vi vf_nearest(vf x) { return _mm512_cvtps_epi32(x); }
ATTREE_INLINE vf vf_from(vi n) { return _mm512_cvtepi32_ps(n); }
ATTREE_INLINE vf vf_scale(vf x, vi n)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(n, 23)));
}
ATTREE_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
ATTREE_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }

/* first, first + 1, first + 2, ... */
ATTREE_INLINE vi vi_ramp(int32_t first)
{
    const vi steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_epi32(_mm512_set1_epi32(first), steps);
}

ATTREE_INLINE __mmask16 avx512_below(int64_t n) { return (__mmask16)((1u << n) - 1u); }
ATTREE_INLINE vf vf_load_first(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(avx512_below(n), p); }
ATTREE_INLINE vf vf_first(int64_t n, vf a, vf b)
{
    const int64_t clamped = n < 0 ? 0 : n > VF_LANES ? VF_LANES : n;
    return _mm512_mask_blend_ps(avx512_below(clamped), b, a);
}

ATTREE_INLINE vf vf_zero_below(vf x, vf t, vf bound)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(t, bound, _CMP_NLT_UQ), x);
}
ATTREE_INLINE vf vf_replace_equal(vf x, vf y, vf a, vf b)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), y);
}
ATTREE_INLINE vf vf_replace_negative(vf x, vf y, vf sign)
{
    return _mm512_mask_mov_ps(x, _mm512_movepi32_mask(_mm512_castps_si512(sign)), y);
}
ATTREE_INLINE vf vf_replace_nan(vf x, vf y) { return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), y); }

ATTREE_INLINE __m256 avx512_low(vf x) { return _mm512_castps512_ps256(x); }
ATTREE_INLINE __m256 avx512_high(vf x) { return _mm512_extractf32x8_ps(x, 1); }

ATTREE_INLINE float vf_sum16(const vf *x)
{
    const __m256 s8 = _mm256_add_ps(avx512_low(x[0]), avx512_high(x[0]));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
ATTREE_INLINE float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }
ATTREE_INLINE float vf_smallest(vf x) { return _mm512_reduce_min_ps(x); }

/* 16 bytes of each of VF_LANES rows, at[L] + i * token that of row 4 L + i: lane r of x[n] is 32-bit lane n of row r.
 */
ATTREE_INLINE __m512i avx512_quarters(const char *const at[4], int64_t bytes)
{
    vi x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)(at[0] + bytes)));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(at[1] + bytes)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(at[2] + bytes)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(at[3] + bytes)), 3);
}
ATTREE_INLINE void vf_load_quarters(vf x[4], const char *const at[4], int64_t token)
{
    vf row[4], pair[4];
    for (int i = 0; i < 4; i++)
        row[i] = _mm512_castsi512_ps(avx512_quarters(at, i * token));
    for (int i = 0; i < 4; i += 2) {
        pair[i] = _mm512_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm512_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        x[2 * i] = _mm512_shuffle_ps(pair[i], pair[i + 2], 0x44);
        x[2 * i + 1] = _mm512_shuffle_ps(pair[i], pair[i + 2], 0xee);
    }
}

/* Four rounds: 32-bit pairs, 64-bit pairs, then 128-bit quarters in two steps. */
ATTREE_INLINE void vf_transpose(vf x[VF_LANES])
{
    vf pair[16], quad[16], half[16];
    for (int i = 0; i < 16; i += 2) {
        pair[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        pair[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        quad[i] = _mm512_shuffle_ps(pair[i], pair[i + 2], 0x44);
        quad[i + 1] = _mm512_shuffle_ps(pair[i], pair[i + 2], 0xee);
        quad[i + 2] = _mm512_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        quad[i + 3] = _mm512_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        half[i] = _mm512_shuffle_f32x4(quad[i], quad[i + 4], 0x88);
        half[i + 4] = _mm512_shuffle_f32x4(quad[i], quad[i + 4], 0xdd);
        half[i + 8] = _mm512_shuffle_f32x4(quad[i + 8], quad[i + 12], 0x88);
        half[i + 12] = _mm512_shuffle_f32x4(quad[i + 8], quad[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_shuffle_f32x4(half[i], half[i + 8], 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(half[i], half[i + 8], 0xdd);
        x[i + 4] = _mm512_shuffle_f32x4(half[i + 4], half[i + 12], 0x88);
        x[i + 12] = _mm512_shuffle_f32x4(half[i + 4], half[i + 12], 0xdd);
    }
}

#endif /* ATTREE_SIMD_AVX512_H */
