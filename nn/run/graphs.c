#include "nn/run/graphs.h"

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/registry/plugin_call.h"

#include <stdlib.h>

bool tess_graphs_begin(struct tess_graphs *g, const struct tess_rank_program *l,
                       const struct tess_opened_device *d, const struct tess_run_groups *groups)
{
	const struct tess_device *t = d->table;

	if (!g || !groups->graphs || !d->stream || !t->capture || !t->replay || !t->graph_close ||
	    g->runs++ == 0)
		return false;
	if (!g->run) {
		g->device = d;
		g->run = calloc((size_t)l->nsteps, sizeof *g->run);
		g->n = g->run ? l->nsteps : 0;
	}
	return g->run;
}

static void close_graphs(struct tess_graphs *g)
{
	for (int32_t i = 0; i < g->n; i++) {
		if (g->run[i].graph)
			TESS_PLUGIN_DO(g->device->table, NULL, graph_close, g->device->self,
			               g->run[i].graph);
		g->run[i] = (struct tess_run_graph){ 0 };
	}
}

void tess_graphs_close(struct tess_graphs *g)
{
	close_graphs(g);
	free(g->run);
	*g = (struct tess_graphs){ 0 };
}

static bool is_for_graph(const struct tess_graphs *g, const struct tess_step *s,
                         const struct tess_run_groups *groups)
{
	return s->kind == TESS_STEP_OP ||
	       (s->kind == TESS_STEP_COLL && groups->graphs == TESS_GRAPHS_CALLS &&
	        !g->without_calls && !s->started && !s->among_shards &&
	        tess_captured_is_possible(groups->along[s->along], &s->coll));
}

int32_t tess_graphs_find_end(const struct tess_graphs *g, const struct tess_rank_program *l,
                             const struct tess_run_groups *groups, int32_t i)
{
	while (i < l->nsteps && is_for_graph(g, l->step[i], groups))
		i++;
	return i;
}

static tess_status capture_step(struct tess_run_graph *run, struct tess_step *s,
                                const struct tess_opened_device *d)
{
	return s->kind == TESS_STEP_OP ? tess_step_run(s, d, NULL, NULL)
	                               : tess_captured_add(&run->calls[s->along], &s->coll);
}

/* Captures steps; if the device cannot, there is no graph, and the log has the reason. */
static void capture_steps(struct tess_run_graph *run, const struct tess_rank_program *l,
                          int32_t from, int32_t to, const struct tess_opened_device *d)
{
	void *graph = NULL;
	tess_status st = TESS_PLUGIN_CALL(d->table, "graph", capture, d->self, d->stream, 1, NULL),
		    ended;

	if (!st) {
		for (int32_t i = from; i < to && !st; i++)
			st = capture_step(run, l->step[i], d);
		if (st)
			tess_log(TESS_INFO, "runner", "no graph: %s", tess_error());
		ended = TESS_PLUGIN_CALL(d->table, "graph", capture, d->self, d->stream, 0, &graph);
		if (!ended && !st)
			run->graph = graph;
		else if (!ended)
			TESS_PLUGIN_DO(d->table, NULL, graph_close, d->self, graph);
		st = st ? TESS_OK : ended;
	}
	if (st)
		tess_log(TESS_INFO, "runner", "no graph: %s", tess_error());
}

/* Keeps the graph if all ranks have it, with the same collectives; else drops it. Collective. */
static tess_status agree_on_graph(struct tess_graphs *g, struct tess_run_graph *run,
                                  const struct tess_run_groups *groups, int32_t ndims)
{
	int64_t has = run->graph != NULL;
	tess_status st = tess_all_reduce(groups->all, &has, &has, 1, TESS_I64, TESS_MIN, "graph");

	for (int32_t i = 0; i < ndims && !st && has; i++)
		if (run->calls[i].n)
			st = tess_captured_compare(&run->calls[i]);
	if (st || has)
		return st;
	close_graphs(g);
	g->without_calls = true;
	g->runs = 1; /* the next run captures graphs of ops */
	return TESS_OK;
}

static tess_status make_graph(struct tess_graphs *g, struct tess_run_graph *run,
                              const struct tess_rank_program *l,
                              const struct tess_run_groups *groups, int32_t from, int32_t to)
{
	bool calls = false;
	int32_t ndims = 0;

	for (int32_t i = from; i < to; i++) {
		const struct tess_step *s = l->step[i];

		if (s->kind != TESS_STEP_COLL)
			continue;
		calls = true;
		ndims = s->along < ndims ? ndims : s->along + 1;
		run->calls[s->along].group = groups->along[s->along];
	}
	capture_steps(run, l, from, to, g->device);
	return calls ? agree_on_graph(g, run, groups, ndims) : TESS_OK;
}

static tess_status replay_run(const struct tess_graphs *g, const struct tess_run_graph *run,
                              const char *where)
{
	const struct tess_opened_device *d = g->device;
	tess_status st =
		TESS_PLUGIN_CALL_QUICK(d->table, where, replay, d->self, run->graph, d->stream);

	for (int32_t i = 0; i < TESS_MESH_DIMS && !st; i++)
		if (run->calls[i].n)
			st = tess_captured_replay(&run->calls[i]);
	return st;
}

tess_status tess_graphs_run(struct tess_graphs *g, const struct tess_rank_program *l,
                            const struct tess_run_groups *groups, int32_t from, int32_t to,
                            int32_t n)
{
	struct tess_run_graph *run = &g->run[n];
	const char *where = l->step[from]->kind == TESS_STEP_OP ? l->step[from]->op.where
	                                                        : l->step[from]->coll.where;
	tess_status st = TESS_OK;

	if (g->runs == 2)
		st = make_graph(g, run, l, groups, from, to);
	if (st || run->graph)
		return st ? st : replay_run(g, run, where);
	for (int32_t i = from; i < to && !st; i++)
		st = tess_step_run(l->step[i], g->device, groups, NULL);
	return st;
}
