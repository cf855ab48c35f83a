/* The inner loops of the calibrations: one file for each architecture provides them. */
#ifndef ATTREE_BENCH_ROOFLINE_KERNELS_H
#define ATTREE_BENCH_ROOFLINE_KERNELS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/* A way to read: `read` goes through bytes, a multiple of read_granule from an address aligned to it, in several
 * streams at once and fetches ahead of each. Which way is fastest differs from machine to machine. */
struct ReadKernel {
    void (*read)(const char *data, std::size_t bytes, std::size_t ahead);
    std::size_t ahead; // bytes; 0: leaves it to the hardware
};

constexpr std::size_t read_granule = 2048;

/* Multiplies and adds in registers: `run` does steps * operations_each operations. */
struct FmaKernel {
    void (*run)(std::int64_t steps);
    std::int64_t operations_each;
};

/* The ways worth trying on this CPU; at least one. */
std::vector<ReadKernel> read_kernels();

/* The peak of the instruction set that attree calls by this name. Throws std::runtime_error for an unknown one. */
FmaKernel fma_kernel(const std::string &isa);

} // namespace bench

#endif // ATTREE_BENCH_ROOFLINE_KERNELS_H
