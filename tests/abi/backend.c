/* A backend that does nothing; -DFIELDS removes a required operation or changes its name. */
#include <tessera/group.h>

#pragma GCC diagnostic ignored "-Woverride-init"
#ifndef FIELDS
#define FIELDS .summary = "does nothing"
#endif

static tess_status idle_supports(const struct tess_coll *c, int32_t nranks)
{
	(void)c, (void)nranks;
	return TESS_ENOTSUP;
}

static tess_status idle_open(const struct tess_join *how, void **self)
{
	(void)how, (void)self;
	return TESS_ENOTSUP;
}

static tess_status idle_start(void *self, const struct tess_coll *c, void **work)
{
	(void)self, (void)c, (void)work;
	return TESS_ENOTSUP;
}

static tess_status idle_test(void *self, void *work)
{
	(void)self, (void)work;
	return TESS_ENOTSUP;
}

static tess_status idle_wait(void *self, void *work, int64_t deadline)
{
	(void)self, (void)work, (void)deadline;
	return TESS_ENOTSUP;
}

static void idle_release(void *self, void *work)
{
	(void)self, (void)work;
}

static void idle_close(void *self)
{
	(void)self;
}

static const struct tess_backend backend = {
	.size = sizeof backend,
	.name = "idle",
	.supports = idle_supports,
	.open = idle_open,
	.start = idle_start,
	.test = idle_test,
	.wait = idle_wait,
	.release = idle_release,
	.close = idle_close,
	FIELDS,
};

TESS_DEFINE_PLUGIN("idle", "1.0", "Apache-2.0", .backends = TESS_LIST(tess_backend, &backend));
