/* Descriptor to problem: everything the caller says is checked here, once, and defaults are filled in.
 *
 * A problem is what the rest of the library works with: all products of its dimensions and strides that are used later
 * fit 64 bits, and strides along dimensions of size 0 or 1 are 0. */
#ifndef ATTREE_DESC_H
#define ATTREE_DESC_H

#include <stdbool.h>

#include "attree/attree.h"

/* The bytes that a tensor's elements span, from its pointer: [low, high), low <= 0. Empty tensors: low = high = 0. */
typedef struct attree__span {
    int64_t low, high;
} attree__span;

typedef struct attree__problem {
    int64_t batch, q_heads, kv_heads, group;  /* B, H, G, H / G */
    int64_t q_len, kv_len, qk_width, v_width; /* Q, K, D, E */
    attree_strides q, k, v, o, lse;
    int32_t q_type, k_type, v_type, o_type;
    attree__span q_span, k_span, v_span, o_span, lse_span;
    float scale;
    bool causal;
    int64_t q_offset;
    attree_empty empty_rows;
} attree__problem;

/* Keys first <= j < end. Empty: first = end = 0. */
typedef struct attree__keys {
    int64_t first, end;
} attree__keys;

/* Checks desc and fills in *problem. */
attree_status attree__problem_init(attree__problem *problem, const attree_desc *desc);

/* Checks the tensors of a run: NULL, alignment, overlap. Workspace: see the plan. */
attree_status attree__problem_check(const attree__problem *problem, const attree_args *args);

/* The keys that query i may see. Grows monotonically with i, at both ends. */
attree__keys attree__problem_visible(const attree__problem *problem, int64_t i);

#endif /* ATTREE_DESC_H */
