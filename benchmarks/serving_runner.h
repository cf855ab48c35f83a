/* Benchmarks of serving cases: each in turn with its rivals and with samples of what the machine can do. */
#ifndef ATTREE_BENCH_SERVING_RUNNER_H
#define ATTREE_BENCH_SERVING_RUNNER_H

#include <benchmark/benchmark.h>

#include <optional>

#include "roofline.h"
#include "serving_case.h"

namespace bench {

/* Times a case. Each iteration is one run; counters:
 *   GFLOPs, GBs            of visible pairs; of the cache's tokens, each read once
 *   of_peak, of_bandwidth  fractions of Roofline's samples on the same number of threads
 *   of_pages               of a paged case: the fraction of what reading pages of this size in random order gives
 *   vs_dense, vs_f16       a rival's time over the case's: more than 1 is faster than the rival
 *   balance_raw            for ragged cases on several threads: threads * time / time of one thread; 1 is perfect
 *   balance                the same, over what the machine's limit would give: time * scaling / time of one thread
 *   scaling_read, _fma     the limits on all threads over those on one; balance uses the one that is nearer to the case
 *   max_error              against the reference with the exact numbers of the cache
 *   error_vs_f32           against attention over the f32 numbers that the cache was made of, for all other types
 * An error beyond the tolerance (by default the case's), a rival that has other bits where it must not, or a run that
 * fails, goes to SkipWithError. Returns whether all went well. */
bool run_serving(benchmark::State &state, ServingCase &serving, Roofline &roofline, std::optional<double> tolerance);

} // namespace bench

#endif // ATTREE_BENCH_SERVING_RUNNER_H
