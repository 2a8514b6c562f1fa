#include "bind.h"

#include "core/base/status.h"
#include "core/registry/registry.h"
#include <string.h>

tess_status tess_bind_check(const char *how)
{
	if (!strcmp(how, "auto") || !strcmp(how, "cpu") || !strcmp(how, "none"))
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "ranks cannot be bound as \"%.40s\": --bind and TESSERA_BIND may be auto, "
	                 "cpu or none",
	                 how);
}

static bool worth_it(const char *backend, int32_t ncpus, int32_t nranks)
{
	const char *below = tess_backend_wrapped(backend);

	return (!strcmp(below, "shm") || !strcmp(below, "auto")) && nranks > ncpus &&
	       nranks % ncpus == 0;
}

bool tess_bind(const char *how, const char *backend, const cpu_set_t *ours, int32_t rank,
               int32_t nranks, cpu_set_t *out)
{
	int32_t ncpus = CPU_COUNT(ours), nth;
	int cpu = -1;

	if (ncpus < 2 || !strcmp(how, "none") ||
	    (!strcmp(how, "auto") && !worth_it(backend, ncpus, nranks)))
		return false;
	nth = (int32_t)((int64_t)rank * ncpus / nranks);
	for (int32_t i = 0; i <= nth; i++)
		do
			cpu++;
		while (!CPU_ISSET(cpu, ours));
	CPU_ZERO(out);
	CPU_SET(cpu, out);
	return true;
}
