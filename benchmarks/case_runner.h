/* Benchmarks: a case between samples of what the machine can do, and those samples alone. */
#ifndef ATTREE_BENCH_CASE_RUNNER_H
#define ATTREE_BENCH_CASE_RUNNER_H

#include <benchmark/benchmark.h>

#include <optional>

#include "roofline.h"
#include "unfused.h"
#include "workload.h"

namespace bench {

/* Times a workload. Each iteration is one run; counters: GFLOPs of visible pairs; GBs of K and V read once; of_peak and
 * of_bandwidth, the fractions of Roofline's samples on the same number of threads; max_error; unless unfused is NULL,
 * vs_unfused, the baseline's time over the workload's, and memory_mb and unfused_mb, workspace and scores in 10^6
 * bytes. An error beyond the tolerance (by default the workload's), or a run that fails, goes to SkipWithError. Returns
 * whether all went well. */
bool run_case(benchmark::State &state, Workload &workload, Unfused *unfused, Roofline &roofline,
              std::optional<double> tolerance);

/* Times samples of a limit. Each iteration is one sample; counters: GFLOPs or GBs, the median. */
void run_limit(benchmark::State &state, Roofline &roofline, Limit limit, int threads);

} // namespace bench

#endif // ATTREE_BENCH_CASE_RUNNER_H
