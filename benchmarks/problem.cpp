/* Geometry and cost of a problem. See problem.h. */
#include "problem.h"

#include <algorithm>

#include "element.h"

namespace bench {

attree_strides heads_outside(std::int64_t heads, std::int64_t tokens, std::int64_t width)
{
    return {heads * tokens * width, tokens * width, width, 1};
}

attree_strides heads_inside(std::int64_t heads, std::int64_t tokens, std::int64_t width)
{
    return {tokens * heads * width, width, heads * width, 1};
}

namespace {

/* The position of query 0 among the keys. */
std::int64_t first_position(const attree_desc &desc)
{
    return (desc.flags & ATTREE_USE_Q_OFFSET) != 0 ? desc.q_offset : desc.kv_len - desc.q_len;
}

/* Pairs of a query and a key that it may see, of one head. */
double visible_pairs(const attree_desc &desc)
{
    const double keys = static_cast<double>(desc.kv_len);
    if ((desc.flags & ATTREE_CAUSAL) == 0)
        return static_cast<double>(desc.q_len) * keys;
    /* Query i sees position + i + 1 keys, but at least 0 and at most K: a ramp from query `from` to query `to`. */
    const std::int64_t position = first_position(desc);
    const std::int64_t from = std::clamp<std::int64_t>(-position, 0, desc.q_len);
    const std::int64_t to = std::clamp(desc.kv_len - position, from, desc.q_len);
    const double ramp = static_cast<double>(to - from) * (static_cast<double>(2 * position + from + to + 1)) / 2.0;
    return ramp + static_cast<double>(desc.q_len - to) * keys;
}

} // namespace

KeyRange visible_keys(const attree_desc &desc, std::int64_t query)
{
    if ((desc.flags & ATTREE_CAUSAL) == 0)
        return {0, desc.kv_len};
    return {0, std::clamp<std::int64_t>(first_position(desc) + query + 1, 0, desc.kv_len)};
}

double operation_count(const attree_desc &desc)
{
    return 2.0 * static_cast<double>(desc.qk_width + desc.v_width) * visible_pairs(desc) *
           static_cast<double>(desc.batch * desc.q_heads);
}

double kv_bytes(const attree_desc &desc)
{
    const double tokens = static_cast<double>(desc.batch) * static_cast<double>(desc.kv_heads * desc.kv_len);
    const double k = static_cast<double>(desc.qk_width) * static_cast<double>(element_bytes(desc.k_type));
    const double v = static_cast<double>(desc.v_width) * static_cast<double>(element_bytes(desc.v_type));
    return tokens * (k + v);
}

} // namespace bench
