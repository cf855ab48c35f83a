/* The floating-point environment that the contract needs: round to nearest, subnormals kept, exceptions masked.
 *
 * enter sets it for this thread and returns what was there; leave puts that back with the sticky flags. */
#ifndef ATTREE_FPENV_H
#define ATTREE_FPENV_H

#if defined(__aarch64__)
#include <stdint.h>

typedef struct attree__fpenv {
    uint64_t control, status; /* status: the sticky flags */
} attree__fpenv;

static inline attree__fpenv attree__fpenv_enter(void)
{
    attree__fpenv caller;
    __asm__ volatile("mrs %0, fpcr" : "=r"(caller.control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(caller.status));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return caller;
}

static inline void attree__fpenv_leave(attree__fpenv caller)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(caller.control) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(caller.status) : "memory");
}
#elif defined(__x86_64__)
#include <xmmintrin.h>

typedef unsigned attree__fpenv;

static inline attree__fpenv attree__fpenv_enter(void)
{
    const unsigned caller = _mm_getcsr();
    _mm_setcsr(0x1f80); /* MXCSR after reset */
    return caller;
}

static inline void attree__fpenv_leave(attree__fpenv caller) { _mm_setcsr(caller); }
#else
#error "attree: no floating-point environment for this architecture"
#endif

#endif /* ATTREE_FPENV_H */
