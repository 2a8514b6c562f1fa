#include "nn/compile/values.h"

#include <string.h>

static bool matches_module(const char *pattern, const char *module)
{
	return !strcmp(pattern, "*") || tess_pattern_matches(pattern, module);
}

/* Returns the source of a gather that gives the logits to one rank only; else x. */
static struct tess_tensor *find_source(const struct tess_program *p, struct tess_tensor *x)
{
	for (int32_t i = 0; i < p->nrecords && x == p->logits && p->logits_root >= 0; i++)
		if (p->record[i]->kind == TESS_REC_MOVE && p->record[i]->out[0] == x)
			return p->record[i]->in[0];
	return x;
}

/* Returns the name of a module's value: from the second call of a module on, "NAME#2". */
static const char *name_value(struct tess_program *p, const char *module)
{
	int32_t n = 1;

	for (int32_t i = 0; i < p->nvalues; i++)
		n += !strcmp(p->values[i].module, module);
	return n == 1 ? module : tess_arena_format(&p->arena, "%s#%d", module, (int)n);
}

static void keep_output(struct tess_recorder *r, const struct tess_module_output *o)
{
	struct tess_program *p = r->p;
	struct tess_tensor *x = find_source(p, o->value);
	struct tess_kept_value *list;

	if (x->ndim != 2 || x->dtype != TESS_F32)
		return;
	list = tess_arena_grow(&p->arena, p->values, (size_t)p->nvalues, sizeof *list);
	if (!list) {
		tess_recorder_keep_error(r, TESS_ENOMEM);
		return;
	}
	p->values = list;
	list[p->nvalues].module = o->module;
	list[p->nvalues].name = name_value(p, o->module);
	list[p->nvalues].styles = o->styles;
	list[p->nvalues].placed = o->value;
	/* later records may have computed existing copies again, or one rank alone may have them */
	x->redistributed = NULL;
	list[p->nvalues].value = tess_tensor_redistribute(r, x, r->whole, o->module);
	p->nvalues += list[p->nvalues].value && list[p->nvalues].name;
}

void tess_values_record(struct tess_recorder *r)
{
	const char *pattern = r->options->values;

	for (const struct tess_module_output *o = r->outputs; o && !r->status; o = o->next)
		if (matches_module(pattern, o->module))
			keep_output(r, o);
	if (!r->status && !r->p->nvalues)
		tess_recorder_fail(r, TESS_EINVAL,
		                   "values \"%s\": no module matches it; give a path in which * "
		                   "stands for one component, such as model.layers.*.mlp, or * for "
		                   "all modules",
		                   pattern);
}
