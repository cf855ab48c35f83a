/* The wide reference. See reference.h. */
#include "reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "element.h"

namespace bench {

namespace {

std::int64_t offset(const attree_strides &s, std::int64_t batch, std::int64_t head, std::int64_t token)
{
    return batch * s.batch + head * s.head + token * s.token;
}

double element(std::int32_t type, const void *elements, std::int64_t n)
{
    return static_cast<double>(load_element(type, elements, n));
}

double default_scale(const attree_desc &desc)
{
    return desc.qk_width > 0 ? 1.0 / std::sqrt(static_cast<double>(desc.qk_width)) : 1.0;
}

/* The element of a tensor over pairs for a row and a key; one for all along a dimension of size 1. */
std::int64_t offset(const attree_pairs &p, const Row &row, std::int64_t key)
{
    return (p.batches == 1 ? 0 : row.batch * p.batch_stride) + (p.heads == 1 ? 0 : row.head * p.head_stride) +
           (p.queries == 1 ? 0 : row.query * p.query_stride) + (p.keys == 1 ? 0 : key * p.key_stride);
}

constexpr double hidden = -std::numeric_limits<double>::infinity();

/* What becomes of the scaled product of a query and a key. */
double finish_score(const Problem &problem, const Row &row, std::int64_t key, double s)
{
    const attree_desc &desc = problem.desc;
    if (problem.mask != nullptr && static_cast<const unsigned char *>(problem.mask)[offset(desc.mask, row, key)] == 0)
        return hidden;
    if (desc.softcap > 0.0f)
        s = static_cast<double>(desc.softcap) * std::tanh(s / static_cast<double>(desc.softcap));
    if (problem.bias == nullptr)
        return s;
    const double bias = element(desc.bias_type, problem.bias, offset(desc.bias, row, key));
    return bias == hidden ? hidden : s + bias; // whatever s is, NaN too
}

std::vector<double> scores(const Problem &problem, const Row &row, KeyRange keys)
{
    const attree_desc &desc = problem.desc;
    const std::int64_t group = row.head / (desc.q_heads / desc.kv_heads);
    const double scale = (desc.flags & ATTREE_USE_SCALE) != 0 ? static_cast<double>(desc.scale) : default_scale(desc);
    const std::int64_t q = offset(desc.q, row.batch, row.head, row.query);
    std::vector<double> s;
    for (std::int64_t j = keys.first; j < keys.end; j++) {
        const std::int64_t k = offset(desc.k, row.batch, group, j);
        double sum = 0.0;
        for (std::int64_t c = 0; c < desc.qk_width; c++)
            sum += element(desc.q_type, problem.q, q + c * desc.q.width) *
                   element(desc.k_type, problem.k, k + c * desc.k.width);
        s.push_back(finish_score(problem, row, j, sum * scale));
    }
    return s;
}

/* Fills in row.o: softmax of the scores, then the weighted sum of the values. Zero where nothing is visible. */
void attend(const Problem &problem, Row &row)
{
    const attree_desc &desc = problem.desc;
    const KeyRange keys = visible_keys(desc, row.batch, row.query);
    const std::vector<double> s = scores(problem, row, keys);
    const std::int64_t group = row.head / (desc.q_heads / desc.kv_heads);
    row.o.assign(static_cast<std::size_t>(desc.v_width), 0.0);
    double highest = hidden;
    for (const double score : s)
        highest = std::max(highest, score);
    double total = 0.0;
    for (std::size_t j = 0; j < s.size(); j++) {
        if (s[j] == hidden)
            continue; // its value may be anything
        const double weight = std::exp(s[j] - highest);
        std::int64_t v = offset(desc.v, row.batch, group, keys.first + static_cast<std::int64_t>(j));
        total += weight;
        for (double &sum : row.o) {
            sum += weight * element(desc.v_type, problem.v, v);
            v += desc.v.width;
        }
    }
    for (double &sum : row.o)
        sum = total == 0.0 ? 0.0 : sum / total; // 0: no key is visible, as the largest weight is 1
}

} // namespace

double distance(double a, double b)
{
    if (std::isnan(a) || std::isnan(b))
        return std::isnan(a) && std::isnan(b) ? 0.0 : std::numeric_limits<double>::infinity();
    return a == b ? 0.0 : std::abs(a - b); // equal infinities are equal
}

std::vector<Row> reference_rows(const Problem &problem, std::int64_t most)
{
    const attree_desc &desc = problem.desc;
    const std::int64_t all = desc.batch * desc.q_heads * desc.q_len, count = std::min(all, most);
    std::vector<Row> rows(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; n++) {
        const std::int64_t id = count > 1 ? n * (all - 1) / (count - 1) : 0;
        Row &row = rows[static_cast<std::size_t>(n)];
        row.query = id % desc.q_len;
        row.head = id / desc.q_len % desc.q_heads;
        row.batch = id / desc.q_len / desc.q_heads;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (std::int64_t n = 0; n < count; n++)
        attend(problem, rows[static_cast<std::size_t>(n)]);
    return rows;
}

double max_error(const attree_desc &desc, const void *o, const std::vector<Row> &rows)
{
    double largest = 0.0;
    for (const Row &row : rows) {
        std::int64_t at = offset(desc.o, row.batch, row.head, row.query);
        for (const double expected : row.o) {
            largest = std::max(largest, distance(element(desc.o_type, o, at), expected));
            at += desc.o.width;
        }
    }
    return largest;
}

} // namespace bench
