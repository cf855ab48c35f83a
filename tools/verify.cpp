/* attree verify: whether this machine has the bits of all others. */
#include <charconv>
#include <chrono>
#include <cstdio>
#include <set>

#include "common.h"
#include "golden.h"
#include "require.h"

namespace tool {

namespace {

struct Check {
    attree_isa isa = ATTREE_ISA_AUTO;
    std::int32_t threads = 0;
    std::uint64_t hash = 0;
    double seconds = 0.0;
};

/* Every instruction set with 1, 3 and all threads; the scalar kernels, which are slow, with 1 and all. */
std::vector<Check> checks(attree_isa isa, std::int32_t threads)
{
    const std::int32_t all = chosen_by_default().workers;
    std::vector<Check> list;
    for (const attree_isa each : available_isas()) {
        if (isa != ATTREE_ISA_AUTO && isa != each)
            continue;
        std::set<std::int32_t> counts{1, all};
        if (each != ATTREE_ISA_SCALAR)
            counts.insert(3);
        if (threads > 0)
            counts = {threads};
        for (const std::int32_t count : counts) {
            Check check;
            check.isa = each;
            check.threads = count;
            list.push_back(check);
        }
    }
    return list;
}

void compute(Check *check)
{
    const auto start = std::chrono::steady_clock::now();
    bench::require(attree_golden_hash(check->isa, check->threads, &check->hash), "the golden hash");
    check->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string check_name(const Check &check)
{
    return std::string(isa_name(check.isa)) + ", " + std::to_string(check.threads) +
           (check.threads == 1 ? " thread" : " threads");
}

std::uint64_t take_expected(Arguments &arguments)
{
    std::string text;
    if (!arguments.take("--expect", &text))
        return ATTREE_GOLDEN;
    const char *first = text.data(), *const end = text.data() + text.size();
    if (text.rfind("0x", 0) == 0)
        first += 2;
    std::uint64_t number = 0;
    const auto [stop, error] = std::from_chars(first, end, number, 16);
    if (error != std::errc() || stop != end)
        throw UsageError("--expect is \"" + text + "\"; it must be up to 16 hexadecimal digits");
    return number;
}

void print_json(const std::vector<Check> &list, std::uint64_t expected, bool same)
{
    std::vector<std::string> elements;
    for (const Check &check : list)
        elements.push_back(JsonObject()
                               .add("isa", json_string(isa_name(check.isa)))
                               .add("threads", std::to_string(check.threads))
                               .add("hash", json_string(hexadecimal(check.hash)))
                               .add("seconds", json_number(check.seconds))
                               .add("same", check.hash == expected ? "true" : "false")
                               .text());
    JsonObject json;
    json.add("version", json_string(attree_version())).add("golden", json_string(hexadecimal(expected)));
    json.add("checks", json_array(elements)).add("same", same ? "true" : "false");
    (void)std::printf("%s\n", json.text().c_str());
}

} // namespace

int verify(Arguments &arguments)
{
    const bool json = arguments.take("--json");
    const std::uint64_t expected = take_expected(arguments);
    const attree_isa isa = take_isa(arguments);
    std::vector<Check> list = checks(isa, take_threads(arguments, 0));
    if (!arguments.plain().empty())
        throw UsageError("verify takes no argument \"" + arguments.plain().front() + "\"");
    bool same = true;
    Progress progress;
    for (std::size_t n = 0; n < list.size(); n++) {
        progress.show(std::to_string(n) + " of " + std::to_string(list.size()) + ": " + check_name(list[n]) + " ...");
        compute(&list[n]);
        const bool fine = list[n].hash == expected;
        same = same && fine;
        progress.clear();
        if (!json)
            (void)std::printf("%-20s %s  %5.2f s  %s\n", check_name(list[n]).c_str(), hexadecimal(list[n].hash).c_str(),
                              list[n].seconds, fine ? "same" : "OTHER");
    }
    if (json)
        print_json(list, expected, same);
    else if (same)
        (void)std::printf("verdict: the bits are those of attree %s everywhere, %s\n", attree_version(),
                          hexadecimal(expected).c_str());
    else
        (void)std::printf("verdict: OTHER BITS than %s; do not compare results of this machine with others\n",
                          hexadecimal(expected).c_str());
    return same ? good : bad;
}

} // namespace tool
