/* Vectors of numbers of any element type, as f32.
 *
 * A type is a constant wherever it is an argument, so that a switch over types costs nothing. The switches are made
 * from the list of types: one that has no section here does not compile. */

/* ---- A section for each type ----
 *
 * load_: VF_LANES numbers, without scales, from the unit at `at` on; of a block, whose codes start there, from its
 * number n on. LANE_: how many numbers share a lane of 32 bits where keys are transposed: narrow ones are transposed as
 * they lie and become f32 after, with a half or a quarter of the shuffles. (f16 does not gain: its conversion wants
 * them side by side.) lane_: number n of each lane, where there
 * are several. store_: the other way, rounded; for float types. NaN must be the canonical one. */

#define LANE_f32 1
ATTREE_INLINE vf load_f32(const void *at, int64_t n) { return vf_load((const float *)at + n); }
ATTREE_INLINE vf lane_f32(vf lanes, const int n) { return (void)n, lanes; }
ATTREE_INLINE void store_f32(void *at, vf x) { vf_store(at, x); }

#define LANE_f16 1
ATTREE_INLINE vf load_f16(const void *at, int64_t n) { return vf_load_f16((const uint16_t *)at + n); }
ATTREE_INLINE vf lane_f16(vf lanes, const int n) { return (void)n, lanes; }
ATTREE_INLINE void store_f16(void *at, vf x) { vf_store_f16(at, x); }

#define LANE_bf16 2
ATTREE_INLINE vf load_bf16(const void *at, int64_t n) { return vf_load_bf16((const uint16_t *)at + n); }
ATTREE_INLINE vf lane_bf16(vf lanes, const int n) { return vf_bf16_of(lanes, n); }
ATTREE_INLINE void store_bf16(void *at, vf x) { vf_store_bf16(at, x); }

#define LANE_i8 4
ATTREE_INLINE vf load_i8(const void *at, int64_t n) { return vf_load_i8((const char *)at + n); }
ATTREE_INLINE vf lane_i8(vf lanes, const int n) { return vf_i8_of(lanes, n); }

#define LANE_q8_0 4
ATTREE_INLINE vf load_q8_0(const void *at, int64_t n) { return vf_load_i8((const char *)at + n); }
ATTREE_INLINE vf lane_q8_0(vf lanes, const int n) { return vf_i8_of(lanes, n); }

#define LANE_q4_0 4 /* low halves of 16 bytes, then high ones */
ATTREE_INLINE vf load_q4_0(const void *at, int64_t n)
{
    return vf_load_u4((const char *)at + n % 16, (int)(n / 16 * 4));
}
ATTREE_INLINE vf lane_q4_0(vf lanes, const int n) { return vf_u4_of(lanes, n); }

#define LANE_f8 4
ATTREE_INLINE vf load_f8(const void *at, int64_t n) { return vf_load_f8((const char *)at + n); }
ATTREE_INLINE vf lane_f8(vf lanes, const int n) { return vf_f8_of(lanes, n); }

#define LANE_f8_e5m2 4
ATTREE_INLINE vf load_f8_e5m2(const void *at, int64_t n) { return vf_load_e5m2((const char *)at + n); }
ATTREE_INLINE vf lane_f8_e5m2(vf lanes, const int n) { return vf_e5m2_of(lanes, n); }

/* ---- By the type ---- */

#define LOAD(TYPE, name, ...)                                                                                          \
    case ATTREE_##TYPE: return load_##name(at, n);

ATTREE_INLINE vf load_from(const void *at, const int32_t type, int64_t n)
{
    switch ((attree_dtype)type) {
        ATTREE__DTYPES(LOAD)
    }
    return vf_zero();
}

#define LANE(TYPE, name, ...) LANE_##name,

/* Numbers of a row that share a lane where keys are transposed. */
ATTREE_INLINE int lane_numbers(const int32_t type)
{
    static const int numbers[] = {ATTREE__DTYPES(LANE)};
    return numbers[type];
}

#define NUMBER(TYPE, name, ...)                                                                                        \
    case ATTREE_##TYPE: return lane_##name(lanes, n);

/* Number n of each lane. */
ATTREE_INLINE vf lane_number(vf lanes, const int32_t type, const int n)
{
    if (lane_numbers(type) == 1)
        return lanes;
    switch ((attree_dtype)type) {
        ATTREE__DTYPES(NUMBER)
    }
    return lanes;
}

#define STORE(TYPE, name, ...)                                                                                         \
    case ATTREE_##TYPE: store_##name(at, x); break;

ATTREE_INLINE void store_at(void *at, const int32_t type, vf x)
{
    switch (type) {
        ATTREE__FLOAT_DTYPES(STORE)
    }
}

/* ---- Arrays of float types ---- */

ATTREE_INLINE vf load_numbers(const void *data, const int32_t type, int64_t index)
{
    return load_from((const char *)data + index * attree__dtype_bytes(type), type, 0);
}

