#include "nn/compile/pipeline.h"

#include "core/base/status.h"
#include "nn/compile/pipeline_moves.h"
#include "nn/compile/pipeline_order.h"

#include <string.h>
#include <tessera/reduce.h>

struct block { /* a run of records of the forward that is in one stage: of a numbered module */
	int32_t first;
	uint64_t bytes; /* bytes of the weights in its products */
};

struct pipeline {
	struct tess_recorder *r;
	struct tess_program *p;
	int32_t nforward, nstages;
	int32_t tail; /* the first record after the numbered modules */
	int32_t *first; /* by stage: its first record */
	bool *placed; /* by weight: its stage is known */
	int32_t *home; /* by value: the stage that computes it; TESS_STAGES_ALL: an input */
	int32_t *made; /* by value: the record that computes it, or -1 */
	int32_t *wanted; /* by value, a gradient: 1 + the stage of its weight; 0: none */
};

/* ---- where stages begin ---------------------------------------------------------------------- */

/*
 * Adds the bytes of weights in a record's products to a block. A table that is only looked up takes
 * no time.
 */
static void add_bytes(const struct tess_record *rec, struct block *block)
{
	for (int32_t k = 0; k < rec->nweight && rec->kind != TESS_OP_EMBED; k++) {
		const struct tess_weight *w = rec->weight[k];

		block->bytes += tess_width(w->dtype) * (uint64_t)tess_weight_count_elements(w);
	}
}

/* Lists the numbered modules; the first and last block include the records around them. */
static struct block *list_blocks(struct pipeline *c, int32_t *n)
{
	struct block *block = TESS_NEW(&c->p->arena, struct block, c->nforward + 1);
	const char *path = "";
	size_t len = 0;

	*n = 0;
	for (int32_t i = 0; i < c->nforward && block; i++) {
		const struct tess_record *rec = c->p->record[i];
		size_t number, mine = tess_module_measure_number(rec->module, &number);

		if (mine && (mine != len || memcmp(path, rec->module, len) != 0)) {
			block[*n].first = *n ? i : 0;
			*n += 1;
			path = rec->module;
			len = mine;
		}
		add_bytes(rec, &block[*n ? *n - 1 : 0]);
	}
	return block;
}

/*
 * Returns whether the stages take all blocks with at most `most` bytes each; sets their beginnings.
 * Fills the last stage first: the first stage keeps the values of the most micro-batches, and often
 * a table.
 */
static bool fill_stages(struct pipeline *c, const struct block *block, int32_t n, uint64_t most)
{
	int32_t stage = c->nstages;
	uint64_t bytes = 0;

	for (int32_t i = n - 1; i >= 0; i--) {
		/* a block is left for each stage before */
		bool full = stage == c->nstages || bytes + block[i].bytes > most || i < stage;

		if (full && !stage)
			return false;
		stage -= full;
		bytes = full ? block[i].bytes : bytes + block[i].bytes;
		c->first[stage] = block[i].first;
	}
	return true;
}

static void share_out_blocks(struct pipeline *c)
{
	int32_t n;
	struct block *block = list_blocks(c, &n);
	uint64_t low = 0, high = 0;

	if (!block) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	if (n < c->nstages) {
		tess_recorder_fail(c->r, TESS_EINVAL,
		                   "model %s: %d numbered modules cannot be cut for %d stages "
		                   "along pp; use 1 to %d",
		                   c->r->options->model->name, (int)n, (int)c->nstages, (int)n);
		return;
	}
	for (int32_t i = 0; i < n; i++) {
		low = block[i].bytes > low ? block[i].bytes : low;
		high += block[i].bytes;
	}
	while (low < high) {
		uint64_t most = low + (high - low) / 2;

		if (fill_stages(c, block, n, most))
			high = most;
		else
			low = most + 1;
	}
	fill_stages(c, block, n, low);
}

static void use_stage_begins(struct pipeline *c)
{
	const struct tess_recorder *r = c->r;

	if (r->nstage_begins != c->nstages - 1) {
		tess_recorder_fail(
			c->r, TESS_EINVAL,
			"%s: the plan begins %d stage%s after the first, and there %s %d "
			"along pp; use %d",
			r->stage_begins[0].module, (int)r->nstage_begins,
			r->nstage_begins == 1 ? "" : "s", c->nstages == 1 ? "is" : "are",
			(int)c->nstages, (int)r->nstage_begins + 1);
		return;
	}
	for (int32_t i = 1; i < c->nstages; i++)
		c->first[i] = r->stage_begins[i - 1].record;
}

