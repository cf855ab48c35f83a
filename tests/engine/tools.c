/* See tools.h, and engine.h. */
#include "tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const type_names[TYPES] = {"f32", "f16", "bf16", "i8", "q8_0", "q4_0", "f8", "f8_e5m2"};

_Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "engine: %s%s%s\n", what, *why ? ": " : "", why);
    exit(1);
}

void must(attree_status status)
{
    if (status != ATTREE_OK)
        die(attree_status_name(status), attree_last_error());
}

double now(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void *allocate(arena *a, int64_t count, size_t size)
{
    const size_t bytes = ((size_t)count * size + 127) / 64 * 64;
    char *const block = aligned_alloc(64, bytes);
    if (!block)
        die("no memory", "");
    memset(block, 0, bytes);
    memcpy(block, &a->blocks, sizeof a->blocks);
    a->blocks = block;
    return block + 64;
}

float *floats(arena *a, int64_t count) { return allocate(a, count, sizeof(float)); }

void free_arena(arena *a)
{
    while (a->blocks) {
        void *const block = a->blocks;
        memcpy(&a->blocks, block, sizeof a->blocks);
        free(block);
    }
}

float next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (float)((*state * 0x2545F4914F6CDD1DU) >> 40) * 0x1p-23f - 1.0f;
}
