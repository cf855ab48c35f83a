/* Descriptor to problem: everything the caller says is checked here, once, and defaults are filled in.
 *
 * A problem is what the rest of the library works with: all products of its dimensions and strides that are used later
 * fit 64 bits, and strides along dimensions of size 0 or 1 are 0. */
#ifndef ATTREE_DESC_H
#define ATTREE_DESC_H

#include <stdbool.h>

#include "attree/attree.h"
#include "layout.h"

/* Keys first <= j < end; none when first >= end. */
typedef struct attree__keys {
    int64_t first, end;
} attree__keys;

/* Element (b, h, i, j) of a tensor over pairs is number b * batch + h * head + i * query + j * key. */
typedef struct attree__pairs {
    int64_t batch, head, query, key;
    attree__span span;
} attree__pairs;

/* One batch entry. Its query i is token q_start + i of q, o and lse, at position i + q_offset among its keys; its key j
 * is token kv_start + j of k and v. */
typedef struct attree__sequence {
    int64_t q_start, q_len, kv_start, kv_len, q_offset;
} attree__sequence;

typedef struct attree__problem {
    int64_t batch, q_heads, kv_heads, group;            /* B, H, G, H / G */
    int64_t q_len, kv_len, qk_width, v_width;           /* Q, K, D, E; tokens of the tensors, when entries differ */
    attree_strides q, k, v, o, lse, k_scales, v_scales; /* paged: batch is from page to page; panels: k.token is from
                                                           panel to panel */
    int32_t q_type, k_type, v_type, o_type, mask_kind, bias_type;
    attree__span q_span, k_span, v_span, o_span, lse_span, k_scales_span, v_scales_span, table_span, states_span;
    attree__pairs mask, bias;
    float scale, softcap;
    int64_t window_left, window_right; /* causal is right = 0; -1: no limit */
    int64_t q_offset;                  /* when no entry has its own */
    bool default_q_offset;             /* the last query sees the last key */
    bool ragged_q;                     /* q, o, lse and states have no batch dimension */
    bool ragged_kv;                    /* k and v have none */
    bool panels, states;
    bool weights, weights_by_head; /* a run writes weights; sums for each query head */
    int32_t weights_type;
    attree_strides weight_strides, key_weight_strides;
    attree__span weights_span, key_weights_span;
    int64_t page_size, page_count, table_width; /* page_size 0: not paged */
    attree__keys shard;                         /* the keys that are there: 0 ... kv_len - 1, if all are */
    attree_empty empty_rows;
    int32_t isa, threads; /* that were asked for */
    /* The caller's arrays for each batch entry, or NULL. Read while a plan is made, and NULL in it. */
    const int64_t *kv_lens, *q_offsets, *q_starts, *kv_starts;
} attree__problem;

/* Checks desc and fills in *problem. */
attree_status attree__problem_init(attree__problem *problem, const attree_desc *desc);

/* A step of that, in weights_desc.c: what a run with ATTREE_WEIGHTS writes. */
attree_status attree__problem_resolve_weights(attree__problem *problem, const attree_desc *desc);

/* The batch dimension of q, o, lse and states: ragged ones have 1, or 0 without entries. */
static inline int64_t attree__problem_q_batches(const attree__problem *p)
{
    return p->ragged_q && p->batch > 0 ? 1 : p->batch;
}

/* Whether batch entries differ, so that each has its own sequence. */
bool attree__problem_has_sequences(const attree__problem *problem);

/* The caller's arrays need not be there any more. */
static inline void attree__problem_forget_sequences(attree__problem *p)
{
    p->kv_lens = p->q_offsets = p->q_starts = p->kv_starts = NULL;
}

/* The sequence of batch entry b; of every entry, when they do not differ. While the caller's arrays are there. */
attree__sequence attree__problem_sequence(const attree__problem *problem, int64_t b);

/* The keys that geometry lets query i of a sequence see. Neither end ever decreases as i grows. */
attree__keys attree__problem_visible(const attree__problem *problem, const attree__sequence *sequence, int64_t i);

/* The keys that some query of a sequence may see, and those between them. */
attree__keys attree__problem_active_keys(const attree__problem *problem, const attree__sequence *sequence);

#endif /* ATTREE_DESC_H */
