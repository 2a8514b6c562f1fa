/*
 * slots.c - how many micro-batches need a slot of memory on each stage at a time.
 *
 * A slot is taken at the first action of a micro-batch on a stage, and free after the last one. What
 * it has sent is still in it: the next micro-batch waits until the other rank has received that. If
 * ranks then wait for each other, the stage gets another slot.
 */
#include "nn/schedule/schedule.h"

#include <string.h>

struct slot_stage {
	int32_t n; /* slots */
	int32_t *free; /* micro-batches that had the free slots, or -1, in the order of release */
	int32_t nfree;
};

struct slot_run { /* a run of a schedule, in which sends never wait and receives do */
	const struct tess_pipeline *p;
	struct slot_stage *stage;
	int32_t *done; /* by rank: actions */
	int32_t *left; /* by stage and micro-batch: actions to come; < 0: none has run */
	bool *passed; /* by kind of message, stage and micro-batch: it is sent, or received */
};

static int64_t find_part(const struct slot_run *r, int32_t stage, int32_t micro)
{
	return (int64_t)stage * r->p->nmicro + micro;
}

/* Returns whether a message of a kind, at the stage that sends or receives it, has passed. */
static bool *find_passed(const struct slot_run *r, int32_t kind, int32_t stage, int32_t micro)
{
	int64_t parts = (int64_t)r->p->nstages * r->p->nmicro;

	return &r->passed[(kind - TESS_PIPELINE_SEND_FORWARD) * parts + find_part(r, stage, micro)];
}

/* Returns whether the other rank has received the gradients that a micro-batch sends. */
static bool has_left(const struct slot_run *r, int32_t stage, int32_t micro)
{
	const struct tess_pipeline *p = r->p;

	return micro < 0 || !stage || p->rank_of[stage - 1] == p->rank_of[stage] ||
	       *find_passed(r, TESS_PIPELINE_RECEIVE_BACKWARD, stage - 1, micro);
}

static bool is_sent(const struct slot_run *r, const struct tess_pipeline_action *a)
{
	bool forward = a->kind == TESS_PIPELINE_RECEIVE_FORWARD;

	return *find_passed(r, forward ? TESS_PIPELINE_SEND_FORWARD : TESS_PIPELINE_SEND_BACKWARD,
	                    forward ? a->stage - 1 : a->stage + 1, a->micro);
}

/* Runs the next action of a rank. Returns false if it waits, or there is none. */
static bool run_next_action(struct slot_run *r, int32_t rank)
{
	const struct tess_pipeline_action *a = &r->p->actions[rank][r->done[rank]];
	struct slot_stage *s;
	int32_t *left;

	if (r->done[rank] == r->p->nactions[rank] ||
	    (tess_schedule_is_receive(a->kind) && !is_sent(r, a)))
		return false;
	s = &r->stage[a->stage];
	left = &r->left[find_part(r, a->stage, a->micro)];
	if (*left < 0) {
		if (!s->nfree || !has_left(r, a->stage, s->free[0]))
			return false;
		memmove(s->free, s->free + 1, sizeof *s->free * (size_t)--s->nfree);
		*left = -*left;
	}
	if (tess_schedule_is_message(a->kind))
		*find_passed(r, a->kind, a->stage, a->micro) = true;
	if (!--*left)
		s->free[s->nfree++] = a->micro;
	r->done[rank]++;
	return true;
}

static void start_run(struct slot_run *r)
{
	const struct tess_pipeline *p = r->p;
	size_t parts = (size_t)p->nstages * (size_t)p->nmicro;

	memset(r->left, 0, sizeof *r->left * parts);
	memset(r->passed, 0, sizeof *r->passed * 4 * parts);
	for (int32_t k = 0; k < p->nranks; k++) {
		r->done[k] = 0;
		for (int32_t i = 0; i < p->nactions[k]; i++)
			r->left[find_part(r, p->actions[k][i].stage, p->actions[k][i].micro)]--;
	}
	for (int32_t s = 0; s < p->nstages; s++) {
		r->stage[s].nfree = r->stage[s].n;
		for (int32_t i = 0; i < r->stage[s].n; i++)
			r->stage[s].free[i] = -1;
	}
}

/* Runs the schedule. Returns a stage that waits for a slot, or -1: all actions have run. */
static int32_t find_waiting_stage(struct slot_run *r)
{
	bool moved = true;

	start_run(r);
	while (moved) {
		moved = false;
		for (int32_t k = 0; k < r->p->nranks; k++)
			while (run_next_action(r, k))
				moved = true;
	}
	for (int32_t k = 0; k < r->p->nranks; k++) {
		const struct tess_pipeline_action *a = &r->p->actions[k][r->done[k]];

		if (r->done[k] < r->p->nactions[k] &&
		    r->left[find_part(r, a->stage, a->micro)] < 0 &&
		    (!tess_schedule_is_receive(a->kind) || is_sent(r, a)))
			return a->stage;
	}
	return -1;
}

tess_status tess_schedule_count_slots(const struct tess_pipeline *p, struct tess_arena *arena,
                                      int32_t *slots)
{
	int64_t parts = (int64_t)p->nstages * p->nmicro;
	struct slot_run r = { .p = p,
		              .stage = TESS_NEW(arena, struct slot_stage, p->nstages),
		              .done = TESS_NEW(arena, int32_t, p->nranks),
		              .left = TESS_NEW(arena, int32_t, parts),
		              .passed = TESS_NEW(arena, bool, 4 * parts) };
	int32_t stage;

	if (!r.stage || !r.done || !r.left || !r.passed)
		return TESS_ENOMEM;
	for (int32_t s = 0; s < p->nstages; s++) {
		r.stage[s].free = TESS_NEW(arena, int32_t, p->nmicro);
		r.stage[s].n = slots[s];
		if (!r.stage[s].free)
			return TESS_ENOMEM;
	}
	while ((stage = find_waiting_stage(&r)) >= 0 && r.stage[stage].n < p->nmicro)
		r.stage[stage].n++;
	for (int32_t s = 0; s < p->nstages; s++)
		slots[s] = r.stage[s].n;
	return TESS_OK;
}
