/* Lengths of the entries of a batch. See sequences.h. */
#include "sequences.h"

#include <algorithm>

namespace bench {

std::int64_t Sequences::longest() const { return *std::max_element(keys.begin(), keys.end()); }

std::int64_t Sequences::visible(std::int64_t entry, std::int64_t query) const
{
    const std::size_t e = static_cast<std::size_t>(entry);
    if (!causal)
        return keys[e];
    return std::clamp<std::int64_t>(keys[e] - queries[e] + query + 1, 0, keys[e]);
}

double Sequences::visible_pairs() const
{
    double pairs = 0.0;
    for (std::int64_t e = 0; e < count(); e++)
        for (std::int64_t i = 0; i < queries[static_cast<std::size_t>(e)]; i++)
            pairs += static_cast<double>(visible(e, i));
    return pairs;
}

Sequences sequences_of(const Shape &shape)
{
    const std::vector<Alike> mix =
        shape.phase == Phase::ragged ? shape.mix : std::vector<Alike>{{1, shape.queries, shape.keys}};
    Sequences all;
    all.q_starts = all.k_starts = {0};
    all.causal = shape.causal;
    for (const Alike &alike : mix) {
        all.distinct.push_back(all.count());
        for (std::int64_t n = 0; n < alike.count; n++) {
            all.queries.push_back(alike.queries);
            all.keys.push_back(alike.keys);
            all.q_starts.push_back(all.q_starts.back() + alike.queries);
            all.k_starts.push_back(all.k_starts.back() + alike.keys);
        }
        if (alike.count > 1)
            all.distinct.push_back(all.count() - 1);
    }
    return all;
}

} // namespace bench
