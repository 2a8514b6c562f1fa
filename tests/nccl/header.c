/* header.c - compares what the backend declares of NCCL with nccl.h. Only compiled. */
#include "backends/nccl/library.h"

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
