/* From attributes and tensors to a problem for attree. See attncase.h. */
#include "attncase.h"

#include <stdexcept>

#include "attncase_file.h"
#include "problem.h"

namespace bench {

namespace {

/* [batch, heads, tokens, width], whichever way it lies in memory. */
struct Layout {
    std::int64_t batch = 0, heads = 0, tokens = 0, width = 0;
    attree_strides strides{};
};

[[noreturn]] void fail(const std::string &problem) { throw std::runtime_error(problem); }

[[noreturn]] void unsupported(const std::string &feature)
{
    fail("unsupported: " + feature + "; attree does not have it yet");
}

std::int64_t integer_attribute(const CaseFile &file, const std::string &name, std::int64_t absent)
{
    const auto found = file.attributes.find(name);
    return found == file.attributes.end() ? absent : parse_integer("attribute " + name, found->second);
}

double real_attribute(const CaseFile &file, const std::string &name, double absent)
{
    const auto found = file.attributes.find(name);
    return found == file.attributes.end() ? absent : parse_real("attribute " + name, found->second);
}

/* Every attribute and tensor must mean something here, or be one that changes nothing. */
void refuse_unsupported(const CaseFile &file)
{
    for (const auto &[name, value] : file.attributes) {
        const std::string attribute = "attribute " + name;
        const bool window = name == "left_window_size" || name == "right_window_size";
        if ((window && parse_integer(attribute, value) != -1) ||
            (name == "softcap" && parse_real(attribute, value) != 0.0))
            unsupported(attribute + " " + value);
        if (!window && name != "softcap" && name != "scale" && name != "is_causal" && name != "q_num_heads" &&
            name != "kv_num_heads")
            unsupported(attribute);
    }
    for (const auto &[name, tensor] : file.tensors)
        if (name != "Q" && name != "K" && name != "V" && name != "Y")
            unsupported("tensor " + name);
}

Layout layout_of(const CaseFile &file, const std::string &name, const std::string &heads_attribute)
{
    const std::vector<std::int64_t> &dims = find_tensor(file, name).dims;
    const std::int64_t heads = integer_attribute(file, heads_attribute, 0);
    if (dims.size() == 4) {
        if (heads != 0 && heads != dims[1])
            fail("tensor " + name + " has " + std::to_string(dims[1]) + " heads, but " + heads_attribute + " is " +
                 std::to_string(heads));
        return {dims[0], dims[1], dims[2], dims[3], heads_outside(dims[1], dims[2], dims[3])};
    }
    if (dims.size() != 3)
        fail("tensor " + name + " has rank " + std::to_string(dims.size()) + "; it must be 3 or 4");
    if (heads < 1 || dims[2] % heads != 0)
        fail("tensor " + name + " has rank 3 and last dimension " + std::to_string(dims[2]) +
             "; that must be a multiple of the attribute " + heads_attribute + ", at least 1");
    return {dims[0], heads, dims[1], dims[2] / heads, heads_inside(heads, dims[1], dims[2] / heads)};
}

void require_equal(const char *what, std::int64_t a, std::int64_t b)
{
    if (a != b)
        fail(std::string(what) + " differ: " + std::to_string(a) + " and " + std::to_string(b));
}

/* No product overflows here: read_case_file has seen to it. */
attree_desc describe(const CaseFile &file)
{
    const Layout q = layout_of(file, "Q", "q_num_heads"), y = layout_of(file, "Y", "q_num_heads");
    const Layout k = layout_of(file, "K", "kv_num_heads"), v = layout_of(file, "V", "kv_num_heads");
    require_equal("the batches of Q and K", q.batch, k.batch);
    require_equal("the batches of Q and V", q.batch, v.batch);
    require_equal("the batches of Q and Y", q.batch, y.batch);
    require_equal("the heads of K and V", k.heads, v.heads);
    require_equal("the heads of Q and Y", q.heads, y.heads);
    require_equal("the tokens of K and V", k.tokens, v.tokens);
    require_equal("the tokens of Q and Y", q.tokens, y.tokens);
    require_equal("the widths of Q and K", q.width, k.width);
    require_equal("the widths of V and Y", v.width, y.width);

    attree_desc desc{};
    desc.size = sizeof desc;
    desc.batch = q.batch;
    desc.q_heads = q.heads;
    desc.kv_heads = k.heads;
    desc.q_len = q.tokens;
    desc.kv_len = k.tokens;
    desc.qk_width = q.width;
    desc.v_width = v.width;
    desc.q = q.strides;
    desc.k = k.strides;
    desc.v = v.strides;
    desc.o = y.strides;
    if (file.attributes.count("scale") != 0) {
        desc.flags |= ATTREE_USE_SCALE;
        desc.scale = static_cast<float>(real_attribute(file, "scale", 1.0));
    }
    if (integer_attribute(file, "is_causal", 0) != 0)
        desc.flags |= ATTREE_CAUSAL | ATTREE_USE_Q_OFFSET; // query i is at position i: q_offset is 0
    return desc;
}

std::vector<float> input(const CaseFile &file, const std::string &name, CaseType type)
{
    const CaseTensor &tensor = find_tensor(file, name);
    if (tensor.type != CaseType::f32 && tensor.type != CaseType::f16)
        unsupported("tensor " + name + " of type " + type_name(tensor.type));
    if (tensor.type != type)
        fail("tensor " + name + " is " + type_name(tensor.type) + ", but Q is " + type_name(type));
    const std::vector<double> numbers = read_numbers(file, name);
    return std::vector<float>(numbers.begin(), numbers.end());
}

AttnCase interpret(const CaseFile &file)
{
    refuse_unsupported(file);
    const CaseType type = find_tensor(file, "Q").type;
    AttnCase result;
    result.name = file.name;
    result.desc = describe(file);
    if (type == CaseType::f16)
        result.desc.q_type = result.desc.k_type = result.desc.v_type = ATTREE_F16;
    result.q = input(file, "Q", type);
    result.k = input(file, "K", type);
    result.v = input(file, "V", type);
    result.y = read_numbers(file, "Y");
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

} // namespace bench
