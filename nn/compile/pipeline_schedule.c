#include "nn/compile/pipeline_schedule.h"

/* ---- segments -------------------------------------------------------------------------------- */

struct segment {
	int32_t record; /* its first record */
	int64_t cost;
	int32_t in, out; /* the first message to receive, and to send; -1: none */
	int32_t last_in, last_out;
};

struct stage_message {
	int32_t from, to; /* stages */
	int32_t next_in, next_out; /* the segment's next message; -1: none */
};

struct pipeline_parts { /* the segments and messages of a program */
	int32_t nstages, nmessages;
	struct segment **segment; /* by stage */
	int32_t *nsegments;
	struct stage_message *message; /* in the order of records */
};

/* Estimates the time of a record: products count in thousands of elements of weights. */
static int64_t estimate_cost(const struct tess_record *rec)
{
	int64_t cost = 0;

	for (int32_t i = 0; i < rec->nweight && rec->kind != TESS_REC_GRADIENT; i++)
		/* with dx comes dw, which names no weight */
		cost += (rec->kind == TESS_OP_LINEAR_DX ? 2 : 1) *
		        tess_weight_count_elements(rec->weight[i]) / 1000;
	return cost + 1;
}

static int32_t get_receiver(const struct tess_record *send)
{
	return (int32_t)send->num[TESS_REC_SEND_TO];
}

/* Adds a record to its segment; a receive after a computation begins a new one. */
static struct segment *add_record(struct pipeline_parts *c, int32_t stage, int32_t i, bool receives,
                                  int64_t cost)
{
	int32_t *n = &c->nsegments[stage];
	struct segment *last = *n ? &c->segment[stage][*n - 1] : NULL;

	if (!last || (receives && last->cost)) {
		last = &c->segment[stage][(*n)++];
		*last = (struct segment){ .record = i, .in = -1, .out = -1 };
	}
	last->cost += cost;
	return last;
}

static void add_message(struct pipeline_parts *c, const struct tess_record *rec, int32_t i)
{
	struct segment *from = add_record(c, rec->stage, i, false, 0);
	struct segment *to = add_record(c, get_receiver(rec), i, true, 0);
	int32_t m = c->nmessages++;

	c->message[m] = (struct stage_message){ rec->stage, get_receiver(rec), -1, -1 };
	*(from->out < 0 ? &from->out : &c->message[from->last_out].next_out) = m;
	*(to->in < 0 ? &to->in : &c->message[to->last_in].next_in) = m;
	from->last_out = to->last_in = m;
}

/* Allocates the segments of each stage: one, and one per received message. */
static tess_status alloc_parts(const struct tess_program *p, struct tess_arena *arena,
                               struct pipeline_parts *c)
{
	int32_t *received = TESS_NEW(arena, int32_t, c->nstages), n = 0;

	for (int32_t i = 0; i < p->nrecords && received; i++)
		if (p->record[i]->kind == TESS_REC_SEND) {
			received[get_receiver(p->record[i])]++;
			n++;
		}
	c->segment = TESS_NEW(arena, struct segment *, c->nstages);
	c->nsegments = TESS_NEW(arena, int32_t, c->nstages);
	c->message = TESS_NEW(arena, struct stage_message, n + 1);
	if (!received || !c->segment || !c->nsegments || !c->message)
		return TESS_ENOMEM;
	for (int32_t s = 0; s < c->nstages; s++) {
		c->segment[s] = TESS_NEW(arena, struct segment, received[s] + 1);
		if (!c->segment[s])
			return TESS_ENOMEM;
	}
	return TESS_OK;
}

static tess_status find_parts(const struct tess_program *p, struct tess_arena *arena,
                              struct pipeline_parts *c)
{
	tess_status st;

	*c = (struct pipeline_parts){ .nstages = tess_program_count_stages(p) };
	st = alloc_parts(p, arena, c);
	for (int32_t i = 0; i < p->nrecords && !st; i++) {
		const struct tess_record *rec = p->record[i];
		bool all = rec->stage == TESS_STAGES_ALL;

		if (rec->kind == TESS_REC_SEND) {
			add_message(c, rec, i);
			continue;
		}
		for (int32_t s = all ? 0 : rec->stage; s < (all ? c->nstages : rec->stage + 1); s++)
			add_record(c, s, i, false, estimate_cost(rec));
	}
	return st;
}

/* ---- the simulated pipeline ------------------------------------------------------------------ */

struct sent { /* a message under way */
	int32_t micro, message;
	int64_t at; /* time of arrival */
};

struct simulation {
	const struct pipeline_parts *parts;
	int32_t nmicro, stage; /* stage: the one to list */
	int64_t *clock; /* by stage */
	int32_t *next; /* by stage and micro-batch: its next segment */
	int32_t *begun, *ended; /* by stage: number of micro-batches */
	struct sent **queue; /* by pair of stages */
	int32_t *nsent, *ntaken;
	struct tess_pipeline_schedule *out;
};

static int32_t get_next(const struct simulation *m, int32_t stage, int32_t micro)
{
	return m->next[stage * m->nmicro + micro];
}

static int32_t get_stage_pair(const struct simulation *m, const struct stage_message *w)
{
	return w->from * m->parts->nstages + w->to;
}

/* Returns the time at which a segment's messages have arrived; -1: not yet sent. */
static int64_t find_arrival(const struct simulation *m, int32_t stage, int32_t micro,
                            int32_t segment)
{
	const struct stage_message *message = m->parts->message;
	int32_t first = m->parts->segment[stage][segment].in;
	int64_t arrival = 0;

	for (int32_t i = first; i >= 0; i = message[i].next_in) {
		int32_t pair = get_stage_pair(m, &message[i]), at = m->ntaken[pair];
		const struct sent *q;

		for (int32_t k = first; k != i; k = message[k].next_in)
			at += message[k].from == message[i].from;
		q = &m->queue[pair][at];
		if (at >= m->nsent[pair] || q->micro != micro || q->message != i)
			return -1;
		arrival = q->at > arrival ? q->at : arrival;
	}
	return arrival;
}

