/* Step 5: a bundle of weight rows times one slab of values. Value columns are in the lanes; keys are the depth. */

/* Keys whose values are folded together: of one piece. */
#define VALUE_CHUNK ATTREE__PIECE

/* The values of a chunk that are asked for in advance while those of another are folded, a tile of columns at a time.
 * Rows without gaps between them are gone through as if they were one, line after line, whatever columns a tile has:
 * hardware prefetchers go on with what comes next, and memory likes that best. (Measured on Zen 3: 0.8 to 0.9 of the
 * time of asking for a tile's columns of row after row.) */
typedef struct chunk_ahead {
    uintptr_t at;
    int64_t token;
    bool gaps;
} chunk_ahead;

/* What a tile asks for, of numbers column ... column + columns - 1. */
ATTREE_INLINE lines_ahead tile_lines(const chunk_ahead *a, const int32_t type, int64_t column, int64_t columns)
{
    const int64_t before = attree__dtype_row_bytes(type, column), bytes = attree__dtype_row_bytes(type, columns);
    return lines_from(a->at + (uintptr_t)(a->gaps ? before : before * VALUE_CHUNK), a->token, bytes, a->gaps);
}

typedef struct value_job {
    const float *weights; /* row r at weights + r * SCORE_STRIDE, indexed by key */
    const void *values;   /* of key j: numbers column ... of the row (j - keys.from) * row_bytes on */
    int64_t row_bytes, column;
    const float *scale; /* of key j at scale[j], for types with scales of rows */
    chunk_ahead ahead;  /* when values are streamed */
    key_range keys;
    bool fresh; /* u starts from zero, whatever it holds */
    float *u;   /* row r at u + r * u_stride */
    int64_t u_stride;
} value_job;

/* How keys are folded: all of them seen by all rows, from cache; the same, streaming from memory; some of them with
 * weights of -0 in some rows, which do not see them. */
typedef enum value_way { DENSE, STREAMED, MIXED } value_way;

/* u += weights * values. */
ATTREE_INLINE void value_tile(const int rows, const int vecs, const int32_t type, const value_way way,
                              const value_job *job)
{
    vf acc[BUNDLE_ROWS * SLAB_VECS];
    const int64_t within = attree__dtype_has_blocks(type) ? job->column % ATTREE__QUANT_BLOCK : 0;
    ATTREE_UNROLL(16)
    for (int r = 0; r < rows; r++) {
        ATTREE_UNROLL(8)
        for (int v = 0; v < vecs; v++)
            acc[r * vecs + v] = job->fresh ? vf_zero() : vf_load(job->u + r * job->u_stride + v * VF_LANES);
    }
    const tile_operands operands = {
        .factor = job->weights + job->keys.from,
        .factor_row = SCORE_STRIDE,
        .factor_step = 1,
        .row = (const char *)job->values + attree__dtype_row_bytes(type, job->column - within),
        .row_bytes = job->row_bytes,
        .column = within,
        .scale = attree__dtype_has_row_scales(type) ? job->scale + job->keys.from : NULL,
        .depth = job->keys.to - job->keys.from,
        .ahead = tile_lines(&job->ahead, type, job->column, vecs * VF_LANES),
    };
    switch (way) {
    case STREAMED: tile_multiply_streamed(acc, rows, vecs, type, operands); break;
    case MIXED: tile_multiply_visible(acc, rows, vecs, type, operands); break;
    default: tile_multiply(acc, rows, vecs, type, operands); break;
    }
    ATTREE_UNROLL(16)
    for (int r = 0; r < rows; r++) {
        ATTREE_UNROLL(8)
        for (int v = 0; v < vecs; v++)
            vf_store(job->u + r * job->u_stride + v * VF_LANES, acc[r * vecs + v]);
    }
}

/* Values that are packed. */
ATTREE_INLINE void value_rows(int64_t rows, const int vecs, const value_way way, const value_job *job){
#define CALL(R) value_tile(R, vecs, ATTREE_F32, way, job)
#include "by_rows.inc.c"
}

/* Vectors of ATTREE__LANES columns, of which rows of u hold a whole number. */
#define UNIT_VECS (ATTREE__LANES / VF_LANES)

ATTREE_INLINE int64_t value_columns(int64_t rows, int64_t columns, const value_way way, const value_job *job)
{
    if (columns >= SLAB) {
        value_rows(rows, SLAB_VECS, way, job);
        return SLAB;
    }
    value_rows(rows, UNIT_VECS, way, job);
    return ATTREE__LANES;
}

/* SLAB columns, or a unit at the end. Returns how many. */
static int64_t value_bundle(int64_t rows, int64_t columns, const value_job *job)
{
    return value_columns(rows, columns, DENSE, job);
}

/* The same, when some rows do not see some keys. */
static int64_t value_bundle_mixed(int64_t rows, int64_t columns, const value_job *job)
{
    return value_columns(rows, columns, MIXED, job);
}

/* ---- Without packing ---- */

/* Rows that take wide tiles, also when values are in a buffer. */
#define WIDE_ROWS 3

/* As many columns as suit the rows, or a unit at the end. Returns how many. */
ATTREE_INLINE int64_t value_span_of(const int rows, const int32_t type, int64_t columns, const value_job *job)
{
    const int vecs = rows == 1 ? WIDEST_VECS : rows <= WIDE_ROWS ? WIDE_VECS : SLAB_VECS, half = vecs / 2;
    if (columns >= vecs * VF_LANES) {
        value_tile(rows, vecs, type, STREAMED, job);
        return vecs * VF_LANES;
    }
    if (half > UNIT_VECS &&
        columns >= half * VF_LANES) { /* narrow heads: one vector at a time would wait for each fma */
        value_tile(rows, half, type, STREAMED, job);
        return half * VF_LANES;
    }
    value_tile(rows, UNIT_VECS, type, STREAMED, job);
    return ATTREE__LANES;
}

/* Values are converted in registers, those of float types for each bundle of rows again: writing them to a buffer first
 * takes longer. Of other types, for a few rows. */
ATTREE_INLINE int64_t value_span_rows(int64_t rows, const int32_t type, int64_t columns, const value_job *job)
{
    if (!attree__dtype_is_float(type))
        return rows == 1   ? value_span_of(1, type, columns, job)
               : rows == 2 ? value_span_of(2, type, columns, job)
               : rows == 3 ? value_span_of(3, type, columns, job)
                           : value_span_of(4, type, columns, job);
    int64_t done;
#define CALL(R) done = value_span_of(R, type, columns, job)
#include "by_rows.inc.c"
    return done;
}
