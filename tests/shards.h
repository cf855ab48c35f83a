/* What test_partial and test_partial_outputs share: a problem over all keys, and the states and results of its shards,
 * which are run and merged here. */
#ifndef ATTREE_TESTS_SHARDS_H
#define ATTREE_TESTS_SHARDS_H

#include "support.h"

enum { BLOCK = 256 };

/* ---- A problem over all keys ---- */

enum {
    SINKS = 1,
    ALIBI = 2,
    MASK = 4,
    BIAS = 8,
    SCORE = 16,
    SHORT = 32,   /* kv_lens, less than some shards' keys */
    RAGGED = 64,  /* q_starts */
    PANELS = 128, /* of the shards' keys; those of the whole are dense */
    BITS = 256,   /* the mask's kind */
    PAGES = 512   /* of the shards' keys: of 16, 24 or 256 tokens */
};

enum { ENTRIES = 3, HEADS = 6, QUERIES = 40 }; /* the most of any problem here */

typedef struct problem {
    attree_desc desc;
    attree_args args;
    tensors t;
    unsigned features;
    uint8_t *mask;
    float *bias, *k_scales, *v_scales;
    float slopes[HEADS], sinks[HEADS];
    int64_t lens[ENTRIES], starts[ENTRIES + 1];
} problem;

/* NaN bytes; to be freed. */
void *filled(size_t bytes);

/* desc with q_heads and so on set; pointers in the problem point into it, so it stays where it is. */
void make_problem(problem *p, const attree_desc *desc, unsigned features, uint64_t seed);

void free_problem(problem *p);

/* Rows of o, and states. */
int64_t rows_of(const problem *p);

/* ---- Its shards ---- */

/* The states of the keys begin <= j < end. Each shard on another instruction set, by turns with one thread and three.
 * Freed by the caller. */
float *states_of_keys(const problem *p, int64_t begin, int64_t end);

void merge_states(const problem *p, float *result, const float *left, const float *right);

/* The states of a node of the tree, cut `depth` times; where random is given, only half of the cuts are made, and empty
 * shards come in between. */
float *states_of_node(const problem *p, int64_t first, int64_t count, int depth, random_source *random);

attree_status finish(const attree_desc *d, const attree_args *args);

/* o and lse of the states, as a pair concatenated; by the plan of a shard, or of all keys. Freed by the caller. */
float *finished(const problem *p, float *states, bool by_shard);

void assert_finishes_to_the_bits_of_one_run(const problem *p, float *states, bool by_shard);

/* A merge costs a weight, whose exp has 1 ulp and whose argument is a rounded difference of scores within +-5 (together
 * 5 * 2^-23 relative), and two roundings (2^-23): 6 * 2^-23 for l and for u, twice that for o. No key passes through
 * more than `blocks` merges on either side of the comparison, and no value is beyond 1: blocks * 24 * 2^-23, and half
 * of it for lse, which is itself rounded (values up to 16: 2^-20). */
double merging_bound(int64_t blocks);

#endif /* ATTREE_TESTS_SHARDS_H */
