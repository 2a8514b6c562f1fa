#include "nn/weights/parts.h"

#include "core/base/status.h"
#include "nn/lower/lower.h"
#include "nn/program/mxfp4.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

/* bytes between ranges of a part that are read ahead with these, for other ranks of the host */
enum { GAP_BYTES = 64 << 10 };

/* Returns the offset of element (i, k) in bytes. */
static uint64_t get_element_offset(const struct tess_view *v, int64_t i, int64_t k)
{
	return (uint64_t)tess_rows_count_bytes(v->dtype, i * v->stride[0] + k * v->stride[1]);
}

/* Finds the tensor of a part; if it stores all experts, the matrix of one. */
static tess_status find_file(const struct tess_parts *l, const struct tess_weight *w,
                             int64_t expert, int32_t part, struct tess_part_file *f)
{
	tess_status st;

	f->at = 0;
	f->name = tess_files_format(&w->files, expert, part, f->text);
	st = l->source->find(l->source->self, f->name, &f->view);
	if (st || w->ndim < 3 || w->files.by_expert)
		return st;
	f->at = (uint64_t)tess_rows_count_bytes(f->view.dtype, expert * f->view.stride[0]);
	f->view = (struct tess_view){ .data = f->view.data,
		                      .dtype = f->view.dtype,
		                      .ndim = 2,
		                      .shape = { f->view.shape[1], f->view.shape[2] },
		                      .stride = { f->view.stride[1], 1 } };
	return TESS_OK;
}

/* Returns the dtype of rows for the device: a weight in MXFP4 that is not kept so is widened. */
static int32_t get_row_dtype(const struct tess_weight *w)
{
	return w->mxfp4 && w->compressed ? TESS_MXFP4 : w->dtype;
}

static int64_t count_stored_bytes(const struct tess_part *p, int64_t elements)
{
	return tess_rows_count_bytes(p->w->mxfp4 ? TESS_MXFP4 : p->dtype, elements);
}

tess_status tess_parts_find(struct tess_parts *l, const struct tess_weight *w, int64_t expert,
                            struct tess_part *p)
{
	int32_t axis = w->ndim == 3, n = w->files.nparts;
	int64_t size[2] = { 1, 1 };
	tess_status st = TESS_OK;

