/* Measuring a serving case, its rivals and the machine's limits in turn. See serving_runner.h.
 *
 * A round is a segment of the case between two samples of the limit that is nearer to it, then a segment of each rival
 * and of the case on one thread, this between two samples of the limit on one thread. Segments take some twenty-five
 * milliseconds, or one run. A rival is compared with the mean of the case's segments before and after it; one more
 * segment, which is not timed for the benchmark, follows the last round. Every number is the median over the rounds. */
#include "serving_runner.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "require.h"
#include "timing.h"

namespace bench {

namespace {

constexpr double segment_seconds = 0.025;

double mean(double a, double b) { return (a + b) / 2.0; }

/* One call of a benchmark function; the library makes several, with more and more iterations. */
class Rounds {
  public:
    Rounds(benchmark::State &state, ServingCase &serving, Roofline &roofline)
        : state_(state), serving_(serving), roofline_(roofline), threads_(serving.workload().threads())
    {
    }

    /* All iterations, with the timer running before and after. Stops at a run that fails. */
    attree_status run(std::int64_t iterations);

    void report() const;

  private:
    struct Segments {
        double estimate = 0.0;       // seconds of a run
        std::vector<double> seconds; // of a run, of each segment
    };
    struct Samples {
        std::vector<double> all, one; // units per second on all threads and on one
    };

    attree_status warm_up();
    attree_status round(std::int64_t runs);
    static attree_status run_segment(CacheWorkload &workload, Segments &segments, std::int64_t runs);
    static attree_status run_rival(CacheWorkload &workload, Segments &segments);
    double sample_twice(Limit limit, int threads) const;
    void sample_far();
    static std::int64_t fitting_runs(const Segments &segments, double most);
    double units(Limit limit) const;
    double case_seconds(std::size_t round) const;
    double fraction(Limit limit) const;
    double scaling(Limit limit) const;
    void report_balance() const;
    void sample_pages();
    std::size_t page_bytes() const;

