/* inner.c - styles over other styles: opens an inner style, and calls it for the outer one. */
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/record/recorder.h"

#include <string.h>

enum { DEPTH = 4 }; /* maximum number of styles over one another */

/* Adds the specs of the styles to a message: "int8:rowwise over rowwise". */
static tess_status fail_inner(const struct tess_module *in, tess_status st)
{
	return tess_fail_in(st, "%s: %s over %s", in->site.module, in->outer->spec, in->spec);
}

static tess_status check_inner(const struct tess_module *in)
{
	int32_t depth = 1;

	for (const struct tess_module *m = in; m->outer; m = m->outer)
		depth++;
	if (depth > DEPTH)
		return tess_fail(TESS_EINVAL, "more than %d styles over one another", DEPTH);
	if (in->style->prepare_input || in->style->prepare_output)
		return tess_fail(
			TESS_EINVAL,
			"%s has hooks of its own; a style goes over one without hooks, such "
			"as rowwise or colwise",
			in->site.style);
	if (in->style->begins_stage)
		return tess_fail(TESS_EINVAL, "%s begins a stage of a pipeline, alone",
		                 in->site.style);
	return TESS_OK;
}

static struct tess_module *make_inner(struct tess_module *m, const char *spec)
{
	struct tess_module *in = TESS_NEW(&m->r->p->arena, struct tess_module, 1);
	const char *copy = tess_arena_copy(&m->r->p->arena, spec, SIZE_MAX);

	if (!in || !copy)
		return NULL;
	in->site = m->site;
	in->site.state = NULL;
	in->r = m->r;
	in->along = m->along;
	in->rule = m->rule;
	in->spec = copy;
	in->outer = m;
	return in;
}

tess_status tess_module_open_inner(const struct tess_site *s, const char *spec,
                                   const struct tess_site **inner)
{
	struct tess_module *m = (struct tess_module *)s,
			   *in; /* sites are in modules, not constant */
	tess_status st;

	if (!spec || !*spec)
		return tess_fail(
			TESS_EINVAL,
			"%s: style %s goes over another; name it after a colon: %s:rowwise",
			s->module, s->style, s->style);
	for (in = m->inners; in; in = in->next_inner)
		if (!strcmp(in->spec, spec))
			return *inner = &in->site, TESS_OK;
	in = make_inner(m, spec);
	if (!in)
		return TESS_ENOMEM;
	st = tess_module_find_style(m->r, in);
	if (!st)
		st = check_inner(in);
	if (!st)
		st = tess_module_open_style(m->r, in);
	if (st)
		return fail_inner(in, st);
	in->next_inner = m->inners;
	m->inners = in;
	*inner = &in->site;
	return TESS_OK;
}

tess_status tess_module_layout_inner(const struct tess_site *inner, struct tess_io *out)
{
	const struct tess_module *in = (const struct tess_module *)inner;
	tess_status st = TESS_PLUGIN_CALL(in->style, inner->module, layout, inner, out);

	return st ? fail_inner(in, st) : TESS_OK;
}

tess_status tess_module_partition_inner(const struct tess_site *inner, const struct tess_param *p,
                                        struct tess_param_place *out)
{
	const struct tess_module *in = (const struct tess_module *)inner;
	tess_status st = TESS_PLUGIN_CALL(in->style, inner->module, partition_param, inner, p, out);

	return st ? fail_inner(in, st) : TESS_OK;
}
