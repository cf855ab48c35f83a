/* What becomes of a status that must be good, and of a number in a message. */
#ifndef ATTREE_BENCH_REQUIRE_H
#define ATTREE_BENCH_REQUIRE_H

#include <cstdio>
#include <stdexcept>
#include <string>

#include "attree/attree.h"

namespace bench {

inline void require(attree_status status, const char *what)
{
    if (status != ATTREE_OK)
        throw std::runtime_error(std::string(what) + ": " + attree_status_name(status) + ", " + attree_last_error());
}

/* "1.2e-07" */
inline std::string short_number(double value)
{
    char text[32];
    (void)std::snprintf(text, sizeof text, "%.2g", value);
    return text;
}

} // namespace bench

#endif // ATTREE_BENCH_REQUIRE_H
