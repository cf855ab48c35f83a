/* What this machine can run. */
#ifndef ATTREE_CPU_H
#define ATTREE_CPU_H

#include <stdbool.h>

#include "attree/attree.h"

/* Whether the CPU and the operating system support every instruction that the kernels of isa are compiled with. The
 * scalar kernels need FMA on x86-64. */
bool attree__cpu_has(attree_isa isa);

/* In how many sequential streams a core reads memory fastest: 1, or 4 where each hardware prefetcher runs just so far
 * ahead. */
int32_t attree__cpu_streams(void);

/* ATTREE_ERROR_ISA on a CPU on which nothing can run. */
attree_status attree__cpu_require(void);

#endif /* ATTREE_CPU_H */
