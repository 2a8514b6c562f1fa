/* step_time.c - estimates the time of a rank's steps. */
#include "nn/cost/step_time.h"

#include "core/base/status.h"
#include "core/shard/move.h"
#include "nn/cost/step_trace.h"
#include "nn/cost/step_work.h"
#include "nn/lower/row_exchange.h"
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

double tess_step_count_expected(const struct tess_step *s, struct tess_cut cut)
{
	return s->kind == TESS_STEP_COLL && s->counts_of ? s->counts_of->expected
	                                                 : (double)tess_step_count_sent(s, cut);
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

void tess_waited_add(struct tess_waited *w, const char *call, int32_t along, double seconds)
{
	int32_t i = 0;

	if (seconds <= 0)
		return;
	while (i < w->n && (w->of[i].along != along || strcmp(w->of[i].call, call) != 0))
		i++;
	i = i < TESS_WAITED_MAX ? i : TESS_WAITED_MAX - 1;
	if (i == w->n) {
		w->of[i].call = call;
		w->of[i].along = along;
		w->n++;
	}
	w->of[i].seconds += seconds;
}

enum { CLOCKS = 2 }; /* without the calls along dp, and with them */

struct rank_clock {
	double now, host; /* the device's time, and the host's */
	double link[TESS_LINKS]; /* the time at which the rank's link is free */
	double disk; /* the time at which the disk has ended the transfers of steps */
	double update; /* seconds of the disk for an early update, which are left at `disk` */
	struct tess_step_time *out;
};

struct started { /* a call or a transfer that is not waited for yet */
	const struct tess_step *step;
	double end[CLOCKS];
};

struct timed_op { /* an op by its work; alike layers repeat it */
	int32_t kind;
	bool bf16;
	struct tess_step_parts parts;
	double seconds;
};
enum { TIMED_OPS = 64, TIMED_SHIFT = 64 - 6 };

/* A walk over steps. */
struct walk {
	const struct tess_machine *m;
	const struct tess_program *p;
	const struct tess_op_known *known;
	int32_t rank, record; /* record: the last that the host has started */
	/* each has the times of all steps; of several, the first leaves out the calls along dp */
	struct rank_clock clock[CLOCKS];
	int32_t nclocks;
	struct started *started;
	int32_t nstarted, room;
	struct timed_op timed[TIMED_OPS]; /* by hash: the last ones */
	struct tess_step_trace *trace; /* NULL: none is kept */
	bool files; /* transfers take time */
	struct tess_early_time *early; /* NULL: no update begins in these steps */
	double losses; /* when they are known */
	tess_status status;
};

static void trace_item(struct walk *w, struct tess_trace_item item)
{
	if (w->trace && !w->status)
		w->status = tess_trace_add(w->trace, item);
}

/* Adds what takes `seconds`, without the factor of the machine. */
static void add_time(struct walk *w, int32_t term, double seconds)
{
	trace_item(w, (struct tess_trace_item){ .kind = TESS_TRACE_WORK,
	                                        .seconds = seconds * w->m->time[term] });
	for (int32_t i = 0; i < w->nclocks; i++) {
		w->clock[i].out->term[term] += seconds;
		w->clock[i].now += seconds * w->m->time[term];
	}
}

/* Adds the time that the rank waits for something to end. */
static void wait_until(const struct walk *w, struct rank_clock *c, int32_t term, double end)
{
	if (end <= c->now)
		return;
	c->out->term[term] += w->m->time[term] > 0 ? (end - c->now) / w->m->time[term] : 0;
	c->now = end;
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Returns the parts of an op or a step. Values are as wide as those of the machine. */
static struct tess_step_parts get_parts(const struct walk *w, const struct tess_step_work *work)
{
	struct tess_step_parts p = tess_step_work_get_parts(work);

	if (w->m->at_once)
		p = (struct tess_step_parts){ 1, p.rows * p.parts, p.work * p.parts };
	if (work->class == TESS_TERM_MEMORY)
		p.work -= (p.work - (double)work->cost.weight_bytes) * (1 - w->m->width / 4);
	return p;
}

static double time_parts(const struct walk *w, const char *name, int32_t class,
                         struct tess_step_parts p)
{
	return p.parts *
	       tess_machine_compute(w->m, name, tess_term_get_name(class), p.rows, p.work);
}

/* Returns where the time of an op is kept. */
static struct timed_op *find_timed(struct walk *w, int32_t kind, const struct tess_step_parts *p)
{
	uint64_t bits[3];

	memcpy(bits, p, sizeof bits);
	bits[0] ^= bits[1] * 3 ^ bits[2] * 5 ^ (uint64_t)kind;
	return &w->timed[bits[0] * UINT64_C(0x9e3779b97f4a7c15) >> TIMED_SHIFT];
}

static double find_op_time(struct walk *w, int32_t kind, const struct tess_step_work *work)
{
	struct tess_step_parts p = get_parts(w, work);
	struct timed_op *t = find_timed(w, kind, &p);
	char name[TESS_STEP_NAME];

	if (t->kind == kind && t->bf16 == work->bf16 && !memcmp(&t->parts, &p, sizeof p))
		return t->seconds;
	snprintf(name, sizeof name, "%s%s", op_get_kind_name(kind),
	         work->bf16 ? TESS_MACHINE_BF16 : "");
	*t = (struct timed_op){ kind, work->bf16, p, time_parts(w, name, work->class, p) };
	return t->seconds;
}

/* Adds a step of several ops that the machine file has as one. */
static bool add_measured_step(struct walk *w, const struct tess_op *op,
                              const struct tess_step_work *work)
{
	char name[TESS_STEP_NAME];

	if (!op->next)
		return false;
	tess_step_work_name(op, work->bf16, name);
	if (!tess_machine_has_op(w->m, name))
		return false;
	add_time(w, work->class, time_parts(w, name, work->class, get_parts(w, work)));
	return true;
}

/*
 * The host starts what the model has recorded, in advance of the device if it can. The pieces of a
 * record are started with it, and those around it that copy or accumulate values.
 */
static void start_record(struct walk *w, const struct tess_step *s)
{
	double seconds = w->m->launch * w->m->time[TESS_TERM_LATENCY];

	if (w->m->launch <= 0 || s->record <= w->record ||
	    w->p->record[s->record]->kind == TESS_REC_GRADIENT ||
	    (s->kind == TESS_STEP_OP && s->op.kind == TESS_OP_COPY))
		return;
	w->record = s->record;
	trace_item(w, (struct tess_trace_item){ .kind = TESS_TRACE_LAUNCH, .seconds = seconds });
	for (int32_t i = 0; i < w->nclocks; i++) {
		struct rank_clock *c = &w->clock[i];

		c->host += seconds;
		wait_until(w, c, TESS_TERM_LATENCY, c->host);
	}
}

/* Adds an op and those that run with it in one step. */
static void add_op_step(struct walk *w, const struct tess_op *op)
{
	struct tess_step_work work = { 0 };

	for (const struct tess_op *o = op; o; o = o->next)
		tess_step_work_add(o, w->known, &work);
	add_time(w, TESS_TERM_LATENCY, w->m->latency);
	if (add_measured_step(w, op, &work))
		return;
	for (const struct tess_op *o = op; o; o = o->next) {
		if (op->next) {
			work = (struct tess_step_work){ 0 };
			tess_step_work_add(o, w->known, &work);
		}
		add_time(w, work.class, find_op_time(w, o->kind, &work));
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
		.bytes = tess_step_count_expected(s, cut) * (values ? m->width / 4 : 1),
	};
}

/* Adds a started call. NULL: out of memory. */
static struct started *keep_started(struct walk *w, const struct tess_step *s)
{
	if (w->nstarted == w->room) {
		int32_t room = 2 * w->room + 16;
		struct started *more = realloc(w->started, (size_t)room * sizeof *more);

		if (!more) {
			w->status = tess_fail(TESS_ENOMEM, "out of memory for started calls");
			return NULL;
		}
		w->started = more;
		w->room = room;
	}
	w->started[w->nstarted] = (struct started){ .step = s };
	return &w->started[w->nstarted++];
}

/* Adds the time that the rank waits for a call to end. */
static void wait_until_called(const struct walk *w, struct rank_clock *k, const struct tess_step *s,
                              double end)
{
	int32_t term = classify_call(w, s);
	double before = k->out->term[term];

	wait_until(w, k, term, end);
	tess_waited_add(&k->out->waited, choose_call(w->m, s), s->along,
	                k->out->term[term] - before);
}

static void add_call(struct walk *w, const struct tess_step *s)
{
	struct tess_step_call c = tess_step_find_call(w->m, w->p, w->rank, s);
	int32_t term = classify_call(w, s);
	double seconds = tess_machine_communicate(w->m, c.name, c.nranks, c.stride, c.bytes);
	bool within = tess_machine_is_within(w->m, c.nranks, c.stride);
	struct started *started = NULL;

	if (c.nranks == 1)
		return;
	trace_item(w, (struct tess_trace_item){ .kind = TESS_TRACE_CALL,
	                                        .seconds = seconds * w->m->time[term],
	                                        .call = c,
	                                        .step = s,
	                                        .data = term == TESS_TERM_DATA });
	if (s->started)
		started = keep_started(w, s);
	if (w->status)
		return;
	for (int32_t i = w->nclocks > 1 && term == TESS_TERM_DATA; i < w->nclocks; i++) {
		struct rank_clock *k = &w->clock[i];
		double *link = &k->link[within ? TESS_LINK_WITHIN : TESS_LINK_BETWEEN];

		k->out->sent[s->along] += c.bytes;
		k->out->called[s->along] += seconds;
		*link = (*link > k->now ? *link : k->now) + seconds * w->m->time[term];
		if (started)
			started->end[i] = *link;
		/* ranks that share the host's CPUs move and add the bytes themselves */
		if (!started || !tess_machine_hides_calls(w->m))
			wait_until_called(w, k, s, *link);
	}
}

static void add_wait(struct walk *w, const struct tess_step *of)
{
	int32_t i = w->nstarted - 1;

	while (i >= 0 && w->started[i].step != of)
		i--;
	if (i < 0)
		return;
	if (of->kind != TESS_STEP_TRANSFER)
		trace_item(w, (struct tess_trace_item){ .kind = TESS_TRACE_WAIT, .step = of });
	for (int32_t k = 0; k < w->nclocks; k++)
		if (of->kind == TESS_STEP_TRANSFER)
			wait_until(w, &w->clock[k], TESS_TERM_DISK, w->started[i].end[k]);
		else
			wait_until_called(w, &w->clock[k], of, w->started[i].end[k]);
	w->started[i] = w->started[--w->nstarted];
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Moves the clock of the disk to the rank's if no transfer is under way: it was the update's. */
static void idle_disk(struct rank_clock *k)
{
	double idle = k->now - k->disk;

	if (idle <= 0)
		return;
	k->update = k->update > idle ? k->update - idle : 0;
	k->disk = k->now;
}

/* Adds a transfer behind those that the disk does already, which an early update slows down. */
static void add_file_transfer(struct walk *w, const struct tess_step *s)
{
	struct tess_traffic t = { 0 };
	struct started *started = w->files ? keep_started(w, s) : NULL;
	double seconds;

	if (!started)
		return;
	tess_traffic_add_transfer(s->transfer, &t);
	seconds = tess_traffic_time(w->m, &t) * w->m->time[TESS_TERM_DISK];
	for (int32_t i = 0; i < w->nclocks; i++) {
		struct rank_clock *k = &w->clock[i];
		double shared;

		idle_disk(k);
		shared = k->update < seconds ? k->update : seconds;
		k->update -= shared;
		k->disk += seconds + shared;
		started->end[i] = k->disk;
	}
}

/* Adds the update of a weight whose gradient is final: that of the disk, and of the optimizer. */
static void add_early_update(struct walk *w, const struct tess_weight *weight)
{
	const struct tess_offload_layout *files = w->early->files;
	double n = (double)tess_weight_get_kept(w->p, weight, w->rank, TESS_STATE).len;
	struct tess_traffic t = { 0 };

	tess_traffic_add_updated(files, weight, &t);
	tess_traffic_add_times(&t, 1, &w->early->begun);
	for (int32_t i = 0; i < w->nclocks; i++) {
		idle_disk(&w->clock[i]);
		w->clock[i].update += tess_traffic_time(w->m, &t) * w->m->time[TESS_TERM_DISK];
	}
	add_time(w, TESS_TERM_OPTIMIZER, n * w->early->change);
	w->early->elements += n;
}

double tess_traffic_time(const struct tess_machine *m, const struct tess_traffic *t)
{
	double read = 0, written = 0;

	for (int32_t i = 0; i < TESS_TRAFFIC_KINDS; i++) {
		read += (double)t->read[i];
		written += (double)t->written[i];
	}
	return read + written > 0 ? tess_machine_move(m, read, written) : 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void add_step(struct walk *w, const struct tess_step *s)
{
	start_record(w, s);
	switch (s->kind) {
	case TESS_STEP_OP:
		add_op_step(w, &s->op);
		break;
	case TESS_STEP_COLL:
	case TESS_STEP_SUM:
		if (!is_to_stage(w, s))
			add_call(w, s);
		break;
	case TESS_STEP_TRANSFER:
		add_file_transfer(w, s);
		break;
	case TESS_STEP_WAIT:
		add_wait(w, s->of);
		break;
	case TESS_STEP_FINAL:
		if (w->early && s->final_weight)
			add_early_update(w, s->final_weight);
		else
			w->losses = w->clock[0].now;
		break;
	default: /* a style's own function: unknown, and as a rule small */
		break;
	}
}

/* Walks over steps [first, end). by_record: adds to the seconds of records, unless NULL. */
static tess_status walk_steps(struct walk *w, const struct tess_rank_program *l, int32_t first,
                              int32_t end, double *by_record)
{
	w->rank = l->rank;
	w->record = -1;
	for (int32_t i = first; i < end && !w->status; i++) {
		double before = w->clock[0].now;

		add_step(w, l->step[i]);
		if (by_record)
			by_record[l->step[i]->record] += w->clock[0].now - before;
	}
	free(w->started);
	return w->status;
}

/* Estimates steps [first, end) by a walk whose other fields are 0. */
static tess_status time_steps(struct walk *w, const struct tess_rank_program *l, int32_t first,
                              int32_t end, struct tess_step_time *out)
{
	struct tess_step_time with = { 0 };
	int32_t along = w->p->data_along;
	tess_status st;

	w->nclocks = w->m->once ? 2 : 1;
	w->clock[0].out = out;
	w->clock[1].out = &with;
	st = walk_steps(w, l, first, end, NULL);
	out->seconds += w->clock[0].now;
	if (st || !w->m->once)
		return st;
	out->once += w->clock[1].now - w->clock[0].now;
	if (along >= 0) {
		out->called[along] += with.called[along];
		out->sent[along] += with.sent[along];
	}
	return TESS_OK;
}

tess_status tess_steps_time(const struct tess_machine *m, const struct tess_program *p,
                            const struct tess_rank_program *l, int32_t first, int32_t end,
                            const struct tess_op_known *known, struct tess_step_time *out)
{
	struct walk w = { .m = m, .p = p, .known = known, .files = true };

	return time_steps(&w, l, first, end, out);
}

tess_status tess_steps_time_early(const struct tess_machine *m, const struct tess_program *p,
                                  const struct tess_rank_program *l,
                                  const struct tess_op_known *known, struct tess_early_time *early,
                                  struct tess_step_time *out)
{
	struct walk w = { .m = m, .p = p, .known = known, .files = true, .early = early };
	struct rank_clock *k = &w.clock[0];
	struct tess_traffic left = { 0 };
	tess_status st;

	early->begun = left;
	early->elements = 0;
	st = time_steps(&w, l, 0, l->nsteps, out);
	tess_traffic_add_update(early->files, &left);
	tess_traffic_subtract(&early->begun, &left);
	idle_disk(k);
	early->disk = k->disk - k->now + k->update +
	              tess_traffic_time(m, &left) * m->time[TESS_TERM_DISK];
	if (tess_program_may_update_late(p)) /* the next forward hides as much of it */
		early->disk = early->disk > w.losses ? early->disk - w.losses : 0;
	return st;
}

tess_status tess_steps_trace(const struct tess_machine *m, const struct tess_program *p,
                             const struct tess_rank_program *l, int32_t first, int32_t end,
                             const struct tess_op_known *known, struct tess_step_time *out,
                             struct tess_step_trace *trace)
{
	struct walk w = { .m = m, .p = p, .known = known, .trace = trace };

	return time_steps(&w, l, first, end, out);
}

tess_status tess_steps_time_records(const struct tess_machine *m, const struct tess_program *p,
                                    const struct tess_rank_program *l,
                                    const struct tess_op_known *known, double *seconds)
{
	struct tess_step_time sum = { 0 };
	struct walk w = {
		.m = m, .p = p, .known = known, .nclocks = 1, .clock = { { .out = &sum } }
	};

	return walk_steps(&w, l, 0, l->nsteps, seconds);
}

double tess_optimizer_time(const struct tess_machine *m, double n, int32_t moments, double width,
                           bool on_host)
{
	/* reads and writes weights and moments, and reads gradients */
	double bytes = n * (2 * width + 8 * moments + 4);
	const char *op = moments > 1 || !tess_machine_has_op(m, "sgd") ? "adamw" : "sgd";

	if (on_host)
		return m->disk_ranks * bytes / m->host_memory;
	return n > 0 ? m->latency + tess_machine_compute(m, op, "memory", n / 1024, bytes) : 0;
}

double tess_update_wait_time(double seconds, double disk, double buckets)
{
	/* the first bucket is read before its change, the last one written after its change */
	double busy = disk + seconds / buckets, computing = seconds + disk / buckets;

	return (busy > computing ? busy : computing) - seconds;
}
