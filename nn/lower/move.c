/*
 * move.c - lowers a redistribution along one mesh dimension: pack, the collective that
 * core/shard/move.h chooses, unpack; or a view.
 *
 * A slice is a view of one range, or copies of several. A gather of logits may be for one rank. A
 * Partial is an exact sum, or a maximum of one value per row.
 *
 * A value moves to another stage of a pipeline by send and recv.
 *
 * On a device with inexact sums, a sum is one all_reduce or reduce_scatter.
 */
#include "core/base/status.h"
#include "core/shard/move.h"
#include "nn/lower/build.h"

#include <tessera/reduce.h>

struct axis { /* one axis of the moved value, and its cut before or after */
	const struct tess_dim *dim;
	int32_t index; /* 0: rows, 1: columns */
	int64_t pieces;
	struct tess_cut cut;
};

/* Returns the mesh dimension of the current record. */
static int32_t get_mesh_dim(const struct build *b)
{
	return b->p->record[b->record]->along;
}

static struct axis get_axis(const struct build *b, const struct tess_tensor *t)
{
	int32_t along = get_mesh_dim(b), at = t->place[along].dim;

	return (struct axis){ t->dim[at], tess_tensor_is_vector(t) ? 1 : at,
		              tess_dim_count_pieces(t->dim[at]),
		              tess_program_get_cut(b->p, b->l->rank, along) };
}

static struct tess_copy *alloc_copies(struct build *b, int64_t n)
{
	struct tess_copy *list = TESS_NEW(&b->l->arena, struct tess_copy, n);

	if (!list)
		b->status = TESS_ENOMEM;
	return list;
}

static uint64_t *alloc_counts(struct build *b, int32_t n)
{
	uint64_t *count = TESS_NEW(&b->l->arena, uint64_t, n);

	if (!count)
		b->status = TESS_ENOMEM;
	return count;
}

/* Returns elements [at, at + len) of one axis, with all of the other axis. */
static struct value slice_axis(const struct value *v, int32_t axis, int64_t at, int64_t len)
{
	return axis ? build_slice_value(v, 0, v->rows, at, len)
	            : build_slice_value(v, at, len, 0, v->cols);
}

struct value build_make_block(const struct value *buffer, uint64_t at, int64_t rows, int64_t cols)
{
	struct value v = *buffer;

	v.offset += tess_width(v.dtype) * at;
	v.rows = rows;
	v.cols = v.row_stride = cols;
	return v;
}

struct tess_coll *build_add_collective(struct build *b, int32_t along, int32_t kind,
                                       const struct value *src, const struct value *dst)
{
	struct tess_step *s = build_add_step(b, TESS_STEP_COLL);
	struct tess_coll *c = &s->coll;

	s->along = along;
	*c = (struct tess_coll){ .size = sizeof *c,
		                 .kind = kind,
		                 .dtype = src ? src->dtype : dst->dtype,
		                 .op = TESS_SUM,
		                 .mem = b->p->device ? b->p->device->mem : TESS_HOST,
		                 .where = b->p->record[b->record]->module };
	if (!b->status && src)
		build_add_pointer(b, (void **)&c->src, src);
	if (!b->status && dst)
		build_add_pointer(b, &c->dst, dst);
	return c;
}

/* Adds copies between two values along one of their axes. */
static void add_copies(struct build *b, const struct value *x, const struct value *y,
                       const struct axis *a, const struct tess_copy *list)
{
	for (int64_t i = 0; i < a->pieces; i++) {
		struct value from = slice_axis(x, a->index, list[i].from, list[i].len);
		struct value to = slice_axis(y, a->index, list[i].to, list[i].len);

		build_add_copy(b, &from, &to);
	}
}

