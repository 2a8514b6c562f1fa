/* run.h - runs the steps of a lowered program on a device and a group. */
#ifndef TESS_NN_RUN_H
#define TESS_NN_RUN_H

#include "nn/lower/lower.h"
#include "nn/run/channels.h"
#include "nn/run/profile.h"
#include "nn/run/sends.h"
#include "nn/weights/device.h"
#include "nn/weights/fetch.h"

enum { TESS_GRAPHS_NONE, TESS_GRAPHS_OPS, TESS_GRAPHS_CALLS };

struct tess_final_calls { /* callbacks of a run about updates of weights */
	/* Called before the first step that reads w. Blocking. */
	void (*await_weight)(void *self, const struct tess_weight *w);
	/*
	 * Called when all losses of the micro-batch are computed, in the same step on all ranks.
	 * Collective. A failure ends the run.
	 */
	tess_status (*take_losses)(void *self);
	/* Called when the gradient of w is final, and no later step reads w. May block. */
	tess_status (*take_weight)(void *self, const struct tess_weight *w);
	void *self;
};

struct tess_run_groups { /* borrowed */
	struct tess_group *all; /* the ranks of the program's mesh, in its order */
	struct tess_group *stage; /* those of this rank's stages, which compare values */
	struct tess_group *const *along; /* the group of each mesh dimension */
	/* ranks along dp that keep the shares of one copy of weights; NULL: all ranks along it */
	struct tess_group *shards;
	struct tess_offload *offload; /* weights, gradients and state in files; NULL: none */
	struct tess_fetcher *fetcher; /* of inference: executes all transfers; NULL: none */
	const struct tess_final_calls *final; /* NULL: nothing is called */
	int64_t *waited; /* accumulates the ns of collectives; NULL: not measured */
	struct tess_profile *profile; /* measures each step, without graphs; NULL: none */
	int32_t graphs; /* TESS_GRAPHS_... */
	struct tess_channels channels; /* owned: messages between stages */
};

struct tess_graphs;

/* Runs one step. under_way: list of steps that were started but not waited for, newest first. */
tess_status tess_step_run(struct tess_step *s, const struct tess_opened_device *d,
                          const struct tess_run_groups *groups, struct tess_step **under_way);

/*
 * Queues all steps on the device's stream; without a stream they are done on return. The message of
 * a failure starts with the module. graphs: queues sequences of steps at once from the second run
 * on (graphs.h); NULL: no graphs.
 */
tess_status tess_rank_program_run(const struct tess_rank_program *l,
                                  const struct tess_opened_device *device,
                                  const struct tess_run_groups *groups, struct tess_graphs *graphs);

/*
 * Runs the steps of a segment as tess_rank_program_run does, without graphs. Its sends to other
 * stages are started and added to *sends, whose waits and failures are the caller's.
 */
tess_status tess_rank_program_run_segment(const struct tess_rank_program *l,
                                          const struct tess_segment *segment,
                                          const struct tess_opened_device *device,
                                          const struct tess_run_groups *groups,
                                          struct tess_sends *sends);

/* Fails with the first op that the device cannot run. */
tess_status tess_rank_program_check_device(const struct tess_rank_program *l,
                                           const struct tess_device *device);

#endif
