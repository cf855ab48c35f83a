/* Structs that start with their size. See sized.h. */
#include "sized.h"

#include <string.h>

#include "error.h"

attree_status attree__sized_copy(void *whole, const void *given, const attree__sized *kind)
{
    size_t size;
    if (!given)
        return attree__fail(ATTREE_ERROR_NULL, "%s is NULL", kind->name);
    memcpy(&size, given, sizeof size);
    if (size < kind->least || size > kind->size || size % 8 != 0)
        return attree__fail(ATTREE_ERROR_SIZE, "%s->size is %zu; this library knows %zu, and older ones from %zu on",
                            kind->name, size, kind->size, kind->least);
    memset((char *)whole + size, 0, kind->size - size);
    memcpy(whole, given, size);
    return ATTREE_OK;
}
