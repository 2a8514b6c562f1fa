/*
 * parameter.c - finds parameters in the checkpoint and places them by the module's style.
 */
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/program/storage.h"
#include "nn/record/recorder.h"
#include "nn/record/task.h"

#include <stdio.h>
#include <string.h>
#include <tessera/names.h>

/* Formats "NAME", or "NAME (FILE in files)". */
static const char *format_name(struct tess_recorder *r, const char *name, const char *file)
{
	return strcmp(name, file) ? tess_arena_format(&r->p->arena, "%s (%s in files)", name, file)
	                          : name;
}

/* Returns the required size along an axis of file `part` of an expert, or of all experts. */
static int64_t get_file_size(const struct tess_weight_request *request,
                             const struct tess_files *files, int32_t part, int32_t axis)
{
	const struct tess_dim *d = request->dim[axis];

	return files->nparts > 1 && axis == request->out_dim ? d->parts[part]->size : d->size;
}

/* Checks the shape of a file, if known, against the model's dims. */
static bool check_shape(struct tess_recorder *r, const char *name,
                        const struct tess_weight_request *request, const struct tess_files *files,
                        int32_t part, const struct tess_view *v)
{
	int32_t first = files->by_expert, n = request->ndim - first;
	char want[64] = "", have[96] = "";
	bool same = v->ndim == n;

	if (v->ndim < 0)
		return true;
	for (int32_t i = 0; i < n; i++) {
		int64_t size = get_file_size(request, files, part, first + i);

		same = same && v->shape[i] == size;
		snprintf(want + strlen(want), sizeof want - strlen(want), "%s%lld", i ? ", " : "",
		         (long long)size);
	}
	for (int32_t i = 0; i < v->ndim && i < 4; i++)
		snprintf(have + strlen(have), sizeof have - strlen(have), "%s%lld", i ? ", " : "",
		         (long long)v->shape[i]);
	if (!same)
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: %s: shape [%s], but config.json makes it [%s]",
		                   r->options->source->name, name, have, want);
	return same;
}

/* Returns the table of an embedding that has the shape of a weight, or NULL. */
static const struct tess_weight *find_shared_table(const struct tess_recorder *r,
                                                   const struct tess_weight_request *request)
{
	for (int32_t i = 0; i < r->p->nrecords && request->ndim == 2; i++) {
		const struct tess_record *rec = r->p->record[i];

		if (rec->kind == TESS_OP_EMBED &&
		    rec->weight[0]->dim[0]->size == request->dim[0]->size &&
		    rec->weight[0]->dim[1]->size == request->dim[1]->size)
			return rec->weight[0];
	}
	return NULL;
}

/* Explains a missing head: another task, tied embeddings, or not saved. */
static tess_status explain_missing(const struct tess_recorder *r,
                                   const struct tess_weight_request *request, tess_status why)
{
	const struct tess_source *src = r->options->source;
	const struct tess_weight *table = find_shared_table(r, request);
	const char *classifier = table ? tess_source_find_classifier(src) : NULL;

	if (!table)
		return why;
	if (classifier)
		return tess_source_fail_classifier(src, classifier);
	return tess_fail(
		why,
		"%s; if it shares %s, put \"tie_word_embeddings\": true into config.json, "
		"which %s; if not, the model was saved without its head (AutoModel): save it "
		"as AutoModelForCausalLM",
		tess_error(), table->name,
		json_object_get(src->config, "tie_word_embeddings") ? "has another value"
								    : "lacks that key");
}

/* Sets the dtype by the first file of a parameter. One in MXFP4 has the inputs last. */
static void set_dtype(struct tess_weight_request *request, const struct tess_view *stored,
                      struct tess_weight *w)
{
	const struct tess_dim *out = request->dim[2];

	w->mxfp4 = stored->dtype == TESS_MXFP4;
	w->dtype = w->mxfp4 ? TESS_BF16 : stored->dtype;
	w->absent = stored->ndim < 0;
	if (!w->mxfp4 || !request->in_out || request->ndim != 3)
		return;
	request->dim[2] = request->dim[1];
	request->dim[1] = out;
	request->out_dim = 1;
	request->in_dim = 2;
	request->in_out = false;
}

