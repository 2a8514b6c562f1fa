/*
 * subgroups.h - subgroups and meshes, on any backend; all ranks of a world, 1 to 8, run each
 * function. TESS_EBUG: a result is wrong.
 */
#ifndef TESS_TESTS_RANKS_SUBGROUPS_H
#define TESS_TESTS_RANKS_SUBGROUPS_H

#include <tessera/tessera.h>

/*
 * Members of the groups of a split, and their order; every kind of collective in them; splits of
 * splits.
 */
tess_status subgroups_split(struct tess_world *w);
/*
 * Calls of three groups under way at once. Each rank begins with another group; all wait for the
 * groups in the same order, for the calls of a group in different orders.
 */
tess_status subgroups_overlap_calls(struct tess_world *w);
/* Sums in a fixed order, in subgroups. */
tess_status subgroups_sum_exactly(struct tess_world *w);
/* All meshes of up to three dimensions that fit the world, with their slices. */
tess_status subgroups_open_meshes(struct tess_world *w);
/*
 * Rank 0 closes a group, and then leaves the world, during calls that need it.
 */
tess_status subgroups_leave_early(struct tess_world *w);
/* All of these. */
tess_status subgroups_run_all(struct tess_world *w);
/* Opening and closing 200 groups, in different orders, leaks nothing. */
tess_status subgroups_open_and_close(struct tess_world *w);

#endif
