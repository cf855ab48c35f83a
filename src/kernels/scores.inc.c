/* Step 1: a bundle of query rows times one slab of keys. Keys are in the lanes; the width is the depth of the tile. */

/* Floats between the score rows of a tile; not a multiple of 4 KiB / 4, so that rows do not share cache sets. */
#define SCORE_STRIDE (ATTREE__BLOCK + ATTREE__LANES)

typedef struct score_job {
    const float *q;    /* [D][BUNDLE_ROWS] */
    const float *slab; /* packed keys [D][SLAB]; or, without packing, keys j, j + 1, ... of k */
    const attree__rows *k;
    int64_t j;
    float *scores; /* row r at scores + r * SCORE_STRIDE */
    int64_t width;
    float scale;
    lines_ahead *ahead; /* of SLAB_PIECES pieces: what to ask for meanwhile, `lines` of each at a time; NULL: nothing */
    int64_t lines;
} score_job;

/* Pieces that the keys of a slab are in. */
#define SLAB_PIECES (SLAB / ATTREE__PIECE)

/* Columns of a slab that are multiplied before the tile asks for the next cache lines. */
#define SCORE_SLICE 16

ATTREE_INLINE void score_tile(const int rows, const score_job *job)
{
    vf acc[BUNDLE_ROWS * SLAB_VECS];
    ATTREE_UNROLL(32)
    for (int i = 0; i < rows * SLAB_VECS; i++)
        acc[i] = vf_zero();
    tile_operands operands = {.factor = job->q,
                              .factor_row = 1,
                              .factor_step = BUNDLE_ROWS,
                              .row = job->slab,
                              .row_bytes = SLAB * sizeof(float),
                              .depth = job->width};
    if (!job->ahead)
        tile_multiply(acc, rows, SLAB_VECS, ATTREE_F32, operands);
    else
        for (int64_t c = 0; c < job->width; c += SCORE_SLICE) {
            for (int n = 0; n < SLAB_PIECES; n++)
                ask(&job->ahead[n], job->lines);
            operands.depth = at_most(SCORE_SLICE, job->width - c);
            tile_multiply(acc, rows, SLAB_VECS, ATTREE_F32, operands);
            operands.factor += SCORE_SLICE * BUNDLE_ROWS;
            operands.row = (const float *)operands.row + SCORE_SLICE * SLAB;
        }
    const vf scale = vf_all(job->scale);
    ATTREE_UNROLL(16)
    for (int r = 0; r < rows; r++) {
        ATTREE_UNROLL(8)
        for (int v = 0; v < SLAB_VECS; v++)
            vf_store(job->scores + r * SCORE_STRIDE + v * VF_LANES, vf_mul(acc[r * SLAB_VECS + v], scale));
    }
}

/* SLAB keys. */
static void score_bundle(int64_t rows, const score_job *job)
{
#define CALL(R) score_tile(R, job)
#include "by_rows.inc.c"
}

/* ---- Without packing ---- */

/* Keys that the few-rows path scores together. */
#define KEY_SPAN (4 * VF_LANES)

/* The most rows for which that pays: their accumulators stay in registers beside a square of keys. */
#define DIRECT_ROWS 4

/* A bundle's rows against one column of a square: a step for the accumulators acc[r * squares]. */
ATTREE_INLINE void multiply_column(vf *acc, const int rows, const int squares, const float *q, vf column)
{
    ATTREE_UNROLL(4)
    for (int r = 0; r < rows; r++)
        acc[r * squares] = vf_fma(vf_all(q[r]), column, acc[r * squares]);
}

/* VF_LANES keys, adjacent columns of which are adjacent in memory. */
typedef struct square {
    const attree__rows *k;
    int64_t j;
    const char *ahead; /* rows to ask for in advance */
    float *scores;     /* row r at scores + r * SCORE_STRIDE */
} square;

