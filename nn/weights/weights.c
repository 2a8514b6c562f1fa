#include "nn/weights/weights.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/lower/lower.h"
#include "nn/op/panels.h"
#include "nn/program/compressed.h"
#include "nn/program/storage.h"
#include "nn/weights/parts.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <tessera/util/clock.h>

/* bytes of a weight that are read at a time: by one thread, or by those of a device's copies */
enum { SLAB = 4 << 20, DEVICE_SLAB = 64 << 20 };
enum { SLAB_LEAST = 1 << 20, SLAB_MOST = 64 << 20 }; /* bytes of a slab of weights */
enum { ALIGN = 256 }; /* bytes, of a weight in a slab */

const struct tess_option tess_weights_options[] = {
	{ "layout", "",
	  "layout of linear weights in memory: panels or rows (as in the file); empty: "
	  "chosen by the device, with mapped rows until panels are packed" },
	{ NULL, NULL, NULL },
};

struct tess_weights_loader {
	const struct tess_program *p;
	int32_t rank;
	struct tess_rank_weights *weights;
	struct tess_parts parts;
	bool *panels; /* per weight; NULL: all stay rows */
	bool *later; /* per weight: it is to be packed, but still in rows; NULL: none is */
	int32_t next; /* all before it are packed */
	bool in_mapping; /* what needs no copy stays in the checkpoint's mapping */
	char *slab; /* what is left of it: slab_left bytes */
	uint64_t slab_left;
	bool shares_slab; /* the current weight, with one before it */
};

/*
 * Weights that linear records read, directly or through a tied head, become panels. Not a table
 * whose head reads another part than the rank holds: that part need not start at a panel.
 */
static tess_status choose_panels(const struct tess_program *p, bool **out)
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

			panels[w->table && !w->compressed ? w->table->index : w->index] = true;
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

static uint64_t count_room(uint64_t bytes)
{
	return bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
}

static uint64_t count_stored_bytes(const struct tess_weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];

	return (uint64_t)tess_weight_count_local(l->p, w, l->rank) * tess_width(w->dtype);
}

/* All weights as they are on a device that has them in rows. */
static uint64_t count_all_room(const struct tess_weights_loader *l)
{
	const struct tess_program *p = l->p;
	uint64_t bytes = 0;

	for (int32_t i = 0; i < p->nweights; i++)
		if (!p->weight[i]->table)
			bytes += count_room(count_stored_bytes(l, i));
	return bytes;
}

/*
 * Of the slab that begins with a weight of `room` bytes; 0: the weight has memory of its own, as in
 * training, where some are freed before the others. Slabs of the host's memory are as large as all
 * that was loaded so far, so that small models take little memory, and fill huge pages: what a slab
 * does not use is not there. A device has one slab: how weights lie to each other, by which it may
 * choose how it multiplies, is the same in each run.
 */
static uint64_t choose_slab_bytes(const struct tess_weights_loader *l, uint64_t room)
{
	uint64_t loaded = l->weights->bytes, bytes = loaded / SLAB_LEAST * SLAB_LEAST;

	if (l->p->training)
		return 0;
	if (!tess_device_is_host(&l->weights->device))
		return loaded ? 0 : count_all_room(l);
	bytes = bytes < SLAB_LEAST ? SLAB_LEAST : bytes > SLAB_MOST ? SLAB_MOST : bytes;
	return room <= bytes / 4 ? bytes : 0;
}

