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

/* Numbers c ... of a row whose elements are adjacent, but for the scale of ATTREE_I8. For types with blocks, c is a
 * multiple of VF_LANES. */
ATTREE_INLINE vf load_unscaled(const void *row, const int32_t type, int64_t c)
{
    switch (type) {
    case ATTREE_I8: return vf_load_i8((const char *)row + c);
    case ATTREE_Q8_0: {
        const char *const block = (const char *)row + c / ATTREE__QUANT_BLOCK * 34;
        return vf_mul(vf_all_f16(block), vf_load_i8(block + 2 + c % ATTREE__QUANT_BLOCK));
    }
    case ATTREE_Q4_0: {
        const char *const block = (const char *)row + c / ATTREE__QUANT_BLOCK * 18;
        const vf halves = vf_load_u4(block + 2 + c % 16, (int)(c % ATTREE__QUANT_BLOCK / 16 * 4));
        return vf_mul(vf_all_f16(block), halves);
    }
    case ATTREE_F8_E4M3: return vf_load_f8((const char *)row + c);
    default: return load_numbers(row, type, c);
    }
}

/* scale: the row's, for ATTREE_I8. */
ATTREE_INLINE vf load_row(const void *row, const int32_t type, int64_t c, const float *scale)
{
    const vf x = load_unscaled(row, type, c);
    return type == ATTREE_I8 ? vf_mul(vf_all(*scale), x) : x;
}

/* The first n of them, then zeros. Reads nothing beyond. Types with blocks have no such tails. */
ATTREE_INLINE vf load_row_first(const void *row, const int32_t type, int64_t c, int64_t n, const float *scale)
{
    if (type == ATTREE_F32 || type == ATTREE_F16 || type == ATTREE_BF16)
        return load_first_numbers(row, type, c, n);
    if (type == ATTREE_Q8_0 || type == ATTREE_Q4_0)
        return n > 0 ? load_row(row, type, c, scale) : vf_zero();
    uint8_t part[VF_LANES] = {0};
    memcpy(part, (const uint8_t *)row + c, (size_t)n);
    return load_row(part, type, 0, scale);
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
