/* The functions taken from SLEEF. The only file that includes sleef.h.
 *
 * SLEEF's `finz` functions are its deterministic ones for machines with FMA: they have equal bits for every vector
 * width. u10 means a maximal error of 1.0 ulp. The kernels have expf written out for vectors, in kernels/softmax.inc.c.
 */
#ifndef ATTREE_SIMD_EXP_H
#define ATTREE_SIMD_EXP_H

/* sleef.h declares the scalar finz functions only under these; contract files are compiled with FMA. */
#ifndef FP_FAST_FMA
#define FP_FAST_FMA
#endif
#ifndef FP_FAST_FMAF
#define FP_FAST_FMAF
#endif
#include <sleef.h>

/* tanh of a vector, where one of the other files here is included. */
#if defined(ATTREE_SIMD_AVX2)
static inline __m256 vf_tanh(__m256 x) { return Sleef_finz_tanhf8_u10avx2(x); }
#elif defined(ATTREE_SIMD_AVX512)
static inline __m512 vf_tanh(__m512 x) { return Sleef_finz_tanhf16_u10avx512f(x); }
#elif defined(ATTREE_SIMD_NEON)
static inline float32x4_t vf_tanh(float32x4_t x) { return Sleef_finz_tanhf4_u10advsimd(x); }
#endif

static inline float attree__expf(float x) { return Sleef_finz_expf1_u10purecfma(x); }

static inline double attree__exp(double x) { return Sleef_finz_expd1_u10purecfma(x); }

static inline float attree__tanhf(float x) { return Sleef_finz_tanhf1_u10purecfma(x); }

static inline float attree__logf(float x) { return Sleef_finz_logf1_u10purecfma(x); }

static inline double attree__log(double x) { return Sleef_finz_logd1_u10purecfma(x); }

#endif /* ATTREE_SIMD_EXP_H */