    benchmark::State &state_;
    ServingCase &serving_;
    Roofline &roofline_;
    int threads_;
    Limit near_ = Limit::fma, far_ = Limit::read;
    Segments case_, alone_;
    std::vector<Segments> rivals_;
    std::map<Limit, Samples> samples_; // of near_ for each round, of far_ before and after all
    std::vector<double> page_samples_; // of a paged case, of each round
};

std::int64_t Rounds::fitting_runs(const Segments &segments, double most)
{
    return static_cast<std::int64_t>(std::clamp(segment_seconds / segments.estimate, 1.0, most));
}

/* After this the caches hold what they hold in a series of runs, and the time of each run is known about. */
attree_status Rounds::warm_up()
{
    rivals_.resize(serving_.rivals().size());
    attree_status status = run_segment(serving_.workload(), case_, 1);
    for (std::size_t n = 0; n < rivals_.size() && status == ATTREE_OK; n++)
        status = run_segment(*serving_.rivals()[n].workload, rivals_[n], 1);
    if (serving_.alone() != nullptr && status == ATTREE_OK)
        status = run_segment(*serving_.alone(), alone_, 1);
    case_.seconds.clear();
    alone_.seconds.clear();
    for (Segments &segments : rivals_)
        segments.seconds.clear();
    return status;
}

attree_status Rounds::run_segment(CacheWorkload &workload, Segments &segments, std::int64_t runs)
{
    attree_status status = ATTREE_OK;
    const Clock::time_point start = Clock::now();
    for (std::int64_t n = 0; n < runs && status == ATTREE_OK; n++)
        status = workload.run();
    segments.estimate = seconds_since(start) / static_cast<double>(runs);
    segments.seconds.push_back(segments.estimate);
    return status;
}

/* The first run after another workload is slower where caches matter, so it does not count unless it is a long one. */
attree_status Rounds::run_rival(CacheWorkload &workload, Segments &segments)
{
    attree_status status = ATTREE_OK;
    if (segments.estimate < segment_seconds / 2.0)
        status = workload.run();
    return status == ATTREE_OK ? run_segment(workload, segments, fitting_runs(segments, 1e9)) : status;
}

double Rounds::sample_twice(Limit limit, int threads) const
{
    const double first = roofline_.sample(limit, threads);
    return mean(first, roofline_.sample(limit, threads));
}

void Rounds::sample_far()
{
    samples_[far_].all.push_back(sample_twice(far_, threads_));
    if (serving_.alone() != nullptr)
        samples_[far_].one.push_back(sample_twice(far_, 1));
}

/* Of what is adjacent in memory: a page of one head's keys. */
std::size_t Rounds::page_bytes() const
{
    const Shape &shape = serving_.workload().tensors().shape();
    return static_cast<std::size_t>(shape.page) * attree_row_bytes(shape.kv_type, shape.width);
}

void Rounds::sample_pages()
{
    if (serving_.workload().tensors().streams() && serving_.workload().tensors().shape().page > 0)
        page_samples_.push_back(roofline_.sample_pages(threads_, page_bytes()));
}

attree_status Rounds::round(std::int64_t runs)
{
    CacheWorkload &workload = serving_.workload();
    attree_status status = ATTREE_OK;
    if (case_.estimate < segment_seconds / 2.0)
        status = workload.run();
    const double before = roofline_.sample(near_, threads_);
    if (status == ATTREE_OK) {
        state_.ResumeTiming();
        status = run_segment(workload, case_, runs);
        state_.PauseTiming();
    }
    samples_[near_].all.push_back(mean(before, roofline_.sample(near_, threads_)));
    sample_pages();
    for (std::size_t n = 0; n < rivals_.size() && status == ATTREE_OK; n++)
        status = run_rival(*serving_.rivals()[n].workload, rivals_[n]);
    if (serving_.alone() != nullptr && status == ATTREE_OK) {
        const double before_one = roofline_.sample(near_, 1);
        status = run_rival(*serving_.alone(), alone_);
        samples_[near_].one.push_back(mean(before_one, roofline_.sample(near_, 1)));
    }
    return status;
}

attree_status Rounds::run(std::int64_t iterations)
{
    state_.PauseTiming();
    attree_status status = warm_up();
    const double reading = units(Limit::read) / sample_twice(Limit::read, threads_);
    const double multiplying = units(Limit::fma) / sample_twice(Limit::fma, threads_);
    if (serving_.workload().tensors().streams() && reading > multiplying)
        std::swap(near_, far_);
    sample_far();
    while (status == ATTREE_OK && iterations > 0) {
        const std::int64_t runs = fitting_runs(case_, static_cast<double>(iterations));
        status = round(runs);
        iterations -= runs;
    }
    if (status == ATTREE_OK)
        status = run_rival(serving_.workload(), case_);
    sample_far();
    state_.ResumeTiming();
    return status;
}

/* What a run needs of a limit. */
double Rounds::units(Limit limit) const
{
    const CacheTensors &tensors = serving_.workload().tensors();
    return limit == Limit::read ? tensors.bytes() : tensors.operations();
}

/* Of a run, around the rivals of a round. */
double Rounds::case_seconds(std::size_t round) const { return mean(case_.seconds[round], case_.seconds[round + 1]); }

double Rounds::fraction(Limit limit) const
{
    const std::vector<double> &samples = samples_.at(limit).all;
    std::vector<double> fractions;
    for (std::size_t n = 0; n + 1 < case_.seconds.size(); n++) {
        const double rate = limit == near_ ? samples[n] : mean(samples[0], samples[1]);
        fractions.push_back(units(limit) / case_.seconds[n] / rate);
    }
    return median(fractions);
}

double Rounds::scaling(Limit limit) const
{
    const Samples &samples = samples_.at(limit);
    std::vector<double> ratios;
    for (std::size_t n = 0; n < samples.one.size(); n++)
        ratios.push_back(samples.all[n] / samples.one[n]);
    return median(ratios);
}

void Rounds::report_balance() const
{
    const Samples &samples = samples_.at(near_);
    std::vector<double> raw, corrected;
    for (std::size_t n = 0; n < alone_.seconds.size(); n++) {
        const double ratio = case_seconds(n) / alone_.seconds[n];
        raw.push_back(ratio * threads_);
        corrected.push_back(ratio * samples.all[n] / samples.one[n]);
    }
    state_.counters["balance_raw"] = median(raw);
    state_.counters["balance"] = median(corrected);
    state_.counters["scaling_read"] = scaling(Limit::read);
    state_.counters["scaling_fma"] = scaling(Limit::fma);
}

void Rounds::report() const
{
    constexpr auto per_second = benchmark::Counter::kIsIterationInvariantRate;
    state_.counters["GFLOPs"] = benchmark::Counter(units(Limit::fma) * 1e-9, per_second);
    state_.counters["GBs"] = benchmark::Counter(units(Limit::read) * 1e-9, per_second);
    state_.counters["of_peak"] = fraction(Limit::fma);
    state_.counters["of_bandwidth"] = fraction(Limit::read);
    if (!page_samples_.empty()) {
        std::vector<double> fractions;
        for (std::size_t n = 0; n < page_samples_.size(); n++)
            fractions.push_back(units(Limit::read) / case_.seconds[n] / page_samples_[n]);
        state_.counters["of_pages"] = median(fractions);
    }
    for (std::size_t r = 0; r < rivals_.size(); r++) {
        std::vector<double> ratios;
        for (std::size_t n = 0; n < rivals_[r].seconds.size(); n++)
            ratios.push_back(rivals_[r].seconds[n] / case_seconds(n));
        state_.counters[serving_.rivals()[r].counter] = median(ratios);
    }
    if (serving_.alone() != nullptr)
        report_balance();
}

/* What is wrong with the results of the last runs; empty when nothing is. */
std::string find_fault(ServingCase &serving, double most)
{
    const CacheWorkload &workload = serving.workload();
    const auto excess = [most](const std::string &what, double error) {
        return what + " " + short_number(error) + " exceeds " + short_number(most);
    };
    const double error = workload.error(serving.expected());
    if (!(error <= most))
        return excess("max error", error);
    for (const Rival &rival : serving.rivals()) {
        const double of_rival = rival.workload->error(rival.expected);
        if (!(of_rival <= most))
            return excess(std::string(rival.counter) + ": max error", of_rival);
        if (rival.same_bits && !workload.equals(*rival.workload))
            return std::string(rival.counter) + ": the bits of the results differ";
    }
    if (serving.alone() != nullptr && !workload.equals(*serving.alone()))
        return "the bits of the results on one thread differ";
    return "";
}

} // namespace

bool run_serving(benchmark::State &state, ServingCase &serving, Roofline &roofline, std::optional<double> tolerance)
{
    Rounds rounds(state, serving, roofline);
    attree_status status = ATTREE_OK;
    while (state.KeepRunningBatch(state.max_iterations))
        status = rounds.run(state.max_iterations);
    if (status != ATTREE_OK) {
        state.SkipWithError((std::string(attree_status_name(status)) + ", " + attree_last_error()).c_str());
        return false;
    }
    const std::string fault = find_fault(serving, tolerance.value_or(serving.default_tolerance()));
    if (!fault.empty()) {
        state.SkipWithError(fault.c_str());
        return false;
    }
    const CacheWorkload &workload = serving.workload();
    rounds.report();
    state.counters["max_error"] = workload.error(serving.expected());
    if (workload.tensors().shape().kv_type != ATTREE_F32)
        state.counters["error_vs_f32"] = workload.error_vs_f32(serving.expected());
    state.SetLabel(workload.description());
    return true;
}

} // namespace bench
