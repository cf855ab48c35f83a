/* A cache as engines keep it, to run and to check: of any type, dense, in pages or in panels, of one sequence or many.
 */
#ifndef ATTREE_BENCH_CACHE_WORKLOAD_H
#define ATTREE_BENCH_CACHE_WORKLOAD_H

#include <memory>
#include <string>
#include <vector>

#include "attree/attree.h"
#include "cache_reference.h"
#include "machine.h"
#include "sequences.h"
#include "shape.h"

namespace bench {

/* The tensors of a shape, whatever its number of threads. K and V of a paged cache are [pages, G, page, D], the pages
 * in any order; of others [1, G, tokens of all entries, D], in the order of the entries. What no key lies in is NaN,
 * where the type has it. */
class CacheTensors {
  public:
    /* Throws std::runtime_error when attree refuses. */
    explicit CacheTensors(const Shape &shape);

    /* The problem for a number of threads; it points into this object. */
    attree_desc describe(int threads) const;

    /* Fills in the inputs, from copy n of the cache, n < copy_count(). */
    void point(attree_args &args, std::size_t n) const;
    std::size_t copy_count() const { return copies_.size(); }

    /* Whether K and V come from memory, not from a cache. */
    bool streams() const { return copies_.size() > 1 || bytes() > static_cast<double>(last_level_cache_bytes()); }

    const Shape &shape() const { return shape_; }
    const Sequences &sequences() const { return sequences_; }

    /* Bytes of the cache's tokens, each read once; operations of both products, 4 D for each visible pair. */
    double bytes() const;
    double operations() const;

  private:
    struct Copy {
        Buffer k, v, k_scales, v_scales;
    };
    struct Room; // where a token goes

    void make_table();
    std::size_t tensor_bytes(bool panels) const;
    Copy make_copy() const;
    attree_status fill(const Copy &copy) const;
    attree_status fill_token(const Copy &copy, const Room &room) const;
    Room room_of(std::int64_t entry, std::int64_t head, std::int64_t token) const;

    Shape shape_;
    Sequences sequences_;
    std::int64_t containers_ = 1, container_tokens_ = 0; // pages, or one for all tokens
    std::int64_t table_width_ = 0;
    std::vector<std::int32_t> table_;
    Buffer q_;
    std::vector<Copy> copies_;
};

/* Bytes of the tensors of a shape, as a number that cannot overflow. */
double cache_tensor_bytes(const Shape &shape);

class CacheWorkload {
  public:
    /* Throws std::runtime_error when attree refuses. */
    CacheWorkload(std::shared_ptr<const CacheTensors> tensors, int threads);

    /* Computes o once, from the next copy of the cache. On error attree_last_error() tells more. */
    attree_status run();

    /* The largest absolute error of the last run on the rows of the reference; and its largest distance from attention
     * over the f32 numbers. */
    double error(const std::vector<CacheRow> &expected) const;
    double error_vs_f32(const std::vector<CacheRow> &expected) const;

    /* Whether the last runs of both had the same bits. */
    bool equals(const CacheWorkload &other) const;

    const CacheTensors &tensors() const { return *tensors_; }
    int threads() const { return threads_; }

    /* What attree says about the plan. */
    const std::string &description() const { return description_; }

  private:
    struct DestroyPlan {
        void operator()(attree_plan *plan) const { attree_plan_destroy(plan); }
    };

    double distance_from(const std::vector<CacheRow> &rows, std::vector<double> CacheRow::*expected) const;
    std::size_t o_count() const;

    std::shared_ptr<const CacheTensors> tensors_;
    int threads_;
    std::unique_ptr<attree_plan, DestroyPlan> plan_;
    std::string description_;
    Buffer o_, workspace_;
    std::size_t next_copy_ = 0;
};

} // namespace bench

#endif // ATTREE_BENCH_CACHE_WORKLOAD_H
