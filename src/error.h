/* Status codes and the sentence that goes with them. */
#ifndef ATTREE_ERROR_H
#define ATTREE_ERROR_H

#include "attree/attree.h"
#include "compiler.h"

/* `return attree__fail(status, format, ...)`: stores the sentence for this thread; the value is status, also for
 * analysers that see one file. The sentence names the argument, what it was and what it must be. */
#define attree__fail(status, ...) (attree__set_last_error(__VA_ARGS__), (attree_status)(status))

void attree__set_last_error(const char *format, ...) ATTREE_PRINTF(1, 2);

#endif /* ATTREE_ERROR_H */