	*p = (struct tess_part){ .w = w,
		                 .axis = axis,
		                 .out = w->out_dim - axis,
		                 .nfiles = n,
		                 .dtype = get_row_dtype(w),
		                 .file = l->file,
		                 .scattered = n > 1 || w->mxfp4 };
	for (int32_t i = 0; i < n && !st; i++) {
		st = find_file(l, w, expert, i, &p->file[i]);
		p->scattered = p->scattered || (!p->file[i].view.data && !l->source->unread) ||
		               (uintptr_t)p->file[i].view.data % tess_width(w->dtype) != 0;
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
	return st;
}

struct taken_run { /* a range of the bytes of a tensor */
	const struct tess_part_file *file;
	uint64_t at, bytes;
};

/* What is done with each range of a part: it is copied, or found with its neighbours. */
struct taker {
	struct tess_parts *parts;
	const struct tess_part *part;
	char *to; /* for copies; NULL: finds */
	int32_t advice;
	struct taken_run last; /* the ranges that were found last */
};

/* Gives the advice for the ranges that were found last. */
static void advise_last(struct taker *t)
{
	const struct tess_source *source = t->parts->source;

	if (t->last.bytes && source->advise)
		source->advise(source->self, t->last.file->name, t->last.at, t->last.bytes,
		               t->advice);
	t->last.bytes = 0;
}

/* Joins a range to those before it, if the gap is small. */
static void find_run(struct taker *t, const struct tess_part_file *f, uint64_t at, uint64_t bytes)
{
	uint64_t end = t->last.at + t->last.bytes;

	if (!t->last.bytes || t->last.file != f || at < end || at - end > GAP_BYTES) {
		advise_last(t);
		t->last = (struct taken_run){ f, at, 0 };
	}
	t->last.bytes = at + bytes - t->last.at;
}

/* Takes a range of a row of the full matrix; `row` and `col`: its pieces. */
static tess_status take_part_run(struct taker *t, int64_t row, int64_t at_row, int64_t col,
                                 int64_t at_col, uint64_t bytes)
{
	const struct tess_parts *l = t->parts;
	const struct tess_part *p = t->part;
	const struct tess_part_file *f = p->file;
	int64_t before;
	tess_status st = TESS_OK;
	uint64_t at;

	if (p->nfiles > 1) { /* each piece is a file: count from its start */
		f += p->out ? col : row;
		tess_dim_get_piece(p->w->dim[p->axis + p->out], f - p->file, &before);
		*(p->out ? &at_col : &at_row) -= before;
	}
	at = f->at + get_element_offset(&f->view, at_row, at_col);
	if (!t->to)
		find_run(t, f, at, bytes);
	else if (l->unmapped)
		st = l->source->read(l->source->self, f->name, at, bytes, t->to);
	else
		st = tess_source_read(l->source, f->name, &f->view, at, bytes, t->to);
	if (t->to)
		t->to += bytes;
	return st;
}

/* Takes rows [from, from + n) of the part, in order. Adjacent rows are one range. */
static tess_status take_part_rows(struct taker *t, int64_t from, int64_t n)
{
	static const struct tess_run one = { 0, 1 };
	const struct tess_parts *l = t->parts;
	const struct tess_part *p = t->part;
	bool matrix = p->w->ndim > 1;
	const struct tess_dim *rows = p->w->dim[p->axis];
	const struct tess_run *row = l->run[0], *col = matrix ? l->run[1] : &one;
	int64_t cols = matrix ? tess_dim_count_pieces(p->w->dim[p->axis + 1]) : 1;
	bool adjacent = cols == 1 && (!matrix || col->len == p->w->dim[p->axis + 1]->size);
	tess_status st = TESS_OK;

	for (int64_t a = 0; a < tess_dim_count_pieces(rows); from -= row[a++].len) {
		int64_t lo = from > 0 ? from : 0,
			hi = from + n < row[a].len ? from + n : row[a].len;
		int64_t step = adjacent && hi > lo ? hi - lo : 1;

		for (int64_t r = lo; r < hi; r += step) {
			for (int64_t b = 0; b < cols && !st; b++) {
				uint64_t bytes = (uint64_t)count_stored_bytes(p, step * col[b].len);

				st = take_part_run(t, a, row[a].start + r, b, col[b].start, bytes);
			}
		}
	}
	return st;
}

/* Copies rows as they are stored to `to`, dense. */
static tess_status gather_rows(struct tess_parts *l, const struct tess_part *p, int64_t from,
                               int64_t n, void *to)
{
	struct taker t = { .parts = l, .part = p, .to = to };

	return take_part_rows(&t, from, n);
}

void tess_parts_advise(struct tess_parts *l, const struct tess_part *p, int64_t from, int64_t n,
                       int32_t advice)
{
	struct taker t = { .parts = l, .part = p, .advice = advice };

	take_part_rows(&t, from, n);
	advise_last(&t);
}

/* Makes a buffer have at least `bytes`. */
static tess_status grow_buffer(const struct tess_part *p, size_t bytes, void **buffer, size_t *have)
{
	if (*buffer && bytes <= *have)
		return TESS_OK;
	free(*buffer);
	*buffer = malloc(bytes + 1);
	*have = bytes;
	return *buffer ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", p->w->name);
}

/* Gathers rows in MXFP4, and widens them to bf16. */
static tess_status gather_widened(struct tess_parts *l, const struct tess_part *p, int64_t from,
                                  int64_t n, uint16_t *to)
{
	int64_t elements = n * p->cols;
	tess_status st = grow_buffer(p, (size_t)count_stored_bytes(p, elements), &l->blocks,
	                             &l->blocks_bytes);
	const uint8_t *block = l->blocks;

	if (!st)
		st = gather_rows(l, p, from, n, l->blocks);
	for (int64_t i = 0; i < elements && !st; i += TESS_MXFP4_ELEMENTS) {
		for (int64_t k = 0; k < TESS_MXFP4_ELEMENTS; k++)
			*to++ = (uint16_t)(tess_bits(tess_mxfp4_get_element(block, k)) >> 16);
		block += TESS_MXFP4_BYTES;
	}
	return st;
}

tess_status tess_parts_copy_rows(struct tess_parts *l, const struct tess_part *p, int64_t from,
                                 int64_t n, void *to)
{
	return p->w->mxfp4 && p->dtype != TESS_MXFP4 ? gather_widened(l, p, from, n, to)
	                                             : gather_rows(l, p, from, n, to);
}

tess_status tess_parts_view_rows(struct tess_parts *l, const struct tess_part *p, int64_t from,
                                 int64_t n, struct tess_view *out)
{
	size_t bytes = (size_t)tess_rows_count_bytes(p->dtype, n * p->cols);
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
	st = grow_buffer(p, bytes, &l->dense, &l->dense_bytes);
	if (!st)
		st = tess_parts_copy_rows(l, p, from, n, l->dense);
	v.dtype = p->dtype;
	v.data = l->dense;
	v.stride[0] = matrix ? p->cols : 1;
	v.stride[1] = 1;
	*out = v;
	return st;
}

void tess_parts_drop(const struct tess_parts *l, const struct tess_part *p)
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

tess_status tess_parts_open(struct tess_parts *l, const struct tess_program *p,
                            const struct tess_source *source, int32_t rank)
{
	int64_t max_pieces = tess_program_max_pieces(p);

	*l = (struct tess_parts){ .p = p, .source = source, .rank = rank };
	l->run[0] = calloc((size_t)max_pieces * 2, sizeof *l->run[0]);
	l->run[1] = l->run[0] ? l->run[0] + max_pieces : NULL;
	l->file = calloc((size_t)max_pieces, sizeof *l->file);
	return l->run[0] && l->file ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

void tess_parts_close(struct tess_parts *l)
{
	free(l->run[0]);
	free(l->file);
	free(l->dense);
	free(l->blocks);
}
