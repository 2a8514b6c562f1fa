/*
 * bench.h - `tessera bench comm`: options, one call, and results.
 *
 * A series is one way to make the call; several are measured in turn for each size. `bytes` are
 * those of the whole vector: what a rank has before or after the call, whichever is more.
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
 * BENCH_PLAIN: the call of the backend. The others copy only: BENCH_IN reads the part of every
 * other rank's vector that this rank needs; BENCH_IN_OUT does so twice, which is what a sum moves
 * whose result all ranks get.
 */
enum { BENCH_EXACT, BENCH_PLAIN, BENCH_IN, BENCH_IN_OUT, BENCH_SERIES };
enum { BENCH_BOTH, BENCH_ONLY_EXACT, BENCH_ONLY_FAST };
/* Sends to the next rank and receives from the one before. */
#define BENCH_SEND_RECV TESS_SEND

struct bench_options {
	int32_t ranks; /* 0: not given */
	const char *mesh, *along; /* NULL: all ranks; the groups along a dimension, at a time */
	int32_t kind, dtype, op, root, sum;
	uint64_t min_bytes, max_bytes;
	int32_t factor; /* from one size to the next */
	double seconds; /* of each cell */
	int32_t samples; /* of each cell, at most */
	bool in_place, private_memory, limit, no_check, json;
	const char *svg; /* a file, or NULL */
};

struct bench_cell {
	double us, min_us; /* the median and the minimum, of the slowest rank */
	int32_t samples; /* 0: not measured */
	int64_t wrong; /* elements, on all ranks; -1: not checked */
};

struct bench_row {
	uint64_t bytes, count; /* count: elements of one rank, as in tess_coll */
	struct bench_cell cell[BENCH_SERIES];
};

struct bench_result {
	const struct bench_options *options;
	int32_t nranks, ncpus; /* nranks: of a group that makes the calls */
	double startup_seconds; /* of the command until all ranks had met; 0: unknown */
	const char *backend;
	bool shared; /* tensors are in memory that the ranks share */
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
	uint64_t count; /* as in tess_coll */
	struct tess_coll coll;
	struct tess_sum sum;
	uint64_t share[TESS_RANKS_MAX]; /* elements of each rank's part of the sum */
};

const char *bench_kind_name(int32_t kind);
/* Elements of one rank for a vector of `bytes`; 0: too few for these ranks. */
uint64_t bench_count_elements(const struct bench_options *a, int32_t n, uint64_t bytes);
/* Bytes of the whole vector. */
uint64_t bench_get_vector_bytes(const struct bench_options *a, int32_t n, uint64_t count);
/* Bytes that `rank` sends, and that it receives, in a call of `count`. */
uint64_t bench_get_src_bytes(const struct bench_options *a, int32_t n, int32_t rank, int32_t series,
                             uint64_t count);
uint64_t bench_get_dst_bytes(const struct bench_options *a, int32_t n, uint64_t count);
/* Prepares the calls of `count`. */
void bench_call_set_count(struct bench_call *c, uint64_t count);
tess_status bench_call_run(struct bench_call *c);
/* Collective: fills src, calls once, and counts the wrong elements of all ranks. */
tess_status bench_call_check(struct bench_call *c, int64_t *wrong);

/* ---- a rank: rank.c -------------------------------------------------------------------------- */

/* The mesh has no dimension --along. */
tess_status bench_fail_along(const struct bench_options *a);
/* Measures; rank 0 prints. `options` is a struct bench_options. TESS_EBUG: elements were wrong. */
tess_status bench_run_rank(struct tess_world *w, void *options);

/* ---- results: table.c, chart.c ---------------------------------------------------------- */

/* "exact", "fast", ...; the kind where it has no sum. */
const char *bench_series_name(const struct bench_options *a, int32_t series);
/*
 * GB/s: `bytes` over the time, times the share of them that a link has to carry, so that it
 * compares with the speed of the link for every kind and number of ranks.
 */
double bench_compute_busbw(const struct bench_result *b, const struct bench_row *r, int32_t series);
/* "64 KiB" */
void bench_format_size(uint64_t bytes, char text[static 32]);

void bench_print_head(const struct bench_result *b);
void bench_print_row(const struct bench_result *b, const struct bench_row *r);
void bench_print_end(const struct bench_result *b);
tess_status bench_print_json(const struct bench_result *b);
/* An SVG file of times and bus bandwidths over sizes. */
tess_status bench_write_chart(const struct bench_result *b, FILE *f);

#endif
