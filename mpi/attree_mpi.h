/* attree-mpi: attention over keys that are spread over the ranks of an MPI communicator.
 *
 * The blocks of 256 keys are cut into one contiguous range for each rank, and a range into nodes of the tree that
 * attree's results are made along. Each rank folds its nodes to states (attree.h, "Shards"), and one collective
 * combines them, on every rank:
 *
 *     attree_mpi_combine_exact  MPI_Allgatherv of the nodes' states, then the rest of the tree. The result has the bits
 *                               of a run over all keys in one process, for any number of ranks.
 *     attree_mpi_combine_any    MPI_Allreduce with a commutative operation, in whatever order MPI likes. Less is sent;
 *                               the result differs by rounding.
 *
 * attree_mpi_run does all of it in one call. Who decodes many tokens makes the plans once, with attree_mpi_node, and
 * calls attree_run, a combination and attree_finish for each.
 *
 * All ranks must give the same problem: shapes, positions, masks, q, sinks and so on; only k and v, their scales and
 * page tables are each rank's own. Collective functions are called by all ranks of the communicator, in the same order.
 * MPI must have been initialised; functions may be called by any thread that MPI allows. What attree.h says of errors
 * holds here, too: ATTREE_OK or nothing written, ATTREE_ERROR_MPI aside. */
#ifndef ATTREE_ATTREE_MPI_H
#define ATTREE_ATTREE_MPI_H

#include <mpi.h>

#include <attree/attree.h>

#ifdef __cplusplus
extern "C" {
#endif

/* MPI returned an error: only where the communicator's error handler lets it. */
#define ATTREE_ERROR_MPI ((attree_status)100)

/* The most nodes of a rank's range. */
#define ATTREE_MPI_NODES 16

/* Keys begin <= j < end. */
typedef struct attree_mpi_keys {
    int64_t begin, end;
} attree_mpi_keys;

/* What a rank has. */
typedef struct attree_mpi_shard {
    attree_mpi_keys keys; /* its range; begin = end: none, which happens with more ranks than blocks */
    int32_t nodes;        /* 0 ... ATTREE_MPI_NODES */
    attree_mpi_keys node[ATTREE_MPI_NODES]; /* in order; together they are the range */
} attree_mpi_shard;

/* The shard of a rank, 0 <= rank < ranks. Cuts are made at the boundary of the largest nodes within a sixteenth of a
 * share of the even cut: no rank has more than 9/8 of a share, and a block. With ranks and blocks both a power of two,
 * ranks <= blocks, each rank has one node. Not collective. */
ATTREE_API attree_status attree_mpi_shard_of(attree_mpi_shard *shard, int64_t kv_len, int rank, int ranks);

/* From the desc and args of the whole problem, with k and v of the shard: those of one of its nodes, for a run that
 * writes args->states. k, v, k_scales and v_scales point to key shard->keys.begin; strides of 0 mean dense in the
 * shard's tokens; entry 0 of a page table's row is the page that begins at that key, and page_size must divide the
 * distance of the node from it. shard_begin, shard_end and ATTREE_STATES are set here. The whole problem must be one
 * that attree_plan_create accepts with that shard. Not collective. */
ATTREE_API attree_status attree_mpi_node(const attree_mpi_shard *shard, int32_t node, attree_desc *desc,
                                         attree_args *args);

/* States to be combined: of each of this rank's nodes, rows states of E + 2 numbers, one node after the other. */
typedef struct attree_mpi_states {
    int64_t kv_len;     /* of the whole problem */
    int64_t rows;       /* B * H * Q, or ragged H * q_len; the same on all ranks, as kv_len and v_width are */
    int64_t v_width;    /* E */
    const float *nodes; /* [shard.nodes, rows, E + 2]; may be NULL without nodes */
    float *result;      /* [rows, E + 2]; must overlap nothing else */
    void *scratch;      /* attree_mpi_scratch() bytes, aligned as malloc's; only for attree_mpi_combine_exact */
} attree_mpi_states;

/* Bytes of scratch that attree_mpi_combine_exact needs: the states of all nodes of all ranks, and a little. 0 when that
 * is too large for a size, or a field is out of its range. Pointers are not looked at. Not collective. */
ATTREE_API size_t attree_mpi_scratch(const attree_mpi_states *states, int ranks);

/* Combines the states of all ranks into result, on each. Collective. Neither allocates, beyond what MPI does. Of
 * combine_any, ranks may get results that differ from each other by rounding, as of any MPI_Allreduce; the operation
 * has the same bits when its operands are swapped, so that with common algorithms they do not. */
ATTREE_API attree_status attree_mpi_combine_exact(const attree_mpi_states *states, MPI_Comm comm);
ATTREE_API attree_status attree_mpi_combine_any(const attree_mpi_states *states, MPI_Comm comm);

typedef enum attree_mpi_order {
    ATTREE_MPI_EXACT = 0, /* attree_mpi_combine_exact */
    ATTREE_MPI_ANY = 1    /* attree_mpi_combine_any */
} attree_mpi_order;

/* One call: shards, plans of the nodes, their runs, the combination, attree_finish: o, and lse when asked for, on every
 * rank. desc and args as for attree_mpi_node; args->workspace and args->states are ignored. Ranks first agree that all
 * of them got as far as the combination, by an MPI_Allreduce of an int: an error on one is an error on
 * all, and where attree found it, attree_last_error() on that rank has its sentence. Collective. */
ATTREE_API attree_status attree_mpi_run(const attree_desc *desc, const attree_args *args, int32_t order, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif /* ATTREE_ATTREE_MPI_H */
