/* What the machine can do at most, measured in short samples so that cases can be measured in between:
 * bytes read from memory, in order or in pages, and f32 multiply-adds in registers, on a number of threads. */
#ifndef ATTREE_BENCH_ROOFLINE_H
#define ATTREE_BENCH_ROOFLINE_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine.h"
#include "roofline_kernels.h"

namespace bench {

enum class Limit { read, fma };

class Roofline {
  public:
    /* For the instruction set that attree calls by this name. */
    explicit Roofline(const std::string &isa);

    /* One sample of about ten milliseconds. The first for a number of threads takes longer: it looks for the fastest
     * way to read, and waits for the clock to settle. */
    double sample_read(int threads); // bytes per second
    double sample_fma(int threads);  // operations per second
    double sample(Limit limit, int threads);

    /* Bytes per second from pages of so many bytes, at least a cache line, that lie in random order. */
    double sample_pages(int threads, std::size_t page_bytes);

  private:
    struct Tuned {
        ReadKernel read{};
        double read_rate = 0.0, fma_rate = 0.0; // the highest so far; they size the next sample
    };

    /* The pages of the buffer in random order, and how fast they were read. */
    struct Pages {
        std::vector<const char *> order;
        std::size_t bytes = 0, in_step = 1, next = 0; // in_step: read at once, whichever is fastest
        double rate = 0.0;                            // the highest so far
    };

    Tuned &tuned(int threads);
    Pages &pages_of(int threads, std::size_t bytes);
    double read_pages_once(int threads, Pages &pages, std::size_t in_step);
    std::size_t buffer_bytes() const;
    double read_once(int threads, const ReadKernel &kernel, std::int64_t chunks);
    double multiply_once(int threads, std::int64_t chunks);

    FmaKernel fma_;
    Buffer buffer_; // many times the caches; each sample goes on where the last one stopped
    std::int64_t buffer_chunks_ = 0, next_chunk_ = 0;
    std::map<int, Tuned> tuned_;                         // by number of threads
    std::map<std::pair<int, std::size_t>, Pages> pages_; // by number of threads, and bytes of a page
};

} // namespace bench

#endif // ATTREE_BENCH_ROOFLINE_H
