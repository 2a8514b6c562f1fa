#include "nn/weights.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/returned.h"
#include "nn/lower.h"
#include "nn/quantized.h"
#include "nn/storage.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { SLAB = 4 << 20 }; /* bytes of a weight that are read at a time */
enum { SLAB_LEAST = 1 << 20, SLAB_MOST = 64 << 20 }; /* bytes of a slab of weights */
enum { PANEL = 16, PANELS_ALIGNMENT = 64 }; /* rows of a panel; bytes, as of alloc */

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
	struct tess_run *run[2]; /* of the axes of the current weight, or of its expert */
	struct file *file; /* that the current weight, or its expert, is stored in */
	void *dense; /* gathered rows; dense_bytes */
	size_t dense_bytes;
	char *panel; /* the part of a stored panel that rows are gathered from; panel_bytes */
	size_t panel_bytes;
	const struct file *panel_file; /* that it is from, and where */
	uint64_t panel_at;
	bool *panels; /* per weight; NULL: all stay rows */
	bool in_mapping; /* what needs no copy stays in the checkpoint's mapping */
	char *slab; /* what is left of it: slab_left bytes */
	uint64_t slab_left;
	bool shares_slab; /* the current weight, with one before it */
};

/* Bytes from the start of a stored matrix. */
static uint64_t get_element_offset(const struct tess_view *v, int64_t i, int64_t k)
{
	return (uint64_t)(i * v->stride[0] + k * v->stride[1]) * tess_width(v->dtype);
}

/*
 * Weights that linear records read, directly or through a tied head, become panels. Not a table
 * whose head reads another part than the rank holds: that part need not start at a panel.
 */
tess_status tess_weights_choose_panels(const struct tess_program *p, bool **out)
{
	bool *panels = calloc((size_t)p->nweights + 1, sizeof *panels);

	if (!panels)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];

		bool matrices = rec->kind == TESS_OP_LINEAR || rec->kind == TESS_OP_EXPERTS ||
		                rec->kind == TESS_OP_HEAD_LINEAR;

		for (int32_t k = 0; matrices && k < rec->nweight; k++) {
			const struct tess_weight *w = rec->weight[k];

			panels[w->table && !w->quantized ? w->table->index : w->index] = true;
		}
	}
	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i], *table = w->table;

		if (table && !tess_places_equal(w->place, table->place, p->mesh.ndims))
			panels[table->index] = false;
	}
	*out = panels;
	return TESS_OK;
}

/* Of the next slab: as much as was loaded so far, so that small models take little memory. */
static uint64_t choose_slab_bytes(const struct weights_loader *l)
{
	uint64_t bytes = l->weights->bytes / SLAB_LEAST * SLAB_LEAST;

	return bytes < SLAB_LEAST ? SLAB_LEAST : bytes > SLAB_MOST ? SLAB_MOST : bytes;
}

/*
 * Where nothing is freed before all is, weights of the host's memory share slabs, which fill huge
 * pages: what a slab does not use is not there. The first weight of a slab owns it.
 */
static tess_status alloc_weight_memory(struct weights_loader *l, int32_t i, uint64_t bytes)
{
	uint64_t room = bytes ? (bytes + 63) / 64 * 64 : 64, slab = choose_slab_bytes(l);
	bool shares = l->in_mapping && l->slab_left >= room;
	bool first = !shares && l->in_mapping && room <= slab / 4;
	tess_status st = TESS_OK;

	if (!shares)
		st = tess_device_alloc(&l->weights->device, NULL, first ? slab : room,
		                       &l->weights->allocated[i]);
	if (st)
		return tess_fail_in(st, "%s", l->p->weight[i]->name);
	if (first) {
		l->slab = l->weights->allocated[i];
		l->slab_left = slab;
	}
	if (first || shares) {
		l->weights->allocated[i] = l->slab;
		l->slab += room;
		l->slab_left -= room;
	}
	l->shares_slab = shares;
	l->weights->bytes += bytes;
	return TESS_OK;
}

struct file { /* a matrix, or a vector, that is stored in it */
	struct tess_view view; /* its data: all that find() gave */
	uint64_t at; /* bytes of it before the matrix, of other experts */
	char text[TESS_FILE_NAME];
	const char *name;
};

