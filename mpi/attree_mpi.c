/* Shards along the tree, and the collectives that combine their states. */
#include "attree_mpi.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = ATTREE_BLOCK_KEYS };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t blocks_of(int64_t kv_len) { return kv_len / BLOCK + (kv_len % BLOCK != 0); }

/* ---- Shards ---- */

/* Where the range of a rank begins, among n blocks. */
static int64_t cut(int64_t n, int64_t rank, int64_t ranks)
{
    if (rank == ranks)
        return n;
    const int64_t rest = rank * (n % ranks), share = n / ranks, slack = share / 16;
    const int64_t even = rank * share + rest / ranks + (rest % ranks != 0);
    int64_t unit = 1;
    while (unit <= even / 2)
        unit *= 2;
    for (unit *= 2;; unit /= 2) {
        const int64_t at = (even + unit / 2) & -unit; /* the nearest multiple */
        if ((at > even ? at - even : even - at) <= slack)
            return at;
    }
}

attree_status attree_mpi_shard_of(attree_mpi_shard *shard, int64_t kv_len, int rank, int ranks)
{
    if (!shard)
        return ATTREE_ERROR_NULL;
    if (kv_len < 0)
        return ATTREE_ERROR_SHAPE;
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return ATTREE_ERROR_VALUE;
    const int64_t n = blocks_of(kv_len), end = cut(n, rank + 1, ranks);
    int64_t at = cut(n, rank, ranks);
    *shard = (attree_mpi_shard){.keys = {least(at * BLOCK, kv_len), least(end * BLOCK, kv_len)}};
    while (at < end) {
        int64_t size = at == 0 ? INT64_C(1) << 55 : at & -at; /* an aligned run, or what is left of it, is a node */
        while (least(at + size, n) > end)
            size /= 2;
        const int64_t next = least(at + size, n);
        shard->node[shard->nodes++] = (attree_mpi_keys){at * BLOCK, least(next * BLOCK, kv_len)};
        at = next;
    }
    return ATTREE_OK;
}

/* Tensors k or v of a shard: from strides and pointer at its first token to those at a node `skip` tokens on. */
typedef struct tensor {
    attree_strides *strides;
    const void *data;
    int32_t type;
    int64_t width;
    bool adjacent; /* the stride of the width is ignored */
} tensor;

static const void *advance(const tensor *t, const attree_desc *d, int64_t tokens, int64_t skip)
{
    const bool in_blocks = t->type == ATTREE_Q8_0 || t->type == ATTREE_Q4_0;
    const int64_t panel = d->flags & ATTREE_K_PANELS && t->strides == &d->k ? ATTREE_PANEL_KEYS : 1;
    const int64_t width = in_blocks ? t->width / 32 : t->width, rows = (tokens + panel - 1) / panel * panel;
    attree_strides *const s = t->strides;
    if (s->batch == 0 && s->head == 0 && s->token == 0 && (s->width == 0 || t->adjacent || in_blocks || panel > 1))
        *s = (attree_strides){d->kv_heads * rows * width, rows * width, width * panel, 1};
    const int64_t element = (int64_t)attree_row_bytes(t->type, in_blocks ? 32 : 1);
    return t->data ? (const char *)t->data + skip / panel * s->token * element : NULL;
}

attree_status attree_mpi_node(const attree_mpi_shard *shard, int32_t node, attree_desc *desc, attree_args *args)
{
    if (!shard || !desc || !args)
        return ATTREE_ERROR_NULL;
    if (node < 0 || node >= shard->nodes)
        return ATTREE_ERROR_VALUE;
    const int64_t skip = shard->node[node].begin - shard->keys.begin, tokens = shard->keys.end - shard->keys.begin;
    desc->flags |= ATTREE_STATES;
    desc->shard_begin = shard->node[node].begin;
    desc->shard_end = shard->node[node].end;
    args->o = NULL;
    args->lse = NULL;
    if (desc->page_size > 0) {
        if (skip % desc->page_size != 0)
            return ATTREE_ERROR_VALUE;
        if (args->page_table)
            args->page_table += skip / desc->page_size;
        return ATTREE_OK;
    }
    args->k = advance(&(tensor){&desc->k, args->k, desc->k_type, desc->qk_width, false}, desc, tokens, skip);
    args->v = advance(&(tensor){&desc->v, args->v, desc->v_type, desc->v_width, false}, desc, tokens, skip);
    if (desc->k_type == ATTREE_I8)
        args->k_scales = advance(&(tensor){&desc->k_scales, args->k_scales, ATTREE_F32, 1, true}, desc, tokens, skip);
    if (desc->v_type == ATTREE_I8)
        args->v_scales = advance(&(tensor){&desc->v_scales, args->v_scales, ATTREE_F32, 1, true}, desc, tokens, skip);
    return ATTREE_OK;
}

