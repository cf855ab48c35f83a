/* The name of a case: how cases are asked for and how they are reported.
 *
 *     <decode|prefill>/<K,V type>/H<h>/G<g>/D<d>/Q<q>/K<k>/<full|causal>/T<threads>[/hot]
 *
 * K and V are f32, f16 or bf16, Q and O f32. One batch, E = D. Causal: the last query sees the last key. A decode case
 * goes through copies of K and V that together exceed the caches, as the layers of a model do; /hot stays on one copy.
 * Prefill always has one copy. */
#ifndef ATTREE_BENCH_SHAPE_H
#define ATTREE_BENCH_SHAPE_H

#include <cstdint>
#include <string>

#include "attree/attree.h"

namespace bench {

enum class Phase { decode, prefill };

struct Shape {
    Phase phase = Phase::prefill;
    attree_dtype kv_type = ATTREE_F32;
    std::int64_t q_heads = 1, kv_heads = 1, width = 1, queries = 1, keys = 1; // H, G, D, Q, K
    bool causal = false;
    int threads = 1;
    bool hot = false;
};

/* Throws std::invalid_argument, naming the part that is wrong, what it is and what it must be. */
Shape parse_shape(const std::string &name);

/* The name; parse_shape(shape_name(s)) is s. */
std::string shape_name(const Shape &shape);

} // namespace bench

#endif // ATTREE_BENCH_SHAPE_H