static bool check_file(struct tess_recorder *r, const struct tess_module *m,
                       struct tess_weight_request *request, struct tess_weight *w, int64_t expert,
                       int32_t part)
{
	const struct tess_source *src = r->options->source;
	struct tess_view stored = { 0 };
	char text[TESS_FILE_NAME];
	const char *file = tess_files_format(&w->files, expert, part, text);
	tess_status st = src->find(src->self, file, &stored);

	if (st == TESS_ENOENT)
		st = explain_missing(r, request, st);
	if (st)
		return tess_recorder_keep_error(
			       r, tess_fail_in(st, "%s",
		                               strcmp(file, w->name) ? w->name : m->site.module)) !=
		       NULL;
	if (!expert && !part)
		set_dtype(request, &stored, w);
	if (stored.dtype != (w->mxfp4 ? TESS_MXFP4 : w->dtype))
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: %s has another dtype than %s; all files of a "
		                          "parameter must have one",
		                          src->name, format_name(r, w->name, file),
		                          w->files.pattern[0]) != NULL;
	return check_shape(r, strcmp(file, w->name) ? format_name(r, w->name, file) : file, request,
	                   &w->files, part, &stored);
}

/* Finds the files of a parameter; all must exist and fit. */
static bool find_files(struct tess_recorder *r, const struct tess_module *m,
                       struct tess_weight_request *request, struct tess_weight *w)
{
	const struct tess_dim *out = request->out_dim < 0 ? NULL : request->dim[request->out_dim];
	tess_status st = tess_files_find(&r->p->arena, r->options->model->stored,
	                                 r->options->source, w->name, &w->files);
	int64_t n = w->files.by_expert ? request->dim[0]->size : 1;

	if (st)
		return tess_recorder_keep_error(r, st) != NULL;
	if ((w->files.by_expert && request->ndim != 3) ||
	    (w->files.nparts > 1 && (!out || out->nparts != w->files.nparts)))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: model %s stores it in %d files%s, which its "
		                          "dimensions do not have as parts",
		                          w->name, r->options->model->name, (int)w->files.nparts,
		                          w->files.by_expert ? " of each expert" : "") != NULL;
	for (int64_t e = 0; e < n; e++)
		for (int32_t i = 0; i < w->files.nparts; i++)
			if (!check_file(r, m, request, w, e, i))
				return false;
	return true;
}

/* Describes a parameter for a style: shape, units of each axis, sizes of fused parts. */
static bool describe_param(struct tess_recorder *r, const struct tess_weight_request *request,
                           struct tess_param *out)
{
	int64_t *shape = TESS_NEW(&r->p->arena, int64_t, request->ndim),
		*units = TESS_NEW(&r->p->arena, int64_t, request->ndim);
	const int64_t **parts = TESS_NEW(&r->p->arena, const int64_t *, request->ndim);

	for (int32_t i = 0; i < request->ndim && shape && units && parts; i++) {
		const struct tess_dim *d = request->dim[i], *piece;
		int64_t *sizes;

		shape[i] = d->size;
		tess_dim_get_max_ranks(d, &piece);
		units[i] = tess_dim_count_units(piece);
		if (!d->nparts)
			continue;
		sizes = TESS_NEW(&r->p->arena, int64_t, d->nparts + 1);
		for (int64_t k = 0; k < d->nparts && sizes; k++)
			sizes[k] = d->parts[k]->size;
		parts[i] = sizes;
	}
	out->shape = shape;
	out->units = units;
	out->parts = parts;
	return shape && units && parts;
}

/* Checks the place where a style stores a parameter. */
static bool check_location(struct tess_recorder *r, const struct tess_module *m,
                           const struct tess_weight *w, const struct tess_storage *at)
{
	static const char *const places[] = {
		[TESS_LOCATION_HOST] = "in host memory", [TESS_LOCATION_DISK] = "on disk"
	};

	if (at->location < TESS_LOCATION_DEVICE || at->location > TESS_LOCATION_DISK ||
	    at->reserved)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: style %s stores it with location %d and reserved "
		                          "%d; use location 0 to %d, and reserved 0",
		                          w->name, m->spec, (int)at->location, (int)at->reserved,
		                          TESS_LOCATION_DISK) != NULL;
	if (tess_location_is_apart(r->p, at->location) && !r->p->training)
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: style %s stores it %s, which is for training "
		                          "only; use location device",
		                          w->name, m->spec, places[at->location]) != NULL;
	if (at->location == TESS_LOCATION_DISK && !tess_program_is_on_host(r->p))
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: style %s stores it on disk, which is not supported "
		                          "on device %s with memory of its own; use location host",
		                          w->name, m->spec, r->p->device->name) != NULL;
	return true;
}

