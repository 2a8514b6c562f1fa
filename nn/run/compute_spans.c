#include "nn/run/compute_spans.h"

#include "core/registry/plugin_call.h"
#include "core/world/group.h"

#include <stdio.h>
#include <string.h>
#include <tessera/util/clock.h>

static bool notes_computation(const struct tess_group *g)
{
	return g && g->self && g->backend->computed;
}

struct tess_compute_spans tess_compute_spans_begin(const struct tess_run_groups *groups)
{
	return (struct tess_compute_spans){ .group = notes_computation(groups->all) ? groups->all
		                                                                    : NULL };
}

void tess_compute_spans_end(struct tess_compute_spans *s)
{
	const struct tess_group *g = s->group;

	if (g && s->module)
		TESS_PLUGIN_DO_QUICK(g->backend, s->module, computed, g->self, s->module, s->ops,
		                     s->begin, s->end);
	s->module = NULL;
}

void tess_compute_spans_note_action(const struct tess_run_groups *groups, const char *action,
                                    const char *kind, int64_t began)
{
	const struct tess_group *g = groups->all;

	if (notes_computation(g))
		TESS_PLUGIN_DO_QUICK(g->backend, action, computed, g->self, action, kind, began,
		                     tess_now());
}

/* Appends the name of a kind of op, unless the list has it or is full. */
static void append_op(char ops[static TESS_SPAN_OPS], const char *name)
{
	size_t n = strlen(ops), len = strlen(name);

	for (const char *at = ops; (at = strstr(at, name)); at += len)
		if ((at == ops || at[-1] == ' ') && (!at[len] || at[len] == ' '))
			return;
	if (n + len + 2 < TESS_SPAN_OPS)
		snprintf(ops + n, TESS_SPAN_OPS - n, "%s%s", n ? " " : "", name);
}

void tess_compute_spans_add(struct tess_compute_spans *s, const struct tess_step *step,
                            int64_t began)
{
	bool computes = step->kind == TESS_STEP_OP || step->kind == TESS_STEP_CALL;
	const char *module = step->kind == TESS_STEP_OP ? step->op.where : step->where;

	if (!computes || !s->module || strcmp(s->module, module) != 0)
		tess_compute_spans_end(s);
	if (!computes)
		return;
	if (!s->module) {
		s->module = module;
		s->begin = began;
		s->ops[0] = '\0';
	}
	s->end = tess_now();
	if (step->kind == TESS_STEP_CALL)
		append_op(s->ops, step->backward ? "grad" : "compute");
	for (; step && step->kind == TESS_STEP_OP; step = step->fused)
		append_op(s->ops, tess_record_kind_name(step->op.kind));
}
