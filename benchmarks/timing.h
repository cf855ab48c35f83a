/* The clock and the statistics of all measurements. */
#ifndef ATTREE_BENCH_TIMING_H
#define ATTREE_BENCH_TIMING_H

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/* The middle value, the upper one of two; 0 of none. */
inline double median(std::vector<double> values)
{
    if (values.empty())
        return 0.0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

} // namespace bench

#endif // ATTREE_BENCH_TIMING_H
