#include "nn/lower.h"

#include "core/base/status.h"
#include "nn/build.h"
#include "nn/check.h"

#include <string.h>
#include <tessera/reduce.h>

/* ---- shapes ---------------------------------------------------------------------------------- */

int64_t tess_dim_list_local_runs(const struct tess_dim *d, struct tess_cut cut,
                                 struct tess_run *runs)
{
	int64_t n = 0;

	tess_dim_get_local_runs(d, cut.nranks, cut.rank, runs);
	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++)
		n += runs[i].len;
	return n;
}

/*
 * The distinct bases of a dim's pieces, in order, into base[tess_dim_count_pieces]: parts with a
 * common base are added in one tree.
 */
static int32_t list_bases(const struct tess_dim *dim, const struct tess_dim **base)
{
	int32_t n = 0;

	for (int64_t i = 0; i < tess_dim_count_pieces(dim); i++) {
		int64_t at;
		const struct tess_dim *b = tess_dim_get_piece(dim, i, &at)->base;
		int32_t k = 0;

		while (k < n && base[k] != b)
			k++;
		if (k == n)
			base[n++] = b;
	}
	return n;
}

int32_t tess_dim_list_trees(struct tess_arena *arena, const struct tess_dim *dim, const int64_t **n)
{
	static const int64_t one = 1;
	int64_t pieces = dim ? tess_dim_count_pieces(dim) : 0;
	const struct tess_dim **base = TESS_NEW(arena, const struct tess_dim *, pieces);
	int64_t *units = TESS_NEW(arena, int64_t, pieces);
	int32_t count;

	*n = dim ? units : &one;
	if (!dim || !base || !units)
		return dim ? 0 : 1;
	count = list_bases(dim, base);
	for (int32_t i = 0; i < count; i++)
		units[i] = base[i]->nunits;
	return count;
}

static void set_numbers(struct build *b, struct tess_op *op, int32_t n, const double *num)
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

/*
 * The trees of a contraction over `dim`: the units that this rank adds, and the bounds of each unit
 * on the local axis. Elements that are held but not owned are in no unit.
 */
static void set_trees(struct build *b, struct tess_op *op, const struct tess_dim *dim,
                      struct tess_cut cut)
{
	int64_t pieces = tess_dim_count_pieces(dim);
	const struct tess_dim **base = TESS_NEW(&b->l->arena, const struct tess_dim *, pieces);
	struct tess_run *runs = TESS_NEW(&b->l->arena, struct tess_run, pieces);
	struct tess_term *term = TESS_NEW(&b->l->arena, struct tess_term, pieces);
	struct tess_tree *tree = TESS_NEW(&b->l->arena, struct tess_tree, pieces);
	int32_t n, nterm = 0;

	if (!base || !runs || !term || !tree) {
		b->status = TESS_ENOMEM;
		return;
	}
	n = list_bases(dim, base);
	tess_dim_list_local_runs(dim, cut, runs);
	for (int32_t t = 0; t < n; t++) {
		tree[t].n = base[t]->nunits;
		tree[t].first = nterm;
		for (int64_t i = 0; i < pieces; i++) {
			int64_t at, *bound;
			const struct tess_dim *piece = tess_dim_get_piece(dim, i, &at);

			if (piece->base != base[t])
				continue;
			tess_dim_get_rank_units(piece, cut.nranks, cut.rank, &tree[t].lo,
			                        &tree[t].hi);
			bound = TESS_NEW(&b->l->arena, int64_t, tree[t].hi - tree[t].lo + 1);
			for (int64_t u = tree[t].lo; u <= tree[t].hi && bound; u++)
				bound[u - tree[t].lo] = tess_runs_get_local_index(
					runs, pieces, at + tess_dim_get_unit_start(piece, u));
			term[nterm++].bound = bound;
			b->status = bound ? b->status : TESS_ENOMEM;
		}
		tree[t].terms = nterm - tree[t].first;
	}
	op->ntree = n;
	op->tree = tree;
	op->nterm = nterm;
	op->term = term;
}

/* ---- records of each kind -------------------------------------------------------------------- */

