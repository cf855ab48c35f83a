/* Attention over a cache in double precision, written to be obviously right. It knows nothing of pages and panels. */
#ifndef ATTREE_BENCH_CACHE_REFERENCE_H
#define ATTREE_BENCH_CACHE_REFERENCE_H

#include <cstdint>
#include <vector>

#include "sequences.h"
#include "shape.h"

namespace bench {

/* What one row of the output should be. */
struct CacheRow {
    std::int64_t entry = 0, head = 0, query = 0;
    std::vector<double> o;        // of the exact values of the cache's type
    std::vector<double> o_of_f32; // of the f32 numbers that were converted to it
};

/* Some rows of each distinct entry, spread evenly over heads and queries, first and last among them. */
std::vector<CacheRow> cache_reference(const Shape &shape, const Sequences &sequences);

} // namespace bench

#endif // ATTREE_BENCH_CACHE_REFERENCE_H
