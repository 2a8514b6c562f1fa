/* report.c - prints forecasts. */
#include "api/plan/options.h"
#include "core/base/status.h"
#include "tools/plan/plan.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const times[TESS_TIMES] = { "products",    "attention", "memory", "latency",
	                                       "collectives", "gradients", "sends",  "bubble",
	                                       "optimizer",   "fixed" };
static const char *const memories[TESS_MEMORIES] = {
	"weights", "gradients", "optimizer", "step", "gathered", "loss", "cache", "fixed"
};

/* Formats seconds with three digits: "12.3 ms". */
static const char *format_seconds(double s, char text[32])
{
	const char *unit = s >= 1 ? "s" : s >= 1e-3 ? "ms" : "us";

	snprintf(text, 32, "%.3g %s", s >= 1 ? s : s >= 1e-3 ? s * 1e3 : s * 1e6, unit);
	return text;
}

/* Formats bytes with three digits: "17.6 GB". */
static const char *format_held_bytes(double bytes, char text[32])
{
	static const char *const unit[] = { "B", "kB", "MB", "GB", "TB" };
	int32_t i = 0;

	for (; bytes >= 999.5 && i < 4; i++)
		bytes /= 1000;
	snprintf(text, 32, "%.3g %s", bytes, unit[i]);
	return text;
}

void plan_print_table(const struct plan_options *a, const struct tess_forecast *const *f, int32_t n)
{
	char seconds[32], bytes[32];

	printf("%10s %12s %10s  %-16s strategy\n", a->train ? "step" : "time", "tokens/s", "memory",
	       "bound by");
	for (int32_t i = 0; i < n; i++) {
		printf("%10s %12.0f %10s  %-16s ", format_seconds(f[i]->seconds, seconds),
		       f[i]->rate, format_held_bytes(f[i]->memory, bytes), f[i]->bound);
		tess_strategy_write_options(&f[i]->strategy, stdout);
		putchar('\n');
	}
}

void plan_print_comparison(const struct tess_forecast *a, const struct tess_forecast *b)
{
	char one[32], other[32];

	printf("\n%-14s %12s %12s\n", "", "best", "considered");
	for (int32_t i = 0; i < TESS_TIMES; i++)
		if (a->terms[i] > 0 || b->terms[i] > 0)
			printf("%-14s %12s %12s\n", times[i], format_seconds(a->terms[i], one),
			       format_seconds(b->terms[i], other));
	printf("%-14s %12s %12s\n", "time", format_seconds(a->seconds, one),
	       format_seconds(b->seconds, other));
	for (int32_t i = 0; i < TESS_MEMORIES; i++)
		if (a->holds[i] > 0 || b->holds[i] > 0)
			printf("%-14s %12s %12s\n", memories[i],
			       format_held_bytes(a->holds[i], one),
			       format_held_bytes(b->holds[i], other));
	printf("%-14s %12s %12s\n", "memory", format_held_bytes(a->memory, one),
	       format_held_bytes(b->memory, other));
	if (!b->fits)
		printf("considered: does not fit in the memory of a rank\n");
	else
		printf("considered: %.2f times the time of the best, bound by %s\n",
		       b->seconds / a->seconds, b->bound);
}

static json_t *list_terms(const double *term, const char *const *name, int32_t n)
{
	json_t *o = json_object();

	for (int32_t i = 0; i < n && o; i++)
		json_object_set_new(o, name[i], json_real(term[i]));
	return o;
}

tess_status plan_print_json(const struct tess_forecast *f)
{
	char *strategy = NULL, *line;
	json_t *o;
	tess_status st = tess_strategy_format(&f->strategy, &strategy);

	if (st)
		return st;
	o = json_pack("{s:o, s:i, s:b, s:f, s:f, s:o, s:f, s:f, s:f, s:o, s:f, s:s}", "strategy",
	              json_loads(strategy, 0, NULL), "ranks", (int)f->nranks, "fits", (int)f->fits,
	              "seconds", f->seconds, "tokens_per_second", f->rate, "terms",
	              list_terms(f->terms, times, TESS_TIMES), "prompt_seconds", f->prompt_seconds,
	              "token_seconds", f->token_seconds, "memory", f->memory, "holds",
	              list_terms(f->holds, memories, TESS_MEMORIES), "sent", f->sent, "bound",
	              f->bound);
	line = o ? json_dumps(o, JSON_REAL_PRECISION(9)) : NULL;
	if (line)
		puts(line);
	else
		st = tess_fail(TESS_ENOMEM, "out of memory");
	free(line);
	free(strategy);
	json_decref(o);
	return st;
}
