/*
 * dim.h - a dimension by meaning: its size, the units in which it is cut and added, the parts it was
 * fused from. A dim is cut in one way for all its tensors, so what must fit does fit.
 */
#ifndef TESS_SHARD_DIM_H
#define TESS_SHARD_DIM_H

#include <stdbool.h>
#include <tessera/plugin.h>
#include <tessera/split.h>

struct tess_dim {
	const char *name;
	int64_t size; /* elements */
	int64_t nunits; /* units of its own; 0 if it has parts */
	int64_t unit_size; /* elements of a unit (heads); 0: units by the split rule */
	const struct tess_dim
		*base; /* cut with the units of this one, often itself; NULL if it has parts */
	int64_t group; /* units of the base that share one of ours */
	int64_t nparts; /* 0: one piece; else each part is cut on its own */
	const struct tess_dim *const *parts;
	bool may_be_empty; /* a rank may hold nothing (tokens) */
	bool in_last_unit; /* all elements lie in the last unit (the selected row of a sequence) */
};

struct tess_run {
	int64_t start, len;
}; /* elements [at, at + len) */

/* The pieces that are cut each on their own, and the first element of each: the dim itself, or its parts. */
int64_t tess_dim_count_pieces(const struct tess_dim *d);
const struct tess_dim *tess_dim_get_piece(const struct tess_dim *d, int64_t i, int64_t *at);

/* Units that a piece is cut in (query heads for key-value heads). */
int64_t tess_dim_count_units(const struct tess_dim *piece);

/* Units [*lo, *hi) of a piece's base that rank r of P computes with; uncut: all. */
void tess_dim_get_rank_units(const struct tess_dim *piece, int32_t nranks, int32_t rank,
                             int64_t *lo, int64_t *hi);

/* The first element that counts with unit u of the base; u = units: the size. */
int64_t tess_dim_get_unit_start(const struct tess_dim *piece, int64_t u);

/*
 * What rank r of P holds, and what it owns: one run a piece, in order, into out[tess_dim_count_pieces].
 * Holding computes; owned runs are disjoint and cover once. nranks 1: everything.
 */
void tess_dim_get_local_runs(const struct tess_dim *d, int32_t nranks, int32_t rank,
                             struct tess_run *out);
void tess_dim_get_owned_runs(const struct tess_dim *d, int32_t nranks, int32_t rank,
                             struct tess_run *out);

/* Elements held by rank r of P. */
int64_t tess_dim_get_local_size(const struct tess_dim *d, int32_t nranks, int32_t rank);
int64_t tess_dim_get_owned_size(const struct tess_dim *d, int32_t nranks, int32_t rank);

/* Where global element `at` lies on the local axis of `runs`: the number of held elements before it. */
int64_t tess_runs_get_local_index(const struct tess_run *runs, int64_t n, int64_t at);

/* The most ranks that can cut it; tokens: INT32_MAX. *piece becomes the piece that limits. */
int32_t tess_dim_get_max_ranks(const struct tess_dim *d, const struct tess_dim **piece);

#endif
