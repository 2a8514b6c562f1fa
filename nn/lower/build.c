#include "nn/lower/build.h"

#include "core/base/status.h"

#include <string.h>
#include <tessera/reduce.h>

/* Bytes from which on the alignment of a buffer for transfers is worth the gap before it. */
enum { ALIGNED_BYTES = 16 * TESS_DISK_ALIGN };

struct tess_cut build_find_cut(const struct build *b, const struct tess_place *place, int32_t axis)
{
	return tess_program_find_cut(b->p, b->l->rank, place, axis);
}

int64_t build_get_local_size(const struct build *b, const struct tess_tensor *v, int32_t axis)
{
	struct tess_cut cut = build_find_cut(b, v->place, axis);

	return tess_dim_get_local_size(v->dim[axis], cut.nranks, cut.rank);
}

/* Counts the nodes of a rank. A single term (no dim is summed over) is on rank 0. */
static int64_t count_local_nodes(struct build *b, const struct tess_tensor *v, int32_t along)
{
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, along);
	struct tess_sum sum = { 0 };

	if (v->sum && !tess_program_is_exact(b->p))
		return 1;
	sum.ntree = tess_dim_list_trees(&b->l->arena, v->sum, &sum.n);
	if (!sum.ntree)
		b->status = TESS_ENOMEM;
	return tess_sum_nodes(&sum, cut.nranks, cut.rank);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t align_to_line(uint64_t bytes)
{
	return (bytes + 63) & ~(uint64_t)63;
}

int32_t build_add_buffer(struct build *b, uint64_t bytes)
{
	struct buffer *list =
		tess_arena_grow(&b->l->arena, b->buffer, (size_t)b->nbuffers, sizeof *list);

	if (!list) {
		b->status = TESS_ENOMEM;
		return 0;
	}
	b->buffer = list;
	b->buffer[b->nbuffers] =
		(struct buffer){ .life = { .bytes = align_to_line(bytes), .first = INT32_MAX },
		                 .in_place = -1,
		                 .stage = b->stage };
	return b->nbuffers++;
}

/* Aligns a buffer for transfers, if it is large. */
static void align_for_transfer(struct build *b, const struct value *v)
{
	struct tess_lifetime *life = &b->buffer[v->buffer].life;

	if (!b->status && life->bytes >= ALIGNED_BYTES)
		life->align = TESS_DISK_ALIGN;
}

void build_add_patch(struct build *b, struct tess_patch p)
{
	struct tess_rank_program *l = b->l;
	struct tess_patch *list;

	if (b->status)
		return;
	list = tess_arena_grow(&l->arena, l->patch, (size_t)l->npatches, sizeof *list);
	if (!list) {
		b->status = TESS_ENOMEM;
		return;
	}
	l->patch = list;
	l->patch[l->npatches++] = p;
}

void build_add_pointer(struct build *b, void **at, const struct value *v)
{
	int32_t now = b->l->nsteps ? b->l->nsteps - 1 : 0;
	struct tess_lifetime *life;

	if (b->status)
		return;
	life = &b->buffer[v->buffer].life;
	life->first = now < life->first ? now : life->first;
	life->last = now;
	build_add_patch(b, (struct tess_patch){ .pointer = at,
	                                        .space = b->buffer[v->buffer].space,
	                                        .buffer = v->buffer,
	                                        .offset = v->offset });
}

void build_use_stage(struct build *b, int32_t stage)
{
	b->stage = stage;
	b->value = b->values[stage];
}

void build_keep_value(struct build *b, const struct value *v)
{
	if (!b->status)
		b->buffer[v->buffer].life.last = b->l->nsteps - 1;
}

struct value build_add_temporary(struct build *b, int64_t nodes, int64_t rows, int64_t cols,
                                 int32_t dtype)
{
	uint64_t count = (uint64_t)((nodes ? nodes : 1) * rows * cols);

	return (struct value){ .buffer = build_add_buffer(b, tess_width(dtype) * count),
		               .dtype = dtype,
		               .nodes = nodes,
		               .rows = rows,
		               .cols = cols,
		               .row_stride = cols,
		               .node_stride = rows * cols };
}

struct value *build_get_value(struct build *b, const struct tess_tensor *t)
{
	int32_t partial = tess_places_find(t->place, b->p->mesh.ndims, TESS_PARTIAL, 0);
	struct value *v = &b->value[t->id];
	int64_t rows = 1, cols = 1;