struct part { /* what this rank holds of a weight, or of one of its experts */
	const struct tess_weight *w;
	int32_t axis, out, nfiles; /* its first axis; which of its axes is the out dim's */
	int64_t rows, cols;
	int32_t dtype;
	struct file *file; /* [nfiles]: the parts of the out dim */
	bool scattered; /* several runs, unaligned, or not in memory: must be gathered */
	bool in_panels; /* a file of it has panels; else all have rows */
	bool usable; /* in panels that are mapped, whole, and what a linear record reads */
};

/* Finds a file; of experts that are stored together, the matrix of one. */
static tess_status find_file(const struct weights_loader *l, const struct tess_weight *w,
                             int64_t expert, int32_t part, struct file *f)
{
	tess_status st;

	f->at = 0;
	f->name = tess_files_format(&w->files, expert, part, f->text);
	st = l->source->find(l->source->self, f->name, &f->view);
	if (st || w->ndim < 3 || w->files.by_expert)
		return st;
	f->at = (uint64_t)(expert * f->view.stride[0]) * tess_width(f->view.dtype);
	f->view = (struct tess_view){ .data = f->view.data,
		                      .dtype = f->view.dtype,
		                      .ndim = 2,
		                      .shape = { f->view.shape[1], f->view.shape[2] },
		                      .stride = { f->view.stride[1], 1 } };
	return TESS_OK;
}

/* Where the first panel of the part lies in the mapping. */
static char *find_first_panel(const struct weights_loader *l, const struct part *p)
{
	return (char *)p->file->view.data +
	       get_element_offset(&p->file->view, l->run[0][0].start / PANEL, l->run[1][0].start);
}

/* The expert's part of a weight of several, else the weight's. */
static tess_status find_local_part(struct weights_loader *l, const struct tess_weight *w,
                                   int64_t expert, struct part *p)
{
	int32_t axis = w->ndim == 3, n = w->files.nparts;
	int64_t size[2] = { 1, 1 };
	tess_status st = TESS_OK;

	*p = (struct part){ .w = w,
		            .axis = axis,
		            .out = w->out_dim - axis,
		            .nfiles = n,
		            .dtype = w->dtype,
		            .file = l->file,
		            .scattered = n > 1 };
	for (int32_t i = 0; i < n && !st; i++) {
		st = find_file(l, w, expert, i, &p->file[i]);
		p->scattered = p->scattered || !p->file[i].view.data ||
		               (uintptr_t)p->file[i].view.data % tess_width(w->dtype) != 0;
		p->in_panels = p->in_panels || p->file[i].view.layout == TESS_PANELS;
	}
	for (int32_t a = axis; a < w->ndim; a++) {
		size[a - axis] = tess_dim_list_local_runs(
			w->dim[a], tess_program_find_cut(l->p, l->rank, w->place, a),
			l->run[a - axis]);
		if (tess_dim_count_pieces(w->dim[a]) > 1 && size[a - axis] != w->dim[a]->size)
			p->scattered = true;
	}
	p->rows = size[0];
	p->cols = size[1];
	l->panel_file = NULL;
	p->usable = p->in_panels && !p->scattered && !w->in_out && !w->heads &&
	            l->run[0][0].start % PANEL == 0 &&
	            (p->rows % PANEL == 0 || l->run[0][0].start + p->rows == w->dim[axis]->size) &&
	            (uintptr_t)find_first_panel(l, p) % PANELS_ALIGNMENT == 0;
	p->scattered = p->scattered || p->in_panels;
	return st;
}

