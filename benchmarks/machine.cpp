/* Machine facts from OpenMP and Linux's sysfs. See machine.h. */
#include "machine.h"

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <new>
#include <set>
#include <string>

namespace bench {

namespace {

constexpr std::size_t line_bytes = 64;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

struct Cache {
    long level = 0;
    std::int64_t bytes = 0;
    std::string sharers; // the processors that share it, which tells one instance from another
};

std::string first_line(const std::string &path)
{
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/* "32768K" or "32M" to bytes; 0 for anything else. */
std::int64_t parse_size(const std::string &text)
{
    char *end = nullptr;
    const long long number = std::strtoll(text.c_str(), &end, 10);
    if (number <= 0 || number > (1ll << 32))
        return 0;
    return number * (*end == 'K' ? 1ll << 10 : *end == 'M' ? 1ll << 20 : 1);
}

/* The cache of the highest level of one processor. */
Cache last_level_cache(long processor)
{
    Cache last;
    for (int index = 0; index < 8; index++) {
        const std::string folder =
            "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/cache/index" + std::to_string(index) + "/";
        const long level = std::strtol(first_line(folder + "level").c_str(), nullptr, 10);
        if (level > last.level)
            last = {level, parse_size(first_line(folder + "size")), first_line(folder + "shared_cpu_list")};
    }
    return last;
}

} // namespace

int processor_count() { return std::max(1, omp_get_num_procs()); }

std::vector<int> thread_counts()
{
    std::vector<int> counts;
    for (int threads = 1; threads < processor_count(); threads *= 2)
        counts.push_back(threads);
    counts.push_back(processor_count());
    return counts;
}

std::int64_t last_level_cache_bytes()
{
    std::set<std::string> seen;
    std::int64_t total = 0;
    for (long processor = 0; processor < sysconf(_SC_NPROCESSORS_CONF); processor++) {
        const Cache cache = last_level_cache(processor);
        if (seen.insert(cache.sharers).second)
            total += cache.bytes;
    }
    return std::max(total, std::int64_t{32} << 20);
}

std::int64_t copies_beyond_caches(double bytes)
{
    const double wanted = 4.0 * static_cast<double>(last_level_cache_bytes());
    return std::max<std::int64_t>(1, std::llround(std::ceil(wanted / bytes)));
}

std::int64_t memory_bytes() { return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

Buffer::Buffer(std::size_t bytes)
{
    const std::size_t alignment = bytes < huge_page_bytes ? line_bytes : huge_page_bytes;
    if (bytes > SIZE_MAX - alignment)
        throw std::bad_alloc();
    const std::size_t rounded = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
    data_.reset(std::aligned_alloc(alignment, rounded));
    if (!data_)
        throw std::bad_alloc();
    if (alignment == huge_page_bytes)
        (void)madvise(data_.get(), rounded, MADV_HUGEPAGE); // a wish: without it everything still works
}

} // namespace bench
