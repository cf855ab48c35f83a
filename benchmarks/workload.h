/* Something to run and to check: a plan, its tensors and workspace, and what the result should be. */
#ifndef ATTREE_BENCH_WORKLOAD_H
#define ATTREE_BENCH_WORKLOAD_H

#include <memory>
#include <string>
#include <vector>

#include "attncase.h"
#include "attree/attree.h"
#include "machine.h"
#include "problem.h"
#include "reference.h"
#include "shape.h"

namespace bench {

class Workload {
  public:
    /* Random tensors, about normal, always the same. Sampled rows are checked against the wide reference. Throws
     * std::runtime_error when attree refuses or memory does not suffice. */
    explicit Workload(const Shape &shape);

    /* The tensors of a file, checked against all of its Y. */
    Workload(const AttnCase &input, int threads);

    /* Computes o once, from the next copy of K and V. On error attree_last_error() tells more. */
    attree_status run();

    /* The largest absolute error of the last run; and the largest that is in order, unless the user says otherwise. */
    double error() const;
    double default_tolerance() const;

    const attree_desc &desc() const { return problem_.desc; }

    /* The tensors, for baselines; copy n of K and V, with n < copy_count(). And rows of what o should be. */
    const void *queries() const { return problem_.q; }
    std::size_t copy_count() const { return k_.size(); }
    const void *keys(std::size_t n) const { return k_[n].as<void>(); }
    const void *values(std::size_t n) const { return v_[n].as<void>(); }
    const std::vector<Row> &expected() const { return expected_; }

    std::size_t workspace_bytes() const { return attree_plan_workspace(plan_.get()); }

    /* Whether K and V come from memory, not from a cache: reading them is then what limits the speed. */
    bool streams() const { return streams_; }

    /* What attree says about the plan. */
    const std::string &description() const { return description_; }

  private:
    struct DestroyPlan {
        void operator()(attree_plan *plan) const { attree_plan_destroy(plan); }
    };

    void plan();
    void point_to_tensors();

    Problem problem_;
    std::unique_ptr<attree_plan, DestroyPlan> plan_;
    std::string description_;
    Buffer q_, o_, mask_, bias_, workspace_;
    std::vector<std::int64_t> kv_lens_, q_offsets_; // the descriptor points to them
    std::vector<Buffer> k_, v_;                     // copies
    std::size_t next_copy_ = 0;
    bool streams_ = false;
    std::vector<Row> expected_;
    double exactness_ = 0.0; // the error of an output of size 1 that is in order
};

/* The instruction set that attree uses by default, by its name for it. Throws std::runtime_error. */
std::string default_isa();

} // namespace bench

#endif // ATTREE_BENCH_WORKLOAD_H
