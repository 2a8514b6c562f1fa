#include "core/shard/move.h"

#include "core/shard/place.h"

/* ---- which ----------------------------------------------------------------------------------- */

int32_t tess_move_choose_call(struct tess_place from, struct tess_place to)
{
	if (from.kind == TESS_PARTIAL)
		return to.kind == TESS_REPLICATE ? TESS_ALL_REDUCE
		       : to.kind == TESS_SHARD   ? TESS_REDUCE_SCATTER
		                                 : 0;
	if (from.kind == TESS_SHARD)
		return to.kind == TESS_REPLICATE ? TESS_ALL_GATHER
		       : to.kind == TESS_SHARD   ? TESS_ALL_TO_ALL
		                                 : 0;
	return 0;
}

/* Stages of a redistribution: no sum is moved, and no dim is cut before it is gathered. */
enum { FINISH_SUMS, GATHER_DIMS, CUT_DIMS, NSTAGES };

static bool is_reached(struct tess_place at, struct tess_place to)
{
	return to.kind == TESS_ASIS || tess_place_equal(at, to);
}

static int32_t get_stage(struct tess_place at, struct tess_place to)
{
	return at.kind == TESS_PARTIAL     ? FINISH_SUMS
	       : to.kind == TESS_REPLICATE ? GATHER_DIMS
	                                   : CUT_DIMS;
}

/* Returns whether another mesh dimension still cuts the dim that `to` cuts along i. */
static bool is_blocked(const struct tess_place *at, const struct tess_place *to, int32_t n,
                       int32_t i)
{
	for (int32_t k = 0; k < n && to[i].kind == TESS_SHARD; k++)
		if (k != i && tess_place_is(at[k], TESS_SHARD, to[i].dim) &&
		    !is_reached(at[k], to[k]))
			return true;
	return false;
}

bool tess_move_find_next(const struct tess_place *at, const struct tess_place *to, int32_t n,
                         struct tess_move *out)
{
	struct tess_move blocked = { .along = -1, .to = tess_place_replicate() };

	for (int32_t stage = FINISH_SUMS; stage < NSTAGES; stage++)
		for (int32_t i = 0; i < n; i++) {
			if (is_reached(at[i], to[i]) || get_stage(at[i], to[i]) != stage)
				continue;
			if (is_blocked(at, to, n, i)) {
				blocked.along = blocked.along < 0 ? i : blocked.along;
				if (stage != FINISH_SUMS)
					continue;
				*out = blocked;
				return true;
			}
			*out = (struct tess_move){ i, to[i] };
			if (stage == FINISH_SUMS && to[i].kind == TESS_PARTIAL)
				out->to = tess_place_replicate(); /* of another op */
			return true;
		}
	*out = blocked;
	return blocked.along >= 0;
}

/* ---- where elements are ---------------------------------------------------------------------- */

void tess_move_list_owned(const struct tess_dim *d, struct tess_cut cut, struct tess_copy *out)
{
	int64_t at = 0, held = 0, before;

	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++) {
		const struct tess_dim *piece = tess_dim_get_piece(d, i, &before);
		struct tess_run own, hold;

		tess_dim_get_owned_runs(piece, cut.nranks, cut.rank, &own);
		tess_dim_get_local_runs(piece, cut.nranks, cut.rank, &hold);
		/* a rank that owns no unit may hold none either */
		out[i] = (struct tess_copy){ held + (own.len ? own.start - hold.start : 0), at,
			                     own.len };
		at += own.len;
		held += hold.len;
	}
}

void tess_move_list_gathered(const struct tess_dim *d, struct tess_cut cut, struct tess_copy *out)
{
	int64_t at = 0, before;

	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++) {
		struct tess_run own;

		tess_dim_get_owned_runs(tess_dim_get_piece(d, i, &before), cut.nranks, cut.rank,
		                        &own);
		out[i] = (struct tess_copy){ at, before + own.start, own.len };
		at += own.len;
	}
}

void tess_move_list_held(const struct tess_dim *d, struct tess_cut cut, struct tess_copy *out)
{
	int64_t at = 0, before;

	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++) {
		struct tess_run hold;

		tess_dim_get_local_runs(tess_dim_get_piece(d, i, &before), cut.nranks, cut.rank,
		                        &hold);
		out[i] = (struct tess_copy){ before + hold.start, at, hold.len };
		at += hold.len;
	}
}

/* ---- how many -------------------------------------------------------------------------------- */

void tess_move_count_owned(const struct tess_dim *d, int32_t nranks, int64_t others,
                           uint64_t *counts)
{
	for (int32_t q = 0; q < nranks; q++)
		counts[q] = (uint64_t)(tess_dim_get_owned_size(d, nranks, q) * others);
}

void tess_move_count_held(const struct tess_dim *d, int32_t nranks, int64_t others,
                          uint64_t *counts)
{
	for (int32_t q = 0; q < nranks; q++)
		counts[q] = (uint64_t)(tess_dim_get_local_size(d, nranks, q) * others);
}

void tess_move_count_exchanged(const struct tess_dim *was, const struct tess_dim *is,
                               struct tess_cut cut, int64_t others, uint64_t *send_counts,
                               uint64_t *recv_counts)
{
	tess_move_count_held(is, cut.nranks,
	                     tess_dim_get_owned_size(was, cut.nranks, cut.rank) * others,
	                     send_counts);
	tess_move_count_owned(was, cut.nranks,
	                      tess_dim_get_local_size(is, cut.nranks, cut.rank) * others,
	                      recv_counts);
}

uint64_t tess_move_count_reduced(uint64_t bytes, uint64_t nodes, bool shares, int32_t nranks)
{
	uint64_t n = (uint64_t)nranks;

	return bytes * (nodes + !shares) * (n - 1) / n;
}
