/* The kernel texts on AVX2. */
#include "../simd/avx2.h"

#define TABLE attree__kernels_avx2
#define TABLE_NAME "avx2"
#define TABLE_ISA ATTREE_ISA_AVX2
#include "kernels.inc.c"
