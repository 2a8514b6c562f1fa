/* evaluate.c - predicts a strategy from the program that it would run, lowered for its ranks. */
#include "api/plan/planner.h"
#include "core/base/status.h"
#include "nn/program/storage.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <tessera/split.h>
#include <tessera/train.h>

/* A strategy that is predicted. */
struct evaluation {
	struct tess_planner *planner;
	const struct tess_planned_model *model; /* of the planner, or one with fewer layers */
	int64_t batch, sequence; /* of a step of training */
	const struct tess_strategy *strategy;
	struct tess_forecast *out;
	struct explanation x;
	struct tess_trainer_options training;
	struct tess_op_known known;
	struct tess_attended attended;
	int32_t *rows; /* positions, then slots */
	int64_t micro; /* micro-batches of a step */
	struct tess_stage_time *stage;
	int32_t nstages;
	double send; /* bytes that a stage sends forward, at most */
	/* without stages, of the slowest rank: seconds of both halves of a step of training */
	struct tess_step_time forward, backward;
	struct tess_sample *sample; /* NULL: the whole program is predicted */
	bool opened; /* the plan */
};

/* ---- what is computed ------------------------------------------------------------------------ */

static tess_status open_plan(struct evaluation *e)
{
	const struct tess_strategy *s = e->strategy;
	int32_t n = 0;

	while (s->overrides && s->overrides[n])
		n++;
	e->x.model = *e->model;
	e->x.model.device = e->planner->machine->exact ? NULL : &e->planner->device;
	return tess_plan_open(e->x.model.model, s->plan, s->overrides, n, &e->x.model.plan);
}

static tess_status set_strategy_mesh(struct evaluation *e)
{
	struct tess_mesh_shape given;
	tess_status st = tess_mesh_shape_parse(e->strategy->mesh, 0, &given);

	if (!st)
		tess_planner_choose_ranks(e->planner,
		                          e->planner->nranks ? e->planner->nranks : given.nranks);
	return st ? st : tess_explaining_set_mesh(&e->x, &given);
}

/* Returns the ranks along dp, which share the sequences of a step. */
static int64_t count_along_dp(const struct evaluation *e)
{
	int32_t dp = tess_mesh_shape_find(&e->x.mesh, "dp", 2);

	return dp < 0 ? 1 : e->x.mesh.dim[dp].size;
}

/* Sets the positions and slots of n sequences of `length` rows from position `from` on. */
static tess_status set_rows(struct evaluation *e, int64_t n, int64_t length, int64_t from)
{
	int32_t *at;

	free(e->rows);
	e->rows = at = malloc((size_t)(n * length) * 2 * sizeof *at);
	if (!at)
		return tess_fail(TESS_ENOMEM, "out of memory for %lld rows",
		                 (long long)(n * length));
	for (int64_t i = 0; i < n * length; i++) {
		at[i] = (int32_t)(from + i % length);
		at[n * length + i] = (int32_t)(i / length);
	}
	e->known.position = at;
	e->known.slot = at + n * length;
	e->attended.window = -1;
	e->known.last = &e->attended;
	return TESS_OK;
}

/* ---- time of stages -------------------------------------------------------------------------- */

static void keep_slowest(struct tess_step_time *kept, const struct tess_step_time *t)
{
	double once = t->once > kept->once ? t->once : kept->once;

	if (t->seconds > kept->seconds)
		*kept = *t;
	kept->once = once;
}

/* Counts the bytes that the steps of a segment send to other stages. */
static double count_stage_bytes(const struct tess_program *p, const struct tess_rank_program *l,
                                const struct tess_segment *s)
{
	double bytes = 0;

	for (int32_t i = s->first; i < s->end; i++)
		if (l->step[i]->kind == TESS_STEP_COLL && l->step[i]->along == p->pipeline_along &&
		    l->step[i]->coll.kind == TESS_SEND)
			bytes += (double)(l->step[i]->coll.count *
			                  tess_width(l->step[i]->coll.dtype));
	return bytes;
}

/* Returns the first step of the backward. */
static int32_t find_backward_step(const struct tess_program *p, const struct tess_rank_program *l)
{
	int32_t i = 0;

	while (i < l->nsteps && p->record[l->step[i]->record]->kind != TESS_OP_LOSS_D)
		i++;
	return i;
}

