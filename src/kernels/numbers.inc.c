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
