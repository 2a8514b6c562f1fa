#include "core/shard/dim.h"

int64_t tess_dim_count_pieces(const struct tess_dim *d)
{
	return d->nparts ? d->nparts : 1;
}

const struct tess_dim *tess_dim_get_piece(const struct tess_dim *d, int64_t i, int64_t *at)
{
	*at = 0;
	for (int64_t k = 0; k < i; k++)
		*at += d->parts[k]->size;
	return tess_dim_take_piece(d, i);
}

int64_t tess_dim_count_units(const struct tess_dim *piece)
{
	return piece->base->nunits;
}

void tess_dim_get_rank_units(const struct tess_dim *piece, int32_t nranks, int32_t rank,
                             int64_t *lo, int64_t *hi)
{
	*lo = tess_edge(tess_dim_count_units(piece), nranks, rank);
	*hi = tess_edge(tess_dim_count_units(piece), nranks, rank + 1);
}

/* Returns the start of a piece's own unit i; the last unit of a sequence may be short. */
static int64_t get_unit_start(const struct tess_dim *piece, int64_t i)
{
	if (piece->whole)
		return get_unit_start(piece->whole, piece->first + i) -
		       get_unit_start(piece->whole, piece->first);
	if (piece->may_be_empty && i == piece->nunits)
		return piece->size;
	return piece->unit_size ? i * piece->unit_size : tess_edge(piece->size, piece->nunits, i);
}

int64_t tess_dim_get_unit_start(const struct tess_dim *piece, int64_t u)
{
	return get_unit_start(piece, tess_up(u, piece->group));
}

void tess_dim_get_local_runs(const struct tess_dim *d, int32_t nranks, int32_t rank,
                             struct tess_run *out)
{
	for (int64_t i = 0, at = 0; i < tess_dim_count_pieces(d); i++) {
		const struct tess_dim *p = tess_dim_take_piece(d, i);
		int64_t lo, hi;

		tess_dim_get_rank_units(p, nranks, rank, &lo, &hi);
		/* a grouped unit is held by every rank whose units read it */
		hi = hi > lo ? tess_up(hi, p->group) : lo / p->group;
		lo = lo / p->group;
		hi = p->slots && hi - lo > p->slots ? lo + p->slots : hi;
		out[i].start = at + get_unit_start(p, lo);
		out[i].len = get_unit_start(p, hi) - get_unit_start(p, lo);
		at += p->size;
	}
}

void tess_dim_get_owned_runs(const struct tess_dim *d, int32_t nranks, int32_t rank,
                             struct tess_run *out)
{
	for (int64_t i = 0, at = 0; i < tess_dim_count_pieces(d); i++) {
		const struct tess_dim *p = tess_dim_take_piece(d, i);
		int64_t lo, hi;

		tess_dim_get_rank_units(p, nranks, rank, &lo, &hi);
		out[i].start = at + tess_dim_get_unit_start(p, lo);
		out[i].len = tess_dim_get_unit_start(p, hi) - tess_dim_get_unit_start(p, lo);
		at += p->size;
	}
}

static int64_t sum_runs(const struct tess_dim *d, int32_t nranks, int32_t rank,
                        void (*runs)(const struct tess_dim *, int32_t, int32_t, struct tess_run *))
{
	int64_t sum = 0;
	struct tess_run run;

	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++) {
		runs(tess_dim_take_piece(d, i), nranks, rank, &run);
		sum += run.len;
	}
	return sum;
}

int64_t tess_dim_get_local_size(const struct tess_dim *d, int32_t nranks, int32_t rank)
{
	return sum_runs(d, nranks, rank, tess_dim_get_local_runs);
}

int64_t tess_dim_get_owned_size(const struct tess_dim *d, int32_t nranks, int32_t rank)
{
	return sum_runs(d, nranks, rank, tess_dim_get_owned_runs);
}

int64_t tess_dim_list_local_runs(const struct tess_dim *d, struct tess_cut cut,
                                 struct tess_run *runs)
{
	int64_t n = 0;

	tess_dim_get_local_runs(d, cut.nranks, cut.rank, runs);
	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++)
		n += runs[i].len;
	return n;
}

int64_t tess_dim_nest(const struct tess_dim *piece, struct tess_cut cut, struct tess_dim *out)
{
	int64_t lo, hi, start, end;

	tess_dim_get_rank_units(piece, cut.nranks, cut.rank, &lo, &hi);
	start = get_unit_start(piece, lo);
	end = get_unit_start(piece, hi);
	*out = (struct tess_dim){ .name = piece->name,
		                  .size = end - start,
		                  .nunits = hi - lo,
		                  .base = out,
		                  .group = 1,
		                  .may_be_empty = true,
		                  .whole = piece->whole ? piece->whole : piece,
		                  .first = piece->first + lo };
	return start;
}

int64_t tess_runs_get_local_index(const struct tess_run *runs, int64_t n, int64_t at)
{
	int64_t before = 0;

	for (int64_t i = 0; i < n && runs[i].start < at; i++)
		before += at < runs[i].start + runs[i].len ? at - runs[i].start : runs[i].len;
	return before;
}

int32_t tess_dim_get_max_ranks(const struct tess_dim *d, const struct tess_dim **piece)
{
	int32_t max_ranks = INT32_MAX;

	*piece = d;
	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++) {
		const struct tess_dim *p = tess_dim_take_piece(d, i);

		if (!p->may_be_empty && tess_dim_count_units(p) < max_ranks) {
			max_ranks = (int32_t)tess_dim_count_units(p);
			*piece = p;
		}
	}
	return max_ranks;
}
