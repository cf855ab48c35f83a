/* CPU features: on x86-64 by the compiler's runtime, which asks cpuid and, for the registers' state, xgetbv. */
#include "cpu.h"

#if defined(__aarch64__)

/* NEON with FMA is part of the base architecture. */
bool attree__cpu_has(attree_isa isa)
{
    return isa == ATTREE_ISA_AUTO || isa == ATTREE_ISA_SCALAR || isa == ATTREE_ISA_NEON;
}

#else

#include <cpuid.h>

/* clang's __builtin_cpu_supports does not know F16C. Its registers are AVX's. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool attree__cpu_has(attree_isa isa)
{
    __builtin_cpu_init();
    const bool scalar = __builtin_cpu_supports("avx") && __builtin_cpu_supports("fma");
    const bool avx2 = scalar && __builtin_cpu_supports("avx2") && has_f16c();
    switch (isa) {
    case ATTREE_ISA_AUTO:
    case ATTREE_ISA_SCALAR: return scalar;
    case ATTREE_ISA_AVX2: return avx2;
    case ATTREE_ISA_AVX512:
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    default: return false;
    }
}

#endif
