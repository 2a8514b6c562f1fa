#include "nn/weights.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/returned.h"
#include "nn/lower.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { SLAB = 4 << 20 }; /* bytes of a weight that are read at a time */

const struct tess_option tess_weights_options[] = {
	{ "layout", "",
	  "layout of linear weights in memory: panels or rows (as in the file); empty: what the "
	  "device wants" },
	{ NULL, NULL, NULL },
};

struct weights_loader {
	const struct tess_program *p;
	const struct tess_source *source;
	int32_t rank;
	struct tess_rank_weights *weights;
	struct tess_run *run[2]; /* of the axes of the current weight */
	void *dense; /* gathered rows; dense_bytes */
	size_t dense_bytes;
	bool *panels; /* per weight; NULL: all stay rows */
};

/* Bytes from the start of a stored weight. */
static uint64_t get_element_offset(const struct tess_view *v, int64_t i, int64_t k)
{
	return (uint64_t)(i * v->stride[0] + k * v->stride[1]) * tess_width(v->dtype);
}

/*
 * Weights that linear records read, directly or through a tied head, become panels. Not a table
 * whose head reads another part than the rank holds: that part need not start at a panel.
 */
static tess_status choose_panel_weights(struct weights_loader *l)
{
	const struct tess_program *p = l->p;

	l->panels = calloc((size_t)p->nweights + 1, sizeof *l->panels);
	if (!l->panels)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];

		for (int32_t k = 0; rec->kind == TESS_OP_LINEAR && k < rec->nweight; k++) {
			const struct tess_weight *w = rec->weight[k];

			l->panels[w->table ? w->table->index : w->index] = true;
		}
	}
	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i], *table = w->table;

		if (table && !tess_places_equal(w->place, table->place, p->mesh.ndims))
			l->panels[table->index] = false;
	}
	return TESS_OK;
}

static tess_status alloc_weight_memory(struct weights_loader *l, int32_t i, uint64_t bytes)
{
	tess_status st = tess_device_alloc(&l->weights->device, NULL, bytes ? bytes : 64,
	                                   &l->weights->allocated[i]);

	if (!st)
		l->weights->bytes += bytes;
	return st ? tess_fail_in(st, "%s", l->p->weight[i]->name) : st;
}

struct part { /* what this rank holds of a stored weight */
	struct tess_view whole;
	uint64_t bytes; /* of `whole` */
	int64_t rows, cols;
	bool scattered; /* several runs, unaligned, or not in memory: must be gathered */
};

static struct part get_local_part(struct weights_loader *l, const struct tess_weight *w,
                                  const struct tess_view *whole)
{
	struct part p = { .whole = *whole, .bytes = tess_width(whole->dtype), .cols = 1 };
	int64_t *n[2] = { &p.rows, &p.cols };

	p.scattered = !whole->data || (uintptr_t)whole->data % tess_width(whole->dtype) != 0;
	for (int32_t a = 0; a < w->ndim; a++) {
		*n[a] = tess_dim_list_local_runs(
			w->dim[a], tess_program_find_cut(l->p, l->rank, w->place, a), l->run[a]);
		p.bytes *= (uint64_t)whole->shape[a];
		if (tess_dim_count_pieces(w->dim[a]) > 1 && *n[a] != w->dim[a]->size)
			p.scattered = true;
	}
	return p;
}

/* Copies rows [from, from + n) of the part to `to`, dense; rows without gaps at once. */
static tess_status gather_rows(const struct weights_loader *l, const struct tess_weight *w,
                               const struct part *p, int64_t from, int64_t n, char *to)
{
	static const struct tess_run one = { 0, 1 };
	const struct tess_run *row = l->run[0], *col = w->ndim > 1 ? l->run[1] : &one;
	int64_t cols = w->ndim > 1 ? tess_dim_count_pieces(w->dim[1]) : 1;
	bool whole = cols == 1 && (w->ndim == 1 || col->len == p->whole.shape[1]);
	tess_status st = TESS_OK;

	for (int64_t a = 0; a < tess_dim_count_pieces(w->dim[0]); from -= row[a++].len) {
		int64_t lo = from > 0 ? from : 0,
			hi = from + n < row[a].len ? from + n : row[a].len;
		int64_t step = whole && hi > lo ? hi - lo : 1;

		for (int64_t r = lo; r < hi; r += step) {
			for (int64_t b = 0; b < cols && !st; b++) {
				uint64_t bytes =
					(uint64_t)(step * col[b].len) * tess_width(p->whole.dtype);

				st = tess_source_read(l->source, w->name, &p->whole,
				                      get_element_offset(&p->whole,
				                                         row[a].start + r,
				                                         col[b].start),
				                      bytes, to);
				to += bytes;
			}
		}
	}
	return st;
}

