/* Measuring a case and the machine's limits in turn. See case_runner.h.
 *
 * A machine that others use, or that changes its clock, is as slow for the calibration as for the case next to it. So a
 * case runs in segments of some fifty milliseconds, with a sample of the limit that matters before, between and after
 * them. The fraction of a segment is its rate over the mean of the two samples around it; the fraction of the case is
 * the median over its segments. The other limit is sampled before and after all of them. A sample of the
 * unfused baseline, which takes longer, follows the first few segments; it is compared with the segment before it. */
#include "case_runner.h"

#include <algorithm>
#include <string>
#include <vector>

#include "require.h"
#include "timing.h"

namespace bench {

namespace {

constexpr double segment_seconds = 0.050;
constexpr std::size_t unfused_samples = 5;

/* One call of a benchmark function; the library makes several, with more and more iterations. */
class Measurement {
  public:
    Measurement(benchmark::State &state, Workload &workload, Unfused *unfused, Roofline &roofline)
        : state_(state), workload_(workload), unfused_(unfused), roofline_(roofline)
    {
    }

    /* All iterations, with the timer running before and after. Stops at a run that fails. */
    attree_status run(std::int64_t iterations);

    /* The median fraction of a limit, for a run that needs so many bytes or operations. */
    double fraction(Limit limit, double units_per_run) const;

    /* The median of the baseline's time over the workload's. */
    double vs_unfused() const { return median(vs_unfused_); }

  private:
    double sample(Limit limit) { return roofline_.sample(limit, workload_.desc().threads); }
    attree_status warm_up();
    attree_status run_segment(std::int64_t runs);

    benchmark::State &state_;
    Workload &workload_;
    Unfused *unfused_;
    Roofline &roofline_;
    const Limit near_ = workload_.streams() ? Limit::read : Limit::fma; // what limits this case
    const Limit far_ = workload_.streams() ? Limit::fma : Limit::read;
    double estimate_ = 0.0;            // seconds of a run
    std::vector<double> run_seconds_;  // of each segment
    std::vector<double> near_samples_; // one more than segments
    std::vector<double> far_samples_;  // two
    std::vector<double> vs_unfused_;   // of the first segments
};

/* After this the caches hold what they hold in a series of runs, and a run's time is known about. */
attree_status Measurement::warm_up()
{
    const Clock::time_point start = Clock::now();
    const attree_status status = workload_.run();
    estimate_ = seconds_since(start);
    return status;
}

attree_status Measurement::run_segment(std::int64_t runs)
{
    attree_status status = ATTREE_OK;
    state_.ResumeTiming();
    const Clock::time_point start = Clock::now();
    for (std::int64_t n = 0; n < runs && status == ATTREE_OK; n++)
        status = workload_.run();
    estimate_ = seconds_since(start) / static_cast<double>(runs);
    state_.PauseTiming();
    run_seconds_.push_back(estimate_);
    return status;
}

attree_status Measurement::run(std::int64_t iterations)
{
    state_.PauseTiming();
    far_samples_.push_back(sample(far_));
    attree_status status = warm_up();
    near_samples_.push_back(sample(near_));
    while (status == ATTREE_OK && iterations > 0) {
        const double fitting = std::clamp(segment_seconds / estimate_, 1.0, static_cast<double>(iterations));
        const std::int64_t runs = static_cast<std::int64_t>(fitting);
        status = run_segment(runs);
        near_samples_.push_back(sample(near_));
        if (unfused_ != nullptr && vs_unfused_.size() < unfused_samples)
            vs_unfused_.push_back(unfused_->sample() / run_seconds_.back());
        iterations -= runs;
    }
    far_samples_.push_back(sample(far_));
    state_.ResumeTiming();
    return status;
}

double Measurement::fraction(Limit limit, double units_per_run) const
{
    std::vector<double> fractions;
    for (std::size_t n = 0; n < run_seconds_.size(); n++) {
        const double around =
            limit == near_ ? near_samples_[n] + near_samples_[n + 1] : far_samples_[0] + far_samples_[1];
        fractions.push_back(units_per_run / run_seconds_[n] / (around / 2.0));
    }
    return median(fractions);
}

} // namespace

bool run_case(benchmark::State &state, Workload &workload, Unfused *unfused, Roofline &roofline,
              std::optional<double> tolerance)
{
    Measurement measurement(state, workload, unfused, roofline);
    attree_status status = ATTREE_OK;
    while (state.KeepRunningBatch(state.max_iterations))
        status = measurement.run(state.max_iterations);
    if (status != ATTREE_OK) {
        state.SkipWithError((std::string(attree_status_name(status)) + ", " + attree_last_error()).c_str());
        return false;
    }
    const double error = workload.error(), most = tolerance.value_or(workload.default_tolerance());
    if (!(error <= most)) {
        state.SkipWithError(("max error " + short_number(error) + " exceeds " + short_number(most)).c_str());
        return false;
    }
    const double operations = operation_count(workload.desc()), bytes = kv_bytes(workload.desc());
    constexpr auto per_second = benchmark::Counter::kIsIterationInvariantRate;
    state.counters["GFLOPs"] = benchmark::Counter(operations * 1e-9, per_second);
    state.counters["GBs"] = benchmark::Counter(bytes * 1e-9, per_second);
    state.counters["of_peak"] = measurement.fraction(Limit::fma, operations);
    state.counters["of_bandwidth"] = measurement.fraction(Limit::read, bytes);
    state.counters["max_error"] = error;
    if (unfused != nullptr) {
        state.counters["vs_unfused"] = measurement.vs_unfused();
        state.counters["memory_mb"] = static_cast<double>(workload.workspace_bytes()) * 1e-6;
        state.counters["unfused_mb"] = unfused->score_bytes() * 1e-6;
    }
    state.SetLabel(workload.description());
    return true;
}

void run_limit(benchmark::State &state, Roofline &roofline, Limit limit, int threads)
{
    std::vector<double> samples;
    (void)roofline.sample(limit, threads); // the first takes longer
    for (auto unused : state) {
        (void)unused;
        samples.push_back(roofline.sample(limit, threads));
    }
    state.counters[limit == Limit::read ? "GBs" : "GFLOPs"] = median(samples) * 1e-9;
}

} // namespace bench
