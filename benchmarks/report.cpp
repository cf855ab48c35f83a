/* Reporters. See report.h. */
#include "report.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <vector>

#include "attree/attree.h"
#include "machine.h"

namespace bench {

const char name_suffix[] = "/process_time/real_time";

namespace {

using Run = benchmark::BenchmarkReporter::Run;

struct Column {
    const char *counter, *title;
    double factor;
    const char *format;
    Columns set; // all: a counter that all cases have
};

/* Each is column_width wide. */
constexpr int column_width = 10;
constexpr Column columns[] = {
    {"GFLOPs", "GFLOP/s", 1.0, "%10.1f", Columns::all},
    {"GBs", "GB/s", 1.0, "%10.2f", Columns::all},
    {"of_peak", "of peak", 100.0, "%9.1f%%", Columns::all},
    {"of_bandwidth", "of bandw.", 100.0, "%9.1f%%", Columns::all},
    {"vs_unfused", "vs unfused", 1.0, "%9.2fx", Columns::unfused},
    {"of_pages", "of pages", 100.0, "%9.1f%%", Columns::serving},
    {"vs_dense", "vs dense", 1.0, "%9.2fx", Columns::serving},
    {"vs_f16", "vs f16", 1.0, "%9.2fx", Columns::serving},
    {"balance_raw", "bal. raw", 1.0, "%10.2f", Columns::serving},
    {"balance", "balance", 1.0, "%10.2f", Columns::serving},
    {"error_vs_f32", "err vs f32", 1.0, "%10.1e", Columns::serving},
    {"max_error", "max error", 1.0, "%10.1e", Columns::all},
};

std::vector<Column> columns_for(Columns set)
{
    std::vector<Column> chosen;
    for (const Column &column : columns)
        if (column.set == Columns::all || set == Columns::all || column.set == set)
            chosen.push_back(column);
    return chosen;
}

Run with_plain_name(Run run)
{
    run.run_name.time_type.clear();
    return run;
}

std::string format(const char *pattern, double value)
{
    char text[64];
    (void)std::snprintf(text, sizeof text, pattern, value);
    return text;
}

std::string pad_left(const std::string &text, std::size_t width)
{
    return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

std::string pad_right(const std::string &text, std::size_t width)
{
    return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

/* A coefficient of variation and the like: a ratio, whatever was measured. */
bool is_ratio(const Run &run)
{
    return run.run_type == Run::RT_Aggregate && run.aggregate_unit == benchmark::kPercentage;
}

std::string format_time(const Run &run)
{
    if (is_ratio(run))
        return format("%9.1f%%", run.real_accumulated_time * 100.0);
    const double seconds = run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
    if (seconds < 1e-3)
        return format("%7.2f us", seconds * 1e6);
    if (seconds < 1.0)
        return format("%7.2f ms", seconds * 1e3);
    return format("%7.2f s ", seconds);
}

} // namespace

bool TableReporter::ReportContext(const Context &context)
{
    const std::size_t suffix = std::strlen(name_suffix), title = 4;
    name_width_ = std::max(title, context.name_field_width > suffix ? context.name_field_width - suffix : 0);
    std::ostream &out = GetOutputStream();
    out << "attree " << attree_version() << ", kernels: " << isa_ << "; processors: " << processor_count()
        << ", last-level caches: " << last_level_cache_bytes() / (1 << 20) << " MiB";
    if (!context.cpu_info.load_avg.empty())
        out << "; load average: " << format("%.2f", context.cpu_info.load_avg[0]);
    out << "\nunfused baseline: " << baseline_ << "\n\n";
    out << pad_right("case", name_width_) << pad_left("time", column_width + 1);
    const std::vector<Column> chosen = columns_for(columns_);
    for (const Column &column : chosen)
        out << ' ' << pad_left(column.title, column_width);
    out << '\n' << std::string(name_width_ + (column_width + 1) * (1 + chosen.size()), '-') << '\n';
    return true;
}

void TableReporter::print_run(const Run &run)
{
    std::ostream &out = GetOutputStream();
    out << pad_right(with_plain_name(run).benchmark_name(), name_width_) << ' ';
    if (run.error_occurred) {
        out << "ERROR: " << run.error_message << '\n';
        return;
    }
    out << pad_left(format_time(run), column_width);
    for (const Column &column : columns_for(columns_)) {
        const auto found = run.counters.find(column.counter);
        std::string cell;
        if (found != run.counters.end())
            cell = is_ratio(run) ? format("%9.1f%%", found->second.value * 100.0)
                                 : format(column.format, found->second.value * column.factor);
        out << ' ' << pad_left(cell, column_width);
    }
    out << std::endl; // a line is to be seen when it is there, not when all is done
}

void TableReporter::ReportRuns(const std::vector<Run> &runs)
{
    for (const Run &run : runs)
        print_run(run);
}

bool PlainNameReporter::ReportContext(const Context &context)
{
    inner_.SetOutputStream(&GetOutputStream());
    inner_.SetErrorStream(&GetErrorStream());
    return inner_.ReportContext(context);
}

void PlainNameReporter::ReportRuns(const std::vector<Run> &runs)
{
    std::vector<Run> plain;
    std::transform(runs.begin(), runs.end(), std::back_inserter(plain), with_plain_name);
    inner_.ReportRuns(plain);
}

void PlainNameReporter::Finalize() { inner_.Finalize(); }

} // namespace bench
