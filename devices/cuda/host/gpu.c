/* gpu.c - reports failures of calls of the driver. */
#include "gpu.h"

const struct tess_host *cuda_host;

tess_status cuda_fail_call(const char *where, const char *call, CUresult why)
{
	const char *name = NULL, *text = NULL;

	cuda.cuGetErrorName(why, &name);
	cuda.cuGetErrorString(why, &text);
	return cuda_host->fail(why == CUDA_ERROR_OUT_OF_MEMORY ? TESS_ENOMEM : TESS_EDEVICE,
	                       "%s%scuda: %s: %s (%s)", where ? where : "", where ? ": " : "", call,
	                       text ? text : "unknown error", name ? name : "no name");
}
