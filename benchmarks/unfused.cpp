/* The unfused baseline. See unfused.h. */
#include "unfused.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>

#include "element.h"
#include "timing.h"

namespace bench {

namespace {

constexpr double score_bytes_most = 2.0 * 0x1p30;
constexpr double sample_seconds = 0.020;

/* With more rows, sgemm is always faster than sgemv for each. */
constexpr int gemv_rows_most = 8;

/* OpenBLAS rounds in an order of its own, and exp is approximate: some hundred times what attree keeps to. */
constexpr double tolerance = 1e-4;

/* Idle threads of OpenBLAS look for work for 2^26 clock cycles before they sleep: up to 34 ms at 2 GHz. */
constexpr std::chrono::milliseconds until_asleep{50};

Buffer widen(std::int32_t type, const void *from, std::int64_t count)
{
    Buffer buffer(static_cast<std::size_t>(count) * sizeof(float));
    float *const numbers = buffer.as<float>();
#pragma omp parallel for schedule(static)
    for (std::int64_t n = 0; n < count; n++)
        numbers[n] = load_element(type, from, n);
    return buffer;
}

} // namespace

std::unique_ptr<Unfused> Unfused::make(const OpenBlas &blas, const Workload &workload)
{
    std::unique_ptr<Unfused> unfused(new Unfused(blas, workload));
    const double scores = unfused->bytes_of_scores({false, Product::gemm});
    const bool widens = workload.desc().k_type != ATTREE_F32;
    const double copies = widens ? kv_bytes(workload.desc()) * 2.0 : 0.0;
    if (scores > score_bytes_most || scores + copies > 0.25 * static_cast<double>(memory_bytes()))
        return nullptr;
    unfused->make_copies();
    unfused->choose_way();
    unfused->check();
    return unfused;
}

Unfused::Unfused(const OpenBlas &blas, const Workload &workload)
    : blas_(blas), workload_(workload), desc_(workload.desc())
{
    stacked_ = desc_.q_len == 1;
    tasks_ = stacked_ ? desc_.kv_heads : desc_.q_heads;
    rows_ = static_cast<int>(stacked_ ? desc_.q_heads / desc_.kv_heads : desc_.q_len);
    q_stride_ = static_cast<int>(stacked_ ? desc_.q.head : desc_.q.token);
    o_stride_ = static_cast<int>(stacked_ ? desc_.o.head : desc_.o.token);
    scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(desc_.qk_width)));
}

std::int64_t Unfused::worker_count(Way way) const
{
    return way.threads_inside ? 1 : std::min<std::int64_t>(desc_.threads, tasks_);
}

double Unfused::bytes_of_scores(Way way) const
{
    return static_cast<double>(worker_count(way)) * rows_ * static_cast<double>(desc_.kv_len) * sizeof(float);
}

double Unfused::score_bytes() const { return bytes_of_scores(way_); }

/* f32 keys and values are the workload's. Others need copies, of which half as many exceed the caches as much. */
void Unfused::make_copies()
{
    const std::size_t all = workload_.copy_count();
    const std::size_t count = desc_.k_type == ATTREE_F32 ? all : (all + 1) / 2;
    for (std::size_t n = 0; n < count; n++) {
        const void *k = workload_.keys(n), *v = workload_.values(n);
        if (desc_.k_type != ATTREE_F32) {
            widened_.push_back(widen(desc_.k_type, k, desc_.kv_heads * desc_.kv_len * desc_.qk_width));
            k = widened_.back().as<void>();
            widened_.push_back(widen(desc_.v_type, v, desc_.kv_heads * desc_.kv_len * desc_.v_width));
            v = widened_.back().as<void>();
        }
        k_.push_back(static_cast<const float *>(k));
        v_.push_back(static_cast<const float *>(v));
    }
    scores_ = Buffer(static_cast<std::size_t>(bytes_of_scores({false, Product::gemm})));
    o_ = Buffer(static_cast<std::size_t>(desc_.q_heads * desc_.q_len * desc_.v_width) * sizeof(float));
}

