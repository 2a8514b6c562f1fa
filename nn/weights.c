#include "weights.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/lower.h"

#include <stdlib.h>
#include <string.h>

const struct tess_option tess_weights_options[] = {
	{ "layout", "panels",
	  "how linear weights lie in memory: panels (fast) or rows (as in the file)" },
	{ NULL, NULL, NULL },
};

struct load {
	const struct tess_program *p;
	const struct tess_source *source;
	int32_t nranks, rank;
	struct tess_held *h;
	struct tess_run *run[2]; /* of the axes of the weight at hand */
	bool panels;
};

static size_t width(int32_t dtype)
{
	return dtype == TESS_F32 ? 4 : 2;
}

static void *at(const struct tess_view *v, int64_t i, int64_t k)
{
	return (char *)v->data + (i * v->stride[0] + k * v->stride[1]) * (int64_t)width(v->dtype);
}

static bool linear_use(const struct tess_program *p, const struct tess_weight *w)
{
	for (int32_t i = 0; i < p->nrecords; i++)
		for (int32_t k = 0;
		     p->record[i]->kind == TESS_OP_LINEAR && k < p->record[i]->nweight; k++)
			if (p->record[i]->weight[k] == w || p->record[i]->weight[k]->table == w)
				return true;
	return false;
}

/* A head that reads another part of its table than the table's rank holds: panels would not start where it does. */
static bool viewed_otherwise(const struct tess_program *p, const struct tess_weight *table)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (p->weight[i]->table == table &&
		    !tess_place_same(p->weight[i]->home.use, table->home.use))
			return true;
	return false;
}

static tess_status take(struct load *l, int32_t i, uint64_t bytes)
{
	tess_status st = l->h->device->alloc(l->h->self, bytes ? bytes : 64, &l->h->own[i]);

	if (!st)
		l->h->bytes += bytes;
	return st ? tess_fail_in(st, "%s", l->p->weight[i]->name) : st;
}

/* The held runs of both axes, gathered into dense rows at `dst`. */
static void gather(const struct load *l, const struct tess_weight *w, const struct tess_view *whole,
                   void *dst)
{
	size_t one = width(whole->dtype);
	int64_t rows = tess_dim_pieces(w->dim[0]),
		cols = w->ndim > 1 ? tess_dim_pieces(w->dim[1]) : 1;
	char *to = dst;

	for (int64_t a = 0; a < rows; a++) {
		for (int64_t r = 0; r < l->run[0][a].len; r++) {
			for (int64_t b = 0; b < cols; b++) {
				struct tess_run c =
					w->ndim > 1 ? l->run[1][b] : (struct tess_run){ 0, 1 };

				memcpy(to, at(whole, l->run[0][a].at + r, c.at),
				       (size_t)c.len * one);
				to += (size_t)c.len * one;
			}
		}
	}
}

/* The part of a stored weight that this rank holds: a view where each axis is one run, else a dense copy. */
static tess_status part(struct load *l, int32_t i, const struct tess_view *whole,
                        struct tess_view *out, void **copy)
{
	const struct tess_weight *w = l->p->weight[i];
	bool several = false;
	int64_t n[2] = { 0, 1 };

	*out = *whole;
	*copy = NULL;
	for (int32_t a = 0; a < w->ndim; a++) {
		n[a] = tess_axis_runs(w->dim[a], tess_place_is(w->home.use, TESS_SHARD, a),
		                      l->nranks, l->rank, l->run[a]);
		several = several || (tess_dim_pieces(w->dim[a]) > 1 && n[a] != w->dim[a]->size);
		out->shape[a] = n[a];
	}
	if (!several && (uintptr_t)whole->data % width(whole->dtype) == 0) {
		out->data = at(whole, l->run[0][0].at, w->ndim > 1 ? l->run[1][0].at : 0);
		return TESS_OK;
	}
	*copy = malloc((size_t)(n[0] * n[1]) * width(whole->dtype) + 1);
	if (!*copy)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", w->name);
	gather(l, w, whole, *copy);
	out->data = *copy;
	out->stride[0] = n[1];
	out->stride[1] = 1;
	return TESS_OK;
}

static tess_status to_panels(struct load *l, int32_t i, const struct tess_view *rows)
{
	struct tess_view *v = &l->h->view[i];
	uint64_t bytes =
		(uint64_t)(tess_up(rows->shape[0], 16) * 16 * rows->shape[1]) * width(rows->dtype);
	tess_status st = take(l, i, bytes);

	*v = *rows;
	v->layout = TESS_PANELS;
	v->data = l->h->own[i];
	v->stride[0] = 16 * rows->shape[1];
	v->stride[1] = 16;
	return st ? st : l->h->device->pack(l->h->self, rows, v);
}

