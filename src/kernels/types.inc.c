/* The operations on rows, for each element type. */

#define ROWS_TYPE ATTREE_F32
#define ROWS(name) name##_f32
#define ROWS_FLOAT
#include "rows.inc.c"

#define ROWS_TYPE ATTREE_F16
#define ROWS(name) name##_f16
#define ROWS_FLOAT
#include "rows.inc.c"

#define ROWS_TYPE ATTREE_BF16
#define ROWS(name) name##_bf16
#define ROWS_FLOAT
#include "rows.inc.c"

#define ROWS_TYPE ATTREE_I8
#define ROWS(name) name##_i8
#include "rows.inc.c"

#define ROWS_TYPE ATTREE_Q8_0
#define ROWS(name) name##_q8_0
#include "rows.inc.c"

#define ROWS_TYPE ATTREE_Q4_0
#define ROWS(name) name##_q4_0
#include "rows.inc.c"

#define ROWS_TYPE ATTREE_F8_E4M3
#define ROWS(name) name##_f8
#include "rows.inc.c"

#define ROWS_TYPE ATTREE_F8_E5M2
#define ROWS(name) name##_f8_e5m2
#include "rows.inc.c"

#define ENTRY(TYPE, name, ...) &kernels_##name,

static const row_kernels *rows_of(int32_t type)
{
    static const row_kernels *const all[] = {ATTREE__DTYPES(ENTRY)};
    return all[type];
}
