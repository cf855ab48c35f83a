/* One attention problem with its tensors: what cases, the reference and baselines work on. */
#ifndef ATTREE_BENCH_PROBLEM_H
#define ATTREE_BENCH_PROBLEM_H

#include <cstdint>

#include "attree/attree.h"

namespace bench {

/* The descriptor has all strides written out, and no ragged batches. Elements are of its types. */
struct Problem {
    attree_desc desc{};
    const void *q = nullptr, *k = nullptr, *v = nullptr;
    const void *mask = nullptr, *bias = nullptr; // optional; the mask is of bytes
};

/* Arguments of a run with these inputs; nothing else is set. */
attree_args inputs_of(const Problem &problem);

/* Keys first <= j < end; none when they are equal. */
struct KeyRange {
    std::int64_t first, end;
};

/* Strides of a dense [batch, heads, tokens, width] and of a dense [batch, tokens, heads, width]. */
attree_strides heads_outside(std::int64_t heads, std::int64_t tokens, std::int64_t width);
attree_strides heads_inside(std::int64_t heads, std::int64_t tokens, std::int64_t width);

/* The keys that a query may see, masks and biases aside. */
KeyRange visible_keys(const attree_desc &desc, std::int64_t batch, std::int64_t query);

/* Floating-point operations of both products, 2 (D + E) for each such pair of a query and a key. */
double operation_count(const attree_desc &desc);

/* Bytes of K and V, each read once. */
double kv_bytes(const attree_desc &desc);

} // namespace bench

#endif // ATTREE_BENCH_PROBLEM_H
