/* Caches of all kinds. See cache_workload.h. */
#include "cache_workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cache_numbers.h"
#include "random.h"
#include "require.h"

namespace bench {

namespace {

constexpr std::uint64_t table_seed = 4;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

void copy_bytes(const Buffer &from, const Buffer &to, std::size_t bytes)
{
    constexpr std::size_t chunk = std::size_t{1} << 20;
#pragma omp parallel for schedule(static)
    for (std::size_t at = 0; at < bytes; at += chunk)
        std::memcpy(to.as<char>() + at, from.as<char>() + at, std::min(chunk, bytes - at));
}

} // namespace

/* A token of a head: its number among the random rows; the head of a page where it lies, and its number there. */
struct CacheTensors::Room {
    std::int64_t source, place, token;
};

CacheTensors::CacheTensors(const Shape &shape) : shape_(shape), sequences_(sequences_of(shape))
{
    container_tokens_ = sequences_.total_keys();
    if (shape.page > 0)
        make_table();
    std::vector<float> row(static_cast<std::size_t>(shape.width));
    const std::int64_t q_rows = shape.q_heads * sequences_.total_queries();
    q_ = Buffer(static_cast<std::size_t>(q_rows * shape.width) * sizeof(float));
    for (std::int64_t n = 0; n < q_rows; n++) {
        random_row(Tensor::q, n, row);
        std::copy(row.begin(), row.end(), q_.as<float>() + n * shape.width);
    }
    copies_.push_back(make_copy());
    require(fill(copies_[0]), "attree_quantize");
    const bool one = shape.phase == Phase::prefill || shape.hot;
    for (std::int64_t more = one ? 0 : copies_beyond_caches(bytes()) - 1; more > 0; more--) {
        copies_.push_back(make_copy());
        const Copy &from = copies_.front(), &to = copies_.back();
        copy_bytes(from.k, to.k, tensor_bytes(shape.panels));
        copy_bytes(from.v, to.v, tensor_bytes(false));
        if (shape.kv_type == ATTREE_I8) {
            const std::size_t rows = static_cast<std::size_t>(containers_ * shape.kv_heads * container_tokens_);
            copy_bytes(from.k_scales, to.k_scales, rows * sizeof(float));
            copy_bytes(from.v_scales, to.v_scales, rows * sizeof(float));
        }
    }
}

/* What lies beyond an entry's pages is no page's number. */
void CacheTensors::make_table()
{
    containers_ = 0;
    container_tokens_ = shape_.page;
    table_width_ = divide_up(sequences_.longest(), shape_.page);
    for (const std::int64_t keys : sequences_.keys)
        containers_ += divide_up(keys, shape_.page);
    const std::vector<std::int32_t> pages = shuffled(table_seed, containers_);
    auto next = pages.begin();
    table_.assign(static_cast<std::size_t>(sequences_.count() * table_width_), -1);
    auto row = table_.begin();
    for (const std::int64_t keys : sequences_.keys) {
        const std::int64_t count = divide_up(keys, shape_.page);
        std::copy_n(next, count, row);
        next += count;
        row += table_width_;
    }
}

std::size_t CacheTensors::tensor_bytes(bool panels) const
{
    const std::int64_t tokens = panels ? divide_up(container_tokens_, panel) * panel : container_tokens_;
    return static_cast<std::size_t>(containers_ * shape_.kv_heads * tokens * row_bytes(shape_.kv_type, shape_.width));
}

CacheTensors::Copy CacheTensors::make_copy() const
{
    Copy copy;
    copy.k = Buffer(tensor_bytes(shape_.panels));
    copy.v = Buffer(tensor_bytes(false));
    if (shape_.kv_type == ATTREE_I8) {
        const std::size_t rows = static_cast<std::size_t>(containers_ * shape_.kv_heads * container_tokens_);
        copy.k_scales = Buffer(rows * sizeof(float));
        copy.v_scales = Buffer(rows * sizeof(float));
    }
    return copy;
}

CacheTensors::Room CacheTensors::room_of(std::int64_t entry, std::int64_t head, std::int64_t token) const
{
    const std::int64_t among_all = sequences_.k_starts[static_cast<std::size_t>(entry)] + token;
    const std::int64_t source = head * sequences_.total_keys() + among_all;
    if (shape_.page == 0)
        return {source, head, among_all};
    const std::int64_t page = table_[static_cast<std::size_t>(entry * table_width_ + token / shape_.page)];
    return {source, page * shape_.kv_heads + head, token % shape_.page};
}

attree_status CacheTensors::fill(const Copy &copy) const
{
    std::memset(copy.k.as<void>(), 0xff, tensor_bytes(shape_.panels));
    std::memset(copy.v.as<void>(), 0xff, tensor_bytes(false));
    attree_status status = ATTREE_OK;
    for (std::int64_t entry = 0; entry < sequences_.count(); entry++)
        for (std::int64_t head = 0; head < shape_.kv_heads; head++) {
            const std::int64_t keys = sequences_.keys[static_cast<std::size_t>(entry)];
#pragma omp parallel for schedule(static)
            for (std::int64_t token = 0; token < keys; token++) {
                const attree_status filled = fill_token(copy, room_of(entry, head, token));
                if (filled != ATTREE_OK) {
#pragma omp critical
                    status = filled;
                }
            }
        }
    return status;
}

attree_status CacheTensors::fill_token(const Copy &copy, const Room &room) const
{
    const attree_dtype type = shape_.kv_type;
    const std::int64_t bytes = row_bytes(type, shape_.width), element = bytes / shape_.width;
    const std::int64_t heads = shape_.kv_heads, container = room.place / heads, head = room.place % heads;
    const std::int64_t row = shape_.tokens ? (container * container_tokens_ + room.token) * heads + head
                                           : room.place * container_tokens_ + room.token;
    std::vector<float> numbers(static_cast<std::size_t>(shape_.width));
    std::vector<float> encoded(static_cast<std::size_t>(bytes) / sizeof(float) + 1);
    float k_scale, v_scale;
    random_row(Tensor::k, room.source, numbers);
    attree_status status = encode_row(type, numbers, encoded.data(), &k_scale);
    const char *const k = reinterpret_cast<const char *>(encoded.data());
    if (shape_.panels) {
        const std::int64_t panels = divide_up(container_tokens_, panel);
        char *const to = copy.k.as<char>() + (room.place * panels + room.token / panel) * panel * bytes;
        for (std::int64_t c = 0; c < shape_.width; c++)
            std::memcpy(to + (c * panel + room.token % panel) * element, k + c * element,
                        static_cast<std::size_t>(element));
    } else {
        std::memcpy(copy.k.as<char>() + row * bytes, k, static_cast<std::size_t>(bytes));
    }
    random_row(Tensor::v, room.source, numbers);
    if (status == ATTREE_OK)
        status = encode_row(type, numbers, encoded.data(), &v_scale);
    std::memcpy(copy.v.as<char>() + row * bytes, encoded.data(), static_cast<std::size_t>(bytes));
    if (type == ATTREE_I8 && status == ATTREE_OK) {
        copy.k_scales.as<float>()[row] = k_scale;
        copy.v_scales.as<float>()[row] = v_scale;
    }
    return status;
}

attree_desc CacheTensors::describe(int threads) const
{
    attree_desc desc{};
    desc.size = sizeof desc;
    desc.batch = sequences_.count();
    desc.q_heads = shape_.q_heads;
    desc.kv_heads = shape_.kv_heads;
    desc.q_len = sequences_.total_queries();
    desc.kv_len = sequences_.total_keys();
    desc.qk_width = desc.v_width = shape_.width;
    desc.k_type = desc.v_type = shape_.kv_type;
    desc.flags = (shape_.causal ? ATTREE_CAUSAL : 0u) | (shape_.panels ? ATTREE_K_PANELS : 0u);
    desc.threads = threads;
    if (shape_.tokens) {
        const std::int64_t heads = shape_.kv_heads, units = shape_.width / (has_blocks(shape_.kv_type) ? block : 1);
        desc.k = desc.v = {container_tokens_ * heads * units, units, heads * units, 1};
        desc.k_scales = desc.v_scales = {container_tokens_ * heads, 1, heads, 0};
    }
    if (shape_.phase == Phase::ragged) {
        desc.q_starts = sequences_.q_starts.data();
        if (shape_.page == 0)
            desc.kv_starts = sequences_.k_starts.data();
        else
            desc.kv_lens = sequences_.keys.data();
    }
    if (shape_.page > 0) {
        desc.kv_len = sequences_.longest();
        desc.page_size = shape_.page;
        desc.page_count = containers_;
        desc.table_width = table_width_;
    }
    return desc;
}

void CacheTensors::point(attree_args &args, std::size_t n) const
{
    const Copy &copy = copies_[n];
    args.q = q_.as<void>();
    args.k = copy.k.as<void>();
    args.v = copy.v.as<void>();
    args.k_scales = copy.k_scales.as<float>();
    args.v_scales = copy.v_scales.as<float>();
    args.page_table = table_.empty() ? nullptr : table_.data();
}

double CacheTensors::bytes() const
{
    const std::int64_t scale = shape_.kv_type == ATTREE_I8 ? 4 : 0;
    return 2.0 * static_cast<double>(sequences_.total_keys() * shape_.kv_heads) *
           static_cast<double>(row_bytes(shape_.kv_type, shape_.width) + scale);
}

double CacheTensors::operations() const
{
    return 4.0 * static_cast<double>(shape_.width * shape_.q_heads) * sequences_.visible_pairs();
}

double cache_tensor_bytes(const Shape &shape)
{
    const Sequences sequences = sequences_of(shape);
    const double heads = static_cast<double>(shape.kv_heads), width = static_cast<double>(shape.width);
    double tokens = 0.0;
    for (const std::int64_t keys : sequences.keys)
        tokens += static_cast<double>(shape.page > 0 ? divide_up(keys, shape.page) * shape.page : keys);
    const double q = static_cast<double>(sequences.total_queries()) * static_cast<double>(shape.q_heads) * width;
    const double copy = 2.0 * tokens * heads * static_cast<double>(row_bytes(shape.kv_type, shape.width) + 4);
    const bool one = shape.phase == Phase::prefill || shape.hot;
    return 2.0 * q * sizeof(float) + copy * (one ? 1.0 : static_cast<double>(copies_beyond_caches(copy)));
}

CacheWorkload::CacheWorkload(std::shared_ptr<const CacheTensors> tensors, int threads)
    : tensors_(std::move(tensors)), threads_(threads), o_(o_count() * sizeof(float))
{
    const attree_desc desc = tensors_->describe(threads);
    attree_plan *made = nullptr;
    require(attree_plan_create(&made, &desc), "attree_plan_create");
    plan_.reset(made);
    char text[512];
    require(attree_plan_describe(made, text, sizeof text), "attree_plan_describe");
    description_ = text;
    workspace_ = Buffer(attree_plan_workspace(made));
}

std::size_t CacheWorkload::o_count() const
{
    const Shape &shape = tensors_->shape();
    return static_cast<std::size_t>(shape.q_heads * tensors_->sequences().total_queries() * shape.width);
}

attree_status CacheWorkload::run()
{
    attree_args args{};
    args.size = sizeof args;
    tensors_->point(args, next_copy_);
    args.o = o_.as<float>();
    args.workspace = workspace_.as<void>();
    args.workspace_bytes = attree_plan_workspace(plan_.get());
    next_copy_ = next_copy_ + 1 < tensors_->copy_count() ? next_copy_ + 1 : 0;
    return attree_run(plan_.get(), &args);
}

double CacheWorkload::distance_from(const std::vector<CacheRow> &rows, std::vector<double> CacheRow::*expected) const
{
    const Sequences &sequences = tensors_->sequences();
    double largest = 0.0;
    for (const CacheRow &row : rows) {
        const std::int64_t query = sequences.q_starts[static_cast<std::size_t>(row.entry)] + row.query;
        const float *computed =
            o_.as<float>() + (row.head * sequences.total_queries() + query) * tensors_->shape().width;
        for (const double number : row.*expected) {
            const double distance = std::abs(static_cast<double>(*computed++) - number);
            largest = std::max(largest, std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
        }
    }
    return largest;
}

double CacheWorkload::error(const std::vector<CacheRow> &expected) const
{
    return distance_from(expected, &CacheRow::o);
}

double CacheWorkload::error_vs_f32(const std::vector<CacheRow> &expected) const
{
    return distance_from(expected, &CacheRow::o_of_f32);
}

bool CacheWorkload::equals(const CacheWorkload &other) const
{
    const std::size_t count = o_count();
    return count == other.o_count() && std::memcmp(o_.as<void>(), other.o_.as<void>(), count * sizeof(float)) == 0;
}

} // namespace bench
