/* Attention over one key. Run without a launcher, there is one rank. */
#include <attree_mpi.h>

int main(int argc, char **argv)
{
    float q[] = {1.0f}, k[] = {0.0f}, v[] = {2.5f}, o[] = {0.0f};
    const attree_desc desc = {.size = sizeof desc,
                              .batch = 1,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .q_len = 1,
                              .kv_len = 1,
                              .qk_width = 1,
                              .v_width = 1};
    const attree_args args = {.size = sizeof args, .q = q, .k = k, .v = v, .o = o};
    MPI_Init(&argc, &argv);
    const attree_status status = attree_mpi_run(&desc, &args, ATTREE_MPI_EXACT, MPI_COMM_WORLD);
    MPI_Finalize();
    return status == ATTREE_OK && o[0] == 2.5f ? 0 : 1;
}
