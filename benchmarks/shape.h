/* The name of a case: how cases are asked for and how they are reported.
 *
 *     <decode|prefill>/<K,V type>/H<h>/G<g>/D<d>/Q<q>/K<k>/<full|causal>/T<threads>[/page<n>][/panels|/tokens][/hot]
 *     ragged/<K,V type>/H<h>/G<g>/D<d>/<mix>/T<threads>[/page<n>][/panels|/tokens][/hot]
 *
 * K and V are f32, f16, bf16, i8, q8_0, q4_0, f8 or f8_e5m2, Q and O f32. E = D. Causal: the last query sees the last
 * key. A decode or ragged case goes through copies of K and V that together exceed the caches, as the layers of a model
 * do; /hot stays on one copy. Prefill always has one copy.
 *
 * decode and prefill have one batch entry. The mix of ragged is <count>x<keys> or <count>x<queries>q<keys>, joined by
 * +: so many sequences of so many keys with so many queries, one unless it is said. Each is causal, and its last query
 * sees its last key. 1x100000+30x100 is a long sequence beside thirty short ones.
 *
 * page<n>: a paged cache with pages of n tokens, anywhere in it. panels: K in panels of 16 keys; ragged only in pages.
 * tokens: K and V with the heads of a token beside each other, [K, G, D], instead of [G, K, D].
 */
#ifndef ATTREE_BENCH_SHAPE_H
#define ATTREE_BENCH_SHAPE_H

#include <cstdint>
#include <string>
#include <vector>

#include "attree/attree.h"

namespace bench {

enum class Phase { decode, prefill, ragged };

/* Numbers of a block of the types that have blocks; keys of a panel. */
constexpr std::int64_t block = 32, panel = 16;

/* Sequences of a ragged batch that are alike. */
struct Alike {
    std::int64_t count = 1, queries = 1, keys = 1;
};

struct Shape {
    Phase phase = Phase::prefill;
    attree_dtype kv_type = ATTREE_F32;
    std::int64_t q_heads = 1, kv_heads = 1, width = 1, queries = 1, keys = 1; // H, G, D, Q, K
    bool causal = false;
    int threads = 1;
    bool hot = false;
    std::int64_t page = 0; // 0: not paged
    bool panels = false;
    bool tokens = false;
    std::vector<Alike> mix{}; // of ragged, where queries and keys are 1 and causal is true
};

/* Throws std::invalid_argument, naming the part that is wrong, what it is and what it must be. */
Shape parse_shape(const std::string &name);

/* The name; parse_shape(shape_name(s)) is s. */
std::string shape_name(const Shape &shape);

/* Whether numbers of this type are rounded to a few bits, with scales or without. */
inline bool is_quantised(attree_dtype type) { return type >= ATTREE_I8; }

/* Whether a row is blocks of numbers, each with a scale. */
inline bool has_blocks(attree_dtype type) { return type == ATTREE_Q8_0 || type == ATTREE_Q4_0; }

/* Whether a shape is more than one dense cache of floats: ragged, paged, in panels or quantised. */
bool is_serving(const Shape &shape);

} // namespace bench

#endif // ATTREE_BENCH_SHAPE_H
