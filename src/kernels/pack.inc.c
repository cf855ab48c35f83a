/* Packing: queries into bundles of BUNDLE_ROWS, keys and values into slabs of SLAB columns, all as f32, so that the
 * register tile reads its operands in sequence.
 *
 * Only keys from <= j < to of the block are read; what a slab holds beyond them is zero. Padding takes part in
 * arithmetic whose results are masked or never stored. */

/* Lanes of 32 bits of each key that are transposed at once: of types with blocks, whose codes are not adjacent from
 * block to block, 16 bytes. */
ATTREE_INLINE int square_lanes(const int32_t type) { return attree__dtype_has_blocks(type) ? 4 : VF_LANES; }

/* Columns that are transposed at once. Where bytes hold two numbers, low halves are one square, high ones the next. */
ATTREE_INLINE int64_t square_columns(const int32_t type) { return square_lanes(type) * lane_numbers(type); }

/* Lines in a square of keys; twice as many for types with blocks, whose rows do not start at lines. */
ATTREE_INLINE int64_t square_lines(const int32_t type)
{
    const int64_t unit_numbers = attree__dtypes[type].numbers;
    const int64_t bytes = VF_LANES * square_columns(type) * attree__dtype_bytes(type) / unit_numbers;
    const int64_t lines = bytes > 64 ? bytes / 64 : 1;
    return attree__dtype_has_blocks(type) ? 2 * lines : lines;
}

/* Columns c ... c + columns - 1, which are adjacent, of keys j ... j + VF_LANES - 1; those outside the range `keys` are
 * not read. */
typedef struct key_square {
    const attree__rows *k;
    int64_t j, c, columns;
    key_range keys;
} key_square;

static const key_range all_keys = {0, ATTREE__BLOCK};

/* The scales of keys j ... j + VF_LANES - 1: of their rows, or nothing for types without. */
ATTREE_INLINE vf row_scales(const attree__rows *k, const int32_t type, int64_t j)
{
    return attree__dtype_has_row_scales(type) ? vf_load(k->scale + j) : vf_zero();
}

/* Of their blocks that start at column c. */
ATTREE_INLINE vf block_scales(const attree__rows *k, const int32_t type, int64_t j, int64_t c)
{
    uint16_t halves[VF_LANES];
    const char *const first = attree__row(k, j) + c / ATTREE__QUANT_BLOCK * attree__dtype_bytes(type);
    for (int64_t i = 0; i < VF_LANES; i++)
        memcpy(&halves[i], first + i * k->token, sizeof halves[i]);
    return vf_load_f16(halves);
}

/* Whether blocks start at column c. */
ATTREE_INLINE bool starts_block(const int32_t type, int64_t c)
{
    return attree__dtype_has_blocks(type) && c % ATTREE__QUANT_BLOCK == 0;
}

/* A vector of adjacent numbers from column c on, of types without blocks; of narrow ones, lane_numbers() in each lane.
 */
ATTREE_INLINE vf load_lanes(const char *row, const int32_t type, int64_t c)
{
    return lane_numbers(type) == 1 ? load_integers(row, type, c, 0) : vf_load_bits(row + c * attree__dtype_bytes(type));
}

/* Number n of each lane, of keys with these scales. */
ATTREE_INLINE vf number_of_lanes(vf lanes, const int32_t type, const int n, vf scales)
{
    const vf x = lane_number(lanes, type, n);
    return has_scales(type) ? vf_mul(scales, x) : x;
}

/* Where VF_LANES keys lie, from a column on that is a multiple of square_columns(): in fours, so that few registers
 * hold their addresses. */
typedef struct key_fours {
    const char *at[VF_LANES / 4];
    int64_t token, c;
} key_fours;

ATTREE_INLINE key_fours make_fours(const attree__rows *k, int64_t j)
{
    key_fours fours = {.token = k->token};
    for (int64_t i = 0; i < VF_LANES / 4; i++)
        fours.at[i] = attree__row(k, j) + 4 * i * k->token;
    return fours;
}

