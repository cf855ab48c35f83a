// Uses attree as installed, in C++: all scores are 0, so that the result is the mean of the values.
#include <attree/attree.h>

#include <array>
#include <iostream>

int main()
{
    attree_desc desc{};
    desc.size = sizeof desc;
    desc.batch = desc.q_heads = desc.kv_heads = desc.q_len = desc.qk_width = desc.v_width = 1;
    desc.kv_len = 3;
    const std::array<float, 3> k{}, v{1.0f, 2.0f, 6.0f};
    const float q = 0.0f;
    float o = 0.0f;
    attree_args args{};
    args.size = sizeof args;
    args.q = &q;
    args.k = k.data();
    args.v = v.data();
    args.o = &o;
    if (attree_attention(&desc, &args) != ATTREE_OK) {
        std::cerr << attree_last_error() << '\n';
        return 1;
    }
    std::cout << "attree " << attree_version() << ": " << o << '\n';
    return o == 3.0f ? 0 : 1;
}
