/* The kernel texts on NEON. */
#include "../simd/neon.h"

#define TABLE attree__kernels_neon
#define TABLE_NAME "neon"
#define TABLE_ISA ATTREE_ISA_NEON
#include "kernels.inc.c"