/* square_columns() columns of some squares, from column c on. */
typedef struct square_part {
    key_fours *at;
    const vf *scales; /* of each */
    const float *q;   /* from column c on */
} square_part;

/* Of types with blocks. */
ATTREE_INLINE void multiply_blocks(vf *acc, const int rows, const int squares, const int32_t type, square_part part)
{
    vf x[4][4];
    ATTREE_UNROLL(4)
    for (int s = 0; s < squares; s++)
        load_block_lanes(x[s], type, &part.at[s]);
    ATTREE_UNROLL(16)
    for (int c = 0; c < 16; c++) {
        ATTREE_UNROLL(4)
        for (int s = 0; s < squares; s++)
            multiply_column(acc + s, rows, squares, part.q + c * BUNDLE_ROWS,
                            number_of_lanes(x[s][c / 4], type, c % 4, part.scales[s]));
    }
}

ATTREE_INLINE void multiply_squares(vf *acc, const int rows, const int squares, const int32_t type, square_part part)
{
    const int lanes = lane_numbers(type);
    if (lanes == 1) {
        ATTREE_UNROLL(4)
        for (int s = 0; s < squares; s++) {
            vf x[VF_LANES];
            load_lanes_transposed(x, type, &part.at[s]);
            ATTREE_UNROLL(16)
            for (int i = 0; i < VF_LANES; i++)
                multiply_column(acc + s, rows, squares, part.q + i * BUNDLE_ROWS,
                                number_of_lanes(x[i], type, 0, part.scales[s]));
        }
        return;
    }
    if (attree__dtype_has_blocks(type)) {
        multiply_blocks(acc, rows, squares, type, part);
        return;
    }
    vf x[4][VF_LANES]; /* more than there are registers: so that the squares' accumulators take turns */
    ATTREE_UNROLL(4)
    for (int s = 0; s < squares; s++)
        load_lanes_transposed(x[s], type, &part.at[s]);
    for (int i = 0; i < VF_LANES; i++, part.q += lanes * BUNDLE_ROWS) {
        ATTREE_UNROLL(4)
        for (int n = 0; n < lanes; n++) {
            ATTREE_UNROLL(4)
            for (int s = 0; s < squares; s++)
                multiply_column(acc + s, rows, squares, part.q + n * BUNDLE_ROWS,
                                number_of_lanes(x[s][i], type, n, part.scales[s]));
        }
    }
}

/* Rows of one bundle times some squares of keys: each is transposed in registers and used at once. Each of the rows *
 * squares accumulators follows step 1. */
ATTREE_INLINE void score_squares(const int rows, const int squares, const int32_t type, const score_job *job,
                                 const square *at)
{
    vf acc[DIRECT_ROWS * 4];
    lines_ahead ahead[4];
    key_fours fours[4];
    vf scales[4];
    ATTREE_UNROLL(4)
    for (int s = 0; s < squares; s++) {
        fours[s] = make_fours(at[s].k, at[s].j);
        ahead[s] = lines_of(at[s].k, type, at[s].ahead, job->width);
        scales[s] = row_scales(at[s].k, type, at[s].j);
    }
    ATTREE_UNROLL(16)
    for (int i = 0; i < rows * squares; i++)
        acc[i] = vf_zero();
    int64_t c = 0;
    for (; c + square_columns(type) <= job->width; c += square_columns(type)) {
        ATTREE_UNROLL(4)
        for (int s = 0; s < squares; s++) {
            ask(&ahead[s], square_lines(type));
            if (starts_block(type, c))
                scales[s] = block_scales(at[s].k, type, at[s].j, c);
        }
        multiply_squares(acc, rows, squares, type, (square_part){fours, scales, job->q + c * BUNDLE_ROWS});
    }
    for (; c < job->width; c += VF_LANES) { /* what is left of the width */
        const int64_t columns = at_most(VF_LANES, job->width - c);
        for (int s = 0; s < squares; s++) {
            vf x[VF_LANES];
            load_transposed(x, type, (key_square){at[s].k, at[s].j, c, columns, all_keys}, scales[s]);
            for (int64_t i = 0; i < columns; i++)
                multiply_column(acc + s, rows, squares, job->q + (c + i) * BUNDLE_ROWS, x[i]);
        }
    }
    const vf scale = vf_all(job->scale);
    ATTREE_UNROLL(4)
    for (int r = 0; r < rows; r++) {
        ATTREE_UNROLL(4)
        for (int s = 0; s < squares; s++)
            vf_store(at[s].scores + r * SCORE_STRIDE, vf_mul(acc[r * squares + s], scale));
    }
}