static void add_slice(struct build *b, const struct value *x, const struct tess_tensor *to)
{
	struct axis a = get_axis(b, to);
	struct tess_copy *list = alloc_copies(b, a.pieces);

	if (!list)
		return;
	tess_move_list_held(a.dim, a.cut, list);
	if (a.pieces == 1)
		b->value[to->id] = slice_axis(x, a.index, list[0].from, list[0].len);
	else
		add_copies(b, x, build_get_value(b, to), &a, list);
}

/* Returns the part of an axis that this rank owns, dense: a view if possible, else a copy. */
static struct value pack_owned(struct build *b, const struct value *x, const struct axis *a)
{
	struct tess_copy *list = alloc_copies(b, a->pieces);
	int64_t n = tess_dim_get_owned_size(a->dim, a->cut.nranks, a->cut.rank);
	struct value all, part;

	if (!list || (n == (a->index ? x->cols : x->rows) && build_is_dense(x)))
		return *x;
	tess_move_list_owned(a->dim, a->cut, list);
	if (a->pieces == 1) {
		part = slice_axis(x, a->index, list[0].from, n);
		if (build_is_dense(&part))
			return part;
	}
	all = build_add_temporary(b, 0, a->index ? x->rows : n, a->index ? n : x->cols, x->dtype);
	add_copies(b, x, &all, a, list);
	return all;
}

/*
 * Copies the dense block of an axis that rank q owns to its place in `to`, which has the full axis.
 */
static void unpack_owned(struct build *b, const struct value *from, const struct axis *a, int32_t q,
                         const struct value *to)
{
	struct tess_copy *list = alloc_copies(b, a->pieces);

	if (!list)
		return;
	tess_move_list_gathered(a->dim, (struct tess_cut){ a->cut.nranks, q }, list);
	add_copies(b, from, to, a, list);
}

/* Returns the only rank along the mesh dimension of this move that gets `to`; -1: all do. */
static int32_t get_logits_root(const struct build *b, const struct tess_tensor *to)
{
	if (to != b->p->logits || b->p->logits_root < 0)
		return -1;
	return tess_program_get_cut(b->p, b->p->logits_root, get_mesh_dim(b)).rank;
}

/* Gathers to all ranks, or, for logits, to the rank that uses them. */
static void add_gather(struct build *b, const struct value *x, const struct tess_tensor *from,
                       const struct tess_tensor *to)
{
	struct axis a = get_axis(b, from);
	int32_t root = get_logits_root(b, to);
	bool here = root < 0 || root == a.cut.rank;
	struct value mine = pack_owned(b, x, &a), *y = here ? build_get_value(b, to) : &mine, all;
	uint64_t *recv_counts = alloc_counts(b, a.cut.nranks), at = 0;
	/*
	 * one range of rows, or of the columns of one row: blocks in the order of ranks are in
	 * place
	 */
	bool direct = !here || (a.pieces == 1 && (a.index == 0 || y->rows == 1));
	struct tess_coll *c;

	if (b->status)
		return;
	tess_move_count_owned(a.dim, a.cut.nranks, a.index ? mine.rows : mine.cols, recv_counts);
	all = direct ? *y : build_add_temporary(b, 0, y->rows, y->cols, y->dtype);
	c = build_add_collective(b, get_mesh_dim(b), root < 0 ? TESS_ALL_GATHER : TESS_GATHER,
	                         &mine, &all);
	c->root = root < 0 ? 0 : root;
	c->count = recv_counts[a.cut.rank];
	c->recv_counts = recv_counts;
	for (int32_t q = 0; q < a.cut.nranks && !direct; q++) {
		int64_t n = tess_dim_get_owned_size(a.dim, a.cut.nranks, q);
		struct value part =
			build_make_block(&all, at, a.index ? y->rows : n, a.index ? n : y->cols);

		unpack_owned(b, &part, &a, q, y);
		at += recv_counts[q];
	}
}

