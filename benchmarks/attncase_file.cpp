/* Reading the container. See attncase_file.h. */
#include "attncase_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "element.h"

namespace bench {

namespace {

constexpr std::size_t rank_most = 8, name_most = 200;

struct TypeInfo {
    const char *name;
    CaseType type;
    std::size_t bytes;
};
constexpr TypeInfo types[] = {
    {"f32", CaseType::f32, 4}, {"f16", CaseType::f16, 2}, {"f64", CaseType::f64, 8},
    {"u8", CaseType::u8, 1},   {"i64", CaseType::i64, 8},
};

[[noreturn]] void fail(const std::string &problem) { throw std::runtime_error(problem); }

/* Text of the file in an error message: short and printable. */
std::string excerpt(const std::string &text)
{
    std::string out = "\"";
    for (const char c : text.substr(0, 60))
        out += c >= ' ' && c <= '~' ? c : '?';
    return out + (text.size() > 60 ? "...\"" : "\"");
}

const TypeInfo &type_info(CaseType type)
{
    for (const TypeInfo &info : types)
        if (info.type == type)
            return info;
    fail("unknown type");
}

CaseType parse_type(const std::string &word)
{
    for (const TypeInfo &info : types)
        if (word == info.name)
            return info.type;
    fail("the type is " + excerpt(word) + "; it must be f32, f16, f64, u8 or i64");
}

std::string read_file(const std::string &path)
{
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error))
        fail(error ? error.message() : "not a regular file");
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    if (!file || !(bytes << file.rdbuf()))
        fail("cannot be read, or is empty");
    return bytes.str();
}

/* Words between single spaces. */
std::vector<std::string> split_words(const std::string &line)
{
    std::vector<std::string> words;
    std::istringstream in(line);
    for (std::string word; std::getline(in, word, ' ');)
        words.push_back(word);
    return words;
}

std::int64_t parse_size(const std::string &what, const std::string &word)
{
    const std::int64_t value = parse_integer(what, word);
    if (value < 0)
        fail(what + " is " + word + "; it must not be negative");
    return value;
}

std::string parse_name(const std::vector<std::string> &words)
{
    if (words.size() != 2)
        fail("must be: name NAME");
    for (const char c : words[1])
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
              c == '-'))
            fail("a name may have letters, digits and _ . - only");
    if (words[1].empty() || words[1].size() > name_most)
        fail("a name must have 1 to " + std::to_string(name_most) + " letters");
    return words[1];
}

/* tensor NAME TYPE RANK DIM... OFFSET */
CaseTensor parse_tensor(const std::vector<std::string> &words, std::size_t payload_bytes)
{
    if (words.size() < 5)
        fail("must be: tensor NAME TYPE RANK DIM... OFFSET");
    CaseTensor tensor;
    tensor.type = parse_type(words[2]);
    const std::int64_t rank = parse_size("the rank", words[3]);
    if (rank > static_cast<std::int64_t>(rank_most) || words.size() != 5 + static_cast<std::size_t>(rank))
        fail("the rank is " + words[3] + "; it must be at most " + std::to_string(rank_most) +
             " and the number of dimensions before the offset");
    const std::int64_t element = static_cast<std::int64_t>(type_info(tensor.type).bytes);
    std::int64_t span = element; // as if no dimension were 0, so that no product of dimensions overflows later
    bool empty = false;
    for (std::size_t d = 0; d < static_cast<std::size_t>(rank); d++) {
        tensor.dims.push_back(parse_size("a dimension", words[4 + d]));
        empty = empty || tensor.dims.back() == 0;
        if (__builtin_mul_overflow(span, std::max<std::int64_t>(tensor.dims.back(), 1), &span))
            fail("the size of the tensor overflows 64 bits");
    }
    const std::int64_t bytes = empty ? 0 : span;
    const std::int64_t offset = parse_size("the offset", words.back());
    if (static_cast<std::uint64_t>(offset) > payload_bytes ||
        static_cast<std::uint64_t>(bytes) > payload_bytes - static_cast<std::uint64_t>(offset))
        fail("the tensor ends beyond the file: offset " + words.back() + " and " + std::to_string(bytes) +
             " bytes, of " + std::to_string(payload_bytes));
    tensor.offset = static_cast<std::size_t>(offset);
    tensor.count = static_cast<std::size_t>(bytes / element);
    return tensor;
}

