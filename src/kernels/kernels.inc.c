/* All kernel texts in order, for one instruction set whose simd header is included before. */
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
#include "decode.inc.c"
#include "interleave.inc.c"
#include "prefill.inc.c"
#include "fold.inc.c"
#include "combine.inc.c"
#include "weights.inc.c"
#include "types.inc.c"
/* clang-format on */
