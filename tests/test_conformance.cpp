/* Every .attncase file of the directories given: with each instruction set of this machine and with one and three
 * workers the results are the same bits, close to the expected output in the file, and to the benchmark's reference in
 * double precision, which is closer to the truth than what a file says that was computed in f16. */
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attncase.h"
#include "attree/attree.h"
#include "element.h"
#include "problem.h"
#include "reference.h"

namespace {

/* Rows of the reference are computed one number at a time: long files get this many, spread over all. */
constexpr std::int64_t reference_rows_most = 200;

/* Errors that are in order, relative to 1 + |what is expected|. What f16 files expect was computed in f16. */
constexpr double f32_exactness = 5e-7, f16_exactness = 1e-3;

struct Result {
    std::vector<std::byte> o;
    std::vector<float> lse;
};

struct Setting {
    attree_isa isa = ATTREE_ISA_SCALAR;
    std::int32_t threads = 1;
};

/* The largest error, relative to 1 + |what is expected|, and where. */
struct Worst {
    double error = 0.0;
    std::string where = "nowhere";
};

struct Totals {
    int files = 0, failures = 0;
    Worst f32, f16, reference;
};

const char *isa_name(attree_isa isa)
{
    constexpr const char *names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
    return names[isa];
}

[[noreturn]] void fail(const std::string &problem) { throw std::runtime_error(problem); }

std::string text(double number)
{
    char digits[32];
    (void)std::snprintf(digits, sizeof digits, "%.9g", number);
    return digits;
}

void require(attree_status status, const std::string &where)
{
    if (status != ATTREE_OK)
        fail(where + ": " + attree_status_name(status) + ", " + attree_last_error());
}

std::vector<attree_isa> available_isas()
{
    std::vector<attree_isa> isas;
    for (const attree_isa isa : {ATTREE_ISA_SCALAR, ATTREE_ISA_AVX2, ATTREE_ISA_AVX512, ATTREE_ISA_NEON}) {
        attree_desc desc{};
        desc.size = sizeof desc;
        desc.batch = desc.q_heads = desc.kv_heads = desc.q_len = desc.kv_len = desc.qk_width = desc.v_width = 1;
        desc.isa = isa;
        attree_plan *plan = nullptr;
        const attree_status status = attree_plan_create(&plan, &desc);
        attree_plan_destroy(plan);
        if (status == ATTREE_ERROR_ISA)
            continue;
        require(status, isa_name(isa));
        isas.push_back(isa);
    }
    return isas;
}

/* Results start as NaN, so that one that is not written shows. */
Result compute(const bench::AttnCase &input, std::int32_t o_type, const Setting &setting)
{
    attree_desc desc = input.desc;
    desc.o_type = o_type;
    desc.isa = setting.isa;
    desc.threads = setting.threads;
    const std::size_t rows = input.y.size() / static_cast<std::size_t>(std::max<std::int64_t>(desc.v_width, 1));
    Result result{std::vector<std::byte>(input.y.size() * bench::element_bytes(o_type), std::byte{0xff}),
                  std::vector<float>(rows, std::nanf(""))};
    attree_args args = bench::inputs_of(bench::problem_of(input));
    args.o = result.o.data();
    args.lse = result.lse.empty() ? nullptr : result.lse.data();
    require(attree_attention(&desc, &args), input.name);
    return result;
}

template <class T> bool same_bits(const std::vector<T> &a, const std::vector<T> &b)
{
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/* One result of all settings. */
Result compute_everywhere(const bench::AttnCase &input, std::int32_t o_type, const std::vector<attree_isa> &isas)
{
    std::optional<Result> first;
    for (const attree_isa isa : isas)
        for (const std::int32_t threads : {1, 3}) {
            Result result = compute(input, o_type, {isa, threads});
            if (!first)
                first = std::move(result);
            else if (!same_bits(first->o, result.o) || !same_bits(first->lse, result.lse))
                fail(input.name + ": " + isa_name(isa) + " with " + std::to_string(threads) +
                     " workers: other bits than scalar with 1");
        }
    return *first;
}

/* What an error may be, and where the largest is kept. */
struct Bound {
    Worst &worst;
    double exactness;
};

void judge(const Bound &bound, double number, double expected, const std::string &where)
{
    const double size = std::isfinite(expected) ? std::abs(expected) : 0.0;
    const double error = bench::distance(number, expected) / (1.0 + size); // infinite where just one is NaN
    if (error > bound.worst.error)
        bound.worst = {error, where};
    if (!(error <= bound.exactness))
        fail(where + ": " + text(number) + ", expected " + text(expected));
}

void compare_with_file(const bench::AttnCase &input, std::int32_t o_type, const Result &result, const Bound &bound)
{
    for (std::size_t n = 0; n < input.y.size(); n++) {
        const float number = bench::load_element(o_type, result.o.data(), static_cast<std::int64_t>(n));
        judge(bound, static_cast<double>(number), input.y[n], input.name + ", element " + std::to_string(n));
    }
}

void compare_with_reference(const bench::AttnCase &input, const Result &result, const Bound &bound)
{
    const attree_strides &o = input.desc.o;
    for (const bench::Row &row : bench::reference_rows(bench::problem_of(input), reference_rows_most)) {
        std::int64_t at = row.batch * o.batch + row.head * o.head + row.query * o.token;
        for (const double expected : row.o) {
            judge(bound, static_cast<double>(bench::load_element(ATTREE_F32, result.o.data(), at)), expected,
                  input.name + ", element " + std::to_string(at) + " of the reference");
            at += o.width;
        }
    }
}

void check_file(const std::string &path, const std::vector<attree_isa> &isas, Totals &totals)
{
    const bench::AttnCase input = bench::load_attncase(path);
    const bool half = input.desc.q_type == ATTREE_F16;
    const Bound by_file{half ? totals.f16 : totals.f32, half ? f16_exactness : f32_exactness};
    const Result result = compute_everywhere(input, ATTREE_F32, isas);
    compare_with_file(input, ATTREE_F32, result, by_file);
    compare_with_reference(input, result, {totals.reference, f32_exactness});
    if (half)
        compare_with_file(input, ATTREE_F16, compute_everywhere(input, ATTREE_F16, isas), by_file);
}

std::vector<std::string> case_files(const std::string &directory)
{
    std::vector<std::string> paths;
    for (const auto &entry : std::filesystem::recursive_directory_iterator(directory))
        if (entry.is_regular_file() && entry.path().extension() == ".attncase")
            paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    return paths;
}

void check_directory(const std::string &directory, const std::vector<attree_isa> &isas, Totals &totals)
{
    const std::vector<std::string> paths = case_files(directory);
    if (paths.empty())
        fail(directory + " has no .attncase file");
    for (const std::string &path : paths) {
        totals.files++;
        try {
            check_file(path, isas, totals);
        } catch (const std::exception &error) {
            totals.failures++;
            (void)std::fprintf(stderr, "%s\n", error.what());
        }
    }
}

void print(const char *what, const Worst &worst)
{
    (void)std::printf("worst error, %s: %.2g (%s)\n", what, worst.error, worst.where.c_str());
}

int run(const std::vector<std::string> &directories)
{
    if (directories.empty())
        fail("usage: test_conformance DIRECTORY...");
    const std::vector<attree_isa> isas = available_isas();
    Totals totals;
    for (const std::string &directory : directories)
        check_directory(directory, isas, totals);
    (void)std::printf("%d files, %d failures;", totals.files, totals.failures);
    for (const attree_isa isa : isas)
        (void)std::printf(" %s", isa_name(isa));
    (void)std::printf("\n");
    print("f32 files", totals.f32);
    print("f16 files", totals.f16);
    print("reference", totals.reference);
    return totals.failures == 0 ? 0 : 1;
}

} // namespace

int main(int argc, char **argv)
{
    try {
        return run(std::vector<std::string>(argv + 1, argv + argc));
    } catch (const std::exception &error) {
        (void)std::fprintf(stderr, "test_conformance: %s\n", error.what());
        return 1;
    }
}
