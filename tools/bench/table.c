/* table.c - prints a row for each size, as nccl-tests does, or one JSON object. */
#include "bench.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "tools/tool.h"

#include <inttypes.h>
#include <jansson.h>

const char *bench_series_name(const struct bench_options *a, int32_t series)
{
	static const char *const names[] = { [BENCH_EXACT] = "exact",
		                             [BENCH_PLAIN] = "fast",
		                             [BENCH_IN] = "copy_in",
		                             [BENCH_IN_OUT] = "copy_in_out" };

	return series == BENCH_PLAIN && !tess_kind_reduces(a->kind) ? bench_kind_name(a->kind)
	                                                            : names[series];
}

void bench_format_size(uint64_t bytes, char text[static 32])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB" };
	double size = (double)bytes;
	int unit = 0;

	for (; size >= 1024 && unit < 3; unit++)
		size /= 1024;
	snprintf(text, 32, "%.4g %s", size, units[unit]);
}

/* Returns GB/s. */
static double compute_algbw(const struct bench_row *r, int32_t series)
{
	double us = r->cell[series].us;

	return us > 0 ? (double)r->bytes / us / 1e3 : 0;
}

/*
 * From nccl-tests, doc/PERFORMANCE.md: with n links of equal speed the link of a rank carries
 * 2(n-1)/n of the vector of an all_reduce, and (n-1)/n if every rank already has one part.
 */
static double get_busbw_factor(int32_t kind, int32_t n)
{
	double received = (double)(n - 1) / (double)n;

	switch (kind) {
	case TESS_ALL_REDUCE:
		return 2 * received;
	case TESS_ALL_GATHER:
	case TESS_REDUCE_SCATTER:
	case TESS_ALL_TO_ALL:
	case TESS_GATHER:
	case TESS_SCATTER:
		return received;
	default:
		return 1;
	}
}

double bench_compute_busbw(const struct bench_result *b, const struct bench_row *r, int32_t series)
{
	return compute_algbw(r, series) * get_busbw_factor(b->options->kind, b->nranks);
}

static double average_busbw(const struct bench_result *b, int32_t series)
{
	double sum = 0;

	for (size_t i = 0; i < b->nrows; i++)
		sum += bench_compute_busbw(b, &b->row[i], series);
	return b->nrows ? sum / (double)b->nrows : 0;
}

static const char *get_dtype_text(const struct bench_options *a)
{
	return a->kind == TESS_BARRIER ? "none" : tess_dtype_name(a->dtype);
}

static const char *get_op_text(const struct bench_options *a)
{
	return tess_kind_reduces(a->kind) ? tess_reduce_op_name(a->op) : "none";
}

static const char *get_memory_text(const struct bench_result *b)
{
	return b->shared ? "shared" : "own";
}

static bool has_both_sums(const struct bench_result *b)
{
	return b->has[BENCH_EXACT] && b->has[BENCH_PLAIN];
}

/* ---- the table ------------------------------------------------------------------------------- */

void bench_print_head(const struct bench_result *b)
{
	const char *mesh = b->options->mesh;

	printf("# %s: %d ranks%s%s%s%s on %d CPUs over %s, %s memory, %s, ready in %.2f s\n",
	       bench_kind_name(b->options->kind), (int)b->nranks, mesh ? " along " : "",
	       mesh ? b->options->along : "", mesh ? " of " : "", mesh ? mesh : "", (int)b->ncpus,
	       b->backend, get_memory_text(b), b->options->in_place ? "in place" : "out of place",
	       b->startup_seconds);
	printf("#%11s %12s %6s %6s %5s", "", "", "", "", "");
	for (int32_t s = 0; s < BENCH_SERIES; s++)
		if (b->has[s])
			printf("  %34s", bench_series_name(b->options, s));
	printf("\n#%11s %12s %6s %6s %5s", "size", "count", "type", "redop", "root");
	for (int32_t s = 0; s < BENCH_SERIES; s++)
		if (b->has[s])
			printf("  %11s %7s %7s %6s", "time", "algbw", "busbw", "#wrong");
	printf("%s\n#%11s %12s %6s %6s %5s", has_both_sums(b) ? "   price" : "", "(B)",
	       "(elements)", "", "", "");
	for (int32_t s = 0; s < BENCH_SERIES; s++)
		if (b->has[s])
			printf("  %11s %7s %7s %6s", "(us)", "(GB/s)", "(GB/s)", "");
	putchar('\n');
	tess_tool_flush_output();
}

