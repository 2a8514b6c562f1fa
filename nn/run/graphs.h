/*
 * graphs.h - runs of a program's steps as graphs of the device, from the program's second run on:
 * the first one allocates what ops need, and connects ranks.
 *
 * A graph has ops, and calls of groups where the backend can put them into graphs: then a step of
 * the whole model is one graph. Ranks use a graph with calls only if all have made it.
 */
#ifndef TESS_NN_GRAPHS_H
#define TESS_NN_GRAPHS_H

#include "core/call/captured.h"
#include "nn/run/run.h"

struct tess_run_graph {
	void *graph; /* NULL: the steps are queued one by one */
	struct tess_captured calls[TESS_MESH_DIMS]; /* in it, along each mesh dimension */
};

/* Of one program, bound to the memory that it has. {0}: it has not run since. */
struct tess_graphs {
	const struct tess_opened_device *device; /* borrowed */
	struct tess_run_graph *run; /* of each run of steps */
	int32_t n, runs; /* room for graphs; runs of the program */
	bool without_calls; /* a rank could not make a graph with calls */
};

/* Before a run of the program. Whether runs of steps are to be graphs; g NULL: no. */
bool tess_graphs_begin(struct tess_graphs *g, const struct tess_rank_program *l,
                       const struct tess_opened_device *d, const struct tess_run_groups *groups);
/* The end of the steps for one graph that begin at i; i: this one is not for a graph. */
int32_t tess_graphs_find_end(const struct tess_graphs *g, const struct tess_rank_program *l,
                             const struct tess_run_groups *groups, int32_t i);
/* Run `n` of steps, [from, to). Collective where it has calls. */
tess_status tess_graphs_run(struct tess_graphs *g, const struct tess_rank_program *l,
                            const struct tess_run_groups *groups, int32_t from, int32_t to,
                            int32_t n);
/* Before the program is bound to other memory or freed, and before its groups lose the device. */
void tess_graphs_close(struct tess_graphs *g);

#endif
