/* The reference of caches. See cache_reference.h. */
#include "cache_reference.h"

#include <algorithm>
#include <cmath>

#include "cache_numbers.h"

namespace bench {

namespace {

constexpr std::int64_t rows_most = 8; // at least two of each distinct entry

/* One token's numbers: as they were, and as the cache has them. */
class Token {
  public:
    explicit Token(const Shape &shape)
        : type_(shape.kv_type), original_(static_cast<std::size_t>(shape.width)), kept_(original_.size()),
          row_(static_cast<std::size_t>(row_bytes(type_, shape.width)) / sizeof(float) + 1)
    {
    }

    void load(Tensor tensor, std::int64_t n)
    {
        float scale;
        random_row(tensor, n, original_);
        (void)encode_row(type_, original_, row_.data(), &scale); // the cache has the same rows, and has noticed
        decode_row(type_, row_.data(), scale, kept_);
    }

    const std::vector<float> &original() const { return original_; }
    const std::vector<float> &kept() const { return kept_; }

  private:
    attree_dtype type_;
    std::vector<float> original_, kept_, row_; // the row of any type: f32 aligns it
};

double product(const std::vector<float> &a, const std::vector<float> &b)
{
    double sum = 0.0;
    for (std::size_t c = 0; c < a.size(); c++)
        sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    return sum;
}

/* Scores become weights that sum to 1. */
void soften(std::vector<double> &scores)
{
    const double highest = *std::max_element(scores.begin(), scores.end());
    double total = 0.0;
    for (double &s : scores)
        total += s = std::exp(s - highest);
    for (double &s : scores)
        s /= total;
}

void add(double weight, const std::vector<float> &value, std::vector<double> &sum)
{
    for (std::size_t c = 0; c < value.size(); c++)
        sum[c] += weight * static_cast<double>(value[c]);
}

/* Fills in the outputs; zero where nothing is visible. */
void attend(const Shape &shape, const Sequences &sequences, CacheRow &row)
{
    const std::size_t width = static_cast<std::size_t>(shape.width), entry = static_cast<std::size_t>(row.entry);
    const double scale = 1.0 / std::sqrt(static_cast<double>(width));
    const std::int64_t group = row.head / (shape.q_heads / shape.kv_heads);
    const std::int64_t first = group * sequences.total_keys() + sequences.k_starts[entry];
    const std::size_t visible = static_cast<std::size_t>(sequences.visible(row.entry, row.query));
    row.o.assign(width, 0.0);
    row.o_of_f32.assign(width, 0.0);
    if (visible == 0)
        return;
    std::vector<float> q(width);
    random_row(Tensor::q, row.head * sequences.total_queries() + sequences.q_starts[entry] + row.query, q);
    Token token(shape);
    std::vector<double> weights(visible), weights_of_f32(visible);
    for (std::size_t j = 0; j < visible; j++) {
        token.load(Tensor::k, first + static_cast<std::int64_t>(j));
        weights[j] = scale * product(q, token.kept());
        weights_of_f32[j] = scale * product(q, token.original());
    }
    soften(weights);
    soften(weights_of_f32);
    for (std::size_t j = 0; j < visible; j++) {
        token.load(Tensor::v, first + static_cast<std::int64_t>(j));
        add(weights[j], token.kept(), row.o);
        add(weights_of_f32[j], token.original(), row.o_of_f32);
    }
}

} // namespace

std::vector<CacheRow> cache_reference(const Shape &shape, const Sequences &sequences)
{
    std::vector<CacheRow> rows;
    const std::int64_t share = rows_most / static_cast<std::int64_t>(sequences.distinct.size());
    for (const std::int64_t entry : sequences.distinct) {
        const std::int64_t queries = sequences.queries[static_cast<std::size_t>(entry)];
        const std::int64_t all = shape.q_heads * queries, count = std::min(all, std::max<std::int64_t>(2, share));
        for (std::int64_t n = 0; n < count; n++) {
            const std::int64_t id = count > 1 ? n * (all - 1) / (count - 1) : 0;
            rows.push_back({entry, id / queries, id % queries, {}, {}});
        }
    }
    const std::int64_t count = static_cast<std::int64_t>(rows.size());
#pragma omp parallel for schedule(dynamic, 1)
    for (std::int64_t n = 0; n < count; n++)
        attend(shape, sequences, rows[static_cast<std::size_t>(n)]);
    return rows;
}

} // namespace bench
