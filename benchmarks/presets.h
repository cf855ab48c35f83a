/* The cases that are run when none is asked for: attention as some well-known models have it. */
#ifndef ATTREE_BENCH_PRESETS_H
#define ATTREE_BENCH_PRESETS_H

#include <vector>

#include "shape.h"

namespace bench {

/* All models on 1, 2, 4, ... threads up to the machine's. */
std::vector<Shape> default_shapes();

/* A few of them, on one thread and on all: enough to see whether something is wrong. */
std::vector<Shape> short_shapes();

/* Caches as servers keep them: in pages, in panels, quantised, ragged; on 1, 2, 4, ... threads. */
std::vector<Shape> serving_shapes();

/* One small case of each kind, on two threads. */
std::vector<Shape> short_serving_shapes();

} // namespace bench

#endif // ATTREE_BENCH_PRESETS_H
