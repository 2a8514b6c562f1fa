#include "nn/weights/weights.h"

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/op/panels.h"
#include "nn/program/mxfp4.h"
#include "nn/program/storage.h"

#include <stdlib.h>
#include <tessera/reduce.h>
#include <tessera/util/clock.h>

/* bytes of a weight that are read at a time; more for the copies of a device */
enum { SLAB = 4 << 20, DEVICE_SLAB = 64 << 20 };
enum { SLAB_MIN = 1 << 20, SLAB_MAX = 64 << 20 }; /* bytes of a slab of weights */
enum { SLAB_ALIGN = 256 }; /* bytes: alignment of a weight in a slab */

struct tess_weights_loader {
	struct tess_parts parts;
	const struct tess_offload *files; /* of weights that are in a file; NULL: none */
	int32_t next; /* no weight before it is WAITING */
	char *slab; /* the unused rest of the current slab: slab_left bytes */
	uint64_t slab_left;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t count_room(uint64_t bytes)
{
	return bytes ? (bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN : SLAB_ALIGN;
}

static uint64_t count_all_room(const struct tess_rank_weights *h)
{
	uint64_t bytes = 0;

	for (int32_t i = 0; i < h->n; i++)
		if (h->decision[i].kind >= TESS_STORE_ROWS)
			bytes += count_room(h->decision[i].bytes);
	return bytes;
}

/*
 * Returns the bytes of a slab that begins with a weight of `room` bytes; 0: the weight has its own
 * memory. In training all weights have, since some are freed before others.
 *
 * Slabs of host memory are as large as all earlier weights together: small models take little
 * memory, and large ones fill huge pages; the unused end of a slab is never touched. A device has
 * one slab: the distances of weights, which may decide how it multiplies, are equal in all runs.
 */
static uint64_t choose_slab_bytes(const struct tess_rank_weights *h, uint64_t room)
{
	uint64_t bytes = h->bytes / SLAB_MIN * SLAB_MIN;

	if (h->loader->parts.p->training)
		return 0;
	if (!tess_device_is_host(&h->device))
		return h->bytes ? 0 : count_all_room(h);
	bytes = bytes < SLAB_MIN ? SLAB_MIN : bytes > SLAB_MAX ? SLAB_MAX : bytes;
	return room <= bytes / 4 ? bytes : 0;
}

/* Allocates the memory of weight i. The first weight of a slab owns it. */
static tess_status alloc_weight_memory(struct tess_rank_weights *h, int32_t i, char **out)
{
	struct tess_weights_loader *l = h->loader;
	uint64_t room = count_room(h->decision[i].bytes);

	if (l->slab_left < room) {
		uint64_t slab = choose_slab_bytes(h, room);
		tess_status st = tess_device_alloc(&h->device, NULL, slab >= room ? slab : room,
		                                   &h->allocated[i]);
		if (st)
			return tess_fail_in(st, "%s", h->decision[i].weight->name);
		*out = h->allocated[i];
		if (slab < room)
			return st;
		l->slab = *out;
		l->slab_left = slab;
	}
	*out = l->slab;
	l->slab += room;
	l->slab_left -= room;
	return TESS_OK;
}

/* Frees the memory that was allocated last. */
static void release_weight_memory(struct tess_rank_weights *h, int32_t i, char *data)
{
	struct tess_weights_loader *l = h->loader;
	uint64_t room = count_room(h->decision[i].bytes);

	if (l->slab == data + room) {
		l->slab = data;
		l->slab_left = h->allocated[i] ? 0 : l->slab_left + room;
	}
	tess_device_free(&h->device, h->allocated[i]);
	h->allocated[i] = NULL;
}

/* ---- one matrix ------------------------------------------------------------------------------ */

/* Packs one unit of the inputs at a time: groups do not span units. */
static tess_status pack_quantized_units(const struct tess_rank_weights *h,
                                        const struct tess_part *p, const struct tess_view *rows,
                                        struct tess_view to)
{
	const struct tess_opened_device *d = &h->device;
	const struct tess_parts *parts = &h->loader->parts;
	struct tess_cut cut =
		tess_program_find_cut(parts->p, parts->rank, p->w->place, p->w->in_dim);
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
		data += panel_count_unit_bytes(to.dtype, unit.shape[1]);
		unit.data = (char *)unit.data +
		            tess_rows_count_bytes(unit.dtype, unit.shape[1] * unit.stride[1]);
	}
	return st ? tess_fail_in(st, "%s", p->w->name) : st;
}

struct kept_rows { /* the elements of a rank's part of a weight that it keeps */
	struct tess_run kept;
	char *data; /* memory; NULL: they are in a file */
	int64_t before; /* elements of the part before the matrix that is loaded */
};

/* Copies rows from row `at` of a matrix on, as far as they are kept, to memory or to a file. */
static tess_status copy_kept_rows(const struct tess_rank_weights *h, const struct tess_part *p,
                                  const struct kept_rows *k, int64_t at,
                                  const struct tess_view *rows)
{
	int64_t first = k->before + at * p->cols, lo = first, hi = first + rows->shape[0] * p->cols;
	int64_t end = k->kept.start + k->kept.len;
	uint64_t width = tess_width(p->dtype);
	char *from;

	lo = lo > k->kept.start ? lo : k->kept.start;
	hi = hi < end ? hi : end;
	if (lo >= hi)
		return TESS_OK;
	from = (char *)rows->data + (uint64_t)(lo - first) * width;
	if (!k->data)
		return tess_offload_move(h->loader->files, p->w, TESS_WEIGHT, lo - k->kept.start,
		                         hi - lo, true, from);
	return tess_device_move(&h->device, p->w->name,
	                        k->data + (uint64_t)(lo - k->kept.start) * width, from,
	                        (uint64_t)(hi - lo) * width);
}

/*
 * Packs panels to `to`, which is allocated memory, or copies rows to `keep`. Works slab by slab,
 * and drops mapped pages once read, so that no weight is in memory twice. A slab of a weight stored
 * as [in, out] is a range of columns of all panels.
 */
static tess_status load_part(struct tess_rank_weights *h, struct tess_part *p, struct tess_view to,
                             const struct kept_rows *keep)
{
	const struct tess_opened_device *d = &h->device;
	struct tess_parts *parts = &h->loader->parts;
	bool panels = to.layout == TESS_PANELS, transposed = panels && p->w->in_out;
	bool compressed = to.dtype >= TESS_Q8;
	int64_t element_size = (int64_t)tess_width(p->dtype), n;
	int64_t row = tess_rows_count_bytes(p->dtype, p->cols);
	int64_t slab = tess_device_is_host(d) ? SLAB : DEVICE_SLAB;
	int64_t step = compressed && transposed ? p->rows : tess_up(slab, 16 * row + 1) * 16;
	const char *name = p->w->name;
	char *start = to.data;
	struct tess_view rows;
	tess_status st = TESS_OK;

	if (!panels && p->w->ndim > 1 && p->cols < p->w->dim[p->axis + 1]->size)
		p->scattered = true; /* rows without gaps are copied */
	for (int64_t at = 0; at < p->rows && !st; at += n) {
		n = p->rows - at < step ? p->rows - at : step;
		st = tess_parts_view_rows(parts, p, at, n, &rows);
		if (st)
			break;
		if (transposed)
			tess_view_swap_axes(&rows, 0);
		if (panels)
			to.data = start + at * (transposed ? 16 * element_size : row);
		if (compressed)
			to.data = start + at / 16 * to.stride[0];
		if (compressed && to.dtype != TESS_BF12) {
			st = pack_quantized_units(h, p, &rows, to);
		} else {
			st = panels ? TESS_PLUGIN_CALL(d->table, name, pack, d->self, &rows, &to)
			            : copy_kept_rows(h, p, keep, at, &rows);
		}
		tess_parts_drop(parts, p);
	}
	return st;
}

/* Packs each part of a head separately: records read them one by one. */
static tess_status load_heads(struct tess_rank_weights *h, const struct tess_part *p, char *data)
{
	const struct tess_opened_device *d = &h->device;
	const struct tess_head_parts *parts = p->w->heads;
	int64_t each = p->w->dim[0]->unit_size, width = (int64_t)tess_width(p->dtype);
	int64_t head = tess_head_parts_count(parts, parts->n, p->cols);
	struct tess_view rows, part, to;
	tess_status st = TESS_OK;

	for (int64_t at = 0; at < p->rows && !st; at += each) {
		st = tess_parts_view_rows(&h->loader->parts, p, at, each, &rows);
		for (int32_t k = 0; k < parts->n && !st; k++) {
			int64_t before =
				at / each * head + tess_head_parts_count(parts, k, p->cols);

			part = rows;
			part.shape[0] = parts->part[k].count;
			part.data =
				(char *)rows.data + parts->part[k].first * rows.stride[0] * width;
			if (parts->part[k].in_out)
				tess_view_swap_axes(&part, 0);
			to = (struct tess_view){ .data = data + before * width };
			st = TESS_PLUGIN_CALL(d->table, p->w->name, pack, d->self, &part, &to);
		}
		tess_parts_drop(&h->loader->parts, p);
	}
	return st;
}

/* ---- one weight ------------------------------------------------------------------------------ */

/* Loads one matrix, or the matrices of this rank's experts, which may be in separate files. */
static tess_status load_parts(struct tess_rank_weights *h, const struct tess_weight *w,
                              const struct tess_view *v, const struct kept_rows *keep)
{
	struct tess_parts *parts = &h->loader->parts;
	struct tess_weight stored = *w;
	struct tess_view one = *v;
	struct tess_run experts = { 0, 1 };
	struct kept_rows rows = *keep;
	struct tess_part p;
	int64_t each = 0;
	tess_status st = TESS_OK;

	if (w->table)
		stored.files = w->table->files;
	if (w->ndim == 3) {
		struct tess_cut cut = tess_program_find_cut(parts->p, parts->rank, w->place, 0);

		tess_dim_get_local_runs(w->dim[0], cut.nranks, cut.rank, &experts);
		each = v->stride[0] * (v->dtype >= TESS_Q8 ? 1 : (int64_t)tess_width(v->dtype));
		one = (struct tess_view){ .data = v->data,
			                  .dtype = v->dtype,
			                  .ndim = 2,
			                  .layout = v->layout,
			                  .shape = { v->shape[1], v->shape[2] },
			                  .stride = { v->stride[1], v->stride[2] } };
	}
	for (int64_t e = 0; e < experts.len && !st; e++) {
		st = tess_parts_find(parts, &stored, experts.start + e, &p);
		if (st)
			return st;
		if (v->data)
			one.data = (char *)v->data + e * each;
		rows.before = e * p.rows * p.cols;
		st = w->heads && v->layout == TESS_PANELS ? load_heads(h, &p, one.data)
		                                          : load_part(h, &p, one, &rows);
	}
	return st;
}

/* Loads the elements that a rank keeps into memory, or into a file. */
static tess_status load_kept_rows(struct tess_rank_weights *h, const struct tess_weight_decision *d,
                                  char *data)
{
	const struct tess_parts *parts = &h->loader->parts;
	struct tess_weight_decision rows = *d;
	struct kept_rows keep = { .data = data };

	keep.kept = tess_weight_get_kept(parts->p, d->weight, parts->rank, TESS_REST);
	tess_weight_decision_set(parts, &rows, TESS_STORE_ROWS, NULL);
	return load_parts(h, d->weight, &rows.view, &keep);
}

static tess_status load_into_file(struct tess_rank_weights *h, int32_t i)
{
	h->view[i] = h->decision[i].view;
	return load_kept_rows(h, &h->decision[i], NULL);
}

static tess_status load_into_memory(struct tess_rank_weights *h, int32_t i)
{
	const struct tess_weight_decision *d = &h->decision[i];
	struct tess_view v = d->view;
	struct kept_rows none = { 0 };
	bool rows = d->kind == TESS_STORE_ROWS || d->kind == TESS_STORE_SHARE;
	char *data = NULL;
	tess_status st = alloc_weight_memory(h, i, &data);

	if (st)
		return st;
	v.data = data;
	st = rows ? load_kept_rows(h, d, data) : load_parts(h, d->weight, &v, &none);
	if (st) {
		release_weight_memory(h, i, data);
		return st;
	}
	h->view[i] = v;
	h->bytes += d->bytes;
	return st;
}

static tess_status map_rows(struct tess_rank_weights *h, int32_t i)
{
	const struct tess_weight *w = h->decision[i].weight;
	struct tess_parts *parts = &h->loader->parts;
	struct tess_part p;
	tess_status st = tess_parts_find(parts, w, 0, &p);

	if (!st)
		st = tess_parts_view_rows(parts, &p, 0, p.rows, &h->view[i]);
	if (w->in_out)
		tess_view_swap_axes(&h->view[i], 0);
	h->mapped += h->decision[i].mapped;
	return st;
}

/* Sets the view of a tied head: its part of the table, or a slice of a replicated table. */
static void view_table(struct tess_rank_weights *h, int32_t i)
{
	const struct tess_weight *w = h->decision[i].weight;
	const struct tess_parts *parts = &h->loader->parts;
	struct tess_view *v = &h->view[i];

	*v = h->view[w->table->index];
	for (int32_t a = 0; a < 2 && v->data && !w->rest_cut; a++) {
		int32_t along = tess_places_find(w->place, parts->p->mesh.ndims, TESS_SHARD, a);

		if (along < 0 || tess_place_is(w->table->place[along], TESS_SHARD, a))
			continue;
		v->shape[a] = tess_dim_list_local_runs(
			w->dim[a], tess_program_get_cut(parts->p, parts->rank, along),
			parts->run[a]);
		v->data = (char *)v->data +
		          parts->run[a][0].start * v->stride[a] * (int64_t)tess_width(v->dtype);
	}
}

static tess_status execute_decision(struct tess_rank_weights *h, int32_t i)
{
	switch (h->decision[i].kind) {
	case TESS_STORE_ELSEWHERE:
	case TESS_STORE_TIED:
		return TESS_OK;
	case TESS_STORE_MAPPED:
	case TESS_STORE_WAITING:
		return map_rows(h, i);
	case TESS_STORE_FILE:
		return load_into_file(h, i);
	default:
		return load_into_memory(h, i);
	}
}

/* ---- all weights ----------------------------------------------------------------------------- */

static void drop_loader(struct tess_rank_weights *h)
{
	if (h->loader)
		tess_parts_close(&h->loader->parts);
	free(h->loader);
	h->loader = NULL;
}

/* Packs panels from mapped rows. Without memory they stay mapped. */
static tess_status pack_waiting(struct tess_rank_weights *h, int32_t i)
{
	struct tess_weight_decision *d = &h->decision[i], waiting = *d;
	tess_status st;

	d->kind = TESS_STORE_PANELS;
	d->mapped = 0;
	st = load_into_memory(h, i);
	if (st) {
		*d = waiting;
		return st;
	}
	h->mapped -= waiting.mapped;
	for (int32_t k = 0; k < h->n; k++)
		if (h->decision[k].kind == TESS_STORE_TIED &&
		    h->decision[k].weight->table->index == i)
			view_table(h, k);
	return st;
}

/* Leaves the remaining unpacked weights mapped. */
static void stop_packing(struct tess_rank_weights *h)
{
	tess_log(TESS_WARN, "weights", "stay as in the file, which is slower: %s", tess_error());
	for (int32_t i = 0; i < h->n; i++)
		if (h->decision[i].kind == TESS_STORE_WAITING)
			tess_weight_decision_set(&h->loader->parts, &h->decision[i],
			                         TESS_STORE_MAPPED, "no memory for panels");
}

tess_status tess_rank_weights_pack(struct tess_rank_weights *h, int64_t ns, bool *changed)
{
	struct tess_weights_loader *l = h->loader;
	int64_t end = tess_now() + ns;
	tess_status st = TESS_OK;

	*changed = false;
	if (!l)
		return st;
	for (; l->next < h->n && !st && (!*changed || tess_now() < end); l->next++) {
		if (h->decision[l->next].kind != TESS_STORE_WAITING)
			continue;
		st = pack_waiting(h, l->next);
		*changed = *changed || !st;
	}
	if (st == TESS_ENOMEM)
		stop_packing(h);
	if (l->next == h->n || st)
		drop_loader(h);
	return st == TESS_ENOMEM ? TESS_OK : st;
}

/* Loads a weight; one that the device cannot compress is decided again, with equal numbers. */
static tess_status load_weight(struct tess_rank_weights *h, int32_t i)
{
	struct tess_weight_decision *d = &h->decision[i];
	tess_status st = execute_decision(h, i);

	if (st != TESS_ENOTSUP || d->kind != TESS_STORE_COMPRESSED || d->weight->mxfp4)
		return st;
	tess_log(TESS_INFO, "weights", "%s; it stays as in the file", tess_error());
	st = tess_weight_decide_again(&h->loader->parts, h->device.table, d);
	return st ? st : execute_decision(h, i);
}

static tess_status open_loader(struct tess_rank_weights *h, const struct tess_program *p,
                               const struct tess_source *source, int32_t rank)
{
	tess_status st;

	h->loader = calloc(1, sizeof *h->loader);
	h->view = calloc((size_t)p->nweights + 1, sizeof *h->view);
	h->allocated = calloc((size_t)p->nweights + 1, sizeof *h->allocated);
	if (!h->loader || !h->view || !h->allocated)
		return tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_parts_open(&h->loader->parts, p, source, rank);
	return st ? st : tess_weights_decide(&h->loader->parts, h->device.table, &h->decision);
}

tess_status tess_rank_weights_load(const struct tess_program *p, const struct tess_source *source,
                                   int32_t rank, const struct tess_opened_device *device,
                                   const struct tess_offload *files, struct tess_rank_weights *out)
{
	struct tess_rank_weights h = { .n = p->nweights, .device = *device };
	bool waits = false;
	tess_status st = open_loader(&h, p, source, rank);

	if (!st)
		h.loader->files = files;
	for (int32_t i = 0; i < p->nweights && !st; i++) {
		st = load_weight(&h, i);
		waits = waits || h.decision[i].kind == TESS_STORE_WAITING;
	}
	for (int32_t i = 0; i < p->nweights && !st; i++)
		if (h.decision[i].kind == TESS_STORE_TIED)
			view_table(&h, i);
	if (!waits)
		drop_loader(&h);
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
	drop_loader(h);
	free(h->decision);
	free(h->allocated);
	free(h->view);
	*h = (struct tess_rank_weights){ 0 };
}
