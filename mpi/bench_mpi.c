/* Decode with keys spread over ranks: bytes that are exchanged for a token, time of the runs and of the combinations.
 *
 *     mpirun -n 4 attree_mpi_bench [keys [heads [groups [width]]]]
 *
 * Times are the best of several, of the slowest rank. One thread for each rank. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <attree_mpi.h>

enum { ROUNDS = 10 };

static int rank, ranks;
static attree_mpi_shard shard;
static attree_plan *plans[ATTREE_MPI_NODES];
static attree_args node_args[ATTREE_MPI_NODES];

static void check(attree_status status)
{
    if (status == ATTREE_OK)
        return;
    (void)fprintf(stderr, "%s: %s\n", attree_status_name(status), attree_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t bytes)
{
    void *const memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory)
        check(ATTREE_ERROR_MEMORY);
    return memory;
}

static float *numbers(int64_t count, unsigned seed)
{
    float *const memory = allocate((size_t)count * sizeof *memory);
    for (int64_t n = 0; n < count; n++) {
        seed = seed * 1664525u + 1013904223u;
        memory[n] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return memory;
}

/* Plans of this rank's nodes, whose states follow each other. */
static void make_plans(const attree_desc *desc, const attree_args *args, float *states)
{
    for (int32_t n = 0; n < shard.nodes; n++) {
        attree_desc d = *desc;
        node_args[n] = *args;
        check(attree_mpi_node(&shard, n, &d, &node_args[n]));
        check(attree_plan_create(&plans[n], &d));
        node_args[n].states = states + n * d.q_heads * (d.v_width + 2);
        node_args[n].workspace_bytes = attree_plan_workspace(plans[n]);
        node_args[n].workspace = allocate(node_args[n].workspace_bytes);
    }
}

/* The best times, in seconds: runs, the exact combination, that in any order. */
static void measure(const attree_mpi_states *states, double best[3])
{
    for (int part = 0; part < 3; part++)
        best[part] = INFINITY;
    for (int round = 0; round < ROUNDS; round++)
        for (int part = 0; part < 3; part++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double time = MPI_Wtime();
            for (int32_t n = 0; part == 0 && n < shard.nodes; n++)
                check(attree_run(plans[n], &node_args[n]));
            if (part > 0)
                check(part == 1 ? attree_mpi_combine_exact(states, MPI_COMM_WORLD)
                                : attree_mpi_combine_any(states, MPI_COMM_WORLD));
            time = MPI_Wtime() - time;
            MPI_Allreduce(MPI_IN_PLACE, &time, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            best[part] = fmin(best[part], time);
        }
}

static void report(const attree_desc *d, const double best[3])
{
    int nodes = shard.nodes;
    MPI_Allreduce(MPI_IN_PLACE, &nodes, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    const int64_t state = d->q_heads * (d->v_width + 2) * (int64_t)sizeof(float);
    if (rank > 0)
        return;
    (void)printf("%d ranks, %d nodes, %" PRId64 " keys, %" PRId64 " heads in %" PRId64 " groups of width %" PRId64 "\n",
                 ranks, nodes, d->kv_len, d->q_heads, d->kv_heads, d->v_width);
    (void)printf("states of a node   %" PRId64 " bytes: %" PRId64 " heads x (%" PRId64 " + 2) x 4\n", state, d->q_heads,
                 d->v_width);
    (void)printf("gathered, exact    %" PRId64 " bytes on each rank for a token\n", nodes * state);
    (void)printf("reduced, any order %" PRId64 " bytes\n", state);
    (void)printf("runs               %.1f us\n", best[0] * 1e6);
    (void)printf("exact combination  %.1f us\n", best[1] * 1e6);
    (void)printf("any order          %.1f us\n", best[2] * 1e6);
}

static int64_t argument(int argc, char **argv, int n, int64_t usual)
{
    return argc > n ? (int64_t)strtoll(argv[n], NULL, 10) : usual;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    attree_desc d = {.size = sizeof d, .batch = 1, .q_len = 1, .threads = 1};
    d.kv_len = argument(argc, argv, 1, 16384);
    d.q_heads = argument(argc, argv, 2, 32);
    d.kv_heads = argument(argc, argv, 3, 8);
    d.qk_width = d.v_width = argument(argc, argv, 4, 128);
    check(attree_mpi_shard_of(&shard, d.kv_len, rank, ranks));
    const int64_t tokens = shard.keys.end - shard.keys.begin, state = d.q_heads * (d.v_width + 2);
    float *const q = numbers(d.q_heads * d.qk_width, 1), *const result = numbers(state, 2);
    float *const k = numbers(d.kv_heads * tokens * d.qk_width, (unsigned)rank * 2 + 3);
    float *const v = numbers(d.kv_heads * tokens * d.v_width, (unsigned)rank * 2 + 4);
    float *const nodes = numbers(shard.nodes * state, 5);
    const attree_args a = {.size = sizeof a, .q = q, .k = k, .v = v};
    make_plans(&d, &a, nodes);
    attree_mpi_states states = {
        .kv_len = d.kv_len, .rows = d.q_heads, .v_width = d.v_width, .nodes = nodes, .result = result};
    states.scratch = allocate(attree_mpi_scratch(&states, ranks));
    double best[3];
    measure(&states, best);
    report(&d, best);
    for (int32_t n = 0; n < shard.nodes; n++) {
        attree_plan_destroy(plans[n]);
        free(node_args[n].workspace);
    }
    void *const all[] = {q, result, k, v, nodes, states.scratch};
    for (int n = 0; n < 6; n++)
        free(all[n]);
    MPI_Finalize();
    return 0;
}
