/* Arguments, names, JSON, progress. See common.h. */
#include "common.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "require.h"

namespace tool {

bool Arguments::take(const std::string &name)
{
    const auto found = std::find(left_.begin(), left_.end(), name);
    if (found == left_.end())
        return false;
    left_.erase(found);
    return true;
}

bool Arguments::take(const std::string &name, std::string *value)
{
    for (auto found = left_.begin(); found != left_.end(); ++found) {
        if (*found == name) {
            if (found + 1 == left_.end())
                throw UsageError(name + " needs a value");
            *value = found[1];
            left_.erase(found, found + 2);
            return true;
        }
        if (found->rfind(name + "=", 0) == 0) {
            *value = found->substr(name.size() + 1);
            left_.erase(found);
            return true;
        }
    }
    return false;
}

const std::vector<std::string> &Arguments::plain() const
{
    for (const std::string &argument : left_)
        if (argument.size() > 1 && argument[0] == '-')
            throw UsageError("unknown option " + argument);
    return left_;
}

std::int32_t take_threads(Arguments &arguments, std::int32_t otherwise)
{
    constexpr std::int32_t most = 65536;
    std::string text;
    if (!arguments.take("--threads", &text))
        return otherwise;
    std::int32_t threads = 0;
    const char *const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, threads);
    if (error != std::errc() || stop != end || threads < 1 || threads > most)
        throw UsageError("--threads is \"" + text + "\"; it must be a number from 1 to " + std::to_string(most));
    return threads;
}

attree_isa take_isa(Arguments &arguments)
{
    std::string text;
    if (!arguments.take("--isa", &text))
        return ATTREE_ISA_AUTO;
    std::string names;
    for (const attree_isa isa : available_isas()) {
        if (text == isa_name(isa))
            return isa;
        names += names.empty() ? isa_name(isa) : std::string(", ") + isa_name(isa);
    }
    throw UsageError("--isa is \"" + text + "\"; this machine has " + names);
}

const char *isa_name(attree_isa isa)
{
    constexpr const char *names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
    return names[isa];
}

namespace {

struct Destroy {
    void operator()(attree_plan *plan) const { attree_plan_destroy(plan); }
};
using Plan = std::unique_ptr<attree_plan, Destroy>;

attree_desc square(std::int64_t size)
{
    attree_desc desc{};
    desc.size = sizeof desc;
    desc.batch = desc.q_heads = desc.kv_heads = desc.q_len = desc.kv_len = desc.qk_width = desc.v_width = size;
    return desc;
}

} // namespace

std::vector<attree_isa> available_isas()
{
    std::vector<attree_isa> isas;
    for (const attree_isa isa : {ATTREE_ISA_SCALAR, ATTREE_ISA_AVX2, ATTREE_ISA_AVX512, ATTREE_ISA_NEON}) {
        attree_desc desc = square(1);
        desc.isa = isa;
        attree_plan *made = nullptr;
        const attree_status status = attree_plan_create(&made, &desc);
        const Plan plan(made);
        if (status == ATTREE_ERROR_ISA)
            continue;
        bench::require(status, isa_name(isa));
        isas.push_back(isa);
    }
    if (isas.empty())
        throw std::runtime_error(attree_last_error());
    return isas;
}

Chosen describe(const attree_plan *plan)
{
    char text[512], kernel[32] = "";
    Chosen chosen;
    bench::require(attree_plan_describe(plan, text, sizeof text), "attree_plan_describe");
    if (std::sscanf(text, "kernel %31[^,], %d workers", kernel, &chosen.workers) != 2)
        throw std::runtime_error(std::string("a plan describes itself as \"") + text + "\"");
    chosen.kernel = kernel;
    return chosen;
}

Chosen chosen_by_default()
{
    constexpr std::int64_t large = 256;
    const attree_desc desc = square(large);
    attree_plan *made = nullptr;
    bench::require(attree_plan_create(&made, &desc), "attree_plan_create");
    const Plan plan(made);
    return describe(plan.get());
}

std::string hexadecimal(std::uint64_t number)
{
    char text[24];
    (void)std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(number));
    return text;
}

std::string short_number(double number) { return bench::short_number(number); }

std::string json_number(double number)
{
    if (!std::isfinite(number))
        return "null";
    char text[32];
    (void)std::snprintf(text, sizeof text, "%.9g", number);
    return text;
}

std::string json_string(const std::string &text)
{
    std::string json = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            json += '\\';
            json += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            (void)std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
            json += escape;
        } else {
            json += c;
        }
    }
    return json + "\"";
}

std::string json_array(const std::vector<std::string> &elements)
{
    std::string json;
    for (const std::string &element : elements)
        json += (json.empty() ? "" : ", ") + element;
    return "[" + json + "]";
}

JsonObject &JsonObject::add(const std::string &name, const std::string &json)
{
    text_ += (text_.empty() ? "" : ", ") + json_string(name) + ": " + json;
    return *this;
}

Progress::Progress(bool always) : shown_(always || isatty(STDERR_FILENO) != 0) {}

void Progress::show(const std::string &line)
{
    if (!shown_)
        return;
    (void)std::fflush(stdout);
    (void)std::fprintf(stderr, "\r\033[K%s", line.c_str());
    (void)std::fflush(stderr);
    dirty_ = true;
}

void Progress::clear()
{
    if (dirty_)
        (void)std::fputs("\r\033[K", stderr);
    dirty_ = false;
}

} // namespace tool
