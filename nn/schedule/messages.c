/* messages.c - adds the sends and receives that the computations of a schedule need. */
#include "nn/schedule/schedule.h"

struct message_adder {
	struct tess_schedule_maker *m;
	struct tess_pipeline p; /* the computations */
	struct tess_schedule_row *from; /* the computations by rank */
	int32_t *taken; /* of the current rank, by sender: number of its computations passed */
	bool *received; /* by stage and micro-batch: its values, then its gradients */
};

static bool *find_received(const struct message_adder *c, bool forward, int32_t stage,
                           int32_t micro)
{
	int64_t half = forward ? 0 : (int64_t)c->p.nstages * c->p.nmicro;

	return &c->received[half + (int64_t)stage * c->p.nmicro + micro];
}

/* Receives, in the order of `from`, what it sends to `rank`, up to what a computation needs. */
static void add_receives(struct message_adder *c, int32_t rank, int32_t from, const bool *needed,
                         int32_t cell)
{
	const struct tess_schedule_row *row = &c->from[from];

	while (!*needed) {
		const struct tess_pipeline_action *a = &row->action[c->taken[from]++];
		bool forward = a->kind == TESS_PIPELINE_FORWARD;
		int32_t peer = tess_schedule_find_peer(&c->p, a);

		if (tess_schedule_find_other_rank(&c->p, a) != rank)
			continue;
		*find_received(c, forward, peer, a->micro) = true;
		tess_schedule_add(
			c->m, rank,
			(struct tess_pipeline_action){ forward ? TESS_PIPELINE_RECEIVE_FORWARD
		                                               : TESS_PIPELINE_RECEIVE_BACKWARD,
		                                       peer, a->micro, cell });
	}
}

/* Adds a computation, what it receives before, and what it sends after. */
static void add_with_messages(struct message_adder *c, int32_t rank,
                              const struct tess_pipeline_action *a, int32_t cell)
{
	bool forward = a->kind == TESS_PIPELINE_FORWARD;
	int32_t before = forward ? a->stage - 1 : a->stage + 1;
	struct tess_pipeline_action send = *a;

	if (a->kind != TESS_PIPELINE_BACKWARD_WEIGHTS && before >= 0 && before < c->p.nstages &&
	    c->p.rank_of[before] != rank)
		add_receives(c, rank, c->p.rank_of[before],
		             find_received(c, forward, a->stage, a->micro), cell);
	send.cell = cell;
	tess_schedule_add(c->m, rank, send);
	send.kind = forward ? TESS_PIPELINE_SEND_FORWARD : TESS_PIPELINE_SEND_BACKWARD;
	if (tess_schedule_find_other_rank(&c->p, a) >= 0)
		tess_schedule_add(c->m, rank, send);
}

static tess_status alloc_adder(struct message_adder *c)
{
	struct tess_schedule_maker *m = c->m;

	c->from = m->row;
	m->row = TESS_NEW(m->arena, struct tess_schedule_row, m->nranks);
	c->taken = TESS_NEW(m->arena, int32_t, m->nranks);
	c->received = TESS_NEW(m->arena, bool, (int64_t)2 * m->nstages * m->nmicro);
	return m->row && c->taken && c->received ? TESS_OK : TESS_ENOMEM;
}

tess_status tess_schedule_add_messages(struct tess_schedule_maker *m)
{
	struct message_adder c = { .m = m };
	tess_status st = tess_schedule_finish(m, &c.p);

	if (!st)
		st = alloc_adder(&c);
	for (int32_t r = 0; r < m->nranks && !st && !m->failed; r++) {
		for (int32_t q = 0; q < m->nranks; q++)
			c.taken[q] = 0;
		for (int32_t i = 0; i < c.from[r].n; i++) {
			const struct tess_pipeline_action *a = &c.from[r].action[i];

			add_with_messages(&c, r, a, a->cell ? a->cell : i + 1);
		}
	}
	return m->failed ? TESS_ENOMEM : st;
}
