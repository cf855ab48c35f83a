/* Attention cases from .attncase files: inputs and the expected output, with the semantics of the Attention operator of
 * ONNX. The format is an ASCII header, an empty line, and raw little-endian tensors:
 *
 *     ATTNCASE 1
 *     name NAME                                letters, digits and _ . - only
 *     attr NAME VALUE                          any number of them
 *     tensor NAME TYPE RANK DIM... OFFSET      dense, last dimension fastest; bytes from the end of the empty line
 *
 * TYPE is f32, f16, f64, u8 (boolean) or i64. Q, K, V and Y are [batch, heads, tokens, width]; or, with the attributes
 * q_num_heads and kv_num_heads, [batch, tokens, heads * width]. Files are not trusted: whatever they hold, the answer
 * is a case or an exception. */
#ifndef ATTREE_BENCH_ATTNCASE_H
#define ATTREE_BENCH_ATTNCASE_H

#include <cstdint>
#include <string>
#include <vector>

#include "attree/attree.h"

namespace bench {

struct AttnCase {
    std::string name;
    attree_desc desc{};         // all strides written out; o_type is f32; threads 0
    std::vector<float> q, k, v; // exact values of elements of desc's types
    std::vector<double> y;      // the expected o, laid out as desc.o says
};

/* Throws std::runtime_error with the file's name and what is wrong with it: a file that cannot be read, a header that
 * is not well formed, a tensor outside the file, shapes that do not fit each other, or a feature that attree does not
 * have. */
AttnCase load_attncase(const std::string &path);

} // namespace bench

#endif // ATTREE_BENCH_ATTNCASE_H