/* A way that takes long is tried once, any other three times, of which the first does not count. */
void Unfused::choose_way()
{
    constexpr double long_seconds = 0.1;
    for (const bool threads_inside : {false, true})
        for (const Product product : {Product::gemm, Product::gemv}) {
            const Way way{threads_inside, product};
            if ((threads_inside && desc_.threads == 1) || (product == Product::gemv && rows_ > gemv_rows_most))
                continue;
            double seconds = time(way, 1);
            if (seconds < long_seconds)
                seconds = std::min(time(way, 1), time(way, 1));
            if (estimate_ == 0.0 || seconds < estimate_) {
                estimate_ = seconds;
                way_ = way;
            }
        }
}

/* A baseline that computes something else would say nothing. */
void Unfused::check() const
{
    const double error = max_error(desc_, o_.as<float>(), workload_.expected());
    if (!(error <= tolerance))
        throw std::runtime_error("the unfused baseline is wrong: max error " + std::to_string(error));
}

double Unfused::sample()
{
    const double fitting = std::clamp(sample_seconds / estimate_, 1.0, 1e6);
    const double seconds = time(way_, static_cast<std::int64_t>(fitting));
    if (way_.threads_inside)
        std::this_thread::sleep_for(until_asleep);
    return seconds;
}

double Unfused::time(Way way, std::int64_t runs)
{
    blas_.set_threads(way.threads_inside ? desc_.threads : 1);
    const Clock::time_point start = Clock::now();
    for (std::int64_t n = 0; n < runs; n++)
        run(way);
    return seconds_since(start) / static_cast<double>(runs);
}

/* Everything runs in teams of the case's size, even when there are fewer tasks: another size would make the runtime end
 * threads, which attree would have to start again. Nor is a team nested in another, however small. */
void Unfused::run(Way way)
{
    if (way.threads_inside) {
        for (std::int64_t task = 0; task < tasks_; task++)
            attend(way, task, scores_.as<float>());
    } else {
        const std::int64_t score_count = std::int64_t{rows_} * desc_.kv_len;
        const bool slot_of_task = tasks_ < desc_.threads;
#pragma omp parallel for num_threads(desc_.threads) schedule(dynamic, 1)
        for (std::int64_t task = 0; task < tasks_; task++) {
            const std::int64_t slot = slot_of_task ? task : omp_get_thread_num();
            attend(way, task, scores_.as<float>() + slot * score_count);
        }
    }
    next_copy_ = next_copy_ + 1 < k_.size() ? next_copy_ + 1 : 0;
}

void Unfused::attend(Way way, std::int64_t task, float *scores)
{
    const std::int64_t heads = desc_.q_heads / desc_.kv_heads;
    const std::int64_t head = stacked_ ? task * heads : task, group = stacked_ ? task : task / heads;
    const int keys = static_cast<int>(desc_.kv_len);
    const int width = static_cast<int>(desc_.qk_width), v_width = static_cast<int>(desc_.v_width);
    const float *const q = static_cast<const float *>(workload_.queries());
    const Matrix<const float> q_rows{q + head * desc_.q.head, rows_, width, q_stride_};
    const Matrix<const float> k_rows{k_[next_copy_] + group * desc_.k.head, keys, width, width};
    const Matrix<const float> v_rows{v_[next_copy_] + group * desc_.v.head, keys, v_width, v_width};
    const Matrix<float> o_rows{o_.as<float>() + head * desc_.o.head, rows_, v_width, o_stride_};
    blas_.multiply_transposed(way.product, scale_, q_rows, k_rows, {scores, rows_, keys, keys});
    if (way.threads_inside) {
#pragma omp parallel for num_threads(desc_.threads) schedule(static)
        for (int i = 0; i < rows_; i++)
            soften_row(scores, i);
    } else {
        for (int i = 0; i < rows_; i++)
            soften_row(scores, i);
    }
    blas_.multiply(way.product, {scores, rows_, keys, keys}, v_rows, o_rows);
}

/* Softmax over the keys that the row may see; the others get weight 0. */
void Unfused::soften_row(float *scores, std::int64_t i) const
{
    float *const row = scores + i * desc_.kv_len;
    const std::int64_t visible = visible_keys(desc_, 0, stacked_ ? 0 : i).end;
    if (visible > 0)
        softmax_row_(row, visible);
    std::fill(row + visible, row + desc_.kv_len, 0.0f);
}

} // namespace bench
