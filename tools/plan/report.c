/* report.c - prints forecasts. */
#include "api/plan/options.h"
#include "core/base/status.h"
#include "tools/plan/plan.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const times[TESS_TIMES] = { "products",    "attention", "memory", "latency",
	                                       "collectives", "gradients", "sends",  "bubble",
	                                       "optimizer",   "fixed",     "disk" };
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

/* Returns the number of the first strategy with the same plan. */
static int32_t find_first_with_plan(const struct tess_forecast *const *f, int32_t i)
{
	int32_t first = 0;

	while (strcmp(f[first]->strategy.plan, f[i]->strategy.plan) != 0)
		first++;
	return first;
}

/* Prints the options of the i-th strategy; rules of its own by a name, which follows the table. */
static void print_planned_options(const struct tess_forecast *const *f, int32_t i)
{
	struct tess_strategy s = f[i]->strategy;
	char name[32];

	snprintf(name, sizeof name, "PLAN%d", (int)find_first_with_plan(f, i) + 1);
	s.plan = *s.plan == '{' ? name : s.plan;
	tess_strategy_write_options(&s, stdout);
	putchar('\n');
}

/* Prints the plans that the table names. */
static void print_found_plans(const struct tess_forecast *const *f, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		if (*f[i]->strategy.plan == '{' && find_first_with_plan(f, i) == i)
			printf("\nPLAN%d: '%s'\n", (int)i + 1, f[i]->strategy.plan);
}

/* Prints how much the differences between times mean. */
static void print_error(const struct plan_options *a, const struct tess_forecast *f)
{
	if (f->error > 0)
		printf("times with %s had a mean error of %.2g %%%s%s; smaller differences mean "
		       "nothing\n",
		       a->machine, f->error * 100, *f->measured ? ", on " : "", f->measured);
	else
		printf("the error of times with %s was not measured\n", a->machine);
	if (*f->assumed)
		printf("%s\n", f->assumed);
}

void plan_print_table(const struct plan_options *a, const struct tess_forecast *const *f, int32_t n)
{
	char seconds[32], bytes[32];

	printf("%10s %12s %10s  %-23s strategy\n", a->train ? "step" : "time", "tokens/s", "memory",
	       "bound by");
	for (int32_t i = 0; i < n; i++) {
		printf("%10s %12.0f %10s  %-23s ", format_seconds(f[i]->seconds, seconds),
		       f[i]->rate, format_held_bytes(f[i]->memory, bytes), f[i]->bound);
		print_planned_options(f, i);
	}
	print_found_plans(f, n);
	print_error(a, f[0]);
}

/* ---- a comparison ---------------------------------------------------------------------------- */

/* Returns the seconds of a kind of call. */
static double get_call_seconds(const struct tess_forecast *f, const struct tess_forecast_call *c)
{
	for (int32_t i = 0; i < f->ncalls; i++)
		if (!strcmp(f->calls[i].call, c->call) && !strcmp(f->calls[i].along, c->along))
			return f->calls[i].seconds;
	return 0;
}

/* A part of the time of two forecasts: a term, or a kind of call. */
struct compared {
	const char *name, *along; /* along: "": a term */
	int32_t term;
	double best, considered;
};
enum { COMPARED_MAX = TESS_TIMES + 64 };

/* Adds the calls of a term that forecast `of` has; with `other`, those that only it has. */
static int32_t add_calls(const struct tess_forecast *a, const struct tess_forecast *b,
                         const struct tess_forecast *of, int32_t term, struct compared *out,
                         int32_t n)
{
	for (int32_t i = 0; i < of->ncalls && n < COMPARED_MAX; i++) {
		const struct tess_forecast_call *c = &of->calls[i];

		if (c->term != term || (of == b && get_call_seconds(a, c) > 0))
			continue;
		out[n++] = (struct compared){ c->call, c->along, term, get_call_seconds(a, c),
			                      get_call_seconds(b, c) };
	}
	return n;
}

/* Lists the terms, and after a term its calls. Returns their number. */
static int32_t list_compared(const struct tess_forecast *a, const struct tess_forecast *b,
                             struct compared out[COMPARED_MAX])
{
	int32_t n = 0;

	for (int32_t i = 0; i < TESS_TIMES && n < COMPARED_MAX; i++) {
		if (a->terms[i] <= 0 && b->terms[i] <= 0)
			continue;
		out[n++] = (struct compared){ times[i], "", i, a->terms[i], b->terms[i] };
		n = add_calls(a, b, a, i, out, n);
		n = add_calls(a, b, b, i, out, n);
	}
	return n;
}

static void print_compared(const struct compared *c)
{
	char name[64], one[32], other[32];

	snprintf(name, sizeof name, *c->along ? "  %s %s" : "%s%s", c->name, c->along);
	printf("%-20s %12s %12s\n", name, format_seconds(c->best, one),
	       format_seconds(c->considered, other));
}

static void print_memory(const char *name, double best, double considered)
{
	char one[32], other[32];

	printf("%-20s %12s %12s\n", name, format_held_bytes(best, one),
	       format_held_bytes(considered, other));
}

/* Returns whether no other part is included: a call, or a term without calls. */
static bool is_leaf(const struct compared *c, const struct compared *end)
{
	return *c->along || c + 1 == end || !*c[1].along;
}

