/* What the programs test_relations*.c and test_weights.c share: the paths that a relation is checked on, and results to
 * compare. */
#ifndef ATTREE_TESTS_RELATIONS_H
#define ATTREE_TESTS_RELATIONS_H

#include "support.h"

/* Sums of a few hundred numbers, of magnitude 1 or less, that were rounded on different ways. */
#define ROUNDING 1e-5

/* What a relation is checked with. */
typedef struct path {
    int32_t isa, threads;
} path;

void on_every_path(void (*check)(path));

/* Dimensions B, H, G, Q, K, D, E. */
attree_desc desc_on(path on, const int64_t shape[7]);

/* Runs with what extras has besides q, k, v, o and lse; o and lse concatenated, to be freed. */
float *result_with(const attree_desc *d, const tensors *t, const attree_args *extras);

/* Two results of tensors like t, which are freed. */
void expect_same(float *a, float *b, const tensors *t);

/* Within rounding, where each lse of b is shift[row] more than that of a; NULL: as much. Frees both. */
void expect_near(float *a, float *b, const tensors *t, const float *shift);

/* Each query sees `left` keys before its position and `right` after it; -1: all. One byte for each query and key. */
uint8_t *window_mask(const attree_desc *d, int64_t offset, int64_t left, int64_t right);

/* One mask for all batch entries and heads. */
extern const attree_pairs queries_by_keys;

/* ---- Every other block of keys hidden, and told to be skipped ---- */

enum { SKIP_KEYS = 256 * 5, SKIP_WIDTH = 64 }; /* a block is 64 KiB: whole pages, up to pages of that size */

/* Blocks 1 and 3 of the keys are hidden from everyone; user: atomic_int[2], calls for keys of those and of others. */
bool odd_block(int64_t key);

void hide_odd_blocks(const attree_score_tile *t, void *user);

attree_block_answer skip_odd_blocks(const attree_score_tile *t, void *user);

#endif /* ATTREE_TESTS_RELATIONS_H */
