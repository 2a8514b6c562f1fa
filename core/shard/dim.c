#include "dim.h"

int64_t tess_dim_pieces(const struct tess_dim *d)
{
	return d->nparts ? d->nparts : 1;
}

const struct tess_dim *tess_dim_piece(const struct tess_dim *d, int64_t i, int64_t *at)
{
	*at = 0;
	if (!d->nparts)
		return d;
	for (int64_t k = 0; k < i; k++)
		*at += d->parts[k]->size;
	return d->parts[i];
}

int64_t tess_dim_units(const struct tess_dim *piece)
{
	return piece->base->count;
}

void tess_dim_share(const struct tess_dim *piece, int32_t nranks, int32_t rank, int64_t *lo,
                    int64_t *hi)
{
	*lo = tess_edge(tess_dim_units(piece), nranks, rank);
	*hi = tess_edge(tess_dim_units(piece), nranks, rank + 1);
}

/* Where unit i of its own starts. */
static int64_t edge(const struct tess_dim *piece, int64_t i)
{
	if (piece->last)
		return i == piece->count ? piece->size : 0;
	return piece->each ? i * piece->each : tess_edge(piece->size, piece->count, i);
}

int64_t tess_dim_starts(const struct tess_dim *piece, int64_t u)
{
	return edge(piece, tess_up(u, piece->group));
}

void tess_dim_hold(const struct tess_dim *d, int32_t nranks, int32_t rank, struct tess_run *out)
{
	for (int64_t i = 0; i < tess_dim_pieces(d); i++) {
		int64_t at, lo, hi;
		const struct tess_dim *p = tess_dim_piece(d, i, &at);

		tess_dim_share(p, nranks, rank, &lo, &hi);
		/* a shared unit is held by every rank whose units read it */
		hi = hi > lo ? tess_up(hi, p->group) : lo / p->group;
		lo = lo / p->group;
		out[i].at = at + edge(p, lo);
		out[i].len = edge(p, hi) - edge(p, lo);
	}
}

void tess_dim_own(const struct tess_dim *d, int32_t nranks, int32_t rank, struct tess_run *out)
{
	for (int64_t i = 0; i < tess_dim_pieces(d); i++) {
		int64_t at, lo, hi;
		const struct tess_dim *p = tess_dim_piece(d, i, &at);

		tess_dim_share(p, nranks, rank, &lo, &hi);
		out[i].at = at + tess_dim_starts(p, lo);
		out[i].len = tess_dim_starts(p, hi) - tess_dim_starts(p, lo);
	}
}

static int64_t total(const struct tess_dim *d, int32_t nranks, int32_t rank,
                     void (*runs)(const struct tess_dim *, int32_t, int32_t, struct tess_run *))
{
	int64_t sum = 0, at;
	struct tess_run run;

	for (int64_t i = 0; i < tess_dim_pieces(d); i++) {
		runs(tess_dim_piece(d, i, &at), nranks, rank, &run);
		sum += run.len;
	}
	return sum;
}

int64_t tess_dim_held(const struct tess_dim *d, int32_t nranks, int32_t rank)
{
	return total(d, nranks, rank, tess_dim_hold);
}

int64_t tess_dim_owned(const struct tess_dim *d, int32_t nranks, int32_t rank)
{
	return total(d, nranks, rank, tess_dim_own);
}

int64_t tess_runs_find(const struct tess_run *runs, int64_t n, int64_t at)
{
	int64_t before = 0;

	for (int64_t i = 0; i < n && runs[i].at < at; i++)
		before += at < runs[i].at + runs[i].len ? at - runs[i].at : runs[i].len;
	return before;
}

int32_t tess_dim_most_ranks(const struct tess_dim *d, const struct tess_dim **piece)
{
	int32_t most = INT32_MAX;

	*piece = d;
	for (int64_t i = 0; i < tess_dim_pieces(d); i++) {
		int64_t at;
		const struct tess_dim *p = tess_dim_piece(d, i, &at);

		if (!p->empty && tess_dim_units(p) < most) {
			most = (int32_t)tess_dim_units(p);
			*piece = p;
		}
	}
	return most;
}