/* A view of the same rows: in the mapping, or gathered in l->dense. */
static tess_status view_rows(struct weights_loader *l, const struct tess_weight *w,
                             const struct part *p, int64_t from, int64_t n, struct tess_view *out)
{
	size_t bytes = (size_t)(n * p->cols) * tess_width(p->whole.dtype);
	struct tess_view v = p->whole;
	tess_status st;

	v.shape[0] = n;
	if (w->ndim > 1)
		v.shape[1] = p->cols;
	if (!p->scattered) {
		v.data = (char *)v.data + get_element_offset(&v, l->run[0][0].start + from,
		                                             w->ndim > 1 ? l->run[1][0].start : 0);
		*out = v;
		return TESS_OK;
	}
	if (!l->dense || bytes > l->dense_bytes) {
		free(l->dense);
		l->dense = malloc(bytes + 1);
		l->dense_bytes = bytes;
	}
	if (!l->dense)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", w->name);
	st = gather_rows(l, w, p, from, n, l->dense);
	v.data = l->dense;
	v.stride[0] = w->ndim > 1 ? p->cols : 1;
	v.stride[1] = 1;
	*out = v;
	return st;
}

static void swap_axes(struct tess_view *v)
{
	int64_t shape = v->shape[0], stride = v->stride[0];

	v->shape[0] = v->shape[1];
	v->stride[0] = v->stride[1];
	v->shape[1] = shape;
	v->stride[1] = stride;
}

/*
 * Copies rows, or packs panels, into allocated memory: slab by slab, dropping mapped pages once
 * read, so that no weight is in memory twice. A slab of a weight that is stored [in, out] is a run
 * of columns of all panels.
 */
static tess_status load_into_memory(struct weights_loader *l, int32_t i, const struct part *p,
                                    bool panels)
{
	const struct tess_weight *w = l->p->weight[i];
	const struct tess_opened_device *d = &l->weights->device;
	bool transposed = panels && w->in_out;
	int64_t element_size = (int64_t)tess_width(p->whole.dtype), row = p->cols * element_size, n;
	int64_t outs = transposed ? p->cols : p->rows, ins = transposed ? p->rows : p->cols;
	int64_t step = tess_up(SLAB, 16 * row + 1) * 16;
	tess_status st = alloc_weight_memory(
		l, i, (uint64_t)((panels ? tess_up(outs, 16) * 16 : outs) * ins * element_size));
	struct tess_view to = p->whole, rows;

	to.layout = panels ? TESS_PANELS : TESS_ROWS;
	to.shape[0] = outs;
	if (w->ndim > 1)
		to.shape[1] = ins;
	to.stride[0] = panels ? 16 * ins : w->ndim > 1 ? ins : 1;
	to.stride[1] = panels ? 16 : 1;
	to.data = l->weights->allocated[i];
	l->weights->view[i] = to;
	for (int64_t at = 0; at < p->rows && !st; at += n) {
		n = p->rows - at < step ? p->rows - at : step;
		st = view_rows(l, w, p, at, n, &rows);
		if (st)
			break;
		if (transposed)
			swap_axes(&rows);
		to.data = (char *)l->weights->allocated[i] +
		          at * (transposed ? 16 * element_size : row);
		st = panels ? TESS_PLUGIN_CALL(d->table, w->name, pack, d->self, &rows, &to)
		            : tess_device_move(d, w->name, to.data, rows.data, (uint64_t)(n * row));
		l->source->drop(l->source->self, p->whole.data, p->bytes);
	}
	if (w->in_out && !panels)
		swap_axes(&l->weights->view[i]);
	return st;
}

