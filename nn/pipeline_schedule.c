#include "nn/pipeline_schedule.h"

#include <string.h>

/* ---- segments -------------------------------------------------------------------------------- */

struct segment {
	int32_t record; /* its first */
	int64_t cost;
};

struct message {
	int32_t from, from_segment, to, to_segment; /* stages, and their segments */
};

struct pipeline_parts { /* of a program */
	int32_t nstages, nmessages;
	struct segment **segment; /* by stage */
	int32_t *nsegments;
	struct message *message; /* in the order of records */
	bool tied; /* a weight gets gradients in two segments */
};

/* About the time that a record takes: of products, in thousands of elements of weights. */
static int64_t estimate_cost(const struct tess_record *rec)
{
	int64_t cost = 0;

	for (int32_t i = 0; i < rec->nweight && rec->kind != TESS_REC_GRADIENT; i++) {
		int64_t n = 1;

		for (int32_t a = 0; a < rec->weight[i]->ndim; a++)
			n *= rec->weight[i]->dim[a]->size;
		/* with dx comes dw, which names no weight */
		cost += (rec->kind == TESS_OP_LINEAR_DX ? 2 : 1) * n / 1000;
	}
	return cost + 1;
}

/* A stage gets a record; what it receives after it has computed something begins a segment. */
static void add_record(struct pipeline_parts *c, int32_t stage, int32_t i, bool receives,
                       int64_t cost)
{
	int32_t *n = &c->nsegments[stage];
	struct segment *last = *n ? &c->segment[stage][*n - 1] : NULL;

	if (!last || (receives && last->cost)) {
		last = &c->segment[stage][(*n)++];
		*last = (struct segment){ .record = i };
	}
	last->cost += cost;
}

static void add_message(struct pipeline_parts *c, const struct tess_record *rec, int32_t i)
{
	int32_t from = rec->stage, to = (int32_t)rec->num[TESS_REC_SEND_TO];

	add_record(c, from, i, false, 0);
	add_record(c, to, i, true, 0);
	c->message[c->nmessages++] =
		(struct message){ from, c->nsegments[from] - 1, to, c->nsegments[to] - 1 };
}

/* Whether each weight gets its gradients in one segment. */
static bool find_tied(const struct tess_program *p, const struct pipeline_parts *c, int32_t *seen)
{
	int32_t *at = seen + p->nweights; /* by stage: the segment of the current record */

	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		int32_t s = rec->stage, *first;

		if (s < 0 || rec->kind != TESS_REC_GRADIENT)
			continue;
		while (at[s] + 1 < c->nsegments[s] && c->segment[s][at[s] + 1].record <= i)
			at[s]++;
		first = &seen[rec->weight[0]->index];
		if (*first && *first != at[s] + 1)
			return true;
		*first = at[s] + 1;
	}
	return false;
}

static tess_status find_parts(const struct tess_program *p, struct tess_arena *arena,
                              struct pipeline_parts *c)
{
	int32_t n = tess_program_get_cut(p, 0, p->pipeline_along).nranks;
	int32_t *seen = TESS_NEW(arena, int32_t, p->nweights + n);

	*c = (struct pipeline_parts){ .nstages = n };
	c->segment = TESS_NEW(arena, struct segment *, n);
	c->nsegments = TESS_NEW(arena, int32_t, n);
	c->message = TESS_NEW(arena, struct message, p->nrecords);
	for (int32_t s = 0; s < n && c->segment; s++) {
		c->segment[s] = TESS_NEW(arena, struct segment, p->nrecords);
		if (!c->segment[s])
			return TESS_ENOMEM;
	}
	if (!seen || !c->segment || !c->nsegments || !c->message)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];

		if (rec->kind == TESS_REC_SEND)
			add_message(c, rec, i);
		for (int32_t s = 0; s < n && rec->kind != TESS_REC_SEND; s++)
			if (rec->stage == s || rec->stage == TESS_STAGES_ALL)
				add_record(c, s, i, false, estimate_cost(rec));
	}
	c->tied = find_tied(p, c, seen);
	return TESS_OK;
}

