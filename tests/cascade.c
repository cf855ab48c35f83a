/* Decoding with a shared prefix, also called cascade attention: many sequences begin with the same keys (a system
 * prompt, a document that is asked about), and each goes on by itself.
 *
 * Attention over all keys of a sequence can be put together from parts, by merging states (m, l, u). So the prefix is
 * folded once, for the queries of all sequences together: its keys and values are read from memory once, not once for
 * each sequence. Then each sequence folds its own suffix, and the states are merged and finished.
 *
 *     queries of sequence   0   1   2   3 ...
 *     prefix             [ all are rows of one batch entry ]
 *     suffix             [   ] [   ] [   ] [   ] a batch entry each
 *
 * Bits: a prefix of 2048 keys is 8 blocks of 256, and the tree over 9 to 16 blocks splits after the eighth. So results
 * have the bits of attention over all keys at once. A prefix of 1792 keys, 7 blocks, is no part of the tree: results
 * differ by rounding. This program checks both, and prints the time that sharing saves, the best of five rounds
 * or as many as the argument says. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <attree/attree.h>

enum { SEQUENCES = 16, HEADS = 8, GROUPS = 2, WIDTH = 64, PREFIX_MOST = 2048, SUFFIX_MOST = 300 };
enum { ROWS = HEADS * SEQUENCES, STATE = WIDTH + 2 };

/* [0] are keys, [1] values. */
static float q[ROWS * WIDTH]; /* [HEADS, SEQUENCES, WIDTH]: a query of each sequence */
static float prefix_kv[2][GROUPS * PREFIX_MOST * WIDTH];
static float suffix_kv[2][SEQUENCES * GROUPS * SUFFIX_MOST * WIDTH];
static float all_kv[2][SEQUENCES * GROUPS * (PREFIX_MOST + SUFFIX_MOST) * WIDTH]; /* what it takes without sharing */
static float usual_o[ROWS * WIDTH], cascade_o[ROWS * WIDTH], prefix_states[ROWS * STATE], suffix_states[ROWS * STATE];

static void check(attree_status status)
{
    if (status != ATTREE_OK) {
        fprintf(stderr, "%s: %s\n", attree_status_name(status), attree_last_error());
        exit(1);
    }
}

static void fill(float *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] = (float)rand() / (float)RAND_MAX * 2.0f - 1.0f;
}

/* A plan, and in args its workspace. */
static attree_plan *make_plan(const attree_desc *desc, attree_args *args)
{
    attree_plan *plan;
    check(attree_plan_create(&plan, desc));
    args->size = sizeof *args;
    args->workspace_bytes = attree_plan_workspace(plan);
    args->workspace = aligned_alloc(64, args->workspace_bytes);
    return plan;
}

/* The caches of each sequence by itself: the prefix copied, then the suffix. */
static void unshare(int64_t prefix)
{
    float *to[2] = {all_kv[0], all_kv[1]};
    for (int64_t n = 0; n < SEQUENCES * GROUPS; n++)
        for (int i = 0; i < 2; i++) {
            memcpy(to[i], prefix_kv[i] + n % GROUPS * prefix * WIDTH, (size_t)(prefix * WIDTH) * sizeof(float));
            to[i] += prefix * WIDTH;
            memcpy(to[i], suffix_kv[i] + n * SUFFIX_MOST * WIDTH, SUFFIX_MOST * WIDTH * sizeof(float));
            to[i] += SUFFIX_MOST * WIDTH;
        }
}