/* ---- Combination ---- */

/* Bytes of a node's states; 0 when a field is out of its range, or too large for MPI's counts. */
static size_t node_bytes(const attree_mpi_states *s)
{
    if (s->kv_len < 0 || s->rows < 0 || s->rows > INT_MAX || s->v_width < 1 || s->v_width > INT_MAX - 2)
        return 0;
    const size_t state = ((size_t)s->v_width + 2) * sizeof(float);
    return (size_t)s->rows > SIZE_MAX / 2 / state ? 0 : (size_t)s->rows * state;
}

/* Counts and displacements of an allgather, in nodes. */
static size_t table_bytes(int ranks) { return (size_t)ranks * 2 * sizeof(int); }

/* Fills both tables when they are given; returns the nodes of all ranks, or -1: more than an int holds. */
static int64_t count_nodes(int64_t kv_len, int ranks, int *counts, int *places)
{
    int64_t total = 0;
    for (int r = 0; r < ranks; r++) {
        attree_mpi_shard shard;
        (void)attree_mpi_shard_of(&shard, kv_len, r, ranks);
        if (counts) {
            counts[r] = shard.nodes;
            places[r] = (int)total;
        }
        total += shard.nodes;
    }
    return total > INT_MAX ? -1 : total;
}

size_t attree_mpi_scratch(const attree_mpi_states *states, int ranks)
{
    if (!states || ranks < 1 || states->kv_len < 0)
        return 0;
    const size_t bytes = node_bytes(states), table = table_bytes(ranks);
    const int64_t nodes = count_nodes(states->kv_len, ranks, NULL, NULL);
    if ((bytes == 0 && states->rows != 0) || nodes < 0)
        return 0;
    if (nodes > 0 && bytes > (SIZE_MAX / 2 - table) / (size_t)nodes)
        return 0;
    return table + (size_t)nodes * bytes;
}

static attree_status check_states(const attree_mpi_states *s, int rank, int ranks)
{
    attree_mpi_shard shard;
    if (!s)
        return ATTREE_ERROR_NULL;
    if (node_bytes(s) == 0 && s->rows != 0)
        return s->kv_len < 0 || s->rows < 0 || s->v_width < 1 ? ATTREE_ERROR_SHAPE : ATTREE_ERROR_OVERFLOW;
    const attree_status status = attree_mpi_shard_of(&shard, s->kv_len, rank, ranks);
    if (status == ATTREE_OK && s->rows > 0 && (!s->result || (shard.nodes > 0 && !s->nodes)))
        return ATTREE_ERROR_NULL;
    return status;
}

/* rows states as one element. */
static int make_type(MPI_Datatype *type, int64_t v_width, int64_t rows)
{
    MPI_Datatype state;
    int error = MPI_Type_contiguous((int)v_width + 2, MPI_FLOAT, &state);
    if (error != MPI_SUCCESS)
        return error;
    error = MPI_Type_contiguous((int)rows, state, type);
    (void)MPI_Type_free(&state);
    return error == MPI_SUCCESS ? MPI_Type_commit(type) : error;
}

static void set_empty(float *states, int64_t rows, int64_t v_width)
{
    for (int64_t r = 0; r < rows; r++)
        (void)attree_state_init_f32(states + r * (v_width + 2), v_width);
}

/* The nodes of all ranks in the order of their keys, while the tree is walked. */
typedef struct walk {
    const attree_mpi_states *states;
    attree_mpi_shard shard; /* of `rank` */
    int rank, ranks;
    int32_t node; /* the next of the shard's */
    float *next;  /* its states */
} walk;