/* ---- the simulated pipeline ------------------------------------------------------------------ */

struct sent { /* a message under way */
	int32_t micro, message;
	int64_t at; /* when it is there */
};

struct simulation {
	const struct pipeline_parts *parts;
	int32_t nmicro, stage; /* stage: whose list is wanted */
	int64_t *clock; /* by stage */
	int32_t *next; /* by stage and micro-batch: its next segment */
	int32_t *begun, *ended; /* by stage: micro-batches */
	struct sent **queue; /* by pair of stages */
	int32_t *nsent, *ntaken;
	struct tess_pipeline_schedule *out;
};

static int32_t get_next(const struct simulation *m, int32_t stage, int32_t micro)
{
	return m->next[stage * m->nmicro + micro];
}

/* When the messages that a segment receives are there, the next ones of their senders; -1: not. */
static int64_t find_arrival(const struct simulation *m, int32_t stage, int32_t micro,
                            int32_t segment, bool take)
{
	const struct pipeline_parts *c = m->parts;
	int64_t arrival = 0;

	for (int32_t from = 0; from < c->nstages; from++) {
		int32_t pair = from * c->nstages + stage, at = m->ntaken[pair];

		for (int32_t i = 0; i < c->nmessages; i++) {
			const struct message *w = &c->message[i];
			const struct sent *q = &m->queue[pair][at];

			if (w->from != from || w->to != stage || w->to_segment != segment)
				continue;
			if (at == m->nsent[pair] || q->micro != micro || q->message != i)
				return -1;
			arrival = q->at > arrival ? q->at : arrival;
			at++;
		}
		if (take)
			m->ntaken[pair] = at;
	}
	return arrival;
}

/* Micro-batches that a stage may have begun and not ended. */
static int32_t count_stage_slots(const struct pipeline_parts *c, int32_t stage)
{
	return c->nstages - stage < TESS_MICRO_BATCHES ? c->nstages - stage : TESS_MICRO_BATCHES;
}

/* When a stage can begin the next segment of a micro-batch; -1: not yet. */
static int64_t find_start(const struct simulation *m, int32_t stage, int32_t micro)
{
	int32_t segment = get_next(m, stage, micro);
	int64_t arrival;

	if (segment == m->parts->nsegments[stage] ||
	    (micro && get_next(m, stage, micro - 1) <= segment) ||
	    (!segment && m->begun[stage] - m->ended[stage] >= count_stage_slots(m->parts, stage)))
		return -1;
	arrival = find_arrival(m, stage, micro, segment, false);
	return arrival > m->clock[stage] || arrival < 0 ? arrival : m->clock[stage];
}

static void simulate_segment(struct simulation *m, int32_t stage, int32_t micro, int64_t start)
{
	const struct pipeline_parts *c = m->parts;
	int32_t segment = m->next[stage * m->nmicro + micro]++;

	find_arrival(m, stage, micro, segment, true);
	m->clock[stage] = start + c->segment[stage][segment].cost;
	m->begun[stage] += !segment;
	m->ended[stage] += segment + 1 == c->nsegments[stage];
	for (int32_t i = 0; i < c->nmessages; i++) {
		int32_t pair = stage * c->nstages + c->message[i].to;

		if (c->message[i].from == stage && c->message[i].from_segment == segment)
			m->queue[pair][m->nsent[pair]++] =
				(struct sent){ micro, i, m->clock[stage] };
	}
	if (stage == m->stage)
		m->out->item[m->out->n++] = (struct tess_pipeline_item){ micro, segment };
}

/* Runs the segment that can begin first; of several the later one. False: there is none. */
static bool run_next(struct simulation *m)
{
	int64_t best = -1;
	int32_t stage = 0, micro = 0;

	for (int32_t s = 0; s < m->parts->nstages; s++)
		for (int32_t i = 0; i < m->nmicro; i++) {
			int64_t start = find_start(m, s, i);

			if (start < 0 || (best >= 0 && start > best) ||
			    (start == best &&
			     (s != stage || get_next(m, s, i) <= get_next(m, stage, micro))))
				continue;
			best = start;
			stage = s;
			micro = i;
		}
	if (best >= 0)
		simulate_segment(m, stage, micro, best);
	return best >= 0;
}