/* Prints how both ways compare; whether their results are as near as they must be. */
static bool report(int64_t prefix, const double times[2], bool same_bits)
{
    const bool same = memcmp(usual_o, cascade_o, sizeof usual_o) == 0;
    bool near = true; /* values are within +-1, and a merge more or less is a few roundings */
    for (int i = 0; i < ROWS * WIDTH; i++)
        near = near && fabsf(usual_o[i] - cascade_o[i]) < 0x1p-20f;
    const char *const verdict = near ? same ? "the same bits" : "differ by rounding" : "WRONG";
    const double ms = 1e3 / (double)CLOCKS_PER_SEC;
    printf("%d sequences, %d shared keys: %.2f ms without sharing, %.2f ms with, %.0f%% saved; %s\n", SEQUENCES,
           (int)prefix, times[0] * ms, times[1] * ms, 100.0 * (1.0 - times[1] / times[0]), verdict);
    return near && (same || !same_bits);
}

/* Attention both ways, for a prefix of so many keys, timed so many times. */
static bool compare(int64_t prefix, int rounds, bool same_bits)
{
    int64_t lens[SEQUENCES], starts[SEQUENCES + 1] = {0};
    for (int s = 0; s < SEQUENCES; s++) {
        lens[s] = prefix + s * SUFFIX_MOST / (SEQUENCES - 1); /* keys of the sequence; the first has no suffix */
        starts[s + 1] = s + 1;                                /* one query of each */
    }
    unshare(prefix);

    /* The usual way. Queries are ragged, [1, HEADS, SEQUENCES, WIDTH]: so rows have the same order as in the prefix. */
    attree_desc usual = {.size = sizeof usual, .q_heads = HEADS, .kv_heads = GROUPS, .qk_width = WIDTH};
    usual.v_width = WIDTH;
    usual.batch = usual.q_len = SEQUENCES;
    usual.kv_len = prefix + SUFFIX_MOST;
    usual.q_starts = starts;
    usual.kv_lens = lens;
    usual.threads = 1; /* so that processor time is what it takes */

    /* The prefix: one batch entry that has all queries. They are not causal: each comes after the whole prefix. */
    attree_desc shared = usual;
    shared.batch = 1;
    shared.kv_len = prefix;
    shared.q_starts = shared.kv_lens = NULL;
    shared.flags = ATTREE_STATES;

    /* The suffixes: the usual problem, of whose keys only those after the prefix are there. */
    attree_desc own = usual;
    own.shard_begin = prefix;
    own.shard_end = own.kv_len;
    own.flags = ATTREE_STATES;

    attree_args args[] = {{.q = q, .k = all_kv[0], .v = all_kv[1], .o = usual_o},
                          {.q = q, .k = prefix_kv[0], .v = prefix_kv[1], .states = prefix_states},
                          {.q = q, .k = suffix_kv[0], .v = suffix_kv[1], .states = suffix_states, .o = cascade_o}};
    attree_plan *const plans[] = {make_plan(&usual, &args[0]), make_plan(&shared, &args[1]), make_plan(&own, &args[2])};
    double times[2] = {INFINITY, INFINITY}; /* the best */
    for (int round = 0; round < rounds; round++) {
        const clock_t start = clock();
        check(attree_run(plans[0], &args[0]));
        const clock_t middle = clock();
        check(attree_run(plans[1], &args[1]));
        check(attree_run(plans[2], &args[2]));
        check(attree_states_merge(suffix_states, prefix_states, suffix_states, ROWS, WIDTH)); /* first keys: left */
        check(attree_finish(plans[2], &args[2]));
        times[1] = fmin(times[1], (double)(clock() - middle));
        times[0] = fmin(times[0], (double)(middle - start));
    }
    for (int n = 0; n < 3; n++) {
        attree_plan_destroy(plans[n]);
        free(args[n].workspace);
    }
    return report(prefix, times, same_bits);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 5;
    fill(q, ROWS * WIDTH);
    for (int i = 0; i < 2; i++) {
        fill(prefix_kv[i], sizeof prefix_kv[i] / sizeof(float));
        fill(suffix_kv[i], sizeof suffix_kv[i] / sizeof(float));
    }
    const bool in_tree = compare(2048, rounds, true), elsewhere = compare(1792, rounds, false);
    return in_tree && elsewhere ? 0 : 1;
}
