/* run.h - runs the steps of a lowered program on a device and a group. */
#ifndef TESS_NN_RUN_H
#define TESS_NN_RUN_H

#include "nn/device.h"
#include "nn/lower.h"
#include "nn/profile.h"

struct tess_run_groups { /* borrowed */
	struct tess_group *all; /* the ranks of the program's mesh, in its order */
	struct tess_group *const *along; /* of each mesh dimension */
	/* of the ranks along dp that keep the shares of one copy of weights; NULL: all of them */
	struct tess_group *shards;
	int64_t *waited; /* the ns in calls of groups are added to it; NULL: nothing */
	struct tess_profile *profile; /* of each step, and then without graphs; NULL: none */
};

/* Of one program, bound to the memory that it has. {0}: it has not run since. */
struct tess_graphs {
	const struct tess_opened_device *device; /* borrowed */
	void **graph; /* of each run of ops; NULL: the device made none */
	int32_t n, runs; /* room for graphs; runs of the program */
};
/* Before the program is bound to other memory, or freed. */
void tess_graphs_close(struct tess_graphs *g);

/*
 * Queues the steps on the device's stream; where it has none, they are done. The sentence of a
 * failure starts with the module. With `graphs` (NULL: without) each run of ops is queued at once,
 * as a graph, from the second time on; if the device can.
 */
tess_status tess_rank_program_run(const struct tess_rank_program *l,
                                  const struct tess_opened_device *device,
                                  const struct tess_run_groups *groups, struct tess_graphs *graphs);

/* Fails with the first op that the device cannot run. */
tess_status tess_rank_program_check_device(const struct tess_rank_program *l,
                                           const struct tess_device *device);

#endif
