/* Names of cases. See shape.h. */
#include "shape.h"
#include "../src/dtypes.h"

#include <charconv>
#include <stdexcept>
#include <utility>
#include <vector>

namespace bench {

namespace {

constexpr std::int64_t dimension_most = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t threads_most = 65536; // attree_desc.threads

constexpr std::int64_t sequences_most = 65536; // of a mix

constexpr std::pair<const char *, Phase> phases[] = {
    {"decode", Phase::decode}, {"prefill", Phase::prefill}, {"ragged", Phase::ragged}};
#define ENTRY(type, name, ...) {#name, ATTREE_##type},
constexpr std::pair<const char *, attree_dtype> kv_types[] = {ATTREE__DTYPES(ENTRY)};
#undef ENTRY
constexpr std::pair<const char *, bool> masks[] = {{"full", false}, {"causal", true}};

[[noreturn]] void fail(const std::string &name, const std::string &problem)
{
    throw std::invalid_argument("shape \"" + name + "\": " + problem);
}

std::vector<std::string> split(const std::string &name, char separator)
{
    std::vector<std::string> parts(1);
    for (const char c : name) {
        if (c == separator)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

/* The whole of a text as a number from 1 to most; 0 when it is anything else. */
std::int64_t parse_number(const std::string &text, std::int64_t most)
{
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = error == std::errc() && stop == text.data() + text.size() && value >= 1 && value <= most;
    return good ? value : 0;
}

/* Takes the parts of a name one by one. */
class Parts {
  public:
    explicit Parts(const std::string &name) : name_(name), parts_(split(name, '/')) {}

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

    std::int64_t number(const char *what, const std::string &letter, std::int64_t most)
    {
        const std::string &part = take(what);
        std::int64_t value = 0;
        if (part.compare(0, letter.size(), letter) == 0)
            value = parse_number(part.substr(letter.size()), most);
        if (value == 0)
            fail(name_, std::string(what) + " is \"" + part + "\"; it must be " + letter + " and a number from 1 to " +
                            std::to_string(most));
        return value;
    }

    std::vector<Alike> mix()
    {
        const std::string &part = take("the mix");
        std::vector<Alike> mix;
        std::int64_t queries = 0, keys = 0;
        for (const std::string &term : split(part, '+')) {
            mix.push_back(parse_alike(term));
            queries += mix.back().count * mix.back().queries;
            keys += mix.back().count * mix.back().keys;
            if (mix.back().count == 0 || queries > dimension_most || keys > dimension_most)
                fail(name_, "the mix is \"" + part +
                                "\"; it must be COUNTxKEYS or COUNTxQUERIESqKEYS, joined by +, of at" + " most " +
                                std::to_string(sequences_most) + " sequences each and " +
                                std::to_string(dimension_most) + " keys in all");
        }
        return mix;
    }

    /* Whether there is another part and it begins like this. */
    bool next_begins(const std::string &begin) const
    {
        return !at_end() && parts_[next_].compare(0, begin.size(), begin) == 0;
    }

  private:
    /* Its count is 0 when the term is malformed. */
    static Alike parse_alike(const std::string &term)
    {
        const std::vector<std::string> sides = split(term, 'x');
        const std::vector<std::string> lengths = split(sides.back(), 'q');
        if (sides.size() != 2 || lengths.size() > 2)
            return {0, 0, 0};
        const Alike alike{parse_number(sides[0], sequences_most),
                          lengths.size() == 2 ? parse_number(lengths[0], dimension_most) : 1,
                          parse_number(lengths.back(), dimension_most)};
        return alike.queries == 0 || alike.keys == 0 ? Alike{0, 0, 0} : alike;
    }

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

void parse_layout(Parts &parts, Shape &shape)
{
    constexpr std::pair<const char *, bool> panels[] = {{"panels", true}};
    constexpr std::pair<const char *, bool> tokens[] = {{"tokens", true}};
    constexpr std::pair<const char *, bool> hot[] = {{"hot", true}};
    if (parts.next_begins("page"))
        shape.page = parts.number("the page size", "page", dimension_most);
    if (parts.next_begins("panels"))
        shape.panels = parts.word("the layout", panels);
    if (parts.next_begins("tokens"))
        shape.tokens = parts.word("the layout", tokens);
    if (!parts.at_end())
        shape.hot = parts.word("the last part", hot);
}

void check_shape(const std::string &name, const Shape &shape)
{
    if (shape.q_heads % shape.kv_heads != 0)
        fail(name, "H is " + std::to_string(shape.q_heads) + "; it must be a multiple of G, " +
                       std::to_string(shape.kv_heads));
    if (has_blocks(shape.kv_type) && shape.width % block != 0)
        fail(name, "D is " + std::to_string(shape.width) + "; types of blocks need a multiple of 32");
    if (has_blocks(shape.kv_type) && shape.panels)
        fail(name, "types of blocks cannot be in panels");
    if (shape.panels && shape.page % panel != 0)
        fail(name, "the page size is " + std::to_string(shape.page) + "; panels need a multiple of 16");
    if (shape.panels && shape.tokens)
        fail(name, "a cache is in panels or in tokens, not both");
    if (shape.panels && shape.phase == Phase::ragged && shape.page == 0)
        fail(name, "panels of a ragged batch need pages");
}

std::string mix_name(const std::vector<Alike> &mix)
{
    std::string name;
    for (const Alike &alike : mix)
        name += (name.empty() ? "" : "+") + std::to_string(alike.count) + "x" +
                (alike.queries == 1 ? "" : std::to_string(alike.queries) + "q") + std::to_string(alike.keys);
    return name;
}

} // namespace

Shape parse_shape(const std::string &name)
{
    Parts parts(name);
    Shape shape;
    shape.phase = parts.word("the phase", phases);
    shape.kv_type = parts.word("the type of K and V", kv_types);
    shape.q_heads = parts.number("the number of query heads", "H", dimension_most);
    shape.kv_heads = parts.number("the number of key/value heads", "G", dimension_most);
    shape.width = parts.number("the width", "D", dimension_most);
    if (shape.phase == Phase::ragged) {
        shape.mix = parts.mix();
        shape.causal = true;
    } else {
        shape.queries = parts.number("the number of queries", "Q", dimension_most);
        shape.keys = parts.number("the number of keys", "K", dimension_most);
        shape.causal = parts.word("the mask", masks);
    }
    shape.threads = static_cast<int>(parts.number("the number of threads", "T", threads_most));
    parse_layout(parts, shape);
    if (!parts.at_end())
        fail(name, "there is something after \"hot\"");
    check_shape(name, shape);
    return shape;
}

std::string shape_name(const Shape &shape)
{
    const auto number = [](const char *letter, std::int64_t value) {
        return std::string("/") + letter + std::to_string(value);
    };
    const std::string lengths = shape.phase == Phase::ragged ? "/" + mix_name(shape.mix)
                                                             : number("Q", shape.queries) + number("K", shape.keys) +
                                                                   "/" + find_word(shape.causal, masks);
    return std::string(find_word(shape.phase, phases)) + "/" + find_word(shape.kv_type, kv_types) +
           number("H", shape.q_heads) + number("G", shape.kv_heads) + number("D", shape.width) + lengths +
           number("T", shape.threads) + (shape.page > 0 ? number("page", shape.page) : "") +
           (shape.panels ? "/panels" : "") + (shape.tokens ? "/tokens" : "") + (shape.hot ? "/hot" : "");
}

bool is_serving(const Shape &shape)
{
    return shape.phase == Phase::ragged || shape.page > 0 || shape.panels || shape.tokens ||
           is_quantised(shape.kv_type);
}

} // namespace bench
