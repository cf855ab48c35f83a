/* What the benchmark has to know about the machine, and memory that it measures on. */
#ifndef ATTREE_BENCH_MACHINE_H
#define ATTREE_BENCH_MACHINE_H

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace bench {

/* Processors that this process may run on. */
int processor_count();

/* 1, 2, 4, ... and processor_count(). */
std::vector<int> thread_counts();

/* Bytes of all last-level caches together; at least 32 MiB, which is also the answer where the system does not tell. */
std::int64_t last_level_cache_bytes();

/* Copies of so many bytes, at least one, that exceed the last-level caches four times: nothing of a copy is left when
 * its turn comes again, even in caches that do not replace the oldest first. */
std::int64_t copies_beyond_caches(double bytes);

/* Bytes of memory in the machine. */
std::int64_t memory_bytes();

/* Uninitialised memory. Large buffers start on a huge page and ask for huge pages: calibrations and cases alike, so
 * that address translation costs both the same. Throws std::bad_alloc. */
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(std::size_t bytes);

    template <class T> T *as() const { return static_cast<T *>(data_.get()); }

  private:
    struct Free {
        void operator()(void *data) const { std::free(data); }
    };
    std::unique_ptr<void, Free> data_;
};

} // namespace bench

#endif // ATTREE_BENCH_MACHINE_H
