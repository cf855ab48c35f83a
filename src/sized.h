/* Structs that start with their size. A caller that was built with an older header has shorter ones: the fields that
 * these lack are 0, which means the default. */
#ifndef ATTREE_SIZED_H
#define ATTREE_SIZED_H

#include <stddef.h>

#include "attree/attree.h"

typedef struct attree__sized {
    const char *name;
    size_t size, least; /* as this library knows it; of the fields that no caller can do without */
} attree__sized;

/* Copies *given to *whole, which has kind->size bytes, and fills up with zeros. Fails for NULL and for sizes that are
 * not kind->least to kind->size, or not a multiple of 8. */
attree_status attree__sized_copy(void *whole, const void *given, const attree__sized *kind);

#endif /* ATTREE_SIZED_H */
