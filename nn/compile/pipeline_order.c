#include "nn/compile/pipeline_order.h"

#include "core/base/status.h"

#include <string.h>

struct crossing { /* a value that goes from one stage to another */
	struct tess_tensor *value;
	const char *module; /* the module that reads it */
	int32_t from;
};

struct crossings { /* those that a stage receives, in order */
	struct crossing *each;
	int32_t n;
};

struct ordering {
	struct tess_recorder *r;
	struct tess_program *p;
	int32_t nforward, nstages;
	const int32_t *home; /* by value: the stage that computes it; TESS_STAGES_ALL: an input */
	const int32_t *made; /* by value: the record that computes it, or -1 */
	struct tess_tensor **value; /* by value, if a record computes it */
	bool *has; /* by value and stage: the stage has the value */
	struct crossings *forward, *backward; /* by stage: what it receives */
	struct crossings *results; /* by stage: what it receives after the forward */
};

/* ---- gradients of weights -------------------------------------------------------------------- */

/* Returns whether a record of this kind computes only the gradient of a weight. */
static bool sums_over_tokens(int32_t kind)
{
	return kind == TESS_OP_LINEAR_DW || kind == TESS_OP_HEAD_LINEAR_DW ||
	       kind == TESS_OP_EMBED_DW || kind == TESS_OP_BIAS_DW || kind == TESS_OP_NORM_DW;
}

/*
 * Makes the records that only end in the gradient of a weight actions of their own: its sum over
 * tokens, and the moves after it.
 */
