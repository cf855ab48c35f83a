/* The public state algebra: states of one query row, in f32 and f64. The text is in state.inc.c. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "attree/attree.h"
#include "compiler.h"
#include "cpu.h"
#include "error.h"
#include "simd/fpenv.h"
#include "kernel.h"
#include "simd/exp.h"

size_t attree_state_count(int64_t v_width)
{
    return v_width < 1 || (uint64_t)v_width > SIZE_MAX / 16 ? 0 : (size_t)v_width + 2;
}

#define real float
#define real_exp attree__expf
#define real_log attree__logf
#define real_fma fmaf
#define CUTOFF ATTREE__CUTOFF
#define NAME(x) x##_f32
#include "state.inc.c"
#undef real
#undef real_exp
#undef real_log
#undef real_fma
#undef CUTOFF
#undef NAME

#define real double
#define real_exp attree__exp
#define real_log attree__log
#define real_fma fma
#define CUTOFF (-708.3964185322641) /* just above log(2^-1022) */
#define NAME(x) x##_f64
#include "state.inc.c"
