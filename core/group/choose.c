#include "choose.h"

#include "core/base/status.h"
#include "core/registry/registry.h"
#include <stdio.h>
#include <string.h>

/* GPUs are the device's matter. */
static tess_status choose_by_rule(int32_t size, bool threads, bool hosts, struct tess_choice *c)
{
	tess_status st;

	if (threads || size == 1) {
		snprintf(c->why, sizeof c->why, "%s",
		         size == 1 ? "one rank has nobody to talk to"
		                   : "the ranks are threads of one process");
		return tess_plugin_backend("loopback", &c->backend);
	}
	if (hosts) {
		snprintf(c->why, sizeof c->why, "the ranks are on several hosts");
		return tess_plugin_backend("gloo", &c->backend);
	}
	snprintf(c->why, sizeof c->why, "the ranks share this host, where shm is the fastest");
	st = tess_plugin_backend("shm", &c->backend);
	if (!st)
		return TESS_OK;
	c->second = true;
	snprintf(c->why, sizeof c->why, "the ranks share this host, but shm is not to be had: %s",
	         st == TESS_ENOENT ? "it is not installed" : tess_error());
	return tess_plugin_backend("gloo", &c->backend);
}

tess_status tess_backend_choose(const char *name, int32_t size, bool threads, bool hosts,
                                struct tess_choice *out)
{
	struct tess_choice c = { .why = "TESSERA_BACKEND says so" };
	tess_status st = !strcmp(name, "auto") ? choose_by_rule(size, threads, hosts, &c)
	                                       : tess_plugin_backend(name, &c.backend);

	if (!st && threads && !c.backend->threads)
		st = tess_fail(
			TESS_EINVAL,
			"the ranks of backend %s are processes, not threads; start the program with "
			"tessera launch, or take TESSERA_BACKEND=loopback",
			c.backend->name);
	if (!st && hosts && !strcmp(tess_backend_wrapped(name), "shm"))
		st = tess_fail(TESS_EINVAL,
		               "the ranks are on several hosts, and those of shm share one; take "
		               "TESSERA_BACKEND=gloo");
	if (!st)
		*out = c;
	return st;
}