/* Checks the storage that a style chooses between uses, or for the optimizer's state. */
static bool check_storage(struct tess_recorder *r, const struct tess_module *m,
                          const struct tess_weight *w, const struct tess_storage *at, int32_t dtype)
{
	if (at->kind != TESS_ASIS && at->kind != TESS_SHARD)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: style %s stores it by kind %d; use asis or shard",
		                          w->name, m->spec, (int)at->kind) != NULL;
	if (at->dtype && at->dtype != dtype)
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: style %s stores it as %s, where it is %s; leave "
		                          "dtype 0",
		                          w->name, m->spec, tess_dtype_name(at->dtype),
		                          tess_dtype_name(dtype)) != NULL;
	if (at->kind == TESS_SHARD && !m->site.data)
		return tess_recorder_fail(
			       r, TESS_ENOTSUP,
			       "%s: style %s stores a share of what it uses on each rank, which is "
			       "for mesh dimension dp in training only",
			       w->name, m->spec) != NULL;
	return check_location(r, m, w, at);
}

/* Sets the storage; a weight that is cut at rest has a state with the same cut. */
static bool set_storage(struct tess_recorder *r, const struct tess_module *m,
                        const struct tess_param_place *place, struct tess_weight *w)
{
	bool rest = place->rest.kind == TESS_SHARD, state = place->state.kind == TESS_SHARD;

	if (!check_storage(r, m, w, &place->rest, w->dtype) ||
	    !check_storage(r, m, w, &place->state, TESS_F32))
		return false;
	if (rest && !state)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: style %s keeps a share of it, and the state of all "
		                          "of it; use shard for the state too",
		                          w->name, m->spec) != NULL;
	w->rest_location = place->rest.location ? place->rest.location : w->rest_location;
	w->state_location = place->state.location ? place->state.location : w->state_location;
	if (m->along != r->p->data_along || tess_program_count_shards(r->p) == 1)
		return true;
	w->rest_cut = rest;
	w->state_cut = state;
	return true;
}

/* Checks and normalizes a style's placement of a parameter. */
static bool normalize_use(struct tess_recorder *r, const struct tess_weight *w,
                          struct tess_place *p)
{
	if (p->kind == TESS_ASIS)
		*p = tess_place_replicate();
	if (tess_place_check(*p, w->ndim, w->name))
		return tess_recorder_keep_error(r, TESS_EINVAL) != NULL;
	if (p->kind == TESS_PARTIAL)
		return tess_recorder_fail(r, TESS_EINVAL, "%s: a parameter cannot be Partial",
		                          w->name) != NULL;
	*p = tess_place_normalize(*p, w->ndim);
	return true;
}

/* Determines the place of a weight along one mesh dimension. */
static bool place_weight_along(struct tess_recorder *r, const struct tess_module *m,
                               const struct tess_weight_request *request, struct tess_weight *w,
                               struct tess_place *out)
{
	struct tess_param about = { .size = sizeof about,
		                    .dtype = w->dtype,
		                    .ndim = request->ndim,
		                    .out_dim = request->out_dim,
		                    .in_dim = request->in_dim,
		                    .expert_dim = strcmp(m->site.kind, "experts") ? -1 : 0,
		                    .name = request->leaf };
	struct tess_param_place place = { 0 };
	tess_status st;

	if (!describe_param(r, request, &about))
		return tess_recorder_keep_error(r, TESS_ENOMEM) != NULL;
	st = TESS_PLUGIN_CALL(m->style, m->site.module, partition_param, &m->site, &about, &place);
	if (st)
		return tess_recorder_keep_error(r, st) != NULL;
	if (!normalize_use(r, w, &place.use) || !set_storage(r, m, &place, w))
		return false;
	if (tess_module_check_data(m, place.use))
		return tess_recorder_keep_error(r, TESS_EINVAL) != NULL;
	*out = place.use;
	return place.use.kind != TESS_SHARD ||
	       tess_recorder_check_cut(r, w->dim[place.use.dim], m->along, m->site.module);
}

/* Checks that at most one mesh dimension cuts an axis. */
static bool check_axes(struct tess_recorder *r, const struct tess_module *m,
                       const struct tess_weight *w)
{
	for (int32_t i = 0; i < r->p->mesh.ndims; i++) {
		int32_t first = tess_places_find(w->place, i, TESS_SHARD, w->place[i].dim);

		if (w->place[i].kind == TESS_SHARD && first >= 0)
			return tess_recorder_fail_cut_twice(r, w->dim[w->place[i].dim], w->name,
			                                    first, i, m->site.module);
	}
	return true;
}