/* The first weight of a slab owns it. */
static tess_status alloc_weight_memory(struct tess_weights_loader *l, int32_t i, uint64_t bytes)
{
	uint64_t room = count_room(bytes), slab = choose_slab_bytes(l, room);
	bool shares = l->slab_left >= room, first = !shares && slab >= room;
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

/* Gives back what was allocated last. */
static void release_weight_memory(struct tess_weights_loader *l, int32_t i, uint64_t bytes)
{
	uint64_t room = count_room(bytes);
	char *start = l->weights->allocated[i];

	if (l->shares_slab) {
		l->slab -= room;
		l->slab_left += room;
	} else {
		if (start && l->slab == start + room)
			l->slab_left = 0;
		tess_device_free(&l->weights->device, start);
	}
	l->shares_slab = false;
	l->weights->allocated[i] = NULL;
	l->weights->bytes -= bytes;
}

/* A part in memory: of [outs, ins], by elements and, if not in panels, as stored. */
static struct tess_view make_loaded_view(const struct tess_part *p, bool panels)
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

/* Packs unit after unit: its groups are its own. A slab has whole units of the inputs. */
static tess_status pack_quantized_units(const struct tess_weights_loader *l,
                                        const struct tess_part *p, const struct tess_view *rows,
                                        struct tess_view to)
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
		data += panel_count_q8_bytes(unit.shape[1]);
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
static tess_status load_into_memory(struct tess_weights_loader *l, const struct tess_part *p,
                                    struct tess_view to)
{
	const struct tess_opened_device *d = &l->weights->device;
	bool panels = to.layout == TESS_PANELS, transposed = panels && p->w->in_out;
	bool compressed = to.dtype == TESS_Q8 || to.dtype == TESS_BF12;
	int64_t element_size = (int64_t)tess_width(p->dtype), row = p->cols * element_size, n;
	int64_t slab = tess_device_is_host(d) ? SLAB : DEVICE_SLAB;
	int64_t step = compressed && transposed ? p->rows : tess_up(slab, 16 * row + 1) * 16;
	const char *name = p->w->name;
	char *start = to.data;
	struct tess_view rows;
	tess_status st = TESS_OK;

	for (int64_t at = 0; at < p->rows && !st; at += n) {
		n = p->rows - at < step ? p->rows - at : step;
		st = tess_parts_view_rows(&l->parts, p, at, n, &rows);
		if (st)
			break;
		if (transposed)
			tess_view_swap_axes(&rows, 0);
		to.data = start + at * (transposed ? 16 * element_size : row);
		if (compressed)
			to.data = start + at / 16 * to.stride[0];
		if (to.dtype == TESS_Q8) {
			st = pack_quantized_units(l, p, &rows, to);
		} else {
			st = panels ? TESS_PLUGIN_CALL(d->table, name, pack, d->self, &rows, &to)
			            : tess_device_move(d, name, to.data, rows.data,
			                               (uint64_t)(n * row));
		}
		tess_parts_drop(&l->parts, p);
	}
	return st;
}

/* Matrix after matrix of a weight that is compressed: a tied head has one of its own. */
static tess_status load_compressed(struct tess_weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view v = tess_weight_view_compressed(l->p, w, l->rank), one = v;
	struct tess_cut cut = tess_program_find_cut(l->p, l->rank, w->place, 0);
	struct tess_run experts = { 0, 1 };
	struct tess_weight whole = *w;
	struct tess_part p;
	tess_status st = alloc_weight_memory(l, i, tess_view_count_compressed_bytes(&v));

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
		st = tess_parts_find(&l->parts, &whole, experts.start + e, &p);
		one.data = (char *)l->weights->allocated[i] + e * v.stride[0];
		if (!st)
			st = load_into_memory(l, &p, one);
	}
	v.data = l->weights->allocated[i];
	l->weights->view[i] = v;
	return st;
}

/* One matrix after another: of this rank's experts, each of which may be in files of its own. */
static tess_status load_stack(struct tess_weights_loader *l, int32_t i, bool panels)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_cut cut = tess_program_find_cut(l->p, l->rank, w->place, 0);
	struct tess_run experts;
	struct tess_view *v = &l->weights->view[i], one;
	struct tess_part p;
	int64_t each = 0, width = (int64_t)tess_width(w->dtype);
	tess_status st = TESS_OK;

	tess_dim_get_local_runs(w->dim[0], cut.nranks, cut.rank, &experts);
	for (int64_t e = 0; e < experts.len && !st; e++) {
		st = tess_parts_find(&l->parts, w, experts.start + e, &p);
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
static tess_status load_heads(struct tess_weights_loader *l, int32_t i, const struct tess_part *p)
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
		st = tess_parts_view_rows(&l->parts, p, at, each, &rows);
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
		tess_parts_drop(&l->parts, p);
	}
	return st;
}