/* Prints the largest differences, and clears them. sign: 1: the considered one takes longer. */
static void print_differences(struct compared *c, int32_t n, double sign, double least,
                              int32_t most)
{
	static const char *const names[TESS_TIMES] = {
		[TESS_TIME_MEMORY] = "memory bandwidth",
		[TESS_TIME_LATENCY] = "starting ops",
		[TESS_TIME_PIPELINE] = "sends between stages",
		[TESS_TIME_BUBBLE] = "waiting for other stages",
	};
	const char *between = sign > 0 ? "\n  more: " : "\n  less: ";
	char text[32];

	for (; most; most--) {
		struct compared *k = NULL;
		double d;

		for (int32_t i = 0; i < n; i++)
			if (is_leaf(&c[i], c + n) &&
			    (!k || sign * (c[i].considered - c[i].best) >
			                   sign * (k->considered - k->best)))
				k = &c[i];
		d = k ? sign * (k->considered - k->best) : 0;
		if (d <= least)
			return;
		printf("%s%s for %s%s%s", between, format_seconds(d, text),
		       !*k->along && names[k->term] ? names[k->term] : k->name,
		       *k->along ? " along " : "", k->along);
		k->best = k->considered;
		between = ", ";
	}
}

/* Prints what binds the considered strategy, and where its time differs most. */
static void print_verdict(const struct tess_forecast *a, const struct tess_forecast *b,
                          struct compared *c, int32_t n)
{
	double d = b->seconds - a->seconds;
	static const char *const names[TESS_MEMORIES] = {
		"weights",
		"gradients",
		"optimizer state",
		"activations",
		"gathered activations",
		"logits",
		"keys and values",
		"the fixed part",
	};
	char bytes[32], limit[32];
	int32_t most = 0;

	for (int32_t i = 0; i < TESS_MEMORIES; i++)
		most = b->holds[i] > b->holds[most] ? i : most;
	if (!b->fits && b->memory <= b->limit)
		printf("considered: does not fit, the files of a rank have %s of %s of the disk; ",
		       format_held_bytes(b->disk, bytes), format_held_bytes(b->disk_limit, limit));
	else if (!b->fits)
		printf("considered: does not fit, a rank holds %s of %s, most of it %s; ",
		       format_held_bytes(b->memory, bytes), format_held_bytes(b->limit, limit),
		       names[most]);
	else
		printf("considered: ");
	printf("%.2f times the time of the best, bound by %s", b->seconds / a->seconds, b->bound);
	if (a->error > 0 && d < a->error * a->seconds && -d < a->error * a->seconds)
		printf("; the difference is within the error of times");
	d = d > 0 ? d : -d;
	print_differences(c, n, 1, d / 20, 3);
	print_differences(c, n, -1, d / 20, 2);
	putchar('\n');
}

void plan_print_comparison(const struct tess_forecast *a, const struct tess_forecast *b)
{
	struct compared c[COMPARED_MAX];
	int32_t n = list_compared(a, b, c);

	printf("\n%-20s %12s %12s\n", "", "best", "considered");
	for (int32_t i = 0; i < n; i++)
		print_compared(&c[i]);
	print_compared(&(struct compared){ "time", "", 0, a->seconds, b->seconds });
	for (int32_t i = 0; i < TESS_MEMORIES; i++)
		if (a->holds[i] > 0 || b->holds[i] > 0)
			print_memory(memories[i], a->holds[i], b->holds[i]);
	print_memory("memory", a->memory, b->memory);
	if (a->disk > 0 || b->disk > 0) {
		print_memory("files", a->disk, b->disk);
		print_memory("read a step", a->disk_read, b->disk_read);
		print_memory("written a step", a->disk_written, b->disk_written);
	}
	print_verdict(a, b, c, n);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *list_call_texts(const struct tess_forecast *f)
{
	json_t *list = json_array();

	for (int32_t i = 0; i < f->ncalls && list; i++)
		json_array_append_new(list, json_pack("{s:s, s:s, s:f}", "call", f->calls[i].call,
		                                      "along", f->calls[i].along, "seconds",
		                                      f->calls[i].seconds));
	return list;
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
	o = json_pack(
		"{s:o, s:i, s:b, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:o, s:f, s:s, s:f, s:s}",
		"strategy", json_loads(strategy, 0, NULL), "ranks", (int)f->nranks, "fits",
		(int)f->fits, "seconds", f->seconds, "tokens_per_second", f->rate, "terms",
		list_terms(f->terms, times, TESS_TIMES), "calls", list_call_texts(f),
		"prompt_seconds", f->prompt_seconds, "token_seconds", f->token_seconds, "memory",
		f->memory, "limit", f->limit, "holds",
		list_terms(f->holds, memories, TESS_MEMORIES), "sent", f->sent, "bound", f->bound,
		"mean_error", f->error, "assumed", f->assumed);
	if (o && f->disk > 0)
		json_object_set_new(o, "disk",
		                    json_pack("{s:f, s:f, s:f, s:f}", "bytes", f->disk, "limit",
		                              f->disk_limit, "read", f->disk_read, "written",
		                              f->disk_written));
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
