/* The batch of a shape: how many queries and keys each entry has, and where they begin. */
#ifndef ATTREE_BENCH_SEQUENCES_H
#define ATTREE_BENCH_SEQUENCES_H

#include <cstdint>
#include <vector>

#include "shape.h"

namespace bench {

struct Sequences {
    std::vector<std::int64_t> queries, keys;      // of each entry
    std::vector<std::int64_t> q_starts, k_starts; // one more: the queries and keys of all entries before
    std::vector<std::int64_t> distinct;           // entries: the first and the last of those that are alike
    bool causal = false;

    std::int64_t count() const { return static_cast<std::int64_t>(queries.size()); }
    std::int64_t total_queries() const { return q_starts.back(); }
    std::int64_t total_keys() const { return k_starts.back(); }
    std::int64_t longest() const; // keys

    /* The keys that a query of an entry may see are the first so many. */
    std::int64_t visible(std::int64_t entry, std::int64_t query) const;

    /* All pairs of a query and a key that it may see, of one head. */
    double visible_pairs() const;
};

Sequences sequences_of(const Shape &shape);

} // namespace bench

#endif // ATTREE_BENCH_SEQUENCES_H
