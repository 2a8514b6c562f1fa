/* make.c - makes schedules: rows of actions, and the words for their kinds. */
#include "nn/schedule/schedule.h"

#include "core/base/status.h"

enum { SCHEDULE_RANKS_MAX = 1024, PARTS_MAX = 1 << 20 };

const char *tess_schedule_name_kind(int32_t kind)
{
	static const char *const words[] = {
		[TESS_PIPELINE_FORWARD] = "F",
		[TESS_PIPELINE_BACKWARD] = "B",
		[TESS_PIPELINE_BACKWARD_INPUTS] = "I",
		[TESS_PIPELINE_BACKWARD_WEIGHTS] = "W",
		[TESS_PIPELINE_SEND_FORWARD] = "SEND_F",
		[TESS_PIPELINE_RECEIVE_FORWARD] = "RECV_F",
		[TESS_PIPELINE_SEND_BACKWARD] = "SEND_B",
		[TESS_PIPELINE_RECEIVE_BACKWARD] = "RECV_B",
	};

	return kind >= 0 && kind < TESS_PIPELINE_KINDS ? words[kind] : "?";
}

bool tess_schedule_has_kind(const struct tess_pipeline *p, int32_t kind)
{
	for (int32_t r = 0; r < p->nranks; r++)
		for (int32_t i = 0; i < p->nactions[r]; i++)
			if (p->actions[r][i].kind == kind)
				return true;
	return false;
}

tess_status tess_schedule_check_size(const char *name, int32_t nranks, int32_t nstages,
                                     int32_t nmicro)
{
	if (nranks < 1 || nranks > SCHEDULE_RANKS_MAX || nstages < 1 || nmicro < 1 ||
	    (int64_t)nstages * nmicro > PARTS_MAX)
		return tess_fail(TESS_EINVAL,
		                 "%s: has %d ranks, %d stages and %d micro-batches; use 1 to %d "
		                 "ranks, and up to %d stages times micro-batches",
		                 name, (int)nranks, (int)nstages, (int)nmicro, SCHEDULE_RANKS_MAX,
		                 PARTS_MAX);
	return TESS_OK;
}

tess_status tess_schedule_start(struct tess_schedule_maker *m)
{
	m->row = TESS_NEW(m->arena, struct tess_schedule_row, m->nranks);
	m->rank_of = TESS_NEW(m->arena, int32_t, m->nstages + 1);
	return m->row && m->rank_of ? TESS_OK : TESS_ENOMEM;
}

void tess_schedule_add(struct tess_schedule_maker *m, int32_t rank,
                       struct tess_pipeline_action action)
{
	struct tess_schedule_row *row = &m->row[rank];
	struct tess_pipeline_action *list =
		m->failed ? NULL
			  : tess_arena_grow(m->arena, row->action, (size_t)row->n, sizeof action);

	m->failed = !list;
	if (m->failed)
		return;
	row->action = list;
	row->action[row->n++] = action;
}

tess_status tess_schedule_finish(const struct tess_schedule_maker *m, struct tess_pipeline *out)
{
	const struct tess_pipeline_action **actions =
		TESS_NEW(m->arena, const struct tess_pipeline_action *, m->nranks);
	int32_t *n = TESS_NEW(m->arena, int32_t, m->nranks);

	if (!actions || !n)
		return TESS_ENOMEM;
	for (int32_t r = 0; r < m->nranks; r++) {
		actions[r] = m->row[r].action;
		n[r] = m->row[r].n;
	}
	*out = (struct tess_pipeline){ .name = m->name,
		                       .nranks = m->nranks,
		                       .nstages = m->nstages,
		                       .nmicro = m->nmicro,
		                       .rank_of = m->rank_of,
		                       .nactions = n,
		                       .actions = actions };
	return TESS_OK;
}
