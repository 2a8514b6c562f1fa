/* options.c - writes a strategy in the options of `tessera train`. */
#include "api/plan/options.h"

static void write_list(const char *option, const char *const *list, FILE *f)
{
	for (; list && *list; list++)
		fprintf(f, " %s '%s'", option, *list);
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
	if (s->bucket)
		fprintf(f, " --bucket %lluMiB", (unsigned long long)(s->bucket >> 20));
}
