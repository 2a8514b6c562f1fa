/*
 * subgroups.h - subgroups and meshes, on any backend; all ranks of a world, 1 to 8, run each
 * function. TESS_EBUG: a result is wrong.
 */
#ifndef TESS_TESTS_SUPPORT_SUBGROUPS_H
#define TESS_TESTS_SUPPORT_SUBGROUPS_H

#include <tessera/tessera.h>

/* Runs splits, calls of several groups at once, exact sums, meshes, and ranks that leave early. */
tess_status subgroups_run_all(struct tess_world *w);
/* Checks that opening and closing 200 groups, in different orders, leaks nothing. */
tess_status subgroups_open_and_close(struct tess_world *w);

#endif
