#include "nn/lower/lower.h"

#include "core/base/status.h"
#include "nn/lower/tiles.h"

#include <string.h>
#include <tessera/reduce.h>

/* ---- records of each kind -------------------------------------------------------------------- */

void build_add_norm(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!x->rows)
		return;
	s = build_add_op(b, TESS_OP_NORM, rec->nweight ? 1 + rec->nweight : 2, 1);
	build_set_input(b, s, 0, x);
	for (int32_t i = 0; i < rec->nweight; i++)
		build_set_weight(b, s, 1 + i, rec->weight[i]);
	build_set_output(b, s, 0, y);
	build_allow_in_place(b, x, y);
	build_set_numbers(b, &s->op, rec->nnum, rec->num);
	build_set_norm_trees(b, &s->op, rec->in[0]->dim[1], rec->num);
}

void build_add_elementwise(struct build *b, const struct tess_record *rec)
{
	struct value *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!y->rows || !y->cols)
		return;
	s = build_add_op(b, rec->kind, rec->nin, 1);
	for (int32_t i = 0; i < rec->nin; i++) {
		struct value *x = build_get_value(b, rec->in[i]);

		build_set_input(b, s, i, x);
		if (x->cols == y->cols)
			build_allow_in_place(b, x, y);
	}
	build_set_output(b, s, 0, y);
	build_set_numbers(b, &s->op, rec->nnum, rec->num);
}

/* Adds no step: the parts of a value are views. */
void build_add_split(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]);
	int64_t at = 0;

	for (int32_t i = 0; i < rec->nout; i++) {
		int64_t cols = build_get_local_size(b, rec->out[i], 1);

		b->value[rec->out[i]->id] = build_slice_value(x, 0, x->rows, at, cols);
		at += cols;
	}
}

void build_add_select_rows(struct build *b, const struct tess_record *rec)
{
	struct value *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!y->rows)
		return;
	s = build_add_op(b, TESS_OP_SELECT_ROWS, 2, 1);
	build_set_input(b, s, 0, build_get_value(b, rec->in[0]));
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, y);
	if (!b->status)
		s->in[1].ndim = 1;
}

void build_add_none(struct build *b, const struct tess_record *rec)
{
	b->status = tess_fail(TESS_EBUG, "%s: no lowering for a record of kind %s", rec->module,
	                      tess_record_kind_name(rec->kind));
}

static void lower_record(struct build *b, const struct tess_record *rec)
{
	static void (*const lowerings[])(struct build *, const struct tess_record *) = {
#define OP(kind, name, outs, weight, cost, backward, lower) [TESS_OP_##kind] = build_add_##lower,
#define RECORD(kind, name, backward, lower) [TESS_REC_##kind] = build_add_##lower,
#include "nn/op/kinds.def"
	};

	lowerings[rec->kind](b, rec);
}

/* Returns a value as dense rows after the last record; a part of another value is copied. */
static struct value make_dense(struct build *b, const struct tess_tensor *t)
{
	struct value *v = build_get_value(b, t), dense;

	if (build_is_dense(v))
		return *v;
	b->record--;
	dense = build_copy_dense(b, v);
	b->record++;
	return dense;
}

/* Makes the kept values dense that a record has computed. */
static void make_dense_values(struct build *b, const struct tess_record *rec, struct value *dense)
{
	const struct tess_program *p = b->p;

	for (int32_t k = 0; k < rec->nout; k++)
		for (int32_t i = 0; i < p->nvalues && !b->status; i++)
			if (p->values[i].value == rec->out[k])
				dense[i] = make_dense(b, rec->out[k]);
}

