/* The kernel texts on AVX-512. */
#include "../simd/avx512.h"
#include "kernels.inc.c"

const attree__kernels attree__kernels_avx512 = {
    .name = "avx512",
    .isa = ATTREE_ISA_AVX512,
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
