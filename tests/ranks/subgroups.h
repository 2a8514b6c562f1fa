/*
 * subgroups.h - groups of some ranks, and meshes, on whatever backend a world has: each function is played by
 * all its ranks, 1 to 8 of them. TESS_EBUG: something is not as it should be.
 */
#ifndef TESTS_SUBGROUPS_H
#define TESTS_SUBGROUPS_H

#include <tessera/tessera.h>

/* Who is in the groups of a split, in which order; every kind of collective in them; splits of splits. */
tess_status subgroups_split(struct tess_world *w);
/*
 * Calls of three groups under way at once. Each rank begins with another group; all wait for one group after
 * the other, for the calls in it in an order of their own.
 */
tess_status subgroups_overlap_calls(struct tess_world *w);
/* Sums of a fixed order, in a part of the ranks. */
tess_status subgroups_sum_exactly(struct tess_world *w);
/* Every mesh of up to three dimensions that fits the world, with its slices. */
tess_status subgroups_open_meshes(struct tess_world *w);
/*
 * Rank 0 closes a group, and leaves the world after this, while it is in calls that the others need it for.
 */
tess_status subgroups_leave_early(struct tess_world *w);
/* All of these. */
tess_status subgroups_run_all(struct tess_world *w);
/* 200 groups that come and go, in different orders, leave nothing behind. */
tess_status subgroups_open_and_close(struct tess_world *w);

#endif
