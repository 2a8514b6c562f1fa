#include "nn/record.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/registry/plugin_call.h"
#include "nn/backward.h"
#include "nn/compressed.h"
#include "nn/pipeline.h"
#include "nn/recorder.h"
#include "nn/settings.h"

#include <stdio.h>
#include <string.h>

void *tess_recorder_keep_error(struct tess_recorder *r, tess_status why)
{
	if (!r->status) {
		r->status = why;
		r->sentence = tess_arena_copy(&r->p->arena, tess_error(), SIZE_MAX);
	}
	return NULL;
}

void *tess_recorder_fail(struct tess_recorder *r, tess_status why, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return tess_recorder_keep_error(r, tess_fail(why, "%s", text));
}

tess_status tess_module_check_data(const struct tess_module *m, struct tess_place place)
{
	if (!m->site.data || place.kind == TESS_ASIS || place.kind == TESS_REPLICATE)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "%s: style %s cuts along %s, where each rank has sequences of its own; "
	                 "along it use ddp, zero1 or zero3",
	                 m->site.module, m->spec, m->r->p->mesh.dim[m->along].name);
}

/* ---- what hooks may call --------------------------------------------------------------------- */

static tess_status host_redistribute(const struct tess_site *s, const struct tess_place *to,
                                     struct tess_tensor **x)
{
	const struct tess_module *m = (const struct tess_module *)s;
	struct tess_recorder *r = m->r;
	struct tess_tensor *y;

	if (tess_module_check_data(m, *to))
		return TESS_EINVAL;
	y = tess_tensor_move(r, *x, m->along, *to, s->module);
	if (y)
		*x = y;
	return r->status;
}

static tess_status host_call(const struct tess_site *s, const struct tess_call *f,
                             struct tess_tensor **x)
{
	const struct tess_module *m = (const struct tess_module *)s;
	struct tess_recorder *r = m->r;
	struct tess_call *call = TESS_NEW(&r->p->arena, struct tess_call, 1);
	struct tess_place *to = NULL;
	struct tess_tensor *y = NULL;
	struct tess_record *rec;

	if (r->status)
		return r->status;
	if (!*x)
		return tess_fail(TESS_EINVAL, "%s: a call of no value (NULL)", s->module);
	if (tess_place_check(f->out, (*x)->ndim, s->module))
		return TESS_EINVAL;
	if (f->out.kind)
		to = tess_tensor_replace_place(r, *x, m->along,
		                               tess_place_normalize(f->out, (*x)->ndim));
	if (call && (to || !f->out.kind))
		y = tess_tensor_new(r, (*x)->ndim, (*x)->dim, to ? to : (*x)->place, s->module);
	if (!y)
		return r->status ? r->status : TESS_ENOMEM;
	memcpy(call, f, f->size < sizeof *call ? f->size : sizeof *call);
	if (!call->run)
		return tess_fail(TESS_EINVAL, "%s: a call without run()", s->module);
	if (call->scratch > INT64_MAX / 2)
		return tess_fail(TESS_EINVAL, "%s: a call with %llu bytes of scratch memory",
		                 s->module, (unsigned long long)call->scratch);
	if (tess_recorder_find_partial(r, y->place) >= 0 ||
	    tess_recorder_find_partial(r, (*x)->place) >= 0)
		return tess_fail(
			TESS_EINVAL,
			"%s: a call takes and returns finished values, not Partial; redistribute "
			"first",
			s->module);
	if (!tess_program_is_on_host(r->p))
		return tess_fail(TESS_ENOTSUP,
		                 "%s: style %s calls a function of its own on values in host "
		                 "memory, and device %s has memory of its own; use another style, "
		                 "or a device without such memory",
		                 s->module, ((const struct tess_module *)s)->style->name,
		                 r->p->device->name);
	rec = tess_record_append(r, TESS_REC_CALL, s->module, 1, x, 1, &y, 0, NULL);
	if (!rec)
		return r->status;
	rec->along = m->along;
	rec->call = call;
	rec->style = m->style;
	rec->state = s->state;
	*x = y;
	return TESS_OK;
}

