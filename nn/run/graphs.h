/*
 * graphs.h - captures sequences of steps as graphs of the device, in a program's second run: the
 * first run allocates what ops need, and connects ranks.
 *
 * A graph contains ops, and collectives if the backend can capture them: then a step of the model
 * is one graph. Ranks use a graph with collectives only if all of them have captured it.
 */
#ifndef TESS_NN_GRAPHS_H
#define TESS_NN_GRAPHS_H

#include "core/call/captured.h"
#include "nn/run/run.h"

struct tess_run_graph {
	void *graph; /* NULL: the steps are queued one by one */
	struct tess_captured calls[TESS_MESH_DIMS]; /* captured, along each mesh dimension */
};

/* The graphs of one program, for the memory it is bound to. {0}: it has not run since. */
struct tess_graphs {
	const struct tess_opened_device *device; /* borrowed */
	struct tess_run_graph *run; /* one per sequence of steps */
	int32_t n, runs; /* n: room for graphs; runs: how often the program has run */
	bool without_calls; /* a rank could not capture a graph with collectives */
};

/* Begins a run of the program. Returns whether to run steps as graphs; g NULL: no. */
bool tess_graphs_begin(struct tess_graphs *g, const struct tess_rank_program *l,
                       const struct tess_opened_device *d, const struct tess_run_groups *groups);
/* Returns the end of the steps from i on that one graph can contain; i: none. */
int32_t tess_graphs_find_end(const struct tess_graphs *g, const struct tess_rank_program *l,
                             const struct tess_run_groups *groups, int32_t i);
/* Runs steps [from, to), sequence number `n`. Collective if they contain collectives. */
tess_status tess_graphs_run(struct tess_graphs *g, const struct tess_rank_program *l,
                            const struct tess_run_groups *groups, int32_t from, int32_t to,
                            int32_t n);
/* Call it before the program is rebound or freed, and before its groups detach the device. */
void tess_graphs_close(struct tess_graphs *g);

#endif