/* Of types with blocks: those of column fours->c, in ascending order of columns as below. */
ATTREE_INLINE void load_block_lanes(vf x[4], const int32_t type, key_fours *fours)
{
    const int64_t bytes = attree__dtype_bytes(type), n = fours->c % ATTREE__QUANT_BLOCK;
    const bool two = bytes - BLOCK_CODES < ATTREE__QUANT_BLOCK; /* numbers in a byte */
    const int64_t first = fours->c / ATTREE__QUANT_BLOCK * bytes + BLOCK_CODES + (two ? 0 : n);
    const char *at[VF_LANES / 4];
    for (int64_t i = 0; i < VF_LANES / 4; i++)
        at[i] = fours->at[i] + first;
    vf_load_quarters(x, at, fours->token);
    for (int i = 0; i < 4 && two; i++)
        x[i] = vf_halves(x[i], (int)(n / 16 * 4));
    fours->c += square_columns(type);
}

/* square_columns() columns, transposed: number n of lane i of the rows is number n of x[i], i < square_lanes(). Goes on
 * to the next. */
ATTREE_INLINE void load_lanes_transposed(vf x[VF_LANES], const int32_t type, key_fours *fours)
{
    if (attree__dtype_has_blocks(type)) {
        load_block_lanes(x, type, fours);
        return;
    }
    ATTREE_UNROLL(4)
    for (int64_t i = 0; i < VF_LANES / 4; i++) {
        ATTREE_UNROLL(4)
        for (int64_t n = 0; n < 4; n++)
            x[4 * i + n] = load_lanes(fours->at[i] + n * fours->token, type, 0);
        fours->at[i] += attree__dtype_row_bytes(type, square_columns(type));
    }
    vf_transpose(x);
}

/* VF_LANES columns or fewer: x[i] gets column c + i, with zeros for keys that are not there. scales: of the keys. */
ATTREE_INLINE void load_transposed(vf x[VF_LANES], const int32_t type, key_square s, vf scales)
{
    const char *const first = attree__row(s.k, s.j);
    for (int64_t i = 0; i < VF_LANES; i++) {
        const bool there = s.j + i >= s.keys.from && s.j + i < s.keys.to;
        x[i] = !there                  ? vf_zero()
               : s.columns == VF_LANES ? load_integers(first + i * s.k->token, type, s.c, 0)
                                       : load_first_integers(first + i * s.k->token, type, s.c, s.columns);
    }
    vf_transpose(x);
    if (has_scales(type))
        for (int64_t i = 0; i < VF_LANES; i++)
            x[i] = vf_mul(scales, x[i]);
}

ATTREE_INLINE float scale_of(const attree__rows *rows, int64_t j) { return rows->scale ? rows->scale[j] : 0.0f; }

/* The keys `at`, number by number, for any strides; zero outside of the range `keys`. */
static void gather_keys(float *slab, const attree__rows *k, key_range at, key_range keys, int64_t width)
{
    for (int64_t c = 0; c < width; c++)
        for (int64_t j = at.from; j < at.to; j++) {
            const bool inside = j >= keys.from && j < keys.to;
            slab[c * SLAB + j - at.from] =
                inside ? attree__row_number(attree__row(k, j), k->type, k->width, c, scale_of(k, j)) : 0.0f;
        }
}

/* Whether the same number of key after key is adjacent: there is no need to transpose. */
ATTREE_INLINE bool adjacent_keys(const attree__rows *k, const int32_t type)
{
    return k->token == attree__dtype_bytes(type) && !attree__dtype_has_blocks(type);
}

/* Number c of keys j ... j + VF_LANES - 1, which are in one piece. */
ATTREE_INLINE vf load_adjacent_keys(const attree__rows *k, const int32_t type, int64_t j, int64_t c)
{
    const vf x = load_integers(attree__row(k, j), type, c * k->width, 0);
    return attree__dtype_has_row_scales(type) ? vf_mul(vf_load(k->scale + j), x) : x;
}