static bool place_weight(struct tess_recorder *r, const struct tess_module *m,
                         const struct tess_weight_request *request, struct tess_weight *w)
{
	int32_t n = r->p->mesh.ndims;
	struct tess_place *place = TESS_NEW(&r->p->arena, struct tess_place, n);
	const char **style = TESS_NEW(&r->p->arena, const char *, n);

	if (!place || !style)
		return tess_recorder_keep_error(r, TESS_ENOMEM) != NULL;
	w->rest_location = r->p->rest_location;
	w->state_location = r->p->training ? r->p->training->state_location : 0;
	for (int32_t i = 0; i < n; i++) {
		style[i] = m[i].spec;
		if (!place_weight_along(r, &m[i], request, w, &place[i]))
			return false;
		/* a replicated use of a table follows the table */
		if (w->table && place[i].kind == TESS_REPLICATE)
			place[i] = w->table->place[i];
	}
	w->place = place;
	w->style = style;
	if (w->table) { /* table and head share their storage */
		w->rest_cut = w->table->rest_cut;
		w->state_cut = w->table->state_cut;
		w->rest_location = w->table->rest_location;
		w->state_location = w->table->state_location;
	}
	return check_axes(r, m, w);
}

static bool append_weight(struct tess_recorder *r, struct tess_weight *w)
{
	struct tess_program *p = r->p;
	struct tess_weight **list =
		tess_arena_grow(&p->arena, p->weight, (size_t)p->nweights, sizeof *list);

	if (!list)
		return tess_recorder_keep_error(r, TESS_ENOMEM) != NULL;
	p->weight = list;
	w->index = p->nweights;
	p->weight[p->nweights++] = w;
	return true;
}

static struct tess_weight *alloc_weight(struct tess_recorder *r, const char *name)
{
	struct tess_weight *w = TESS_NEW(&r->p->arena, struct tess_weight, 1);

	if (!w || !name)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	w->name = name;
	return w;
}

static void set_axes(struct tess_weight *w, const struct tess_weight_request *request)
{
	w->ndim = request->ndim;
	w->out_dim = request->out_dim;
	w->in_dim = request->in_dim;
	w->in_out = request->in_out;
	memcpy(w->dim, request->dim, sizeof w->dim);
}

/*
 * Decides whether a weight in MXFP4 stays so in memory, and checks that ranks and sums use complete
 * blocks of it.
 */
static bool check_mxfp4(struct tess_recorder *r, struct tess_weight *w)
{
	static const char way_out[] = "use a checkpoint of tessera convert --dtype bf16";
	const struct tess_dim *in = w->dim[2];
	int64_t at = 0;

	if (!w->mxfp4)
		return true;
	if (w->ndim != 3)
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: it is stored in MXFP4, as only weights of experts "
		                          "can be; %s",
		                          w->name, way_out) != NULL;
	if (r->options->weights != TESS_BF16 &&
	    (!r->p->device || r->p->device->layout == TESS_PANELS))
		w->compressed = TESS_MXFP4;
	if (r->p->training)
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: it is stored in MXFP4, whose values training cannot "
		                          "change; %s",
		                          w->name, way_out) != NULL;
	for (int64_t u = 0; !in->nparts && u < in->nunits; u++)
		at |= tess_dim_get_unit_start(in, u);
	if (in->nparts || in->group > 1 || at % TESS_MXFP4_ELEMENTS)
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: it is stored in MXFP4, in blocks of %d inputs, but "
		                          "model %s cuts its inputs, %s, in other units; %s",
		                          w->name, TESS_MXFP4_ELEMENTS, r->options->model->name,
		                          in->name, way_out) != NULL;
	return true;
}

/* Returns the module with the rules of its parameter `name`, which precede the module's. */
static const struct tess_module *apply_parameter_rules(struct tess_recorder *r,
                                                       const struct tess_module *m,
                                                       const char *name)
{
	int32_t n = r->p->mesh.ndims, rule;
	struct tess_module *own = TESS_NEW(&r->p->arena, struct tess_module, n);
	const struct tess_module *at = NULL;

	if (!own)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	for (int32_t i = 0; i < n; i++) {
		own[i] = m[i];
		if (tess_plan_find(r->options->plan, &r->p->mesh, i, name, m->site.module,
		                   r->used_rules, &rule))
			return tess_recorder_keep_error(r, TESS_EINVAL);
		if (rule < 0)
			continue;
		at = at ? at : tess_module_open(r, name, m->site.kind);
		if (!at)
			return NULL;
		own[i] = at[i];
		own[i].site.module = m->site.module;
	}
	return own;
}

