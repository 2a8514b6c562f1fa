/* step_time.c - estimates the time of a rank's steps. */
#include "nn/cost/step_time.h"

#include "core/base/status.h"
#include "core/shard/move.h"
#include "nn/cost/step_work.h"
#include "nn/op/kinds.h"
#include "nn/program/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

uint64_t tess_step_count_sent(const struct tess_step *s, struct tess_cut cut)
{
	uint64_t nodes;

	if (s->kind != TESS_STEP_SUM)
		return tess_coll_sent_bytes(&s->coll, cut.rank, cut.nranks);
	nodes = (uint64_t)tess_sum_nodes(&s->sum, cut.nranks, cut.rank);
	return tess_move_count_reduced(sizeof(float) * s->sum.count, nodes, s->sum.share != NULL,
	                               cut.nranks);
}

struct tess_cut tess_step_find_cut(const struct tess_program *p, int32_t rank,
                                   const struct tess_step *s)
{
	struct tess_cut cut = tess_program_get_cut(p, rank, s->along);

	if (s->among_shards) {
		cut.nranks = tess_program_count_shards(p);
		cut.rank %= cut.nranks;
	}
	return cut;
}

/* A walk over steps. */
struct walk {
	const struct tess_machine *m;
	const struct tess_program *p;
	const struct tess_op_known *known;
	int32_t rank, record; /* record: the last that the host has started */
	bool without_data; /* leave out the calls along dp */
	double now, host; /* the device's time, and the host's */
	double link[TESS_LINKS]; /* the time at which the rank's link is free */
	double *ended; /* by step: the end of a started call */
	struct tess_step_time *out;
	double *by_record; /* NULL: not asked for */
};

/* ---- ops ------------------------------------------------------------------------------------- */

/* Returns the seconds of ops in one step. Values are as wide as those of the machine. */
static double time_work(const struct walk *w, const char *name, const struct tess_step_work *work)
{
	struct tess_step_parts p = tess_step_work_get_parts(work);

	if (w->m->at_once)
		p = (struct tess_step_parts){ 1, p.rows * p.parts, p.work * p.parts };
	if (work->class == TESS_TERM_MEMORY)
		p.work -= (p.work - (double)work->cost.weight_bytes) * (1 - w->m->width / 4);
	return p.parts *
	       tess_machine_compute(w->m, name, tess_term_get_name(work->class), p.rows, p.work);
}

/* Returns the seconds of one op by itself. */
static double estimate_op(const struct walk *w, const struct tess_op *op)
{
	struct tess_step_work work = { 0 };

	tess_step_work_add(op, w->known, &work);
	return time_work(w, op_get_kind_name(op->kind), &work);
}

/* Adds a step whose ops the machine file has as one. */
static bool add_measured_step(struct walk *w, const struct tess_op *op,
                              const struct tess_step_work *work)
{
	char name[TESS_STEP_NAME];
	double seconds;

	tess_step_work_name(op, name);
	if (!op->next || !tess_machine_has_op(w->m, name))
		return false;
	seconds = time_work(w, name, work);
	w->out->term[work->class] += seconds;
	w->now += seconds * w->m->time[work->class];
	return true;
}

/* Adds the time that the rank waits for something to end. */
static void wait_until(struct walk *w, int32_t term, double end)
{
	if (end <= w->now)
		return;
	w->out->term[term] += w->m->time[term] > 0 ? (end - w->now) / w->m->time[term] : 0;
	w->now = end;
}

/*
 * The host starts what the model has recorded, in advance of the device if it can. The pieces of a
 * record are started with it, and those around it that copy or accumulate values.
 */
static void start_record(struct walk *w, const struct tess_step *s)
{
	if (w->m->launch <= 0 || s->record <= w->record ||
	    w->p->record[s->record]->kind == TESS_REC_GRADIENT ||
	    (s->kind == TESS_STEP_OP && s->op.kind == TESS_OP_COPY))
		return;
	w->record = s->record;
	w->host += w->m->launch * w->m->time[TESS_TERM_LATENCY];
	wait_until(w, TESS_TERM_LATENCY, w->host);
}

