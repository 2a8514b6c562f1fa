/* consider.c - reads the strategy of --consider, in the options of `tessera train`. */
#include "core/base/status.h"
#include "tools/plan/plan.h"

#include <stdlib.h>
#include <string.h>

enum { CONSIDER_MAX = 64 };

struct considered { /* one allocation: the lists, then the words */
	const char *overrides[CONSIDER_MAX + 1], *recompute[CONSIDER_MAX + 1];
	int32_t noverrides, nrecompute;
	char words[];
};

static tess_status add_word(const char *name, const char **list, int32_t *n, const char *value)
{
	if (*n == CONSIDER_MAX)
		return tess_fail(TESS_EINVAL, "more than %d %s", CONSIDER_MAX, name);
	list[(*n)++] = value;
	return TESS_OK;
}

/* Returns the location of a strategy, which names no folder. */
static const char *get_offload_location(const char *value)
{
	return strcmp(value, "host") != 0 ? "disk" : "host";
}

static tess_status set_word(struct considered *c, const char *name, const char *value,
                            struct tess_strategy *out)
{
	if (!strcmp(name, "--mesh"))
		out->mesh = value;
	else if (!strcmp(name, "--plan"))
		out->plan = value;
	else if (!strcmp(name, "--pipeline-schedule"))
		out->pipeline_schedule = value;
	else if (!strcmp(name, "--micro-batches"))
		return tess_tool_parse_integer(name, value, 1, 1 << 20, &out->micro_batches);
	else if (!strcmp(name, "--bucket"))
		return tess_tool_parse_size(name, value, &out->bucket);
	else if (!strcmp(name, "--tile"))
		return tess_tool_parse_size(name, value, &out->tile);
	else if (!strcmp(name, "--offload-optimizer"))
		out->offload_optimizer = get_offload_location(value);
	else if (!strcmp(name, "--offload-weights"))
		out->offload_weights = get_offload_location(value);
	else if (!strcmp(name, "--plan-override"))
		return add_word(name, c->overrides, &c->noverrides, value);
	else if (!strcmp(name, "--recompute"))
		return add_word(name, c->recompute, &c->nrecompute, value);
	else
		return tess_fail(TESS_EINVAL,
		                 "%s is unknown; use --mesh, --plan, --plan-override, --recompute, "
		                 "--micro-batches, --pipeline-schedule, --bucket, "
		                 "--offload-optimizer, --offload-weights and --tile",
		                 name);
	return TESS_OK;
}

tess_status plan_read_words(const char *words, struct tess_strategy *out, char **text)
{
	size_t len = strlen(words);
	struct considered *c = calloc(1, sizeof *c + len + 1);
	char *rest, *name, *value;
	tess_status st = TESS_OK;

	if (!c)
		return tess_fail(TESS_ENOMEM, "out of memory");
	*text = (char *)c;
	memcpy(c->words, words, len);
	*out = (struct tess_strategy){ .size = sizeof *out, .plan = "auto" };
	for (name = strtok_r(c->words, " \t\n", &rest); name && !st;
	     name = strtok_r(NULL, " \t\n", &rest)) {
		value = strtok_r(NULL, " \t\n'\"", &rest);
		st = value ? set_word(c, name, value, out)
		           : tess_fail(TESS_EINVAL, "%s needs a value", name);
	}
	if (!st && !out->mesh)
		st = tess_fail(TESS_EINVAL, "--mesh is missing");
	out->overrides = c->noverrides ? c->overrides : NULL;
	out->recompute = c->nrecompute ? c->recompute : NULL;
	return st;
}
