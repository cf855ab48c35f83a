/* Makes a problem that fails simpler, as long as it fails. */
#ifndef ATTREE_TESTS_DIFFERENTIAL_SHRINK_H
#define ATTREE_TESTS_DIFFERENTIAL_SHRINK_H

#include "problem.h"

/* Where this program is. */
extern char program_path[4096];

/* Whether a process of its own, which may crash, fails with these fields. */
bool fails_alone(const fields *f);

void shrink(fields *f, int64_t isas);

#endif /* ATTREE_TESTS_DIFFERENTIAL_SHRINK_H */
