/* All kernel texts in order, and the table, for one instruction set: whose simd header is included before, and TABLE,
 * TABLE_NAME and TABLE_ISA defined. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "../contract.h"
#include "../dtype.h"
#include "../kernel.h"
#include "../query_row.h"
#include "../simd/exp.h"
#include "attree/attree.h"

/* Order matters: each text uses those before it. */
/* clang-format off */
#include "ranges.inc.c"
#include "numbers.inc.c"
#include "ahead.inc.c"
#include "tile.inc.c"
#include "pack.inc.c"
#include "scores.inc.c"
#include "softmax.inc.c"
#include "values.inc.c"
#include "strip.inc.c"
#include "terms.inc.c"
#include "scan.inc.c"
#include "decode.inc.c"
#include "interleave.inc.c"
#include "prefill.inc.c"
#include "fold.inc.c"
#include "combine.inc.c"
#include "weights.inc.c"
#include "types.inc.c"
/* clang-format on */

const attree__kernels TABLE = {
    .name = TABLE_NAME,
    .isa = TABLE_ISA,
    .bundle_rows = BUNDLE_ROWS,
    .decode_rows = STRIP_ROWS,
    .interleaved_rows = interleaved_rows,
    .scan = scan,
    .pack_queries = pack_queries,
    .scratch_floats = scratch_floats,
    .fold = fold,
    .weights = fold_weights,
    .combine = combine,
    .divide = divide,
};