/* Copies part of a row of a matrix that is stored in panels; keeps the panel for the next row. */
static tess_status read_panel_run(struct weights_loader *l, const struct file *f, int64_t row,
                                  int64_t col, uint64_t bytes, char *to)
{
	uint64_t width = tess_width(f->view.dtype), n = bytes / width;
	uint64_t at = get_element_offset(&f->view, row / PANEL, col);
	tess_status st = TESS_OK;

	if (bytes * PANEL > l->panel_bytes) {
		free(l->panel);
		l->panel = malloc(bytes * PANEL);
		l->panel_bytes = l->panel ? bytes * PANEL : 0;
		l->panel_file = NULL;
	}
	if (!l->panel)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", f->name);
	if (l->panel_file != f || l->panel_at != at)
		st = tess_source_read(l->source, f->name, &f->view, at, bytes * PANEL, l->panel);
	l->panel_file = f;
	l->panel_at = at;
	for (uint64_t k = 0; k < n && !st; k++)
		memcpy(to + k * width, l->panel + (k * PANEL + (uint64_t)row % PANEL) * width,
		       width);
	return st;
}

/* Copies a run of a row of the whole to `to`; `row` and `col` are the pieces of that. */
static tess_status read_run(struct weights_loader *l, const struct part *p, int64_t row,
                            int64_t at_row, int64_t col, int64_t at_col, uint64_t bytes, void *to)
{
	const struct file *f = p->file;
	int64_t before;

	if (p->nfiles > 1) { /* a piece is a file: count from its start */
		f += p->out ? col : row;
		tess_dim_get_piece(p->w->dim[p->axis + p->out], f - p->file, &before);
		*(p->out ? &at_col : &at_row) -= before;
	}
	if (f->view.layout == TESS_PANELS)
		return read_panel_run(l, f, at_row, at_col, bytes, to);
	return tess_source_read(l->source, f->name, &f->view,
	                        f->at + get_element_offset(&f->view, at_row, at_col), bytes, to);
}

/* Copies rows [from, from + n) of the part to `to`, dense; rows without gaps at once. */
static tess_status gather_rows(struct weights_loader *l, const struct part *p, int64_t from,
                               int64_t n, char *to)
{
	static const struct tess_run one = { 0, 1 };
	bool matrix = p->w->ndim > 1;
	const struct tess_dim *rows = p->w->dim[p->axis];
	const struct tess_run *row = l->run[0], *col = matrix ? l->run[1] : &one;
	int64_t cols = matrix ? tess_dim_count_pieces(p->w->dim[p->axis + 1]) : 1;
	bool whole =
		cols == 1 && !p->in_panels && (!matrix || col->len == p->w->dim[p->axis + 1]->size);
	tess_status st = TESS_OK;

	for (int64_t a = 0; a < tess_dim_count_pieces(rows); from -= row[a++].len) {
		int64_t lo = from > 0 ? from : 0,
			hi = from + n < row[a].len ? from + n : row[a].len;
		int64_t step = whole && hi > lo ? hi - lo : 1;

		for (int64_t r = lo; r < hi; r += step) {
			for (int64_t b = 0; b < cols && !st; b++) {
				uint64_t bytes =
					(uint64_t)(step * col[b].len) * tess_width(p->dtype);

				st = read_run(l, p, a, row[a].start + r, b, col[b].start, bytes,
				              to);
				to += bytes;
			}
		}
	}
	return st;
}

/* A view of the same rows: in the mapping, or gathered in l->dense. */
static tess_status view_rows(struct weights_loader *l, const struct part *p, int64_t from,
                             int64_t n, struct tess_view *out)
{
	size_t bytes = (size_t)(n * p->cols) * tess_width(p->dtype);
	bool matrix = p->w->ndim > 1;
	struct tess_view v = p->file[0].view;
	tess_status st;

	v.shape[0] = n;
	if (matrix)
		v.shape[1] = p->cols;
	if (!p->scattered) {
		v.data = (char *)v.data + p->file[0].at +
		         get_element_offset(&v, l->run[0][0].start + from,
		                            matrix ? l->run[1][0].start : 0);
		*out = v;
		return TESS_OK;
	}
	if (!l->dense || bytes > l->dense_bytes) {
		free(l->dense);
		l->dense = malloc(bytes + 1);
		l->dense_bytes = bytes;
	}
	if (!l->dense)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", p->w->name);
	st = gather_rows(l, p, from, n, l->dense);
	v.data = l->dense;
	v.layout = TESS_ROWS;
	v.stride[0] = matrix ? p->cols : 1;
	v.stride[1] = 1;
	*out = v;
	return st;
}

