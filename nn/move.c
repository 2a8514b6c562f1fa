/*
 * move.c - the steps of a redistribution: pack, one collective, unpack; or a view where nothing has to move.
 *
 *	Replicate -> Shard(a)	a slice, which is a view where it is one run
 *	Shard(a) -> Replicate	all_gather of owned parts
 *	Shard(a) -> Shard(b)	all_to_all
 *	Partial -> Replicate	the exact sum, all of it everywhere
 *	Partial -> Shard(a)	the exact sum, each rank its share
 *	Replicate -> Partial	kept on rank 0
 */
#include "build.h"

#include "core/base/status.h"

struct axis { /* one axis of the value that is moved */
	const struct tess_dim *dim;
	int32_t at; /* 0 rows, 1 columns */
	int64_t pieces;
};

static struct axis axis_of(const struct tess_tensor *t, int32_t at)
{
	return (struct axis){ t->dim[at], at, tess_dim_pieces(t->dim[at]) };
}

static struct tess_run *runs_new(struct build *b, int64_t n)
{
	struct tess_run *run = TESS_NEW(&b->l->arena, struct tess_run, n);

	if (!run)
		b->status = TESS_ENOMEM;
	return run;
}

static uint64_t *counts_new(struct build *b)
{
	uint64_t *count = TESS_NEW(&b->l->arena, uint64_t, b->l->nranks);

	if (!count)
		b->status = TESS_ENOMEM;
	return count;
}

/* Elements [at, at + len) of one axis, all of the other. */
static struct value band(const struct value *v, int32_t axis, int64_t at, int64_t len)
{
	return axis ? build_part(v, 0, v->rows, at, len) : build_part(v, at, len, 0, v->cols);
}

/* Rows without gaps: what a collective can send or receive as it lies. */
static bool dense(const struct value *v)
{
	return v->row == v->cols || v->rows <= 1;
}

/* A dense block of rows x cols at element `at` of a buffer. */
static struct value block(const struct value *buffer, uint64_t at, int64_t rows, int64_t cols)
{
	struct value v = *buffer;

	v.offset += 4 * at;
	v.rows = rows;
	v.cols = v.row = cols;
	return v;
}

static struct tess_coll *collective(struct build *b, int32_t kind, const struct value *src,
                                    const struct value *dst)
{
	struct tess_coll *c = &build_step(b, TESS_STEP_COLL)->coll;

	*c = (struct tess_coll){ .size = sizeof *c,
		                 .kind = kind,
		                 .dtype = src->dtype,
		                 .op = TESS_SUM,
		                 .mem = TESS_HOST,
		                 .where = b->p->record[b->record]->module };
	if (!b->status) {
		build_point(b, (void **)&c->src, src);
		build_point(b, &c->dst, dst);
	}
	return c;
}

static void slice(struct build *b, const struct value *x, const struct tess_tensor *to)
{
	struct axis a = axis_of(to, to->place.dim);
	struct tess_run *run = runs_new(b, a.pieces);
	struct value *y, from, part;
	int64_t at = 0, n;

	if (!run)
		return;
	n = tess_axis_runs(a.dim, true, b->l->nranks, b->l->rank, run);
	if (a.pieces == 1) {
		b->value[to->id] = band(x, a.at, run[0].at, n);
		return;
	}
	y = build_value(b, to);
	for (int64_t i = 0; i < a.pieces; i++) {
		from = band(x, a.at, run[i].at, run[i].len);
		part = band(y, a.at, at, run[i].len);
		build_copy(b, &from, &part);
		at += run[i].len;
	}
}

/* What this rank owns of an axis that it holds a part of, dense: as it lies, or copied. */
static struct value owned(struct build *b, const struct value *x, const struct axis *a)
{
	struct tess_run *own = runs_new(b, a->pieces), *hold = runs_new(b, a->pieces);
	int64_t n = tess_dim_owned(a->dim, b->l->nranks, b->l->rank), at = 0;
	struct value all, from, part;

