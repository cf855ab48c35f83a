/* Vector operations on NEON (AArch64): 4 floats. Meaning of each operation: see avx2.h.
 *
 * Register tile: 6 rows x 4 vectors = 24 accumulators, 4 vectors of keys or values and a few row factors of 32
 * registers. */
#ifndef ATTREE_SIMD_NEON_H
#define ATTREE_SIMD_NEON_H
#define ATTREE_SIMD_NEON

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "../compiler.h"

#define VF_LANES 4
#define BUNDLE_ROWS 6
#define SLAB_VECS 4

typedef float32x4_t vf;
typedef int32x4_t vi;

ATTREE_INLINE vf vf_zero(void) { return vdupq_n_f32(0.0f); }
ATTREE_INLINE vf vf_all(float x) { return vdupq_n_f32(x); }
ATTREE_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
ATTREE_INLINE void vf_store(float *p, vf x) { vst1q_f32(p, x); }

ATTREE_INLINE vf vf_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
ATTREE_INLINE vf vf_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

/* int8 as numbers; reads VF_LANES bytes. The binary16 at p in every lane. */
ATTREE_INLINE vf vf_load_i8(const void *p)
{
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes))))));
}
ATTREE_INLINE vf vf_all_f16(const void *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits)));
}

/* VF_LANES bytes as integers. */
ATTREE_INLINE uint32x4_t neon_bytes(const void *p)
{
    uint32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)))));
}

/* Low or high halves of bytes, less 8, as numbers; shift is 0 or 4. Reads VF_LANES bytes. */
ATTREE_INLINE vf vf_load_u4(const void *p, int shift)
{
    const uint32x4_t halves = vandq_u32(vshlq_u32(neon_bytes(p), vdupq_n_s32(-shift)), vdupq_n_u32(15));
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(halves), vdupq_n_s32(8)));
}

/* Bytes as e4m3. See attree__from_f8. */
ATTREE_INLINE vf neon_from_f8(uint32x4_t x)
{
    const uint32x4_t magnitude = vandq_u32(x, vdupq_n_u32(0x7f));
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(x, vdupq_n_u32(0x80)), 24);
    const uint32x4_t bits = vaddq_u32(vshlq_n_u32(magnitude, 20), vdupq_n_u32(120u << 23));
    const vf small = vmulq_f32(vcvtq_f32_u32(magnitude), vdupq_n_f32(0x1p-9f));
    const uint32x4_t is_small = vcltq_u32(magnitude, vdupq_n_u32(8));
    const uint32x4_t is_nan = vceqq_u32(magnitude, vdupq_n_u32(0x7f));
    const uint32x4_t finite = vbslq_u32(is_small, vreinterpretq_u32_f32(small), bits);
    return vreinterpretq_f32_u32(vorrq_u32(finite, vorrq_u32(sign, is_nan)));
}

/* e4m3 as numbers; reads VF_LANES bytes. */
ATTREE_INLINE vf vf_load_f8(const void *p) { return neon_from_f8(neon_bytes(p)); }

/* e5m2 as numbers, the upper halves of binary16; reads VF_LANES bytes. */
ATTREE_INLINE vf neon_from_e5m2(uint32x4_t x)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(vmovn_u32(x), 8)));
}
ATTREE_INLINE vf vf_load_e5m2(const void *p) { return neon_from_e5m2(neon_bytes(p)); }

/* VF_LANES lanes of 32 bits, each with 2 or 4 numbers of a narrower type; and number n of each. */
ATTREE_INLINE vf vf_load_bits(const void *p) { return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p)); }
ATTREE_INLINE vf vf_bf16_of(vf lanes, int n)
{
    const uint32x4_t x = vreinterpretq_u32_f32(lanes);
    return vreinterpretq_f32_u32(n == 0 ? vshlq_n_u32(x, 16) : vandq_u32(x, vdupq_n_u32(0xffff0000u)));
}
ATTREE_INLINE vf vf_i8_of(vf lanes, int n)
{
    const int32x4_t top = vshlq_s32(vreinterpretq_s32_f32(lanes), vdupq_n_s32(24 - 8 * n));
    return vcvtq_f32_s32(vshrq_n_s32(top, 24));
}
/* Halves of bytes, low ones unless bits is 4, less 8: vf_halves moves high ones down first. */
ATTREE_INLINE vf vf_halves(vf lanes, int bits)
{
    return vreinterpretq_f32_u32(vshlq_u32(vreinterpretq_u32_f32(lanes), vdupq_n_s32(-bits)));
}
ATTREE_INLINE vf vf_u4_of(vf lanes, int n)
{
    const uint32x4_t low = vshlq_u32(vreinterpretq_u32_f32(lanes), vdupq_n_s32(-8 * n));
    const int32x4_t half = vreinterpretq_s32_u32(vandq_u32(low, vdupq_n_u32(15)));
    return vcvtq_f32_s32(vsubq_s32(half, vdupq_n_s32(8)));
}
ATTREE_INLINE vf vf_f8_of(vf lanes, int n)
{
    const uint32x4_t low = vshlq_u32(vreinterpretq_u32_f32(lanes), vdupq_n_s32(-8 * n));
    return neon_from_f8(vandq_u32(low, vdupq_n_u32(0xff)));
}

