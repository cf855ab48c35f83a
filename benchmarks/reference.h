/* Attention in double precision, of the exact values of the tensors, written to be obviously right, and the distance of
 * a result from it. */
#ifndef ATTREE_BENCH_REFERENCE_H
#define ATTREE_BENCH_REFERENCE_H

#include <cstdint>
#include <vector>

#include "problem.h"

namespace bench {

/* What one row of the output should be. */
struct Row {
    std::int64_t batch = 0, head = 0, query = 0;
    std::vector<double> o; // E numbers
};

/* At most `most` rows, spread evenly over heads and queries, first and last among them. */
std::vector<Row> reference_rows(const Problem &problem, std::int64_t most);

/* |a - b|; infinite when just one of the two is NaN, 0 when both are, or when they are the same infinity. */
double distance(double a, double b);

/* The largest distance between o, laid out as desc says, and the rows. 0 without rows. */
double max_error(const attree_desc &desc, const void *o, const std::vector<Row> &rows);

} // namespace bench

#endif // ATTREE_BENCH_REFERENCE_H