const struct tess_weight *tess_weight_add(struct tess_recorder *r, const struct tess_module *m,
                                          const struct tess_weight_request *request)
{
	struct tess_weight_request stored = *request; /* the axes as stored */
	struct tess_weight *w;

	if (r->status)
		return NULL;
	w = alloc_weight(r,
	                 tess_arena_format(&r->p->arena, "%s.%s", m->site.module, request->leaf));
	m = w ? apply_parameter_rules(r, m, w->name) : NULL;
	if (!m || !find_files(r, m, &stored, w))
		return NULL;
	set_axes(w, &stored);
	return check_mxfp4(r, w) && place_weight(r, m, &stored, w) && append_weight(r, w) ? w
	                                                                                  : NULL;
}

void tess_weight_check_whole(struct tess_recorder *r, const struct tess_weight *w, const char *why)
{
	for (int32_t i = 0; w && i < r->p->mesh.ndims; i++)
		if (w->place[i].kind != TESS_REPLICATE)
			tess_recorder_fail(r, TESS_EINVAL,
			                   "%s: style %s cuts it%s, but %s; use replicate", w->name,
			                   w->style[i], tess_recorder_along(r, i), why);
}

const struct tess_weight *tess_weight_add_vector(struct tess_recorder *r, const char *name,
                                                 const struct tess_dim *dim, const char *why)
{
	const char *path = tess_recorder_format_path(r, name),
		   *dot = path ? strrchr(path, '.') : NULL;
	const struct tess_module *m = r->modules;
	const struct tess_weight *w;

	while (m && (!dot || strncmp(m->site.module, path, (size_t)(dot - path)) ||
	             m->site.module[dot - path]))
		m = m->before;
	if (!m)
		return tess_recorder_fail(r, TESS_EINVAL, "%s: no module has such a parameter",
		                          path);
	w = tess_weight_add(r, m,
	                    &(struct tess_weight_request){ dot + 1, 1, 0, -1, { dim }, false });
	tess_weight_check_whole(r, w, why);
	return w;
}

void tess_weight_copy_table(struct tess_recorder *r, struct tess_weight *w)
{
	const struct tess_weight *table = w->table;
	struct tess_weight *copy;

	if (!r->p->training || tess_places_equal(w->place, table->place, r->p->mesh.ndims)) {
		w->files = table->files;
		w->copies = table;
		w->table = NULL;
		return;
	}
	copy = alloc_weight(r, table->name);
	if (!copy)
		return;
	*copy = *table;
	copy->stage = w->stage;
	copy->copies = table;
	if (append_weight(r, copy))
		w->table = copy;
}

const struct tess_weight *tess_weight_add_tied(struct tess_recorder *r, const struct tess_module *m,
                                               const struct tess_weight *table)
{
	/* the head uses the table [vocabulary, hidden] as a weight [out, in] */
	struct tess_weight_request request = { "weight", 2, 0, 1, { table->dim[0], table->dim[1] },
		                               false };
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];
	struct tess_weight *w;

	if (r->status)
		return NULL;
	w = alloc_weight(r, table->name);
	if (!w)
		return NULL;
	set_axes(w, &request);
	w->dtype = table->dtype;
	w->absent = table->absent;
	w->table = table;
	if (!place_weight(r, m, &request, w) || !append_weight(r, w))
		return NULL;
	for (int32_t i = 0; i < r->p->mesh.ndims; i++)
		if (table->place[i].kind != TESS_REPLICATE &&
		    !tess_place_equal(table->place[i], w->place[i]))
			return tess_recorder_fail(
				r, TESS_EINVAL,
				"%s: style %s needs the table %s%s, but %s (style %s) holds it %s; "
				"cut both alike: embedding_rowwise with colwise_rep, or "
				"embedding_colwise with rowwise",
				m->site.module, w->style[i], tess_place_format(w->place[i], a),
				tess_recorder_along(r, i), table->name, table->style[i],
				tess_place_format(table->place[i], b));
	return w;
}
