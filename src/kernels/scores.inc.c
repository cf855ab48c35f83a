/* Step 1: a group of query rows times one panel of keys. Keys are in the lanes; the width is the depth of the tile. */

/* Floats between the score rows of a tile; not a multiple of 4 KiB / 4, so that rows do not share cache sets. */
#define SCORE_STRIDE (ATTREE__BLOCK + ATTREE__LANES)

typedef struct score_job {
    const float *q;     /* [D][TILE_ROWS] */
    const float *panel; /* [D][PANEL] */
    float *scores;      /* row r at scores + r * SCORE_STRIDE */
    int64_t width;
    float scale;
} score_job;

ATTREE_INLINE void score_tile(const int rows, const score_job *job)
{
    vf acc[TILE_ROWS * TILE_VECS];
#pragma GCC unroll 32
    for (int i = 0; i < rows * TILE_VECS; i++)
        acc[i] = vf_zero();
    tile_multiply(acc, rows, TILE_VECS, (tile_operands){job->q, 1, TILE_ROWS, job->panel, PANEL, job->width});
    const vf scale = vf_all(job->scale);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECS; v++)
            vf_store(job->scores + r * SCORE_STRIDE + v * VF_LANES, vf_mul(acc[r * TILE_VECS + v], scale));
}

/* Cases above TILE_ROWS never happen; they name a tile that exists. */
static void score_group(int64_t rows, const score_job *job)
{
    switch (rows) {
    case 1: score_tile(1, job); break;
    case 2: score_tile(2, job); break;
    case 3: score_tile(3, job); break;
    case 4: score_tile(4, job); break;
    case 5: score_tile(5, job); break;
    case 6: score_tile(6, job); break;
    case 7: score_tile(TILE_ROWS < 7 ? 1 : 7, job); break;
    case 8: score_tile(TILE_ROWS < 8 ? 1 : 8, job); break;
    case 9: score_tile(TILE_ROWS < 9 ? 1 : 9, job); break;
    case 10: score_tile(TILE_ROWS < 10 ? 1 : 10, job); break;
    case 11: score_tile(TILE_ROWS < 11 ? 1 : 11, job); break;
    default: score_tile(TILE_ROWS, job); break;
    }
}
