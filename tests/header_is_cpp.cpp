// The public header compiles as C++17, and its functions link.
#include "attree/attree.h"

#include <cmath>

int main()
{
    attree_desc desc{};
    desc.size = sizeof desc;
    desc.batch = desc.q_heads = desc.kv_heads = desc.q_len = desc.kv_len = desc.qk_width = desc.v_width = 1;
    const float q = 1.0f, k = 2.0f, v = 3.0f;
    float o = 0.0f, lse = 0.0f;
    attree_args args{};
    args.size = sizeof args;
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.o = &o;
    args.lse = &lse;
    const bool right = attree_attention(&desc, &args) == ATTREE_OK && o == 3.0f && std::fabs(lse - 2.0f) < 1e-6f;
    return right ? 0 : 1;
}