static const struct tess_host recording_host = {
	.size = sizeof recording_host,
	.abi = TESS_ABI,
	.fail = tess_fail,
	.log = tess_log,
	.option = tess_option_get,
	.redistribute = host_redistribute,
	.call = host_call,
	.backend = tess_plugin_find_backend,
};

/* ---- modules --------------------------------------------------------------------------------- */

const char *tess_recorder_format_path(struct tess_recorder *r, const char *name)
{
	const char *open = r->path ? r->path->module : "";

	if (!name)
		return *open ? open : "the model";
	return tess_arena_format(&r->p->arena, "%s%s%s", open, *open ? "." : "", name);
}

/* The style of the rule for `path`, and the configuration after its colon. */
static tess_status find_module_style(struct tess_recorder *r, struct tess_module *m,
                                     const char *path)
{
	int32_t rule;
	tess_status st = tess_plan_find(r->options->plan, &r->p->mesh, m->along, path, NULL,
	                                r->used_rules, &rule);
	const char *spec, *name;
	size_t len;

	if (st)
		return st;
	spec = rule < 0 ? "replicate" : r->options->plan->rule[rule].style;
	len = strcspn(spec, ":");
	name = tess_arena_copy(&r->p->arena, spec, len);
	if (!name)
		return TESS_ENOMEM;
	m->spec = spec;
	m->rule = rule < 0 ? NULL : &r->options->plan->rule[rule];
	m->site.style = name;
	m->site.config = spec + len + (spec[len] == ':');
	st = tess_plugin_find_style(name, &m->style);
	if (st && rule >= 0)
		return tess_fail_in(st, "%s: rule \"%s\" of %s", path,
		                    r->options->plan->rule[rule].pattern,
		                    r->options->plan->rule[rule].origin);
	return st;
}

static tess_status open_style_state(struct tess_recorder *r, struct tess_module *m)
{
	struct tess_program *p = r->p;
	struct tess_open_style *list;
	tess_status st;

	if (!m->style->open)
		return TESS_OK;
	list = tess_arena_grow(&p->arena, p->open_styles, (size_t)p->nopen_styles, sizeof *list);
	if (!list)
		return TESS_ENOMEM;
	st = TESS_PLUGIN_CALL(m->style, m->site.module, open, &m->site, &m->site.state);
	if (st)
		return st;
	list[p->nopen_styles++] = (struct tess_open_style){ m->style, m->site.state };
	p->open_styles = list;
	return TESS_OK;
}

/* Every module has one input and one output. */
static tess_status check_layout(const struct tess_module *m)
{
	tess_status st = tess_module_check_data(m, m->io.in[0]);

	if (!st)
		st = tess_module_check_data(m, m->io.out[0]);
	if (st)
		return st;
	for (int32_t i = 1; i < TESS_NARGS; i++)
		if (m->io.in[i].kind || m->io.out[i].kind)
			return tess_fail(
				TESS_EINVAL,
				"%s: style %s places %s %d, but a module has one of them, number 0",
				m->site.module, m->spec, m->io.in[i].kind ? "input" : "output",
				(int)i);
	return TESS_OK;
}

static tess_status open_module_along(struct tess_recorder *r, const char *module, const char *kind,
                                     int32_t along, struct tess_module *m)
{
	tess_status st;

	m->r = r;
	m->along = along;
	m->site = (struct tess_site){ .size = sizeof m->site,
		                      .nranks = r->p->mesh.dim[along].size,
		                      .training = r->options->training != NULL,
		                      .data = r->options->training &&
		                              !strcmp(r->p->mesh.dim[along].name, "dp"),
		                      .host = &recording_host,
		                      .module = module,
		                      .kind = kind };
	st = find_module_style(r, m, module);
	if (!st)
		st = open_style_state(r, m);
	if (!st)
		st = TESS_PLUGIN_CALL(m->style, module, layout, &m->site, &m->io);
	if (!st)
		st = check_layout(m);
	return st ? st : tess_pipeline_open_module(r, m);
}