/* Returns the record after the last one of a numbered module, or the end without such modules. */
static int32_t find_tail(const struct pipeline *c)
{
	int32_t i = c->nforward;
	size_t number;

	while (i && !tess_module_measure_number(c->p->record[i - 1]->module, &number))
		i--;
	return i ? i : c->nforward;
}

/* ---- the stage of each record ---------------------------------------------------------------- */

/* Returns the stage of the weights of a record, `first` for newly placed ones; -1: no weights. */
static int32_t find_weight_stage(struct pipeline *c, const struct tess_record *rec, int32_t first)
{
	int32_t stage = -1;

	for (int32_t k = 0; k < rec->nweight && !c->r->status; k++) {
		struct tess_weight *w = c->p->weight[rec->weight[k]->index];

		if (!c->placed[w->index])
			w->stage = first;
		c->placed[w->index] = true;
		if (stage >= 0 && stage != w->stage)
			tess_recorder_fail(c->r, TESS_ENOTSUP,
			                   "%s: reads weights of the stages %d and %d along pp; "
			                   "begin stages elsewhere",
			                   rec->module, (int)stage, (int)w->stage);
		stage = w->stage;
	}
	return stage;
}

/*
 * Returns the stage that computes an operand: the last computed one of the forward, else of all,
 * except the sums of the load balancing loss, which all stages read. TESS_STAGES_ALL: all are
 * inputs.
 */
static int32_t find_operand_stage(const struct pipeline *c, const struct tess_record *rec)
{
	int32_t last[2] = { -1, -1 }, stage[2] = { TESS_STAGES_ALL, TESS_STAGES_ALL };

	for (int32_t k = 0; k < rec->nin; k++) {
		const struct tess_tensor *x = rec->in[k];
		int32_t id = x->id;
		bool backward = c->made[id] >= c->nforward && !x->repeats;

		if (c->made[id] <= last[backward] || x == c->p->balance)
			continue;
		last[backward] = c->made[id];
		stage[backward] = c->home[id];
	}
	return stage[0] >= 0 ? stage[0] : stage[1];
}

static int32_t choose_forward_stage(struct pipeline *c, int32_t i)
{
	const struct tess_record *rec = c->p->record[i];
	int32_t stage = 0, by_weight, by_operand = find_operand_stage(c, rec);

	while (stage + 1 < c->nstages && c->first[stage + 1] <= i)
		stage++;
	by_weight = find_weight_stage(c, rec, stage);
	if (by_weight >= 0)
		return by_weight;
	/* all stages have inputs, and may slice them */
	if (rec->kind == TESS_REC_MOVE && by_operand == TESS_STAGES_ALL &&
	    !tess_move_kind(c->p, rec))
		return TESS_STAGES_ALL;
	return i >= c->tail && by_operand >= 0 ? by_operand : stage;
}

static int32_t choose_backward_stage(struct pipeline *c, int32_t i)
{
	const struct tess_record *rec = c->p->record[i];
	int32_t wanted = rec->nout ? c->wanted[rec->out[0]->id] - 1 : -1, by_weight;

	if (rec->repeats)
		return rec->repeats->stage;
	by_weight = find_weight_stage(c, rec, 0);
	if (by_weight >= 0 || wanted >= 0)
		return by_weight >= 0 ? by_weight : wanted;
	return find_operand_stage(c, rec);
}

/* Places the records of a weight's gradient in the stage of the weight, to avoid sending it. */
static void want_gradients(struct pipeline *c)
{
	for (int32_t i = c->p->nrecords - 1; i >= c->nforward; i--) {
		const struct tess_record *rec = c->p->record[i];
		bool moves = rec->kind == TESS_REC_MOVE || rec->kind == TESS_REC_SEQUENCE_SUM;

		if (rec->kind == TESS_REC_GRADIENT)
			c->wanted[rec->in[0]->id] = 1 + rec->weight[0]->stage;
		else if (moves && c->wanted[rec->out[0]->id])
			c->wanted[rec->in[0]->id] = c->wanted[rec->out[0]->id];
	}
}