/* Adds an op and those that run with it in one step. */
static void add_op_step(struct walk *w, const struct tess_op *op)
{
	struct tess_step_work work = { 0 };

	for (const struct tess_op *o = op; o; o = o->next)
		tess_step_work_add(o, w->known, &work);
	w->out->term[TESS_TERM_LATENCY] += w->m->latency;
	w->now += w->m->latency * w->m->time[TESS_TERM_LATENCY];
	if (add_measured_step(w, op, &work))
		return;
	for (; op; op = op->next) {
		int32_t own = tess_op_classify(op->kind);
		double seconds = estimate_op(w, op);

		w->out->term[own] += seconds;
		w->now += seconds * w->m->time[own];
	}
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int32_t classify_call(const struct walk *w, const struct tess_step *s)
{
	return s->along == w->p->data_along ? TESS_TERM_DATA : TESS_TERM_TENSOR;
}

static bool is_to_stage(const struct walk *w, const struct tess_step *s)
{
	return s->kind == TESS_STEP_COLL && s->along == w->p->pipeline_along &&
	       (s->coll.kind == TESS_SEND || s->coll.kind == TESS_RECV);
}

static const char *name_call(const struct tess_step *s)
{
	return s->kind == TESS_STEP_SUM ? (s->sum.share ? "sum_scatter" : "sum")
	                                : tess_kind_name(s->coll.kind);
}

/* Names the call of a step. A device that adds in any order runs a sum as a collective. */
static const char *choose_call(const struct tess_machine *m, const struct tess_step *s)
{
	if (s->kind != TESS_STEP_SUM || m->exact)
		return name_call(s);
	return s->sum.share ? "reduce_scatter" : "all_reduce";
}

struct tess_step_call tess_step_find_call(const struct tess_machine *m,
                                          const struct tess_program *p, int32_t rank,
                                          const struct tess_step *s)
{
	struct tess_cut cut = tess_step_find_cut(p, rank, s);
	bool values = s->kind == TESS_STEP_SUM || s->coll.dtype == TESS_F32;

	return (struct tess_step_call){
		.name = choose_call(m, s),
		.nranks = cut.nranks,
		.stride = p->mesh.dim[s->along].stride,
		.bytes = (double)tess_step_count_sent(s, cut) * (values ? m->width / 4 : 1),
	};
}

static void add_call(struct walk *w, const struct tess_step *s, int32_t at)
{
	struct tess_step_call c = tess_step_find_call(w->m, w->p, w->rank, s);
	int32_t term = classify_call(w, s);
	double seconds = tess_machine_communicate(w->m, c.name, c.nranks, c.stride, c.bytes);
	double *link =
		&w->link[tess_machine_is_within(w->m, c.nranks, c.stride) ? TESS_LINK_WITHIN
	                                                                  : TESS_LINK_BETWEEN];

	if (c.nranks == 1 || (term == TESS_TERM_DATA && w->without_data))
		return;
	w->out->sent[s->along] += c.bytes;
	w->out->called[s->along] += seconds;
	*link = (*link > w->now ? *link : w->now) + seconds * w->m->time[term];
	w->ended[at] = *link;
	if (!s->started || !tess_machine_hides_calls(w->m))
		wait_until(w, term, *link);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void add_step(struct walk *w, const struct tess_rank_program *l, int32_t at)
{
	const struct tess_step *s = l->step[at];
	int32_t of = at;

	start_record(w, s);
	switch (s->kind) {
	case TESS_STEP_OP:
		add_op_step(w, &s->op);
		break;
	case TESS_STEP_COLL:
	case TESS_STEP_SUM:
		if (!is_to_stage(w, s))
			add_call(w, s, at);
		break;
	case TESS_STEP_WAIT:
		while (of > 0 && l->step[of] != s->of)
			of--;
		if (!is_to_stage(w, s->of))
			wait_until(w, classify_call(w, s->of), w->ended[of]);
		break;
	default: /* a style's own function: unknown, and as a rule small */
		break;
	}
}

/* Walks over steps [first, end). */
static tess_status walk_steps(struct walk *w, const struct tess_rank_program *l, int32_t first,
                              int32_t end)
{
	w->rank = l->rank;
	w->record = -1;
	w->ended = calloc((size_t)l->nsteps + 1, sizeof *w->ended);
	if (!w->ended)
		return tess_fail(TESS_ENOMEM, "out of memory for the times of %d steps",
		                 (int)l->nsteps);
	for (int32_t i = first; i < end; i++) {
		double before = w->now;

		add_step(w, l, i);
		if (w->by_record)
			w->by_record[l->step[i]->record] += w->now - before;
	}
	free(w->ended);
	return TESS_OK;
}

tess_status tess_steps_time(const struct tess_machine *m, const struct tess_program *p,
                            const struct tess_rank_program *l, int32_t first, int32_t end,
                            const struct tess_op_known *known, struct tess_step_time *out)
{
	struct tess_step_time last = { 0 };
	struct walk w = { .m = m, .p = p, .known = known, .without_data = m->once, .out = out };
	struct walk with = { .m = m, .p = p, .known = known, .out = &last };
	tess_status st = walk_steps(&w, l, first, end);

	out->seconds += w.now;
	if (st || !m->once)
		return st;
	st = walk_steps(&with, l, first, end);
	out->once += with.now - w.now;
	if (p->data_along >= 0) {
		out->called[p->data_along] += last.called[p->data_along];
		out->sent[p->data_along] += last.sent[p->data_along];
	}
	return st;
}

tess_status tess_steps_time_records(const struct tess_machine *m, const struct tess_program *p,
                                    const struct tess_rank_program *l,
                                    const struct tess_op_known *known, double *seconds)
{
	struct tess_step_time sum = { 0 };
	struct walk w = { .m = m, .p = p, .known = known, .out = &sum, .by_record = seconds };

	return walk_steps(&w, l, 0, l->nsteps);
}

double tess_optimizer_time(const struct tess_machine *m, double n, int32_t moments, double width)
{
	/* reads and writes weights and moments, and reads gradients */
	double bytes = n * (2 * width + 8 * moments + 4);
	const char *op = moments > 1 || !tess_machine_has_op(m, "sgd") ? "adamw" : "sgd";

	return n > 0 ? m->latency + tess_machine_compute(m, op, "memory", n / 1024, bytes) : 0;
}
