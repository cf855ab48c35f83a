/* Writing new keys and values into a cache: all of them are checked before the first is written. */
#include "args.h"
#include "dtype.h"
#include "place.h"
#include "quant.h"
#include "simd/fpenv.h"

/* Keys or values: where they come from, where they go. */
typedef struct transfer {
    const void *from;
    int32_t from_type, to_type;
    attree_strides from_strides;
    attree__cache to, scales;
    int64_t to_width, count; /* elements from number to number of a row; numbers */
} transfer;

/* The new tokens of one sequence and head. */
typedef struct new_rows {
    const attree__sequence *sequence;
    int64_t batch, head;
} new_rows;

/* The numbers of token i. */
static attree__numbers new_row(const attree__problem *p, const transfer *t, const new_rows *n, int64_t i)
{
    const attree_strides *f = &t->from_strides;
    const int64_t batch = p->ragged_q ? 0 : n->batch;
    const int64_t at = batch * f->batch + n->head * f->head + (n->sequence->q_start + i) * f->token;
    const char *const data = (const char *)t->from + at * attree__dtype_bytes(t->from_type);
    return (attree__numbers){data, t->from_type, f->width, t->count};
}

static attree_status check_rows(const attree__problem *p, const transfer *t, const new_rows *n)
{
    attree_status status = ATTREE_OK;
    for (int64_t i = 0; i < n->sequence->q_len && status == ATTREE_OK; i++) {
        const attree__numbers numbers = new_row(p, t, n, i);
        status = attree__quant_check(t->to_type, &numbers);
    }
    return status;
}

static attree_status write_rows(const attree__problem *p, const transfer *t, const new_rows *n)
{
    const attree__sequence *s = n->sequence;
    const attree__place rows = attree__place_make(p, &t->to, s, n->batch, n->head);
    const attree__place scales = attree__place_make(p, &t->scales, s, n->batch, n->head);
    for (int64_t i = 0; i < s->q_len; i++) {
        const attree__numbers numbers = new_row(p, t, n, i);
        const int64_t j = s->q_offset + i;
        float *const scale =
            attree__dtype_has_row_scales(t->to_type) ? (float *)(void *)attree__place_at(&scales, j) : NULL;
        attree__quant_row(attree__place_at(&rows, j), t->to_type, t->to_width, &numbers, scale);
    }
    return ATTREE_OK;
}

/* Calls a function for each sequence and head until one fails. */
static attree_status for_all_rows(const attree_plan *plan, const transfer *t,
                                  attree_status (*call)(const attree__problem *, const transfer *, const new_rows *))
{
    const attree__problem *p = &plan->problem;
    attree_status status = ATTREE_OK;
    for (int64_t n = 0; n < plan->segment_count; n++) {
        const attree__segment *s = &plan->segments[n];
        for (int64_t b = s->batch; b < s->batch + s->batches; b++)
            for (int64_t g = 0; g < p->kv_heads && status == ATTREE_OK; g++)
                status = call(p, t, &(new_rows){&s->sequence, b, g});
    }
    return status;
}

static attree_status append(const attree_plan *plan, const attree_new_tokens *tokens)
{
    const attree__problem *p = &plan->problem;
    const int32_t *const table = tokens->page_table;
    const transfer transfers[] = {
        {
            .from = tokens->k,
            .from_type = tokens->k_type,
            .to_type = p->k_type,
            .from_strides = tokens->k_strides,
            .to = {tokens->cache_k, &p->k, attree__dtype_bytes(p->k_type), p->panels, table},
            .scales = {tokens->cache_k_scales, &p->k_scales, sizeof(float), false, table},
            .to_width = p->panels ? ATTREE__PIECE : p->k.width,
            .count = p->qk_width,
        },
        {
            .from = tokens->v,
            .from_type = tokens->v_type,
            .to_type = p->v_type,
            .from_strides = tokens->v_strides,
            .to = {tokens->cache_v, &p->v, attree__dtype_bytes(p->v_type), false, table},
            .scales = {tokens->cache_v_scales, &p->v_scales, sizeof(float), false, table},
            .to_width = p->v.width,
            .count = p->v_width,
        },
    };
    attree_status status = ATTREE_OK;
    const attree__fpenv caller = attree__fpenv_enter();
    for (int i = 0; i < 2 && status == ATTREE_OK; i++)
        status = for_all_rows(plan, &transfers[i], check_rows);
    for (int i = 0; i < 2 && status == ATTREE_OK; i++)
        status = for_all_rows(plan, &transfers[i], write_rows);
    attree__fpenv_leave(caller);
    return status;
}

attree_status attree_append(const attree_plan *plan, const attree_new_tokens *tokens)
{
    attree_new_tokens whole;
    const attree_status status = attree__args_check_append(&whole, plan, tokens);
    return status == ATTREE_OK ? append(plan, &whole) : status;
}
