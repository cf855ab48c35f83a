/* Status codes and the sentence that goes with them. */
#ifndef ATTREE_ERROR_H
#define ATTREE_ERROR_H

#include "attree/attree.h"
#include "compiler.h"

/* Stores the sentence for this thread and returns status, so that callers can `return attree__fail(...)`.
 * The sentence names the argument, what it was and what it must be. */
attree_status attree__fail(attree_status status, const char *format, ...) ATTREE_PRINTF(2, 3);

#endif /* ATTREE_ERROR_H */
