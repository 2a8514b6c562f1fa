#include "nn/offload/disk_engine.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"

#include <string.h>

const struct tess_option tess_disk_options[] = {
	{ "disk_io", "auto",
	  "how files of offloaded values are read and written: uring (io_uring), threads, or auto: "
	  "uring if the kernel allows it" },
	{ NULL, NULL, NULL },
};

static const struct tess_disk_engine *const disk_engines[] = {
#ifdef TESS_HAVE_URING
	&tess_disk_uring,
#endif
	&tess_disk_threads,
};
enum { DISK_ENGINES = sizeof disk_engines / sizeof *disk_engines };

static tess_status fail_engine(const char *name, int error)
{
	if (!error)
		return tess_fail(TESS_EINVAL,
		                 "TESSERA_DISK_IO=%s: this build has no such engine; use auto%s or "
		                 "threads",
		                 name, DISK_ENGINES > 1 ? ", uring" : "");
	return tess_fail(TESS_ENOTSUP, "TESSERA_DISK_IO=%s: the system refuses it: %s; use auto",
	                 name, strerror(error));
}

tess_status tess_disk_engine_open(int fd, const struct tess_disk_engine **out, void **self)
{
	tess_status st = tess_option_add("nn/offload/disk_engine.c", tess_disk_options);
	const char *name = st ? NULL : tess_option_get("disk_io");
	bool any = name && !strcmp(name, "auto");
	int error = 0;

	if (st)
		return st;
	for (int32_t i = 0; i < DISK_ENGINES; i++) {
		if (!any && strcmp(name, disk_engines[i]->name) != 0)
			continue;
		error = disk_engines[i]->open(fd, self);
		if (!error) {
			*out = disk_engines[i];
			return TESS_OK;
		}
		tess_log(TESS_DEBUG, "offload", "the system refuses %s: %s", disk_engines[i]->name,
		         strerror(error));
	}
	return fail_engine(name, error);
}
