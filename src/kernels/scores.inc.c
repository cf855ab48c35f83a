/* Step 1: a group of query rows times one panel of keys. Keys are in the lanes; the width is the depth of the tile. */

/* Floats between the score rows of a tile; not a multiple of 4 KiB / 4, so that rows do not share cache sets. */
#define SCORE_STRIDE (ATTREE__BLOCK + ATTREE__LANES)

typedef struct score_job {
    const float *q;     /* [D][TILE_ROWS] */
    const float *panel; /* [D][span], the keys' first number */
    int64_t span;
    float *scores; /* row r at scores + r * SCORE_STRIDE */
    int64_t width;
    float scale;
} score_job;

ATTREE_INLINE void score_tile(const int rows, const int vecs, const score_job *job)
{
    vf acc[TILE_ROWS * TILE_VECS];
#pragma GCC unroll 32
    for (int i = 0; i < rows * vecs; i++)
        acc[i] = vf_zero();
    tile_multiply(acc, rows, vecs, (tile_operands){job->q, 1, TILE_ROWS, job->panel, job->span, job->width, 0});
    const vf scale = vf_all(job->scale);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            vf_store(job->scores + r * SCORE_STRIDE + v * VF_LANES, vf_mul(acc[r * vecs + v], scale));
}

/* PANEL keys. Cases above TILE_ROWS never happen; they name a tile that exists. */
static void score_group(int64_t rows, const score_job *job)
{
    switch (rows) {
    case 1: score_tile(1, TILE_VECS, job); break;
    case 2: score_tile(2, TILE_VECS, job); break;
    case 3: score_tile(3, TILE_VECS, job); break;
    case 4: score_tile(4, TILE_VECS, job); break;
    case 5: score_tile(5, TILE_VECS, job); break;
    case 6: score_tile(6, TILE_VECS, job); break;
    case 7: score_tile(TILE_ROWS < 7 ? 1 : 7, TILE_VECS, job); break;
    case 8: score_tile(TILE_ROWS < 8 ? 1 : 8, TILE_VECS, job); break;
    case 9: score_tile(TILE_ROWS < 9 ? 1 : 9, TILE_VECS, job); break;
    case 10: score_tile(TILE_ROWS < 10 ? 1 : 10, TILE_VECS, job); break;
    case 11: score_tile(TILE_ROWS < 11 ? 1 : 11, TILE_VECS, job); break;
    default: score_tile(TILE_ROWS, TILE_VECS, job); break;
    }
}

/* KEY_SPAN keys. */
static void score_span(int64_t rows, const score_job *job)
{
    if (rows == 1)
        score_tile(1, WIDE_VECS, job);
    else if (rows == 2)
        score_tile(2, WIDE_VECS, job);
    else
        for (int64_t i = 0; i < KEY_SPAN; i += PANEL) {
            score_job part = *job;
            part.panel += i;
            part.scores += i;
            score_group(rows, &part);
        }
}
