/* Caches of keys or values for tests: any type, dense or in pages, in panels or not, by addresses that are worked out
 * here from what attree.h says. What has not been written is 0xff bytes: NaN, or a scale that is NaN. */
#ifndef ATTREE_TESTS_CACHES_H
#define ATTREE_TESTS_CACHES_H

#include "support.h"

typedef struct cache_layout {
    int64_t pages; /* of a dense cache: batch entries */
    int64_t heads, tokens, width;
    int32_t type;
    bool panels;      /* in 16 tokens of a page, the tokens of a number are adjacent */
    bool token_major; /* [page, token, head, width], otherwise [page, head, token, width] */
    bool apart;       /* each page between inaccessible memory, inaccessible itself until it is written to */
    bool at_start;    /* apart: it starts where that memory ends, otherwise it ends where that memory starts */
    bool spread;      /* numbers of a row are two elements apart: not with blocks, nor panels */
} cache_layout;

/* Equal pages, a stride apart. */
typedef struct page_pool {
    char *first;
    int64_t bytes, stride; /* of a page; from page to page */
    void *mapping;
    size_t mapping_bytes;
} page_pool;

typedef struct cache {
    cache_layout layout;
    attree_strides strides, scale_strides; /* for attree_desc */
    page_pool rows, scales;                /* scales: of ATTREE_I8 only */
    bool *opened;                          /* of pages that lie apart: whether they are accessible */
} cache;

/* Page, head and token of a row. */
typedef struct cache_at {
    int64_t page, head, token;
} cache_at;

cache make_cache(const cache_layout *layout);
void free_cache(cache *c);
void *cache_data(const cache *c);
float *cache_scales(const cache *c); /* NULL unless ATTREE_I8 */

/* Quantises numbers[width] into a row; reads a row's numbers. */
void cache_write(cache *c, cache_at at, const float *numbers);
void cache_read(const cache *c, cache_at at, float *numbers);

/* Fails the test unless both, of the same layout and not apart, hold the same bytes. */
void assert_same_caches(const cache *a, const cache *b);

/* Sets what desc says of k, or v, but for the sizes. */
void describe_keys(attree_desc *desc, const cache *k);
void describe_values(attree_desc *desc, const cache *v);
/* Sets what args has of both. */
void point_to_caches(attree_args *args, const cache *k, const cache *v);

/* The types of k and v alone. */
enum { QUANTISED_TYPES = 5 };
extern const int32_t quantised_types[QUANTISED_TYPES];

/* Whether numbers come in blocks of 32. */
bool has_blocks(int32_t type);

/* A short name of a type, "q8_0". */
const char *type_name(int32_t type);

#endif /* ATTREE_TESTS_CACHES_H */
