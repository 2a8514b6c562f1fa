#include "nn/weights/decide.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/offload/offload.h"
#include "nn/program/compressed.h"
#include "nn/program/storage.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

const struct tess_option tess_weights_options[] = {
	{ "layout", "",
	  "layout of linear weights in memory: panels or rows (as in the file); empty: "
	  "chosen by the device, with mapped rows until panels are packed" },
	{ NULL, NULL, NULL },
};

tess_status tess_weights_read_layout(const struct tess_device *device, bool *panels)
{
	tess_status st = tess_option_add("nn/weights/decide.c", tess_weights_options);
	const char *layout = tess_option_get("layout");

	if (!st && *layout && strcmp(layout, "panels") && strcmp(layout, "rows"))
		st = tess_fail(TESS_EINVAL, "TESSERA_LAYOUT=%s: use panels or rows", layout);
	if (!st)
		*panels = *layout ? !strcmp(layout, "panels") : device->layout == TESS_PANELS;
	return st;
}

void tess_weight_decisions_describe(const struct tess_weight_decision *list, int32_t n,
                                    struct tess_weight_storage *out)
{
	static const char *const names[] = {
		[TESS_STORE_ELSEWHERE] = "elsewhere",
		[TESS_STORE_TIED] = "tied",
		[TESS_STORE_MAPPED] = "mapped rows",
		[TESS_STORE_WAITING] = "mapped, then panels",
		[TESS_STORE_ROWS] = "rows",
		[TESS_STORE_PANELS] = "panels",
		[TESS_STORE_COMPRESSED] = "compressed panels",
		[TESS_STORE_SHARE] = "share of rows",
		[TESS_STORE_FILE] = "file",
	};

	for (int32_t i = 0; i < n; i++)
		out[i] = (struct tess_weight_storage){ .name = list[i].weight->name,
			                               .kind = names[list[i].kind],
			                               .reason = list[i].reason,
			                               .dtype = list[i].dtype,
			                               .mapped = list[i].mapped,
			                               .bytes = list[i].bytes };
}

/*
 * Weights that linear records read, directly or through a tied head, become panels. Not a table
 * whose head reads another part than the rank holds: that part need not start at a panel.
 */
static void mark_panels(const struct tess_program *p, struct tess_weight_decision *list)
{
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		bool matrices = rec->kind == TESS_OP_LINEAR || rec->kind == TESS_OP_EXPERTS ||
		                rec->kind == TESS_OP_HEAD_LINEAR;

		for (int32_t k = 0; matrices && k < rec->nweight; k++) {
			const struct tess_weight *w = rec->weight[k];

			if (w->in_dim >= 0) /* not biases */
				list[w->table && !w->compressed ? w->table->index : w->index]
					.panels = true;
		}
	}
	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i], *table = w->table;

		if (table && !tess_places_equal(w->place, table->place, p->mesh.ndims))
			list[table->index].panels = false;
	}
}

/* Lays out the rank's part as [outs, ins], or [experts, outs, ins]: dense rows, or panels. */
static struct tess_view lay_out(const struct tess_parts *l, const struct tess_weight *w,
                                bool panels)
{
	struct tess_view v = { .dtype = w->dtype,
		               .ndim = w->ndim,
		               .layout = panels ? TESS_PANELS : TESS_ROWS };
	int32_t out = w->ndim - 2;
	int64_t each = 1;

	for (int32_t a = w->ndim - 1; a >= 0; a--) {
		v.shape[a] = tess_weight_get_local_size(l->p, w, l->rank, a);
		v.stride[a] = each;
		each *= v.shape[a];
	}
	if (w->in_out)
		tess_view_swap_axes(&v, out);
	if (!panels)
		return v;
	v.stride[out + 1] = 16;
	v.stride[out] = 16 * v.shape[out + 1];
	if (out)
		v.stride[0] = tess_up(v.shape[1], 16) * v.stride[1];
	if (w->heads)
		v.stride[0] = tess_head_parts_count(w->heads, w->heads->n, v.shape[1]);
	return v;
}

void tess_weight_decision_set(const struct tess_parts *l, struct tess_weight_decision *d,
                              int32_t kind, const char *reason)
{
	const struct tess_weight *w = d->weight;
	uint64_t width = tess_width(w->dtype);
	uint64_t local = width * (uint64_t)tess_weight_count_local(l->p, w, l->rank);
	int64_t share = tess_weight_get_kept(l->p, w, l->rank, TESS_REST).len;

	*d = (struct tess_weight_decision){
		.weight = w, .kind = kind, .dtype = w->dtype, .panels = d->panels, .reason = reason
	};
	if (kind == TESS_STORE_MAPPED || kind == TESS_STORE_WAITING)
		d->mapped = local;
	switch (kind) {
	case TESS_STORE_ROWS:
		d->view = lay_out(l, w, false);
		d->bytes = local;
		break;
	case TESS_STORE_SHARE:
	case TESS_STORE_FILE:
		d->view = (struct tess_view){ .dtype = w->dtype, .ndim = 1 };
		d->view.shape[0] = share;
		d->view.stride[0] = 1;
		d->bytes = width * (uint64_t)share;
		break;
	case TESS_STORE_WAITING:
	case TESS_STORE_PANELS:
		d->view = lay_out(l, w, true);
		d->bytes = width * (w->heads ? (uint64_t)(d->view.shape[0] / w->dim[0]->unit_size *
		                                          d->view.stride[0])
		                             : tess_view_count_panels(&d->view));
		break;
	case TESS_STORE_COMPRESSED:
		d->dtype = w->compressed;
		d->view = tess_weight_view_compressed(l->p, w, l->rank);
		d->bytes = tess_view_count_panels(&d->view);
	}
}

