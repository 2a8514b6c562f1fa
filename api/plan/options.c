/* options.c - writes a strategy in the options of `tessera train`. */
#include "api/plan/options.h"

#include <string.h>

static void write_list(const char *option, const char *const *list, FILE *f)
{
	for (; list && *list; list++)
		fprintf(f, " %s '%s'", option, *list);
}

/* Writes where values are. A strategy names no folder. */
static void write_location(const char *option, const char *location, FILE *f)
{
	if (location)
		fprintf(f, " %s %s", option, strcmp(location, "disk") != 0 ? location : "DIR");
}

void tess_strategy_write_options(const struct tess_strategy *s, FILE *f)
{
	const char *quote = *s->plan == '{' ? "'" : "";

	fprintf(f, "--mesh %s --plan %s%s%s", s->mesh, quote, s->plan, quote);
	write_list("--plan-override", s->overrides, f);
	write_list("--recompute", s->recompute, f);
	if (s->micro_batches > 1)
		fprintf(f, " --micro-batches %lld", (long long)s->micro_batches);
	if (s->pipeline_schedule)
		fprintf(f, " --pipeline-schedule %s", s->pipeline_schedule);
	write_location("--offload-optimizer", s->offload_optimizer, f);
	write_location("--offload-weights", s->offload_weights, f);
	if (s->tile)
		fprintf(f, " --tile %llu", (unsigned long long)s->tile);
	if (s->bucket)
		fprintf(f, " --bucket %lluMiB", (unsigned long long)(s->bucket >> 20));
}
