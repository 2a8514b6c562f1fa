/*
 * runner_choose.c - steps whose ids the device chooses and feeds to the next step. Rank 0 has the
 * logits; the other ranks' devices get the ids from it.
 */
#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/call/queue.h"
#include "core/registry/plugin_call.h"
#include "nn/generate/runner_state.h"
#include "nn/op/kinds.h"
#include "nn/program/agree.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
	CHOSEN_BYTES = TESS_CHOSEN_MAX * sizeof(struct tess_chosen),
	DRAW_BYTES = TESS_CHOSEN_MAX * sizeof(struct tess_draw)
};
_Static_assert(sizeof(struct tess_draw) == TESS_SAMPLE_NUMS * sizeof(double), "an operand");
_Static_assert((int)TESS_CHOSEN_WORDS == (int)TESS_SAMPLE_OUTS, "an out");

static struct tess_coll make_broadcast(const struct tess_runner *s, int32_t *ids, int64_t rows)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = TESS_BROADCAST,
		                   .dtype = TESS_I32,
		                   .op = TESS_SUM,
		                   .mem = s->device.table->mem,
		                   .src = ids,
		                   .dst = ids,
		                   .count = (uint64_t)(rows * TESS_CHOSEN_WORDS),
		                   .stream = s->device.stream,
		                   .where = "generate:ids" };
}

static struct tess_view make_table(void *data, int32_t dtype, int64_t rows, int64_t columns)
{
	return (struct tess_view){ .data = data,
		                   .dtype = dtype,
		                   .ndim = 2,
		                   .shape = { rows, columns },
		                   .stride = { columns, 1 } };
}

/* Returns the number of words of a set, with 32 ids each. */
static int64_t count_set_words(const struct tess_runner *s)
{
	return (tess_runner_vocabulary(s) + 31) / 32;
}

/* Makes the op SAMPLE; view[4]: its operands and its outs. */
static struct tess_op make_sample(const struct tess_runner *s, struct tess_view *view, void *logits,
                                  int32_t *ids, int64_t rows)
{
	view[0] = make_table(logits, TESS_F32, rows, tess_runner_vocabulary(s));
	view[1] = make_table(s->chooser.draws, TESS_F64, rows, TESS_SAMPLE_NUMS);
	view[2] = make_table(ids, TESS_I32, rows, TESS_CHOSEN_WORDS);
	view[3] = make_table(s->chooser.seen, TESS_I32, TESS_CHOSEN_MAX, count_set_words(s));
	return (struct tess_op){ .size = sizeof(struct tess_op),
		                 .kind = TESS_OP_SAMPLE,
		                 .nin = 2,
		                 .nout = 2,
		                 .in = view,
		                 .out = view + 2,
		                 .stream = s->device.stream,
		                 .where = "generate:ids" };
}

/* Returns true if the device can choose ids; the same on all ranks. */
static bool is_usable(const struct tess_runner *s)
{
	const struct tess_device *t = s->device.table;
	struct tess_coll c = make_broadcast(s, NULL, 1);
	struct tess_view view[4];
	struct tess_op op = make_sample(s, view, NULL, NULL, 1);

	if (s->ahead > 1 || !s->device.stream || !t->mark || !t->reached || s->check ||
	    tess_device_check_op(t, &op))
		return false;
	return tess_group_size(s->parts.group) == 1 || tess_call_is_direct(s->parts.group, &c);
}

tess_status tess_chooser_open(struct tess_runner *s)
{
	struct tess_chooser *c = &s->chooser;
	uint64_t set_bytes = TESS_CHOSEN_MAX * sizeof *c->seen * (uint64_t)count_set_words(s);
	void *more = NULL;
	tess_status st = TESS_OK;

	if (!is_usable(s))
		return TESS_OK;
	c->host = calloc(1, CHOSEN_BYTES);
	c->host_draws = calloc(2, DRAW_BYTES);
	c->host_seen = calloc(1, set_bytes);
	if (!c->host || !c->host_draws || !c->host_seen)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		st = TESS_PLUGIN_CALL(s->device.table, "ids", stream_open, s->device.self,
		                      &c->reader);
	for (int32_t i = 0; i < 2 && !st; i++) {
		st = tess_device_alloc(&s->device, "ids", CHOSEN_BYTES, &more);
		c->ids[i] = st ? NULL : more;
	}
	if (!st)
		st = tess_device_alloc(&s->device, "ids", DRAW_BYTES, &more);
	if (!st)
		c->draws = more;
	if (!st)
		st = tess_device_alloc(&s->device, "ids", set_bytes, &more);
	if (!st)
		c->seen = more;
	c->usable = !st;
	return tess_group_agree_status(s->parts.group, st, "ids");
}

void tess_chooser_close(struct tess_runner *s)
{
	struct tess_chooser *c = &s->chooser;

	if (c->reader)
		TESS_PLUGIN_DO(s->device.table, NULL, stream_close, s->device.self, c->reader);
	for (int32_t i = 0; i < 2; i++)
		tess_device_free(&s->device, c->ids[i]);
	tess_device_free(&s->device, c->draws);
	tess_device_free(&s->device, c->seen);
	free(c->host);
	free(c->host_draws);
	free(c->host_seen);
	*c = (struct tess_chooser){ 0 };
}

bool tess_runner_can_choose(const struct tess_runner *s)
{
	return s->chooser.usable && !s->groups.profile && !s->pattern;
}

