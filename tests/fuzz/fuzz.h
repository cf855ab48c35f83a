/* What the fuzz targets share: choices made of the bytes of an input. When these are used up, all choices are 0. */
#ifndef ATTREE_TESTS_FUZZ_H
#define ATTREE_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
/* libFuzzer's entry; replay.c has a main that calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
#ifdef __cplusplus
}
#endif

/* Stops the program, in a way that libFuzzer keeps the input. */
#define FUZZ_REQUIRE(condition)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct fuzz_input {
    const uint8_t *data;
    size_t size;
} fuzz_input;

static inline uint8_t fuzz_byte(fuzz_input *in)
{
    if (in->size == 0)
        return 0;
    in->size--;
    return *in->data++;
}

static inline uint64_t fuzz_bits(fuzz_input *in, int bytes)
{
    uint64_t bits = 0;
    for (int i = 0; i < bytes; i++)
        bits = bits << 8 | fuzz_byte(in);
    return bits;
}

/* low ... high, which are less than 65536 apart. */
static inline int64_t fuzz_integer(fuzz_input *in, int64_t low, int64_t high)
{
    const uint64_t range = (uint64_t)(high - low) + 1;
    return low + (int64_t)(fuzz_bits(in, range > 256 ? 2 : 1) % range);
}

/* True in one of `of` cases. */
static inline bool fuzz_chance(fuzz_input *in, int of) { return fuzz_byte(in) % of == of - 1; }

/* Fills memory with the bytes that are left, again and again; they are not used up. */
static inline void fuzz_fill(const fuzz_input *in, void *memory, size_t bytes)
{
    uint8_t *const to = (uint8_t *)memory;
    for (size_t i = 0; i < bytes; i++)
        to[i] = in->size > 0 ? in->data[i % in->size] : (uint8_t)(i * 29 % 61);
}

#endif /* ATTREE_TESTS_FUZZ_H */
