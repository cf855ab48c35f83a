/* Packing: queries into groups of TILE_ROWS, keys and values into panels of PANEL columns, all as f32, so that the
 * register tile reads its operands in sequence.
 *
 * Only keys from <= j < to of the block are read; what a panel holds beyond them is zero. Padding takes part in
 * arithmetic whose results are masked or never stored. */

typedef struct key_range {
    int64_t from, to;
} key_range;

ATTREE_INLINE int64_t at_most(int64_t limit, int64_t x) { return x < limit ? x : limit; }

/* n <= VF_LANES numbers that lie apart, then zeros. */
ATTREE_INLINE vf gather_numbers(const void *data, const int32_t type, int64_t index, int64_t stride, int64_t n)
{
    float x[VF_LANES];
    for (int64_t i = 0; i < VF_LANES; i++)
        x[i] = i < n ? attree__load(data, type, index + i * stride) : 0.0f;
    return vf_load(x);
}

/* n <= VF_LANES numbers, adjacent or not, then zeros. */
ATTREE_INLINE vf load_row(const void *data, const int32_t type, int64_t index, int64_t stride, int64_t n)
{
    if (stride != 1)
        return gather_numbers(data, type, index, stride, n);
    return n == VF_LANES ? load_numbers(data, type, index) : load_first_numbers(data, type, index, n);
}

/* Columns c ... c + VF_LANES - 1 of one panel of keys that starts at key j, transposed into panel rows c, c + 1, ... */
ATTREE_INLINE void transpose_keys(float *panel, const attree__rows *k, const int32_t type, int64_t j, key_range keys,
                                  int64_t c, int64_t columns)
{
    for (int64_t v = 0; v < PANEL; v += VF_LANES) {
        vf x[VF_LANES];
#pragma GCC unroll 16
        for (int64_t i = 0; i < VF_LANES; i++) {
            const bool inside = j + v + i >= keys.from && j + v + i < keys.to;
            const int64_t index = (j + v + i) * k->token + c * k->width;
            x[i] = inside ? load_row(k->data, type, index, k->width, columns) : vf_zero();
        }
        vf_transpose(x);
#pragma GCC unroll 16
        for (int64_t i = 0; i < VF_LANES; i++)
            if (i < columns)
                vf_store(panel + (c + i) * PANEL + v, x[i]);
    }
}

/* Keys j ... j + PANEL - 1 into panel[D][PANEL]. */
ATTREE_INLINE void pack_keys_of(float *panel, const attree__rows *k, const int32_t type, int64_t j, key_range keys,
                                int64_t width)
{
    if (k->token == 1 && j >= keys.from && j + PANEL <= keys.to) { /* keys are adjacent: no need to transpose */
        for (int64_t c = 0; c < width; c++)
            for (int64_t v = 0; v < PANEL; v += VF_LANES)
                vf_store(panel + c * PANEL + v, load_numbers(k->data, type, j + v + c * k->width));
        return;
    }
    int64_t c = 0;
    for (; c + VF_LANES <= width; c += VF_LANES)
        transpose_keys(panel, k, type, j, keys, c, VF_LANES);
    if (c < width)
        transpose_keys(panel, k, type, j, keys, c, width - c);
}

static void pack_keys(float *panel, const attree__rows *k, int64_t j, key_range keys, int64_t width)
{
    switch (k->type) {
    case ATTREE_F16: pack_keys_of(panel, k, ATTREE_F16, j, keys, width); break;
    case ATTREE_BF16: pack_keys_of(panel, k, ATTREE_BF16, j, keys, width); break;
    default: pack_keys_of(panel, k, ATTREE_F32, j, keys, width); break;
    }
}

/* Columns e ... e + PANEL - 1 of the values of all keys in the range into panel[key][PANEL], at their keys' places. */
ATTREE_INLINE void pack_values_of(float *panel, const attree__rows *v, const int32_t type, int64_t e, key_range keys,
                                  int64_t width)
{
    for (int64_t j = keys.from; j < keys.to; j++)
        for (int64_t i = 0; i < PANEL; i += VF_LANES) {
            const int64_t left = width - e - i, n = left < 0 ? 0 : at_most(VF_LANES, left);
            vf_store(panel + j * PANEL + i, load_row(v->data, type, j * v->token + (e + i) * v->width, v->width, n));
        }
}

static void pack_values(float *panel, const attree__rows *v, int64_t e, key_range keys, int64_t width)
{
    switch (v->type) {
    case ATTREE_F16: pack_values_of(panel, v, ATTREE_F16, e, keys, width); break;
    case ATTREE_BF16: pack_values_of(panel, v, ATTREE_BF16, e, keys, width); break;
    default: pack_values_of(panel, v, ATTREE_F32, e, keys, width); break;
    }
}

/* Vectors that hold the rows of a group. */
#define ROW_VECS ((TILE_ROWS + VF_LANES - 1) / VF_LANES)

/* Columns c ... c + VF_LANES - 1 of the `rows` rows of a group, transposed into packed[c][TILE_ROWS]. A store may spill
 * into the columns after it, which are written later. */
ATTREE_INLINE void transpose_queries(float *packed, const attree__queries *q, const int32_t type, int64_t first,
                                     int64_t rows, int64_t c, int64_t columns)
{
    vf x[ROW_VECS][VF_LANES];
    for (int v = 0; v < ROW_VECS; v++) {
        for (int64_t i = 0; i < VF_LANES; i++) {
            const int64_t row = first + v * VF_LANES + i;
            const int64_t index = row / q->heads * q->token + row % q->heads * q->head + c * q->width;
            x[v][i] = v * VF_LANES + i < rows ? load_row(q->data, type, index, q->width, columns) : vf_zero();
        }
        vf_transpose(x[v]);
    }
    for (int64_t i = 0; i < columns; i++)
        for (int v = 0; v < ROW_VECS; v++)
            vf_store(packed + (c + i) * TILE_ROWS + v * VF_LANES, x[v][i]);
}

ATTREE_INLINE void pack_queries_of(float *packed, const attree__queries *q, const int32_t type, int64_t width)
{
    for (int64_t r = 0; r < q->rows; r += TILE_ROWS)
        for (int64_t c = 0; c < width; c += VF_LANES)
            transpose_queries(packed + r * width, q, type, q->first + r, at_most(TILE_ROWS, q->rows - r), c,
                              at_most(VF_LANES, width - c));
}

static void pack_queries(float *packed, const attree__queries *q, int64_t qk_width)
{
    switch (q->type) {
    case ATTREE_F16: pack_queries_of(packed, q, ATTREE_F16, qk_width); break;
    case ATTREE_BF16: pack_queries_of(packed, q, ATTREE_BF16, qk_width); break;
    default: pack_queries_of(packed, q, ATTREE_F32, qk_width); break;
    }
}