const struct tess_module *tess_module_open(struct tess_recorder *r, const char *module,
                                           const char *kind)
{
	int32_t n = r->p->mesh.ndims;
	struct tess_module *m = TESS_NEW(&r->p->arena, struct tess_module, n);
	tess_status st = m && module ? TESS_OK : TESS_ENOMEM;

	if (r->status)
		return NULL;
	if (!st) {
		m->site.module = module;
		m->before = r->modules;
		r->modules = m;
	}
	for (int32_t i = 0; i < n && !st; i++)
		st = open_module_along(r, module, kind, i, &m[i]);
	if (st)
		return tess_recorder_keep_error(r, st);
	for (int32_t i = 0; i < n; i++)
		m->hooks |= m[i].style->prepare_input || m[i].style->prepare_output;
	return m;
}

struct tess_tensor *tess_module_enter(struct tess_nn *nn, struct tess_tensor *x, const char *fmt,
                                      ...)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	struct tess_entered *frame;
	const char *name;
	va_list ap;

	if (r->status)
		return NULL;
	if (!x || !fmt)
		return tess_recorder_fail(r, TESS_EINVAL, "%s: a module is entered without a %s",
		                          tess_recorder_format_path(r, NULL), x ? "name" : "value");
	va_start(ap, fmt);
	name = tess_arena_vformat(&r->p->arena, fmt, ap);
	va_end(ap);
	frame = TESS_NEW(&r->p->arena, struct tess_entered, 1);
	if (!name || !frame)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	frame->outer = r->path;
	frame->module = tess_recorder_format_path(r, name);
	frame->opened = tess_module_open(r, frame->module, "module");
	r->path = frame;
	return frame->opened ? tess_module_prepare_input(r, frame->opened, x) : NULL;
}

struct tess_tensor *tess_module_leave(struct tess_nn *nn, struct tess_tensor *y)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;

	if (r->status)
		return NULL;
	if (!y)
		return tess_recorder_fail(r, TESS_EINVAL, "%s: a module is left without a value",
		                          tess_recorder_format_path(r, NULL));
	if (!r->path)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "the model leaves a module that it did not enter");
	y = tess_module_prepare_output(r, r->path->opened, y);
	r->path = r->path->outer;
	return y;
}

/* ---- values and records ---------------------------------------------------------------------- */

struct tess_tensor *tess_tensor_new(struct tess_recorder *r, int32_t ndim,
                                    const struct tess_dim *const *dim,
                                    const struct tess_place *place, const char *module)
{
	struct tess_tensor *v = TESS_NEW(&r->p->arena, struct tess_tensor, 1);
	struct tess_place *copy = TESS_NEW(&r->p->arena, struct tess_place, r->p->mesh.ndims);

	if (!v || !copy)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	memcpy(copy, place, sizeof *copy * (size_t)r->p->mesh.ndims);
	v->id = r->p->ntensors++;
	v->dtype = TESS_F32;
	v->ndim = ndim;
	for (int32_t i = 0; i < ndim; i++)
		v->dim[i] = dim[i];
	v->place = copy;
	v->module = module;
	return v;
}

static void *copy_list(struct tess_recorder *r, const void *list, int32_t n)
{
	void **copy = TESS_NEW(&r->p->arena, void *, n + 1);

	if (copy && n)
		memcpy(copy, list, sizeof *copy * (size_t)n);
	return copy;
}

