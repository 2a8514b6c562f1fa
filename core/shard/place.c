#include "core/shard/place.h"

#include "core/base/status.h"

struct tess_place tess_place_normalize(struct tess_place p, int32_t ndim)
{
	switch (p.kind) {
	case TESS_SHARD:
		return tess_place_shard(p.dim < 0 ? p.dim + ndim : p.dim);
	case TESS_PARTIAL:
		return (struct tess_place){ .kind = TESS_PARTIAL, .op = p.op ? p.op : TESS_SUM };
	default:
		return (struct tess_place){ .kind = p.kind };
	}
}

bool tess_place_equal(struct tess_place a, struct tess_place b)
{
	return a.kind == b.kind && a.dim == b.dim && a.op == b.op;
}

int32_t tess_places_find(const struct tess_place *p, int32_t n, int32_t kind, int32_t dim)
{
	for (int32_t i = 0; i < n; i++)
		if (tess_place_is(p[i], kind, dim))
			return i;
	return -1;
}

bool tess_places_equal(const struct tess_place *a, const struct tess_place *b, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		if (!tess_place_equal(a[i], b[i]))
			return false;
	return true;
}

tess_status tess_place_check(struct tess_place p, int32_t ndim, const char *where)
{
	if (p.kind < TESS_ASIS || p.kind > TESS_PARTIAL)
		return tess_fail(TESS_EINVAL,
		                 "%s: unknown placement kind %d; use Replicate, Shard or Partial",
		                 where, (int)p.kind);
	if (p.kind == TESS_SHARD && !ndim)
		return tess_fail(TESS_EINVAL, "%s: Shard(%d) of a tensor without axes", where,
		                 (int)p.dim);
	if (p.kind == TESS_SHARD && (p.dim < -ndim || p.dim >= ndim))
		return tess_fail(TESS_EINVAL,
		                 "%s: Shard(%d) of a tensor with %d axes; use %d to %d", where,
		                 (int)p.dim, (int)ndim, -(int)ndim, (int)ndim - 1);
	if (p.reserved || (p.kind != TESS_SHARD && p.dim))
		return tess_fail(
			TESS_EINVAL,
			"%s: a placement of kind %d with dim %d and reserved %d; what is not "
			"used must be 0",
			where, (int)p.kind, (int)p.dim, (int)p.reserved);
	if (p.kind == TESS_PARTIAL && p.op && p.op != TESS_SUM)
		return tess_fail(TESS_ENOTSUP, "%s: Partial supports sums only, not op %d", where,
		                 (int)p.op);
	return TESS_OK;
}