/* Returns the bytes of the values that steps [first, end) gather from the ranks of a replica. */
static double count_gathered(const struct evaluation *e, const struct tess_program *p,
                             const struct tess_rank_program *l, int32_t first, int32_t end)
{
	double bytes = 0;

	for (int32_t i = first; i < end; i++) {
		const struct tess_step *s = l->step[i];
		struct tess_cut cut;

		if (s->kind != TESS_STEP_COLL || s->coll.kind != TESS_ALL_GATHER ||
		    s->along == p->data_along)
			continue;
		cut = tess_step_find_cut(p, l->rank, s);
		if (cut.nranks > 1)
			bytes += (double)tess_step_count_sent(s, cut) * cut.nranks /
			         (cut.nranks - 1);
	}
	return bytes * e->planner->machine->width / 4;
}

/* Returns the bytes of the logits that steps [first, end) have the loss of. */
static double count_logit_bytes(const struct tess_rank_program *l, int32_t first, int32_t end)
{
	for (int32_t i = first; i < end; i++) {
		const struct tess_op *op = &l->step[i]->op;

		if (l->step[i]->kind == TESS_STEP_OP && op->kind == TESS_OP_LOSS_D)
			return (double)op->in[0].shape[0] * (double)op->in[0].shape[1] *
			       sizeof(float);
	}
	return 0;
}

/* Measures values of steps [step[0], step[2]), of which the forward ends at step[1]. */
static void measure_values(struct evaluation *e, const struct tess_program *p,
                           const struct tess_rank_program *l, int32_t stage, const int32_t step[3])
{
	struct tess_stage_time *t = &e->stage[stage];
	double gathered = count_gathered(e, p, l, step[0], step[1]);
	double logits = count_logit_bytes(l, step[0], step[2]);

	t->gathered = gathered > t->gathered ? gathered : t->gathered;
	t->logits = logits > t->logits ? logits : t->logits;
}

const char *tess_planner_get_data_call(int32_t i, bool *among_shards)
{
	static const char *const kinds[TESS_DATA_KINDS] = { "sum", "sum_scatter", "all_reduce",
		                                            "reduce_scatter", "all_gather" };

	*among_shards = i >= TESS_DATA_KINDS;
	return kinds[i % TESS_DATA_KINDS];
}

/* Returns the index of a call; one of another kind counts as one that gathers. */
static int32_t find_data_call(const char *name, bool among_shards)
{
	int32_t i = among_shards ? TESS_DATA_KINDS : 0, end = i + TESS_DATA_KINDS - 1;
	bool among;

	while (i < end && strcmp(tess_planner_get_data_call(i, &among), name) != 0)
		i++;
	return i;
}

/* Adds the calls along dp of a rank to the sample. */
static void sample_data_calls(struct evaluation *e, const struct tess_program *p,
                              const struct tess_rank_program *l)
{
	struct tess_sample sum = { 0 };

	for (int32_t i = 0; i < l->nsteps; i++) {
		const struct tess_step *s = l->step[i];
		struct tess_step_call c;
		int32_t at;

		if ((s->kind != TESS_STEP_SUM && s->kind != TESS_STEP_COLL) ||
		    s->along != p->data_along)
			continue;
		c = tess_step_find_call(e->planner->machine, p, l->rank, s);
		if (c.nranks == 1)
			continue;
		at = find_data_call(c.name, s->among_shards);
		sum.calls[at]++;
		sum.moved[at] += c.bytes * c.nranks / (c.nranks - 1);
	}
	for (int32_t i = 0; i < TESS_DATA_CALLS; i++)
		if (sum.moved[i] > e->sample->moved[i]) {
			e->sample->calls[i] = sum.calls[i];
			e->sample->moved[i] = sum.moved[i];
		}
}

/* Adds both halves of a step of training of a rank to the sample. */
static tess_status sample_halves(struct evaluation *e, const struct tess_program *p,
                                 const struct tess_rank_program *l, int32_t middle)
{
	const struct tess_machine *m = e->planner->machine;
	struct tess_step_time half[2] = { 0 };
	tess_status st = tess_steps_time(m, p, l, 0, middle, &e->known, &half[0]);

	if (!st)
		st = tess_steps_time(m, p, l, middle, l->nsteps, &e->known, &half[1]);
	keep_slowest(&e->forward, &half[0]);
	keep_slowest(&e->backward, &half[1]);
	sample_data_calls(e, p, l);
	return st;
}

