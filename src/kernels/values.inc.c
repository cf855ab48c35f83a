/* Step 5: a group of weight rows times one panel of values. Value columns are in the lanes; keys are the depth. */

/* Keys that some row of a group sees are seen.from <= j < seen.to; those that all its rows see, with no -0 among the
 * weights, are dense.from <= j < dense.to; seen.from <= dense.from <= dense.to <= seen.to. */
typedef struct value_job {
    const float *weights; /* row r at weights + r * SCORE_STRIDE, indexed by key */
    const float *values;  /* of key j at values + (j - seen.from) * step: as many columns as the tile takes */
    int64_t step;
    int64_t ahead; /* bytes from what is read to what is asked for in advance; 0: nothing */
    key_range seen, dense;
    float *u; /* row r at u + r * u_stride */
    int64_t u_stride;
} value_job;

ATTREE_INLINE tile_operands value_operands(const value_job *job, int64_t from, int64_t to)
{
    const float *const values = job->values + (from - job->seen.from) * job->step;
    return (tile_operands){job->weights + from, SCORE_STRIDE, 1, values, job->step, to - from, job->ahead};
}

/* u += weights * values. */
ATTREE_INLINE void value_tile(const int rows, const int vecs, const value_job *job)
{
    vf acc[TILE_ROWS * TILE_VECS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            acc[r * vecs + v] = vf_load(job->u + r * job->u_stride + v * VF_LANES);
    if (job->seen.from < job->dense.from)
        tile_multiply_visible(acc, rows, vecs, value_operands(job, job->seen.from, job->dense.from));
    tile_multiply(acc, rows, vecs, value_operands(job, job->dense.from, job->dense.to));
    if (job->dense.to < job->seen.to)
        tile_multiply_visible(acc, rows, vecs, value_operands(job, job->dense.to, job->seen.to));
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            vf_store(job->u + r * job->u_stride + v * VF_LANES, acc[r * vecs + v]);
}

/* Cases above TILE_ROWS never happen; they name a tile that exists. */
ATTREE_INLINE void value_rows(int64_t rows, const int vecs, const value_job *job)
{
    switch (rows) {
    case 1: value_tile(1, vecs, job); break;
    case 2: value_tile(2, vecs, job); break;
    case 3: value_tile(3, vecs, job); break;
    case 4: value_tile(4, vecs, job); break;
    case 5: value_tile(5, vecs, job); break;
    case 6: value_tile(6, vecs, job); break;
    case 7: value_tile(TILE_ROWS < 7 ? 1 : 7, vecs, job); break;
    case 8: value_tile(TILE_ROWS < 8 ? 1 : 8, vecs, job); break;
    case 9: value_tile(TILE_ROWS < 9 ? 1 : 9, vecs, job); break;
    case 10: value_tile(TILE_ROWS < 10 ? 1 : 10, vecs, job); break;
    case 11: value_tile(TILE_ROWS < 11 ? 1 : 11, vecs, job); break;
    default: value_tile(TILE_ROWS, vecs, job); break;
    }
}

/* Vectors of the least number of columns: u rows are padded to a multiple of it. */
#define UNIT_VECS (ATTREE__LANES / VF_LANES)

/* PANEL columns, or a unit at the end. Returns how many. */
static int64_t value_group(int64_t rows, int64_t columns, const value_job *job)
{
    if (columns >= PANEL) {
        value_rows(rows, TILE_VECS, job);
        return PANEL;
    }
    value_rows(rows, UNIT_VECS, job);
    return ATTREE__LANES;
}

/* As many columns as suit few rows, or a unit at the end. Returns how many. */
static int64_t value_span(int64_t rows, int64_t columns, const value_job *job)
{
    if (rows == 1 && columns >= WIDEST_VECS * VF_LANES) {
        value_tile(1, WIDEST_VECS, job);
        return WIDEST_VECS * VF_LANES;
    }
    if (rows == 2 && columns >= WIDE_VECS * VF_LANES) {
        value_tile(2, WIDE_VECS, job);
        return WIDE_VECS * VF_LANES;
    }
    if (rows == 3 && columns >= WIDE_VECS * VF_LANES) {
        value_tile(3, WIDE_VECS, job);
        return WIDE_VECS * VF_LANES;
    }
    if (job->ahead)
        for (int64_t j = 0; j < job->seen.to - job->seen.from; j++)
            attree__prefetch((uintptr_t)(job->values + j * job->step) + (uintptr_t)job->ahead);
    return value_group(rows, columns, job);
}
