/* Where weights go: the part of a desc that ATTREE_WEIGHTS enables. */
#include "desc.h"
#include "error.h"

/* Keys of the longest batch entry. */
static int64_t most_keys(const attree__problem *p)
{
    if (!p->ragged_kv)
        return p->kv_len;
    int64_t most = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t keys = attree__problem_sequence(p, b).kv_len;
        most = keys > most ? keys : most;
    }
    return most;
}

attree_status attree__problem_resolve_weights(attree__problem *p, const attree_desc *desc)
{
    if (!p->weights)
        return ATTREE_OK;
    if (p->states)
        return attree__fail(ATTREE_ERROR_VALUE, "flags has ATTREE_STATES and ATTREE_WEIGHTS; it must have one of them");
    attree_status status = attree__layout_check_type("weights_type", desc->weights_type, false);
    const int64_t keys = most_keys(p), heads = p->weights_by_head ? p->q_heads : p->kv_heads;
    const attree_strides sums = {desc->key_weights.batch, desc->key_weights.head, desc->key_weights.token, 0};
    const attree__tensor tensors[] = {
        {"weights",
         &desc->weights,
         {attree__problem_q_batches(p), p->q_heads, p->q_len, keys},
         desc->weights_type,
         true,
         &p->weight_strides,
         &p->weights_span},
        {"key_weights",
         &sums,
         {p->batch, heads, keys, 1},
         ATTREE_F32,
         true,
         &p->key_weight_strides,
         &p->key_weights_span},
    };
    for (int i = 0; i < 2 && status == ATTREE_OK; i++)
        status = attree__layout_resolve(&tensors[i]);
    p->weights_type = desc->weights_type;
    return status;
}
