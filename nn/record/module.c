/* module.c - opens modules and their styles by the plan, and applies hooks and layouts. */
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"
#include "nn/record/recorder.h"

#include <string.h>

tess_status tess_module_check_data(const struct tess_module *m, struct tess_place place)
{
	if (!m->site.data || place.kind == TESS_ASIS || place.kind == TESS_REPLICATE)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "%s: style %s cuts along %s, where each rank has sequences of its own; "
	                 "along it use ddp, zero1 or zero3",
	                 m->site.module, m->spec, m->r->p->mesh.dim[m->along].name);
}

/* ---- opening --------------------------------------------------------------------------------- */

tess_status tess_module_find_style(struct tess_recorder *r, struct tess_module *m)
{
	size_t len = strcspn(m->spec, ":");
	const char *name = tess_arena_copy(&r->p->arena, m->spec, len);

	if (!name)
		return TESS_ENOMEM;
	m->site.style = name;
	m->site.config = m->spec + len + (m->spec[len] == ':');
	return tess_plugin_find_style(name, &m->style);
}

/* Finds the style of the rule for `path`. */
static tess_status find_module_style(struct tess_recorder *r, struct tess_module *m,
                                     const char *path)
{
	int32_t rule;
	tess_status st = tess_plan_find(r->options->plan, &r->p->mesh, m->along, path, NULL,
	                                r->used_rules, &rule);

	if (st)
		return st;
	m->rule = rule < 0 ? NULL : &r->options->plan->rule[rule];
	m->spec = m->rule ? m->rule->style : "replicate";
	st = tess_module_find_style(r, m);
	if (st && rule >= 0)
		return tess_fail_in(st, "%s: rule \"%s\" of %s", path,
		                    r->options->plan->rule[rule].pattern,
		                    r->options->plan->rule[rule].origin);
	return st;
}

tess_status tess_module_open_style(struct tess_recorder *r, struct tess_module *m)
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
	list[p->nopen_styles++] =
		(struct tess_open_style){ m->style, m->site.state, m->site.module };
	p->open_styles = list;
	return TESS_OK;
}

/* Checks a layout; every module has one input and one output. */
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

/* Notes that a style begins a stage of a pipeline; only styles along pp may. */
static tess_status note_stage_begin(struct tess_recorder *r, const struct tess_module *m)
{
	struct tess_program *p = r->p;
	bool begins = m->style->begins_stage, pp = !strcmp(p->mesh.dim[m->along].name, "pp");
	struct tess_stage_begin *list;

	if (begins && !pp)
		return tess_fail(TESS_EINVAL,
		                 "%s: style %s begins a stage of a pipeline, which is for mesh "
		                 "dimension pp: \"pp:PATTERN\": \"%s\"",
		                 m->site.module, m->spec, m->spec);
	if (pp && !begins && m->rule && strcmp(m->spec, "replicate") != 0)
		return tess_fail(TESS_EINVAL,
		                 "%s: style %s along pp, where each rank runs modules of its own; "
		                 "stage begins a stage there, and other styles are for other "
		                 "dimensions",
		                 m->site.module, m->spec);
	if (!begins)
		return TESS_OK;
	list = tess_arena_grow(&p->arena, r->stage_begins, (size_t)r->nstage_begins, sizeof *list);
	if (!list)
		return TESS_ENOMEM;
	r->stage_begins = list;
	list[r->nstage_begins++] = (struct tess_stage_begin){ m->site.module, p->nrecords };
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
		                      .host = &tess_recording_host,
		                      .module = module,
		                      .kind = kind };
	st = find_module_style(r, m, module);
	if (!st)
		st = tess_module_open_style(r, m);
	if (!st)
		st = TESS_PLUGIN_CALL(m->style, module, layout, &m->site, &m->io);
	if (!st)
		st = check_layout(m);
	return st ? st : note_stage_begin(r, m);
}