	if (v->allocated)
		return v;
	for (int32_t i = 0; i < t->ndim; i++) {
		int64_t n = build_get_local_size(b, t, i);

		if (i < t->ndim - 1 || (i == 0 && !tess_tensor_is_vector(t)))
			rows *= n;
		else
			cols = n;
	}
	*v = build_add_temporary(b, 0, rows, cols, t->dtype);
	if (partial >= 0 && t->place[partial].op != TESS_MAX) {
		int64_t nodes = count_local_nodes(b, t, partial);

		b->nbuffers--;
		*v = build_add_temporary(b, nodes, v->rows, v->cols, t->dtype);
		v->partial = true;
	}
	v->allocated = true;
	return v;
}

struct value build_slice_value(const struct value *v, int64_t row, int64_t rows, int64_t col,
                               int64_t cols)
{
	struct value part = *v;

	part.offset += tess_width(v->dtype) * (uint64_t)(row * v->row_stride + col);
	part.rows = rows;
	part.cols = cols;
	return part;
}

bool build_is_dense(const struct value *v)
{
	return v->row_stride == v->cols || v->rows <= 1;
}

static bool is_whole_buffer(const struct build *b, const struct value *v)
{
	uint64_t bytes = align_to_line(tess_width(v->dtype) * (uint64_t)(v->rows * v->cols));

	return !v->partial && !v->offset && build_is_dense(v) &&
	       bytes == b->buffer[v->buffer].life.bytes &&
	       b->buffer[v->buffer].space == TESS_SPACE_STEP;
}

void build_allow_in_place(struct build *b, const struct value *from, const struct value *to)
{
	struct in_place *list;

	if (b->status || !is_whole_buffer(b, from) || !is_whole_buffer(b, to) ||
	    from->rows != to->rows || from->cols != to->cols || from->dtype != to->dtype)
		return;
	list = tess_arena_grow(&b->l->arena, b->in_place, (size_t)b->nin_place, sizeof *list);
	if (!list) {
		b->status = TESS_ENOMEM;
		return;
	}
	b->in_place = list;
	b->in_place[b->nin_place++] = (struct in_place){ from->buffer, to->buffer };
}

/* Returns the buffer whose memory `i` uses. */
static int32_t find_memory(const struct build *b, int32_t i)
{
	while (b->buffer[i].in_place >= 0)
		i = b->buffer[i].in_place;
	return i;
}

/* Lets outs reuse the memory of operands whose last reader is the same step. */
static void join_buffers(struct build *b)
{
	for (int32_t i = 0; i < b->nin_place; i++) {
		int32_t memory = find_memory(b, b->in_place[i].from), to = b->in_place[i].to;
		struct tess_lifetime *was = &b->buffer[memory].life, *is = &b->buffer[to].life;

		if (b->buffer[to].in_place >= 0 || was->last != is->first ||
		    is->last == is->first || was->bytes != is->bytes)
			continue;
		b->buffer[to].in_place = memory;
		was->last = is->last;
	}
}

/* Marks ops whose outs only the next op reads. Values for the host stay in use to the end. */
static void mark_only_next(struct build *b)
{
	for (int32_t i = 0; i < b->nuses; i++) {
		const struct use *o = &b->use[i];
		const struct buffer *memory = &b->buffer[o->buffer];
		struct tess_step *s = b->l->step[o->step];

		if (o->view < s->op.nin)
			continue;
		s->only_next = memory->space == TESS_SPACE_STEP &&
		               memory->life.last <= o->step + 1 && o->step + 2 < b->l->nsteps &&
		               (o->view == s->op.nin || s->only_next);
	}
}

/* Keeps what is sent until the slot is free: a send continues while the stage computes. */
static void keep_sent_values(struct build *b)
{
	for (int32_t i = 0; i < b->nbuffers; i++)
		if (b->buffer[i].sent)
			b->buffer[i].life.last = b->l->nsteps - 1;
}