/* Measures a program without stages, whose steps are one action, or halves of a sample. */
static tess_status measure_steps(struct evaluation *e, const struct tess_program *p,
                                 const struct tess_rank_program *l)
{
	struct tess_step_time all = { 0 };
	int32_t middle = find_backward_step(p, l);
	int32_t stage = tess_program_get_pipeline_rank(p, l->rank);
	tess_status st;

	measure_values(e, p, l, stage, (const int32_t[]){ 0, middle, l->nsteps });
	if (e->sample)
		return sample_halves(e, p, l, middle);
	st = tess_steps_time(e->planner->machine, p, l, 0, l->nsteps, &e->known, &all);
	keep_slowest(&e->stage[stage].of[TESS_PIPELINE_FORWARD], &all);
	return st;
}

/* Adds a rank's times to those of its stages, if it is slower than other ranks. */
static tess_status visit_rank(void *visitor, const struct tess_program *p,
                              const struct tess_rank_program *l)
{
	struct evaluation *e = visitor;
	const struct tess_machine *m = e->planner->machine;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < l->nsegments && !st; i++) {
		const struct tess_segment *s = &l->segment[i];
		struct tess_step_time t = { 0 };
		double bytes = count_stage_bytes(p, l, s);

		st = tess_steps_time(m, p, l, s->first, s->end, &e->known, &t);
		keep_slowest(&e->stage[s->stage].of[s->kind], &t);
		measure_values(
			e, p, l, s->stage,
			(const int32_t[]){ s->first,
		                           s->kind == TESS_PIPELINE_FORWARD ? s->end : s->first,
		                           s->end });
		e->send = bytes > e->send ? bytes : e->send;
	}
	return l->nsegments || st ? st : measure_steps(e, p, l);
}