/* Which keys to pack: j ... j + SLAB - 1, as far as they are in the range. */
typedef struct key_job {
    const attree__rows *k;
    int64_t j;
    key_range keys;
    int64_t width;
    bool asked; /* somebody else asks for keys in advance */
} key_job;

/* All of VF_LANES keys from key j on. */
ATTREE_INLINE void pack_whole_keys(float *slab, const int32_t type, const key_job *job, int64_t j)
{
    const attree__rows *const k = job->k;
    const int64_t width = job->width;
    lines_ahead ahead = lines_of(k, type, row_ahead(k, j), width);
    const int lanes = lane_numbers(type);
    vf scales = row_scales(k, type, j);
    key_fours fours = make_fours(k, j);
    int64_t c = 0;
    for (; c + square_columns(type) <= width; c += square_columns(type)) {
        if (!job->asked)
            ask(&ahead, square_lines(type));
        if (starts_block(type, c))
            scales = block_scales(k, type, j, c);
        vf x[VF_LANES];
        load_lanes_transposed(x, type, &fours);
        ATTREE_UNROLL(16)
        for (int64_t i = 0; i < square_lanes(type); i++) {
            ATTREE_UNROLL(4)
            for (int n = 0; n < lanes; n++)
                vf_store(slab + (c + i * lanes + n) * SLAB, number_of_lanes(x[i], type, n, scales));
        }
    }
    for (; c < width; c += VF_LANES) {
        const int64_t columns = at_most(VF_LANES, width - c);
        vf x[VF_LANES];
        load_transposed(x, type, (key_square){k, j, c, columns, all_keys}, scales);
        for (int64_t i = 0; i < columns; i++)
            vf_store(slab + (c + i) * SLAB, x[i]);
    }
}

/* The scales of those of VF_LANES keys that are there, for column c: of their rows, or of their blocks. */
ATTREE_INLINE vf scales_there(const attree__rows *k, const int32_t type, int64_t j, int64_t c, key_range keys)
{
    float scales[VF_LANES] = {0.0f};
    for (int64_t i = 0; i < VF_LANES; i++)
        if (j + i >= keys.from && j + i < keys.to) {
            uint16_t half = 0;
            if (attree__dtype_has_blocks(type))
                memcpy(&half, block_of(attree__row(k, j + i), type, c, 0), sizeof half);
            scales[i] = attree__dtype_has_row_scales(type) ? k->scale[j + i] : attree__from_f16(half);
        }
    return vf_load(scales);
}

/* Those of VF_LANES keys from key j on that are there; zeros for the others. */
ATTREE_INLINE void pack_some_keys(float *slab, const int32_t type, const key_job *job, int64_t j)
{
    vf scales = attree__dtype_has_row_scales(type) ? scales_there(job->k, type, j, 0, job->keys) : vf_zero();
    for (int64_t c = 0; c < job->width; c += VF_LANES) {
        if (starts_block(type, c))
            scales = scales_there(job->k, type, j, c, job->keys);
        const int64_t columns = at_most(VF_LANES, job->width - c);
        vf x[VF_LANES];
        load_transposed(x, type, (key_square){job->k, j, c, columns, job->keys}, scales);
        for (int64_t i = 0; i < columns; i++)
            vf_store(slab + (c + i) * SLAB, x[i]);
    }
}