/* The file's pages will not be read again soon. */
static void drop_files(const struct weights_loader *l, const struct part *p)
{
	for (int32_t i = 0; i < p->nfiles; i++) {
		const struct tess_view *v = &p->file[i].view;
		uint64_t bytes = tess_width(v->dtype);

		for (int32_t a = 0; a < v->ndim; a++)
			bytes *= (uint64_t)v->shape[a];
		if (v->data)
			l->source->drop(l->source->self, (char *)v->data + p->file[i].at, bytes);
	}
}

/* A part in memory: of [outs, ins], by elements and, if not in panels, as stored. */
static struct tess_view make_loaded_view(const struct part *p, bool panels)
{
	bool transposed = panels && p->w->in_out;
	struct tess_view to = { .dtype = p->dtype,
		                .ndim = p->w->ndim - p->axis,
		                .layout = panels ? TESS_PANELS : TESS_ROWS,
		                .shape = { transposed ? p->cols : p->rows } };

	if (to.ndim > 1)
		to.shape[1] = transposed ? p->rows : p->cols;
	to.stride[0] = panels ? 16 * to.shape[1] : to.ndim > 1 ? to.shape[1] : 1;
	to.stride[1] = panels ? 16 : 1;
	return to;
}

/* Packs unit after unit: a unit has groups of its own. A slab has whole units of the inputs. */
static tess_status pack_quantized(const struct weights_loader *l, const struct part *p,
                                  const struct tess_view *rows, struct tess_view to)
{
	const struct tess_opened_device *d = &l->weights->device;
	struct tess_cut cut = tess_program_find_cut(l->p, l->rank, p->w->place, p->w->in_dim);
	const struct tess_dim *in = p->w->dim[p->w->in_dim];
	struct tess_view unit = *rows;
	char *data = to.data;
	int64_t lo, hi;
	tess_status st = TESS_OK;

	tess_dim_get_rank_units(in, cut.nranks, cut.rank, &lo, &hi);
	for (int64_t u = lo; u < hi && !st; u++) {
		unit.shape[1] = tess_dim_get_unit_start(in, u + 1) - tess_dim_get_unit_start(in, u);
		to.data = data;
		st = TESS_PLUGIN_CALL(d->table, p->w->name, pack, d->self, &unit, &to);
		data += tess_quantized_count_bytes(unit.shape[1]);
		unit.data = (char *)unit.data +
		            unit.shape[1] * unit.stride[1] * (int64_t)tess_width(unit.dtype);
	}
	return st ? tess_fail_in(st, "%s", p->w->name) : st;
}

static int64_t count_loaded_elements(const struct tess_view *v)
{
	return (v->layout == TESS_PANELS ? tess_up(v->shape[0], 16) * 16 : v->shape[0]) *
	       (v->ndim > 1 ? v->shape[1] : 1);
}

/*
 * Copies rows, or packs panels, to `to`, which is in memory of its own: slab by slab, dropping
 * mapped pages once read, so that no weight is in memory twice. A slab of a weight that is stored
 * [in, out] is a run of columns of all panels.
 */
static tess_status load_into_memory(struct weights_loader *l, const struct part *p,
                                    struct tess_view to)
{
	const struct tess_opened_device *d = &l->weights->device;
	bool panels = to.layout == TESS_PANELS, transposed = panels && p->w->in_out;
	int64_t element_size = (int64_t)tess_width(p->dtype), row = p->cols * element_size, n;
	int64_t step = p->w->quantized && transposed ? p->rows : tess_up(SLAB, 16 * row + 1) * 16;
	const char *name = p->w->name;
	char *start = to.data;
	struct tess_view rows;
	tess_status st = TESS_OK;

	for (int64_t at = 0; at < p->rows && !st; at += n) {
		n = p->rows - at < step ? p->rows - at : step;
		st = view_rows(l, p, at, n, &rows);
		if (st)
			break;
		if (transposed)
			tess_view_swap_axes(&rows, 0);
		to.data = start + at * (transposed ? 16 * element_size : row);
		if (p->w->quantized) {
			to.data = start + at / 16 * to.stride[0];
			st = pack_quantized(l, p, &rows, to);
		} else {
			st = panels ? TESS_PLUGIN_CALL(d->table, name, pack, d->self, &rows, &to)
			            : tess_device_move(d, name, to.data, rows.data,
			                               (uint64_t)(n * row));
		}
		drop_files(l, p);
	}
	return st;
}

