/* The floating-point environment that the contract needs: round to nearest, subnormals kept, exceptions masked. */
#ifndef ATTREE_FPENV_H
#define ATTREE_FPENV_H

#if defined(__x86_64__)
#include <xmmintrin.h>

typedef unsigned attree__fpenv;

/* Sets it for this thread and returns what was there, sticky flags included. */
static inline attree__fpenv attree__fpenv_enter(void)
{
    const unsigned caller = _mm_getcsr();
    _mm_setcsr(0x1f80); /* MXCSR after reset */
    return caller;
}

static inline void attree__fpenv_leave(attree__fpenv caller)
{
    _mm_setcsr(caller);
}
#else
#error "attree: no floating-point environment for this architecture"
#endif

#endif /* ATTREE_FPENV_H */