/* Into slab[D][SLAB]. */
ATTREE_INLINE void pack_keys_of(float *slab, const int32_t type, const key_job *job)
{
    const attree__rows *const k = job->k;
    for (int64_t v = 0; v < SLAB; v += VF_LANES) {
        const key_range at = {job->j + v, job->j + v + VF_LANES};
        const bool whole = at.from >= job->keys.from && at.to <= job->keys.to;
        const bool none = at.from >= job->keys.to || at.to <= job->keys.from;
        if (whole && adjacent_keys(k, type))
            for (int64_t c = 0; c < job->width; c++)
                vf_store(slab + v + c * SLAB, load_adjacent_keys(k, type, at.from, c));
        else if (none)
            for (int64_t c = 0; c < job->width; c++)
                vf_store(slab + v + c * SLAB, vf_zero());
        else if (whole && (k->width == 1 || job->width <= 1))
            pack_whole_keys(slab + v, type, job, at.from);
        else if (k->width == 1 || job->width <= 1)
            pack_some_keys(slab + v, type, job, at.from);
        else
            gather_keys(slab + v, k, at, job->keys, job->width);
    }
}

/* Where packed values go: columns e ... e + SLAB - 1 of key j, e a multiple of SLAB, start at
 * data + e / SLAB * slab + (j - first) * key. */
typedef struct packed_values {
    float *data;
    int64_t first, slab, key;
} packed_values;

ATTREE_INLINE float *packed_value(const packed_values *to, int64_t j, int64_t e)
{
    return to->data + e / SLAB * to->slab + (j - to->first) * to->key;
}

/* Which values to pack: columns ... of the keys in the range. */
typedef struct values_job {
    const attree__rows *v;
    key_range keys, columns;
} values_job;

/* Number by number, for any strides. */
static void gather_values(const packed_values *to, const values_job *job)
{
    const attree__rows *const v = job->v;
    const int64_t width = job->columns.to - job->columns.from;
    for (int64_t j = job->keys.from; j < job->keys.to; j++)
        for (int64_t e = 0; e < round_up(width, SLAB); e++) {
            const char *const row = attree__row(v, j);
            packed_value(to, j, e)[e % SLAB] =
                e < width ? attree__row_number(row, v->type, v->width, job->columns.from + e, scale_of(v, j)) : 0.0f;
        }
}

/* Rows with adjacent columns; beyond them come zeros. */
ATTREE_INLINE void pack_values_of(const packed_values *to, const int32_t type, const values_job *job)
{
    const attree__rows *const v = job->v;
    const int64_t first = job->columns.from, width = job->columns.to - first;
    const int64_t line = line_numbers(type);
    const bool gaps = !without_gaps(v, width);
    for (int64_t j = job->keys.from; j < job->keys.to; j++) {
        const char *const row = attree__row(v, j);
        const float *const scale = attree__dtype_has_row_scales(type) ? v->scale + j : NULL;
        const uintptr_t later = (uintptr_t)row_ahead(v, j) + (uintptr_t)attree__dtype_row_bytes(type, first);
        lines_ahead ahead = lines_from(later, v->token, attree__dtype_row_bytes(type, width), gaps);
        float *at = packed_value(to, j, 0);
        int64_t e = 0;
        for (; e + SLAB <= width; e += SLAB, at += to->slab) {
            if (e % line == 0)
                ask(&ahead, SLAB > line ? SLAB / line : 1);
            for (int64_t i = 0; i < SLAB; i += VF_LANES)
                vf_store(at + i, load_row(row, type, first + e, i, scale));
        }
        for (int64_t i = 0; i < SLAB && e < width; i += VF_LANES) {
            const int64_t left = width - e - i, n = left < 0 ? 0 : at_most(VF_LANES, left);
            const vf x = load_first_integers(row, type, first + e + i, n);
            vf_store(at + i, attree__dtype_has_row_scales(type) ? vf_mul(vf_all(*scale), x) : x);
        }
    }
}

static void pack_values(const packed_values *to, const values_job *job)
{
    if (job->v->width != 1 && job->columns.to > 1) {
        gather_values(to, job);
        return;
    }
    rows_of(job->v->type)->pack_values(to, job);
}

/* Vectors that hold the rows of a bundle. */
#define ROW_VECS ((BUNDLE_ROWS + VF_LANES - 1) / VF_LANES)

