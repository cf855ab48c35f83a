/* CPU features: on x86-64 by the compiler's runtime, which asks cpuid and, for the registers' state, xgetbv. */
#include "cpu.h"

#include "compiler.h"
#include "error.h"

#if defined(__aarch64__)

/* NEON with FMA is part of the base architecture. */
bool attree__cpu_has(attree_isa isa)
{
    return isa == ATTREE_ISA_AUTO || isa == ATTREE_ISA_SCALAR || isa == ATTREE_ISA_NEON;
}

#else

#include <cpuid.h>
#include <stdatomic.h>

/* clang's __builtin_cpu_supports does not know F16C. Its registers are AVX's. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* A bit for each attree_isa. */
static unsigned detect(void)
{
    __builtin_cpu_init();
    const bool scalar = __builtin_cpu_supports("avx") && __builtin_cpu_supports("fma");
    const bool avx2 = scalar && __builtin_cpu_supports("avx2") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return (scalar ? 1u << ATTREE_ISA_AUTO | 1u << ATTREE_ISA_SCALAR : 0u) | (avx2 ? 1u << ATTREE_ISA_AVX2 : 0u) |
           (avx512 ? 1u << ATTREE_ISA_AVX512 : 0u);
}

/* Asked once: cpuid takes tens of microseconds in a virtual machine. Threads that come first together find the same. */
bool attree__cpu_has(attree_isa isa)
{
    static atomic_uint known;
    const unsigned asked = 1u << 31;
    unsigned features = atomic_load_explicit(&known, memory_order_relaxed);
    if (features == 0) {
        features = detect() | asked;
        atomic_store_explicit(&known, features, memory_order_relaxed);
    }
    return (features >> (unsigned)isa & 1u) != 0;
}

#endif

attree_status attree__cpu_require(void)
{
    if (!attree__cpu_has(ATTREE_ISA_SCALAR))
        return attree__fail(ATTREE_ERROR_ISA, "this CPU has no FMA; attree needs it");
    return ATTREE_OK;
}
