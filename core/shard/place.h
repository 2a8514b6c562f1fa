/* place.h - placements of a tensor's elements along each mesh dimension. */
#ifndef TESS_SHARD_PLACE_H
#define TESS_SHARD_PLACE_H

#include <stdbool.h>
#include <tessera/names.h>

static inline struct tess_place tess_place_replicate(void)
{
	return (struct tess_place){ .kind = TESS_REPLICATE };
}

static inline struct tess_place tess_place_shard(int32_t dim)
{
	return (struct tess_place){ .kind = TESS_SHARD, .dim = dim };
}

static inline struct tess_place tess_place_partial(void)
{
	return (struct tess_place){ .kind = TESS_PARTIAL, .op = TESS_SUM };
}

/* Normalizes a style's placement for comparison: no negative dim, op set. */
struct tess_place tess_place_normalize(struct tess_place p, int32_t ndim);
bool tess_place_equal(struct tess_place a, struct tess_place b);
static inline bool tess_place_is(struct tess_place p, int32_t kind, int32_t dim)
{
	return p.kind == kind && (kind != TESS_SHARD || p.dim == dim);
}

/* Returns the first of n places, one per mesh dimension, of this kind; -1: none. */
int32_t tess_places_find(const struct tess_place *p, int32_t n, int32_t kind, int32_t dim);
bool tess_places_equal(const struct tess_place *a, const struct tess_place *b, int32_t n);

/*
 * Checks a placement of a tensor of `ndim` axes. TESS_EINVAL: kind, dim or op is not valid;
 * TESS_ENOTSUP: an op that Partial does not support.
 */
tess_status tess_place_check(struct tess_place p, int32_t ndim, const char *where);

#endif
