/* model_table.c - prints a row and a breakdown for each case, or a JSON object per line. */
#include "model.h"

#include "core/base/status.h"
#include "nn/program/program.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- rounds ---------------------------------------------------------------------------------- */

static double compute_token_rate(const struct model_options *a, const struct model_case *c,
                                 double seconds)
{
	return (double)c->batch * a->tokens / seconds;
}

static int compare_rounds(const void *a, const void *b)
{
	double x = (*(const struct model_round *const *)a)->seconds;
	double y = (*(const struct model_round *const *)b)->seconds;

	return (x > y) - (x < y);
}

/* Sorts the rounds by ascending time. */
static void sort_rounds(const struct model_case *c, int32_t n, const struct model_round **sorted)
{
	for (int32_t i = 0; i < n; i++)
		sorted[i] = &c->round[i];
	qsort(sorted, (size_t)n, sizeof *sorted, compare_rounds);
}

/* Returns the median round by time; the faster of two in the middle. */
static const struct model_round *find_median(const struct model_case *c, int32_t rounds)
{
	const struct model_round *sorted[MODEL_ROUNDS];

	sort_rounds(c, rounds, sorted);
	return sorted[(rounds - 1) / 2];
}

static double sum_op_seconds(const struct model_round *r)
{
	int64_t ns = 0;

	for (int32_t i = 0; i < TESS_PROFILE_STEPS; i++)
		ns += r->op[i].ns;
	return 1e-9 * (double)ns;
}

/* Formats the ops of a step: "linear", "norm+linear". */
static const char *format_op(const struct tess_profile_op *op, char out[128])
{
	size_t n = 0;

	snprintf(out, 128, "style");
	for (int32_t i = 0; i < TESS_PROFILE_OPS && op->kind[i]; i++)
		n += (size_t)snprintf(out + n, 128 - n, "%s%s", i ? "+" : "",
		                      tess_record_kind_name(op->kind[i]));
	return out;
}

/* Lists the steps that have run, by descending time. */
static int32_t sort_ops(const struct model_round *r, int32_t order[TESS_PROFILE_STEPS])
{
	int32_t n = 0;

	for (int32_t i = 0; i < TESS_PROFILE_STEPS && r->op[i].calls; i++) {
		int32_t at = n;

		for (n++; at && r->op[order[at - 1]].ns < r->op[i].ns; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
	return n;
}

/* ---- the table ------------------------------------------------------------------------------- */

void model_print_head(const struct model_result *r)
{
	const struct model_options *a = r->options;

	if (a->json)
		return;
	printf("# %s: %s, %d rank%s x %d thread%s over %s, %s; context %d, %d tokens, %d rounds\n",
	       model_kinds[a->kind].name, a->session.model, (int)r->nranks,
	       r->nranks > 1 ? "s" : "", (int)r->threads, r->threads > 1 ? "s" : "", r->backend,
	       r->device, (int)a->context, (int)a->tokens, (int)a->rounds);
	if (r->limits.bytes > 0)
		printf("# limits of all ranks at once: %.1f GB/s read from memory, %.1f GFLOP/s\n",
		       1e-9 * r->limits.bytes, 1e-9 * r->limits.flops);
	printf("#%6s %10s %10s %10s %12s %12s %10s %10s\n", "batch", "tokens/s", "least", "most",
	       "weights", "KV cache", "products", "reads");
	printf("#%6s %10s %10s %10s %12s %12s %10s %10s\n", "", "(median)", "", "", "(MB/forward)",
	       "(MB/forward)", "(GFLOP/s)", "(GB/s)");
	tess_tool_flush_output();
}

/* Prints the share of the limit, "-" without a limit. */
static void print_share(double rate, double limit)
{
	if (limit > 0 && rate > 0)
		printf(" %6.1f%%", 100 * rate / limit);
	else
		printf(" %7s", "-");
}

static void print_op_row(const struct model_result *r, const struct model_round *m,
                         const struct tess_profile_op *op)
{
	char name[128];
	double seconds = 1e-9 * (double)op->ns, n = r->nranks;
	double bytes = (double)op->bytes / seconds, flops = (double)op->flops / seconds;

	printf("    %-14s %9" PRId64 " %10.3f %6.1f%% %10.2f", format_op(op, name), op->calls,
	       1e3 * seconds, 100 * seconds / m->seconds, 1e-9 * bytes);
	print_share(bytes, r->limits.bytes / n);
	printf(" %10.2f", 1e-9 * flops);
	print_share(flops, r->limits.flops / n);
	putchar('\n');
}

static void print_part(const char *name, double seconds, const struct model_round *m)
{
	printf("  %-16s %9s %10.3f %6.1f%%\n", name, "", 1e3 * seconds, 100 * seconds / m->seconds);
}

static void print_breakdown(const struct model_result *r, const struct model_round *m)
{
	double compute = sum_op_seconds(m);
	int32_t order[TESS_PROFILE_STEPS], n = sort_ops(m, order);

	printf("# rank 0 in the median round:\n");
	printf("#%-17s %9s %10s %7s %10s %7s %10s %7s\n", "", "calls", "ms", "share", "GB/s",
	       "limit", "GFLOP/s", "limit");
	print_part("compute", compute, m);
	for (int32_t i = 0; i < n; i++)
		print_op_row(r, m, &m->op[order[i]]);
	print_part("communication", m->moving, m);
	print_part("wait", m->wait, m);
	print_part("other", m->seconds - compute - m->moving - m->wait, m);
	print_part("all", m->seconds, m);
}

static void print_case_row(const struct model_result *r, const struct model_case *c, double median)
{
	const struct model_options *a = r->options;
	const struct model_round *sorted[MODEL_ROUNDS];
	double forwards = (double)c->forwards * median / ((double)c->batch * a->tokens);
	double bytes = (double)(c->weight_bytes + c->kv_bytes);

	sort_rounds(c, a->rounds, sorted);
	printf(" %6d %10.2f %10.2f %10.2f %12.3f %12.3f %10.2f %10.2f\n", (int)c->batch, median,
	       compute_token_rate(a, c, sorted[a->rounds - 1]->seconds),
	       compute_token_rate(a, c, sorted[0]->seconds), 1e-6 * (double)c->weight_bytes,
	       1e-6 * (double)c->kv_bytes, 1e-9 * (double)c->flops * forwards,
	       1e-9 * bytes * forwards);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *make_breakdown_json(const struct model_round *m)
{
	double compute = sum_op_seconds(m);
	int32_t order[TESS_PROFILE_STEPS], n = sort_ops(m, order);
	json_t *ops = json_array();

	for (int32_t i = 0; i < n; i++) {
		const struct tess_profile_op *op = &m->op[order[i]];
		char name[128];

		json_array_append_new(
			ops,
			json_pack("{s:s, s:I, s:f, s:I, s:I}", "op", format_op(op, name), "calls",
		                  (json_int_t)op->calls, "seconds", 1e-9 * (double)op->ns, "bytes",
		                  (json_int_t)op->bytes, "flops", (json_int_t)op->flops));
	}
	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:o}", "seconds", m->seconds, "compute",
	                 compute, "communication", m->moving, "wait", m->wait, "other",
	                 m->seconds - compute - m->moving - m->wait, "ops", ops);
}

tess_status model_print_json(json_t *o)
{
	if (!o)
		return tess_fail(TESS_ENOMEM, "--json: out of memory");
	json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(8));
	putchar('\n');
	json_decref(o);
	return TESS_OK;
}