struct tess_record *tess_record_append(struct tess_recorder *r, int32_t kind, const char *module,
                                       int32_t nin, struct tess_tensor *const *in, int32_t nout,
                                       struct tess_tensor *const *out, int32_t nweight,
                                       const struct tess_weight *const *weight)
{
	struct tess_program *p = r->p;
	struct tess_record *rec, **list;

	if (r->status)
		return NULL;
	list = tess_arena_grow(&p->arena, p->record, (size_t)p->nrecords, sizeof *list);
	if (!list)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	p->record = list;
	rec = TESS_NEW(&p->arena, struct tess_record, 1);
	if (!rec)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	rec->kind = kind;
	rec->module = module;
	rec->nin = nin;
	rec->nout = nout;
	rec->nweight = nweight;
	rec->in = copy_list(r, in, nin);
	rec->out = copy_list(r, out, nout);
	rec->weight = copy_list(r, weight, nweight);
	if (!rec->in || !rec->out || !rec->weight)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	p->record[p->nrecords++] = rec;
	return rec;
}

/* ---- hooks and layouts ----------------------------------------------------------------------- */

static void *fail_no_value(struct tess_recorder *r, const struct tess_module *m, const char *hook)
{
	return tess_recorder_fail(
		r, TESS_EABI,
		"%s: style %s: %s() left no value (NULL), which is a defect of it; *%c "
		"must be a value that the host's calls made, or be left unchanged",
		m->site.module, m->style->name, hook, hook[8] == 'i' ? 'x' : 'y');
}

/* Moves x to the placements that the module's layouts give its input or output. */
static struct tess_tensor *apply_layouts(struct tess_recorder *r, const struct tess_module *m,
                                         struct tess_tensor *x, bool output)
{
	int32_t n = r->p->mesh.ndims;
	struct tess_place *to = TESS_NEW(&r->p->arena, struct tess_place, n);

	if (!to)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	for (int32_t i = 0; i < n; i++)
		to[i] = output ? m[i].io.out[0] : m[i].io.in[0];
	return tess_tensor_redistribute(r, x, to, m->site.module);
}

struct tess_tensor *tess_module_prepare_input(struct tess_recorder *r, const struct tess_module *m,
                                              struct tess_tensor *x)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < r->p->mesh.ndims && !r->status && x; i++) {
		if (m[i].style->prepare_input)
			st = TESS_PLUGIN_CALL(m[i].style, m->site.module, prepare_input, &m[i].site,
			                      0, &x);
		if (st)
			return tess_recorder_keep_error(r, st);
		if (!x && !r->status)
			return fail_no_value(r, &m[i], "prepare_input");
	}
	return r->status || !x ? NULL : apply_layouts(r, m, x, false);
}

struct tess_tensor *tess_module_prepare_output(struct tess_recorder *r, const struct tess_module *m,
                                               struct tess_tensor *y)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < r->p->mesh.ndims && !r->status && y; i++) {
		if (m[i].style->prepare_output)
			st = TESS_PLUGIN_CALL(m[i].style, m->site.module, prepare_output,
			                      &m[i].site, 0, &y);
		if (st)
			return tess_recorder_keep_error(r, st);
		if (!y && !r->status)
			return fail_no_value(r, &m[i], "prepare_output");
	}
	return r->status || !y ? NULL : apply_layouts(r, m, y, true);
}

/* ---- a whole program ------------------------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 0x100000001b3u; /* FNV-1a */
	return h;
}

static uint64_t hash_dim(uint64_t h, const struct tess_dim *d)
{
	int64_t about[] = { d->size, d->unit_size, d->group, d->nparts,
		            d->base ? d->base->nunits : 0 };

	h = hash_bytes(h, about, sizeof about);
	for (int64_t i = 0; i < d->nparts; i++)
		h = hash_dim(h, d->parts[i]);
	return h;
}