/* Copies the part of axis `a` that rank q will hold to element `at` of `to`, dense. */
static void pack_block(struct build *b, const struct value *x, const struct axis *a, int32_t q,
                       const struct value *to, uint64_t at)
{
	struct tess_copy *list = alloc_copies(b, a->pieces);
	int64_t n = tess_dim_get_local_size(a->dim, a->cut.nranks, q);
	struct value all;

	if (!list)
		return;
	tess_move_list_held(a->dim, (struct tess_cut){ a->cut.nranks, q }, list);
	all = build_make_block(to, at, a->index ? x->rows : n, a->index ? n : x->cols);
	all.node_stride = to->node_stride;
	add_copies(b, x, &all, a, list);
}

static void add_all_to_all(struct build *b, const struct value *x, const struct tess_tensor *from,
                           const struct tess_tensor *to)
{
	struct axis was = get_axis(b, from), is = get_axis(b, to);
	int32_t n = is.cut.nranks;
	struct value *y = build_get_value(b, to), mine = pack_owned(b, x, &was), out, in;
	uint64_t *send_counts = alloc_counts(b, n), *recv_counts = alloc_counts(b, n), at = 0;
	struct tess_coll *c;

	if (b->status)
		return;
	tess_move_count_exchanged(was.dim, is.dim, is.cut, 1, send_counts, recv_counts);
	for (int32_t q = 0; q < n; q++)
		at += send_counts[q];
	out = build_add_temporary(b, 0, 1, (int64_t)at, x->dtype);
	in = build_add_temporary(b, 0, y->rows, y->cols, x->dtype);
	at = 0;
	for (int32_t q = 0; q < n; q++) {
		pack_block(b, &mine, &is, q, &out, at);
		at += send_counts[q];
	}
	c = build_add_collective(b, get_mesh_dim(b), TESS_ALL_TO_ALL, &out, &in);
	c->send_counts = send_counts;
	c->recv_counts = recv_counts;
	at = 0;
	for (int32_t q = 0; q < n; q++) {
		int64_t size = tess_dim_get_owned_size(was.dim, n, q);
		struct value part = build_make_block(&in, at, was.index ? y->rows : size,
		                                     was.index ? size : y->cols);

		unpack_owned(b, &part, &was, q, y);
		at += recv_counts[q];
	}
}

/* Adds one node of each rank, in the backend's order; a single term is only moved. */
static struct tess_step *add_fast_sum(struct build *b, int32_t along, const struct tess_dim *over,
                                      const struct value *nodes, const struct value *to,
                                      const uint64_t *share)
{
	int32_t all = over ? TESS_ALL_REDUCE : TESS_BROADCAST;
	int32_t part = over ? TESS_REDUCE_SCATTER : TESS_SCATTER;
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, along);
	struct value node = *to;
	struct tess_coll *c;

	if (cut.nranks == 1) {
		node.buffer = nodes->buffer;
		node.offset = nodes->offset;
		node.row_stride = node.cols;
		build_add_copy(b, &node, to);
		return NULL;
	}
	c = build_add_collective(b, along, share ? part : all, nodes, to);
	c->count = share ? share[cut.rank] : (uint64_t)nodes->node_stride;
	c->send_counts = share;
	return b->status ? &b->spare : b->l->step[b->l->nsteps - 1];
}

struct tess_step *build_add_sum(struct build *b, int32_t along, const struct tess_dim *over,
                                const struct value *nodes, const struct value *to,
                                const uint64_t *share)
{
	struct tess_step *s;

	if (!tess_program_is_exact(b->p))
		return add_fast_sum(b, along, over, nodes, to, share);
	s = build_add_step(b, TESS_STEP_SUM);
	s->along = along;
	s->sum = (struct tess_sum){ .count = (uint64_t)nodes->node_stride,
		                    .share = share,
		                    .where = b->p->record[b->record]->module,
		                    .mem = b->p->device ? b->p->device->mem : TESS_HOST };
	s->sum.ntree = tess_dim_list_trees(&b->l->arena, over, &s->sum.n);
	if (!s->sum.ntree)
		b->status = TESS_ENOMEM;
	build_add_pointer(b, (void **)&s->sum_in, nodes);
	build_add_pointer(b, (void **)&s->sum_out, to);
	return s;
}