static void part_weight_records(struct ordering *c)
{
	struct tess_program *p = c->p;

	for (int32_t i = c->nforward; i < p->nrecords; i++) {
		struct tess_record *rec = p->record[i];
		int32_t from = rec->nin ? c->made[rec->in[0]->id] : -1;
		bool follows =
			from >= 0 && p->record[from]->action == TESS_PIPELINE_BACKWARD_WEIGHTS;

		if (rec->kind == TESS_REC_GRADIENT || sums_over_tokens(rec->kind) || follows)
			rec->action = TESS_PIPELINE_BACKWARD_WEIGHTS;
	}
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static void add_crossing(struct ordering *c, struct crossings *to, struct crossing crossing)
{
	struct crossing *list =
		tess_arena_grow(&c->p->arena, to->each, (size_t)to->n, sizeof *list);

	if (!list) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	to->each = list;
	list[to->n++] = crossing;
}

/*
 * Sends x to a stage that lacks it. In training it crosses one boundary at a time, as the messages
 * of a schedule do; in inference it takes the shortest way.
 */
static void send_value(struct ordering *c, struct tess_tensor *x, int32_t stage, const char *module)
{
	bool *has = c->has + (int64_t)x->id * c->nstages;
	int32_t from = c->home[x->id], to;

	for (; from >= 0 && from != stage; from = to) {
		bool forward = from < stage || !c->p->training;

		to = !c->p->training ? stage : forward ? from + 1 : from - 1;
		if (has[to] || to == c->home[x->id])
			continue;
		has[to] = true;
		add_crossing(c, &(forward ? c->forward : c->backward)[to],
		             (struct crossing){ x, module, from });
	}
}

/* Sends the logits to a stage that lacks them, for the caller of inference. */
static void send_result(struct ordering *c, int32_t stage)
{
	struct tess_tensor *x = c->p->logits;
	int32_t home = c->home[x->id];

	if (home >= 0 && home != stage && !c->has[(int64_t)x->id * c->nstages + stage])
		add_crossing(c, &c->results[stage],
		             (struct crossing){ x, "the model's output", home });
}

/* Returns the stage of the rank that receives the logits. */
static int32_t find_root_stage(const struct tess_program *p)
{
	int32_t at = tess_program_get_pipeline_rank(p, p->logits_root), stage = 0;

	while (p->stage_rank[stage] != at)
		stage++;
	return stage;
}

/* Returns whether the backward of a stage computes x after that of stage `reader`. */
static bool comes_too_late(const struct ordering *c, const struct tess_tensor *x, int32_t reader)
{
	return c->made[x->id] >= c->nforward && c->home[x->id] < reader;
}

static void replace_operand(struct ordering *c, struct tess_record *rec, int32_t k,
                            struct tess_tensor *x)
{
	struct tess_tensor **in = TESS_NEW(&c->p->arena, struct tess_tensor *, rec->nin);

	if (!in) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	memcpy(in, rec->in, sizeof *in * (size_t)rec->nin);
	in[k] = x;
	rec->in = in;
}

/* Makes a record read the values of the forward where another stage computes them again later. */
static void read_in_time(struct ordering *c, struct tess_record *rec)
{
	for (int32_t k = 0; k < rec->nin && !c->r->status; k++) {
		const struct tess_tensor *x = rec->in[k];

		if (!comes_too_late(c, x, rec->stage))
			continue;
		if (x->repeats)
			replace_operand(c, rec, k, c->value[x->repeats->id]);
		else
			tess_recorder_fail(c->r, TESS_ENOTSUP,
			                   "%s: stage %d reads a gradient of stage %d, which is "
			                   "before it along pp; begin stages elsewhere",
			                   rec->module, (int)rec->stage, (int)c->home[x->id]);
	}
}

/* Lists what is sent for the records, and for the caller of inference. */
static void list_crossings(struct ordering *c)
{
	struct tess_program *p = c->p;

	for (int32_t i = 0; i < p->nrecords && !c->r->status; i++) {
		struct tess_record *rec = p->record[i];

		if (i >= c->nforward && p->training)
			read_in_time(c, rec);
		for (int32_t k = 0; k < rec->nin && rec->stage >= 0 && !c->r->status; k++)
			send_value(c, rec->in[k], rec->stage, rec->module);
	}
	if (p->training || p->logits_root == TESS_LOGITS_CUT)
		return;
	for (int32_t s = 0; s < c->nstages && !c->r->status; s++)
		if (p->logits_root < 0 || s == find_root_stage(p))
			send_result(c, s);
}

/* ---- the order of records -------------------------------------------------------------------- */

static void append_record(struct ordering *c, struct tess_record *rec)
{
	struct tess_program *p = c->p;
	struct tess_record **list =
		tess_arena_grow(&p->arena, p->record, (size_t)p->nrecords, sizeof *list);

	if (!list) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	p->record = list;
	list[p->nrecords++] = rec;
}

static void append_sends(struct ordering *c, const struct crossings *list, int32_t to)
{
	for (int32_t i = 0; i < list->n && !c->r->status; i++) {
		const struct crossing *x = &list->each[i];
		struct tess_record *rec =
			tess_record_append(c->r, TESS_REC_SEND, x->module, 1,
		                           (struct tess_tensor *[]){ x->value }, 0, NULL, 0, NULL);

		if (!rec)
			return;
		rec->along = c->p->pipeline_along;
		rec->stage = x->from;
		rec->action = list == &c->backward[to] ? TESS_PIPELINE_BACKWARD_INPUTS
		                                       : TESS_PIPELINE_FORWARD;
		rec->nnum = TESS_REC_SEND_TO + 1;
		rec->num[TESS_REC_SEND_TO] = to;
	}
}

/* Marks what a stage reads of the values that every stage can compute. */
static void mark_shared_values(struct tess_record *const *list, int32_t n, int32_t stage,
                               bool *read)
{
	for (int32_t i = n - 1; i >= 0; i--) {
		bool reads = list[i]->stage == stage;

		for (int32_t k = 0; k < list[i]->nout && list[i]->stage == TESS_STAGES_ALL; k++)
			reads = reads || read[list[i]->out[k]->id];
		for (int32_t k = 0; k < list[i]->nin && reads; k++)
			read[list[i]->in[k]->id] = true;
	}
}

/* Gives each stage that needs it a record of its own of each that every stage can compute. */
static void append_shared_records(struct ordering *c, struct tess_record **list, int32_t n,
                                  int32_t stage)
{
	bool *read = TESS_NEW(&c->p->arena, bool, c->p->ntensors);

	if (!read) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	mark_shared_values(list, n, stage, read);
	for (int32_t i = 0; i < n && !c->r->status; i++) {
		struct tess_record *mine;

		if (list[i]->stage != TESS_STAGES_ALL || !read[list[i]->out[0]->id])
			continue;
		mine = TESS_NEW(&c->p->arena, struct tess_record, 1);
		if (!mine) {
			tess_recorder_keep_error(c->r, TESS_ENOMEM);
			return;
		}
		*mine = *list[i];
		mine->stage = stage;
		mine->action = TESS_PIPELINE_FORWARD;
		append_record(c, mine);
	}
}

static void append_action(struct ordering *c, struct tess_record **list, int32_t n, int32_t stage,
                          int32_t action)
{
	for (int32_t i = 0; i < n && !c->r->status; i++)
		if (list[i]->stage == stage && list[i]->action == action)
			append_record(c, list[i]);
}

/*
 * Appends all records again: the forward of each stage, then, from the last stage down, its
 * backward of inputs, what it sends, and its backward of weights. Each order that a schedule may
 * have keeps the order of the records of a stage.
 */
static void order_records(struct ordering *c)
{
	struct tess_program *p = c->p;
	struct tess_record **was = p->record;
	int32_t n = p->nrecords;

	p->record = NULL;
	p->nrecords = 0;
	for (int32_t s = 0; s < c->nstages; s++) {
		append_sends(c, &c->forward[s], s); /* before records of the forward */
		append_shared_records(c, was, n, s);
		append_action(c, was, n, s, TESS_PIPELINE_FORWARD);
	}
	for (int32_t s = 0; s < c->nstages; s++)
		append_sends(c, &c->results[s], s);
	for (int32_t s = c->nstages - 1; s >= 0; s--) {
		append_action(c, was, n, s, TESS_PIPELINE_BACKWARD_INPUTS);
		if (s)
			append_sends(c, &c->backward[s - 1], s - 1);
		append_action(c, was, n, s, TESS_PIPELINE_BACKWARD_WEIGHTS);
	}
}
static tess_status alloc_ordering(struct ordering *c)
{
	struct tess_arena *arena = &c->p->arena;

	c->value = TESS_NEW(arena, struct tess_tensor *, c->p->ntensors);
	c->has = TESS_NEW(arena, bool, (int64_t)c->p->ntensors * c->nstages);
	c->forward = TESS_NEW(arena, struct crossings, c->nstages);
	c->backward = TESS_NEW(arena, struct crossings, c->nstages);
	c->results = TESS_NEW(arena, struct crossings, c->nstages);
	for (int32_t i = 0; i < c->p->nrecords && c->value; i++)
		for (int32_t k = 0; k < c->p->record[i]->nout; k++)
			c->value[c->p->record[i]->out[k]->id] = c->p->record[i]->out[k];
	return c->value && c->has && c->forward && c->backward && c->results ? TESS_OK
	                                                                     : TESS_ENOMEM;
}

void tess_pipeline_order(struct tess_recorder *r, int32_t nforward, const int32_t *home,
                         const int32_t *made)
{
	struct ordering c = { .r = r,
		              .p = r->p,
		              .nforward = nforward,
		              .nstages = r->p->nstages,
		              .home = home,
		              .made = made };

	if (alloc_ordering(&c)) {
		tess_recorder_keep_error(r, TESS_ENOMEM);
		return;
	}
	if (r->p->weights_apart)
		part_weight_records(&c);
	list_crossings(&c);
	if (!r->status)
		order_records(&c);
}