	if (!own || !hold)
		return *x;
	tess_dim_own(a->dim, b->l->nranks, b->l->rank, own);
	tess_dim_hold(a->dim, b->l->nranks, b->l->rank, hold);
	if (n == (a->at ? x->cols : x->rows) && dense(x))
		return *x;
	if (a->pieces == 1) {
		part = band(x, a->at, tess_runs_find(hold, 1, own[0].at), n);
		if (dense(&part))
			return part;
	}
	all = build_temp(b, 0, a->at ? x->rows : n, a->at ? n : x->cols, x->dtype);
	for (int64_t i = 0; i < a->pieces; i++) {
		from = band(x, a->at, tess_runs_find(hold, a->pieces, own[i].at), own[i].len);
		part = band(&all, a->at, at, own[i].len);
		build_copy(b, &from, &part);
		at += own[i].len;
	}
	return all;
}

/* What rank q owns of an axis, which came in one dense block, to where it belongs in a value that is whole there. */
static void spread(struct build *b, const struct value *from, const struct axis *a, int32_t q,
                   const struct value *to)
{
	struct tess_run *own = runs_new(b, a->pieces);
	struct value src, dst;
	int64_t at = 0;

	if (!own)
		return;
	tess_dim_own(a->dim, b->l->nranks, q, own);
	for (int64_t i = 0; i < a->pieces; i++) {
		src = band(from, a->at, at, own[i].len);
		dst = band(to, a->at, own[i].at, own[i].len);
		build_copy(b, &src, &dst);
		at += own[i].len;
	}
}

static void all_gather(struct build *b, const struct value *x, const struct tess_tensor *to,
                       int32_t cut)
{
	struct axis a = axis_of(to, cut);
	struct value *y = build_value(b, to), mine = owned(b, x, &a), all;
	uint64_t *get = counts_new(b), at = 0;
	/* in the order of ranks is in order where rows, or the columns of one row, are cut in one piece */
	bool direct = a.pieces == 1 && (cut == 0 || y->rows == 1);
	struct tess_coll *c;

	if (b->status)
		return;
	for (int32_t q = 0; q < b->l->nranks; q++) {
		int64_t n = tess_dim_owned(a.dim, b->l->nranks, q);

		get[q] = (uint64_t)(cut ? y->rows * n : n * y->cols);
	}
	all = direct ? *y : build_temp(b, 0, y->rows, y->cols, y->dtype);
	c = collective(b, TESS_ALL_GATHER, &mine, &all);
	c->count = get[b->l->rank];
	c->recv_counts = get;
	for (int32_t q = 0; q < b->l->nranks && !direct; q++) {
		int64_t n = tess_dim_owned(a.dim, b->l->nranks, q);
		struct value part = block(&all, at, cut ? y->rows : n, cut ? n : y->cols);

		spread(b, &part, &a, q, y);
		at += get[q];
	}
}

/* The block of `x` that rank q will hold of axis `a`, dense at element `at` of `to`. */
static void pack(struct build *b, const struct value *x, const struct axis *a, int32_t q,
                 const struct value *to, uint64_t at)
{
	struct tess_run *hold = runs_new(b, a->pieces);
	int64_t n, done = 0;
	struct value all, from, part;

	if (!hold)
		return;
	n = tess_axis_runs(a->dim, true, b->l->nranks, q, hold);
	all = block(to, at, a->at ? x->rows : n, a->at ? n : x->cols);
	all.node = to->node;
	for (int64_t i = 0; i < a->pieces; i++) {
		from = band(x, a->at, hold[i].at, hold[i].len);
		part = band(&all, a->at, done, hold[i].len);
		build_copy(b, &from, &part);
		done += hold[i].len;
	}
}

