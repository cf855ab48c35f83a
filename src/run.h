/* What the plan asks of the threading runtime. */
#ifndef ATTREE_RUN_H
#define ATTREE_RUN_H

#include <stdint.h>

/* OpenMP's default number of threads for the calling thread; at least 1. */
int32_t attree__default_threads(void);

#endif /* ATTREE_RUN_H */
