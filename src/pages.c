/* Checking page tables. See pages.h. */
#include "pages.h"

#include <inttypes.h>

#include "error.h"

/* Entries from ... to of batch entry b's row of the page table. */
static attree_status check_entries(const attree__problem *p, const int32_t *table, int64_t b, int64_t from, int64_t to)
{
    for (int64_t page = from; page <= to; page++) {
        const int32_t id = table[b * p->table_width + page];
        if (id < 0 || id >= p->page_count)
            return attree__fail(ATTREE_ERROR_VALUE,
                                "page_table[%" PRId64 "][%" PRId64 "] is %" PRId32
                                "; it must be at least 0 and less than page_count, %" PRId64,
                                b, page, id, p->page_count);
    }
    return ATTREE_OK;
}

/* The entries of these keys of the entries of a segment. */
static attree_status check_segment(const attree__problem *p, const attree__segment *s, const int32_t *table,
                                   const attree__keys *keys)
{
    const int64_t from = (keys->first - p->shard.first) / p->page_size;
    const int64_t to = (keys->end - 1 - p->shard.first) / p->page_size;
    if (to >= p->table_width)
        return attree__fail(ATTREE_ERROR_SHAPE,
                            "table_width is %" PRId64 "; %" PRId64 " keys in pages of %" PRId64 " need more entries",
                            p->table_width, keys->end - p->shard.first, p->page_size);
    if (!table)
        return attree__fail(ATTREE_ERROR_NULL, "page_table is NULL; it must point to batch * table_width entries");
    attree_status status = ATTREE_OK;
    for (int64_t b = s->batch; b < s->batch + s->batches && status == ATTREE_OK; b++)
        status = check_entries(p, table, b, from, to);
    return status;
}

attree_status attree__pages_check(const attree_plan *plan, const int32_t *table, bool appending)
{
    const attree__problem *p = &plan->problem;
    if (p->page_size == 0)
        return table ? attree__fail(ATTREE_ERROR_VALUE, "page_table is given; the plan's page_size is 0") : ATTREE_OK;
    attree_status status = ATTREE_OK;
    for (int64_t n = 0; n < plan->segment_count && status == ATTREE_OK; n++) {
        const attree__sequence *s = &plan->segments[n].sequence;
        const attree__keys keys =
            appending ? (attree__keys){s->q_offset, s->q_offset + s->q_len} : attree__problem_active_keys(p, s);
        if (keys.first < keys.end && plan->segments[n].batches > 0)
            status = check_segment(p, &plan->segments[n], table, &keys);
    }
    return status;
}