/* Matrix after matrix of a weight that is quantized: a tied head has one of its own. */
static tess_status load_quantized(struct weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view v = tess_weight_view_quantized(l->p, w, l->rank), one = v;
	struct tess_cut cut = tess_program_find_cut(l->p, l->rank, w->place, 0);
	struct tess_run experts = { 0, 1 };
	struct tess_weight whole = *w;
	struct part p;
	tess_status st = alloc_weight_memory(l, i, tess_view_count_quantized_bytes(&v));

	if (w->table)
		whole.files = w->table->files;
	if (w->ndim > 2) {
		tess_dim_get_local_runs(w->dim[0], cut.nranks, cut.rank, &experts);
		one = (struct tess_view){ .dtype = v.dtype,
			                  .ndim = 2,
			                  .layout = v.layout,
			                  .shape = { v.shape[1], v.shape[2] },
			                  .stride = { v.stride[1], v.stride[2] } };
	}
	for (int64_t e = 0; e < experts.len && !st; e++) {
		st = find_local_part(l, &whole, experts.start + e, &p);
		one.data = (char *)l->weights->allocated[i] + e * v.stride[0];
		if (!st)
			st = load_into_memory(l, &p, one);
	}
	v.data = l->weights->allocated[i];
	l->weights->view[i] = v;
	return st;
}

/* One matrix after another: of this rank's experts, each of which may be in files of its own. */
static tess_status load_stack(struct weights_loader *l, int32_t i, bool panels)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_cut cut = tess_program_find_cut(l->p, l->rank, w->place, 0);
	struct tess_run experts;
	struct tess_view *v = &l->weights->view[i], one;
	struct part p;
	int64_t each = 0, width = (int64_t)tess_width(w->dtype);
	tess_status st = TESS_OK;

	tess_dim_get_local_runs(w->dim[0], cut.nranks, cut.rank, &experts);
	for (int64_t e = 0; e < experts.len && !st; e++) {
		st = find_local_part(l, w, experts.start + e, &p);
		if (!panels && p.cols < w->dim[2]->size)
			p.scattered = true; /* rows are copied as they lie */
		one = make_loaded_view(&p, panels);
		each = count_loaded_elements(&one);
		if (!st && !e)
			st = alloc_weight_memory(l, i, (uint64_t)(experts.len * each * width));
		if (st)
			return st;
		one.data = (char *)l->weights->allocated[i] + e * each * width;
		st = load_into_memory(l, &p, one);
	}
	*v = (struct tess_view){ .data = l->weights->allocated[i],
		                 .dtype = w->dtype,
		                 .ndim = 3,
		                 .layout = one.layout,
		                 .shape = { experts.len, one.shape[0], one.shape[1] },
		                 .stride = { each, one.stride[0], one.stride[1] } };
	if (w->in_out && !panels)
		tess_view_swap_axes(v, 1);
	return st;
}

/* Packs the parts of each head by themselves, as the records that read them want them. */
static tess_status load_heads(struct weights_loader *l, int32_t i, const struct part *p)
{
	const struct tess_opened_device *d = &l->weights->device;
	const struct tess_head_parts *parts = p->w->heads;
	int64_t each = p->w->dim[0]->unit_size, width = (int64_t)tess_width(p->dtype);
	int64_t head = tess_head_parts_count(parts, parts->n, p->cols);
	tess_status st = alloc_weight_memory(l, i, (uint64_t)(p->rows / each * head * width));
	struct tess_view rows, part, to;

	l->weights->view[i] = make_loaded_view(p, true);
	l->weights->view[i].stride[0] = head;
	l->weights->view[i].data = l->weights->allocated[i];
	for (int64_t at = 0; at < p->rows && !st; at += each) {
		st = view_rows(l, p, at, each, &rows);
		for (int32_t k = 0; k < parts->n && !st; k++) {
			int64_t before =
				at / each * head + tess_head_parts_count(parts, k, p->cols);

			part = rows;
			part.shape[0] = parts->part[k].count;
			part.data =
				(char *)rows.data + parts->part[k].first * rows.stride[0] * width;
			if (parts->part[k].in_out)
				tess_view_swap_axes(&part, 0);
			to = (struct tess_view){ .data = (char *)l->weights->allocated[i] +
				                         before * width };
			st = TESS_PLUGIN_CALL(d->table, p->w->name, pack, d->self, &part, &to);
		}
		drop_files(l, p);
	}
	return st;
}