/* This rank's columns of a replicated value: a view of one run, or a copy of several. */
static struct value slice_local_cols(struct build *b, const struct value *x,
                                     const struct tess_dim *dim, struct tess_cut cut)
{
	int64_t pieces = tess_dim_count_pieces(dim), at = 0;
	struct tess_run *run = TESS_NEW(&b->l->arena, struct tess_run, pieces);
	struct value all, from, to;
	int64_t n;

	if (!run) {
		b->status = TESS_ENOMEM;
		return *x;
	}
	n = tess_dim_list_local_runs(dim, cut, run);
	if (pieces == 1)
		return build_slice_value(x, 0, x->rows, run[0].start, n);
	all = build_add_temporary(b, 0, x->rows, n, x->dtype);
	for (int64_t i = 0; i < pieces; i++) {
		from = build_slice_value(x, 0, x->rows, run[i].start, run[i].len);
		to = build_slice_value(&all, 0, x->rows, at, run[i].len);
		build_add_copy(b, &from, &to);
		at += run[i].len;
	}
	return all;
}

static int64_t get_weight_local_size(const struct build *b, const struct tess_weight *w,
                                     int32_t axis)
{
	struct tess_cut cut = build_find_cut(b, w->place, axis);

	return tess_dim_get_local_size(w->dim[axis], cut.nranks, cut.rank);
}

static struct tess_view make_weight_view(struct build *b, const struct tess_weight *w)
{
	int64_t n[2];

	if (b->weights)
		return b->weights[w->index];
	n[0] = get_weight_local_size(b, w, w->in_out);
	n[1] = w->ndim < 2 ? 0 : get_weight_local_size(b, w, !w->in_out);
	return (struct tess_view){ .dtype = w->dtype,
		                   .ndim = w->ndim,
		                   .shape = { n[0], n[1] },
		                   .stride = { w->ndim < 2 ? 1 : n[1], 1 } };
}

/* The mesh dimension that cuts a weight's input; -1: none. */
static int32_t find_input_cut(const struct build *b, const struct tess_weight *w)
{
	return tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, w->in_dim);
}

/*
 * One op for the weights of `rec` whose input mesh dimension `along` cuts (-1: none does): their
 * trees are the same.
 */
static void lower_linear_group(struct build *b, const struct tess_record *rec, int32_t along)
{
	const struct tess_tensor *x = rec->in[0];
	struct value part = *build_get_value(b, x);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, along);
	int32_t n = 0, k = 0;
	struct tess_step *s;

	for (int32_t i = 0; i < rec->nweight; i++)
		n += find_input_cut(b, rec->weight[i]) == along;
	if (!n || !part.rows)
		return;
	if (along >= 0 && x->place[along].kind == TESS_REPLICATE)
		part = slice_local_cols(b, &part, x->dim[1], cut);
	s = build_add_op(b, TESS_OP_LINEAR, 1 + n, n);
	build_set_input(b, s, 0, &part);
	for (int32_t i = 0; i < rec->nweight && !b->status; i++) {
		const struct tess_weight *w = rec->weight[i];

		if (find_input_cut(b, w) != along)
			continue;
		s->in[1 + k] = make_weight_view(b, w);
		build_set_output(b, s, k++, build_get_value(b, rec->out[i]));
		if (k == 1)
			set_trees(b, &s->op, w->dim[w->in_dim], cut);
	}
}

static void lower_linear(struct build *b, const struct tess_record *rec)
{
	for (int32_t i = -1; i < b->p->mesh.ndims; i++)
		lower_linear_group(b, rec, i);
}

static void lower_embed(struct build *b, const struct tess_record *rec)
{
	const struct tess_weight *w = rec->weight[0];
	int32_t along = tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, 0);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, along);
	struct value *ids = build_get_value(b, rec->in[0]);
	double first;
	struct tess_step *s;

	if (w->dim[0]->nparts)
		b->status = tess_fail(TESS_ENOTSUP,
		                      "%s: a vocabulary of several parts is not supported",
		                      rec->module);
	if (!ids->rows || b->status)
		return;
	tess_dim_list_local_runs(w->dim[0], cut, b->runs);
	first = (double)b->runs[0].start;
	s = build_add_op(b, TESS_OP_EMBED, 2, 1);
	build_set_input(b, s, 0, ids);
	if (b->status)
		return;
	s->in[0].ndim = 1;
	s->in[1] = make_weight_view(b, w);
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
	set_numbers(b, &s->op, TESS_EMBED_NUMS, &first);
	if (along >= 0)
		set_trees(b, &s->op, w->dim[0], cut);
}

