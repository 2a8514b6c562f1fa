/*
 * dim.h - a dimension by meaning: its size, the units in which it is cut and added, and its fused
 * parts. All tensors with a dim are cut alike, so their slices match.
 */
#ifndef TESS_SHARD_DIM_H
#define TESS_SHARD_DIM_H

#include <stdbool.h>
#include <tessera/plugin.h>
#include <tessera/split.h>

struct tess_dim {
	const char *name;
	int64_t size; /* elements */
	int64_t nunits; /* its own units; 0 if it has parts */
	/* elements of a unit (heads), the last of tokens may have fewer; 0: units by the split
	 * rule */
	int64_t unit_size;
	const struct tess_dim
		*base; /* cut with the units of this one, often itself; NULL if it has parts */
	int64_t group; /* units of the base that share one unit of this dim */
	int64_t nparts; /* 0: one piece; else each part is cut separately */
	const struct tess_dim *const *parts;
	/* 0, or the maximum number of units that a rank has room for, at most its own units */
	int64_t slots;
	bool may_be_empty; /* a rank may hold nothing (tokens) */
	/* for a part that is cut again: the piece that has its units, from `first` on; or NULL */
	const struct tess_dim *whole;
	int64_t first;
};

struct tess_run {
	int64_t start, len;
}; /* elements [start, start + len) */

/* Return the pieces that are cut separately: the dim itself or its parts. */
int64_t tess_dim_count_pieces(const struct tess_dim *d);
static inline const struct tess_dim *tess_dim_take_piece(const struct tess_dim *d, int64_t i)
{
	return d->nparts ? d->parts[i] : d;
}
/* Returns piece i and its start, in a time proportional to i: dims of sequences have thousands. */
const struct tess_dim *tess_dim_get_piece(const struct tess_dim *d, int64_t i, int64_t *at);

/* Returns the number of units in which a piece is cut (query heads for key-value heads). */
int64_t tess_dim_count_units(const struct tess_dim *piece);

/* Returns the units [*lo, *hi) of a piece's base that a rank computes with. */
void tess_dim_get_rank_units(const struct tess_dim *piece, int32_t nranks, int32_t rank,
                             int64_t *lo, int64_t *hi);

/* Returns the first element of unit u of the base; for u = number of units, the size. */
int64_t tess_dim_get_unit_start(const struct tess_dim *piece, int64_t u);

/*
 * Return the ranges that a rank holds (and computes with), and those that it owns: one per piece,
 * in order, into out[tess_dim_count_pieces]. Owned ranges of all ranks are disjoint and cover the
 * dim.
 */
void tess_dim_get_local_runs(const struct tess_dim *d, int32_t nranks, int32_t rank,
                             struct tess_run *out);
void tess_dim_get_owned_runs(const struct tess_dim *d, int32_t nranks, int32_t rank,
                             struct tess_run *out);

struct tess_cut { /* part `rank` of `nranks` */
	int32_t nranks, rank;
};

/* Lists the local ranges of a part, runs[tess_dim_count_pieces]; returns their elements. */
int64_t tess_dim_list_local_runs(const struct tess_dim *d, struct tess_cut cut,
                                 struct tess_run *runs);

/*
 * Makes the dim of a part, to be cut again. The piece, which may be *out, has units of its own, one
 * per unit of its base, and no slots. Returns where the part starts in the piece.
 */
int64_t tess_dim_nest(const struct tess_dim *piece, struct tess_cut cut, struct tess_dim *out);

/* Return how many elements a rank holds, and how many it owns. */
int64_t tess_dim_get_local_size(const struct tess_dim *d, int32_t nranks, int32_t rank);
int64_t tess_dim_get_owned_size(const struct tess_dim *d, int32_t nranks, int32_t rank);

/* Returns the local index of global element `at` on `runs`: the number of held elements before. */
int64_t tess_runs_get_local_index(const struct tess_run *runs, int64_t n, int64_t at);

/* Returns the maximum number of ranks; tokens: INT32_MAX. *piece: the piece that limits it. */
int32_t tess_dim_get_max_ranks(const struct tess_dim *d, const struct tess_dim **piece);

#endif
