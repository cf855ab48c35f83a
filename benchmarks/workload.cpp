/* Setting up what is measured. See workload.h. */
#include "workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "element.h"
#include "random.h"
#include "require.h"

namespace bench {

namespace {

constexpr std::int64_t checked_rows = 8;

Buffer random_elements(std::int32_t type, std::int64_t count, std::uint64_t seed)
{
    Buffer buffer(static_cast<std::size_t>(count) * element_bytes(type));
    void *const elements = buffer.as<void>();
#pragma omp parallel for schedule(static)
    for (std::int64_t n = 0; n < count; n++)
        store_element(type, elements, n, random_normal(seed, static_cast<std::uint64_t>(n)));
    return buffer;
}

Buffer copy_bytes(const void *from, std::size_t bytes)
{
    constexpr std::size_t chunk = std::size_t{1} << 20;
    Buffer buffer(bytes);
    char *const to = buffer.as<char>();
#pragma omp parallel for schedule(static)
    for (std::size_t at = 0; at < bytes; at += chunk)
        std::memcpy(to + at, static_cast<const char *>(from) + at, std::min(chunk, bytes - at));
    return buffer;
}

Buffer copy_of(const std::vector<std::byte> &from) { return copy_bytes(from.data(), from.size()); }

attree_desc describe(const Shape &shape)
{
    attree_desc desc{};
    desc.size = sizeof desc;
    desc.batch = 1;
    desc.q_heads = shape.q_heads;
    desc.kv_heads = shape.kv_heads;
    desc.q_len = shape.queries;
    desc.kv_len = shape.keys;
    desc.qk_width = shape.width;
    desc.v_width = shape.width;
    desc.q = desc.o = heads_outside(shape.q_heads, shape.queries, shape.width);
    desc.k = desc.v = heads_outside(shape.kv_heads, shape.keys, shape.width);
    desc.flags = shape.causal ? ATTREE_CAUSAL : 0;
    desc.k_type = desc.v_type = shape.kv_type;
    desc.threads = shape.threads;
    return desc;
}

std::int64_t count_copies(const Shape &shape, const attree_desc &desc)
{
    if (shape.phase != Phase::decode || shape.hot)
        return 1;
    return copies_beyond_caches(kv_bytes(desc));
}

/* Q, O and all copies must fit three quarters of the memory. Dimensions are below 2^31, so a product of three of them
 * may overflow, but not their sum of doubles. */
void require_memory(const Shape &shape)
{
    const double width = static_cast<double>(shape.width);
    const double q = width * static_cast<double>(shape.q_heads) * static_cast<double>(shape.queries);
    const double k = width * static_cast<double>(shape.kv_heads) * static_cast<double>(shape.keys);
    const double bytes = 2.0 * q * sizeof(float) + 2.0 * k * static_cast<double>(element_bytes(shape.kv_type));
    if (bytes > 0.75 * static_cast<double>(memory_bytes()))
        throw std::runtime_error("the tensors need " + std::to_string(std::llround(std::ceil(bytes * 0x1p-30))) +
                                 " GiB, more than this machine should give");
}

std::vector<Row> rows_of(const AttnCase &input)
{
    const attree_desc &desc = input.desc;
    std::vector<Row> rows;
    if (input.y.empty())
        return rows; // dimensions may be huge then
    for (std::int64_t b = 0; b < desc.batch; b++)
        for (std::int64_t h = 0; h < desc.q_heads; h++)
            for (std::int64_t i = 0; i < desc.q_len; i++) {
                const std::int64_t at = b * desc.o.batch + h * desc.o.head + i * desc.o.token;
                const auto first = input.y.begin() + at;
                rows.push_back({b, h, i, std::vector<double>(first, first + desc.v_width)});
            }
    return rows;
}

/* "kernel NAME, ..." */
std::string kernel_name(const std::string &description)
{
    const std::string before = "kernel ";
    const std::size_t end = description.find(',');
    if (description.compare(0, before.size(), before) != 0 || end == std::string::npos)
        throw std::runtime_error("attree describes its plan in a way that is not understood: " + description);
    return description.substr(before.size(), end - before.size());
}

} // namespace

/* Makes the plan and everything that depends on it. */
void Workload::plan()
{
    attree_plan *made = nullptr;
    require(attree_plan_create(&made, &problem_.desc), "attree_plan_create");
    plan_.reset(made);
    char text[512];
    require(attree_plan_describe(made, text, sizeof text), "attree_plan_describe");
    description_ = text;
    workspace_ = Buffer(attree_plan_workspace(made));
}

void Workload::point_to_tensors()
{
    problem_.q = q_.as<void>();
    problem_.k = k_[0].as<void>();
    problem_.v = v_[0].as<void>();
}

/* The reference uses the exact values of 16-bit keys and values too, so the type does not matter: an output of size 1
 * is a few ulp, some 2^-24 each, from it. */
Workload::Workload(const Shape &shape) : exactness_(2e-6)
{
    require_memory(shape);
    problem_.desc = describe(shape);
    plan();
    const std::int64_t q_count = shape.q_heads * shape.queries * shape.width;
    const std::int64_t kv_count = shape.kv_heads * shape.keys * shape.width;
    q_ = random_elements(ATTREE_F32, q_count, 1);
    o_ = Buffer(static_cast<std::size_t>(q_count) * sizeof(float));
    k_.push_back(random_elements(shape.kv_type, kv_count, 2));
    v_.push_back(random_elements(shape.kv_type, kv_count, 3));
    point_to_tensors();
    streams_ = shape.phase == Phase::decode && !shape.hot;
    const std::size_t bytes = static_cast<std::size_t>(kv_count) * element_bytes(shape.kv_type);
    for (std::int64_t copies = count_copies(shape, problem_.desc); copies > 1; copies--) {
        k_.push_back(copy_bytes(k_[0].as<void>(), bytes));
        v_.push_back(copy_bytes(v_[0].as<void>(), bytes));
    }
    expected_ = reference_rows(problem_, checked_rows);
}

Workload::Workload(const AttnCase &input, int threads)
    : kv_lens_(input.kv_lens), q_offsets_(input.q_offsets), exactness_(input.exactness)
{
    problem_.desc = input.desc;
    problem_.desc.kv_lens = kv_lens_.empty() ? nullptr : kv_lens_.data();
    problem_.desc.q_offsets = q_offsets_.empty() ? nullptr : q_offsets_.data();
    problem_.desc.threads = threads;
    plan();
    q_ = copy_of(input.q);
    k_.push_back(copy_of(input.k));
    v_.push_back(copy_of(input.v));
    o_ = Buffer(input.y.size() * sizeof(float));
    point_to_tensors();
    if (!input.mask.empty())
        problem_.mask = (mask_ = copy_of(input.mask)).as<void>();
    if (!input.bias.empty())
        problem_.bias = (bias_ = copy_of(input.bias)).as<void>();
    expected_ = rows_of(input);
}

attree_status Workload::run()
{
    attree_args args = inputs_of(problem_);
    args.k = k_[next_copy_].as<void>();
    args.v = v_[next_copy_].as<void>();
    args.o = o_.as<float>();
    args.workspace = workspace_.as<void>();
    args.workspace_bytes = workspace_bytes();
    next_copy_ = next_copy_ + 1 < k_.size() ? next_copy_ + 1 : 0;
    return attree_run(plan_.get(), &args);
}

double Workload::error() const { return max_error(problem_.desc, o_.as<float>(), expected_); }

double Workload::default_tolerance() const
{
    double largest = 1.0;
    for (const Row &row : expected_)
        for (const double number : row.o)
            if (std::isfinite(number))
                largest = std::max(largest, std::abs(number));
    return exactness_ * largest;
}

std::string default_isa()
{
    Shape shape;
    return kernel_name(Workload(shape).description());
}

} // namespace bench