/* Records and lowers the program, and measures its stages and ranks. */
static tess_status measure_program(struct evaluation *e)
{
	tess_status st = tess_explaining_record(&e->x, 0, &e->x.program);

	if (st)
		return st;
	e->nstages = e->x.program->nstages > 1 ? e->x.program->nstages : 1;
	free(e->stage);
	e->stage = calloc((size_t)e->nstages, sizeof *e->stage);
	if (!e->stage)
		return tess_fail(TESS_ENOMEM, "out of memory for the times of stages");
	e->x.visit = visit_rank;
	e->x.visitor = e;
	e->x.most = e->sample != NULL;
	return tess_explaining_measure_ranks(&e->x);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Adds the values of the stages of a rank to the bytes that it holds; they are in its step. */
static void split_step(const struct evaluation *e, int32_t rank, double *held)
{
	int32_t of = tess_explaining_get_program_rank(&e->x, rank);

	for (int32_t s = 0; s < e->nstages; s++) {
		const struct tess_timeline *t = e->x.timeline;

		if (e->nstages > 1 && !tess_program_has_stage(e->x.program, of, s))
			continue;
		held[TESS_HOLDS_GATHERED] += e->stage[s].gathered * (t ? t->stage_live[s] : 1);
		held[TESS_HOLDS_LOSS] += e->stage[s].logits;
	}
	if (held[TESS_HOLDS_GATHERED] > held[TESS_HOLDS_STEP])
		held[TESS_HOLDS_GATHERED] = held[TESS_HOLDS_STEP];
	held[TESS_HOLDS_STEP] -= held[TESS_HOLDS_GATHERED];
}

/* positions: those of the cache of a replica. */
static void measure_memory(struct evaluation *e, double positions)
{
	const struct tess_machine *m = e->planner->machine;
	struct tess_forecast *f = e->out;

	f->memory = 0;
	for (int32_t r = 0; r < e->x.e.nranks; r++) {
		const struct tess_explained_rank *k = e->x.e.ranks[r];
		double sum = 0, held[TESS_HOLDS] = {
			[TESS_HOLDS_WEIGHTS] = (double)k->weights,
			[TESS_HOLDS_GRADIENTS] = (double)k->gradients,
			[TESS_HOLDS_STATE] = (double)k->state,
			[TESS_HOLDS_STEP] = (double)k->step * m->width / 4,
			[TESS_HOLDS_CACHE] = (double)k->cache * positions,
			[TESS_HOLDS_FIXED] = 1,
		};

		if (e->x.training)
			split_step(e, r, held);
		for (int32_t i = 0; i < TESS_HOLDS; i++)
			sum += held[i] *= m->holds[i];
		if (sum > f->memory) {
			f->memory = sum;
			memcpy(f->holds, held, sizeof held);
		}
	}
	f->fits = f->memory <= e->planner->memory;
}

/* ---- a step of training ---------------------------------------------------------------------- */

static tess_status set_training(struct evaluation *e)
{
	const struct tess_planner_options *o = &e->planner->options;
	const struct tess_strategy *s = e->strategy;
	int64_t all = count_along_dp(e), here;

	e->micro = s->micro_batches ? s->micro_batches : 1;
	if (e->batch % e->micro)
		return tess_fail(TESS_EINVAL,
		                 "%lld sequences cannot be cut into %lld equal micro-batches",
		                 (long long)e->batch, (long long)e->micro);
	e->training = (struct tess_trainer_options){
		.size = sizeof e->training,
		.optimizer = o->optimizer,
		.recompute = s->recompute,
		.pipeline_schedule = s->pipeline_schedule,
		.bucket = s->bucket,
		.micro_batches = e->micro,
	};
	e->x.training = &e->training;
	e->x.moments = e->planner->moments;
	e->x.e.sequences = e->batch / e->micro;
	e->x.e.tokens = e->x.e.sequences * e->sequence;
	if (e->x.e.sequences < all)
		return tess_fail(TESS_EINVAL,
		                 "a micro-batch of %lld sequences cannot be cut for %lld ranks "
		                 "along dp",
		                 (long long)e->x.e.sequences, (long long)all);
	here = tess_edge(e->x.e.sequences, all, 1);
	return set_rows(e, here, e->sequence, 0);
}

static void add_time_terms(double *sum, const double *term, double times)
{
	for (int32_t i = 0; i < TESS_TERMS; i++)
		sum[i] += times * term[i];
}

/* Without stages all micro-batches run one after another. */
static void add_plain_step(const struct evaluation *e, double *term)
{
	for (int32_t kind = 0; kind < TESS_PIPELINE_KINDS; kind++)
		add_time_terms(term, e->stage[0].of[kind].term, (double)e->micro);
}

/* Adds the gradients that each stage reduces in its last micro-batch. */
static void add_reduced_once(const struct evaluation *e, double *term)
{
	double factor = e->planner->machine->time[TESS_TERM_DATA], most = 0;

	for (int32_t s = 0; s < e->nstages; s++)
		for (int32_t kind = 0; kind < TESS_PIPELINE_KINDS; kind++) {
			double once = e->stage[s].of[kind].once;

			most = once > most ? once : most;
		}
	term[TESS_TERM_DATA] += factor > 0 ? most / factor : 0;
}

/* Sets the durations of actions by stage: a full backward is I and W. */
static tess_status simulate_stages(const struct evaluation *e, struct tess_timeline **out)
{
	struct tess_pipeline_times times = { 0 };
	double *by[TESS_PIPELINE_KINDS], *all;
	tess_status st;

	all = calloc((size_t)(TESS_PIPELINE_KINDS * e->nstages), sizeof *all);
	if (!all)
		return tess_fail(TESS_ENOMEM, "out of memory for the times of stages");
	for (int32_t k = 0; k < TESS_PIPELINE_KINDS; k++) {
		by[k] = all + k * e->nstages;
		for (int32_t s = 0; s < e->nstages; s++)
			by[k][s] = e->stage[s].of[k].seconds;
	}
	for (int32_t s = 0; s < e->nstages; s++)
		if (by[TESS_PIPELINE_BACKWARD][s] == 0)
			by[TESS_PIPELINE_BACKWARD][s] = by[TESS_PIPELINE_BACKWARD_INPUTS][s] +
			                                by[TESS_PIPELINE_BACKWARD_WEIGHTS][s];
	for (int32_t k = 0; k <= TESS_PIPELINE_BACKWARD_WEIGHTS; k++)
		times.stages[k] = by[k];
	times.kinds[TESS_PIPELINE_SEND_FORWARD] = times.kinds[TESS_PIPELINE_SEND_BACKWARD] =
		tess_machine_communicate(
			e->planner->machine, "send", 2,
			e->x.program->mesh.dim[e->x.program->pipeline_along].stride,
			e->send * e->planner->machine->width / 4) *
		e->planner->machine->time[TESS_TERM_PIPELINE];
	st = tess_pipeline_simulate(e->x.pipeline, &times, out);
	free(all);
	return st;
}

/* Returns the rank that computes longest. */
static int32_t find_busiest(const struct tess_timeline *t)
{
	int32_t most = 0;

	for (int32_t r = 1; r < t->pipeline->nranks; r++)
		if (t->work[r] > t->work[most])
			most = r;
	return most;
}

/* Adds the actions of the busiest rank, and the time that it waits. */
static tess_status add_staged_step(const struct evaluation *e, double *term)
{
	struct tess_timeline *t = NULL;
	tess_status st = simulate_stages(e, &t);
	int32_t busiest;

	if (st)
		return st;
	busiest = find_busiest(t);
	for (int32_t i = 0; i < t->pipeline->nactions[busiest]; i++) {
		const struct tess_pipeline_action *a = &t->pipeline->actions[busiest][i];

		if (a->kind > TESS_PIPELINE_BACKWARD_WEIGHTS)
			continue;
		add_time_terms(term, e->stage[a->stage].of[a->kind].term, 1);
		if (a->kind == TESS_PIPELINE_BACKWARD &&
		    e->stage[a->stage].of[a->kind].seconds == 0)
			for (int32_t k = TESS_PIPELINE_BACKWARD_INPUTS;
			     k <= TESS_PIPELINE_BACKWARD_WEIGHTS; k++)
				add_time_terms(term, e->stage[a->stage].of[k].term, 1);
	}
	term[TESS_TERM_BUBBLE] += t->length - t->work[busiest];
	tess_timeline_free(t);
	return TESS_OK;
}

/* Returns the elements of optimizer state of a rank; *even: all ranks along dp have as many. */
static double count_rank_state(const struct tess_program *p, int32_t rank, bool *even)
{
	int32_t shards = tess_program_count_shards(p);
	double n = 0;

	for (int32_t i = 0; i < p->ngradients; i++) {
		const struct tess_weight *w = p->gradient[i].weight;

		n += (double)tess_weight_get_kept(p, w, rank, TESS_STATE).len;
		*even &= !w->state_cut || tess_weight_count_local(p, w, rank) % shards == 0;
	}
	return n;
}

/* Returns the most elements of optimizer state of a rank. */
static double count_state(const struct evaluation *e)
{
	const struct tess_program *p = e->x.program;
	int32_t along = p->data_along, last = along < 0 ? 1 : p->mesh.dim[along].size;
	bool even = true;
	double most = 0;

	for (int32_t at = 0; at < (even ? 1 : last); at++)
		for (int32_t r = 0; r < p->mesh.nranks; r++) {
			double n;

			if (along >= 0 && tess_mesh_shape_coordinate(&p->mesh, along, r) != at)
				continue;
			n = count_rank_state(p, r, &even);
			most = n > most ? n : most;
		}
	return most;
}

/* Adds the optimizer, and the gather of weights that it leaves in shares. */
static void add_optimizer(const struct evaluation *e, double *term)
{
	const struct tess_program *p = e->x.program;
	const struct tess_machine *m = e->planner->machine;
	double returned = (double)tess_explaining_count_returned(p);
	double seconds = tess_optimizer_time(m, count_state(e), e->planner->moments, 4);
	double started = m->launch * p->ngradients / e->nstages; /* an op for each weight */

	term[TESS_TERM_OPTIMIZER] += seconds;
	term[TESS_TERM_LATENCY] += started > seconds ? started - seconds : 0;
	if (returned > 0)
		term[TESS_TERM_DATA] +=
			tess_machine_communicate(m, "all_gather", tess_program_count_shards(p),
		                                 p->mesh.dim[p->data_along].stride, returned);
}

static tess_status predict_training(struct evaluation *e)
{
	tess_status st = set_training(e);

	if (!st)
		st = tess_explaining_open_schedule(&e->x);
	if (!st)
		st = measure_program(e);
	if (st)
		return st;
	measure_memory(e, 0);
	if (e->nstages > 1)
		st = add_staged_step(e, e->out->terms);
	else
		add_plain_step(e, e->out->terms);
	add_reduced_once(e, e->out->terms);
	add_optimizer(e, e->out->terms);
	e->out->sent = (double)tess_explaining_measure_plan(&e->x).sent;
	return st;
}

/* ---- generation ------------------------------------------------------------------------------ */

static void close_program(struct evaluation *e)
{
	tess_program_free(e->x.program);
	tess_arena_free(&e->x.arena);
	e->x.program = NULL;
}

/* Returns the stage that takes longest. */
static const struct tess_step_time *find_slowest_stage(const struct evaluation *e)
{
	int32_t most = 0;

	for (int32_t s = 1; s < e->nstages; s++)
		if (e->stage[s].of[TESS_PIPELINE_FORWARD].seconds >
		    e->stage[most].of[TESS_PIPELINE_FORWARD].seconds)
			most = s;
	return &e->stage[most].of[TESS_PIPELINE_FORWARD];
}

/*
 * Adds the terms of a step of generation `times` times, and sets its seconds. ahead: as many steps
 * are under way as there are stages, and the slowest stage sets their pace.
 */
static tess_status add_generated_step(struct evaluation *e, int64_t n, int64_t length, int64_t from,
                                      bool ahead, double times, double *seconds)
{
	tess_status st = set_rows(e, n, length, from);

	e->x.e.tokens = n * length;
	e->x.nselected = n;
	if (!st)
		st = measure_program(e);
	*seconds = 0;
	for (int32_t s = 0; s < e->nstages && !st; s++) {
		const struct tess_step_time *t =
			ahead ? find_slowest_stage(e) : &e->stage[s].of[TESS_PIPELINE_FORWARD];

		add_time_terms(e->out->terms, t->term, times);
		*seconds += t->seconds;
	}
	return st;
}

/* Returns the stages of generation, if several steps are under way; else 1. */
static int64_t count_ahead(const struct evaluation *e)
{
	int32_t pp = tess_mesh_shape_find(&e->x.mesh, "pp", 2);

	return pp < 0 || !e->planner->machine->exact ? 1 : e->x.mesh.dim[pp].size;
}

static tess_status predict_generation(struct evaluation *e)
{
	const struct tess_planner_options *o = &e->planner->options;
	int64_t here = tess_edge(o->batch, count_along_dp(e), 1), steps;
	int64_t ahead = count_ahead(e), rows = e->planner->machine->prompt_rows;
	double seconds;
	tess_status st;

	rows = o->prompt < rows ? o->prompt : rows;
	steps = tess_up(o->prompt, rows) * here;
	/* of steps under way, each adds one stage */
	st = add_generated_step(e, 1, rows, (o->prompt - rows) / 2, ahead > 1,
	                        (double)(steps + ahead - 1) / (double)ahead, &seconds);
	e->out->prompt_seconds = seconds * (double)(steps + ahead - 1) / (double)ahead;
	close_program(e);
	if (!st)
		st = add_generated_step(e, tess_up(here, ahead), 1, o->prompt + o->tokens / 2,
		                        ahead > 1 && here > 1, (double)o->tokens, &seconds);
	e->out->token_seconds = seconds;
	if (st)
		return st;
	measure_memory(e, (double)(here * tess_up(o->prompt + o->tokens, 64) * 64));
	e->out->sent = (double)tess_explaining_measure_plan(&e->x).sent;
	return TESS_OK;
}

/* ---- a forecast ------------------------------------------------------------------------------ */

/* Sets seconds, rate and bound of a forecast from its terms. */
static void conclude_forecast(const struct tess_planner *p, struct tess_forecast *f)
{
	static const char *const bound[TESS_TERMS] = {
		"products",  "attention", "memory bandwidth", "starting ops", "collectives",
		"gradients", "sends",     "bubble",           "optimizer",    "the fixed cost",
	};
	const struct tess_planner_options *o = &p->options;
	int32_t most = 0;

	f->terms[TESS_TERM_FIXED] = 1;
	f->seconds = 0;
	for (int32_t i = 0; i < TESS_TERMS; i++) {
		f->terms[i] *= i == TESS_TERM_BUBBLE ? 1 : p->machine->time[i];
		f->seconds += f->terms[i];
		most = f->terms[i] > f->terms[most] ? i : most;
	}
	f->bound = bound[most];
	f->rate = (double)o->batch * (double)(o->train ? o->sequence : o->tokens) / f->seconds;
}

static void close_evaluation(struct evaluation *e)
{
	close_program(e);
	tess_timeline_free(e->x.timeline);
	tess_pipeline_close(e->x.pipeline);
	if (e->opened)
		tess_plan_free(&e->x.model.plan);
	free(e->rows);
	free(e->stage);
}

/* Opens the plan and the mesh of a strategy. close_evaluation() also after a failure. */
static tess_status open_evaluation(struct evaluation *e)
{
	tess_status st = open_plan(e);

	e->x.borrowed = true;
	e->x.training = e->planner->options.train ? &e->training : NULL;
	e->opened = !st;
	*e->out = (struct tess_forecast){ .strategy = *e->strategy };
	if (!st)
		st = set_strategy_mesh(e);
	e->out->nranks = e->x.e.nranks;
	return st;
}

static tess_status evaluate_on(struct tess_planner *p, const struct tess_planned_model *model,
                               const struct tess_strategy *s, struct tess_forecast *out)
{
	struct evaluation e = { .planner = p,
		                .model = model,
		                .batch = p->options.batch,
		                .sequence = p->options.sequence,
		                .strategy = s,
		                .out = out };
	tess_status st = open_evaluation(&e);

	if (!st)
		st = p->options.train ? predict_training(&e) : predict_generation(&e);
	if (!st)
		conclude_forecast(p, out);
	close_evaluation(&e);
	return st;
}

tess_status tess_planner_evaluate(struct tess_planner *p, const struct tess_strategy *s,
                                  struct tess_forecast *out)
{
	return evaluate_on(p, &p->model, s, out);
}

tess_status tess_planner_extrapolate(struct tess_planner *p, const struct tess_strategy *s,
                                     double *seconds, double *memory)
{
	struct tess_forecast f[2];
	double n[2] = { (double)p->shallow[0].layers, (double)p->shallow[1].layers }, times;
	tess_status st = evaluate_on(p, n[1] > 0 ? &p->shallow[0].model : &p->model, s, &f[0]);

	if (!st && n[1] > 0)
		st = evaluate_on(p, &p->shallow[1].model, s, &f[1]);
	if (st)
		return st;
	times = n[1] > 0 ? ((double)p->layers - n[0]) / (n[1] - n[0]) : 0;
	*seconds = f[0].seconds;
	*memory = f[0].memory;
	if (times > 0) {
		*seconds += times * (f[1].seconds - f[0].seconds);
		*memory += times * (f[1].memory - f[0].memory);
	}
	return TESS_OK;
}

/* Copies the terms, each times its factor of the machine, into out. */
static void copy_terms(const struct tess_machine *m, const struct tess_step_time *t, double *out)
{
	for (int32_t i = 0; i < TESS_TERMS; i++)
		out[i] = t->term[i] * m->time[i];
}

/* Returns the bytes of the weights that the optimizer leaves in shares. */
static double count_returned_payload(const struct tess_program *p)
{
	double shards = tess_program_count_shards(p);

	return shards > 1 ? (double)tess_explaining_count_returned(p) * shards / (shards - 1) : 0;
}

tess_status tess_planner_sample(struct tess_planner *p, const struct tess_planned_model *model,
                                const struct tess_strategy *s, int64_t batch, int64_t sequence,
                                struct tess_sample *out)
{
	struct tess_forecast f;
	struct evaluation e = { .planner = p,
		                .model = model,
		                .batch = batch,
		                .sequence = sequence,
		                .strategy = s,
		                .sample = out,
		                .out = &f };
	tess_status st = open_evaluation(&e);

	*out = (struct tess_sample){ 0 };
	if (!st)
		st = set_training(&e);
	if (!st)
		st = measure_program(&e);
	if (!st) {
		measure_memory(&e, 0);
		copy_terms(p->machine, &e.forward, out->forward);
		copy_terms(p->machine, &e.backward, out->backward);
		out->state = count_state(&e);
		out->returned = count_returned_payload(e.x.program);
		memcpy(out->holds, f.holds, sizeof out->holds);
	}
	close_evaluation(&e);
	return st;
}
