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

int32_t attree__cpu_streams(void) { return 1; }

#else

#include <cpuid.h>
#include <stdatomic.h>

/* clang's __builtin_cpu_supports does not know F16C. Its registers are AVX's. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* Measured: Zen 3 reads one stream at 10 GB/s and four at 15; Zen 5 takes 1.25 to 1.36 times as long with four as with
 * one. Families 17h to 19h are Zen to Zen 4; the others among them, and other makers' CPUs, were not measured. */
static bool has_short_streams(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || c != signature_AMD_ecx ||
        !__get_cpuid(1, &a, &b, &c, &d))
        return false;
    const unsigned family = (a >> 8 & 15u) + (a >> 20 & 255u);
    return family >= 0x17 && family <= 0x19;
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

enum { ASKED = 31, SHORT_STREAMS = 30 };

/* Bits by number: an attree_isa, or of the above. Asked once: cpuid takes tens of microseconds in a virtual machine.
 * Threads that come first together find the same. */
static bool has(unsigned bit)
{
    static atomic_uint known;
    unsigned features = atomic_load_explicit(&known, memory_order_relaxed);
    if (features == 0) {
        features = detect() | 1u << ASKED | (has_short_streams() ? 1u << SHORT_STREAMS : 0u);
        atomic_store_explicit(&known, features, memory_order_relaxed);
    }
    return (features >> bit & 1u) != 0;
}

bool attree__cpu_has(attree_isa isa) { return has((unsigned)isa); }

int32_t attree__cpu_streams(void) { return has(SHORT_STREAMS) ? 4 : 1; }

#endif

attree_status attree__cpu_require(void)
{
    if (!attree__cpu_has(ATTREE_ISA_SCALAR))
        return attree__fail(ATTREE_ERROR_ISA, "this CPU has no FMA; attree needs it");
    return ATTREE_OK;
}
