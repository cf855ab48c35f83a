/* attree_bench: registers what the command line asks for with Google Benchmark, and runs it. */
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attncase.h"
#include "attree/attree.h"
#include "case_runner.h"
#include "machine.h"
#include "masks.h"
#include "openblas.h"
#include "options.h"
#include "presets.h"
#include "report.h"
#include "roofline.h"
#include "serving_case.h"
#include "serving_runner.h"
#include "unfused.h"
#include "workload.h"

namespace bench {

namespace {

using MakeWorkload = std::function<std::unique_ptr<Workload>()>;

/* Whether a case is compared with the unfused baseline. */
enum class Compare { no, unfused };

/* What benchmark functions share. Workloads can be large, so only the last one is kept: the library calls a function
 * several times in a row. */
class Session {
  public:
    explicit Session(const Options &options)
        : isa_(default_isa()), blas_(options.unfused ? OpenBlas::load() : nullptr), tolerance_(options.tolerance)
    {
        if (blas_)
            baseline_ = blas_->description();
        else
            baseline_ = options.unfused ? "none, libopenblas.so.0 was not found" : "none, as asked for";
    }

    const std::string &isa() const { return isa_; }
    const std::string &baseline() const { return baseline_; }
    bool failed() const { return failed_; }

    void run(benchmark::State &state, const std::string &name, const MakeWorkload &make, Compare compare)
    {
        guard(state, [&] {
            if (name != name_)
                prepare(name, make, compare);
            return run_case(state, *workload_, unfused_.get(), roofline(), tolerance_);
        });
    }

    void run(benchmark::State &state, const Shape &serving)
    {
        guard(state, [&] {
            if (const std::string name = shape_name(serving); name != name_) {
                clear();
                serving_ = std::make_unique<ServingCase>(serving);
                name_ = name;
            }
            return run_serving(state, *serving_, roofline(), tolerance_);
        });
    }

    void run_limit_alone(benchmark::State &state, Limit limit, int threads)
    {
        guard(state, [&] {
            run_limit(state, roofline(), limit, threads);
            return true;
        });
    }

  private:
    template <class Function> void guard(benchmark::State &state, Function function)
    {
        try {
            if (!function())
                failed_ = true;
        } catch (const std::exception &error) {
            state.SkipWithError(error.what());
            failed_ = true;
        }
    }

    /* When what follows throws, the next case is prepared anew, whatever its name. */
    void clear()
    {
        name_.clear();
        unfused_.reset();
        workload_.reset();
        serving_.reset();
    }

    void prepare(const std::string &name, const MakeWorkload &make, Compare compare)
    {
        clear();
        workload_ = make();
        if (blas_ && compare == Compare::unfused)
            unfused_ = Unfused::make(*blas_, *workload_);
        name_ = name;
    }

    Roofline &roofline()
    {
        if (!roofline_)
            roofline_ = std::make_unique<Roofline>(isa_);
        return *roofline_;
    }

