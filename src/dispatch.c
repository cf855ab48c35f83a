/* Choosing a kernel table, once per plan. */
#include "dispatch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "error.h"

static const attree__kernels *const tables[] = ATTREE__TABLES;
#if defined(__aarch64__)
static const char vector_names[] = "neon";
#else
static const char vector_names[] = "avx2 or avx512";
#endif
enum { TABLES = sizeof tables / sizeof tables[0] };

static attree_status by_name(const attree__kernels **kernels, const char *name)
{
    for (int i = 0; i < TABLES; i++)
        if (strcmp(name, tables[i]->name) == 0) {
            *kernels = tables[i];
            if (!attree__cpu_has((attree_isa)tables[i]->isa))
                return attree__fail(ATTREE_ERROR_ISA, "ATTREE_ISA is %s; this machine does not have it", name);
            return ATTREE_OK;
        }
    return attree__fail(ATTREE_ERROR_ISA, "ATTREE_ISA is \"%.32s\"; it must be scalar or, on this architecture, %s",
                        name, vector_names);
}

attree_status attree__dispatch(const attree__kernels **kernels, int32_t isa)
{
    if (isa < ATTREE_ISA_AUTO || isa > ATTREE_ISA_NEON)
        return attree__fail(ATTREE_ERROR_VALUE, "isa is %" PRId32 "; it must be an attree_isa, 0 to 4", isa);
    const attree_status status = attree__cpu_require();
    if (status != ATTREE_OK)
        return status;
    const char *const name =
        getenv("ATTREE_ISA"); /* NOLINT(concurrency-mt-unsafe): hosts that setenv in threads race anyway */
    if (isa == ATTREE_ISA_AUTO && name && *name)
        return by_name(kernels, name);
    for (int i = 0; i < TABLES; i++)
        if ((isa == ATTREE_ISA_AUTO || isa == tables[i]->isa) && attree__cpu_has((attree_isa)tables[i]->isa)) {
            *kernels = tables[i];
            return ATTREE_OK;
        }
    static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "neon"};
    return attree__fail(ATTREE_ERROR_ISA, "isa is %s; this machine does not have it", names[isa]);
}

attree_status attree__dispatch_streams(int32_t *streams, bool in_pages)
{
    const char *const given = getenv("ATTREE_STREAMS");          /* NOLINT(concurrency-mt-unsafe): as ATTREE_ISA */
    *streams = in_pages ? ATTREE__FOLDS : attree__cpu_streams(); /* Zen 5, pages of 16 keys: one takes 1.07 to 1.13 */
    if (!given || !*given)
        return ATTREE_OK;
    if (given[1] || (given[0] != '1' && given[0] != '2' && given[0] != '4'))
        return attree__fail(ATTREE_ERROR_VALUE, "ATTREE_STREAMS is \"%.32s\"; it must be 1, 2 or 4", given);
    *streams = given[0] - '0';
    return ATTREE_OK;
}