/* Whether the mapping has a matrix in rows that the device can read until they are packed. */
static bool can_wait(const struct tess_weights_loader *l, const struct tess_part *p)
{
	return l->later && l->in_mapping && !p->scattered && !p->w->in_out && !p->w->heads;
}

static tess_status load_weight(struct tess_weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	bool panels = w->ndim > 1 && l->panels && l->panels[i];
	struct tess_view *v = &l->weights->view[i];
	struct tess_part p;
	tess_status st;

	if (w->ndim == 3)
		return load_stack(l, i, panels);
	st = tess_parts_find(&l->parts, w, 0, &p);
	if (st)
		return st;
	if (panels && can_wait(l, &p) && !l->later[i]) {
		l->later[i] = true;
		return tess_parts_view_rows(&l->parts, &p, 0, p.rows, v);
	}
	if (panels && w->heads)
		return load_heads(l, i, &p);
	if (!l->in_mapping && !panels && w->ndim > 1 && p.cols < w->dim[1]->size)
		p.scattered = true; /* rows are copied as they lie */
	if (!l->in_mapping || panels || p.scattered) {
		*v = make_loaded_view(&p, panels);
		st = alloc_weight_memory(l, i,
		                         (uint64_t)count_loaded_elements(v) * tess_width(w->dtype));
		v->data = l->weights->allocated[i];
		if (!st)
			st = load_into_memory(l, &p, *v);
	} else {
		st = tess_parts_view_rows(&l->parts, &p, 0, p.rows, v); /* stays in the mapping */
	}
	if (w->in_out && !panels)
		tess_view_swap_axes(v, 0);
	return st;
}

/* Of what was loaded, this rank's share; a view of one axis. */
static tess_status keep_share(struct tess_weights_loader *l, int32_t i)
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
	l->weights->bytes -= count_stored_bytes(l, i);
	l->weights->view[i] = (struct tess_view){ .data = l->weights->allocated[i],
		                                  .dtype = w->dtype,
		                                  .ndim = 1,
		                                  .shape = { kept.len },
		                                  .stride = { 1 } };
	return st;
}

/* A tied head: the part of its table, or a slice of a replicated table. */
static void load_tied_view(struct tess_weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view *v = &l->weights->view[i];

	*v = l->weights->view[w->table->index];
	for (int32_t a = 0; a < 2 && !w->rest_cut; a++) {
		int32_t along = tess_places_find(w->place, l->p->mesh.ndims, TESS_SHARD, a);

		if (along < 0 || tess_place_is(w->table->place[along], TESS_SHARD, a))
			continue;
		v->shape[a] = tess_dim_list_local_runs(
			w->dim[a], tess_program_get_cut(l->p, l->rank, along), l->parts.run[a]);
		v->data = (char *)v->data +
		          l->parts.run[a][0].start * v->stride[a] * (int64_t)tess_width(v->dtype);
	}
}

/* One that the device cannot compress stays as in the file: the numbers are the same. */
static tess_status load_compressed_or_stored(struct tess_weights_loader *l, int32_t i)
{
	const struct tess_weight *w = l->p->weight[i];
	struct tess_view v = tess_weight_view_compressed(l->p, w, l->rank);
	tess_status st = load_compressed(l, i);

	if (st != TESS_ENOTSUP)
		return st;
	tess_log(TESS_INFO, "weights", "%s; it stays as in the file", tess_error());
	release_weight_memory(l, i, tess_view_count_compressed_bytes(&v));
	if (!w->table)
		return load_weight(l, i);
	load_tied_view(l, i);
	return TESS_OK;
}

/* The views of tied heads of a table that was packed. */
static void reload_tied_views(struct tess_weights_loader *l, int32_t table)
{
	for (int32_t i = 0; i < l->p->nweights; i++) {
		const struct tess_weight *w = l->p->weight[i];

		if (w->table && !w->compressed && w->table->index == table)
			load_tied_view(l, i);
	}
}