static void place_record(struct pipeline *c, int32_t i, int32_t stage)
{
	struct tess_record *rec = c->p->record[i];

	rec->stage = stage;
	rec->action = i < c->nforward ? TESS_PIPELINE_FORWARD : TESS_PIPELINE_BACKWARD_INPUTS;
	for (int32_t k = 0; k < rec->nout; k++) {
		c->home[rec->out[k]->id] = stage;
		c->made[rec->out[k]->id] = i;
	}
}

static void place_moves(struct pipeline *c, int32_t begin, int32_t end)
{
	if (!c->r->status && tess_pipeline_place_moves(c->p, begin, end, c->home))
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
}

static void place_records(struct pipeline *c)
{
	for (int32_t i = 0; i < c->nforward && !c->r->status; i++)
		place_record(c, i, choose_forward_stage(c, i));
	place_moves(c, 0, c->nforward);
	want_gradients(c);
	for (int32_t i = c->nforward; i < c->p->nrecords && !c->r->status; i++)
		place_record(c, i, choose_backward_stage(c, i));
	place_moves(c, c->nforward, c->p->nrecords);
}

/* Gives tied heads whose tables are on other ranks copies of these. */
static void copy_tables(struct pipeline *c)
{
	const int32_t *rank = c->p->stage_rank;

	for (int32_t i = 0, n = c->p->nweights; i < n; i++) {
		struct tess_weight *w = c->p->weight[i];

		if (w->table && rank[w->table->stage] != rank[w->stage])
			tess_weight_copy_table(c->r, w);
	}
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Finds the stage with the logits; ones that stay there uncut are its first rank's. */
static void place_logits(const struct pipeline *c)
{
	struct tess_program *p = c->p;

	p->logits_stage = c->home[p->logits->id];
	if (p->logits_root == TESS_LOGITS_CUT && p->vocabulary_along < 0)
		p->logits_root =
			p->stage_rank[p->logits_stage] * p->mesh.dim[p->pipeline_along].stride;
}

static tess_status alloc_pipeline(struct pipeline *c)
{
	struct tess_arena *arena = &c->p->arena;
	int32_t n = c->p->ntensors;

	c->first = TESS_NEW(arena, int32_t, c->nstages);
	c->placed = TESS_NEW(arena, bool, c->p->nweights + 1);
	c->home = TESS_NEW(arena, int32_t, n);
	c->made = TESS_NEW(arena, int32_t, n);
	c->wanted = TESS_NEW(arena, int32_t, n);
	for (int32_t i = 0; i < n && c->home && c->made; i++)
		c->home[i] = c->made[i] = -1;
	return c->first && c->placed && c->home && c->made && c->wanted ? TESS_OK : TESS_ENOMEM;
}

/* Notes which stages have the results of a step. */
static void place_results(struct pipeline *c)
{
	struct tess_program *p = c->p;

	for (int32_t i = 0; i < p->nvalues; i++)
		p->values[i].stage = c->home[p->values[i].value->id];
	p->loss_stage = p->loss ? c->home[p->loss->id] : 0;
	p->balance_stage = p->balance ? c->home[p->balance->id] : 0;
}

void tess_pipeline_cut(struct tess_recorder *r, int32_t nforward)
{
	struct tess_program *p = r->p;
	struct pipeline c = { .r = r, .p = p, .nforward = nforward, .nstages = p->nstages };

	if (r->status || (p->pipeline_along < 0 && !r->nstage_begins))
		return;
	if (alloc_pipeline(&c)) {
		tess_recorder_keep_error(r, TESS_ENOMEM);
		return;
	}
	c.tail = find_tail(&c);
	if (r->nstage_begins)
		use_stage_begins(&c);
	else
		share_out_blocks(&c);
	if (!r->status)
		place_records(&c);
	if (!r->status)
		copy_tables(&c);
	if (!r->status && !p->training)
		place_logits(&c);
	if (!r->status)
		tess_pipeline_order(r, nforward, c.home, c.made);
	if (!r->status)
		place_results(&c);
}
