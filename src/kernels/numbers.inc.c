/* Vectors of numbers of any element type, as f32. type is a constant at every call; index counts elements. */

ATTREE_INLINE vf load_numbers(const void *data, const int32_t type, int64_t index)
{
    switch (type) {
    case ATTREE_F16: return vf_load_f16((const uint16_t *)data + index);
    case ATTREE_BF16: return vf_load_bf16((const uint16_t *)data + index);
    default: return vf_load((const float *)data + index);
    }
}

/* The first n numbers, 0 <= n <= VF_LANES, then zeros. Reads nothing beyond. */
ATTREE_INLINE vf load_first_numbers(const void *data, const int32_t type, int64_t index, int64_t n)
{
    if (type == ATTREE_F32)
        return vf_load_first((const float *)data + index, n);
    uint16_t part[VF_LANES] = {0};
    memcpy(part, (const uint16_t *)data + index, (size_t)n * sizeof *part);
    return load_numbers(part, type, 0);
}

/* ---- Rows of keys and values, of any type ---- */

/* Numbers of a row in a cache line; of types with blocks, a few less than there are. */
ATTREE_INLINE int64_t line_numbers(const int32_t type)
{
    return type == ATTREE_F32 ? 16 : type == ATTREE_F16 || type == ATTREE_BF16 ? 32 : 64;
}

/* Types whose numbers are integers times a scale, of the row or of the block. */
ATTREE_INLINE bool has_scales(const int32_t type) { return type == ATTREE_I8 || attree__dtype_has_blocks(type); }

/* The block of a row that has number column + offset. Of the two, column is a multiple of a block, or column + offset
 * is in the block of column: so that what offset, a constant, changes can be worked out when this is compiled. */
ATTREE_INLINE const char *block_of(const void *row, const int32_t type, int64_t column, int64_t offset)
{
    const int64_t bytes = attree__dtype_bytes(type), blocks = offset / ATTREE__QUANT_BLOCK;
    return (const char *)row + column / ATTREE__QUANT_BLOCK * bytes + blocks * bytes;
}

/* Numbers column + offset ... of a row whose elements are adjacent, without their scales. column and offset are
 * multiples of VF_LANES for types with blocks. */
ATTREE_INLINE vf load_integers(const void *row, const int32_t type, int64_t column, int64_t offset)
{
    const int64_t c = column + offset, place = column % ATTREE__QUANT_BLOCK + offset % ATTREE__QUANT_BLOCK;
    switch (type) {
    case ATTREE_I8: return vf_load_i8((const char *)row + c);
    case ATTREE_Q8_0: return vf_load_i8(block_of(row, type, column, offset) + 2 + place);
    case ATTREE_Q4_0: return vf_load_u4(block_of(row, type, column, offset) + 2 + place % 16, (int)(place / 16 * 4));
    case ATTREE_F8_E4M3: return vf_load_f8((const char *)row + c);
    default: return load_numbers(row, type, c);
    }
}

/* The same with their scales; scale is the row's, for ATTREE_I8. */
ATTREE_INLINE vf load_row(const void *row, const int32_t type, int64_t column, int64_t offset, const float *scale)
{
    const vf x = load_integers(row, type, column, offset);
    if (type == ATTREE_I8)
        return vf_mul(vf_all(*scale), x);
    return has_scales(type) ? vf_mul(vf_all_f16(block_of(row, type, column, offset)), x) : x;
}

/* The first n of the numbers from c on without their scales, then zeros. Reads nothing beyond. Types with blocks have
 * no such tails. */
ATTREE_INLINE vf load_first_integers(const void *row, const int32_t type, int64_t c, int64_t n)
{
    if (type == ATTREE_F32 || type == ATTREE_F16 || type == ATTREE_BF16)
        return load_first_numbers(row, type, c, n);
    uint8_t part[VF_LANES] = {0};
    if (n > 0 && !attree__dtype_has_blocks(type))
        memcpy(part, (const uint8_t *)row + c, (size_t)n);
    return load_integers(part, attree__dtype_has_blocks(type) ? ATTREE_I8 : type, 0, 0);
}

/* Rounds to the type. NaN must be the canonical one. */
ATTREE_INLINE void store_numbers(void *data, const int32_t type, int64_t index, vf x)
{
    switch (type) {
    case ATTREE_F16: vf_store_f16((uint16_t *)data + index, x); break;
    case ATTREE_BF16: vf_store_bf16((uint16_t *)data + index, x); break;
    default: vf_store((float *)data + index, x); break;
    }
}

ATTREE_INLINE void store_first_numbers(void *data, const int32_t type, int64_t index, int64_t n, vf x)
{
    float whole[VF_LANES];
    store_numbers(whole, type, 0, x);
    if (type == ATTREE_F32)
        memcpy((float *)data + index, whole, (size_t)n * sizeof(float));
    else
        memcpy((uint16_t *)data + index, whole, (size_t)n * sizeof(uint16_t));
}
