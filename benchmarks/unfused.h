/* The usual way to compute attention, to compare with: for each head one product of matrices makes all scores, softmax
 * their rows, a second product the output. In f32, on OpenBLAS, on as many threads as the case.
 *
 * The rows of a product are the queries of a head, or with one query the heads that share keys. The baseline gets what
 * helps it: f32 copies of 16-bit keys and values are made beforehand and are neither timed nor counted; the scale is
 * part of the first product; scores are kept for the heads at work only, and used again while they may be in a cache;
 * and of several ways to use the library, the fastest for the case is measured. ATTREE_ISA does not slow it down. */
#ifndef ATTREE_BENCH_UNFUSED_H
#define ATTREE_BENCH_UNFUSED_H

#include <cstdint>
#include <memory>
#include <vector>

#include "machine.h"
#include "openblas.h"
#include "softmax.h"
#include "workload.h"

namespace bench {

class Unfused {
  public:
    /* For a workload of a shape, which must outlive it, as blas must. NULL when scores would need more than 2 GiB, or
     * all buffers too much of the memory. Throws std::runtime_error when the result is wrong. */
    static std::unique_ptr<Unfused> make(const OpenBlas &blas, const Workload &workload);

    /* Seconds of a run, from a sample of about twenty milliseconds, or of one run if that takes longer. */
    double sample();

    /* Bytes of scores. */
    double score_bytes() const;

  private:
    /* Threads are either inside OpenBLAS, or each of them takes a head at a time. */
    struct Way {
        bool threads_inside;
        Product product;
    };

    Unfused(const OpenBlas &blas, const Workload &workload);
    std::int64_t worker_count(Way way) const;
    double bytes_of_scores(Way way) const;
    void make_copies();
    void choose_way();
    void check() const;
    double time(Way way, std::int64_t runs);
    void run(Way way);
    void attend(Way way, std::int64_t task, float *scores);
    void soften_row(float *scores, std::int64_t i) const;

    const OpenBlas &blas_;
    const Workload &workload_;
    const attree_desc &desc_;
    const SoftmaxRow softmax_row_ = softmax_row();
    bool stacked_ = false;   // rows are heads
    std::int64_t tasks_ = 0; // pairs of products
    int rows_ = 0, q_stride_ = 0, o_stride_ = 0;
    float scale_ = 1.0f;
    std::vector<Buffer> widened_;      // K, V, K, V ... where the workload's are not f32
    std::vector<const float *> k_, v_; // copies
    std::size_t next_copy_ = 0;
    Buffer scores_, o_;
    Way way_{};
    double estimate_ = 0.0; // seconds of a run
};

} // namespace bench

#endif // ATTREE_BENCH_UNFUSED_H
