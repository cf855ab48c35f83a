/* The shape of the merge tree: a function of the number of blocks alone.
 *
 * A tree over n >= 2 leaves splits at the largest power of two below n. So every aligned run of 2^k leaves (or what is
 * left of it at the end) is a node, and leaves that are missing at either end never change how the others combine:
 * schedules may cut the tree at any aligned power of two, and rows that see fewer keys get the bits of a shorter K. */
#ifndef ATTREE_TREE_H
#define ATTREE_TREE_H

#include <stdint.h>

/* Leaves of the left subtree, for n >= 2. */
static inline int64_t attree__tree_split(int64_t n)
{
    int64_t split = 1;
    while (split < n - split)
        split *= 2;
    return split;
}

/* States alive at once in a left-to-right walk over n >= 1 leaves: ceil(log2 n) + 1. */
static inline int32_t attree__tree_depth(int64_t n)
{
    int32_t depth = 1;
    for (; n > 1; n -= n / 2)
        depth++;
    return depth;
}

/* The same where nodes of at most `at_once` leaves, a power of two, are folded into as many states at once: then these,
 * and one for each level above them. */
static inline int32_t attree__tree_states(int64_t n, int32_t at_once)
{
    return n <= at_once ? (int32_t)n : at_once + attree__tree_depth(n / at_once + (n % at_once != 0)) - 1;
}

#endif /* ATTREE_TREE_H */