/* Notes that a module was opened, before its layouts are known. */
static tess_status note_module(struct tess_program *p, const struct tess_module *m,
                               const char *path, const char *kind)
{
	struct tess_opened_module *list =
		tess_arena_grow(&p->arena, p->module, (size_t)p->nmodules, sizeof *list);
	const struct tess_io **io = TESS_NEW(&p->arena, const struct tess_io *, p->mesh.ndims);

	if (!list || !io)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->mesh.ndims; i++)
		io[i] = &m[i].io;
	list[p->nmodules++] = (struct tess_opened_module){ path, kind, p->nrecords, io };
	p->module = list;
	return TESS_OK;
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
	if (!st)
		st = note_module(r->p, m, module, kind);
	for (int32_t i = 0; i < n && !st; i++)
		st = open_module_along(r, module, kind, i, &m[i]);
	if (st)
		return tess_recorder_keep_error(r, st);
	for (int32_t i = 0; i < n; i++)
		m->hooks |= m[i].style->prepare_input || m[i].style->prepare_output;
	return m;
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

/* Fails unless hooks left a value of the shape and element type that they got. */
static bool check_hooks(struct tess_recorder *r, const struct tess_module *m,
                        const struct tess_tensor *got, const struct tess_tensor *left, char what)
{
	if (tess_tensor_has_same_dims(left, got) && left->dtype == got->dtype && !left->local)
		return true;
	return tess_recorder_fail(
		       r, TESS_EINVAL,
		       "%s: style %s: prepare_%s() left %s value of another shape or "
		       "element type; its last call must give those of *%c (tess_call.like)",
		       m->site.module, m->spec, what == 'x' ? "input" : "output",
		       left->local ? "a local" : "a", what) != NULL;
}

/* Moves x to the placements of the module's layouts for its input or output. */
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
	const struct tess_tensor *got = x;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < r->p->mesh.ndims && !r->status && x; i++) {
		if (m[i].style->prepare_input)
			st = TESS_PLUGIN_CALL(m[i].style, m->site.module, prepare_input, &m[i].site,
			                      0, &x);
		if (st)
			return tess_recorder_keep_error(r, st);
		if (!x && !r->status)
			return fail_no_value(r, &m[i], "prepare_input");
		if (r->status || !check_hooks(r, &m[i], got, x, 'x'))
			return NULL;
	}
	return r->status || !x ? NULL : apply_layouts(r, m, x, false);
}

/* Appends "colwise along tp (FILE)" for each style that the plan names. False: no memory. */
static bool list_named_styles(struct tess_recorder *r, const struct tess_module *m,
                              const char **list)
{
	*list = NULL;
	for (int32_t i = 0; i < r->p->mesh.ndims; i++) {
		struct tess_plugin_origin origin;

		if (!m[i].rule)
			continue;
		tess_registry_find_origin(m[i].style, &origin);
		*list = tess_arena_format(&r->p->arena, "%s%s%s%s (%s)", *list ? *list : "",
		                          *list ? ", " : "", m[i].spec, tess_recorder_along(r, i),
		                          origin.path);
		if (!*list)
			return false;
	}
	return true;
}

/* Notes the value that a module returns, for tess_values_record. */
static struct tess_tensor *note_output(struct tess_recorder *r, const struct tess_module *m,
                                       struct tess_tensor *y)
{
	struct tess_module_output *o = TESS_NEW(&r->p->arena, struct tess_module_output, 1);

	if (!o || !list_named_styles(r, m, &o->styles))
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	o->module = m->site.module;
	o->value = y;
	if (r->last_output)
		r->last_output->next = o;
	else
		r->outputs = o;
	r->last_output = o;
	return y;
}

struct tess_tensor *tess_module_prepare_output(struct tess_recorder *r, const struct tess_module *m,
                                               struct tess_tensor *y)
{
	const struct tess_tensor *got = y;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < r->p->mesh.ndims && !r->status && y; i++) {
		if (m[i].style->prepare_output)
			st = TESS_PLUGIN_CALL(m[i].style, m->site.module, prepare_output,
			                      &m[i].site, 0, &y);
		if (st)
			return tess_recorder_keep_error(r, st);
		if (!y && !r->status)
			return fail_no_value(r, &m[i], "prepare_output");
		if (r->status || !check_hooks(r, &m[i], got, y, 'y'))
			return NULL;
	}
	y = r->status || !y ? NULL : apply_layouts(r, m, y, true);
	return y && r->options->values ? note_output(r, m, y) : y;
}

/* ---- entering and leaving -------------------------------------------------------------------- */

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
	if (name && frame)
		frame->module = tess_recorder_format_path(r, name);
	if (!name || !frame || !frame->module)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	frame->outer = r->path;
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