/* The first n numbers, 0 <= n <= VF_LANES, then zeros. Reads nothing beyond. Also of other types without blocks. */
ATTREE_INLINE vf load_first_numbers(const void *data, const int32_t type, int64_t index, int64_t n)
{
    const int64_t bytes = attree__dtype_bytes(type);
    if (bytes == (int64_t)sizeof(float))
        return vf_load_first((const float *)data + index, n);
    uint16_t part[VF_LANES] = {0};
    if (n > 0)
        memcpy(part, (const char *)data + index * bytes, (size_t)(n * bytes));
    return load_numbers(part, type, 0);
}

ATTREE_INLINE void store_numbers(void *data, const int32_t type, int64_t index, vf x)
{
    store_at((char *)data + index * attree__dtype_bytes(type), type, x);
}

ATTREE_INLINE void store_first_numbers(void *data, const int32_t type, int64_t index, int64_t n, vf x)
{
    const int64_t bytes = attree__dtype_bytes(type);
    float whole[VF_LANES];
    store_at(whole, type, x);
    memcpy((char *)data + index * bytes, whole, (size_t)(n * bytes));
}

/* ---- Rows of keys and values, of any type ---- */

/* Numbers of a row in a cache line, or, of types with blocks, about as many. */
ATTREE_INLINE int64_t line_numbers(const int32_t type)
{
    return attree__dtype_has_blocks(type) ? 64 : 64 / attree__dtype_bytes(type);
}

/* Types whose numbers are integers times a scale, of the row or of the block. */
ATTREE_INLINE bool has_scales(const int32_t type) { return attree__dtypes[type].scales != ATTREE__NO_SCALE; }

/* The block of a row that has number column + offset. Of the two, column is a multiple of a block, or column + offset
 * is in the block of column: so that what offset, a constant, changes can be worked out when this is compiled. */
ATTREE_INLINE const char *block_of(const void *row, const int32_t type, int64_t column, int64_t offset)
{
    const int64_t bytes = attree__dtype_bytes(type), blocks = offset / ATTREE__QUANT_BLOCK;
    return (const char *)row + column / ATTREE__QUANT_BLOCK * bytes + blocks * bytes;
}

/* Bytes of a block before its codes: the scale. */
#define BLOCK_CODES 2

/* Numbers column + offset ... of a row whose elements are adjacent, without their scales. column and offset are
 * multiples of VF_LANES for types with blocks. */
ATTREE_INLINE vf load_integers(const void *row, const int32_t type, int64_t column, int64_t offset)
{
    if (!attree__dtype_has_blocks(type))
        return load_numbers(row, type, column + offset);
    const int64_t n = column % ATTREE__QUANT_BLOCK + offset % ATTREE__QUANT_BLOCK;
    return load_from(block_of(row, type, column, offset) + BLOCK_CODES, type, n);
}

/* The same with their scales; scale is the row's, for types with scales of rows. */
ATTREE_INLINE vf load_row(const void *row, const int32_t type, int64_t column, int64_t offset, const float *scale)
{
    const vf x = load_integers(row, type, column, offset);
    if (attree__dtype_has_row_scales(type))
        return vf_mul(vf_all(*scale), x);
    return has_scales(type) ? vf_mul(vf_all_f16(block_of(row, type, column, offset)), x) : x;
}

/* The first n of the numbers from c on without their scales, then zeros. Reads nothing beyond. Types with blocks have
 * no such tails: n = 0. */
ATTREE_INLINE vf load_first_integers(const void *row, const int32_t type, int64_t c, int64_t n)
{
    return attree__dtype_has_blocks(type) ? vf_zero() : load_first_numbers(row, type, c, n);
}

/* ---- What is done with rows of one type ---- */

struct key_job;
struct packed_values;
struct values_job;
struct score_job;
struct value_job;
struct strip;
struct term_row;

typedef struct row_kernels {
    int64_t direct_rows;       /* so many query rows are scored without packing keys first */
    int64_t direct_value_rows; /* and so many fold values where they lie */
    void (*pack_keys)(float *slab, const struct key_job *job); /* of adjacent columns */
    void (*pack_values)(const struct packed_values *to, const struct values_job *job);
    void (*score_direct)(int64_t rows, const struct score_job *job);                    /* KEY_SPAN keys */
    void (*score_panels)(int64_t rows, const struct score_job *job);                    /* of adjacent keys */
    int64_t (*fold_values)(int64_t rows, int64_t columns, const struct value_job *job); /* returns how many */

    /* Of float types alone. */
    void (*interleaved_scores)(const struct strip *strips, int32_t count); /* of several blocks in turn */
    void (*interleaved_values)(const struct strip *const *strips, int32_t count);
    void (*pack_queries)(float *packed, const attree__queries *q, int64_t width);
    void (*add_bias)(const attree__pair_source *p, const struct term_row *row);
    void (*divide)(void *o, const float *u, float l, int64_t v_width);
} row_kernels;

static const row_kernels *rows_of(int32_t type);