tess_status tess_chooser_feed(struct tess_runner *s)
{
	const struct tess_chooser *c = &s->chooser;
	int64_t n = c->nrows[c->turn ^ 1];
	struct tess_view from = { .data = c->ids[c->turn ^ 1],
		                  .dtype = TESS_I32,
		                  .ndim = 2,
		                  .shape = { n, 1 },
		                  .stride = { TESS_CHOSEN_WORDS, 1 } },
			 to = from;
	struct tess_op op = { .size = sizeof op,
		              .kind = TESS_OP_COPY,
		              .nin = 1,
		              .nout = 1,
		              .in = &from,
		              .out = &to,
		              .stream = s->device.stream,
		              .where = "generate:ids" };

	to.data = s->step->at.inputs;
	to.stride[0] = 1;
	return TESS_PLUGIN_CALL_FOR(s->device.table, op.where, op_get_kind_name(op.kind), run,
	                            s->device.self, &op);
}

tess_status tess_runner_send_seen(struct tess_runner *s, int32_t set, const int32_t *ids, int64_t n)
{
	int64_t words = count_set_words(s), first = set * words;
	uint32_t *bits = s->chooser.host_seen + first;

	if (tess_group_rank(s->parts.group) != 0) /* it draws no ids */
		return TESS_OK;
	memset(bits, 0, sizeof *bits * (size_t)words);
	for (int64_t i = 0; i < n; i++)
		bits[ids[i] / 32] |= 1u << ids[i] % 32;
	return tess_device_copy(&s->device, "generate:ids", s->chooser.seen + first, bits,
	                        sizeof *bits * (uint64_t)words);
}

/* Sends draws, unless the device has equal ones of the previous step, as for greedy sequences. */
static tess_status send_draws(struct tess_runner *s, const struct tess_draw *draws, int64_t rows)
{
	struct tess_chooser *c = &s->chooser;
	struct tess_draw *kept = c->host_draws + c->turn * TESS_CHOSEN_MAX;
	const struct tess_draw *last = c->host_draws + (c->turn ^ 1) * TESS_CHOSEN_MAX;
	uint64_t bytes = (uint64_t)rows * sizeof *draws;
	bool same = rows <= c->ndraws && !memcmp(last, draws, bytes);

	memcpy(kept, draws, bytes);
	c->ndraws = rows;
	return same ? TESS_OK : tess_device_copy(&s->device, "generate:ids", c->draws, kept, bytes);
}

/* Queues the drawing of ids from these logits. */
static tess_status sample_ids(struct tess_runner *s, void *logits, const struct tess_draw *draws,
                              int64_t rows)
{
	struct tess_chooser *c = &s->chooser;
	struct tess_view view[4];
	struct tess_op op = make_sample(s, view, logits, c->ids[c->turn], rows);
	tess_status st = send_draws(s, draws, rows);

	return st ? st
	          : TESS_PLUGIN_CALL_FOR(s->device.table, op.where, op_get_kind_name(op.kind), run,
	                                 s->device.self, &op);
}

/* Queues the choice of ids from the logits of a queued step. */
static tess_status choose_ids(struct tess_runner *s, const struct tess_shaped_program *k,
                              const struct tess_draw *draws)
{
	struct tess_chooser *c = &s->chooser;
	int64_t rows = k->shape.nselected;
	struct tess_coll call = make_broadcast(s, c->ids[c->turn], rows);
	tess_status st = TESS_OK;

	c->nrows[c->turn] = rows;
	if (k->lowered->logits)
		st = sample_ids(s, k->lowered->logits, draws, rows);
	if (!st && tess_group_size(s->parts.group) > 1)
		st = tess_group_run(s->parts.group, &call);
	return st ? st
	          : TESS_PLUGIN_CALL_QUICK(s->device.table, call.where, mark, s->device.self,
	                                   s->device.stream, c->turn);
}

tess_status tess_runner_choose(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                               const struct tess_draw *draws, bool chosen)
{
	struct tess_shaped_program *k;
	tess_status st = tess_runner_queue_step(s, rows, n, 0, chosen, &k);

	if (!st)
		st = choose_ids(s, k, draws);
	if (st) {
		tess_runner_drop_chosen(s);
		return st;
	}
	tess_runner_advance(s, rows, n);
	s->chooser.turn ^= 1;
	s->chooser.nqueued++;
	return TESS_OK;
}

/*
 * Waits for a point of the stream, or a failure: of a call that was left to the stream, or of the
 * world.
 */
static tess_status await_point(struct tess_runner *s, int32_t point)
{
	tess_status st;

	while ((st = TESS_PLUGIN_VALUE_QUICK(s->device.table, NULL, reached, s->device.self,
	                                     point)) == TESS_PENDING) {
		st = tess_world_test_device(s->device.world, s->device.self);
		if (!st)
			st = tess_world_check(s->device.world);
		if (st)
			return st;
		sched_yield();
	}
	return tess_plugin_check_returned(s->device.table, s->device.table->name, "reached",
	                                  "generate:ids", st);
}

tess_status tess_runner_read_chosen(struct tess_runner *s, const struct tess_chosen **ids)
{
	struct tess_chooser *c = &s->chooser;
	const struct tess_device *t = s->device.table;
	int32_t turn = c->turn ^ (c->nqueued & 1);
	tess_status st = await_point(s, turn);

	*ids = NULL;
	if (!st && tess_group_rank(s->parts.group) == 0) {
		st = TESS_PLUGIN_CALL_QUICK(t, "ids", copy, s->device.self, c->host, c->ids[turn],
		                            (uint64_t)c->nrows[turn] * sizeof **ids, c->reader);
		if (!st)
			st = TESS_PLUGIN_CALL_QUICK(t, "ids", sync, s->device.self, c->reader);
		*ids = (const struct tess_chosen *)c->host;
	}
	if (st)
		tess_runner_drop_chosen(s);
	else
		c->nqueued--;
	return st;
}

void tess_runner_drop_chosen(struct tess_runner *s)
{
	tess_device_drain(&s->device);
	s->chooser.nqueued = 0;
	s->chooser.ndraws = 0;
}