static void lower_norm(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!x->rows)
		return;
	s = build_add_op(b, TESS_OP_NORM, 1 + rec->nweight, 1);
	build_set_input(b, s, 0, x);
	for (int32_t i = 0; i < rec->nweight && !b->status; i++)
		s->in[1 + i] = make_weight_view(b, rec->weight[i]);
	build_set_output(b, s, 0, y);
	set_numbers(b, &s->op, rec->nnum, rec->num);
	set_trees(b, &s->op, rec->weight[0]->dim[0], (struct tess_cut){ 1, 0 });
}

static void lower_bias(struct build *b, const struct tess_record *rec)
{
	struct value *y = build_get_value(b, rec->in[0]), *out = build_get_value(b, rec->out[0]);
	const struct tess_weight *w = rec->weight[0];
	struct tess_cut cut = build_find_cut(b, rec->in[0]->place, 1);
	bool slice =
		cut.nranks > 1 && tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, 0) < 0;
	struct tess_view whole = make_weight_view(b, w), part;
	int64_t pieces = slice ? tess_dim_count_pieces(w->dim[0]) : 1, at = 0;

	b->runs[0] = (struct tess_run){ 0, whole.shape[0] };
	if (slice)
		tess_dim_list_local_runs(w->dim[0], cut, b->runs);
	for (int64_t i = 0; i < pieces && y->rows; i++) {
		struct value from = build_slice_value(y, 0, y->rows, at, b->runs[i].len), to;
		struct tess_step *s = build_add_op(b, TESS_OP_BIAS, 2, 1);

		to = build_slice_value(out, 0, y->rows, at, b->runs[i].len);
		part = whole;
		part.shape[0] = b->runs[i].len;
		if (part.data)
			part.data = (char *)part.data +
			            b->runs[i].start * (int64_t)tess_width(part.dtype);
		build_set_input(b, s, 0, &from);
		if (!b->status)
			s->in[1] = part;
		build_set_output(b, s, 0, &to);
		at += b->runs[i].len;
	}
}

static void lower_rope(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]);
	int64_t each = (int64_t)rec->num[TESS_ROPE_HEAD], before = 0;
	struct tess_view *table;
	struct tess_step *s;

	if (!x->rows || !x->cols)
		return;
	s = build_add_op(b, TESS_OP_ROPE, 3, 1);
	build_set_input(b, s, 0, x);
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
	set_numbers(b, &s->op, TESS_ROPE_NUMS, rec->num);
	if (b->status)
		return;
	s->in[1].ndim = 1;
	table = &s->in[2];
	*table = (struct tess_view){
		.dtype = TESS_F32, .ndim = 2, .shape = { 0, each }, .stride = { each, 1 }
	};
	for (int32_t i = 0; i < (int32_t)rec->num[TESS_REC_ROPE_TABLE]; i++)
		before += b->p->rope[i].each;
	build_add_patch(b, (struct tess_patch){ .pointer = &table->data,
	                                        .space = TESS_SPACE_ROPE,
	                                        .offset = (uint64_t)before,
	                                        .view = table });
}

