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

static int32_t get_stage(struct tess_place at, struct tess_place to)
{
	return at.kind == TESS_PARTIAL                                 ? FINISH_SUMS
	       : to.kind == TESS_REPLICATE || tess_place_equal(at, to) ? GATHER_DIMS
	                                                               : CUT_DIMS;
}

/* Returns whether the mesh dimensions before i that cut a dim are those that cut it in the end. */
static bool is_cut_outside_done(const struct tess_place *at, const struct tess_place *to, int32_t i,
                                int32_t dim)
{
	for (int32_t k = 0; k < i; k++)
		if (tess_place_is(at[k], TESS_SHARD, dim) != tess_place_is(to[k], TESS_SHARD, dim))
			return false;
	return true;
}

/* Returns whether a mesh dimension after i cuts the dim that a place cuts. */
static bool is_cut_inside(const struct tess_place *at, int32_t n, int32_t i, struct tess_place p)
{
	return p.kind == TESS_SHARD &&
	       tess_places_find(at + i + 1, n - i - 1, TESS_SHARD, p.dim) >= 0;
}

static bool is_done(const struct tess_place *at, const struct tess_place *to, int32_t i)
{
	return tess_place_equal(at[i], to[i]) &&
	       (at[i].kind != TESS_SHARD || is_cut_outside_done(at, to, i, at[i].dim));
}

/* Returns whether the placement along i may become that of the end. */
static bool may_finish(const struct tess_place *at, const struct tess_place *to, int32_t n,
                       int32_t i)
{
	return to[i].kind != TESS_SHARD ||
	       (is_cut_outside_done(at, to, i, to[i].dim) && !is_cut_inside(at, n, i, to[i]));
}

/* Chooses the placement along i after the next move; false: other mesh dimensions come first. */
static bool choose_place(const struct tess_place *at, const struct tess_place *to, int32_t n,
                         int32_t i, struct tess_place away, struct tess_place *out)
{
	bool may = may_finish(at, to, n, i);

	*out = to[i];
	if (tess_place_equal(at[i], to[i])) /* a cut outside will change */
		*out = away;
	else if (at[i].kind == TESS_PARTIAL && (to[i].kind == TESS_PARTIAL || !may))
		*out = tess_place_replicate();
	else
		return may;
	return true;
}

bool tess_move_find_next(const struct tess_place *at, const struct tess_place *to, int32_t n,
                         int32_t spare, struct tess_move *out)
{
	bool parks = spare >= 0 && tess_places_find(at, n, TESS_SHARD, spare) < 0;
	struct tess_place away = parks ? tess_place_shard(spare) : tess_place_replicate();
	struct tess_move blocked = { .along = -1, .to = away };

	for (int32_t stage = FINISH_SUMS; stage < NSTAGES; stage++)
		for (int32_t i = 0; i < n; i++) {
			if (get_stage(at[i], to[i]) != stage || is_done(at, to, i) ||
			    is_cut_inside(at, n, i, at[i]))
				continue;
			out->along = i;
			if (choose_place(at, to, n, i, away, &out->to))
				return true;
			if (blocked.along < 0 && at[i].kind == TESS_SHARD && at[i].dim != spare)
				blocked.along = i;
		}
	*out = blocked;
	return blocked.along >= 0;
}

/* ---- where elements are ---------------------------------------------------------------------- */

void tess_move_list_owned(const struct tess_dim *d, struct tess_cut cut, struct tess_copy *out)
{
	int64_t at = 0, held = 0;

	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++) {
		const struct tess_dim *piece = tess_dim_take_piece(d, i);
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
	int64_t at = 0, before = 0;

	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++) {
		const struct tess_dim *piece = tess_dim_take_piece(d, i);
		struct tess_run own;

		tess_dim_get_owned_runs(piece, cut.nranks, cut.rank, &own);
		out[i] = (struct tess_copy){ at, before + own.start, own.len };
		at += own.len;
		before += piece->size;
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