/* Rows that could not stay in the mapping. */
static tess_status keep(struct load *l, int32_t i, const void *rows, uint64_t bytes)
{
	tess_status st = take(l, i, bytes);

	l->h->view[i].data = l->h->own[i];
	return st ? st : l->h->device->copy(l->h->self, l->h->own[i], rows, bytes, NULL);
}

static void exchange(struct tess_view *v)
{
	int64_t shape = v->shape[0], stride = v->stride[0];

	v->shape[0] = v->shape[1];
	v->stride[0] = v->stride[1];
	v->shape[1] = shape;
	v->stride[1] = stride;
}

static tess_status load_weight(struct load *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view whole, rows;
	void *copy = NULL;
	tess_status st;

	st = l->source->find(l->source->self, w->name, &whole);
	if (!st)
		st = part(l, i, &whole, &rows, &copy);
	if (st)
		return st;
	if (w->in_out)
		exchange(&rows);
	if (w->ndim == 2 && l->panels && linear_use(l->p, w) && !viewed_otherwise(l->p, w)) {
		st = to_panels(l, i, &rows);
		l->source->drop(l->source->self, whole.data,
		                (uint64_t)(whole.shape[0] * whole.shape[1]) * width(whole.dtype));
	} else if (copy) {
		l->h->view[i] = rows;
		st = keep(l, i, copy,
		          (uint64_t)(rows.shape[0] * (w->ndim > 1 ? rows.shape[1] : 1)) *
		                  width(rows.dtype));
	} else {
		l->h->view[i] = rows; /* stays in the mapping */
	}
	free(copy);
	return st;
}

/* A tied head: its table's part, or a slice of a table that is whole. */
static void load_view(struct load *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view *v = &l->h->view[i];
	int32_t table = 0;

	while (l->p->weight[table] != w->table)
		table++;
	*v = l->h->view[table];
	if (tess_place_same(w->home.use, w->table->home.use))
		return;
	for (int32_t a = 0; a < 2; a++) {
		v->shape[a] = tess_axis_runs(w->dim[a], tess_place_is(w->home.use, TESS_SHARD, a),
		                             l->nranks, l->rank, l->run[a]);
		v->data =
			(char *)v->data + l->run[a][0].at * v->stride[a] * (int64_t)width(v->dtype);
	}
}

/* Room for the runs of the axis that has the most pieces. */
static tess_status runs_new(struct load *l)
{
	int64_t most = 1;

	for (int32_t i = 0; i < l->p->nweights; i++)
		for (int32_t a = 0; a < l->p->weight[i]->ndim; a++)
			if (tess_dim_pieces(l->p->weight[i]->dim[a]) > most)
				most = tess_dim_pieces(l->p->weight[i]->dim[a]);
	l->run[0] = calloc((size_t)most * 2, sizeof *l->run[0]);
	l->run[1] = l->run[0] ? l->run[0] + most : NULL;
	return l->run[0] ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

tess_status tess_held_load(const struct tess_program *p, const struct tess_source *source,
                           int32_t nranks, int32_t rank, const struct tess_device *device,
                           void *self, struct tess_held *out)
{
	struct tess_held h = { .n = p->nweights, .device = device, .self = self };
	struct load l = { .p = p, .source = source, .nranks = nranks, .rank = rank, .h = &h };
	const char *layout;
	tess_status st = tess_option_add("nn/weights.c", tess_weights_options);

	if (!st)
		st = runs_new(&l);
	layout = tess_option("layout");
	if (!st && strcmp(layout, "panels") && strcmp(layout, "rows"))
		st = tess_fail(TESS_EINVAL, "TESSERA_LAYOUT=%s: say panels or rows", layout);
	l.panels = !strcmp(layout, "panels");
	h.view = calloc((size_t)p->nweights + 1, sizeof *h.view);
	h.own = calloc((size_t)p->nweights + 1, sizeof *h.own);
	if (!st && (!h.view || !h.own))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < p->nweights && !st; i++) {
		if (p->weight[i]->table)
			load_view(&l, i);
		else
			st = load_weight(&l, i);
	}
	free(l.run[0]);
	if (st)
		tess_held_free(&h);
	else
		*out = h;
	return st;
}

void tess_held_free(struct tess_held *h)
{
	if (!h)
		return;
	for (int32_t i = 0; i < h->n && h->own; i++)
		if (h->own[i])
			h->device->free(h->self, h->own[i]);
	free(h->own);
	free(h->view);
	*h = (struct tess_held){ 0 };
}
