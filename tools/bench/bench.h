/*
 * bench.h - `tessera bench comm`: options, one call, and results.
 *
 * A series is one way to make the call; several are measured in turn for each size. `bytes` is the
 * size of the full vector: the maximum of what a rank has before and after the call.
 */
#ifndef TESS_TOOLS_BENCH_BENCH_H
#define TESS_TOOLS_BENCH_BENCH_H

#include "core/rendezvous/coordinator.h"
#include "core/sum/exact.h"

#include <stdbool.h>
#include <stdio.h>
#include <tessera/tessera.h>

/*
 * BENCH_EXACT: the sum whose bits do not depend on the number of ranks, as in a session.
 * BENCH_PLAIN: the call of the backend. The others only copy: BENCH_IN reads the part of every
 * other rank's vector that this rank needs; BENCH_IN_OUT reads it twice, as an all_reduce does.
 */
enum { BENCH_EXACT, BENCH_PLAIN, BENCH_IN, BENCH_IN_OUT, BENCH_SERIES };
enum { BENCH_BOTH, BENCH_ONLY_EXACT, BENCH_ONLY_FAST };
/* Sends to the next rank, and receives from the previous one. */
#define BENCH_SEND_RECV TESS_SEND

struct bench_options {
	int32_t ranks; /* 0: not given */
	const char *mesh, *along; /* NULL: all ranks; else concurrent groups along a dimension */
	int32_t kind, dtype, op, root, sum;
	uint64_t min_bytes, max_bytes;
	int32_t factor; /* from one size to the next */
	double seconds; /* per cell */
	int32_t samples; /* maximum per cell */
	bool in_place, private_memory, limit, no_check, json;
	const char *svg; /* a file, or NULL */
};

struct bench_cell {
	double us, min_us; /* median and minimum of the slowest rank */
	int32_t samples; /* 0: not measured */
	int64_t wrong; /* wrong elements on all ranks; -1: not checked */
};

struct bench_row {
	uint64_t bytes, count; /* count: elements of one rank, as in tess_coll */
	struct bench_cell cell[BENCH_SERIES];
};

struct bench_result {
	const struct bench_options *options;
	int32_t nranks, ncpus; /* nranks: ranks of a group that makes the calls */
	double startup_seconds; /* until all ranks had met; 0: unknown */
	const char *backend;
	bool shared; /* tensors are in shared memory */
	bool has[BENCH_SERIES];
	struct bench_row *row;
	size_t nrows;
};

/* ---- one call: call.c ----------------------------------------------------------------------- */

struct bench_call {
	struct tess_group *group;
	const struct bench_options *options;
	int32_t rank, n, series;
	size_t width;
	char *src, *dst; /* equal: in place */
	uint64_t capacity; /* bytes of each */
	/* set by bench_call_set_count: */
	uint64_t count; /* see tess_coll */
	struct tess_coll coll;
	struct tess_sum sum;
	uint64_t share[TESS_RANKS_MAX]; /* elements of the part of the sum on each rank */
};

const char *bench_kind_name(int32_t kind);
/* Returns the elements of one rank in a vector of `bytes`; 0: too few for these ranks. */
uint64_t bench_count_elements(const struct bench_options *a, int32_t n, uint64_t bytes);
/* Returns the bytes of the full vector. */
uint64_t bench_get_vector_bytes(const struct bench_options *a, int32_t n, uint64_t count);
/* Return the bytes that `rank` sends and receives in a call of `count`. */
uint64_t bench_get_src_bytes(const struct bench_options *a, int32_t n, int32_t rank, int32_t series,
                             uint64_t count);
uint64_t bench_get_dst_bytes(const struct bench_options *a, int32_t n, uint64_t count);
/* Prepares the calls of `count`. */
void bench_call_set_count(struct bench_call *c, uint64_t count);
tess_status bench_call_run(struct bench_call *c);
/* Collective. Fills src, calls once, and counts the wrong elements of all ranks. */
tess_status bench_call_check(struct bench_call *c, int64_t *wrong);

/* ---- a rank: rank.c -------------------------------------------------------------------------- */

/* Fails: the mesh has no dimension --along. */
tess_status bench_fail_along(const struct bench_options *a);
/* Measures on one rank; rank 0 prints. options: struct bench_options. TESS_EBUG: wrong elements. */
tess_status bench_run_rank(struct tess_world *w, void *options);

/* ---- results: table.c, chart.c ---------------------------------------------------------- */

/* Returns "exact", "fast", ..., or the kind if it has no sum. */
const char *bench_series_name(const struct bench_options *a, int32_t series);
/*
 * Returns GB/s: `bytes` over the time, times the share of them that a link carries. It compares
 * with the speed of the link for every kind and number of ranks.
 */
double bench_compute_busbw(const struct bench_result *b, const struct bench_row *r, int32_t series);
/* Formats "64 KiB". */
void bench_format_size(uint64_t bytes, char text[static 32]);

void bench_print_head(const struct bench_result *b);
void bench_print_row(const struct bench_result *b, const struct bench_row *r);
void bench_print_end(const struct bench_result *b);
tess_status bench_print_json(const struct bench_result *b);
/* Writes an SVG file of times and bus bandwidths over sizes. */
tess_status bench_write_chart(const struct bench_result *b, FILE *f);

#endif
