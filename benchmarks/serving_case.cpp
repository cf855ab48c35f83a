/* Setting up serving cases. See serving_case.h. */
#include "serving_case.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "machine.h"

namespace bench {

namespace {

Shape dense(Shape shape)
{
    shape.page = 0;
    shape.panels = shape.tokens = false;
    return shape;
}

Shape in_f16(Shape shape)
{
    shape.kv_type = ATTREE_F16;
    return shape;
}

void require_memory(double bytes)
{
    if (bytes > 0.75 * static_cast<double>(memory_bytes()))
        throw std::runtime_error("the tensors need " + std::to_string(std::llround(std::ceil(bytes * 0x1p-30))) +
                                 " GiB, more than this machine should give");
}

} // namespace

ServingCase::ServingCase(const Shape &shape)
{
    const bool has_dense = shape.page > 0 || shape.panels || shape.tokens, has_f16 = is_quantised(shape.kv_type);
    require_memory(cache_tensor_bytes(shape) + (has_dense ? cache_tensor_bytes(dense(shape)) : 0.0) +
                   (has_f16 ? cache_tensor_bytes(in_f16(shape)) : 0.0));
    const auto tensors = std::make_shared<const CacheTensors>(shape);
    workload_ = std::make_unique<CacheWorkload>(tensors, shape.threads);
    expected_ = cache_reference(shape, tensors->sequences());
    if (shape.phase == Phase::ragged && shape.threads > 1)
        alone_ = std::make_unique<CacheWorkload>(tensors, 1);
    if (has_dense)
        rivals_.push_back({"vs_dense", true, expected_, nullptr});
    if (has_f16)
        rivals_.push_back({"vs_f16", false, cache_reference(in_f16(shape), tensors->sequences()), nullptr});
    for (Rival &rival : rivals_) {
        const Shape other = rival.same_bits ? dense(shape) : in_f16(shape);
        rival.workload = std::make_unique<CacheWorkload>(std::make_shared<const CacheTensors>(other), shape.threads);
    }
}

/* The reference uses the exact values of the cache, so the type does not matter: an output of size 1 is a few ulp, some
 * 2^-24 each, from it. */
double ServingCase::default_tolerance() const
{
    double largest = 1.0;
    for (const CacheRow &row : expected_)
        for (const double number : row.o)
            largest = std::max(largest, std::abs(number));
    return 2e-6 * largest;
}

} // namespace bench