static tess_status load_weight(struct weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	bool panels = w->ndim == 2 && l->panels && l->panels[i],
	     host = tess_device_is_host(&l->weights->device);
	struct tess_view whole;
	struct part p;
	tess_status st = l->source->find(l->source->self, w->name, &whole);

	if (st)
		return st;
	p = get_local_part(l, w, &whole);
	if (!host && !panels && w->ndim > 1 && p.cols < whole.shape[1])
		p.scattered = true; /* rows are copied as they lie */
	if (!host || panels || p.scattered)
		return load_into_memory(l, i, &p, panels);
	st = view_rows(l, w, &p, 0, p.rows, &l->weights->view[i]); /* stays in the mapping */
	if (w->in_out)
		swap_axes(&l->weights->view[i]);
	return st;
}

/* A tied head: the part of its table, or a slice of a replicated table. */
static void load_tied_view(struct weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view *v = &l->weights->view[i];

	*v = l->weights->view[w->table->index];
	for (int32_t a = 0; a < 2; a++) {
		int32_t along = tess_places_find(w->place, l->p->mesh.ndims, TESS_SHARD, a);

		if (along < 0 || tess_place_is(w->table->place[along], TESS_SHARD, a))
			continue;
		v->shape[a] = tess_dim_list_local_runs(
			w->dim[a], tess_program_get_cut(l->p, l->rank, along), l->run[a]);
		v->data = (char *)v->data +
		          l->run[a][0].start * v->stride[a] * (int64_t)tess_width(v->dtype);
	}
}

static tess_status alloc_axis_runs(struct weights_loader *l)
{
	int64_t max_pieces = tess_program_max_pieces(l->p);

	l->run[0] = calloc((size_t)max_pieces * 2, sizeof *l->run[0]);
	l->run[1] = l->run[0] ? l->run[0] + max_pieces : NULL;
	return l->run[0] ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

tess_status tess_weights_read_layout(const struct tess_device *device, bool *panels)
{
	tess_status st = tess_option_add("nn/weights.c", tess_weights_options);
	const char *layout = tess_option_get("layout");

	if (!st && *layout && strcmp(layout, "panels") && strcmp(layout, "rows"))
		st = tess_fail(TESS_EINVAL, "TESSERA_LAYOUT=%s: use panels or rows", layout);
	if (!st)
		*panels = *layout ? !strcmp(layout, "panels") : device->layout == TESS_PANELS;
	return st;
}

tess_status tess_rank_weights_load(const struct tess_program *p, const struct tess_source *source,
                                   int32_t rank, const struct tess_opened_device *device,
                                   struct tess_rank_weights *out)
{
	struct tess_rank_weights h = { .n = p->nweights, .device = *device };
	struct weights_loader l = { .p = p, .source = source, .rank = rank, .weights = &h };
	bool panels = false;
	tess_status st = tess_weights_read_layout(device->table, &panels);

	if (!st)
		st = alloc_axis_runs(&l);
	if (!st && panels)
		st = choose_panel_weights(&l);
	h.view = calloc((size_t)p->nweights + 1, sizeof *h.view);
	h.allocated = calloc((size_t)p->nweights + 1, sizeof *h.allocated);
	if (!st && (!h.view || !h.allocated))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < p->nweights && !st; i++) {
		if (p->weight[i]->table)
			load_tied_view(&l, i);
		else
			st = load_weight(&l, i);
	}
	free(l.run[0]);
	free(l.dense);
	free(l.panels);
	if (st)
		tess_rank_weights_free(&h);
	else
		*out = h;
	return st;
}

void tess_rank_weights_free(struct tess_rank_weights *h)
{
	if (!h)
		return;
	for (int32_t i = 0; i < h->n && h->allocated; i++)
		tess_device_free(&h->device, h->allocated[i]);
	free(h->allocated);
	free(h->view);
	*h = (struct tess_rank_weights){ 0 };
}
