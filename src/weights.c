/* Softmax weights of one row, from its lse: for people who look at attention. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "args.h"
#include "block.h"
#include "contract.h"
#include "error.h"
#include "query_row.h"
#include "simd/fpenv.h"

static attree_status check_index(const char *name, int64_t index, int64_t count)
{
    if (index < 0 || index >= count)
        return attree__fail(ATTREE_ERROR_SHAPE, "%s is %" PRId64 "; it must be at least 0 and less than %" PRId64, name,
                            index, count);
    return ATTREE_OK;
}

/* args is whole. */
static attree_status check_weights(const attree_plan *plan, const attree_args *args, const int64_t at[3],
                                   const float *weights)
{
    if (!args->lse || !weights)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", args->lse ? "weights" : "lse");
    attree_status status = check_index("batch", at[0], plan->problem.batch);
    if (status == ATTREE_OK)
        status = check_index("head", at[1], plan->problem.q_heads);
    return status == ATTREE_OK ? check_index("query", at[2], attree__plan_segment(plan, at[0])->sequence.q_len)
                               : status;
}

/* The weights of the keys of one block. */
static void block_weights(const attree__fold *f, float lse, float *weights)
{
    float scores[ATTREE__BLOCK];
    attree__contract_scores(f, 0, scores);
    for (int32_t j = f->first[0]; j < f->end[0]; j++)
        weights[j] = attree__contract_row_weight(scores[j], lse);
}

/* args is whole, and checked. */
static void row_weights(const attree_plan *plan, const attree_args *args, const int64_t at[3], float *weights)
{
    const int64_t batch = at[0], head = at[1], query = at[2];
    const attree__problem *p = &plan->problem;
    const attree__segment *segment = attree__plan_segment(plan, batch);
    const attree__sequence *s = &segment->sequence;
    const int64_t row = attree__query_row_number(query, head % p->group, p->group);
    const attree__tile tile = {segment, batch, head / p->group, row, 1, 0};
    const float lse = args->lse[batch * p->lse.batch + head * p->lse.head + (s->q_start + query) * p->lse.token];
    const int64_t keys = p->ragged_kv ? s->kv_len : p->kv_len;
    memset(weights, 0, (size_t)keys * sizeof *weights);
    const attree__worker worker = attree__worker_at(plan, args, 0);
    float *const q = (float *)(void *)(worker.scratch + plan->packed_offset);
    const attree__queries queries = attree__block_queries(plan, args, &tile);
    attree__kernels_contract.pack_queries(q, &queries, p->qk_width);
    for (int64_t b = 0; b < segment->blocks; b++) {
        attree__block block;
        if (!attree__block_init(&block, &worker, &tile, b, 0))
            continue;
        block.fold.q = q;
        block_weights(&block.fold, lse, weights + b * ATTREE__BLOCK);
    }
}

/* The public signature. NOLINTNEXTLINE(readability-function-size) */
attree_status attree_weights(const attree_plan *plan, const attree_args *args, int64_t batch, int64_t head,
                             int64_t query, float *weights)
{
    const int64_t at[3] = {batch, head, query};
    attree_args whole;
    attree_status status = attree__args_check(&whole, plan, args);
    if (status == ATTREE_OK)
        status = check_weights(plan, &whole, at, weights);
    if (status != ATTREE_OK)
        return status;
    const attree__fpenv caller = attree__fpenv_enter();
    row_weights(plan, &whole, at, weights);
    attree__fpenv_leave(caller);
    return ATTREE_OK;
}
