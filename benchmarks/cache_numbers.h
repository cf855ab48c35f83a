/* What a cache of any type holds: random numbers, and what remains of them in the type. Wherever the cache puts a
 * token, its numbers depend on the head, on the token and on the type only, so the reference need not read the cache.
 */
#ifndef ATTREE_BENCH_CACHE_NUMBERS_H
#define ATTREE_BENCH_CACHE_NUMBERS_H

#include <cstdint>
#include <vector>

#include "attree/attree.h"

namespace bench {

enum class Tensor : std::uint64_t { q = 1, k = 2, v = 3 }; // the seed

/* Row n of so many numbers, about normal. */
void random_row(Tensor tensor, std::int64_t n, std::vector<float> &numbers);

/* Numbers to a row of the type; *scale is that of ATTREE_I8, else 0. */
attree_status encode_row(attree_dtype type, const std::vector<float> &numbers, void *row, float *scale);

/* The exact numbers of a row. Written apart from the library's own conversion, which max_error judges. */
void decode_row(attree_dtype type, const void *row, float scale, std::vector<float> &numbers);

/* Bytes of a row, without the scale of ATTREE_I8. */
std::int64_t row_bytes(attree_dtype type, std::int64_t width);

} // namespace bench

#endif // ATTREE_BENCH_CACHE_NUMBERS_H
