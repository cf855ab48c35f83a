/* attree_bench --masks: masks and biases beside what the same visibility costs when it is said otherwise. */
#ifndef ATTREE_BENCH_MASKS_H
#define ATTREE_BENCH_MASKS_H

namespace bench {

/* Prints a line for each case, on one thread: the time with the mask as a tensor, and its ratio to the ideal, all
 * measured in turn. */
void print_masks();

} // namespace bench

#endif // ATTREE_BENCH_MASKS_H
