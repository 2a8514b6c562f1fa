/*
 * table.h - the calls of NVIDIA's driver, of cuBLASLt and of cuDNN: a table of function pointers,
 * which table.c fills at run time, and tests fill with fakes.
 */
#ifndef TESS_DEVICES_CUDA_TABLE_H
#define TESS_DEVICES_CUDA_TABLE_H

#include "dnn.h"

#include <cublasLt.h>
#include <cuda.h>

#define CUDA_DRIVER_CALLS(CALL) \
	CALL(cuInit) \
	CALL(cuDriverGetVersion) \
	CALL(cuDeviceGetCount) \
	CALL(cuDeviceGet) \
	CALL(cuDeviceGetName) \
	CALL(cuDeviceGetAttribute) \
	CALL(cuDevicePrimaryCtxRetain) \
	CALL(cuDevicePrimaryCtxRelease) \
	CALL(cuCtxSetCurrent) \
	CALL(cuGetErrorName) \
	CALL(cuGetErrorString) \
	CALL(cuModuleLoadData) \
	CALL(cuModuleUnload) \
	CALL(cuModuleGetFunction) \
	CALL(cuFuncSetAttribute) \
	CALL(cuLaunchKernelEx) \
	CALL(cuOccupancyMaxActiveClusters) \
	CALL(cuStreamCreate) \
	CALL(cuStreamDestroy) \
	CALL(cuStreamSynchronize) \
	CALL(cuStreamWaitEvent) \
	CALL(cuStreamBeginCapture) \
	CALL(cuStreamEndCapture) \
	CALL(cuGraphInstantiate) \
	CALL(cuGraphLaunch) \
	CALL(cuGraphDestroy) \
	CALL(cuGraphExecDestroy) \
	CALL(cuEventCreate) \
	CALL(cuEventDestroy) \
	CALL(cuEventRecord) \
	CALL(cuEventSynchronize) \
	CALL(cuEventQuery) \
	CALL(cuMemAlloc) \
	CALL(cuMemFree) \
	CALL(cuMemAllocAsync) \
	CALL(cuMemFreeAsync) \
	CALL(cuMemcpyAsync) \
	CALL(cuMemGetInfo) \
	CALL(cuMemHostAlloc) \
	CALL(cuMemFreeHost) \
	CALL(cuPointerGetAttributes)

#define CUDA_BLAS_CALLS(CALL) \
	CALL(cublasLtCreate) \
	CALL(cublasLtDestroy) \
	CALL(cublasLtMatmul) \
	CALL(cublasLtMatmulAlgoGetHeuristic) \
	CALL(cublasLtMatmulDescCreate) \
	CALL(cublasLtMatmulDescDestroy) \
	CALL(cublasLtMatmulDescSetAttribute) \
	CALL(cublasLtMatmulPreferenceCreate) \
	CALL(cublasLtMatmulPreferenceDestroy) \
	CALL(cublasLtMatmulPreferenceSetAttribute) \
	CALL(cublasLtMatrixLayoutCreate) \
	CALL(cublasLtMatrixLayoutSetAttribute) \
	CALL(cublasLtMatrixLayoutDestroy)

/* Names after the headers' renaming: cuMemGetInfo is cuMemGetInfo_v2. */
#define CUDA_CALL_POINTER(call) __typeof__(&call) call;
extern struct cuda_table {
	CUDA_DRIVER_CALLS(CUDA_CALL_POINTER)
	CUDA_BLAS_CALLS(CUDA_CALL_POINTER)
	CUDA_DNN_CALLS(CUDA_CALL_POINTER)
} cuda;

#endif
