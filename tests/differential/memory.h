/* Memory between pages that may not be accessed, in two views: one that may be written, one that may only be read. Maps
 * are made once: making them for each problem takes longer than the problem. */
#ifndef ATTREE_TESTS_DIFFERENTIAL_MEMORY_H
#define ATTREE_TESTS_DIFFERENTIAL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum slot {
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_K_SCALES,
    SLOT_V_SCALES,
    SLOT_TABLE,
    SLOT_MASK,
    SLOT_BIAS,
    SLOT_SLOPES,
    SLOT_SINKS,
    SLOT_O,
    SLOT_LSE,
    SLOT_STATES,
    SLOT_WORKSPACE,
    SLOT_WEIGHTS,
    SLOTS
} slot;

/* A byte of memory that nobody has written: four of them are a NaN; and one of outputs, which no result has. */
enum { GARBAGE = 0xff, UNTOUCHED = 0xa5 };

bool memory_open(void);

/* `bytes` bytes at an end of a slot, all `fill`, and so is a margin on the other side. NULL: too many. */
char *memory_take(slot n, size_t bytes, bool at_start, int fill);

/* The same memory in the view that may not be written. */
const char *memory_read_only(slot n, const char *writable);

/* Whether the margin of what was taken last is still as it was. */
bool memory_margin_is_kept(slot n);

#endif /* ATTREE_TESTS_DIFFERENTIAL_MEMORY_H */