static uint64_t hash_places(uint64_t h, const struct tess_program *p,
                            const struct tess_place *place)
{
	for (int32_t i = 0; i < p->mesh.ndims; i++) {
		int32_t about[] = { place[i].kind, place[i].dim, place[i].op };

		h = hash_bytes(h, about, sizeof about);
	}
	return h;
}

/* A dim of a value; replicas have tokens of other sequences, and otherwise the same records. */
static uint64_t hash_axis(uint64_t h, const struct tess_program *p, const struct tess_dim *d)
{
	if (!p->training || d != p->tokens)
		return hash_dim(h, d);
	return hash_bytes(h, &p->training->all_sequences, sizeof p->training->all_sequences);
}

static uint64_t hash_tensor(uint64_t h, const struct tess_program *p, const struct tess_tensor *v)
{
	int32_t about[] = { v->id, v->dtype, v->ndim };

	h = hash_places(hash_bytes(h, about, sizeof about), p, v->place);
	for (int32_t i = 0; i < v->ndim; i++)
		h = hash_axis(h, p, v->dim[i]);
	return v->sum ? hash_axis(h, p, v->sum) : h;
}

static uint64_t hash_rope(uint64_t h, const struct tess_rope_use *u)
{
	double numbers[] = { u->rope.theta, u->rope.factor, u->rope.low, u->rope.high,
		             u->rope.scale };
	int64_t integers[] = { u->rope.type, u->rope.original, u->rope.fractions, u->each };
	const json_t *factor;
	size_t i;

	json_array_foreach(u->rope.factors, i, factor) {
		double value = json_number_value(factor);

		h = hash_bytes(h, &value, sizeof value);
	}
	return hash_bytes(hash_bytes(h, numbers, sizeof numbers), integers, sizeof integers);
}

/* The running hash of all records: the first that differs between ranks is where they diverge. */
static tess_status hash_records(struct tess_program *p)
{
	uint64_t h = 0xcbf29ce484222325u;

	p->hash = TESS_NEW(&p->arena, uint64_t, p->nrecords);
	if (!p->hash)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];

		h = hash_bytes(hash_bytes(h, &rec->kind, sizeof rec->kind), rec->module,
		               strlen(rec->module));
		h = hash_bytes(h, rec->num, sizeof rec->num);
		if (rec->kind == TESS_OP_ROPE)
			h = hash_rope(h, &p->rope[(int)rec->num[TESS_REC_ROPE_TABLE]]);
		h = hash_bytes(h, &rec->along, sizeof rec->along);
		h = hash_bytes(h, &rec->stage, sizeof rec->stage);
		for (int32_t k = 0; k < rec->nin; k++)
			h = hash_tensor(h, p, rec->in[k]);
		for (int32_t k = 0; k < rec->nout; k++)
			h = hash_tensor(h, p, rec->out[k]);
		for (int32_t k = 0; k < rec->nweight; k++) {
			const struct tess_weight *w = rec->weight[k];

			for (int32_t a = 0; a < w->ndim; a++)
				h = hash_dim(h, w->dim[a]);
			h = hash_bytes(h, w->name, strlen(w->name));
			h = hash_bytes(h, &w->compressed, sizeof w->compressed);
			h = hash_places(hash_bytes(h, &w->dtype, sizeof w->dtype), p, w->place);
		}
		p->hash[i] = h;
	}
	return TESS_OK;
}