    std::string isa_, baseline_;
    std::unique_ptr<const OpenBlas> blas_;
    std::optional<double> tolerance_;
    std::unique_ptr<Roofline> roofline_;
    std::string name_;
    std::unique_ptr<Workload> workload_;
    std::unique_ptr<Unfused> unfused_; // refers to the two above
    std::unique_ptr<ServingCase> serving_;
    bool failed_ = false;
};

template <class Function> void add(const std::string &name, Function function)
{
    benchmark::RegisterBenchmark(name.c_str(), function)
        ->MeasureProcessCPUTime()
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
}

void add_case(Session &session, const std::string &name, const MakeWorkload &make, Compare compare)
{
    add(name, [&session, name, make, compare](benchmark::State &state) { session.run(state, name, make, compare); });
}

void add_shape(Session &session, const Shape &shape)
{
    if (is_serving(shape))
        add(shape_name(shape), [&session, shape](benchmark::State &state) { session.run(state, shape); });
    else
        add_case(
            session, shape_name(shape), [shape] { return std::make_unique<Workload>(shape); }, Compare::unfused);
}

void add_file(Session &session, const std::string &path)
{
    const auto input = std::make_shared<const AttnCase>(load_attncase(path));
    for (const int threads : thread_counts())
        add_case(
            session, "case/" + input->name + "/T" + std::to_string(threads),
            [input, threads] { return std::make_unique<Workload>(*input, threads); }, Compare::no);
}

void add_limits(Session &session)
{
    constexpr std::pair<const char *, Limit> limits[] = {{"read", Limit::read}, {"fma_f32", Limit::fma}};
    for (const auto &[name, limit] : limits)
        for (const int threads : thread_counts())
            add("roofline/" + std::string(name) + "/T" + std::to_string(threads),
                [&session, limit = limit, threads](benchmark::State &state) {
                    session.run_limit_alone(state, limit, threads);
                });
}

std::vector<Shape> shapes_of(const Options &options)
{
    if (!options.shapes.empty() || !options.cases.empty())
        return options.shapes;
    if (options.serving)
        return options.short_set ? short_serving_shapes() : serving_shapes();
    return options.short_set ? short_shapes() : default_shapes();
}

void add_all(Session &session, const Options &options)
{
    if (options.shapes.empty() && options.cases.empty())
        add_limits(session);
    for (const Shape &shape : shapes_of(options))
        add_shape(session, shape);
    for (const std::string &path : options.cases)
        add_file(session, path);
}

/* What the table has columns for. */
Columns columns_of(const Options &options)
{
    const std::vector<Shape> shapes = shapes_of(options);
    const bool serving = std::any_of(shapes.begin(), shapes.end(), is_serving);
    const bool others = !options.cases.empty() || !std::all_of(shapes.begin(), shapes.end(), is_serving);
    return serving ? others ? Columns::all : Columns::serving : Columns::unfused;
}

/* Gives Google Benchmark its options; it keeps pointers into them. Returns false when one means nothing to it. */
bool initialize_library(Options &options)
{
    std::vector<char *> arguments;
    for (std::string &argument : options.rest)
        arguments.push_back(argument.data());
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    benchmark::Initialize(&count, arguments.data());
    if (benchmark::ReportUnrecognizedArguments(count, arguments.data()))
        return false;
    std::string filter = benchmark::GetBenchmarkFilter();
    if (!filter.empty() && filter.back() == '$') // the end of the plain name
        benchmark::SetBenchmarkFilter(filter.insert(filter.size() - 1, name_suffix));
    return true;
}

/* Whether the library was asked for a JSON file. */
bool wants_json_file(const Options &options)
{
    bool file = false, json = true;
    const std::string format = "--benchmark_out_format=";
    for (const std::string &argument : options.rest) {
        file = file || argument.rfind("--benchmark_out=", 0) == 0;
        if (argument.rfind(format, 0) == 0)
            json = argument.substr(format.size()) == "json";
    }
    return file && json;
}

/* Runs what was registered; returns whether there was anything. */
bool run_all(const Options &options, const Session &session)
{
    TableReporter table(session.isa(), session.baseline(), columns_of(options));
    benchmark::BenchmarkReporter *const chosen = benchmark::CreateDefaultDisplayReporter();
    PlainNameReporter plain(*chosen);
    benchmark::JSONReporter json;
    PlainNameReporter file(json);
    const bool for_people = dynamic_cast<benchmark::ConsoleReporter *>(chosen) != nullptr;
    benchmark::BenchmarkReporter *display = &plain;
    if (for_people)
        display = &table;
    return benchmark::RunSpecifiedBenchmarks(display, wants_json_file(options) ? &file : nullptr) > 0;
}

int run(int argc, char **argv)
{
    Options options = parse_options(argc, argv);
    if (options.help) {
        (void)std::fputs(help_text, stdout);
        benchmark::PrintDefaultHelp();
        return 0;
    }
    if (options.masks) {
        print_masks();
        return 0;
    }
    if (!initialize_library(options))
        return 1;
    Session session(options);
    benchmark::AddCustomContext("attree_version", attree_version());
    benchmark::AddCustomContext("attree_isa", session.isa());
    benchmark::AddCustomContext("unfused_baseline", session.baseline());
    add_all(session, options);
    const bool ran = run_all(options, session);
    benchmark::Shutdown();
    return ran && !session.failed() ? 0 : 1;
}

} // namespace

} // namespace bench

int main(int argc, char **argv)
{
    try {
        return bench::run(argc, argv);
    } catch (const std::exception &error) {
        (void)std::fprintf(stderr, "attree_bench: %s\n", error.what());
        return 1;
    }
}
