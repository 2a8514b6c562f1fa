/* header.c - compares the backend's declarations with nccl.h and cuda.h. Only compiled. */
#define CUDA_SUCCESS OUR_CUDA_SUCCESS
#include "backends/nccl/library.h"
#undef CUDA_SUCCESS

#include <cuda.h>
#include <nccl.h>

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define SAME_FIELD(ours, theirs) \
	SAME(offsetof(struct nccl_config, ours), offsetof(ncclConfig_t, theirs))

SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_I8, ncclInt8);
SAME(NCCL_U8, ncclUint8);
SAME(NCCL_I32, ncclInt32);
SAME(NCCL_I64, ncclInt64);
SAME(NCCL_F16, ncclFloat16);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_F64, ncclFloat64);
SAME(NCCL_BF16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_PROD, ncclProd);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
SAME_FIELD(magic, magic);
SAME_FIELD(version, version);
SAME_FIELD(blocking, blocking);
SAME_FIELD(max_ctas, maxCTAs);
SAME_FIELD(net, netName);
SAME_FIELD(split_share, splitShare);

_Static_assert(sizeof(ncclConfig_t) >= sizeof(struct nccl_config), "a config of NCCL 2.18");

SAME(OUR_CUDA_SUCCESS, CUDA_SUCCESS);
SAME(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CUDA_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(sizeof(CUdevice), sizeof(int));
SAME(sizeof(CUdeviceptr), sizeof(unsigned long long));

/* The names in library.c, as the headers map those without _v2. */
enum {
	HAS_cuDevicePrimaryCtxRelease_v2,
	HAS_cuCtxPushCurrent_v2,
	HAS_cuCtxPopCurrent_v2,
	HAS_cuEventDestroy_v2,
	HAS_cuMemAlloc_v2,
	HAS_cuMemFree_v2,
	HAS_cuMemcpyDtoDAsync_v2,
	HAS_cuEventCreate,
	HAS_cuEventRecord,
	HAS_cuEventQuery,
	HAS_cuStreamWaitEvent,
	HAS_cuMemAllocAsync,
	HAS_cuMemFreeAsync,
};
#define JOIN(a, b) a##b
#define NAMED(call) JOIN(HAS_, call)
enum {
	FOUND_0 = NAMED(cuDevicePrimaryCtxRelease),
	FOUND_1 = NAMED(cuCtxPushCurrent),
	FOUND_2 = NAMED(cuCtxPopCurrent),
	FOUND_3 = NAMED(cuEventDestroy),
	FOUND_4 = NAMED(cuMemAlloc),
	FOUND_5 = NAMED(cuMemFree),
	FOUND_6 = NAMED(cuMemcpyDtoDAsync),
	FOUND_7 = NAMED(cuEventCreate),
	FOUND_8 = NAMED(cuEventRecord),
	FOUND_9 = NAMED(cuEventQuery),
	FOUND_10 = NAMED(cuStreamWaitEvent),
	FOUND_11 = NAMED(cuMemAllocAsync),
	FOUND_12 = NAMED(cuMemFreeAsync),
};

/*
 * Compares functions: handles are pointers there, and enums ints, so parameters must agree in
 * number and bytes.
 */
#define CALLS(member, type, ...) \
	_Static_assert(sizeof(((struct nccl_calls *)0)->member(__VA_ARGS__)) == sizeof(type), \
	               #member)
CALLS(event_record, CUresult, (CUevent)0, (CUstream)0);
CALLS(stream_wait, CUresult, (CUstream)0, (CUevent)0, 0);
CALLS(alloc_async, CUresult, (CUdeviceptr *)0, 0, (CUstream)0);
CALLS(copy_async, CUresult, (CUdeviceptr)0, (CUdeviceptr)0, 0, (CUstream)0);
CALLS(comm_split, ncclResult_t, (ncclComm_t)0, 0, 0, (void **)0, (struct nccl_config *)0);
CALLS(all_reduce, ncclResult_t, (void *)0, (void *)0, 0, ncclFloat32, ncclSum, (ncclComm_t)0,
      (CUstream)0);
CALLS(comm_register, ncclResult_t, (ncclComm_t)0, (void *)0, 0, (void **)0);