/*
 * Adds a sum with a share for each rank: the nodes are packed in the order of ranks unless they are
 * stored so.
 */
static void add_reduce_scatter(struct build *b, const struct value *x,
                               const struct tess_tensor *from, const struct tess_tensor *to)
{
	struct axis a = get_axis(b, to);
	struct value *y = build_get_value(b, to), all = *x;
	uint64_t *share = alloc_counts(b, a.cut.nranks), at = 0;
	bool direct = a.pieces == 1 && (a.index == 0 || (x->rows == 1 && a.dim->group == 1));

	if (b->status)
		return;
	tess_move_count_held(a.dim, a.cut.nranks, a.index ? x->rows : x->cols, share);
	for (int32_t q = 0; q < a.cut.nranks; q++)
		at += share[q];
	if (!direct) {
		all = build_add_temporary(b, x->nodes, 1, (int64_t)at, x->dtype);
		all.partial = true;
		at = 0;
		for (int32_t q = 0; q < a.cut.nranks; q++) {
			pack_block(b, x, &a, q, &all, at);
			at += share[q];
		}
	}
	build_add_sum(b, get_mesh_dim(b), from->sum, &all, y, share);
}

/*
 * Computes maxima, which are independent of the order. On a device the op computes them: backends
 * of devices treat NaNs differently, so the call would go through host memory.
 */
static void add_maximum(struct build *b, const struct value *x, const struct value *y)
{
	int32_t n = b->p->mesh.dim[get_mesh_dim(b)].size;
	bool on_host = tess_program_is_on_host(b->p);
	struct value all = on_host ? *y : build_add_temporary(b, 0, n, x->rows, x->dtype), rows;
	struct tess_coll *c = build_add_collective(
		b, get_mesh_dim(b), on_host ? TESS_ALL_REDUCE : TESS_ALL_GATHER, x, &all);
	struct tess_step *s;

	c->op = TESS_MAX;
	c->count = (uint64_t)x->rows;
	if (on_host)
		return;
	rows = build_add_temporary(b, 0, x->rows, n, x->dtype);
	for (int32_t q = 0; q < n; q++) {
		struct value from = build_make_block(&all, (uint64_t)(q * x->rows), x->rows, 1);
		struct value to = build_slice_value(&rows, 0, x->rows, q, 1);

		build_add_copy(b, &from, &to);
	}
	s = build_add_op(b, TESS_OP_LOSS_MAX, 1, 1);
	build_set_input(b, s, 0, &rows);
	build_set_output(b, s, 0, y);
}

/* Uses the only node as the sum: one rank, on a device with sums in any order. */
static bool use_only_node(struct build *b, const struct tess_record *rec, const struct value *x)
{
	struct value *y = &b->value[rec->out[0]->id];

	if (rec->in[0]->place[rec->along].kind != TESS_PARTIAL || !x->partial || x->nodes != 1 ||
	    tess_program_is_exact(b->p) || b->p->mesh.dim[rec->along].size != 1 || y->allocated)
		return false;
	*y = build_make_block(x, 0, x->rows, x->cols);
	y->partial = false;
	y->nodes = 0;
	return true;
}

/* Adds a move that needs no other rank: of a replicated value. */
static void add_local_move(struct build *b, const struct value *x, const struct tess_tensor *to)
{
	struct value *y, node;

	if (to->place[get_mesh_dim(b)].kind == TESS_SHARD) {
		add_slice(b, x, to);
		return;
	}
	y = build_get_value(b, to); /* one term, on rank 0 */
	node = *y;
	node.partial = false;
	if (tess_program_get_cut(b->p, b->l->rank, get_mesh_dim(b)).rank == 0)
		build_add_copy(b, x, &node);
}

