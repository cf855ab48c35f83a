/* The kernel texts on NEON. */
#include "../simd/neon.h"
#include "kernels.inc.c"

const attree__kernels attree__kernels_neon = {
    .name = "neon",
    .isa = ATTREE_ISA_NEON,
    .bundle_rows = BUNDLE_ROWS,
    .decode_rows = STRIP_ROWS,
    .interleaved_rows = interleaved_rows,
    .pack_queries = pack_queries,
    .scratch_floats = scratch_floats,
    .fold = fold,
    .weights = fold_weights,
    .combine = combine,
    .divide = divide,
};
