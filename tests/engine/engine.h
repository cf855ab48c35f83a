/* The engine of engine.c as its command line and its test use it. */
#ifndef ATTREE_TESTS_ENGINE_H
#define ATTREE_TESTS_ENGINE_H

#include <stdint.h>

typedef struct options {
    int64_t layers, heads, groups, width, hidden, vocabulary, tied, seed; /* the model */
    int64_t requests, only, prompt, tokens;                               /* what it is asked */
    int64_t batch, chunk, threads;                                        /* how it computes */
    int64_t page, panels;                                                 /* how keys and values are kept */
    int64_t naive, compare, bench;                                        /* what to do */
    int32_t type;                                                         /* of cached keys and values: attree_dtype */
} options;

enum { TYPES = 8 };
extern const char *const type_names[TYPES]; /* by attree_dtype */

/* Memory that is freed all at once: a list of blocks, each of which begins with the address of the next. */
typedef struct arena {
    void *blocks;
} arena;

void free_arena(arena *a);

typedef struct request {
    int64_t id, arrival;   /* the step from which it may join the batch */
    int32_t *tokens;       /* [goal]: the prompt, then what the model says */
    int64_t prompt, goal;  /* tokens of the prompt; tokens when it is done */
    int64_t known, cached; /* tokens that are there; tokens that went through the model, whose keys are cached */
    uint64_t hash;         /* of the logits at all positions, those of the prompt as well */
    float *logits;         /* [goal][vocabulary], to compare them */
    int32_t *pages;        /* attree: pages of the cache; key j is in pages[j / page] */
    int64_t page_count;
    float *own_cache; /* naive: [layers][2][G][goal][head width] */
} request;

typedef struct answers {
    arena memory;
    request *requests;
    int64_t count, steps;
    double seconds, attention_seconds;
} answers;

/* The requests that the options ask for, answered. The caller frees the memory. */
answers answer(const options *o);

typedef struct comparison {
    int64_t positions, same_tokens; /* positions whose most likely token is the same */
    double difference;              /* of two logits, at most */
} comparison;

/* attree and naive loops on the same tokens. */
comparison compare_paths(const options *o);

/* Decodes after 1024, 8192 and 32768 random keys, and prints how fast. */
void bench(const options *o);

/* hash, and count words of 32 bits more. */
uint64_t hash_words(uint64_t hash, const void *words, int64_t count);

/* Prints both, the second unless it is empty, and ends the program. */
_Noreturn void die(const char *what, const char *why);

#endif /* ATTREE_TESTS_ENGINE_H */
