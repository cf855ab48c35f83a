/* Where keys and values are. See place.h. */
#include "place.h"

attree__place attree__place_make(const attree__problem *p, const attree__cache *cache, const attree__sequence *sequence,
                                 int64_t batch, int64_t head)
{
    const attree_strides *s = cache->strides;
    const bool paged = p->page_size > 0;
    attree__place place = {
        .page = s->batch * cache->bytes,
        .token = s->token * cache->bytes,
        .panel_token = cache->panels ? cache->bytes : 0,
        .first = sequence->kv_start - p->shard.first,
        .page_size = p->page_size,
    };
    if (cache->data)
        place.data = (char *)cache->data + ((paged ? 0 : batch * s->batch) + head * s->head) * cache->bytes;
    if (paged && cache->table)
        place.table = cache->table + batch * p->table_width;
    return place;
}
