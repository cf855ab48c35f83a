/* Choosing a kernel table. */
#ifndef ATTREE_DISPATCH_H
#define ATTREE_DISPATCH_H

#include "kernel.h"

#include "attree/attree.h"

/* The table for what desc->isa asks: that instruction set, or with ATTREE_ISA_AUTO the one that the environment
 * variable ATTREE_ISA names, or the widest here. One that this machine lacks is ATTREE_ERROR_ISA. */
attree_status attree__dispatch(const attree__kernels **kernels, int32_t isa);

#endif /* ATTREE_DISPATCH_H */
