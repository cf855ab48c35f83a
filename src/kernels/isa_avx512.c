/* The kernel texts on AVX-512. */
#include "../simd/avx512.h"

#define TABLE attree__kernels_avx512
#define TABLE_NAME "avx512"
#define TABLE_ISA ATTREE_ISA_AVX512
#include "kernels.inc.c"