ATTREE_INLINE int64_t query_index(const attree__queries *q, int64_t n)
{
    const attree__query_row row = attree__query_row_at(n, q->heads);
    return row.query * q->token + row.head * q->head;
}

/* Rows of one register tile, whose columns are adjacent: row i from number starts[i] of data on. */
typedef struct query_bundle {
    const void *data;
    int64_t starts[BUNDLE_ROWS], rows;
} query_bundle;

/* n <= VF_LANES adjacent numbers, then zeros. */
ATTREE_INLINE vf load_query(const void *data, const int32_t type, int64_t index, int64_t n)
{
    return n == VF_LANES ? load_numbers(data, type, index) : load_first_numbers(data, type, index, n);
}

/* Columns c ... c + columns - 1, transposed into packed[c][BUNDLE_ROWS]. A store may spill into the columns after it,
 * which are written later. */
ATTREE_INLINE void transpose_queries(float *packed, const int32_t type, const query_bundle *bundle, int64_t c,
                                     int64_t columns)
{
    vf x[ROW_VECS][VF_LANES];
    for (int v = 0; v < ROW_VECS; v++) {
        for (int64_t i = 0; i < VF_LANES; i++) {
            const int64_t row = v * VF_LANES + i;
            x[v][i] = row < bundle->rows ? load_query(bundle->data, type, bundle->starts[row] + c, columns) : vf_zero();
        }
        vf_transpose(x[v]);
    }
    for (int64_t i = 0; i < columns; i++)
        for (int v = 0; v < ROW_VECS; v++)
            vf_store(packed + (c + i) * BUNDLE_ROWS + v * VF_LANES, x[v][i]);
}

/* Asks for a row of the next bundle; it need not exist. */
ATTREE_INLINE void ask_query(const attree__queries *q, const int32_t type, int64_t row, int64_t width)
{
    const int64_t bytes = attree__dtype_bytes(type);
    const uintptr_t start = (uintptr_t)q->data + (uintptr_t)(query_index(q, row) * bytes);
    lines_ahead ahead = lines_from(start, 0, width * bytes, true);
    ask(&ahead, (width * bytes + 63) / 64);
}

ATTREE_INLINE void pack_queries_of(float *packed, const attree__queries *q, const int32_t type, int64_t width)
{
    for (int64_t r = 0; r < q->rows; r += BUNDLE_ROWS) {
        query_bundle bundle = {.data = q->data, .rows = at_most(BUNDLE_ROWS, q->rows - r)};
        for (int64_t i = 0; i < bundle.rows; i++) {
            bundle.starts[i] = query_index(q, q->first + r + i);
            ask_query(q, type, q->first + r + i + BUNDLE_ROWS, width);
        }
        int64_t c = 0;
        for (; c + VF_LANES <= width; c += VF_LANES)
            transpose_queries(packed + r * width, type, &bundle, c, VF_LANES);
        if (c < width)
            transpose_queries(packed + r * width, type, &bundle, c, width - c);
    }
}

/* Query rows, number by number, for any strides. */
static void gather_queries(float *packed, const attree__queries *q, int64_t width)
{
    for (int64_t r = 0; r < round_up(q->rows, BUNDLE_ROWS); r++) {
        float *const to = packed + r / BUNDLE_ROWS * BUNDLE_ROWS * width + r % BUNDLE_ROWS;
        for (int64_t c = 0; c < width; c++)
            to[c * BUNDLE_ROWS] =
                r < q->rows ? attree__load(q->data, q->type, query_index(q, q->first + r) + c * q->width) : 0.0f;
    }
}

static void pack_queries(float *packed, const attree__queries *q, int64_t qk_width)
{
    if (q->width != 1 && qk_width > 1) {
        gather_queries(packed, q, qk_width);
        return;
    }
    rows_of(q->type)->pack_queries(packed, q, qk_width);
}
