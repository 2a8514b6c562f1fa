/* A backend that does nothing, with one fault by -D: a required operation or its own name. */
#include <tessera/group.h>

#ifndef BACKEND_NAME
#define BACKEND_NAME "idle"
#endif
#ifndef WAIT
#define WAIT wait_for
#endif

static tess_status supports(const struct tess_coll *c, int32_t nranks)
{
	(void)c, (void)nranks;
	return TESS_ENOTSUP;
}

static tess_status open_group(const struct tess_join *how, void **self)
{
	(void)how, (void)self;
	return TESS_ENOTSUP;
}

static tess_status start(void *self, const struct tess_coll *c, void **work)
{
	(void)self, (void)c, (void)work;
	return TESS_ENOTSUP;
}

static tess_status test(void *self, void *work)
{
	(void)self, (void)work;
	return TESS_ENOTSUP;
}

static tess_status wait_for(void *self, void *work, int64_t deadline)
{
	(void)self, (void)work, (void)deadline;
	return TESS_ENOTSUP;
}

static void release(void *self, void *work)
{
	(void)self, (void)work;
}

static void close_group(void *self)
{
	(void)self;
}

static const struct tess_backend backend = {
	.size = sizeof backend,
	.name = BACKEND_NAME,
	.summary = "does nothing",
	.supports = supports,
	.open = open_group,
	.start = start,
	.test = test,
	.wait = WAIT,
	.release = release,
	.close = close_group,
};
static const struct tess_backend *const backends[] = { &backend, NULL };

TESS_PLUGIN = {
	.abi = TESS_ABI,
	.size = sizeof(struct tess_plugin),
	.name = "idle",
	.version = "1.0",
	.license = "Apache-2.0",
	.backends = backends,
};
