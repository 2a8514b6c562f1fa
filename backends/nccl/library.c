#include "library.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "foreign.h"

enum { SENTENCE = 1024 };

static struct nccl_calls calls;

static const struct foreign_symbol nccl_symbols[] = {
	{ "ncclGetVersion", &calls.get_version, 0 },
	{ "ncclGetUniqueId", &calls.get_unique_id, 0 },
	{ "ncclCommInitRankConfig", &calls.comm_init, 0 },
	{ "ncclCommSplit", &calls.comm_split, 0 },
	{ "ncclCommFinalize", &calls.comm_finalize, 0 },
	{ "ncclCommDestroy", &calls.comm_destroy, 0 },
	{ "ncclCommAbort", &calls.comm_abort, 0 },
	{ "ncclCommGetAsyncError", &calls.get_async_error, 0 },
	{ "ncclGetErrorString", &calls.get_error_string, 0 },
	{ "ncclGetLastError", &calls.get_last_error, 0 },
	{ "ncclGroupStart", &calls.group_start, 0 },
	{ "ncclGroupEnd", &calls.group_end, 0 },
	{ "ncclAllReduce", &calls.all_reduce, 0 },
	{ "ncclReduce", &calls.reduce, 0 },
	{ "ncclBroadcast", &calls.broadcast, 0 },
	{ "ncclAllGather", &calls.all_gather, 0 },
	{ "ncclReduceScatter", &calls.reduce_scatter, 0 },
	{ "ncclSend", &calls.send, 0 },
	{ "ncclRecv", &calls.recv, 0 },
	{ "ncclMemAlloc", &calls.mem_alloc, 1 },
	{ "ncclMemFree", &calls.mem_free, 1 },
	{ "ncclCommRegister", &calls.comm_register, 1 },
	{ "ncclCommDeregister", &calls.comm_deregister, 1 },
	{ NULL, NULL, 0 },
};

static const struct foreign_symbol cuda_symbols[] = {
	{ "cuInit", &calls.cuda_init, 0 },
	{ "cuGetErrorString", &calls.cuda_get_error, 0 },
	{ "cuDeviceGetCount", &calls.device_count, 0 },
	{ "cuDeviceGet", &calls.device_get, 0 },
	{ "cuDeviceGetPCIBusId", &calls.device_bus_id, 0 },
	{ "cuDevicePrimaryCtxRetain", &calls.context_retain, 0 },
	{ "cuDevicePrimaryCtxRelease_v2", &calls.context_release, 0 },
	{ "cuCtxPushCurrent_v2", &calls.context_push, 0 },
	{ "cuCtxPopCurrent_v2", &calls.context_pop, 0 },
	{ "cuEventCreate", &calls.event_create, 0 },
	{ "cuEventDestroy_v2", &calls.event_destroy, 0 },
	{ "cuEventRecord", &calls.event_record, 0 },
	{ "cuEventQuery", &calls.event_query, 0 },
	{ "cuStreamWaitEvent", &calls.stream_wait, 0 },
	{ "cuMemAlloc_v2", &calls.cuda_alloc, 0 },
	{ "cuMemFree_v2", &calls.cuda_free, 0 },
	{ "cuMemAllocAsync", &calls.alloc_async, 0 },
	{ "cuMemFreeAsync", &calls.free_async, 0 },
	{ "cuMemcpyDtoDAsync_v2", &calls.copy_async, 0 },
	{ NULL, NULL, 0 },
};

static const struct tess_host *real_host;
static char sentence[SENTENCE]; /* message of the failure, which every later call returns */

static tess_status TESS_PRINTF(2, 3) note_failure(tess_status why, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sentence, sizeof sentence, fmt, ap);
	va_end(ap);
	return why;
}

void library_format_version(int version, char text[static 24])
{
	snprintf(text, 24, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static tess_status check_version(int version)
{
	char have[24], oldest[24];

	if (version >= NCCL_OLDEST)
		return TESS_OK;
	library_format_version(version, have);
	library_format_version(NCCL_OLDEST, oldest);
	return note_failure(TESS_ENOTSUP, "NCCL %s is too old; %s or newer is required",
	                    version < 10000 ? "before 2.9" : have, oldest);
}

static tess_status open_libraries(int *version)
{
	static const char *const nccl[] = { "libnccl.so.2", NULL };
	static const char *const driver[] = { "libcuda.so.1", NULL };
	struct tess_host host = *real_host;
	const char *why = "unknown error";
	void *at;
	tess_status st;
	int bad;

	host.fail = note_failure;
	st = foreign_open_library(&host, driver, &at);
	if (!st)
		st = foreign_find_symbols(&host, "the NVIDIA driver", at, cuda_symbols);
	if (!st)
		st = foreign_open_library(&host, nccl, &at);
	if (!st)
		st = foreign_find_symbols(&host, "libnccl.so.2", at, nccl_symbols);
	if (st)
		return st;
	bad = calls.cuda_init(0);
	if (bad) {
		calls.cuda_get_error(bad, &why);
		return note_failure(TESS_ENOTSUP, "the NVIDIA driver: %s (%d)", why, bad);
	}
	if (calls.get_version(version))
		return note_failure(TESS_ENOTSUP, "NCCL reports no version");
	return check_version(*version);
}

tess_status library_get_calls(const struct tess_host *host, const struct nccl_calls **out,
                              int *version)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static tess_status answer = TESS_PENDING;
	static int found;
	tess_status st;

	pthread_mutex_lock(&lock);
	if (answer == TESS_PENDING) {
		real_host = host;
		answer = open_libraries(&found);
	}
	st = answer;
	pthread_mutex_unlock(&lock);
	if (st)
		return host->fail(st, "%s", sentence);
	*out = &calls;
	*version = found;
	return TESS_OK;
}
