/* run.h - runs the steps of a lowered program on a device and a group. */
#ifndef TESS_NN_RUN_H
#define TESS_NN_RUN_H

#include "nn/lower/lower.h"
#include "nn/run/profile.h"
#include "nn/weights/device.h"

enum { TESS_GRAPHS_NONE, TESS_GRAPHS_OPS, TESS_GRAPHS_CALLS };

struct tess_run_groups { /* borrowed */
	struct tess_group *all; /* the ranks of the program's mesh, in its order */
	struct tess_group *const *along; /* of each mesh dimension */
	/* of the ranks along dp that keep the shares of one copy of weights; NULL: all of them */
	struct tess_group *shards;
	int64_t *waited; /* the ns in calls of groups are added to it; NULL: nothing */
	struct tess_profile *profile; /* of each step, and then without graphs; NULL: none */
	int32_t graphs; /* TESS_GRAPHS_... */
};

struct tess_graphs;

/* One step; under_way: the steps that were started and not waited for, the last one first. */
tess_status tess_step_run(struct tess_step *s, const struct tess_opened_device *d,
                          const struct tess_run_groups *groups, struct tess_step **under_way);

/*
 * Queues the steps on the device's stream; where it has none, they are done. The sentence of a
 * failure starts with the module. With `graphs` (NULL: without) runs of steps are queued at once
 * from the second time on (graphs.h).
 */
tess_status tess_rank_program_run(const struct tess_rank_program *l,
                                  const struct tess_opened_device *device,
                                  const struct tess_run_groups *groups, struct tess_graphs *graphs);

/*
 * The same of steps [first, end), without graphs. What was started and not waited for is added to
 * *under_way, at first NULL, which other programs may share; after a failure nothing is.
 */
tess_status tess_rank_program_run_part(const struct tess_rank_program *l, int32_t first,
                                       int32_t end, const struct tess_opened_device *device,
                                       const struct tess_run_groups *groups,
                                       struct tess_step **under_way);

/* After a failure: other ranks may be reading the memory, which the caller frees. */
void tess_steps_abandon(const struct tess_step *under_way);

/* Fails with the first op that the device cannot run. */
tess_status tess_rank_program_check_device(const struct tess_rank_program *l,
                                           const struct tess_device *device);

#endif
