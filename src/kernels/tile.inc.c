/* The register tile, used twice: scores are query rows times packed keys, values are weight rows times packed values.
 *
 * acc[r * vecs + v] accumulates factor(r, d) * vector(d, v) for d = 0, 1, 2, ... in this order, so the lanes of one
 * accumulator follow the contract's loops whatever the shape of the tile. rows and vecs are constants at every call. */

/* Columns of a packed panel. */
#define PANEL (TILE_VECS * VF_LANES)

/* With few rows a tile is wider, so that it has enough independent accumulators to hide the latency of fma: 4 vectors for
 * two or three rows, 8 for one. */
#define WIDE_VECS 4
#define WIDEST_VECS 8

/* Keys that the few-rows path packs together. */
#define KEY_SPAN (WIDE_VECS * VF_LANES)

typedef struct tile_operands {
    const float *factor; /* factor(r, d) = factor[r * factor_row + d * factor_step] */
    int64_t factor_row, factor_step;
    const float *vector; /* vector(d, v) starts at vector + d * vector_step + v * VF_LANES */
    int64_t vector_step;
    int64_t depth;
    int64_t ahead; /* wide tiles only: bytes from what they read to what they ask for; 0 is harmless */
} tile_operands;

/* More rows than vectors: the vectors stay in registers while the factors pass. */
ATTREE_INLINE void tile_multiply_tall(vf *acc, const int rows, const int vecs, tile_operands t)
{
    for (int64_t d = 0; d < t.depth; d++) {
        vf vector[TILE_VECS];
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            vector[v] = vf_load(t.vector + v * VF_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const vf factor = vf_all(t.factor[r * t.factor_row]);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                acc[r * vecs + v] = vf_fma(factor, vector[v], acc[r * vecs + v]);
        }
        t.factor += t.factor_step;
        t.vector += t.vector_step;
    }
}

/* At least as many vectors as rows: the other way round. */
ATTREE_INLINE void tile_multiply_wide(vf *acc, const int rows, const int vecs, tile_operands t)
{
    for (int64_t d = 0; d < t.depth; d++) {
        vf factor[TILE_ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            factor[r] = vf_all(t.factor[r * t.factor_row]);
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v += 16 / VF_LANES)
            attree__prefetch((uintptr_t)(t.vector + v * VF_LANES) + (uintptr_t)t.ahead);
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) {
            const vf vector = vf_load(t.vector + v * VF_LANES);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
                acc[r * vecs + v] = vf_fma(factor[r], vector, acc[r * vecs + v]);
        }
        t.factor += t.factor_step;
        t.vector += t.vector_step;
    }
}

ATTREE_INLINE void tile_multiply(vf *acc, const int rows, const int vecs, tile_operands t)
{
    if (rows > vecs)
        tile_multiply_tall(acc, rows, vecs, t);
    else
        tile_multiply_wide(acc, rows, vecs, t);
}

/* The same, but a factor with its sign bit set leaves its accumulators as they are, whatever the vector holds. */
ATTREE_INLINE void tile_multiply_visible(vf *acc, const int rows, const int vecs, tile_operands t)
{
    for (int64_t d = 0; d < t.depth; d++) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const vf factor = vf_all(t.factor[r * t.factor_row]);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++) {
                const vf sum = vf_fma(factor, vf_load(t.vector + v * VF_LANES), acc[r * vecs + v]);
                acc[r * vecs + v] = vf_replace_negative(sum, acc[r * vecs + v], factor);
            }
        }
        t.factor += t.factor_step;
        t.vector += t.vector_step;
    }
}