/* Returns the index of the segment of a step. */
static int32_t find_segment_of(const struct tess_rank_program *l, int32_t step)
{
	int32_t lo = 0, hi = l->nsegments;

	while (hi - lo > 1) {
		int32_t mid = lo + (hi - lo) / 2;

		if (l->segment[mid].first <= step)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/*
 * Returns the stage whose slot has a buffer; -1: the step arena. A single micro-batch has one slot
 * on each stage, and packs best with all in it.
 */
static int32_t find_buffer_slot(const struct build *b, int32_t i)
{
	const struct buffer *memory = &b->buffer[i];
	bool several = tess_program_has_slots(b->p) && b->p->training->several;
	bool leaves = !several || memory->sent ||
	              find_segment_of(b->l, memory->life.first) !=
	                      find_segment_of(b->l, memory->life.last);

	return tess_program_has_slots(b->p) && leaves ? memory->stage : -1;
}

/* Plans the step arena, or the slot of a stage; sets the offsets of its buffers. */
static void plan_memory(struct build *b, int32_t slot, struct tess_lifetime *life, uint64_t *bytes)
{
	memset(life, 0, sizeof *life * (size_t)b->nbuffers);
	for (int32_t i = 0; i < b->nbuffers; i++)
		if (b->buffer[i].space == TESS_SPACE_STEP && b->buffer[i].in_place < 0 &&
		    b->buffer[i].life.first <= b->buffer[i].life.last &&
		    find_buffer_slot(b, i) == slot)
			life[i] = b->buffer[i].life;
	if (!b->status)
		b->status = tess_memory_plan_place(life, b->nbuffers, bytes);
	for (int32_t i = 0; i < b->nbuffers && !b->status; i++) {
		if (life[i].bytes)
			b->buffer[i].life.offset = life[i].offset;
		if (life[i].align) /* slots follow one another */
			*bytes = (*bytes + life[i].align - 1) & ~(life[i].align - 1);
	}
}

/* Sets the space and the offset of each patch of a buffer. */
static void place_patches(struct build *b)
{
	for (int32_t i = 0; i < b->l->npatches; i++) {
		struct tess_patch *p = &b->l->patch[i];
		int32_t memory, slot;

		if (p->space != TESS_SPACE_STEP && p->space != TESS_SPACE_INPUTS &&
		    p->space != TESS_SPACE_GRADIENTS)
			continue;
		memory = find_memory(b, p->buffer);
		slot = p->space == TESS_SPACE_STEP ? find_buffer_slot(b, memory) : -1;
		p->offset += b->buffer[memory].life.offset;
		if (slot < 0)
			continue;
		p->space = TESS_SPACE_SLOT;
		p->stage = slot;
	}
}

void build_place_buffers(struct build *b)
{
	struct tess_rank_program *l = b->l;
	struct tess_lifetime *life = TESS_NEW(&l->arena, struct tess_lifetime, b->nbuffers);

	l->slot_bytes = TESS_NEW(&l->arena, uint64_t, b->p->nstages);
	if (!life || !l->slot_bytes) {
		b->status = TESS_ENOMEM;
		return;
	}
	keep_sent_values(b);
	if (!b->p->training) /* a recomputed record would have other readers, and other bits */
		mark_only_next(b);
	else
		build_round_values(b);
	join_buffers(b);
	plan_memory(b, -1, life, &l->bytes);
	for (int32_t s = 0; s < b->p->nstages && tess_program_has_slots(b->p); s++)
		if (b->values[s])
			plan_memory(b, s, life, &l->slot_bytes[s]);
	if (!b->status)
		place_patches(b);
}

/* ---- segments -------------------------------------------------------------------------------- */

bool build_is_one_segment(const struct build *b, int32_t i, int32_t k)
{
	const struct tess_record *x = b->p->record[i], *y = b->p->record[k];

	return !tess_program_has_slots(b->p) || (x->stage == y->stage && x->action == y->action);
}

/* ---- steps ----------------------------------------------------------------------------------- */

bool build_has_record(const struct build *b, const struct tess_record *rec)
{
	return tess_program_has_stage(b->p, b->l->rank, rec->stage) ||
	       (rec->kind == TESS_REC_SEND &&
	        tess_program_has_stage(b->p, b->l->rank, (int32_t)rec->num[TESS_REC_SEND_TO]));
}

struct tess_step *build_add_step(struct build *b, int32_t kind)
{
	struct tess_rank_program *l = b->l;
	struct tess_step *s = TESS_NEW(&l->arena, struct tess_step, 1);
	struct tess_step **list =
		tess_arena_grow(&l->arena, l->step, (size_t)l->nsteps, sizeof *list);

	if (!s || !list) {
		b->status = TESS_ENOMEM;
		return &b->spare;
	}
	l->step = list;
	s->kind = kind;
	s->record = b->record;
	l->step[l->nsteps++] = s;
	return s;
}

void build_add_wait(struct build *b, struct tess_step *started)
{
	build_add_step(b, TESS_STEP_WAIT)->of = started;
}

struct tess_step *build_start_transfer(struct build *b, const struct tess_weight *w, int32_t what,
                                       bool writes, int64_t first, int64_t n,
                                       const struct value *at)
{
	struct tess_step *s = build_add_step(b, TESS_STEP_TRANSFER);

	align_for_transfer(b, at);
	s->started = true;
	s->transfer = TESS_NEW(&b->l->arena, struct tess_transfer, 1);
	if (!s->transfer) {
		b->status = TESS_ENOMEM;
		s->transfer = &b->spare_transfer;
	}
	*s->transfer = (struct tess_transfer){ .weight = w,
		                               .what = what,
		                               .first = first,
		                               .n = n,
		                               .writes = writes,
		                               .on_device = !tess_program_is_on_host(b->p) };
	build_add_pointer(b, &s->transfer->memory, at);
	return s;
}

struct tess_view build_make_view(const struct value *v)
{
	struct tess_view w = { .dtype = v->dtype,
		               .ndim = 2,
		               .shape = { v->rows, v->cols },
		               .stride = { v->row_stride, 1 } };

	if (!v->partial)
		return w;
	return (struct tess_view){ .dtype = v->dtype,
		                   .ndim = 3,
		                   .shape = { v->nodes, v->rows, v->cols },
		                   .stride = { v->node_stride, v->row_stride, 1 } };
}

struct tess_step *build_add_op(struct build *b, int32_t kind, int32_t nin, int32_t nout)
{
	struct tess_step *s = build_add_step(b, TESS_STEP_OP);

	s->in = TESS_NEW(&b->l->arena, struct tess_view, nin);
	s->out = TESS_NEW(&b->l->arena, struct tess_view, nout);
	if (!s->in || !s->out)
		b->status = TESS_ENOMEM;
	s->op = (struct tess_op){ .size = sizeof s->op,
		                  .kind = kind,
		                  .nin = nin,
		                  .nout = nout,
		                  .in = s->in,
		                  .out = s->out,
		                  .where = b->p->record[b->record]->module };
	return s;
}

/* Sets view i of the last step: of its operands, then its outs. */
static void set_view(struct build *b, struct tess_step *s, int32_t i, const struct value *v)
{
	struct tess_view *view = i < s->op.nin ? &s->in[i] : &s->out[i - s->op.nin];
	struct use *list;

	if (b->status)
		return;
	*view = build_make_view(v);
	build_add_pointer(b, &view->data, v);
	list = tess_arena_grow(&b->l->arena, b->use, (size_t)b->nuses, sizeof *list);
	if (!list) {
		b->status = TESS_ENOMEM;
		return;
	}
	b->use = list;
	b->use[b->nuses++] = (struct use){ b->l->nsteps - 1, i, v->buffer, b->l->npatches - 1 };
}

void build_set_input(struct build *b, struct tess_step *s, int32_t i, const struct value *v)
{
	set_view(b, s, i, v);
}

void build_set_output(struct build *b, struct tess_step *s, int32_t i, const struct value *v)
{
	set_view(b, s, s->op.nin + i, v);
}

void build_set_numbers(struct build *b, struct tess_op *op, int32_t n, const double *num)
{
	double *copy = TESS_NEW(&b->l->arena, double, n);

	if (!copy) {
		b->status = TESS_ENOMEM;
		return;
	}
	memcpy(copy, num, sizeof *copy * (size_t)n);
	op->nnum = n;
	op->num = copy;
}

struct value build_copy_dense(struct build *b, const struct value *v)
{
	struct value dense =
		build_add_temporary(b, v->partial ? v->nodes : 0, v->rows, v->cols, v->dtype);

	dense.partial = v->partial;
	build_add_copy(b, v, &dense);
	return dense;
}

void build_add_copy(struct build *b, const struct value *from, const struct value *to)
{
	struct tess_step *s;

	if (!from->rows || !from->cols || (from->partial && !from->nodes))
		return;
	s = build_add_op(b, TESS_OP_COPY, 1, 1);
	build_set_input(b, s, 0, from);
	build_set_output(b, s, 0, to);
}

void build_add_to_value(struct build *b, const struct value *x, const struct value *y)
{
	struct value of[2] = { *x, *y };
	struct tess_step *s;

	for (int32_t i = 0; i < 2; i++) { /* nodes are dense */
		of[i].rows *= of[i].partial ? of[i].nodes : 1;
		of[i].partial = false;
	}
	if (!of[0].rows || !of[0].cols)
		return;
	s = build_add_op(b, TESS_OP_ADD, 2, 1);
	build_set_input(b, s, 0, &of[1]);
	build_set_input(b, s, 1, &of[0]);
	build_set_output(b, s, 0, &of[1]);
}
