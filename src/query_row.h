/* Query rows of a key/value head: those of its H / G query heads for query 0, then those for query 1, and so on, so
 * that rows next to each other see nearly the same keys. */
#ifndef ATTREE_QUERY_ROW_H
#define ATTREE_QUERY_ROW_H

#include <stdint.h>

/* head: of those that share the key/value head. */
typedef struct attree__query_row {
    int64_t query, head;
} attree__query_row;

static inline attree__query_row attree__query_row_at(int64_t row, int64_t heads)
{
    return (attree__query_row){row / heads, row % heads};
}

static inline int64_t attree__query_row_number(int64_t query, int64_t head, int64_t heads)
{
    return query * heads + head;
}

#endif /* ATTREE_QUERY_ROW_H */
