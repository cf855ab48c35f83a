/* Status names and the thread-local sentence about the last error. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[256];

void attree__set_last_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
}

const char *attree_last_error(void) { return sentence; }

const char *attree_status_name(attree_status status)
{
    static const char *const names[] = {
        [ATTREE_OK] = "ATTREE_OK",
        [ATTREE_ERROR_NULL] = "ATTREE_ERROR_NULL",
        [ATTREE_ERROR_SIZE] = "ATTREE_ERROR_SIZE",
        [ATTREE_ERROR_SHAPE] = "ATTREE_ERROR_SHAPE",
        [ATTREE_ERROR_STRIDE] = "ATTREE_ERROR_STRIDE",
        [ATTREE_ERROR_OVERFLOW] = "ATTREE_ERROR_OVERFLOW",
        [ATTREE_ERROR_TYPE] = "ATTREE_ERROR_TYPE",
        [ATTREE_ERROR_VALUE] = "ATTREE_ERROR_VALUE",
        [ATTREE_ERROR_ALIGN] = "ATTREE_ERROR_ALIGN",
        [ATTREE_ERROR_ALIAS] = "ATTREE_ERROR_ALIAS",
        [ATTREE_ERROR_WORKSPACE] = "ATTREE_ERROR_WORKSPACE",
        [ATTREE_ERROR_ISA] = "ATTREE_ERROR_ISA",
        [ATTREE_ERROR_MEMORY] = "ATTREE_ERROR_MEMORY",
        [ATTREE_ERROR_EMPTY] = "ATTREE_ERROR_EMPTY",
        [ATTREE_ERROR_NONFINITE] = "ATTREE_ERROR_NONFINITE",
        [ATTREE_ERROR_UNFINISHED] = "ATTREE_ERROR_UNFINISHED",
        [ATTREE_ERROR_CANCELLED] = "ATTREE_ERROR_CANCELLED",
    };
    const unsigned index = (unsigned)status;
    return index < sizeof names / sizeof *names ? names[index] : "unknown status";
}