ATTREE_INLINE vf vf_e5m2_of(vf lanes, int n)
{
    return neon_from_e5m2(vshlq_u32(vreinterpretq_u32_f32(lanes), vdupq_n_s32(-8 * n)));
}

ATTREE_INLINE void vf_store_f16(uint16_t *p, vf x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
ATTREE_INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    vst1_u16(p, vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}

ATTREE_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
ATTREE_INLINE vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
ATTREE_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
ATTREE_INLINE vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
ATTREE_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }

ATTREE_INLINE vi vf_nearest(vf x) { return vcvtnq_s32_f32(x); }
ATTREE_INLINE vf vf_from(vi n) { return vcvtq_f32_s32(n); }
ATTREE_INLINE vf vf_scale(vf x, vi n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(n, 23)));
}

/* first, first + 1, first + 2, ... */
ATTREE_INLINE vi vi_ramp(int32_t first)
{
    static const int32_t steps[] = {0, 1, 2, 3};
    return vaddq_s32(vdupq_n_s32(first), vld1q_s32(steps));
}

/* A quiet NaN counts as missing. */
ATTREE_INLINE vf vf_max(vf a, vf b) { return vmaxnmq_f32(a, b); }
ATTREE_INLINE vf vf_min(vf a, vf b) { return vminnmq_f32(a, b); }

ATTREE_INLINE uint32x4_t neon_below(int64_t n)
{
    const int32_t lanes[4] = {0, 1, 2, 3};
    return vcgtq_s32(vdupq_n_s32((int32_t)n), vld1q_s32(lanes));
}
ATTREE_INLINE vf vf_load_first(const float *p, int64_t n)
{
    float part[VF_LANES] = {0.0f};
    for (int64_t i = 0; i < n; i++)
        part[i] = p[i];
    return vld1q_f32(part);
}
ATTREE_INLINE vf vf_first(int64_t n, vf a, vf b)
{
    const int64_t clamped = n < 0 ? 0 : n > VF_LANES ? VF_LANES : n;
    return vbslq_f32(neon_below(clamped), a, b);
}

ATTREE_INLINE vf vf_zero_below(vf x, vf t, vf bound)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltq_f32(t, bound)));
}
ATTREE_INLINE vf vf_replace_equal(vf x, vf y, vf a, vf b) { return vbslq_f32(vceqq_f32(a, b), y, x); }
ATTREE_INLINE vf vf_replace_negative(vf x, vf y, vf sign)
{
    return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(sign)), y, x);
}
ATTREE_INLINE vf vf_replace_nan(vf x, vf y) { return vbslq_f32(vceqq_f32(x, x), x, y); }

ATTREE_INLINE float vf_sum16(const vf *x)
{
    const vf s4 = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
ATTREE_INLINE float vf_largest(vf x) { return vmaxvq_f32(x); }
ATTREE_INLINE float vf_smallest(vf x) { return vminvq_f32(x); }

ATTREE_INLINE void vf_transpose(vf x[VF_LANES])
{
    const float32x4x2_t low = vtrnq_f32(x[0], x[1]), high = vtrnq_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
    x[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
    x[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
    x[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
}

/* 16 bytes of each of VF_LANES rows, row i at at[0] + i * token: lane r of x[n] is 32-bit lane n of row r. */
ATTREE_INLINE void vf_load_quarters(vf x[4], const char *const at[1], int64_t token)
{
    for (int i = 0; i < 4; i++)
        x[i] = vf_load_bits(at[0] + i * token);
    vf_transpose(x);
}

#endif /* ATTREE_SIMD_NEON_H */
