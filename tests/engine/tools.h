/* What the engine needs besides attention and a model: errors, time, memory, random numbers. */
#ifndef ATTREE_TESTS_TOOLS_H
#define ATTREE_TESTS_TOOLS_H

#include <stddef.h>
#include <stdint.h>

#include "attree/attree.h"
#include "engine.h"

/* attree's errors are sentences. A real host would refuse the request; here they are bugs. */
void must(attree_status status);

/* Seconds. */
double now(void);

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t pieces(int64_t total, int64_t size) { return (total + size - 1) / size; }

/* count elements, zeroed, aligned to 64 as attree wants its workspace. */
void *allocate(arena *a, int64_t count, size_t size);

float *floats(arena *a, int64_t count);

/* Uniform in [-1, 1); xorshift64*. */
float next_random(uint64_t *state);

#endif /* ATTREE_TESTS_TOOLS_H */
