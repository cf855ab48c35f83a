/* The softmax of the unfused baseline: one row of scores, in f32, in place. */
#ifndef ATTREE_BENCH_SOFTMAX_H
#define ATTREE_BENCH_SOFTMAX_H

#include <cstdint>

namespace bench {

/* count >= 1 finite scores become weights that sum to 1, with relative errors of some 1e-6; weights below e^-86 become
 * e^-86 over the sum. */
using SoftmaxRow = void (*)(float *row, std::int64_t count);

/* The fastest on this CPU. */
SoftmaxRow softmax_row();

} // namespace bench

#endif // ATTREE_BENCH_SOFTMAX_H