static void lower_attention(struct build *b, const struct tess_record *rec)
{
	const struct tess_dim *q = rec->in[0]->dim[1], *k = rec->in[1]->dim[1];
	struct tess_cut cut = build_find_cut(b, rec->in[0]->place, 1);
	int32_t page_class = (int32_t)rec->num[TESS_REC_ATTENTION_CLASS];
	uint64_t *page = &b->l->page_class[page_class].bytes, keys = *page, bytes;
	int64_t lo, hi;
	struct tess_view *pages;
	struct tess_step *s;

	tess_dim_get_rank_units(q, cut.nranks, cut.rank, &lo, &hi);
	bytes = 64 * (uint64_t)build_get_value(b, rec->in[1])->cols *
	        tess_width((int32_t)rec->num[TESS_ATTENTION_DTYPE]);
	*page += 2 * bytes;
	if (!build_get_value(b, rec->in[0])->rows)
		return;
	s = build_add_op(b, TESS_OP_ATTENTION, 6, 1);
	for (int32_t i = 0; i < 5; i++)
		build_set_input(b, s, i, build_get_value(b, rec->in[i]));
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
	set_numbers(b, &s->op, TESS_ATTENTION_NUMS,
	            (double[TESS_ATTENTION_NUMS]){
			    [TESS_ATTENTION_SCALE] = rec->num[TESS_ATTENTION_SCALE],
			    [TESS_ATTENTION_WINDOW] = rec->num[TESS_ATTENTION_WINDOW],
			    [TESS_ATTENTION_HEAD] = (double)q->unit_size,
			    [TESS_ATTENTION_FIRST] = (double)lo,
			    [TESS_ATTENTION_GROUP] = (double)k->group,
			    [TESS_ATTENTION_KEYS] = (double)keys,
			    [TESS_ATTENTION_VALUES] = (double)(keys + bytes),
			    [TESS_ATTENTION_DTYPE] = rec->num[TESS_ATTENTION_DTYPE] });
	if (b->status)
		return;
	s->in[3].ndim = s->in[4].ndim = 1;
	pages = &s->in[5];
	*pages = (struct tess_view){ .dtype = TESS_I64, .ndim = 2, .stride = { 0, 1 } };
	build_add_patch(b, (struct tess_patch){ .pointer = &pages->data,
	                                        .space = TESS_SPACE_PAGES,
	                                        .page_class = page_class,
	                                        .view = pages });
}

static void lower_elementwise(struct build *b, const struct tess_record *rec)
{
	struct value *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!y->rows || !y->cols)
		return;
	s = build_add_op(b, rec->kind, rec->nin, 1);
	for (int32_t i = 0; i < rec->nin; i++)
		build_set_input(b, s, i, build_get_value(b, rec->in[i]));
	build_set_output(b, s, 0, y);
	set_numbers(b, &s->op, rec->nnum, rec->num);
}

/* The parts of a value are views, and need no step. */
static void lower_split(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]);
	int64_t at = 0;

	for (int32_t i = 0; i < rec->nout; i++) {
		int64_t cols = build_get_local_size(b, rec->out[i], 1);

		b->value[rec->out[i]->id] = build_slice_value(x, 0, x->rows, at, cols);
		at += cols;
	}
}

static void lower_select_rows(struct build *b, const struct tess_record *rec)
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

static void lower_call(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct value scratch =
		build_add_temporary(b, 0, 1, (int64_t)(rec->call->scratch + 3) / 4, TESS_F32);
	struct tess_step *s = build_add_step(b, TESS_STEP_CALL);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, rec->along);
	struct tess_view *view = TESS_NEW(&b->l->arena, struct tess_view, 2);

	if (!view) {
		b->status = TESS_ENOMEM;
		return;
	}
	s->call = rec->call;
	s->style = rec->style;
	s->where = rec->module;
	s->local = (struct tess_local){ .size = sizeof s->local,
		                        .rank = cut.rank,
		                        .nranks = cut.nranks,
		                        .state = rec->state,
		                        .in = &view[0],
		                        .out = &view[1] };
	view[0] = build_make_view(x);
	view[1] = build_make_view(y);
	build_add_pointer(b, &view[0].data, x);
	build_add_pointer(b, &view[1].data, y);
	build_add_pointer(b, &s->local.scratch, &scratch);
}