static void add_move_by_call(struct build *b, int32_t call, const struct value *x,
                             const struct tess_tensor *from, const struct tess_tensor *to)
{
	int32_t along = get_mesh_dim(b);

	if (from->place[along].op == TESS_MAX)
		add_maximum(b, x, build_get_value(b, to));
	else if (call == TESS_ALL_REDUCE)
		build_add_sum(b, along, from->sum, x, build_get_value(b, to), NULL);
	else if (call == TESS_REDUCE_SCATTER)
		add_reduce_scatter(b, x, from, to);
	else if (call == TESS_ALL_GATHER)
		add_gather(b, x, from, to);
	else
		add_all_to_all(b, x, from, to);
}

void build_add_move(struct build *b, const struct tess_record *rec)
{
	const struct tess_tensor *from = rec->in[0], *to = rec->out[0];
	struct tess_place was = from->place[rec->along];
	int32_t call = tess_move_choose_call(was, to->place[rec->along]);
	struct value *x = build_get_value(b, from);

	if (b->status || use_only_node(b, rec, x))
		return;
	if (!from->dim[0]->size) /* no rows are selected */
		build_get_value(b, to);
	else if (was.kind == TESS_SHARD && b->p->mesh.dim[rec->along].size == 1) /* complete */
		b->value[to->id] = *x;
	else if (call)
		add_move_by_call(b, call, x, from, to);
	else
		add_local_move(b, x, to);
}

/* Returns true if this rank has the coordinates of the rank that gets the logits, but for pp's. */
static bool is_beside_logits_root(const struct build *b)
{
	const struct tess_program *p = b->p;

	for (int32_t i = 0; i < p->mesh.ndims; i++)
		if (i != p->pipeline_along &&
		    tess_program_get_cut(p, b->l->rank, i).rank !=
		            tess_program_get_cut(p, p->logits_root, i).rank)
			return false;
	return true;
}

static bool has_elements(const struct value *v)
{
	return v->rows && v->cols && (!v->partial || v->nodes);
}

/* Copies a value to the slot of another stage of this rank. */
static void copy_to_stage(struct build *b, const struct tess_record *rec, int32_t to)
{
	struct value from, *v;

	build_use_stage(b, rec->stage);
	from = *build_get_value(b, rec->in[0]);
	build_use_stage(b, to);
	v = build_get_value(b, rec->in[0]);
	if (!b->status && has_elements(&from))
		build_add_copy(b, &from, v);
}

static void add_message(struct build *b, const struct tess_record *rec, bool sends, int32_t other)
{
	struct value v = *build_get_value(b, rec->in[0]);
	struct tess_coll *c;
	bool gaps;

	if (!has_elements(&v))
		return;
	gaps = v.partial && v.nodes > 1 && v.node_stride != v.rows * v.cols;
	if (sends && (gaps || !build_is_dense(&v)))
		v = build_copy_dense(b, &v);
	c = build_add_collective(b, rec->along, sends ? TESS_SEND : TESS_RECV, sends ? &v : NULL,
	                         sends ? NULL : &v);
	c->peer = b->p->stage_rank[other];
	c->count = (uint64_t)((v.partial ? v.nodes : 1) * v.rows * v.cols);
	if (!b->status && sends)
		b->buffer[v.buffer].sent =
			tess_program_has_slots(b->p) || tess_program_count_ahead(b->p) > 1;
}

/* Adds the move between ranks that differ in the stage only, and so hold parts of equal size. */
void build_add_send(struct build *b, const struct tess_record *rec)
{
	int32_t to = (int32_t)rec->num[TESS_REC_SEND_TO];
	bool sends = b->values[rec->stage] != NULL;

	if (rec->in[0] == b->p->logits && b->p->logits_root >= 0 && !is_beside_logits_root(b))
		return;
	if (sends && b->values[to]) {
		copy_to_stage(b, rec, to);
		return;
	}
	build_use_stage(b, sends ? rec->stage : to);
	add_message(b, rec, sends, sends ? to : rec->stage);
}
