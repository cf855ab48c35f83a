/* Numbers that look random and are always the same, in any order. */
#ifndef ATTREE_BENCH_RANDOM_H
#define ATTREE_BENCH_RANDOM_H

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace bench {

/* The n-th number of a sequence of 64 random bits: the SplitMix64 generator of Steele, Lea and Flood, 2014. */
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t n)
{
    std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Mean 0, variance 1: the sum of four uniform numbers of 16 bits, which has mean 2 and variance 4/12. */
inline float random_normal(std::uint64_t seed, std::uint64_t n)
{
    const std::uint64_t bits = random_bits(seed, n);
    const std::uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return (static_cast<float>(sum) * 0x1p-16f - 2.0f) * 1.7320508f;
}

/* 0 ... count - 1 in an order that looks random: Durstenfeld's shuffle. */
inline std::vector<std::int32_t> shuffled(std::uint64_t seed, std::int64_t count)
{
    std::vector<std::int32_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t n = order.size(); n > 1; n--)
        std::swap(order[n - 1], order[random_bits(seed, n) % n]);
    return order;
}

} // namespace bench

#endif // ATTREE_BENCH_RANDOM_H
