/* Writing new keys and values into a cache. */
#include <inttypes.h>

#include "block.h"
#include "dtype.h"
#include "error.h"
#include "quant.h"
#include "simd/fpenv.h"
#include "place.h"

/* Keys or values: where they come from, where they go. */
typedef struct transfer {
    const void *from;
    int32_t from_type, to_type;
    attree_strides from_strides;
    attree__cache to, scales;
    int64_t to_width, count; /* elements from number to number of a row; numbers */
} transfer;

/* All new tokens of one sequence and head. */
static attree_status append_head(const attree__problem *p, const transfer *t, const attree__sequence *s, int64_t batch,
                                 int64_t head)
{
    const attree__place rows = attree__place_make(p, &t->to, s, batch, head);
    const attree__place scales = attree__place_make(p, &t->scales, s, batch, head);
    const int64_t bytes = attree__dtype_bytes(t->from_type);
    const attree_strides *f = &t->from_strides;
    attree_status status = ATTREE_OK;
    for (int64_t i = 0; i < s->q_len && status == ATTREE_OK; i++) {
        const int64_t at = (p->ragged_q ? 0 : batch * f->batch) + head * f->head + (s->q_start + i) * f->token;
        const attree__numbers numbers = {(const char *)t->from + at * bytes, t->from_type, f->width, t->count};
        const int64_t j = s->q_offset + i;
        float *const scale = t->to_type == ATTREE_I8 ? (float *)(void *)attree__place_at(&scales, j) : NULL;
        status = attree__quant_row(attree__place_at(&rows, j), t->to_type, t->to_width, &numbers, scale);
    }
    return status;
}

/* The new tokens of every sequence must be keys that it has. */
static attree_status check_positions(const attree_plan *plan)
{
    const attree__problem *p = &plan->problem;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const attree__sequence *s = &plan->segments[n].sequence;
        const int64_t end = s->kv_len < p->shard.end ? s->kv_len : p->shard.end;
        if (s->q_len > 0 && plan->segments[n].batches > 0 &&
            (s->q_offset < p->shard.first || s->q_offset > end - s->q_len))
            return attree__fail(ATTREE_ERROR_SHAPE,
                                "batch entry %" PRId64 " has new tokens %" PRId64 " to %" PRId64
                                "; they must be among its keys, %" PRId64 " to %" PRId64,
                                plan->segments[n].batch, s->q_offset, s->q_offset + s->q_len - 1, p->shard.first,
                                end - 1);
    }
    return ATTREE_OK;
}

static attree_status append(const attree_plan *plan, const transfer *t)
{
    const attree__problem *p = &plan->problem;
    attree_status status = ATTREE_OK;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const attree__segment *s = &plan->segments[n];
        for (int64_t b = s->batch; b < s->batch + s->batches; b++)
            for (int64_t g = 0; g < p->kv_heads && status == ATTREE_OK; g++)
                status = append_head(p, t, &s->sequence, b, g);
    }
    return status;
}

attree_status attree_append(const attree_plan *plan, const attree_new_tokens *tokens)
{
    if (!plan || !tokens)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", plan ? "tokens" : "plan");
    if (tokens->size != sizeof *tokens)
        return attree__fail(ATTREE_ERROR_SIZE, "tokens->size is %zu; this library knows %zu", tokens->size,
                            sizeof *tokens);
    const attree__problem *p = &plan->problem;
    const int32_t *const table = tokens->page_table;
    attree_strides strides[2];
    attree_status status = check_positions(plan);
    if (status == ATTREE_OK)
        status = attree__problem_check_append(p, tokens, strides);
    if (status == ATTREE_OK)
        status = attree__block_check_pages(plan, table, true);
    if (status != ATTREE_OK)
        return status;
    const transfer transfers[] = {
        {
            .from = tokens->k,
            .from_type = tokens->k_type,
            .to_type = p->k_type,
            .from_strides = strides[0],
            .to = {tokens->cache_k, &p->k, attree__dtype_bytes(p->k_type), p->panels, table},
            .scales = {tokens->cache_k_scales, &p->k_scales, sizeof(float), false, table},
            .to_width = p->panels ? ATTREE__PIECE : p->k.width,
            .count = p->qk_width,
        },
        {
            .from = tokens->v,
            .from_type = tokens->v_type,
            .to_type = p->v_type,
            .from_strides = strides[1],
            .to = {tokens->cache_v, &p->v, attree__dtype_bytes(p->v_type), false, table},
            .scales = {tokens->cache_v_scales, &p->v_scales, sizeof(float), false, table},
            .to_width = p->v.width,
            .count = p->v_width,
        },
    };
    const attree__fpenv caller = attree__fpenv_enter();
    for (int i = 0; i < 2 && status == ATTREE_OK; i++)
        status = append(plan, &transfers[i]);
    attree__fpenv_leave(caller);
    return status;
}