static tess_status load_weight(struct weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	bool panels = w->ndim > 1 && l->panels && l->panels[i];
	struct tess_view *v = &l->weights->view[i];
	struct part p;
	tess_status st;

	if (w->ndim == 3)
		return load_stack(l, i, panels);
	st = find_local_part(l, w, 0, &p);
	if (st)
		return st;
	if (panels && w->heads)
		return load_heads(l, i, &p);
	if (!l->in_mapping && !panels && w->ndim > 1 && p.cols < w->dim[1]->size)
		p.scattered = true; /* rows are copied as they lie */
	if (l->in_mapping && panels && p.usable) {
		*v = make_loaded_view(&p, panels);
		v->stride[0] = p.file->view.stride[0];
		v->data = find_first_panel(l, &p);
	} else if (!l->in_mapping || panels || p.scattered) {
		*v = make_loaded_view(&p, panels);
		st = alloc_weight_memory(l, i,
		                         (uint64_t)count_loaded_elements(v) * tess_width(w->dtype));
		v->data = l->weights->allocated[i];
		if (!st)
			st = load_into_memory(l, &p, *v);
	} else {
		st = view_rows(l, &p, 0, p.rows, v); /* stays in the mapping */
	}
	if (w->in_out && !panels)
		tess_view_swap_axes(v, 0);
	return st;
}

/* Of what was loaded, this rank's share; a view of one axis. */
static tess_status keep_share(struct weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_run kept = tess_weight_get_kept(l->p, w, l->rank, TESS_REST);
	uint64_t width = tess_width(w->dtype), n = (uint64_t)kept.len * width;
	void *whole = l->weights->allocated[i];
	tess_status st = alloc_weight_memory(l, i, n);

	if (st) {
		l->weights->allocated[i] = whole;
		return st;
	}
	st = tess_device_move(&l->weights->device, w->name, l->weights->allocated[i],
	                      (char *)whole + (uint64_t)kept.start * width, n);
	tess_device_free(&l->weights->device, whole);
	l->weights->bytes -= (uint64_t)tess_weight_count_local(l->p, w, l->rank) * width;
	l->weights->view[i] = (struct tess_view){ .data = l->weights->allocated[i],
		                                  .dtype = w->dtype,
		                                  .ndim = 1,
		                                  .shape = { kept.len },
		                                  .stride = { 1 } };
	return st;
}

/* A tied head: the part of its table, or a slice of a replicated table. */
static void load_tied_view(struct weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view *v = &l->weights->view[i];

	*v = l->weights->view[w->table->index];
	for (int32_t a = 0; a < 2 && !w->rest_cut; a++) {
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
	l->file = calloc((size_t)max_pieces, sizeof *l->file);
	return l->run[0] && l->file ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
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
	l.in_mapping = !p->training && tess_device_is_host(device);
	if (!st && panels && !p->training)
		st = tess_weights_choose_panels(p, &l.panels);
	h.view = calloc((size_t)p->nweights + 1, sizeof *h.view);
	h.allocated = calloc((size_t)p->nweights + 1, sizeof *h.allocated);
	if (!st && (!h.view || !h.allocated))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < p->nweights && !st; i++) {
		if (p->weight[i]->quantized)
			st = load_quantized(&l, i);
		else if (p->weight[i]->table)
			load_tied_view(&l, i);
		else
			st = load_weight(&l, i);
		if (!st && p->weight[i]->rest_cut && !p->weight[i]->table)
			st = keep_share(&l, i);
		if (l.shares_slab)
			h.allocated[i] = NULL;
		l.shares_slab = false;
	}
	free(l.run[0]);
	free(l.file);
	free(l.dense);
	free(l.panel);
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
