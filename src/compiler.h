/* Everything that depends on the compiler: attributes and builtins, each under one name.
 *
 * Also the guard against flags that would break the arithmetic contract. */
#ifndef ATTREE_COMPILER_H
#define ATTREE_COMPILER_H

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "attree needs infinities and NaN: build without -ffast-math, -Ofast and -ffinite-math-only"
#endif

#include <stdint.h>

#define ATTREE_INLINE static inline __attribute__((always_inline))
#define ATTREE_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))

/* Before a loop with a constant count, all of which, or n rounds of which, are to be written out. Builds with
 * sanitizers, which multiply the code that results, do without. */
#if defined(ATTREE_COMPACT)
#define ATTREE_UNROLL(n)
#else
#define ATTREE_PRAGMA(text) _Pragma(#text)
#define ATTREE_UNROLL(n) ATTREE_PRAGMA(GCC unroll n)
#endif

/* A function that may use FMA, in a file compiled without it, for a caller that has asked attree__cpu_require(). */
#if defined(__x86_64__)
#define ATTREE_WITH_FMA __attribute__((target("fma")))
#else
#define ATTREE_WITH_FMA
#endif

/* Asks for the cache line at an address, which need not exist. */
ATTREE_INLINE void attree__prefetch(uintptr_t address) { __builtin_prefetch((const void *)address); }

/* True, and *result undefined, when the operation does not fit *result's type. */
#define attree__add_overflows(a, b, result) __builtin_add_overflow(a, b, result)
#define attree__mul_overflows(a, b, result) __builtin_mul_overflow(a, b, result)

#endif /* ATTREE_COMPILER_H */