/* Squares at a time: one, in the order in which keys lie; or more, where not memory is the limit but waiting for the
 * few accumulators, as with one or two rows of narrow numbers. */
ATTREE_INLINE int squares_at_once(const int rows, const int32_t type)
{
    const bool narrow = line_numbers(type) == 64;
    return !narrow || rows > 2 ? 1 : rows == 1 && VF_LANES < ATTREE__LANES ? 4 : 2;
}

/* KEY_SPAN keys. */
ATTREE_INLINE void score_direct_of(const int64_t rows, const int32_t type, const score_job *job)
{
    square at[4];
    for (int s = 0; s < 4; s++) {
        const int64_t j = job->j + s * VF_LANES;
        at[s] = (square){job->k, j, row_ahead(job->k, j), job->scores + s * VF_LANES};
    }
    for (int s = 0; s < 4; s += squares_at_once((int)rows, type))
        if (rows == 1)
            score_squares(1, squares_at_once(1, type), type, job, at + s);
        else if (rows == 2)
            score_squares(2, squares_at_once(2, type), type, job, at + s);
        else if (rows == 3)
            score_squares(3, 1, type, job, at + s);
        else
            score_squares(4, 1, type, job, at + s);
}

/* ---- Keys in panels ---- */

/* Rows of one bundle times KEY_SPAN keys, number after number of which is adjacent for each piece: nothing to
 * transpose. `vecs` vectors of keys at a time. */
ATTREE_INLINE void score_adjacent(const int rows, const int vecs, const int32_t type, const score_job *job)
{
    vf acc[DIRECT_ROWS * 4];
    ATTREE_UNROLL(16)
    for (int i = 0; i < rows * vecs; i++)
        acc[i] = vf_zero();
    for (int64_t c = 0; c < job->width; c++) {
        ATTREE_UNROLL(4)
        for (int v = 0; v < vecs; v++) {
            const int64_t j = job->j + v * VF_LANES;
            attree__prefetch((uintptr_t)row_ahead(job->k, j) +
                             (uintptr_t)(c * job->k->width * attree__dtype_bytes(type)));
            multiply_column(acc + v, rows, vecs, job->q + c * BUNDLE_ROWS, load_adjacent_keys(job->k, type, j, c));
        }
    }
    const vf scale = vf_all(job->scale);
    ATTREE_UNROLL(4)
    for (int r = 0; r < rows; r++) {
        ATTREE_UNROLL(4)
        for (int v = 0; v < vecs; v++)
            vf_store(job->scores + r * SCORE_STRIDE + v * VF_LANES, vf_mul(acc[r * vecs + v], scale));
    }
}

/* KEY_SPAN keys, as score_direct_of. */
ATTREE_INLINE void score_adjacent_of(const int64_t rows, const int32_t type, const score_job *job)
{
    const int vecs = rows > 2 ? 2 : 4;
    score_job part = *job;
    for (int v = 0; v < 4; v += vecs, part.scores += vecs * VF_LANES, part.j += vecs * VF_LANES)
        if (rows == 1)
            score_adjacent(1, 4, type, &part);
        else if (rows == 2)
            score_adjacent(2, 4, type, &part);
        else if (rows == 3)
            score_adjacent(3, 2, type, &part);
        else
            score_adjacent(4, 2, type, &part);
}