static void free_loader(struct tess_weights_loader *l)
{
	tess_parts_close(&l->parts);
	free(l->panels);
	free(l->later);
}

/* Keeps what packing goes on with. */
static tess_status keep_loader(const struct tess_weights_loader *l, struct tess_rank_weights *h)
{
	h->loader = malloc(sizeof *l);
	if (!h->loader)
		return tess_fail(TESS_ENOMEM, "out of memory");
	*h->loader = *l;
	return TESS_OK;
}

static void drop_loader(struct tess_rank_weights *h)
{
	if (h->loader)
		free_loader(h->loader);
	free(h->loader);
	h->loader = NULL;
}

/* Packs a weight that the mapping has in rows; it stays so if memory runs out. */
static tess_status pack_waiting(struct tess_weights_loader *l, int32_t i)
{
	struct tess_rank_weights *h = l->weights;
	struct tess_view rows = h->view[i];
	tess_status st = load_weight(l, i);

	if (st)
		h->view[i] = rows;
	else
		h->mapped -= count_stored_bytes(l, i);
	if (l->shares_slab)
		h->allocated[i] = NULL;
	l->shares_slab = false;
	reload_tied_views(l, i);
	return st;
}

tess_status tess_rank_weights_pack(struct tess_rank_weights *h, int64_t ns, bool *changed)
{
	struct tess_weights_loader *l = h->loader;
	int64_t end = tess_now() + ns;
	tess_status st = TESS_OK;

	*changed = false;
	if (!l)
		return st;
	l->weights = h;
	for (; l->next < h->n && !st && (!*changed || tess_now() < end); l->next++) {
		if (l->later[l->next])
			st = pack_waiting(l, l->next);
		*changed = *changed || (l->later[l->next] && !st);
	}
	if (l->next == h->n || st)
		drop_loader(h);
	if (st == TESS_ENOMEM) {
		tess_log(TESS_WARN, "weights", "stay as in the file, which is slower: %s",
		         tess_error());
		st = TESS_OK;
	}
	return st;
}

tess_status tess_weights_read_layout(const struct tess_device *device, bool *panels)
{
	tess_status st = tess_option_add("nn/weights/weights.c", tess_weights_options);
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
	struct tess_weights_loader l = { .p = p, .rank = rank, .weights = &h };
	bool panels = false, waits = false;
	tess_status st = tess_weights_read_layout(device->table, &panels);

	if (!st)
		st = tess_parts_open(&l.parts, p, source, rank);
	l.in_mapping = !p->training && tess_device_is_host(device);
	if (!st && panels && !p->training)
		st = choose_panels(p, &l.panels);
	if (!st && l.panels && !*tess_option_get("layout"))
		l.later = calloc((size_t)p->nweights + 1, sizeof *l.later);
	h.view = calloc((size_t)p->nweights + 1, sizeof *h.view);
	h.allocated = calloc((size_t)p->nweights + 1, sizeof *h.allocated);
	if (!st && (!h.view || !h.allocated))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < p->nweights && !st; i++) {
		if (!tess_program_has_stage(p, rank, p->weight[i]->stage))
			continue;
		if (p->weight[i]->compressed)
			st = load_compressed_or_stored(&l, i);
		else if (p->weight[i]->table)
			load_tied_view(&l, i);
		else
			st = load_weight(&l, i);
		if (!st && p->weight[i]->rest_cut && !p->weight[i]->table)
			st = keep_share(&l, i);
		if (!h.allocated[i] && !p->weight[i]->table)
			h.mapped += count_stored_bytes(&l, i);
		if (l.shares_slab)
			h.allocated[i] = NULL;
		l.shares_slab = false;
		waits = waits || (l.later && l.later[i]);
	}
	if (!st && waits)
		st = keep_loader(&l, &h);
	if (!h.loader)
		free_loader(&l);
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
	free(h->allocated);
	free(h->view);
	*h = (struct tess_rank_weights){ 0 };
}
