/* Where the keys and values of one head of a sequence are in memory: from a key to an address, for dense, ragged, paged
 * and panelled caches and for shards. */
#ifndef ATTREE_PLACE_H
#define ATTREE_PLACE_H

#include "desc.h"
#include "kernel.h"

typedef struct attree__place {
    char *data;
    int64_t page, token;  /* bytes: from page to page; from token to token, or from panel to panel */
    int64_t panel_token;  /* bytes from token to token of a panel; 0: no panels */
    int64_t first;        /* unpaged: the token of key 0. Paged: minus the key of table entry 0 */
    const int32_t *table; /* the sequence's row of the page table; NULL: unpaged */
    int64_t page_size;
} attree__place;

/* A tensor of keys, values or their scales. */
typedef struct attree__cache {
    const void *data;
    const attree_strides *strides;
    int64_t bytes; /* of an element, or of a block */
    bool panels;
    const int32_t *table; /* the whole page table */
} attree__cache;

/* The head is that of the key/value heads. */
attree__place attree__place_make(const attree__problem *problem, const attree__cache *cache,
                                 const attree__sequence *sequence, int64_t batch, int64_t head);

/* Where key j is. In a paged cache it must be one that has a page. */
static inline char *attree__place_at(const attree__place *s, int64_t j)
{
    char *data = s->data;
    int64_t token = s->first + j;
    if (s->table) {
        data += s->table[token / s->page_size] * s->page;
        token %= s->page_size;
    }
    const int64_t at = s->panel_token > 0 ? token / ATTREE__PIECE * s->token + token % ATTREE__PIECE * s->panel_token
                                          : token * s->token;
    return (char *)((uintptr_t)data + (uintptr_t)at); /* integers: what is asked for in advance need not exist */
}

#endif /* ATTREE_PLACE_H */
