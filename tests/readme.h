/* What pieces of code in README.md and the pages of docs may use: the tensors of a program, random, and a check. A piece
 * without a main of its own is the body of one, after readme_begin. */
#ifndef ATTREE_TESTS_README_H
#define ATTREE_TESTS_README_H

#undef NDEBUG
#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attree/attree.h>

enum { HEADS = 8, GROUPS = 2, TOKENS = 100, WIDTH = 64 };
float q[HEADS * TOKENS * WIDTH], k[GROUPS * TOKENS * WIDTH], v[GROUPS * TOKENS * WIDTH], o[HEADS * TOKENS * WIDTH];
attree_desc desc;
attree_args args;

static inline void check(attree_status status)
{
    if (status != ATTREE_OK) {
        (void)fprintf(stderr, "%s: %s\n", attree_status_name(status), attree_last_error());
        exit(1);
    }
}

static inline void readme_fill(float *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
}

static inline void readme_begin(void)
{
    readme_fill(q, sizeof q / sizeof *q);
    readme_fill(k, sizeof k / sizeof *k);
    readme_fill(v, sizeof v / sizeof *v);
    readme_fill(o, sizeof o / sizeof *o);
    o[0] = NAN;
    desc = (attree_desc){.size = sizeof desc,
                         .batch = 1,
                         .q_heads = HEADS,
                         .kv_heads = GROUPS,
                         .q_len = TOKENS,
                         .kv_len = TOKENS,
                         .qk_width = WIDTH,
                         .v_width = WIDTH,
                         .flags = ATTREE_CAUSAL};
    args = (attree_args){.size = sizeof args, .q = q, .k = k, .v = v, .o = o};
}

/* A host's pool, in short: calls work(thread, argument) on threads 0 ... count - 1, and returns when all have. */
typedef struct readme_job {
    int32_t thread;
    void (*work)(int32_t thread, void *argument);
    void *argument;
} readme_job;

static inline void *readme_call(void *data)
{
    const readme_job *const job = data;
    job->work(job->thread, job->argument);
    return NULL;
}

static inline void pool_run(int32_t count, void (*work)(int32_t thread, void *argument), void *argument)
{
    pthread_t threads[16];
    readme_job jobs[16];
    assert(count <= 16);
    for (int32_t n = 0; n < count; n++) {
        jobs[n] = (readme_job){n, work, argument};
        if (pthread_create(&threads[n], NULL, readme_call, &jobs[n]) != 0)
            abort();
    }
    for (int32_t n = 0; n < count; n++)
        (void)pthread_join(threads[n], NULL);
}

/* Something was written where all pieces have results. */
static inline int readme_end(void) { return isnan(o[0]) ? 1 : 0; }

#endif /* ATTREE_TESTS_README_H */