/* The states of the tree over blocks first ... first + count - 1, where its first node was. */
static float *combine(walk *w, int64_t first, int64_t count)
{
    const attree_mpi_states *const s = w->states;
    while (w->node == w->shard.nodes) {
        (void)attree_mpi_shard_of(&w->shard, s->kv_len, ++w->rank, w->ranks);
        w->node = 0;
    }
    const attree_mpi_keys node = w->shard.node[w->node];
    if (blocks_of(node.end) - node.begin / BLOCK >= count) {
        float *const at = w->next;
        w->next += s->rows * (s->v_width + 2);
        w->node++;
        return at;
    }
    const int64_t split = attree_tree_split(count);
    float *const left = combine(w, first, split);
    const float *const right = combine(w, first + split, count - split);
    (void)attree_states_merge(left, left, right, s->rows, s->v_width);
    return left;
}

attree_status attree_mpi_combine_exact(const attree_mpi_states *states, MPI_Comm comm)
{
    int rank, ranks;
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &ranks) != MPI_SUCCESS)
        return ATTREE_ERROR_MPI;
    const attree_status status = check_states(states, rank, ranks);
    if (status != ATTREE_OK || states->rows == 0)
        return status;
    if (!states->scratch)
        return ATTREE_ERROR_NULL;
    _Static_assert(sizeof(int) == sizeof(float), "the states follow the table");
    int *const counts = states->scratch, *const places = counts + ranks;
    float *const gathered = (float *)states->scratch + 2 * (size_t)ranks;
    if (count_nodes(states->kv_len, ranks, counts, places) < 0)
        return ATTREE_ERROR_OVERFLOW;
    MPI_Datatype type;
    if (make_type(&type, states->v_width, states->rows) != MPI_SUCCESS)
        return ATTREE_ERROR_MPI;
    const int error = MPI_Allgatherv(states->nodes, counts[rank], type, gathered, counts, places, type, comm);
    (void)MPI_Type_free(&type);
    if (error != MPI_SUCCESS)
        return ATTREE_ERROR_MPI;
    if (states->kv_len == 0) {
        set_empty(states->result, states->rows, states->v_width);
        return ATTREE_OK;
    }
    walk w = {.states = states, .rank = -1, .ranks = ranks, .next = gathered};
    memcpy(states->result, combine(&w, 0, blocks_of(states->kv_len)), node_bytes(states));
    return ATTREE_OK;
}

/* MPI's operation. The state with the larger maximum goes to the left, where its weight is 1: the bits are the same
 * when operands are swapped. */
static void merge_any(void *in, void *in_out, int *count, MPI_Datatype *type)
{
    int bytes = 0;
    (void)MPI_Type_size(*type, &bytes);
    const int64_t numbers = bytes / (int64_t)sizeof(float);
    const float *a = in;
    float *b = in_out;
    for (int r = 0; r < *count; r++, a += numbers, b += numbers)
        (void)attree_states_merge(b, a[0] > b[0] ? a : b, a[0] > b[0] ? b : a, 1, numbers - 2);
}

attree_status attree_mpi_combine_any(const attree_mpi_states *states, MPI_Comm comm)
{
    int rank, ranks;
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &ranks) != MPI_SUCCESS)
        return ATTREE_ERROR_MPI;
    const attree_status status = check_states(states, rank, ranks);
    if (status != ATTREE_OK || states->rows == 0)
        return status;
    MPI_Datatype type;
    if (make_type(&type, states->v_width, 1) != MPI_SUCCESS)
        return ATTREE_ERROR_MPI;
    MPI_Op op;
    if (MPI_Op_create(merge_any, 1, &op) != MPI_SUCCESS) {
        (void)MPI_Type_free(&type);
        return ATTREE_ERROR_MPI;
    }
    attree_mpi_shard shard;
    (void)attree_mpi_shard_of(&shard, states->kv_len, rank, ranks);
    set_empty(states->result, states->rows, states->v_width);
    for (int32_t n = 0; n < shard.nodes; n++)
        (void)attree_states_merge(states->result, states->result,
                                  states->nodes + n * states->rows * (states->v_width + 2), states->rows,
                                  states->v_width);
    const int error = MPI_Allreduce(MPI_IN_PLACE, states->result, (int)states->rows, type, op, comm);
    (void)MPI_Op_free(&op);
    (void)MPI_Type_free(&type);
    return error == MPI_SUCCESS ? ATTREE_OK : ATTREE_ERROR_MPI;
}

/* ---- One call ---- */