static bool is_in_file(const struct tess_parts *l, const struct tess_weight *w)
{
	return tess_weight_is_fetched(l->p, w, l->rank);
}

/* Returns whether a weight of inference would be in a file if it were larger. */
static bool is_kept_small(const struct tess_parts *l, const struct tess_weight *w)
{
	return !l->p->training && w->rest_location == TESS_LOCATION_DISK;
}

/* Finds why the weight cannot stay in the checkpoint's mapping, even for a while; NULL: it can. */
static tess_status find_obstacle(struct tess_parts *l, const struct tess_device *device,
                                 const struct tess_weight_decision *d, const char **reason)
{
	const struct tess_weight *w = d->weight;
	struct tess_part part;
	tess_status st;

	*reason = is_in_file(l, w)           ? "offloaded between uses"
	          : is_kept_small(l, w)      ? "too small to be offloaded"
	          : w->rest_cut              ? "cut along dp at rest"
	          : l->p->training           ? "training changes it"
	          : device->mem != TESS_HOST ? "the device has memory of its own"
	          : w->ndim == 3             ? "experts"
	                                     : NULL;
	if (*reason)
		return TESS_OK;
	st = tess_parts_find(l, w, 0, &part);
	if (!st && part.scattered)
		*reason = "not in one piece, or not mapped";
	else if (d->panels && w->in_out)
		*reason = "stored [in, out]";
	else if (d->panels && w->heads)
		*reason = "packed head by head";
	else if (d->panels && *tess_option_get("layout"))
		*reason = "TESSERA_LAYOUT";
	return st;
}

static tess_status decide_stored(struct tess_parts *l, const struct tess_device *device,
                                 struct tess_weight_decision *d)
{
	const char *obstacle;
	tess_status st = find_obstacle(l, device, d, &obstacle);
	int32_t kind = !obstacle ? (d->panels ? TESS_STORE_WAITING : TESS_STORE_MAPPED)
	               : is_in_file(l, d->weight) ? TESS_STORE_FILE
	               : d->weight->rest_cut      ? TESS_STORE_SHARE
	               : d->panels                ? TESS_STORE_PANELS
	                                          : TESS_STORE_ROWS;

	if (!st)
		tess_weight_decision_set(l, d, kind,
		                         obstacle    ? obstacle
		                         : d->panels ? "packed between steps"
		                                     : "read as stored");
	return st;
}

static tess_status decide_weight(struct tess_parts *l, const struct tess_device *device,
                                 struct tess_weight_decision *d, bool compresses)
{
	const struct tess_weight *w = d->weight;

	if (!tess_program_has_stage(l->p, l->rank, w->stage))
		tess_weight_decision_set(l, d, TESS_STORE_ELSEWHERE, "another stage has it");
	else if (w->compressed && compresses)
		tess_weight_decision_set(l, d, TESS_STORE_COMPRESSED,
		                         w->mxfp4 ? "stored in MXFP4" : "linear ops read it");
	else if (w->table)
		tess_weight_decision_set(l, d, TESS_STORE_TIED, "the head reads its table");
	else
		return decide_stored(l, device, d);
	return TESS_OK;
}

tess_status tess_weight_decide_again(struct tess_parts *l, const struct tess_device *device,
                                     struct tess_weight_decision *d)
{
	tess_status st = decide_weight(l, device, d, false);

	d->reason = "the device cannot compress its values";
	return st;
}

tess_status tess_weights_decide(struct tess_parts *l, const struct tess_device *device,
                                struct tess_weight_decision **out)
{
	const struct tess_program *p = l->p;
	struct tess_weight_decision *list;
	bool panels;
	tess_status st = tess_weights_read_layout(device, &panels);

	if (st)
		return st;
	list = calloc((size_t)p->nweights + 1, sizeof *list);
	if (!list)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (panels && !p->training && p->rest_location != TESS_LOCATION_DISK)
		mark_panels(p, list);
	for (int32_t i = 0; i < p->nweights && !st; i++) {
		list[i].weight = p->weight[i];
		st = decide_weight(l, device, &list[i], true);
	}
	if (st)
		free(list);
	else
		*out = list;
	return st;
}
