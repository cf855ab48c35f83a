/* Uses attree as installed, in C: all scores are 0, so that the result is the mean of the values. */
#include <attree/attree.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char version[32];
    (void)snprintf(version, sizeof version, "%d.%d.%d", ATTREE_VERSION_MAJOR, ATTREE_VERSION_MINOR,
                   ATTREE_VERSION_PATCH);
    if (strcmp(version, attree_version()) != 0) {
        (void)fprintf(stderr, "the header is of %s, the library of %s\n", version, attree_version());
        return 1;
    }
    const float q[4] = {0.0f}, k[12] = {0.0f}, v[3] = {1.0f, 2.0f, 6.0f};
    float o = 0.0f;
    const attree_desc desc = {.size = sizeof desc,
                              .batch = 1,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .q_len = 1,
                              .kv_len = 3,
                              .qk_width = 4,
                              .v_width = 1};
    const attree_args args = {.size = sizeof args, .q = q, .k = k, .v = v, .o = &o};
    if (attree_attention(&desc, &args) != ATTREE_OK) {
        (void)fprintf(stderr, "%s\n", attree_last_error());
        return 1;
    }
    printf("attree %s: %g\n", attree_version(), (double)o);
    return o == 3.0f ? 0 : 1;
}