typedef struct job {
    const attree_desc *desc;
    const attree_args *args;
    attree_mpi_shard shard;
    attree_mpi_states states;
    attree_plan *plan;  /* of the shard as a whole: checks the problem, and finishes */
    float *nodes;       /* states.nodes */
    attree_args finish; /* args of attree_finish; its workspace is ours */
} job;

static attree_status allocate_workspace(attree_args *args, const attree_plan *plan)
{
    args->workspace_bytes = attree_plan_workspace(plan);
    args->workspace = aligned_alloc(64, (args->workspace_bytes + 64) / 64 * 64);
    return args->workspace ? ATTREE_OK : ATTREE_ERROR_MEMORY;
}

/* Everything that may fail on one rank alone, but for the runs. */
static attree_status prepare(job *j, int rank, int ranks)
{
    if (!j->desc || !j->args)
        return ATTREE_ERROR_NULL;
    if (j->desc->size != sizeof *j->desc || j->args->size != sizeof *j->args)
        return ATTREE_ERROR_SIZE;
    attree_status status = attree_mpi_shard_of(&j->shard, j->desc->kv_len, rank, ranks);
    if (status != ATTREE_OK)
        return status;
    attree_desc d = *j->desc;
    d.flags |= ATTREE_STATES;
    d.shard_begin = j->shard.keys.begin;
    d.shard_end = j->shard.keys.end;
    status = attree_plan_create(&j->plan, &d);
    if (status != ATTREE_OK)
        return status;
    j->finish = *j->args;
    j->finish.workspace = NULL;
    j->states = (attree_mpi_states){
        .kv_len = d.kv_len, .rows = (d.q_starts ? 1 : d.batch) * d.q_heads * d.q_len, .v_width = d.v_width};
    const size_t bytes = attree_mpi_scratch(&j->states, ranks), one = node_bytes(&j->states);
    if (bytes == 0)
        return ATTREE_ERROR_OVERFLOW;
    j->states.scratch = malloc(bytes);
    j->states.nodes = j->nodes = malloc((size_t)j->shard.nodes * one + 1);
    j->states.result = j->finish.states = malloc(one + 1);
    if (!j->states.scratch || !j->nodes || !j->states.result)
        return ATTREE_ERROR_MEMORY;
    return allocate_workspace(&j->finish, j->plan);
}

static attree_status run_node(const job *j, int32_t node)
{
    attree_desc d = *j->desc;
    attree_args a = *j->args;
    attree_plan *plan = NULL;
    attree_status status = attree_mpi_node(&j->shard, node, &d, &a);
    if (status == ATTREE_OK)
        status = attree_plan_create(&plan, &d);
    if (status == ATTREE_OK)
        status = allocate_workspace(&a, plan);
    if (status == ATTREE_OK) {
        a.states = j->nodes + node * j->states.rows * (j->states.v_width + 2);
        status = attree_run(plan, &a);
        free(a.workspace);
    }
    attree_plan_destroy(plan);
    return status;
}

/* The worst status of all ranks. */
static attree_status agree(attree_status mine, MPI_Comm comm)
{
    int status = (int)mine;
    if (MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, comm) != MPI_SUCCESS)
        return ATTREE_ERROR_MPI;
    return mine == ATTREE_OK ? (attree_status)status : mine;
}

attree_status attree_mpi_run(const attree_desc *desc, const attree_args *args, int32_t order, MPI_Comm comm)
{
    int rank, ranks;
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &ranks) != MPI_SUCCESS)
        return ATTREE_ERROR_MPI;
    job j = {.desc = desc, .args = args};
    attree_status status =
        order == ATTREE_MPI_EXACT || order == ATTREE_MPI_ANY ? prepare(&j, rank, ranks) : ATTREE_ERROR_VALUE;
    for (int32_t n = 0; n < j.shard.nodes && status == ATTREE_OK; n++)
        status = run_node(&j, n);
    status = agree(status, comm);
    if (status == ATTREE_OK)
        status = order == ATTREE_MPI_EXACT ? attree_mpi_combine_exact(&j.states, comm)
                                           : attree_mpi_combine_any(&j.states, comm);
    if (status == ATTREE_OK)
        status = attree_finish(j.plan, &j.finish);
    attree_plan_destroy(j.plan);
    free(j.finish.workspace);
    free(j.states.result);
    free(j.nodes);
    free(j.states.scratch);
    return status;
}
