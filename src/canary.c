/* Gaps between the regions of a workspace. See canary.h. */
#include "canary.h"

#include <inttypes.h>
#include <string.h>

#include "error.h"

/* As a float, a NaN: what reads a gap shows in results, too. */
#define CANARY 0xff

enum { REGIONS = 11 };

/* A gap lies after the end of each of `count` equal parts. */
typedef struct region {
    const char *name;
    size_t offset, bytes; /* of the first part; of each, its gap included */
    int64_t count;
} region;

/* All regions, those of worker 0's scratch for the workers'. */
static void find_regions(const attree_plan *p, region regions[REGIONS])
{
    const size_t scratch = p->scratch_offset;
    const region found[REGIONS] = {
        {"shared", 0, p->states_offset, 1},
        {"states", p->states_offset, p->states_bytes, p->states},
        {"packed queries", scratch + p->packed_offset, p->ranges_offset - p->packed_offset, 1},
        {"ranges", scratch + p->ranges_offset, p->scales_offset - p->ranges_offset, 1},
        {"scales", scratch + p->scales_offset, p->gathered_k_offset - p->scales_offset, 1},
        {"gathered keys", scratch + p->gathered_k_offset, p->gathered_v_offset - p->gathered_k_offset, 1},
        {"gathered values", scratch + p->gathered_v_offset, p->sinks_offset - p->gathered_v_offset, 1},
        {"sinks", scratch + p->sinks_offset, p->levels_offset - p->sinks_offset, 1},
        {"levels", scratch + p->levels_offset, p->states_bytes, p->levels},
        {"kernel scratch", scratch + p->kernel_offset, p->sums_offset - p->kernel_offset, 1},
        {"sums", scratch + p->sums_offset, p->scratch_bytes - p->sums_offset, 1},
    };
    memcpy(regions, found, sizeof found);
}

/* Where the gap of a part ends, from the start of the workspace. */
static size_t gap_of(const attree_plan *p, const region *r, int64_t worker, int64_t part)
{
    return r->offset + (size_t)worker * p->scratch_bytes + (size_t)(part + 1) * r->bytes - ATTREE__CANARY_BYTES;
}

static void fill(char *gap)
{
    for (int i = 0; i < ATTREE__CANARY_BYTES; i++)
        gap[i] = (char)CANARY;
}

static bool is_of_workers(const attree_plan *p, const region *r) { return r->offset >= p->scratch_offset; }

void attree__canaries_set(const attree_plan *plan, void *workspace)
{
    if (ATTREE__CANARY_BYTES == 0)
        return;
    region regions[REGIONS];
    find_regions(plan, regions);
    for (const region *r = regions; r < regions + REGIONS; r++)
        for (int64_t worker = 0; worker < (is_of_workers(plan, r) ? plan->workers : 1); worker++)
            for (int64_t part = 0; part < r->count; part++)
                fill((char *)workspace + gap_of(plan, r, worker, part));
}

static bool is_intact(const char *gap)
{
    for (int i = 0; i < ATTREE__CANARY_BYTES; i++)
        if ((unsigned char)gap[i] != CANARY)
            return false;
    return true;
}

attree_status attree__canaries_check(const attree_plan *plan, const void *workspace)
{
    if (ATTREE__CANARY_BYTES == 0)
        return ATTREE_OK;
    region regions[REGIONS];
    find_regions(plan, regions);
    for (const region *r = regions; r < regions + REGIONS; r++)
        for (int64_t worker = 0; worker < (is_of_workers(plan, r) ? plan->workers : 1); worker++)
            for (int64_t part = 0; part < r->count; part++)
                if (!is_intact((const char *)workspace + gap_of(plan, r, worker, part)))
                    return attree__fail(ATTREE_ERROR_WORKSPACE,
                                        "region %s of worker %" PRId64 ", part %" PRId64 ", was written beyond its end",
                                        r->name, worker, part);
    return ATTREE_OK;
}
