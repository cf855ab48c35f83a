/* Choosing a kernel table. */
#ifndef ATTREE_DISPATCH_H
#define ATTREE_DISPATCH_H

#include "kernel.h"

#include "attree/attree.h"

/* The table for what desc->isa asks: that instruction set, or with ATTREE_ISA_AUTO the one that the environment
 * variable ATTREE_ISA names, or the widest here. One that this machine lacks is ATTREE_ERROR_ISA. */
attree_status attree__dispatch(const attree__kernels **kernels, int32_t isa);

/* Blocks that few rows fold at once, so that memory is read in as many streams: as the environment variable
 * ATTREE_STREAMS says (1, 2 or 4), or what suits the CPU. in_pages: a block is in several pages, none of which is a
 * stream for long; then four blocks at once have more reads under way. Bits do not depend on it. */
attree_status attree__dispatch_streams(int32_t *streams, bool in_pages);

#endif /* ATTREE_DISPATCH_H */
