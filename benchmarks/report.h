/* Results for people and for programs. Both use the names of shape.h, without what Google Benchmark appends to them. */
#ifndef ATTREE_BENCH_REPORT_H
#define ATTREE_BENCH_REPORT_H

#include <benchmark/benchmark.h>

#include <cstddef>
#include <string>

namespace bench {

/* What Google Benchmark appends to the name of a benchmark with MeasureProcessCPUTime and UseRealTime. */
extern const char name_suffix[];

/* Which counters have a column, beside those that all cases have. */
enum class Columns { unfused, serving, all };

/* A few words about the machine, then one line for each result. Missing counters are left blank. */
class TableReporter : public benchmark::BenchmarkReporter {
  public:
    /* With the instruction set that attree uses, and what the unfused baseline runs on. */
    TableReporter(const std::string &isa, const std::string &baseline, Columns columns)
        : isa_(isa), baseline_(baseline), columns_(columns)
    {
    }

    bool ReportContext(const Context &context) override;
    void ReportRuns(const std::vector<Run> &runs) override;

  private:
    void print_run(const Run &run);

    std::string isa_, baseline_;
    Columns columns_;
    std::size_t name_width_ = 0;
};

/* Passes everything on to another reporter, which must outlive it, with plain names. */
class PlainNameReporter : public benchmark::BenchmarkReporter {
  public:
    explicit PlainNameReporter(benchmark::BenchmarkReporter &inner) : inner_(inner) {}

    bool ReportContext(const Context &context) override;
    void ReportRuns(const std::vector<Run> &runs) override;
    void Finalize() override;

  private:
    benchmark::BenchmarkReporter &inner_;
};

} // namespace bench

#endif // ATTREE_BENCH_REPORT_H
