/* A serving case, and what it is compared with in the same run. */
#ifndef ATTREE_BENCH_SERVING_CASE_H
#define ATTREE_BENCH_SERVING_CASE_H

#include <memory>
#include <vector>

#include "cache_workload.h"

namespace bench {

/* Another way to compute what the case computes, or almost. */
struct Rival {
    const char *counter; // of its time over that of the case
    bool same_bits;      // whether it computes exactly the same
    std::vector<CacheRow> expected;
    std::unique_ptr<CacheWorkload> workload;
};

class ServingCase {
  public:
    /* Rivals: vs_dense, the same dense and head by head; vs_f16, the same with f16 for a quantised type. And for
     * ragged cases on several threads, the same on one. Throws std::runtime_error when attree refuses, or memory does
     * not suffice. */
    explicit ServingCase(const Shape &shape);

    CacheWorkload &workload() { return *workload_; }
    std::vector<Rival> &rivals() { return rivals_; }
    CacheWorkload *alone() { return alone_.get(); } // on one thread; or NULL
    const std::vector<CacheRow> &expected() const { return expected_; }

    /* The largest error that is in order, unless the user says otherwise. */
    double default_tolerance() const;

  private:
    std::vector<CacheRow> expected_;
    std::unique_ptr<CacheWorkload> workload_, alone_;
    std::vector<Rival> rivals_;
};

} // namespace bench

#endif // ATTREE_BENCH_SERVING_CASE_H
