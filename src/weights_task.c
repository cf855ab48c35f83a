/* Weights of all rows of a group for one block of keys. See weights.h. */
#include <string.h>

#include "contract.h"
#include "dtype.h"
#include "progress.h"
#include "query_row.h"
#include "tree.h"
#include "weights.h"

typedef struct weights_job {
    const attree__worker *worker;
    const attree__tile *group;
    int64_t block, keys; /* of the block that are written */
} weights_job;

/* Sums of a level of the tree over queries: [heads][ATTREE__BLOCK]. */
static float *level_sums(const weights_job *job, int32_t level)
{
    const attree_plan *plan = job->worker->plan;
    return (float *)(void *)(job->worker->scratch + plan->sums_offset) +
           (int64_t)level * plan->problem.group * ATTREE__BLOCK;
}

/* Where the weights of the group and the block go, for rows from the tile's first on. */
static attree__weights_sink sink_of(const weights_job *job, const attree__tile *tile)
{
    const attree_args *args = job->worker->args;
    const attree__problem *p = &job->worker->plan->problem;
    const attree_strides *s = &p->weight_strides;
    const int64_t batch = p->ragged_q ? 0 : tile->batch;
    const int64_t first = batch * s->batch + tile->group * p->group * s->head +
                          tile->segment->sequence.q_start * s->token + job->block * ATTREE__BLOCK * s->width;
    char *const data = args->weights;
    return (attree__weights_sink){
        .heads = p->group,
        .first = tile->row,
        .data = data ? data + first * attree__dtype_bytes(p->weights_type) : NULL,
        .query = s->token,
        .head = s->head,
        .key = s->width > 0 || s->width < 0 ? s->width : 1,
        .type = p->weights_type,
        .keys = job->keys,
    };
}

/* lse of the tile's rows. */
static void gather_lse(const weights_job *job, const attree__tile *tile, float *lse)
{
    const attree__problem *p = &job->worker->plan->problem;
    const int64_t batch = p->ragged_q ? 0 : tile->batch;
    for (int64_t r = 0; r < tile->rows; r++) {
        const attree__query_row at = attree__query_row_at(tile->row + r, p->group);
        lse[r] = job->worker->args->lse[batch * p->lse.batch + (tile->group * p->group + at.head) * p->lse.head +
                                        (tile->segment->sequence.q_start + at.query) * p->lse.token];
    }
}

/* Weights of a tile that sees no key of the block. */
static void write_zeros(const attree__weights_sink *sink, int64_t rows)
{
    for (int64_t r = 0; r < rows && sink->data; r++) {
        const attree__query_row at = attree__query_row_at(sink->first + r, sink->heads);
        for (int64_t j = 0; j < sink->keys; j++)
            attree__store(sink->data, sink->type, at.query * sink->query + at.head * sink->head + j * sink->key, 0.0f);
    }
}

/* Rows of a leaf that are computed at once. */
static void tile_weights(const weights_job *job, const attree__tile *tile, float *sums)
{
    const attree__worker *w = job->worker;
    const attree_plan *plan = w->plan;
    attree__weights_sink sink = sink_of(job, tile);
    const attree__keys visible = attree__plan_blocks(plan, tile, job->block);
    attree__block block;
    if (visible.first >= visible.end || !attree__block_init(&block, w, tile, job->block, 0)) {
        write_zeros(&sink, tile->rows);
        return;
    }
    float lse[ATTREE__WEIGHT_ROWS];
    gather_lse(job, tile, lse);
    sink.lse = lse;
    sink.sums = w->args->key_weights ? sums : NULL;
    const attree__queries queries = attree__block_queries(plan, w->args, tile);
    float *const q = (float *)(void *)(w->scratch + plan->packed_offset);
    plan->kernels->pack_queries(q, &queries, plan->problem.qk_width);
    block.fold.q = q;
    block.fold.scratch = (float *)(void *)(w->scratch + plan->kernel_offset);
    plan->kernels->weights(&block.fold, &sink);
}

/* Queries of a leaf of the tree over queries, into the sums of a level. False: the run is cancelled. */
static bool leaf_weights(const weights_job *job, int64_t leaf, int32_t level)
{
    const attree__tile *group = job->group;
    const int64_t heads = job->worker->plan->problem.group, leaf_rows = ATTREE__WEIGHT_QUERIES * heads;
    float *const sums = level_sums(job, level);
    memset(sums, 0, (size_t)(heads * ATTREE__BLOCK) * sizeof *sums);
    const int64_t end = (leaf + 1) * leaf_rows < group->rows ? (leaf + 1) * leaf_rows : group->rows;
    for (int64_t row = leaf * leaf_rows; row < end; row += ATTREE__WEIGHT_ROWS) {
        if (attree__progress_stops(job->worker->args))
            return false;
        attree__tile tile = *group;
        tile.row = row;
        tile.rows = end - row < ATTREE__WEIGHT_ROWS ? end - row : ATTREE__WEIGHT_ROWS;
        tile_weights(job, &tile, sums);
    }
    return true;
}

/* Leaves first ... first + count - 1, likewise. */
static bool node_weights(const weights_job *job, int64_t first, int64_t count, int32_t level)
{
    if (count == 1)
        return leaf_weights(job, first, level);
    const int64_t split = attree__tree_split(count), numbers = job->worker->plan->problem.group * ATTREE__BLOCK;
    if (!node_weights(job, first, split, level) || !node_weights(job, first + split, count - split, level + 1))
        return false;
    float *const left = level_sums(job, level);
    const float *const right = level_sums(job, level + 1);
    for (int64_t n = 0; n < numbers; n++)
        left[n] += right[n];
    return true;
}

/* Sums of the keys, of each query head or of them all. */
static void write_sums(const weights_job *job)
{
    const attree__problem *p = &job->worker->plan->problem;
    const attree_strides *s = &p->key_weight_strides;
    const float *const sums = level_sums(job, 0);
    const int64_t heads = p->weights_by_head ? p->group : 1, added = p->group / heads;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t j = 0; j < job->keys; j++) {
            float sum = sums[h * ATTREE__BLOCK + j];
            for (int64_t n = 1; n < added; n++)
                sum += sums[n * ATTREE__BLOCK + j];
            job->worker->args->key_weights[job->group->batch * s->batch + (job->group->group * heads + h) * s->head +
                                           (job->block * ATTREE__BLOCK + j) * s->token] = attree__canonical(sum);
        }
}

bool attree__weights_task(const attree__worker *worker, const attree__tile *group, int64_t b)
{
    const attree__problem *p = &worker->plan->problem;
    const attree__sequence *s = &group->segment->sequence;
    const int64_t left = (p->ragged_kv ? s->kv_len : p->kv_len) - b * ATTREE__BLOCK;
    const weights_job job = {worker, group, b, left < ATTREE__BLOCK ? left : ATTREE__BLOCK};
    const int64_t queries = s->q_len,
                  leaves = queries / ATTREE__WEIGHT_QUERIES + (queries % ATTREE__WEIGHT_QUERIES != 0);
    if (leaves == 0)
        memset(level_sums(&job, 0), 0, (size_t)(p->group * ATTREE__BLOCK) * sizeof(float));
    else if (!node_weights(&job, 0, leaves, 0))
        return false;
    if (worker->args->key_weights)
        write_sums(&job);
    return true;
}