static void all_to_all(struct build *b, const struct value *x, const struct tess_tensor *from,
                       const struct tess_tensor *to)
{
	struct axis was = axis_of(from, from->place.dim), is = axis_of(to, to->place.dim);
	struct value *y = build_value(b, to), mine = owned(b, x, &was), out, in;
	uint64_t *give = counts_new(b), *get = counts_new(b), at = 0;
	int64_t own = was.at ? mine.cols : mine.rows, hold = is.at ? y->cols : y->rows;
	struct tess_coll *c;

	if (b->status)
		return;
	for (int32_t q = 0; q < b->l->nranks; q++) {
		give[q] = (uint64_t)(own * tess_dim_held(is.dim, b->l->nranks, q));
		get[q] = (uint64_t)(hold * tess_dim_owned(was.dim, b->l->nranks, q));
		at += give[q];
	}
	out = build_temp(b, 0, 1, (int64_t)at, x->dtype);
	in = build_temp(b, 0, y->rows, y->cols, x->dtype);
	at = 0;
	for (int32_t q = 0; q < b->l->nranks; q++) {
		pack(b, &mine, &is, q, &out, at);
		at += give[q];
	}
	c = collective(b, TESS_ALL_TO_ALL, &out, &in);
	c->send_counts = give;
	c->recv_counts = get;
	at = 0;
	for (int32_t q = 0; q < b->l->nranks; q++) {
		int64_t n = tess_dim_owned(was.dim, b->l->nranks, q);
		struct value part = block(&in, at, was.at ? y->rows : n, was.at ? n : y->cols);

		spread(b, &part, &was, q, y);
		at += get[q];
	}
}

static struct tess_step *sum(struct build *b, const struct tess_tensor *from,
                             const struct value *nodes, const struct value *to)
{
	struct tess_step *s = build_step(b, TESS_STEP_SUM);
	int64_t *n = TESS_NEW(&b->l->arena, int64_t, TESS_MOST_TREES);

	if (!n) {
		b->status = TESS_ENOMEM;
		return s;
	}
	s->sum = (struct tess_sum){ .ntree = tess_sum_trees(from->sum, n),
		                    .n = n,
		                    .count = (uint64_t)nodes->node,
		                    .where = b->p->record[b->record]->module };
	build_point(b, (void **)&s->sum_in, nodes);
	build_point(b, (void **)&s->sum_out, to);
	return s;
}

/* Each rank its share: the nodes are packed rank after rank where the shares do not lie so by themselves. */
static void reduce_scatter(struct build *b, const struct value *x, const struct tess_tensor *from,
                           const struct tess_tensor *to)
{
	struct axis a = axis_of(to, to->place.dim);
	struct value *y = build_value(b, to), all = *x;
	uint64_t *share = counts_new(b), at = 0;
	bool direct = a.pieces == 1 && (a.at == 0 || (x->rows == 1 && a.dim->group == 1));
	struct tess_step *s;

	if (b->status)
		return;
	for (int32_t q = 0; q < b->l->nranks; q++) {
		int64_t n = tess_dim_held(a.dim, b->l->nranks, q);

		share[q] = (uint64_t)(a.at ? x->rows * n : n * x->cols);
		at += share[q];
	}
	if (!direct) {
		all = build_temp(b, x->nodes, 1, (int64_t)at, x->dtype);
		all.partial = true;
		at = 0;
		for (int32_t q = 0; q < b->l->nranks; q++) {
			pack(b, x, &a, q, &all, at);
			at += share[q];
		}
	}
	s = sum(b, from, &all, y);
	s->sum.share = share;
}

void build_move(struct build *b, const struct tess_record *rec)
{
	const struct tess_tensor *from = rec->in[0], *to = rec->out[0];
	struct value *x = build_value(b, from);

	if (b->status)
		return;
	if (from->place.kind == TESS_PARTIAL && to->place.kind == TESS_REPLICATE) {
		sum(b, from, x, build_value(b, to));
	} else if (from->place.kind == TESS_PARTIAL) {
		reduce_scatter(b, x, from, to);
	} else if (from->place.kind == TESS_REPLICATE && to->place.kind == TESS_SHARD) {
		slice(b, x, to);
	} else if (from->place.kind == TESS_REPLICATE) { /* one term, on rank 0 */
		struct value *y = build_value(b, to), node = *y;

		node.partial = false;
		if (b->l->rank == 0)
			build_copy(b, x, &node);
	} else if (to->place.kind == TESS_REPLICATE) {
		all_gather(b, x, to, from->place.dim);
	} else {
		all_to_all(b, x, from, to);
	}
}
