/* The register tile, used twice: scores are query rows times packed keys, values are weight rows times values.
 *
 * acc[r * vecs + v] accumulates factor(r, d) * vector(d, v) for d = 0, 1, 2, ... in this order, so the lanes of one
 * accumulator follow the contract's loops whatever the shape of the tile. rows and vecs are constants at every call. */

/* Columns of a packed slab. */
#define SLAB (SLAB_VECS * VF_LANES)

/* With few rows a tile is wider, so that it has enough independent accumulators to hide the latency of fma: 4 vectors
 * for two or three rows, 8 for one. */
#define WIDE_VECS 4
#define WIDEST_VECS 8

typedef struct tile_operands {
    const float *factor; /* factor(r, d) = factor[r * factor_row + d * factor_step] */
    int64_t factor_row, factor_step;
    const void *row; /* of vectors: vector(d, v) starts with number column + v * VF_LANES of the row d * row_bytes on */
    int64_t row_bytes, column;
    const float *scale; /* of the row d at scale[d], for types with scales of rows */
    int64_t depth;
    lines_ahead ahead; /* what to ask for meanwhile, when vectors are streamed */
} tile_operands;

/* acc += factor * vector for one d, the first. Of factors and vectors, the fewer are loaded first and stay in
 * registers; each of the others is loaded once and used with all of them. */
ATTREE_INLINE void tile_step(vf *acc, const int rows, const int vecs, const int32_t type, const tile_operands *t)
{
    if (rows > vecs) {
        vf vector[SLAB_VECS];
        ATTREE_UNROLL(8)
        for (int v = 0; v < vecs; v++)
            vector[v] = load_row(t->row, type, t->column, v * VF_LANES, t->scale);
        ATTREE_UNROLL(16)
        for (int r = 0; r < rows; r++) {
            const vf factor = vf_all(t->factor[r * t->factor_row]);
            ATTREE_UNROLL(8)
            for (int v = 0; v < vecs; v++)
                acc[r * vecs + v] = vf_fma(factor, vector[v], acc[r * vecs + v]);
        }
        return;
    }
    vf factor[BUNDLE_ROWS];
    ATTREE_UNROLL(16)
    for (int r = 0; r < rows; r++)
        factor[r] = vf_all(t->factor[r * t->factor_row]);
    ATTREE_UNROLL(8)
    for (int v = 0; v < vecs; v++) {
        const vf vector = load_row(t->row, type, t->column, v * VF_LANES, t->scale);
        ATTREE_UNROLL(16)
        for (int r = 0; r < rows; r++)
            acc[r * vecs + v] = vf_fma(factor[r], vector, acc[r * vecs + v]);
    }
}

/* On to the next d. */
ATTREE_INLINE void tile_advance(tile_operands *t, const int32_t type)
{
    t->factor += t->factor_step;
    t->row = (const char *)t->row + t->row_bytes;
    if (attree__dtype_has_row_scales(type))
        t->scale++;
}

/* Vectors in cache. */
ATTREE_INLINE void tile_multiply(vf *acc, const int rows, const int vecs, const int32_t type, tile_operands t)
{
    ATTREE_UNROLL(4) /* fewer instructions for each fma: a core whose other thread is busy issues only half as many */
    for (int64_t d = 0; d < t.depth; d++, tile_advance(&t, type))
        tile_step(acc, rows, vecs, type, &t);
}

/* Vectors that stream in from memory: each step asks for as much as it reads. */
ATTREE_INLINE void tile_multiply_streamed(vf *acc, const int rows, const int vecs, const int32_t type, tile_operands t)
{
    const int64_t line = line_numbers(type);
    for (int64_t d = 0; d < t.depth; d++, tile_advance(&t, type)) {
        ask(&t.ahead, (vecs * VF_LANES + line - 1) / line);
        tile_step(acc, rows, vecs, type, &t);
    }
}

/* A factor with its sign bit set leaves its accumulators as they are, whatever the vector holds. Slower, for few keys.
 */
ATTREE_INLINE void tile_multiply_visible(vf *acc, const int rows, const int vecs, const int32_t type, tile_operands t)
{
    for (int64_t d = 0; d < t.depth; d++, tile_advance(&t, type)) {
        ATTREE_UNROLL(16)
        for (int r = 0; r < rows; r++) {
            const vf factor = vf_all(t.factor[r * t.factor_row]);
            ATTREE_UNROLL(8)
            for (int v = 0; v < vecs; v++) {
                const vf vector = load_row(t.row, type, t.column, v * VF_LANES, t.scale);
                const vf sum = vf_fma(factor, vector, acc[r * vecs + v]);
                acc[r * vecs + v] = vf_replace_negative(sum, acc[r * vecs + v], factor);
            }
        }
    }
}
