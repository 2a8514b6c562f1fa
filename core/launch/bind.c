#include "core/launch/bind.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/group/choose.h"
#include "core/world/world.h"

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

bool tess_bind_benefits(const char *backend, int32_t nranks)
{
	struct tess_choice choice;

	if (tess_option_add("world", tess_world_options))
		return false;
	return !tess_backend_choose(backend, nranks, false, false, &choice) && choice.backend->bind;
}

bool tess_bind_choose(const char *how, bool benefits, const cpu_set_t *allowed, int32_t rank,
                      int32_t nranks, cpu_set_t *out)
{
	int32_t ncpus = CPU_COUNT(allowed), nth;
	int cpu = -1;

	if (ncpus < 2 || !strcmp(how, "none") ||
	    (!strcmp(how, "auto") && !(benefits && nranks > ncpus && nranks % ncpus == 0)))
		return false;
	nth = (int32_t)((int64_t)rank * ncpus / nranks);
	for (int32_t i = 0; i <= nth; i++)
		do
			cpu++;
		while (!CPU_ISSET(cpu, allowed));
	CPU_ZERO(out);
	CPU_SET(cpu, out);
	return true;
}
