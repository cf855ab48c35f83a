/* Geometry and cost of a problem. See problem.h. */
#include "problem.h"

#include <algorithm>

#include "element.h"

namespace bench {

attree_args inputs_of(const Problem &problem)
{
    attree_args args{};
    args.size = sizeof args;
    args.q = problem.q;
    args.k = problem.k;
    args.v = problem.v;
    args.mask = problem.mask;
    args.bias = problem.bias;
    return args;
}

attree_strides heads_outside(std::int64_t heads, std::int64_t tokens, std::int64_t width)
{
    return {heads * tokens * width, tokens * width, width, 1};
}

attree_strides heads_inside(std::int64_t heads, std::int64_t tokens, std::int64_t width)
{
    return {tokens * heads * width, width, heads * width, 1};
}

namespace {

/* Pairs of a query and a key that it may see, of one query head and all batch entries. */
double visible_pairs(const attree_desc &desc)
{
    const bool alike = desc.kv_lens == nullptr && desc.q_offsets == nullptr; // all entries of the batch
    double pairs = 0.0;
    if (desc.batch == 0)
        return pairs; // the number of queries means nothing then
    for (std::int64_t b = 0; b < (alike ? 1 : desc.batch); b++)
        for (std::int64_t i = 0; i < desc.q_len; i++) {
            const KeyRange keys = visible_keys(desc, b, i);
            pairs += static_cast<double>(keys.end - keys.first);
        }
    return alike ? pairs * static_cast<double>(desc.batch) : pairs;
}

} // namespace

/* Nothing overflows: attree has accepted desc, and limits to windows, which may be any number, are compared first. */
KeyRange visible_keys(const attree_desc &desc, std::int64_t batch, std::int64_t query)
{
    const std::int64_t kv_len = desc.kv_lens != nullptr ? desc.kv_lens[batch] : desc.kv_len;
    std::int64_t position = query + kv_len - desc.q_len;
    if (desc.q_offsets != nullptr)
        position = query + desc.q_offsets[batch];
    else if ((desc.flags & ATTREE_USE_Q_OFFSET) != 0)
        position = query + desc.q_offset;
    const bool window = (desc.flags & ATTREE_USE_WINDOW) != 0, causal = (desc.flags & ATTREE_CAUSAL) != 0;
    const std::int64_t left = window ? desc.window_left : -1;
    const std::int64_t right = causal ? 0 : window ? desc.window_right : -1;
    KeyRange keys{0, kv_len};
    if (left >= 0 && left < position)
        keys.first = std::min(position - left, kv_len);
    if (right >= 0 && right < kv_len - position)
        keys.end = std::min(position + right + 1, kv_len);
    keys.end = std::max(keys.end, keys.first);
    return keys;
}

double operation_count(const attree_desc &desc)
{
    return 2.0 * static_cast<double>(desc.qk_width + desc.v_width) * visible_pairs(desc) *
           static_cast<double>(desc.q_heads);
}

double kv_bytes(const attree_desc &desc)
{
    const double tokens = static_cast<double>(desc.batch) * static_cast<double>(desc.kv_heads * desc.kv_len);
    const double k = static_cast<double>(desc.qk_width) * static_cast<double>(element_bytes(desc.k_type));
    const double v = static_cast<double>(desc.v_width) * static_cast<double>(element_bytes(desc.v_type));
    return tokens * (k + v);
}

} // namespace bench
