/* attree run: one attention case from a file. */
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "attncase.h"
#include "common.h"
#include "element.h"
#include "reference.h"
#include "require.h"

namespace tool {

namespace {

constexpr std::int64_t reference_rows_most = 64; // in double precision, one number at a time

struct Free {
    void operator()(void *memory) const { std::free(memory); }
    void operator()(attree_plan *plan) const { attree_plan_destroy(plan); }
};

struct Request {
    std::string path, output;
    attree_isa isa = ATTREE_ISA_AUTO;
    std::int32_t threads = 0;
    double tolerance = -1.0; // < 0: what the file's types allow
    bool json = false;
};

struct Outcome {
    std::vector<float> o, lse;
    Chosen chosen;
    double seconds = 0.0;
    double file_error = 0.0, exact_error = 0.0, tolerance = 0.0;
    std::int64_t checked = 0; // rows that were computed in double precision
    bool fine() const { return file_error <= tolerance && exact_error <= tolerance; }
};

Request take_request(Arguments &arguments)
{
    Request request;
    std::string text;
    request.json = arguments.take("--json");
    (void)arguments.take("--output", &request.output);
    if (arguments.take("--tolerance", &text)) {
        const char *const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, request.tolerance);
        if (error != std::errc() || stop != end || !(request.tolerance >= 0.0))
            throw UsageError("--tolerance is \"" + text + "\"; it must be a number, at least 0");
    }
    request.threads = take_threads(arguments, 0);
    request.isa = take_isa(arguments);
    if (arguments.plain().empty())
        throw UsageError("run needs a file");
    if (arguments.plain().size() > 1)
        throw UsageError("run takes one file");
    request.path = arguments.plain().front();
    return request;
}

bench::AttnCase load(const std::string &path)
{
    try {
        return bench::load_attncase(path);
    } catch (const std::runtime_error &error) {
        throw UsageError(error.what());
    }
}

/* The median of runs for a fifth of a second, at least one of them. */
double time_runs(const attree_plan *plan, const attree_args &args)
{
    using Clock = std::chrono::steady_clock;
    constexpr double enough = 0.2;
    std::vector<double> times;
    for (double total = 0.0; total < enough; total += times.back()) {
        const auto start = Clock::now();
        bench::require(attree_run(plan, &args), "attree_run");
        times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

void compute(Outcome *outcome, const bench::AttnCase &input, const Request &request)
{
    attree_desc desc = input.desc;
    desc.isa = request.isa;
    desc.threads = request.threads;
    attree_plan *made = nullptr;
    if (attree_plan_create(&made, &desc) != ATTREE_OK)
        throw UsageError(request.path + ": " + attree_last_error());
    const std::unique_ptr<attree_plan, Free> plan(made);
    outcome->chosen = describe(made);
    outcome->o.resize(input.y.size(), std::nanf(""));
    outcome->lse.resize(input.y.size() / static_cast<std::size_t>(std::max<std::int64_t>(desc.v_width, 1)));
    attree_args args = bench::inputs_of(bench::problem_of(input));
    args.workspace_bytes = attree_plan_workspace(made); // a multiple of 64
    const std::unique_ptr<void, Free> workspace(std::aligned_alloc(64, args.workspace_bytes));
    if (!workspace)
        throw std::bad_alloc();
    args.workspace = workspace.get();
    args.o = outcome->o.data();
    args.lse = outcome->lse.empty() ? nullptr : outcome->lse.data();
    outcome->seconds = time_runs(made, args);
}

void judge(Outcome *outcome, const bench::AttnCase &input, double tolerance)
{
    double largest = 1.0;
    for (std::size_t n = 0; n < input.y.size(); n++) {
        const double expected = input.y[n];
        if (std::isfinite(expected))
            largest = std::max(largest, std::abs(expected));
        outcome->file_error =
            std::max(outcome->file_error, bench::distance(static_cast<double>(outcome->o[n]), expected));
    }
    const std::vector<bench::Row> rows = bench::reference_rows(bench::problem_of(input), reference_rows_most);
    outcome->exact_error = bench::max_error(input.desc, outcome->o.data(), rows);
    outcome->checked = static_cast<std::int64_t>(rows.size());
    outcome->tolerance = tolerance >= 0.0 ? tolerance : input.exactness * largest;
}

/* FNV-1a of the bytes. */
std::uint64_t hash_of(const std::vector<float> &numbers)
{
    std::uint64_t hash = UINT64_C(14695981039346656037);
    const auto *const bytes = reinterpret_cast<const unsigned char *>(numbers.data());
    for (std::size_t n = 0; n < numbers.size() * sizeof(float); n++)
        hash = (hash ^ bytes[n]) * UINT64_C(1099511628211);
    return hash;
}

const char *type_name(std::int32_t type)
{
    constexpr const char *names[] = {"f32", "f16", "bf16"}; // those of files
    return names[type];
}

void write(const std::string &path, const std::vector<float> &numbers)
{
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(numbers.data()),
               static_cast<std::streamsize>(numbers.size() * sizeof(float)));
    if (!file.flush())
        throw std::runtime_error(path + " cannot be written");
}

void print_json(const bench::AttnCase &input, const Outcome &outcome)
{
    const attree_desc &d = input.desc;
    JsonObject shape, json;
    const std::pair<const char *, std::int64_t> sizes[] = {
        {"batch", d.batch},   {"q_heads", d.q_heads},   {"kv_heads", d.kv_heads}, {"q_len", d.q_len},
        {"kv_len", d.kv_len}, {"qk_width", d.qk_width}, {"v_width", d.v_width}};
    for (const auto &[name, size] : sizes)
        shape.add(name, std::to_string(size));
    json.add("version", json_string(attree_version())).add("case", json_string(input.name));
    json.add("problem", shape.text()).add("kv_type", json_string(type_name(d.k_type)));
    json.add("isa", json_string(outcome.chosen.kernel)).add("threads", std::to_string(outcome.chosen.workers));
    json.add("o_hash", json_string(hexadecimal(hash_of(outcome.o))));
    json.add("lse_hash", json_string(hexadecimal(hash_of(outcome.lse))));
    json.add("error", json_number(outcome.file_error)).add("error_vs_f64", json_number(outcome.exact_error));
    json.add("tolerance", json_number(outcome.tolerance)).add("seconds", json_number(outcome.seconds));
    json.add("good", outcome.fine() ? "true" : "false");
    (void)std::printf("%s\n", json.text().c_str());
}

std::string first_numbers(const std::vector<float> &numbers)
{
    constexpr std::size_t most = 4;
    std::string text;
    for (std::size_t n = 0; n < std::min(most, numbers.size()); n++) {
        char digits[32];
        (void)std::snprintf(digits, sizeof digits, "%.9g, ", static_cast<double>(numbers[n]));
        text += digits;
    }
    return text + (numbers.size() > most ? "... " : "") + std::to_string(numbers.size()) + " numbers, hash " +
           hexadecimal(hash_of(numbers));
}

void print_text(const bench::AttnCase &input, const Outcome &outcome)
{
    const attree_desc &d = input.desc;
    (void)std::printf("case      %s\n", input.name.c_str());
    (void)std::printf("problem   B %lld, H %lld, G %lld, Q %lld, K %lld, D %lld, E %lld; K and V in %s\n",
                      static_cast<long long>(d.batch), static_cast<long long>(d.q_heads),
                      static_cast<long long>(d.kv_heads), static_cast<long long>(d.q_len),
                      static_cast<long long>(d.kv_len), static_cast<long long>(d.qk_width),
                      static_cast<long long>(d.v_width), type_name(d.k_type));
    (void)std::printf("kernels   %s, %d workers\n", outcome.chosen.kernel.c_str(),
                      static_cast<int>(outcome.chosen.workers));
    (void)std::printf("o         %s\n", first_numbers(outcome.o).c_str());
    (void)std::printf("lse       %s\n", first_numbers(outcome.lse).c_str());
    (void)std::printf("time      %.4g ms\n", outcome.seconds * 1e3);
    (void)std::printf("error     %s against the file; %s against double precision on %lld rows\n",
                      short_number(outcome.file_error).c_str(), short_number(outcome.exact_error).c_str(),
                      static_cast<long long>(outcome.checked));
    (void)std::printf("verdict   %s %s\n",
                      outcome.fine() ? "good: no error exceeds" : "the error is too large: more than",
                      short_number(outcome.tolerance).c_str());
}

} // namespace

int run(Arguments &arguments)
{
    const Request request = take_request(arguments);
    const bench::AttnCase input = load(request.path);
    Outcome outcome;
    {
        Progress progress;
        progress.show("computing " + input.name + " ...");
        compute(&outcome, input, request);
        progress.show("computing some rows in double precision ...");
        judge(&outcome, input, request.tolerance);
    }
    if (!request.output.empty())
        write(request.output, outcome.o);
    if (request.json)
        print_json(input, outcome);
    else
        print_text(input, outcome);
    return outcome.fine() ? good : bad;
}

} // namespace tool
