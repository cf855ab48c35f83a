/* Packing: keys and values into panels of PANEL columns, so that the register tile reads its vectors in sequence.
 *
 * Only keys from <= j < to of the block are read; what a panel holds beyond them is zero. Padding takes part in arithmetic
 * whose results are masked or never stored. */

typedef struct key_range {
    int64_t from, to;
} key_range;

ATTREE_INLINE int64_t at_most(int64_t limit, int64_t x)
{
    return x < limit ? x : limit;
}

/* Columns c ... c + VF_LANES - 1 of VF_LANES keys, starting at key j, transposed into panel rows c, c + 1, ... */
ATTREE_INLINE void transpose_keys(float *panel, const attree__rows *k, int64_t j, key_range keys, const int64_t columns)
{
    vf x[VF_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < VF_LANES; i++) {
        const bool inside = j + i >= keys.from && j + i < keys.to;
        const float *row = k->data + (j + i) * k->token;
        x[i] = !inside ? vf_zero() : columns == VF_LANES ? vf_load(row) : vf_load_first(row, columns);
    }
    vf_transpose(x);
#pragma GCC unroll 16
    for (int i = 0; i < VF_LANES; i++)
        if (i < columns)
            vf_store(panel + i * PANEL, x[i]);
}

/* Keys j ... j + PANEL - 1 into panel[D][PANEL]. */
static void pack_keys(float *panel, const attree__rows *k, int64_t j, key_range keys, int64_t width)
{
    if (k->width == 1) {
        for (int v = 0; v < TILE_VECS; v++) {
            int64_t c = 0;
            for (; c + VF_LANES <= width; c += VF_LANES) {
                const attree__rows columns = {k->data + c, k->token, 1};
                transpose_keys(panel + c * PANEL + v * VF_LANES, &columns, j + v * VF_LANES, keys, VF_LANES);
            }
            const attree__rows columns = {k->data + c, k->token, 1};
            if (c < width)
                transpose_keys(panel + c * PANEL + v * VF_LANES, &columns, j + v * VF_LANES, keys, width - c);
        }
        return;
    }
    const bool adjacent = k->token == 1 && j >= keys.from && j + PANEL <= keys.to;
    for (int64_t c = 0; c < width; c++) {
        const float *column = k->data + c * k->width;
        if (adjacent) {
            for (int v = 0; v < TILE_VECS; v++)
                vf_store(panel + c * PANEL + v * VF_LANES, vf_load(column + j + v * VF_LANES));
            continue;
        }
        for (int64_t i = 0; i < PANEL; i++)
            panel[c * PANEL + i] = j + i >= keys.from && j + i < keys.to ? column[(j + i) * k->token] : 0.0f;
    }
}

/* Columns e ... e + PANEL - 1 of the values of all keys in the range into panel[key][PANEL], at their keys' places. */
static void pack_values(float *panel, const attree__rows *v, int64_t e, key_range keys, int64_t width)
{
    for (int64_t j = keys.from; j < keys.to; j++) {
        const float *row = v->data + j * v->token;
        float *to = panel + j * PANEL;
        if (v->width == 1) {
            for (int i = 0; i < PANEL; i += VF_LANES) {
                const int64_t left = width - e - i;
                vf_store(to + i, left >= VF_LANES ? vf_load(row + e + i) : vf_load_first(row + e + i, left < 0 ? 0 : left));
            }
            continue;
        }
        for (int64_t i = 0; i < PANEL; i++)
            to[i] = e + i < width ? row[(e + i) * v->width] : 0.0f;
    }
}