static tess_status print_case_json(const struct model_result *r, const struct model_case *c,
                                   double median)
{
	const struct model_options *a = r->options;
	json_t *rates = json_array(), *o;

	for (int32_t i = 0; i < a->rounds; i++)
		json_array_append_new(rates,
		                      json_real(compute_token_rate(a, c, c->round[i].seconds)));
	o = json_pack(
		"{s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:f, s:I, s:I, s:I}",
		"bench", model_kinds[a->kind].name, "model", a->session.model, "ranks",
		(int)r->nranks, "threads", (int)r->threads, "backend", r->backend, "device",
		r->device, "weights", tess_tool_get_weights(&a->session), "math",
		tess_tool_get_math(&a->session), "batch", (int)c->batch, "context", (int)a->context,
		"tokens", (int)a->tokens, "tokens_per_s", rates, "median", median, "weight_bytes",
		(json_int_t)c->weight_bytes, "kv_bytes", (json_int_t)c->kv_bytes, "flops",
		(json_int_t)c->flops);
	if (o && a->breakdown) {
		json_object_set_new(o, "limits",
		                    json_pack("{s:f, s:f}", "bytes_per_s", r->limits.bytes,
		                              "flops_per_s", r->limits.flops));
		json_object_set_new(o, "breakdown", make_breakdown_json(find_median(c, a->rounds)));
	}
	return model_print_json(o);
}

tess_status model_print_case(const struct model_result *r, const struct model_case *c)
{
	const struct model_options *a = r->options;
	const struct model_round *sorted[MODEL_ROUNDS];
	int32_t n = a->rounds;
	tess_status st = TESS_OK;
	double median;

	sort_rounds(c, n, sorted);
	median = (compute_token_rate(a, c, sorted[(n - 1) / 2]->seconds) +
	          compute_token_rate(a, c, sorted[n / 2]->seconds)) /
	         2;
	if (a->json)
		st = print_case_json(r, c, median);
	else
		print_case_row(r, c, median);
	if (!a->json && a->breakdown)
		print_breakdown(r, sorted[(n - 1) / 2]);
	tess_tool_flush_output();
	return st;
}
