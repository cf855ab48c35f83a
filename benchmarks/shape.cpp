/* Names of cases. See shape.h. */
#include "shape.h"

#include <charconv>
#include <stdexcept>
#include <utility>
#include <vector>

namespace bench {

namespace {

constexpr std::int64_t dimension_most = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t threads_most = 65536; // attree_desc.threads

constexpr std::pair<const char *, Phase> phases[] = {{"decode", Phase::decode}, {"prefill", Phase::prefill}};
constexpr std::pair<const char *, attree_dtype> kv_types[] = {
    {"f32", ATTREE_F32}, {"f16", ATTREE_F16}, {"bf16", ATTREE_BF16}};
constexpr std::pair<const char *, bool> masks[] = {{"full", false}, {"causal", true}};

[[noreturn]] void fail(const std::string &name, const std::string &problem)
{
    throw std::invalid_argument("shape \"" + name + "\": " + problem);
}

std::vector<std::string> split(const std::string &name)
{
    std::vector<std::string> parts(1);
    for (const char c : name) {
        if (c == '/')
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

/* Takes the parts of a name one by one. */
class Parts {
  public:
    explicit Parts(const std::string &name) : name_(name), parts_(split(name)) {}

    bool at_end() const { return next_ == parts_.size(); }

    template <class Value, std::size_t N> Value word(const char *what, const std::pair<const char *, Value> (&words)[N])
    {
        const std::string &part = take(what);
        std::string known;
        for (const auto &[word, value] : words) {
            if (part == word)
                return value;
            known += (known.empty() ? "" : " or ") + std::string(word);
        }
        fail(name_, std::string(what) + " is \"" + part + "\"; it must be " + known);
    }

    std::int64_t number(const char *what, char letter, std::int64_t most)
    {
        const std::string &part = take(what);
        const char *const begin = part.data() + 1, *const end = part.data() + part.size();
        std::int64_t value = 0;
        if (part.size() >= 2 && part[0] == letter) {
            const auto [stop, error] = std::from_chars(begin, end, value);
            if (error == std::errc() && stop == end && value >= 1 && value <= most)
                return value;
        }
        fail(name_, std::string(what) + " is \"" + part + "\"; it must be " + letter + " and a number from 1 to " +
                        std::to_string(most));
    }

  private:
    const std::string &take(const char *what)
    {
        if (at_end())
            fail(name_, std::string(what) + " is missing");
        return parts_[next_++];
    }

    const std::string &name_;
    std::vector<std::string> parts_;
    std::size_t next_ = 0;
};

template <class Value, std::size_t N>
const char *find_word(Value value, const std::pair<const char *, Value> (&words)[N])
{
    for (const auto &[word, meaning] : words)
        if (meaning == value)
            return word;
    return "?";
}

} // namespace

Shape parse_shape(const std::string &name)
{
    Parts parts(name);
    Shape shape;
    shape.phase = parts.word("the phase", phases);
    shape.kv_type = parts.word("the type of K and V", kv_types);
    shape.q_heads = parts.number("the number of query heads", 'H', dimension_most);
    shape.kv_heads = parts.number("the number of key/value heads", 'G', dimension_most);
    shape.width = parts.number("the width", 'D', dimension_most);
    shape.queries = parts.number("the number of queries", 'Q', dimension_most);
    shape.keys = parts.number("the number of keys", 'K', dimension_most);
    shape.causal = parts.word("the mask", masks);
    shape.threads = static_cast<int>(parts.number("the number of threads", 'T', threads_most));
    if (!parts.at_end()) {
        constexpr std::pair<const char *, bool> hot[] = {{"hot", true}};
        shape.hot = parts.word("the part after the threads", hot);
    }
    if (!parts.at_end())
        fail(name, "there is something after \"hot\"");
    if (shape.q_heads % shape.kv_heads != 0)
        fail(name, "H is " + std::to_string(shape.q_heads) + "; it must be a multiple of G, " +
                       std::to_string(shape.kv_heads));
    return shape;
}

std::string shape_name(const Shape &shape)
{
    const auto number = [](char letter, std::int64_t value) {
        return std::string("/") + letter + std::to_string(value);
    };
    return std::string(find_word(shape.phase, phases)) + "/" + find_word(shape.kv_type, kv_types) +
           number('H', shape.q_heads) + number('G', shape.kv_heads) + number('D', shape.width) +
           number('Q', shape.queries) + number('K', shape.keys) + "/" + find_word(shape.causal, masks) +
           number('T', shape.threads) + (shape.hot ? "/hot" : "");
}

} // namespace bench