static tess_status alloc_simulation(struct simulation *m, struct tess_arena *arena)
{
	int32_t n = m->parts->nstages;
	int64_t most = (int64_t)m->nmicro * m->parts->nmessages + 1;

	m->clock = TESS_NEW(arena, int64_t, n);
	m->next = TESS_NEW(arena, int32_t, n * m->nmicro);
	m->begun = TESS_NEW(arena, int32_t, 2 * n);
	m->queue = TESS_NEW(arena, struct sent *, n * n);
	m->nsent = TESS_NEW(arena, int32_t, 2 * n * n);
	if (!m->clock || !m->next || !m->begun || !m->queue || !m->nsent)
		return TESS_ENOMEM;
	m->ended = m->begun + n;
	m->ntaken = m->nsent + n * n;
	for (int32_t i = 0; i < n * n; i++) {
		m->queue[i] = TESS_NEW(arena, struct sent, most);
		if (!m->queue[i])
			return TESS_ENOMEM;
	}
	return TESS_OK;
}

/* One micro-batch after another, each with all of its segments. */
static void list_one_by_one(struct tess_pipeline_schedule *s, int32_t nmicro)
{
	s->n = 0;
	s->nslots = 1;
	for (int32_t i = 0; i < nmicro; i++)
		for (int32_t k = 0; k < s->nsegments; k++)
			s->item[s->n++] = (struct tess_pipeline_item){ i, k };
}

bool tess_pipeline_schedule_overlaps(const struct tess_program *p)
{
	struct tess_arena arena = { 0 };
	struct pipeline_parts c;
	bool overlaps = p->pipeline_along >= 0 && tess_program_is_on_host(p) && !p->check &&
	                !find_parts(p, &arena, &c) && !c.tied;

	tess_arena_free(&arena);
	return overlaps;
}

tess_status tess_pipeline_schedule_make(const struct tess_program *p, int32_t stage, int32_t n,
                                        struct tess_arena *arena,
                                        struct tess_pipeline_schedule *out)
{
	struct pipeline_parts c;
	struct simulation m = { .parts = &c, .nmicro = n, .stage = stage, .out = out };
	int32_t left;
	tess_status st = find_parts(p, arena, &c);

	*out = (struct tess_pipeline_schedule){ 0 };
	if (st)
		return st;
	out->nsegments = c.nsegments[stage];
	out->nslots = count_stage_slots(&c, stage) < n ? count_stage_slots(&c, stage) : n;
	out->item = TESS_NEW(arena, struct tess_pipeline_item, n * out->nsegments);
	st = out->item ? alloc_simulation(&m, arena) : TESS_ENOMEM;
	if (st)
		return st;
	left = c.tied ? 1 : 0;
	while (!left && run_next(&m))
		;
	for (int32_t s = 0; s < c.nstages; s++)
		left += n - m.ended[s];
	if (left)
		list_one_by_one(out, n);
	return TESS_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

void tess_pipeline_schedule_find_steps(const struct tess_program *p,
                                       const struct tess_rank_program *l, int32_t segment,
                                       int32_t *first, int32_t *end)
{
	int32_t stage = tess_program_get_stage(p, l->rank), k = 0, i = 0;
	bool computed = false;

	*first = 0;
	for (int32_t r = 0; r < p->nrecords && k <= segment; r++) {
		const struct tess_record *rec = p->record[r];
		bool sends = rec->kind == TESS_REC_SEND;
		bool receives = sends && (int32_t)rec->num[TESS_REC_SEND_TO] == stage;

		if (receives && computed) {
			while (i < l->nbody && l->step[i]->record < r)
				i++;
			if (++k == segment)
				*first = i;
			computed = false;
		}
		computed |= !sends && tess_program_has_stage(p, l->rank, rec->stage);
	}
	*end = k > segment ? i : l->nbody;
	if (k < segment) /* behind the last one */
		*first = l->nbody, *end = l->nsteps;
}