static void print_bench_cell(const struct bench_result *b, const struct bench_row *r, int32_t s)
{
	const struct bench_cell *c = &r->cell[s];

	printf("  %11.2f %7.2f %7.2f", c->us, compute_algbw(r, s), bench_compute_busbw(b, r, s));
	if (c->wrong < 0)
		printf(" %6s", "-");
	else
		printf(" %6" PRId64, c->wrong);
}

void bench_print_row(const struct bench_result *b, const struct bench_row *r)
{
	const struct bench_options *a = b->options;

	printf(" %11" PRIu64 " %12" PRIu64 " %6s %6s", r->bytes, r->count, get_dtype_text(a),
	       get_op_text(a));
	printf(" %5d", tess_kind_rooted(a->kind) ? (int)a->root : -1);
	for (int32_t s = 0; s < BENCH_SERIES; s++)
		if (b->has[s])
			print_bench_cell(b, r, s);
	if (has_both_sums(b))
		printf("  %5.2fx", r->cell[BENCH_EXACT].us / r->cell[BENCH_PLAIN].us);
	putchar('\n');
	tess_tool_flush_output();
}

void bench_print_end(const struct bench_result *b)
{
	const char *before = "";

	if (b->options->kind == TESS_BARRIER)
		return;
	printf("# average busbw (GB/s): ");
	for (int32_t s = 0; s < BENCH_SERIES; s++) {
		if (!b->has[s])
			continue;
		printf("%s%s %.2f", before, bench_series_name(b->options, s), average_busbw(b, s));
		before = ", ";
	}
	putchar('\n');
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *make_cell_json(const struct bench_result *b, const struct bench_row *r, int32_t s)
{
	const struct bench_cell *c = &r->cell[s];

	return json_pack("{s:f, s:f, s:i, s:f, s:f, s:o}", "us", c->us, "least_us", c->min_us,
	                 "samples", (int)c->samples, "algbw", compute_algbw(r, s), "busbw",
	                 bench_compute_busbw(b, r, s), "wrong",
	                 c->wrong < 0 ? json_null() : json_integer(c->wrong));
}

static json_t *make_row_json(const struct bench_result *b, const struct bench_row *r)
{
	json_t *row = json_pack("{s:I, s:I}", "bytes", (json_int_t)r->bytes, "count",
	                        (json_int_t)r->count);

	for (int32_t s = 0; s < BENCH_SERIES; s++)
		if (b->has[s])
			json_object_set_new(row, bench_series_name(b->options, s),
			                    make_cell_json(b, r, s));
	return row;
}

tess_status bench_print_json(const struct bench_result *b)
{
	const struct bench_options *a = b->options;
	json_t *rows = json_array(), *names = json_array(), *all;
	tess_status st = TESS_OK;

	for (int32_t s = 0; s < BENCH_SERIES; s++)
		if (b->has[s])
			json_array_append_new(names, json_string(bench_series_name(a, s)));
	for (size_t i = 0; i < b->nrows; i++)
		json_array_append_new(rows, make_row_json(b, &b->row[i]));
	all = json_pack(
		"{s:s, s:s, s:s*, s:s*, s:i, s:i, s:f, s:s, s:s, s:b, s:s, s:s, s:o, s:o, s:o}",
		"version", tess_version(), "kind", bench_kind_name(a->kind), "mesh", a->mesh,
		"along", a->mesh ? a->along : NULL, "ranks", (int)b->nranks, "cpus", (int)b->ncpus,
		"ready", b->startup_seconds, "backend", b->backend, "memory", get_memory_text(b),
		"in_place", (int)a->in_place, "dtype", get_dtype_text(a), "op", get_op_text(a),
		"root", tess_kind_rooted(a->kind) ? json_integer(a->root) : json_null(), "series",
		names, "sizes", rows);
	if (!all)
		st = tess_fail(TESS_ENOMEM, "--json: out of memory");
	json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(all);
	return st;
}
