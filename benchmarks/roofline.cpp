/* Calibrations. See roofline.h.
 *
 * Threads take chunks of work until there are none: like attree's tasks, so that a thread that is held up costs both
 * the same. They are OpenMP threads because attree's are: a second pool would compete with the first for the
 * processors. */
#include "roofline.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "random.h"
#include "timing.h"

namespace bench {

namespace {

constexpr double sample_seconds = 0.010;

/* Chunks take some 30 us, 0.3 % of a sample: what a thread that has none may wait for at the end. */
constexpr std::int64_t chunk_bytes = std::int64_t{512} << 10;
constexpr std::int64_t chunk_steps = 16384;

/* Four times the caches: what is left of the last pass through the buffer is a small part even where caches do not
 * replace the oldest first. */
constexpr std::int64_t caches_exceeded = 4;

/* Runs work(0) ... work(count - 1) and returns the seconds. */
template <class Work> double time_chunks(int threads, std::int64_t count, Work work)
{
    const Clock::time_point start = Clock::now();
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (std::int64_t n = 0; n < count; n++)
        work(n);
    return seconds_since(start);
}

/* Chunks for a sample at `rate` units per second, at least one for each thread. The rate must be the highest seen: a
 * sample sized by a slow one would be short, lose more to whatever made that one slow, and so on downwards. */
std::int64_t sample_chunks(double rate, double chunk_units, int threads)
{
    const double chunks = std::clamp(rate * sample_seconds / chunk_units, 1.0, 1e6);
    return std::max<std::int64_t>(threads, std::llround(chunks));
}

/* Pages that may be read in step, each a divisor of the last. */
constexpr std::size_t steps_of_pages[] = {1, 2, 4, 8};
constexpr std::size_t line_bytes = 64;
constexpr std::uint64_t page_seed = 11;

/* A line of each of `count` pages in turn. */
void read_pages(const char *const *pages, std::size_t count, std::size_t page_bytes)
{
    std::uint64_t all[line_bytes / sizeof(std::uint64_t)] = {};
    for (std::size_t at = 0; at < page_bytes; at += line_bytes)
        for (std::size_t n = 0; n < count; n++) {
            std::uint64_t line[line_bytes / sizeof(std::uint64_t)];
            std::memcpy(line, pages[n] + at, line_bytes);
            for (std::size_t word = 0; word < line_bytes / sizeof(std::uint64_t); word++)
                all[word] |= line[word];
        }
    for (const std::uint64_t kept : all)
        __asm__ volatile("" : : "r"(kept));
}

} // namespace

Roofline::Roofline(const std::string &isa) : fma_(fma_kernel(isa))
{
    static_assert(chunk_bytes % read_granule == 0);
    buffer_chunks_ = caches_exceeded * last_level_cache_bytes() / chunk_bytes + 1;
    buffer_ = Buffer(static_cast<std::size_t>(buffer_chunks_ * chunk_bytes));
    char *const data = buffer_.as<char>();
    (void)time_chunks(processor_count(), buffer_chunks_,
                      [data](std::int64_t n) { std::memset(data + n * chunk_bytes, 1, chunk_bytes); });
}

std::size_t Roofline::buffer_bytes() const { return static_cast<std::size_t>(buffer_chunks_ * chunk_bytes); }

double Roofline::read_once(int threads, const ReadKernel &kernel, std::int64_t chunks)
{
    const char *const data = buffer_.as<char>();
    const std::int64_t first = next_chunk_, all = buffer_chunks_;
    next_chunk_ = (first + chunks) % all;
    const double seconds = time_chunks(threads, chunks, [=](std::int64_t n) {
        kernel.read(data + (first + n) % all * chunk_bytes, chunk_bytes, kernel.ahead);
    });
    return static_cast<double>(chunks * chunk_bytes) / seconds;
}

double Roofline::multiply_once(int threads, std::int64_t chunks)
{
    const FmaKernel kernel = fma_;
    const double seconds = time_chunks(threads, chunks, [kernel](std::int64_t) { kernel.run(chunk_steps); });
    return static_cast<double>(chunks * chunk_steps * kernel.operations_each) / seconds;
}

/* Tries every way to read a few times in turn, and takes the one with the best median. */
Roofline::Tuned &Roofline::tuned(int threads)
{
    Tuned &tuned = tuned_[threads];
    if (tuned.read.read != nullptr)
        return tuned;
    constexpr int rounds = 5;
    constexpr std::int64_t chunks_each = 64; // per thread: 32 MiB, 2 to 4 ms
    const std::vector<ReadKernel> kernels = read_kernels();
    std::vector<std::vector<double>> rates(kernels.size());
    for (int round = 0; round < rounds; round++)
        for (std::size_t n = 0; n < kernels.size(); n++)
            rates[n].push_back(read_once(threads, kernels[n], chunks_each * threads));
    for (std::size_t n = 0; n < kernels.size(); n++) {
        if (median(rates[n]) > tuned.read_rate) {
            tuned.read_rate = median(rates[n]);
            tuned.read = kernels[n];
        }
    }
    for (int round = 0; round < rounds; round++)
        tuned.fma_rate = std::max(tuned.fma_rate, multiply_once(threads, 64 * threads));
    return tuned;
}

double Roofline::sample_read(int threads)
{
    Tuned &t = tuned(threads);
    const std::int64_t chunks = sample_chunks(t.read_rate, static_cast<double>(chunk_bytes), threads);
    const double rate = read_once(threads, t.read, chunks);
    t.read_rate = std::max(t.read_rate, rate);
    return rate;
}

double Roofline::sample_fma(int threads)
{
    Tuned &t = tuned(threads);
    const double chunk_operations = static_cast<double>(chunk_steps * fma_.operations_each);
    const double rate = multiply_once(threads, sample_chunks(t.fma_rate, chunk_operations, threads));
    t.fma_rate = std::max(t.fma_rate, rate);
    return rate;
}

double Roofline::read_pages_once(int threads, Pages &pages, std::size_t in_step)
{
    const std::size_t first = pages.next, all = pages.order.size();
    const double step_bytes = static_cast<double>(in_step * pages.bytes);
    const std::int64_t steps = sample_chunks(pages.rate, step_bytes, threads);
    constexpr std::size_t most = steps_of_pages[std::size(steps_of_pages) - 1];
    pages.next = (first + static_cast<std::size_t>(steps) * in_step) % all / most * most;
    const double seconds = time_chunks(threads, steps, [&pages, first, all, in_step](std::int64_t n) {
        read_pages(&pages.order[(first + static_cast<std::size_t>(n) * in_step) % all], in_step, pages.bytes);
    });
    return static_cast<double>(steps) * step_bytes / seconds;
}

/* Tries how many to read in step, a few times in turn, and takes what has the best median. */
Roofline::Pages &Roofline::pages_of(int threads, std::size_t bytes)
{
    Pages &pages = pages_[{threads, bytes}];
    if (!pages.order.empty())
        return pages;
    constexpr std::size_t most = steps_of_pages[std::size(steps_of_pages) - 1];
    const std::size_t count = buffer_bytes() / bytes / most * most;
    for (const std::int32_t n : shuffled(page_seed, static_cast<std::int64_t>(count)))
        pages.order.push_back(buffer_.as<char>() + static_cast<std::size_t>(n) * bytes);
    pages.bytes = bytes;
    pages.rate = tuned(threads).read_rate;
    std::vector<double> rates[std::size(steps_of_pages)];
    for (int round = 0; round < 3; round++)
        for (std::size_t n = 0; n < std::size(steps_of_pages); n++)
            rates[n].push_back(read_pages_once(threads, pages, steps_of_pages[n]));
    double best = 0.0;
    for (std::size_t n = 0; n < std::size(steps_of_pages); n++)
        if (median(rates[n]) > best) {
            best = median(rates[n]);
            pages.in_step = steps_of_pages[n];
        }
    pages.rate = best;
    return pages;
}

double Roofline::sample_pages(int threads, std::size_t page_bytes)
{
    const std::size_t bytes =
        std::clamp(page_bytes / line_bytes, std::size_t{1}, buffer_bytes() / 8 / line_bytes) * line_bytes;
    Pages &pages = pages_of(threads, bytes);
    const double rate = read_pages_once(threads, pages, pages.in_step);
    pages.rate = std::max(pages.rate, rate);
    return rate;
}

double Roofline::sample(Limit limit, int threads)
{
    return limit == Limit::read ? sample_read(threads) : sample_fma(threads);
}

} // namespace bench