/* Keeps the values in use until the last step, which precedes this call. */
static void set_kept_values(struct build *b, const struct value *dense)
{
	for (int32_t i = 0; i < b->p->nvalues && !b->status; i++)
		if (tess_program_has_stage(b->p, b->l->rank, b->p->values[i].stage))
			build_add_pointer(b, &b->l->values[i], &dense[i]);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Ends the last segment, and waits for its outstanding sums of gradients. */
static void leave_segment(struct build *b)
{
	struct tess_rank_program *l = b->l;

	if (b->p->training && !b->status)
		build_finish_gradients(b);
	if (!l->nsegments)
		return;
	l->segment[l->nsegments - 1].end = l->nsteps;
	l->segment[l->nsegments - 1].end_patch = l->npatches;
}

/* Begins or continues the segment of an action on a stage; the next steps are in it. */
static void enter_segment(struct build *b, int32_t stage, int32_t kind)
{
	struct tess_rank_program *l = b->l;
	struct tess_segment *last = l->nsegments ? &l->segment[l->nsegments - 1] : NULL, *list;

	if (!tess_program_has_slots(b->p) || b->status ||
	    (last && last->stage == stage && last->kind == kind))
		return;
	leave_segment(b);
	if (tess_rank_program_find_segment(l, stage, kind))
		b->status =
			tess_fail(TESS_EBUG, "stage %d has two segments of one kind", (int)stage);
	list = tess_arena_grow(&l->arena, l->segment, (size_t)l->nsegments, sizeof *list);
	if (!list || b->status) {
		b->status = b->status ? b->status : TESS_ENOMEM;
		return;
	}
	l->segment = list;
	list[l->nsegments++] = (struct tess_segment){
		.stage = stage, .kind = kind, .first = l->nsteps, .first_patch = l->npatches
	};
}

/*
 * Enters the segment of a send. A value for another stage of this rank is copied: in the forward of
 * the later stage, whose slot is in use from then on, or in its backward.
 */
static void enter_send(struct build *b, const struct tess_record *rec)
{
	int32_t from = rec->stage, to = (int32_t)rec->num[TESS_REC_SEND_TO];
	bool forward = rec->action == TESS_PIPELINE_FORWARD;

	if (b->values[from] && b->values[to])
		enter_segment(b, forward ? to : from, rec->action);
	else if (b->values[from])
		enter_segment(b, from,
		              forward ? TESS_PIPELINE_SEND_FORWARD : TESS_PIPELINE_SEND_BACKWARD);
	else
		enter_segment(b, to,
		              forward ? TESS_PIPELINE_RECEIVE_FORWARD
		                      : TESS_PIPELINE_RECEIVE_BACKWARD);
}

static void enter_record(struct build *b, const struct tess_record *rec)
{
	if (rec->kind == TESS_REC_SEND) {
		enter_send(b, rec);
		return;
	}
	enter_segment(b, rec->stage, rec->action);
	build_use_stage(b, rec->stage);
}

static void lower_records(struct build *b, struct value *dense)
{
	const struct tess_program *p = b->p;

	for (b->record = 0; b->record < p->nrecords && !b->status; b->record++) {
		const struct tess_record *rec = p->record[b->record];

		if (!build_has_record(b, rec) || (b->wanted && !b->wanted[b->record]))
			continue;
		enter_record(b, rec);
		b->tile = 0;
		build_await_record(b, rec);
		if (b->gathers)
			build_gather_weights(b);
		lower_record(b, rec);
		if (p->check && !b->status)
			build_add_checks(b, rec);
		make_dense_values(b, rec, dense);
		build_announce_record(b, rec);
	}
	if (!b->status)
		leave_segment(b);
}

/* Sets the result of a step that one stage has. */
static void set_stage_result(struct build *b, void **at, const struct tess_tensor *x, int32_t stage)
{
	if (b->status || !x || !tess_program_has_stage(b->p, b->l->rank, stage))
		return;
	build_use_stage(b, stage);
	build_add_pointer(b, at, build_get_value(b, x));
}

/* ---- a program ------------------------------------------------------------------------------- */

/* Places the inputs one after another in their own memory. */
static void place_inputs(struct build *b)
{
	const struct tess_program *p = b->p;
	const struct tess_tensor *const in[] = { p->ids,    p->positions, p->slots, p->rows,
		                                 p->labels, p->count,     p->random };
	uint64_t at = 0;

	for (size_t i = 0; i < sizeof in / sizeof *in && in[i]; i++) {
		int32_t buffer = build_get_value(b, in[i])->buffer;

		if (b->status)
			return;
		b->buffer[buffer].space = TESS_SPACE_INPUTS;
		b->buffer[buffer].life.offset = at;
		at += 4 * (uint64_t)in[i]->dim[0]->size;
	}
}

/* Allocates the values of each stage of this rank; all have the inputs. */
static void alloc_values(struct build *b)
{
	const struct tess_program *p = b->p;
	int32_t first = -1;

	b->values = TESS_NEW(&b->l->arena, struct value *, p->nstages);
	if (!b->values)
		b->status = TESS_ENOMEM;
	for (int32_t s = 0; s < p->nstages && !b->status; s++) {
		if (!tess_program_has_stage(p, b->l->rank, s))
			continue;
		b->values[s] = TESS_NEW(&b->l->arena, struct value, p->ntensors);
		if (!b->values[s]) {
			b->status = TESS_ENOMEM;
		} else if (first < 0) {
			first = s;
			build_use_stage(b, s);
			place_inputs(b);
		} else {
			memcpy(b->values[s], b->values[first],
			       sizeof(struct value) * (size_t)p->ntensors);
		}
	}
}

static void set_page_classes(struct build *b)
{
	struct tess_rank_program *l = b->l;

	l->nclasses = b->p->nclasses;
	l->page_class = TESS_NEW(&l->arena, struct tess_page_class, l->nclasses + 1);
	if (!l->page_class)
		b->status = TESS_ENOMEM;
	for (int32_t i = 0; i < l->nclasses && l->page_class; i++)
		l->page_class[i].window = b->p->class_window[i];
}

/* Returns true if the rank holds logits after the last record. */
static bool has_logits(const struct tess_program *p, int32_t rank)
{
	if (p->logits_root == TESS_LOGITS_CUT)
		return tess_program_has_stage(p, rank, p->logits_stage);
	return p->logits_root < 0 || p->logits_root == rank;
}

static tess_status lower_program(const struct tess_program *p, int32_t rank,
                                 const struct tess_view *weights, const bool *wanted,
                                 struct tess_rank_program **out)
{
	struct tess_arena arena = { 0 };
	struct tess_rank_program *l = TESS_NEW(&arena, struct tess_rank_program, 1);
	struct build b = { .p = p, .l = l, .weights = weights, .wanted = wanted };
	bool gathers = p->training || p->rest_location == TESS_LOCATION_DISK;
	struct value logits, *values;

	if (!l)
		return TESS_ENOMEM;
	l->rank = rank;
	l->nstages = p->nstages;
	b.runs = TESS_NEW(&arena, struct tess_run, tess_program_max_pieces(p));
	values = TESS_NEW(&arena, struct value, p->nvalues + 1);
	l->values = TESS_NEW(&arena, void *, p->nvalues + 1);
	l->arena = arena;
	if (!b.runs || !values || !l->values)
		b.status = TESS_ENOMEM;
	else
		set_page_classes(&b);
	if (!b.status)
		alloc_values(&b);
	if (!b.status && p->training && !wanted)
		build_plan_final(&b);
	if (!b.status && p->training)
		build_place_gradients(&b);
	if (!b.status && gathers)
		build_plan_tiles(&b);
	if (!b.status && gathers)
		build_plan_gathers(&b);
	lower_records(&b, values);
	set_stage_result(&b, &l->loss, p->loss, p->loss_stage);
	set_stage_result(&b, &l->balance, p->balance, p->balance_stage);
	if (!b.status && !p->training && has_logits(p, rank)) {
		logits = make_dense(&b, p->logits); /* in use after the last record */
		build_add_pointer(&b, &l->logits, &logits);
	}
	set_kept_values(&b, values);
	if (!b.status)
		build_place_buffers(&b);
	if (!b.status && p->device)
		b.status = tess_rank_program_fuse(l, p->device);
	if (b.status)
		tess_rank_program_free(l);
	else
		*out = l;
	return b.status;
}

tess_status tess_program_lower(const struct tess_program *p, int32_t rank,
                               const struct tess_view *weights, struct tess_rank_program **out)
{
	return lower_program(p, rank, weights, NULL, out);
}

tess_status tess_program_lower_records(const struct tess_program *p, int32_t rank,
                                       const bool *wanted, struct tess_rank_program **out)
{
	return lower_program(p, rank, NULL, wanted, out);
}

void tess_rank_program_free(struct tess_rank_program *l)
{
	struct tess_arena arena;

	if (!l)
		return;
	arena = l->arena;
	tess_arena_free(&arena);
}

static void bind_patches(struct tess_rank_program *l, int32_t first, int32_t end,
                         const struct tess_memory *m)
{
	for (int32_t i = first; i < end; i++) {
		const struct tess_patch *p = &l->patch[i];

		switch (p->space) {
		case TESS_SPACE_STEP:
			*p->pointer = (char *)m->step + p->offset;
			break;
		case TESS_SPACE_SLOT:
			if (m->slot)
				*p->pointer = (char *)m->slot[p->stage] + p->offset;
			break;
		case TESS_SPACE_INPUTS:
			*p->pointer = (char *)m->inputs + p->offset;
			break;
		case TESS_SPACE_GRADIENTS:
			*p->pointer = (char *)m->gradients + p->offset;
			break;
		case TESS_SPACE_ROPE:
			p->view->shape[0] = m->rope_positions;
			*p->pointer = m->rope + m->rope_positions * (int64_t)p->offset;
			break;
		default:
			p->view->shape[0] = m->slots;
			p->view->shape[1] = p->view->stride[0] = m->blocks;
			*p->pointer = m->pages + p->page_class * m->slots * m->blocks;
		}
	}
}

static void bind_stream(struct tess_step *s, void *stream)
{
	switch (s->kind) {
	case TESS_STEP_OP:
		s->op.stream = stream;
		break;
	case TESS_STEP_COLL:
		s->coll.stream = stream;
		break;
	case TESS_STEP_SUM:
		s->sum.stream = stream;
		break;
	default: /* runs on the host, or waits */
		break;
	}
}

void tess_rank_program_bind(struct tess_rank_program *l, const struct tess_memory *m)
{
	bind_patches(l, 0, l->npatches, m);
	for (int32_t i = 0; i < l->nsteps; i++)
		for (struct tess_step *s = l->step[i]; s; s = s->fused)
			bind_stream(s, m->stream);
}

void tess_rank_program_bind_segment(struct tess_rank_program *l, const struct tess_segment *s,
                                    const struct tess_memory *m)
{
	int32_t results = l->segment[l->nsegments - 1].end_patch;

	if (s)
		bind_patches(l, s->first_patch, s->end_patch, m);
	else
		bind_patches(l, results, l->npatches, m);
}

const struct tess_segment *tess_rank_program_find_segment(const struct tess_rank_program *l,
                                                          int32_t stage, int32_t kind)
{
	for (int32_t i = 0; i < l->nsegments; i++)
		if (l->segment[i].stage == stage && l->segment[i].kind == kind)
			return &l->segment[i];
	return NULL;
}

uint64_t tess_rank_program_hash_calls(const struct tess_rank_program *l)
{
	uint64_t hash = l->bytes * (l->nsegments > 0);

	for (int32_t i = 0; i < l->nsegments; i++)
		hash = (hash ^ l->slot_bytes[l->segment[i].stage]) * 0x9e3779b97f4a7c15;
	for (int32_t i = 0; i < l->nsteps; i++) {
		const struct tess_coll *c = &l->step[i]->coll;

		/* buffers that some ranks only send or receive may be at any offset */
		if (l->step[i]->kind != TESS_STEP_COLL || tess_kind_rooted(c->kind))
			continue;
		for (int32_t k = 0; k < l->npatches; k++)
			if (l->patch[k].pointer == (void **)(uintptr_t)&c->src ||
			    l->patch[k].pointer == (void **)(uintptr_t)&c->dst)
				hash = (hash ^ l->patch[k].offset) * 0x9e3779b97f4a7c15;
	}
	return hash;
}
