/* The command line. */
#ifndef ATTREE_BENCH_OPTIONS_H
#define ATTREE_BENCH_OPTIONS_H

#include <optional>
#include <string>
#include <vector>

#include "shape.h"

namespace bench {

struct Options {
    std::vector<Shape> shapes;       // --shape
    std::vector<std::string> cases;  // --case: paths
    std::optional<double> tolerance; // --tolerance
    bool short_set = false;          // --short
    bool serving = false;            // --serving
    bool masks = false;              // --masks
    bool unfused = true;             // not --no-unfused
    bool help = false;               // --help
    std::vector<std::string> rest;   // the program's name and what Google Benchmark should see
};

/* Throws std::invalid_argument for an option of ours that is not well formed. */
Options parse_options(int argc, char **argv);

/* What --help prints of our options. */
extern const char help_text[];

} // namespace bench

#endif // ATTREE_BENCH_OPTIONS_H
