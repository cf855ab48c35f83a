/* Attention cases from .attncase files: inputs and the expected output, with the semantics of the Attention operator of
 * ONNX. The format is an ASCII header, an empty line, and raw little-endian tensors:
 *
 *     ATTNCASE 1
 *     name NAME                                letters, digits and _ . - only
 *     attr NAME VALUE                          any number of them
 *     tensor NAME TYPE RANK DIM... OFFSET      dense, last dimension fastest; bytes from the end of the empty line
 *
 * TYPE is f32, f16, f64, u8 (boolean) or i64. The tensors:
 *
 *     Q, K, V, Y               [batch, heads, tokens, width]; or, with the attributes q_num_heads and kv_num_heads,
 *                              [batch, tokens, heads * width]. Y is the expected output.
 *     past_key, past_value     optional, as K and V: tokens before theirs
 *     attn_mask                optional: f32 or f16, added to scores, or u8, 0 hides. Broadcast from the right to
 *                              [batch, heads, queries, keys], but keys beyond its last dimension are hidden
 *     nonpad_kv_seqlen         optional, i64 [batch]: how many keys count
 *
 * Attributes, all optional: scale, softcap, is_causal, left_window_size, right_window_size. Query i is at position
 * past tokens + i; without a past but with nonpad_kv_seqlen n at n - queries + i.
 *
 * Files are not trusted: whatever they hold, the answer is a case or an exception. */
#ifndef ATTREE_BENCH_ATTNCASE_H
#define ATTREE_BENCH_ATTNCASE_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attree/attree.h"

#include "problem.h"

namespace bench {

/* Not to be copied: desc points into it. */
struct AttnCase {
    AttnCase() = default;
    AttnCase(AttnCase &&) = default;
    AttnCase &operator=(AttnCase &&) = default;

    std::string name;
    attree_desc desc{};                           // all strides written out; o_type is f32; threads 0
    std::vector<std::byte> q, k, v;               // of desc's types and strides
    std::vector<std::byte> mask, bias;            // empty: none
    std::vector<std::int64_t> kv_lens, q_offsets; // empty: none; what desc points to
    std::vector<double> y;                        // the expected o, laid out as desc.o says
    double exactness = 0.0;                       // the error of an output of size 1 that is in order
};

/* Throws std::runtime_error with the file's name and what is wrong with it: a file that cannot be read, a header that
 * is not well formed, a tensor outside the file, shapes that do not fit each other, or a name that means nothing. What
 * is left for attree to refuse are values that it does not take, and dimensions that must not be 0. */
AttnCase load_attncase(const std::string &path);

/* The same as a problem, whose pointers are into the case. */
Problem problem_of(const AttnCase &input);

} // namespace bench

#endif // ATTREE_BENCH_ATTNCASE_H