static void lower_record(struct build *b, const struct tess_record *rec)
{
	switch (rec->kind) {
	case TESS_OP_LINEAR:
		lower_linear(b, rec);
		break;
	case TESS_OP_EMBED:
		lower_embed(b, rec);
		break;
	case TESS_OP_NORM:
		lower_norm(b, rec);
		break;
	case TESS_OP_BIAS:
		lower_bias(b, rec);
		break;
	case TESS_OP_ROPE:
		lower_rope(b, rec);
		break;
	case TESS_OP_ATTENTION:
		lower_attention(b, rec);
		break;
	case TESS_OP_GLU:
	case TESS_OP_ADD:
		lower_elementwise(b, rec);
		break;
	case TESS_REC_MOVE:
		build_add_move(b, rec);
		break;
	case TESS_REC_SPLIT:
		lower_split(b, rec);
		break;
	case TESS_OP_SELECT_ROWS:
		lower_select_rows(b, rec);
		break;
	case TESS_REC_CALL:
		lower_call(b, rec);
		break;
	default:
		b->status = tess_fail(TESS_EBUG, "%s: no lowering for a record of kind %d",
		                      rec->module, (int)rec->kind);
	}
}

/* Logits are read as dense rows: where they are a part of a value, the last record copies them. */
static struct value make_dense_logits(struct build *b)
{
	struct value *v = build_get_value(b, b->p->logits), dense;

	if (build_is_dense(v))
		return *v;
	b->record--;
	dense = build_add_temporary(b, 0, v->rows, v->cols, v->dtype);
	build_add_copy(b, v, &dense);
	b->record++;
	return dense;
}

/* ---- a whole program ------------------------------------------------------------------------- */

/* The inputs lie one after another in memory of their own. */
static void place_inputs(struct build *b)
{
	const struct tess_program *p = b->p;
	const struct tess_tensor *const in[] = { p->ids, p->positions, p->slots, p->rows };
	uint64_t at = 0;

	for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
		int32_t buffer = build_get_value(b, in[i])->buffer;

		if (b->status)
			return;
		b->buffer[buffer].space = TESS_SPACE_INPUTS;
		b->buffer[buffer].offset = at;
		at += 4 * (uint64_t)in[i]->dim[0]->size;
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

tess_status tess_program_lower(const struct tess_program *p, int32_t rank,
                               const struct tess_view *weights, struct tess_rank_program **out)
{
	struct tess_arena arena = { 0 };
	struct tess_rank_program *l = TESS_NEW(&arena, struct tess_rank_program, 1);
	struct build b = { .p = p, .l = l, .weights = weights };
	struct value logits;

	if (!l)
		return TESS_ENOMEM;
	l->rank = rank;
	b.value = TESS_NEW(&arena, struct value, p->ntensors);
	b.runs = TESS_NEW(&arena, struct tess_run, tess_program_max_pieces(p));
	l->arena = arena;
	if (!b.value || !b.runs)
		b.status = TESS_ENOMEM;
	else
		set_page_classes(&b);
	if (!b.status)
		place_inputs(&b);
	for (b.record = 0; b.record < p->nrecords && !b.status; b.record++) {
		lower_record(&b, p->record[b.record]);
		if (p->check && !b.status)
			build_add_checks(&b, p->record[b.record]);
	}
	if (!b.status && (p->logits_root < 0 || p->logits_root == rank)) {
		logits = make_dense_logits(&b); /* they outlive the last record */
		build_add_pointer(&b, &l->logits, &logits);
	}
	if (!b.status)
		build_place_buffers(&b);
	if (b.status) {
		tess_rank_program_free(l);
		return b.status;
	}
	*out = l;
	return TESS_OK;
}

void tess_rank_program_free(struct tess_rank_program *l)
{
	struct tess_arena arena;

	if (!l)
		return;
	arena = l->arena;
	tess_arena_free(&arena);
}

void tess_rank_program_bind(struct tess_rank_program *l, const struct tess_memory *m)
{
	for (int32_t i = 0; i < l->npatches; i++) {
		const struct tess_patch *p = &l->patch[i];

		switch (p->space) {
		case TESS_SPACE_STEP:
			*p->pointer = (char *)m->step + p->offset;
			break;
		case TESS_SPACE_INPUTS:
			*p->pointer = (char *)m->inputs + p->offset;
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
	for (int32_t i = 0; i < l->nsteps; i++)
		l->step[i]->op.stream = l->step[i]->coll.stream = l->step[i]->sum.stream =
			m->stream;
}
