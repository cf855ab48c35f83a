/* From attributes and tensors to a problem for attree. See attncase.h. */
#include "attncase.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "attncase_file.h"
#include "problem.h"

namespace bench {

namespace {

/* [batch, heads, tokens, width], whichever way it lies in memory. */
struct Layout {
    std::int64_t batch = 0, heads = 0, tokens = 0, width = 0;
    bool inside = false; // heads lie inside tokens
    attree_strides strides{};
};

struct Tensor {
    Layout layout;
    CaseType type = CaseType::f32; // or f16
    std::vector<std::byte> elements;
};

[[noreturn]] void fail(const std::string &problem) { throw std::runtime_error(problem); }

bool has_tensor(const CaseFile &file, const std::string &name) { return file.tensors.count(name) != 0; }

std::int64_t integer_attribute(const CaseFile &file, const std::string &name, std::int64_t absent)
{
    const auto found = file.attributes.find(name);
    return found == file.attributes.end() ? absent : parse_integer("attribute " + name, found->second);
}

float real_attribute(const CaseFile &file, const std::string &name, float absent)
{
    const auto found = file.attributes.find(name);
    if (found == file.attributes.end())
        return absent;
    const double value = parse_real("attribute " + name, found->second);
    if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
        fail("attribute " + name + " is " + found->second + "; it must be a finite number of 32 bits");
    return static_cast<float>(value);
}

/* Every attribute and tensor must mean something here. */
void refuse_unknown(const CaseFile &file)
{
    constexpr std::array attributes{"scale",        "softcap",          "is_causal",        "q_num_heads",
                                    "kv_num_heads", "left_window_size", "right_window_size"};
    constexpr std::array tensors{"Q", "K", "V", "Y", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};
    for (const auto &[name, value] : file.attributes)
        if (std::find(attributes.begin(), attributes.end(), name) == attributes.end())
            fail("attribute " + name + " is unknown");
    for (const auto &[name, tensor] : file.tensors)
        if (std::find(tensors.begin(), tensors.end(), name) == tensors.end())
            fail("tensor " + name + " is unknown");
}

void set_strides(Layout &layout)
{
    layout.strides = layout.inside ? heads_inside(layout.heads, layout.tokens, layout.width)
                                   : heads_outside(layout.heads, layout.tokens, layout.width);
}

/* No product of dimensions overflows here: read_case_file has seen to it. */
Layout layout_of(const CaseFile &file, const std::string &name, const std::string &heads_attribute)
{
    const std::vector<std::int64_t> &dims = find_tensor(file, name).dims;
    const std::int64_t heads = integer_attribute(file, heads_attribute, 0);
    Layout layout;
    if (dims.size() == 4) {
        if (heads != 0 && heads != dims[1])
            fail("tensor " + name + " has " + std::to_string(dims[1]) + " heads, but " + heads_attribute + " is " +
                 std::to_string(heads));
        layout = {dims[0], dims[1], dims[2], dims[3], false, {}};
    } else if (dims.size() == 3) {
        if (heads < 1 || dims[2] % heads != 0)
            fail("tensor " + name + " has rank 3 and last dimension " + std::to_string(dims[2]) +
                 "; that must be a multiple of the attribute " + heads_attribute + ", at least 1");
        layout = {dims[0], heads, dims[1], dims[2] / heads, true, {}};
    } else {
        fail("tensor " + name + " has rank " + std::to_string(dims.size()) + "; it must be 3 or 4");
    }
    set_strides(layout);
    return layout;
}

void require_float(const CaseFile &file, const std::string &name)
{
    const CaseType type = find_tensor(file, name).type;
    if (type != CaseType::f32 && type != CaseType::f16)
        fail("tensor " + name + " is " + type_name(type) + "; it must be f32 or f16");
}

Tensor read_tensor(const CaseFile &file, const std::string &name, const std::string &heads_attribute)
{
    require_float(file, name);
    return {layout_of(file, name, heads_attribute), find_tensor(file, name).type, read_bytes(file, name)};
}

void require_equal(const std::string &what, std::int64_t a, std::int64_t b)
{
    if (a != b)
        fail(what + " differ: " + std::to_string(a) + " and " + std::to_string(b));
}

/* Bytes of a tensor. With 0 counted as 1, so that no stride overflows either. */
std::size_t byte_count(const Layout &layout, CaseType type)
{
    std::int64_t span = static_cast<std::int64_t>(type_bytes(type));
    bool empty = false;
    for (const std::int64_t size : {layout.batch, layout.heads, layout.tokens, layout.width}) {
        empty = empty || size == 0;
        if (__builtin_mul_overflow(span, std::max<std::int64_t>(size, 1), &span))
            fail("the size of a past and what follows it overflows 64 bits");
    }
    return empty ? 0 : static_cast<std::size_t>(span);
}

/* Copies all tokens of `from` into `to`, its first one to token `first`. */
void copy_tokens(Tensor &to, std::int64_t first, const Tensor &from)
{
    if (from.elements.empty())
        return; // dimensions may be huge then
    const std::size_t element = type_bytes(from.type), row = static_cast<std::size_t>(from.layout.width) * element;
    const attree_strides &source = from.layout.strides, &target = to.layout.strides;
    for (std::int64_t b = 0; b < from.layout.batch; b++)
        for (std::int64_t h = 0; h < from.layout.heads; h++)
            for (std::int64_t t = 0; t < from.layout.tokens; t++) {
                const std::int64_t n = b * source.batch + h * source.head + t * source.token;
                const std::int64_t m = b * target.batch + h * target.head + (first + t) * target.token;
                std::memcpy(to.elements.data() + static_cast<std::size_t>(m) * element,
                            from.elements.data() + static_cast<std::size_t>(n) * element, row);
            }
}

/* The tokens of a past and then those of K or V, laid out as the latter are. */
Tensor join(const std::string &name, const Tensor &past, const Tensor &now)
{
    require_equal("the batches of " + name + " and what follows", past.layout.batch, now.layout.batch);
    require_equal("the heads of " + name + " and what follows", past.layout.heads, now.layout.heads);
    require_equal("the widths of " + name + " and what follows", past.layout.width, now.layout.width);
    if (past.type != now.type)
        fail("tensor " + name + " is " + type_name(past.type) + ", but what follows is " + type_name(now.type));
    Tensor all{now.layout, now.type, {}};
    if (__builtin_add_overflow(past.layout.tokens, now.layout.tokens, &all.layout.tokens))
        fail("the tokens of " + name + " and what follows overflow 64 bits");
    all.elements.resize(byte_count(all.layout, all.type));
    set_strides(all.layout);
    copy_tokens(all, 0, past);
    copy_tokens(all, past.layout.tokens, now);
    return all;
}

std::int32_t dtype(CaseType type) { return type == CaseType::f16 ? ATTREE_F16 : ATTREE_F32; }

/* Dimensions, types and layouts; takes the elements. */
void set_tensors(AttnCase &result, Tensor &&q, Tensor &&k, Tensor &&v, const Layout &y)
{
    require_equal("the batches of Q and K", q.layout.batch, k.layout.batch);
    require_equal("the batches of Q and V", q.layout.batch, v.layout.batch);
    require_equal("the batches of Q and Y", q.layout.batch, y.batch);
    require_equal("the heads of K and V", k.layout.heads, v.layout.heads);
    require_equal("the heads of Q and Y", q.layout.heads, y.heads);
    require_equal("the tokens of K and V", k.layout.tokens, v.layout.tokens);
    require_equal("the tokens of Q and Y", q.layout.tokens, y.tokens);
    require_equal("the widths of Q and K", q.layout.width, k.layout.width);
    require_equal("the widths of V and Y", v.layout.width, y.width);
    attree_desc &desc = result.desc;
    desc.size = sizeof desc;
    desc.batch = q.layout.batch;
    desc.q_heads = q.layout.heads;
    desc.kv_heads = k.layout.heads;
    desc.q_len = q.layout.tokens;
    desc.kv_len = k.layout.tokens;
    desc.qk_width = q.layout.width;
    desc.v_width = v.layout.width;
    desc.q = q.layout.strides;
    desc.k = k.layout.strides;
    desc.v = v.layout.strides;
    desc.o = y.strides;
    desc.q_type = dtype(q.type);
    desc.k_type = dtype(k.type);
    desc.v_type = dtype(v.type);
    result.q = std::move(q.elements);
    result.k = std::move(k.elements);
    result.v = std::move(v.elements);
}

void set_attributes(const CaseFile &file, attree_desc &desc)
{
    if (file.attributes.count("scale") != 0) {
        desc.flags |= ATTREE_USE_SCALE;
        desc.scale = real_attribute(file, "scale", 1.0f);
    }
    desc.softcap = real_attribute(file, "softcap", 0.0f);
    if (integer_attribute(file, "is_causal", 0) != 0)
        desc.flags |= ATTREE_CAUSAL;
    if (file.attributes.count("left_window_size") != 0 || file.attributes.count("right_window_size") != 0) {
        desc.flags |= ATTREE_USE_WINDOW;
        desc.window_left = integer_attribute(file, "left_window_size", -1);
        desc.window_right = integer_attribute(file, "right_window_size", -1);
    }
}

/* How many keys each batch entry has. Without a past, that places its queries. */
void set_lengths(const CaseFile &file, bool past, AttnCase &result)
{
    const std::string name = "nonpad_kv_seqlen";
    if (!has_tensor(file, name))
        return;
    const std::vector<std::int64_t> &dims = find_tensor(file, name).dims;
    if (dims.size() != 1 || dims[0] != result.desc.batch)
        fail("tensor " + name + " must have one dimension, the batch, " + std::to_string(result.desc.batch));
    result.kv_lens = read_integers(file, name);
    for (const std::int64_t length : result.kv_lens) {
        if (length < 0 || length > result.desc.kv_len)
            fail("tensor " + name + " has " + std::to_string(length) + "; it must be 0 to " +
                 std::to_string(result.desc.kv_len) + ", the number of keys");
        if (!past)
            result.q_offsets.push_back(length - result.desc.q_len);
    }
}

/* Keys from `end` on exist for nobody: no need to pad a mask that does not reach them. Positions are set already. */
void cut_keys(AttnCase &result, std::int64_t end)
{
    result.desc.kv_len = std::min(result.desc.kv_len, end);
    for (std::int64_t &length : result.kv_lens)
        length = std::min(length, end);
}

void set_mask(const CaseFile &file, AttnCase &result)
{
    const std::string name = "attn_mask";
    if (!has_tensor(file, name))
        return;
    const CaseTensor &mask = find_tensor(file, name);
    const std::size_t rank = mask.dims.size();
    if (rank < 1 || rank > 4)
        fail("tensor " + name + " has rank " + std::to_string(rank) + "; it must be 1 to 4");
    attree_desc &desc = result.desc;
    const std::array<std::int64_t, 4> whole{desc.batch, desc.q_heads, desc.q_len, desc.kv_len};
    std::array<std::int64_t, 4> size{1, 1, 1, 1};
    std::copy(mask.dims.begin(), mask.dims.end(), size.end() - static_cast<std::ptrdiff_t>(rank));
    for (std::size_t d = 0; d < 4; d++)
        if (d == 3 ? size[d] > whole[d] : size[d] != 1 && size[d] != whole[d])
            fail("tensor " + name + " has a dimension " + std::to_string(size[d]) + " where the scores have " +
                 std::to_string(whole[d]));
    cut_keys(result, size[3]);
    const std::int64_t query = size[3], head = size[2] * query, batch = size[1] * head;
    const attree_pairs pairs{size[0], size[1], size[2], size[3], batch, head, query, 1};
    if (mask.type == CaseType::u8) {
        desc.mask = pairs;
        result.mask = read_bytes(file, name);
    } else {
        require_float(file, name);
        desc.bias = pairs;
        desc.bias_type = dtype(mask.type);
        result.bias = read_bytes(file, name);
    }
}

AttnCase interpret(const CaseFile &file)
{
    refuse_unknown(file);
    AttnCase result;
    result.name = file.name;
    Tensor k = read_tensor(file, "K", "kv_num_heads"), v = read_tensor(file, "V", "kv_num_heads");
    const bool past = has_tensor(file, "past_key");
    if (past != has_tensor(file, "past_value"))
        fail("past_key and past_value must come together");
    result.desc.flags = ATTREE_USE_Q_OFFSET;
    if (past) {
        const Tensor past_key = read_tensor(file, "past_key", "kv_num_heads");
        result.desc.q_offset = past_key.layout.tokens;
        k = join("past_key", past_key, k);
        v = join("past_value", read_tensor(file, "past_value", "kv_num_heads"), v);
    }
    set_tensors(result, read_tensor(file, "Q", "q_num_heads"), std::move(k), std::move(v),
                layout_of(file, "Y", "q_num_heads"));
    set_attributes(file, result.desc);
    set_lengths(file, past, result);
    set_mask(file, result);
    if (!result.kv_lens.empty())
        result.desc.kv_lens = result.kv_lens.data();
    if (!result.q_offsets.empty())
        result.desc.q_offsets = result.q_offsets.data();
    result.y = read_numbers(file, "Y");
    /* The expected output of an f16 file was rounded to 2^-11 at best. */
    const bool half = result.desc.q_type == ATTREE_F16 || find_tensor(file, "Y").type == CaseType::f16;
    result.exactness = half ? 2e-3 : 2e-6;
    return result;
}

} // namespace

AttnCase load_attncase(const std::string &path)
{
    try {
        return interpret(read_case_file(path));
    } catch (const std::runtime_error &error) {
        throw std::runtime_error(path + ": " + error.what());
    }
}

namespace {

const void *pointer(const std::vector<std::byte> &elements) { return elements.empty() ? nullptr : elements.data(); }

} // namespace

Problem problem_of(const AttnCase &input)
{
    return {input.desc, pointer(input.q), pointer(input.k), pointer(input.v), pointer(input.mask), pointer(input.bias)};
}

} // namespace bench