void parse_line(CaseFile &file, const std::string &line)
{
    const std::vector<std::string> words = split_words(line);
    const std::string keyword = words.empty() ? "" : words[0];
    if (keyword == "name") {
        if (!file.name.empty())
            fail("a second name");
        file.name = parse_name(words);
    } else if (keyword == "attr") {
        if (words.size() != 3)
            fail("must be: attr NAME VALUE");
        if (!file.attributes.emplace(words[1], words[2]).second)
            fail("a second attribute " + excerpt(words[1]));
    } else if (keyword == "tensor") {
        if (!file.tensors.emplace(words.size() > 1 ? words[1] : "", parse_tensor(words, file.payload.size())).second)
            fail("a second tensor " + excerpt(words[1]));
    } else {
        fail("must begin with name, attr or tensor");
    }
}

template <class T> T load(const char *bytes)
{
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

} // namespace

const char *type_name(CaseType type) { return type_info(type).name; }

std::size_t type_bytes(CaseType type) { return type_info(type).bytes; }

std::int64_t parse_integer(const std::string &what, const std::string &text)
{
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size())
        fail(what + " is " + excerpt(text) + "; it must be a whole number of 64 bits");
    return value;
}

double parse_real(const std::string &what, const std::string &text)
{
    double value = 0.0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size() || !std::isfinite(value))
        fail(what + " is " + excerpt(text) + "; it must be a finite number");
    return value;
}

CaseFile read_case_file(const std::string &path)
{
    const std::string bytes = read_file(path);
    const std::size_t header_end = bytes.find("\n\n");
    if (bytes.compare(0, 11, "ATTNCASE 1\n") != 0 || header_end == std::string::npos)
        fail("not an attncase file: it must begin with \"ATTNCASE 1\" and have an empty line after its header");
    CaseFile file;
    file.payload = bytes.substr(header_end + 2);
    std::istringstream header(bytes.substr(0, header_end));
    std::string line;
    std::getline(header, line);
    for (int number = 2; std::getline(header, line); number++) {
        try {
            parse_line(file, line);
        } catch (const std::runtime_error &error) {
            fail("line " + std::to_string(number) + ", " + excerpt(line) + ": " + error.what());
        }
    }
    if (file.name.empty())
        fail("it has no name");
    return file;
}

const CaseTensor &find_tensor(const CaseFile &file, const std::string &name)
{
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end())
        fail("tensor " + name + " is missing");
    return found->second;
}

std::vector<double> read_numbers(const CaseFile &file, const std::string &name)
{
    const CaseTensor &tensor = find_tensor(file, name);
    const char *const bytes = file.payload.data() + tensor.offset;
    std::vector<double> numbers(tensor.count);
    for (std::size_t n = 0; n < tensor.count; n++) {
        switch (tensor.type) {
        case CaseType::f32: numbers[n] = static_cast<double>(load<float>(bytes + 4 * n)); break;
        case CaseType::f16: numbers[n] = static_cast<double>(widen_f16(load<std::uint16_t>(bytes + 2 * n))); break;
        case CaseType::f64: numbers[n] = load<double>(bytes + 8 * n); break;
        case CaseType::u8:
        case CaseType::i64: fail("tensor " + name + " is " + type_name(tensor.type) + "; it must be f32, f16 or f64");
        }
    }
    return numbers;
}

std::vector<std::int64_t> read_integers(const CaseFile &file, const std::string &name)
{
    const CaseTensor &tensor = find_tensor(file, name);
    if (tensor.type != CaseType::i64)
        fail("tensor " + name + " is " + type_name(tensor.type) + "; it must be i64");
    std::vector<std::int64_t> integers(tensor.count);
    for (std::size_t n = 0; n < tensor.count; n++)
        integers[n] = load<std::int64_t>(file.payload.data() + tensor.offset + 8 * n);
    return integers;
}

std::vector<std::byte> read_bytes(const CaseFile &file, const std::string &name)
{
    const CaseTensor &tensor = find_tensor(file, name);
    std::vector<std::byte> bytes(tensor.count * type_bytes(tensor.type));
    if (!bytes.empty())
        std::memcpy(bytes.data(), file.payload.data() + tensor.offset, bytes.size());
    return bytes;
}

} // namespace bench