static tess_status finish_program(struct tess_recorder *r, struct tess_tensor *logits)
{
	int32_t nforward;
	tess_status st = TESS_OK;

	if (!r->status && !logits)
		tess_recorder_fail(r, TESS_EINVAL, "model %s: forward gave no logits",
		                   r->options->model->name);
	tess_recorder_check_rows(r, "forward's result", logits);
	if (!r->status && r->p->nselected != r->p->ntokens && logits->dim[0] != r->p->rows->dim[0])
		tess_recorder_fail(r, TESS_EINVAL,
		                   "model %s: forward gave the logits of all rows; call "
		                   "select_rows() before the head",
		                   r->options->model->name);
	if (!r->status && r->path)
		tess_recorder_fail(r, TESS_EINVAL, "model %s: module %s was never left",
		                   r->options->model->name, tess_recorder_format_path(r, NULL));
	r->p->logits = tess_logits_place(r, logits);
	if (!r->status)
		tess_recorder_check_rules(r);
	if (!r->status)
		tess_program_set_router_math(r->p);
	nforward = r->p->nrecords;
	if (!r->status && r->p->training)
		tess_program_record_backward(r);
	tess_pipeline_cut(r, nforward);
	if (!r->status && r->options->weights)
		st = tess_program_compress(r->p, r->options->weights);
	if (!r->status && !st && r->options->math == TESS_BF16)
		st = tess_program_set_math(r->p, TESS_BF16);
	if (st)
		tess_recorder_keep_error(r, st);
	return r->status ? r->status : hash_records(r->p);
}

static tess_status record_model(struct tess_recorder *r)
{
	struct tess_tensor *logits =
		TESS_PLUGIN_VALUE(r->options->model->forward(&r->nn, r->p->ids));
	tess_status st = finish_program(r, logits);

	if (!st)
		return TESS_OK;
	tess_recorder_name_rules(r);
	return tess_fail(st, "%s", r->sentence ? r->sentence : "out of memory");
}

static const struct tess_place *make_whole_place(struct tess_program *p)
{
	struct tess_place *place = TESS_NEW(&p->arena, struct tess_place, p->mesh.ndims);

	for (int32_t i = 0; i < p->mesh.ndims && place; i++)
		place[i] = tess_place_replicate();
	return place;
}

/* The mesh dimension that cuts the program into stages; -1: there is one stage. */
static int32_t find_pipeline(const struct tess_mesh_shape *mesh)
{
	int32_t pp = tess_mesh_shape_find(mesh, "pp", 2);

	return pp >= 0 && mesh->dim[pp].size > 1 ? pp : -1;
}

tess_status tess_program_record(const struct tess_record_options *options,
                                struct tess_program **out)
{
	struct tess_recorder r = { .options = options };
	struct tess_program bootstrap = { 0 };
	struct tess_program *p = TESS_NEW(&bootstrap.arena, struct tess_program, 1);
	tess_status st = tess_plan_check_mesh(options->plan, &options->mesh);

	if (st || !p)
		return tess_arena_free(&bootstrap.arena), st ? st : TESS_ENOMEM;
	*p = bootstrap; /* the program lives in its own arena */
	p->mesh = options->mesh;
	p->ntokens = options->ntokens;
	p->nselected = options->nselected;
	p->logits_root = options->logits_root;
	p->vocabulary_along = -1;
	p->pipeline_along = find_pipeline(&p->mesh);
	p->max_positions = options->positions;
	p->check = options->check;
	p->device = options->device;
	r.p = p;
	r.used_rules = TESS_NEW(&p->arena, bool, options->plan->nrules + 1);
	r.whole = make_whole_place(p);
	r.nn.size = sizeof r.nn;
	tess_ops_install(&r.nn);
	st = r.used_rules && r.whole ? tess_stored_check(options->model) : TESS_ENOMEM;
	if (!st)
		st = tess_settings_merge(options->model, options->source->config, &r.settings);
	if (!st)
		st = tess_inputs_make(&r);
	if (!st)
		st = record_model(&r);
	json_decref(r.settings);
	if (st)
		tess_program_free(p);
	else
		*out = p;
	return st;
}

void tess_program_free(struct tess_program *p)
{
	struct tess_arena arena;

	if (!p)
		return;
	for (int32_t i = 0; i < p->nopen_styles; i++)
		if (p->open_styles[i].style->close)
			TESS_PLUGIN_DO(p->open_styles[i].style->close(p->open_styles[i].state));
	arena = p->arena;
	tess_arena_free(&arena);
}
