#include "masks.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attree/attree.h"
#include "element.h"
#include "machine.h"
#include "random.h"
#include "timing.h"

namespace bench {

namespace {

struct Sizes {
    std::int64_t q_heads, kv_heads, queries, keys, width;
};

/* Which keys a query sees. */
enum class Shown { all, causal, documents, tenth, holes };

constexpr std::int64_t document = 256; // tokens

bool is_shown(Shown shown, const Sizes &s, std::int64_t i, std::int64_t j)
{
    switch (shown) {
    case Shown::all: return true;
    case Shown::causal: return j <= i + s.keys - s.queries;
    case Shown::documents: return (i + s.keys - s.queries) / document == j / document;
    case Shown::tenth: return j >= s.keys - s.keys / 10;
    case Shown::holes: return random_bits(1, static_cast<std::uint64_t>(i * s.keys + j)) % 5 != 0;
    }
    return true;
}

/* How it is said. */
enum class Form { none, flag, bytes, bits, bias_f16 };

/* One way to compute a case: a plan, its tensors, and a time for each round. */
class Contender {
  public:
    Contender(const Sizes &s, Shown shown, Form form)
        : q_(bytes_of(s.q_heads * s.queries * s.width, 4)), k_(bytes_of(s.kv_heads * s.keys * s.width, 2)),
          v_(bytes_of(s.kv_heads * s.keys * s.width, 2)), o_(bytes_of(s.q_heads * s.queries * s.width, 4)),
          pairs_(bytes_of(s.queries * s.keys + 8, 2))
    {
        fill(ATTREE_F32, q_.as<void>(), s.q_heads * s.queries * s.width);
        fill(ATTREE_F16, k_.as<void>(), s.kv_heads * s.keys * s.width);
        fill(ATTREE_F16, v_.as<void>(), s.kv_heads * s.keys * s.width);
        attree_desc desc{};
        desc.size = sizeof desc;
        desc.batch = 1;
        desc.q_heads = s.q_heads;
        desc.kv_heads = s.kv_heads;
        desc.q_len = s.queries;
        desc.kv_len = s.keys;
        desc.qk_width = desc.v_width = s.width;
        desc.k_type = desc.v_type = ATTREE_F16;
        desc.threads = 1;
        args_.size = sizeof args_;
        args_.q = q_.as<void>();
        args_.k = k_.as<void>();
        args_.v = v_.as<void>();
        args_.o = o_.as<void>();
        say(desc, s, shown, form);
        attree_plan *plan = nullptr;
        if (attree_plan_create(&plan, &desc) != ATTREE_OK)
            throw std::runtime_error(attree_last_error());
        plan_.reset(plan);
        args_.workspace_bytes = attree_plan_workspace(plan);
        workspace_ = Buffer(args_.workspace_bytes);
        args_.workspace = workspace_.as<void>();
    }

    void run()
    {
        const Clock::time_point start = Clock::now();
        if (attree_run(plan_.get(), &args_) != ATTREE_OK)
            throw std::runtime_error(attree_last_error());
        seconds_.push_back(seconds_since(start));
    }

    double seconds() const { return median(seconds_); }

  private:
    struct Destroy {
        void operator()(attree_plan *plan) const { attree_plan_destroy(plan); }
    };

    static std::size_t bytes_of(std::int64_t count, std::int64_t each)
    {
        return static_cast<std::size_t>(count * each);
    }

    static void fill(std::int32_t type, void *elements, std::int64_t count)
    {
        for (std::int64_t n = 0; n < count; n++)
            store_element(type, elements, n, random_normal(2, static_cast<std::uint64_t>(n)));
    }

    /* One mask for all heads. */
    void say(attree_desc &desc, const Sizes &s, Shown shown, Form form)
    {
        if (form == Form::none)
            return;
        if (form == Form::flag) {
            desc.flags |= ATTREE_CAUSAL;
            return;
        }
        desc.mask.heads = desc.bias.heads = 1;
        desc.mask_kind = form == Form::bits ? ATTREE_MASK_BITS : ATTREE_MASK_BYTES;
        desc.bias_type = ATTREE_F16;
        const auto bytes = pairs_.as<std::uint8_t>();
        std::fill_n(bytes, static_cast<std::size_t>(2 * (s.queries * s.keys + 8)), std::uint8_t{0});
        for (std::int64_t n = 0; n < s.queries * s.keys; n++) {
            const bool on = is_shown(shown, s, n / s.keys, n % s.keys);
            if (form == Form::bytes)
                bytes[n] = on;
            else if (form == Form::bits)
                bytes[n >> 3] = static_cast<std::uint8_t>(bytes[n >> 3] | static_cast<unsigned>(on) << (n & 7));
            else
                store_element(ATTREE_F16, bytes, n, on ? 0.0f : -std::numeric_limits<float>::infinity());
        }
        if (form == Form::bias_f16)
            args_.bias = bytes;
        else
            args_.mask = bytes;
    }

    Buffer q_, k_, v_, o_, pairs_, workspace_;
    attree_args args_{};
    std::unique_ptr<attree_plan, Destroy> plan_;
    std::vector<double> seconds_;
};

struct Case {
    const char *name;
    Shown shown;
    Form form, ideal; // ideal: what the time is divided by
};

constexpr Case cases[] = {
    {"causal, f16 bias / ATTREE_CAUSAL", Shown::causal, Form::bias_f16, Form::flag},
    {"causal, bytes / ATTREE_CAUSAL", Shown::causal, Form::bytes, Form::flag},
    {"causal, bits / ATTREE_CAUSAL", Shown::causal, Form::bits, Form::flag},
    {"documents of 256, bytes / no mask", Shown::documents, Form::bytes, Form::none},
    {"last tenth of keys, bytes / no mask", Shown::tenth, Form::bytes, Form::none},
    {"zeros, f16 bias / no mask", Shown::all, Form::bias_f16, Form::none},
    {"ones, bytes / no mask", Shown::all, Form::bytes, Form::none},
    {"every fifth hidden, bytes / no mask", Shown::holes, Form::bytes, Form::none},
    {"every fifth hidden, bits / no mask", Shown::holes, Form::bits, Form::none},
};

constexpr Sizes sizes[] = {{8, 8, 2048, 2048, 128}, {32, 8, 512, 4608, 128}, {8, 8, 512, 512, 128},
                           {8, 8, 1500, 1500, 64},  {8, 8, 512, 512, 32},    {32, 8, 1, 16384, 128}};

constexpr int rounds = 5;

void print_case(const Sizes &s, const Case &c)
{
    Contender tensor(s, c.shown, c.form), ideal(s, c.shown, c.ideal);
    for (int n = 0; n < rounds; n++) {
        tensor.run();
        ideal.run();
    }
    std::printf("  %-38s %10.3f ms %8.3f\n", c.name, 1e3 * tensor.seconds(), tensor.seconds() / ideal.seconds());
}

} // namespace

void print_masks()
{
    std::printf("Masks as tensors, one for all heads, f16 caches, one thread; the last column is the ratio of times\n");
    for (const Sizes &s : sizes) {
        std::printf("H%ld G%ld Q%ld K%ld D%ld\n", static_cast<long>(s.q_heads), static_cast<long>(s.kv_heads),
                    static_cast<long>(s.queries), static_cast<long>(s.keys), static_cast<long>(s.width));
        for (const Case &c : cases)
            print_case(s, c);
    }
}

} // namespace bench