/* Counts the micro-batches that a stage may have in progress. */
static int32_t count_stage_slots(int32_t nstages, int32_t stage)
{
	return nstages - stage < TESS_MICRO_BATCHES ? nstages - stage : TESS_MICRO_BATCHES;
}

/* Returns the time at which a stage can begin the next segment of a micro-batch; -1: not yet. */
static int64_t find_start(const struct simulation *m, int32_t stage, int32_t micro)
{
	int32_t segment = get_next(m, stage, micro);
	int64_t arrival;

	if (segment == m->parts->nsegments[stage] ||
	    (micro && get_next(m, stage, micro - 1) <= segment) ||
	    (!segment &&
	     m->begun[stage] - m->ended[stage] >= count_stage_slots(m->parts->nstages, stage)))
		return -1;
	arrival = find_arrival(m, stage, micro, segment);
	return arrival > m->clock[stage] || arrival < 0 ? arrival : m->clock[stage];
}

static void simulate_segment(struct simulation *m, int32_t stage, int32_t micro, int64_t start)
{
	const struct stage_message *message = m->parts->message;
	int32_t segment = m->next[stage * m->nmicro + micro]++;
	const struct segment *k = &m->parts->segment[stage][segment];

	m->clock[stage] = start + k->cost;
	m->begun[stage] += !segment;
	m->ended[stage] += segment + 1 == m->parts->nsegments[stage];
	for (int32_t i = k->in; i >= 0; i = message[i].next_in)
		m->ntaken[get_stage_pair(m, &message[i])]++;
	for (int32_t i = k->out; i >= 0; i = message[i].next_out) {
		int32_t pair = get_stage_pair(m, &message[i]);

		m->queue[pair][m->nsent[pair]++] = (struct sent){ micro, i, m->clock[stage] };
	}
	if (stage == m->stage)
		m->out->item[m->out->n++] = (struct tess_pipeline_item){ micro, segment };
}

/* Runs the segment that can begin first; of several the later one. False: none. */
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

/* Allocates queues for all messages of all micro-batches. */
static tess_status alloc_queues(struct simulation *m, struct tess_arena *arena)
{
	int32_t npairs = m->parts->nstages * m->parts->nstages, n = m->parts->nmessages;
	int32_t *count = TESS_NEW(arena, int32_t, npairs);
	struct sent *all = TESS_NEW(arena, struct sent, (int64_t)m->nmicro * n + 1);

	m->queue = TESS_NEW(arena, struct sent *, npairs);
	if (!count || !all || !m->queue)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < n; i++)
		count[get_stage_pair(m, &m->parts->message[i])] += m->nmicro;
	for (int32_t i = 0; i < npairs; i++) {
		m->queue[i] = all;
		all += count[i];
	}
	return TESS_OK;
}

static tess_status alloc_simulation(struct simulation *m, struct tess_arena *arena)
{
	int32_t n = m->parts->nstages;

	m->clock = TESS_NEW(arena, int64_t, n);
	m->next = TESS_NEW(arena, int32_t, n * m->nmicro);
	m->begun = TESS_NEW(arena, int32_t, n);
	m->ended = TESS_NEW(arena, int32_t, n);
	m->nsent = TESS_NEW(arena, int32_t, n * n);
	m->ntaken = TESS_NEW(arena, int32_t, n * n);
	if (!m->clock || !m->next || !m->begun || !m->ended || !m->nsent || !m->ntaken)
		return TESS_ENOMEM;
	return alloc_queues(m, arena);
}

/* Lists one micro-batch after another, each with all of its segments. */
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
	return p->training && tess_program_is_on_host(p) && !p->check;
}

int32_t tess_pipeline_schedule_count_slots(const struct tess_program *p, int32_t stage, int32_t n)
{
	int32_t slots = count_stage_slots(tess_program_count_stages(p), stage);

	return slots < n ? slots : n;
}

/* Lists the first record of each segment. */
static tess_status list_segment_records(const struct pipeline_parts *c, int32_t stage,
                                        struct tess_arena *arena,
                                        struct tess_pipeline_schedule *out)
{
	out->nsegments = c->nsegments[stage];
	out->record = TESS_NEW(arena, int32_t, out->nsegments);
	for (int32_t k = 0; k < out->nsegments && out->record; k++)
		out->record[k] = c->segment[stage][k].record;
	return out->record ? TESS_OK : TESS_ENOMEM;
}

tess_status tess_pipeline_schedule_make(const struct tess_program *p, int32_t stage, int32_t n,
                                        struct tess_arena *arena,
                                        struct tess_pipeline_schedule *out)
{
	struct pipeline_parts c;
	struct simulation m = { .parts = &c, .nmicro = n, .stage = stage, .out = out };
	int32_t left = 0;
	tess_status st = find_parts(p, arena, &c);

	*out = (struct tess_pipeline_schedule){ .nslots = tess_pipeline_schedule_count_slots(
							p, stage, n) };
	if (!st)
		st = list_segment_records(&c, stage, arena, out);
	if (st)
		return st;
	out->item = TESS_NEW(arena, struct tess_pipeline_item, n * out->nsegments);
	st = out->item ? alloc_simulation(&m, arena) : TESS_ENOMEM;
	if (st)
		return st;
	while (run_next(&m))
		;
	for (int32_t s = 0; s < c.nstages; s++)
		left += n - m.ended[s];
	if (left)
		list_one_by_one(out, n);
	return TESS_OK;
}
