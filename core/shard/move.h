/*
 * move.h - decides how elements move when a placement changes: the order of mesh dimensions, the
 * collective of each move, its counts, and the copies before and after it. Recorded programs
 * (nn/record, nn/lower) and distributed tensors (core/dtensor) use the same decisions.
 *
 *	Replicate -> Shard(a)	no call: a slice
 *	Replicate -> Partial	no call: rank 0 keeps the elements, others have none
 *	Shard(a) -> Partial	no call: each rank keeps its elements
 *	Shard(a) -> Replicate	all_gather of owned parts
 *	Shard(a) -> Shard(b)	all_to_all
 *	Partial -> Replicate	a reduction to every rank
 *	Partial -> Shard(a)	a reduction, with a share for each rank
 */
#ifndef TESS_SHARD_MOVE_H
#define TESS_SHARD_MOVE_H

#include "core/shard/dim.h"

#include <tessera/group.h>
#include <tessera/style.h>

/*
 * Returns the collective of a move along one mesh dimension: TESS_ALL_GATHER, TESS_ALL_TO_ALL,
 * TESS_ALL_REDUCE or TESS_REDUCE_SCATTER. 0: no rank needs elements of another.
 */
int32_t tess_move_choose_call(struct tess_place from, struct tess_place to);

struct tess_move { /* a move along one mesh dimension */
	int32_t along;
	struct tess_place to;
};

/*
 * Returns false if `at` and `to` agree along all n mesh dimensions; else sets the next move from
 * `at` to `to`: sums are finished first, then values are gathered, then cut. Places are normalized,
 * without ASIS. At most 2 moves are along one mesh dimension.
 *
 * If several mesh dimensions cut a dim, each cuts the parts of those before it. A move along one of
 * them requires that none after it cuts this dim. So a cut after it is undone first, and so is one
 * of two that exchange their dims: gathered, or moved to the dim `spare`, which neither `at` nor
 * `to` cuts. -1: there is none. `spare` is the same for all moves.
 */
bool tess_move_find_next(const struct tess_place *at, const struct tess_place *to, int32_t n,
                         int32_t spare, struct tess_move *out);

/* Elements of one axis: [from, from + len) of one buffer are [to, to + len) of another. */
struct tess_copy {
	int64_t from, to, len;
};

/*
 * List the copies along an axis, one per piece, into out[tess_dim_count_pieces]: of the elements
 * that rank `cut` holds, those that it owns to a dense block; of the dense block that it owns to
 * their places in the full axis; of the full axis those that it holds to a dense block.
 */
void tess_move_list_owned(const struct tess_dim *d, struct tess_cut cut, struct tess_copy *out);
void tess_move_list_gathered(const struct tess_dim *d, struct tess_cut cut, struct tess_copy *out);
void tess_move_list_held(const struct tess_dim *d, struct tess_cut cut, struct tess_copy *out);

/* Counts the elements that each rank sends in an all_gather. others: product of other axes. */
void tess_move_count_owned(const struct tess_dim *d, int32_t nranks, int64_t others,
                           uint64_t *counts);
/* Counts the elements that each rank receives of a reduction. others: product of other axes. */
void tess_move_count_held(const struct tess_dim *d, int32_t nranks, int64_t others,
                          uint64_t *counts);
/*
 * Counts the elements that rank `cut` exchanges with each rank in an all_to_all from a cut of `was`
 * to a cut of `is`. others: product of the other axes.
 */
void tess_move_count_exchanged(const struct tess_dim *was, const struct tess_dim *is,
                               struct tess_cut cut, int64_t others, uint64_t *send_counts,
                               uint64_t *recv_counts);

/*
 * Returns the bytes that a rank sends in a reduction of `bytes` in each of `nodes` addends: to the
 * ranks that add them and, unless each rank gets a share, the results to all ranks.
 */
uint64_t tess_move_count_reduced(uint64_t bytes, uint64_t nodes, bool shares, int32_t nranks);

#endif
