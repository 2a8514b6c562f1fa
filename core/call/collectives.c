/* collectives.c - named functions for the common collectives. */
#include <tessera/tessera.h>

tess_status tess_barrier(struct tess_group *g, const char *where)
{
	const struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER, .where = where };

	return tess_group_run(g, &c);
}

tess_status tess_broadcast(struct tess_group *g, void *buf, uint64_t count, int32_t dtype,
                           int32_t root, const char *where)
{
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_BROADCAST,
		                     .dtype = dtype,
		                     .root = root,
		                     .src = buf,
		                     .dst = buf,
		                     .count = count,
		                     .where = where };

	return tess_group_run(g, &c);
}

tess_status tess_all_reduce(struct tess_group *g, const void *src, void *dst, uint64_t count,
                            int32_t dtype, int32_t op, const char *where)
{
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_ALL_REDUCE,
		                     .dtype = dtype,
		                     .op = op,
		                     .src = src,
		                     .dst = dst,
		                     .count = count,
		                     .where = where };

	return tess_group_run(g, &c);
}

tess_status tess_all_gather(struct tess_group *g, const void *src, void *dst, uint64_t count,
                            int32_t dtype, const char *where)
{
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_ALL_GATHER,
		                     .dtype = dtype,
		                     .src = src,
		                     .dst = dst,
		                     .count = count,
		                     .where = where };

	return tess_group_run(g, &c);
}
