/* cuda.c - tess-device-cuda.so: computes on NVIDIA GPUs. It links no library of CUDA (table.h). */
#include "foreign.h"
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef NAME
#define NAME "cuda"
#endif
/* compute capabilities: the oldest supported one, and the first with early starts of kernels */
enum { COMPUTE_MAJOR = 8, EARLY_MAJOR = 9 };
enum { SYNC_NONE, SYNC_KERNELS, SYNC_OPS }; /* TESSERA_CUDA_SYNC */

static int gpus;

static int32_t count_gpus(void)
{
	return gpus;
}

/*
 * Sets *out to the index of one of three words. name: the variable of the key in the environment.
 */
static tess_status read_option(const char *key, const char *name, const char *const *values,
                               int32_t *out)
{
	const char *text = cuda_host->option(key);

	for (int32_t i = 0; i < 3; i++) {
		if (!strcmp(text, values[i])) {
			*out = i;
			return TESS_OK;
		}
	}
	return cuda_host->fail(TESS_EINVAL, "TESSERA_%s=%s: use %s, %s or %s", name, text,
	                       values[0], values[1], values[2]);
}

static tess_status read_cuda_options(int32_t *math, int32_t *sync)
{
	static const char *const maths[] = { "auto", "f32", "tf32" };
	static const char *const syncs[] = { "0", "kernels", "1" };
	tess_status st = read_option("cuda_math", "CUDA_MATH", maths, math);

	return st ? st : read_option("cuda_sync", "CUDA_SYNC", syncs, sync);
}

int32_t cuda_get_math(void)
{
	int32_t math = MATH_AUTO, sync;

	read_cuda_options(&math, &sync);
	return math;
}

/* Checks that the GPU is supported: kernels are compiled for GPUs of 8.0 and newer. */
static tess_status check_gpu(struct gpu *g, int32_t index)
{
	int major = 0, minor = 0;
	char name[96] = "";

	cuda.cuDeviceGetName(name, sizeof name, g->device);
	cuda.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, g->device);
	cuda.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, g->device);
	if (major < COMPUTE_MAJOR)
		return cuda_host->fail(TESS_ENOTSUP,
		                       "cuda: GPU %d, %s, has compute capability %d.%d; %d.0 or "
		                       "newer is needed",
		                       (int)index, name, major, minor, COMPUTE_MAJOR);
	g->major = major;
	g->starts_early = g->starts_early && major >= EARLY_MAJOR;
	return TESS_OK;
}

static tess_status load_kernels(struct gpu *g)
{
#define KERNEL_NAME(name, args) #name,
	static const char *const names[] = { CUDA_KERNELS(KERNEL_NAME) };
	extern const char cuda_fatbin[];
	tess_status st = CUDA_CALL(NULL, cuModuleLoadData, &g->module, cuda_fatbin);

	for (int32_t i = 0; i < KERNELS && !st; i++)
		st = CUDA_CALL(names[i], cuModuleGetFunction, &g->kernel[i], g->module, names[i]);
	/* kernels without static shared memory, which counts, too; the others use at most 48 KiB */
	for (int32_t i = KERNEL_attend_rows_f32; i <= KERNEL_multiply_groups_bf16 && !st; i++)
		st = CUDA_CALL(names[i], cuFuncSetAttribute, g->kernel[i],
		               CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, g->shared_max);
	return st;
}

static tess_status set_up_gpu(struct gpu *g, int32_t index)
{
	int processors = 0, shared = 0, pools = 0;
	tess_status st = CUDA_CALL(NULL, cuDeviceGet, &g->device, index);

	if (!st)
		st = check_gpu(g, index);
	if (!st)
		st = CUDA_CALL(NULL, cuDevicePrimaryCtxRetain, &g->context, g->device);
	if (!st)
		st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);
	if (!st)
		st = CUDA_CALL(NULL, cuDeviceGetAttribute, &processors,
		               CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, g->device);
	if (!st)
		st = CUDA_CALL(NULL, cuDeviceGetAttribute, &shared,
		               CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, g->device);
	if (!st)
		st = CUDA_CALL(NULL, cuDeviceGetAttribute, &pools,
		               CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, g->device);
	g->processors = processors;
	g->shared_max = shared;
	if (!st)
		st = load_kernels(g);
	if (!st && pools)
		st = CUDA_CALL(NULL, cuStreamCreate, &g->memory, CU_STREAM_NON_BLOCKING);
	if (!st)
		st = CUDA_CALL(NULL, cuMemHostAlloc, (void **)&g->fault, sizeof *g->fault,
		               CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	if (!st)
		*g->fault = 0;
	return st;
}

static void close_gpu(void *self)
{
	struct gpu *g = self;

	if (!g)
		return;
	if (g->context)
		cuda.cuCtxSetCurrent(g->context);
	memory_close(g);
	blas_close(g);
	dnn_close(g);
	memory_free(g, g->sums);
	memory_free(g, g->ended_keys);
	for (int i = 0; i < POINTS; i++)
		if (g->point[i])
			cuda.cuEventDestroy(g->point[i]);
	if (g->followed)
		cuda.cuEventDestroy(g->followed);
	if (g->fault)
		cuda.cuMemFreeHost(g->fault);
	if (g->memory)
		cuda.cuStreamDestroy(g->memory);
	if (g->module)
		cuda.cuModuleUnload(g->module);
	if (g->context)
		cuda.cuDevicePrimaryCtxRelease(g->device);
	free(g);
}

static tess_status open_gpu(int32_t index, int32_t nthreads, void **self)
{
	struct gpu *g;
	int32_t sync = 0;
	tess_status st;

	if (index < 0 || index >= gpus)
		return cuda_host->fail(TESS_EINVAL, "cuda: no GPU %d; there are %d, from 0 on",
		                       (int)index, gpus);
	g = calloc(1, sizeof *g);
	if (!g)
		return cuda_host->fail(TESS_ENOMEM, "cuda: out of memory");
	st = read_cuda_options(&g->math, &sync);
	g->sync_ops = sync == SYNC_OPS;
	g->starts_early = sync == SYNC_NONE;
	for (g->copiers = 1; 2 * g->copiers <= nthreads && g->copiers < COPIERS_MAX;)
		g->copiers *= 2;
	if (!st)
		st = cuda_loader.load_blas();
	if (!st)
		st = set_up_gpu(g, index);
	if (st)
		close_gpu(g);
	else
		*self = g;
	return st;
}

static tess_status open_gpu_stream(void *self, void **stream)
{
	struct gpu *g = self;
	tess_status st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);
	int i = 0;

	while (i < STREAMS_MAX && g->streams[i])
		i++;
	if (i == STREAMS_MAX)
		return cuda_host->fail(TESS_ENOTSUP, "cuda: a rank has at most %d streams",
		                       STREAMS_MAX);
	if (!st)
		st = CUDA_CALL(NULL, cuStreamCreate, &g->streams[i], CU_STREAM_NON_BLOCKING);
	if (!st)
		*stream = g->streams[i];
	return st;
}

static void close_gpu_stream(void *self, void *stream)
{
	struct gpu *g = self;

	cuda.cuCtxSetCurrent(g->context);
	cuda.cuStreamDestroy(stream);
	for (int i = 0; i < STREAMS_MAX; i++)
		if (g->streams[i] == stream)
			g->streams[i] = NULL;
}

/* Reports the fault of a kernel, available when it has run. */
static tess_status check_fault(struct gpu *g)
{
	static const char *const why[] = {
		[FAULT_ROPE] = "rope: a position is outside the table",
		[FAULT_SELECT_ROWS] = "select_rows: there is no such row",
		[FAULT_ATTENTION] = "attention: a row has no slot, or a position no page",
		[FAULT_EXPERTS] = "experts: a row has more experts than slots",
		[FAULT_TEXT] = "attention: without pages the rows of a slot are the positions from "
			       "0 on",
	};
	int32_t fault = __atomic_exchange_n(g->fault, 0, __ATOMIC_RELAXED); /* kernels may run */

	return fault ? cuda_host->fail(TESS_EINVAL, "%s or before: cuda: %s", g->where, why[fault])
	             : TESS_OK;
}

/* Reports a failure of queued work, which a later call returns. */
static tess_status fail_stream(struct gpu *g, const char *call, CUresult why)
{
	char where[WHERE + 64];

	snprintf(where, sizeof where, "%s or an op before it (TESSERA_CUDA_SYNC=1 names it)",
	         *g->where ? g->where : "a copy");
	return cuda_fail_call(where, call, why);
}

static tess_status sync_gpu_stream(void *self, void *stream)
{
	struct gpu *g = self;
	CUresult result;

	cuda.cuCtxSetCurrent(g->context);
	result = cuda.cuStreamSynchronize(stream);
	return result == CUDA_SUCCESS ? check_fault(g)
	                              : fail_stream(g, "cuStreamSynchronize", result);
}

/* Records an event; *e: NULL, or an event of an earlier record. */
static tess_status record_event(struct gpu *g, CUevent *e, CUstream stream)
{
	tess_status st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);

	if (!st && !*e)
		st = CUDA_CALL(NULL, cuEventCreate, e, CU_EVENT_DISABLE_TIMING);
	return st ? st : CUDA_CALL(g->where, cuEventRecord, *e, stream);
}

static tess_status mark_point(void *self, void *stream, int32_t point)
{
	struct gpu *g = self;

	return record_event(g, &g->point[point], stream);
}

/*
 * Makes `stream` wait for `after`. It waits for the last record before its call, so one event is
 * enough.
 */
static tess_status follow_stream(void *self, void *stream, void *after)
{
	struct gpu *g = self;
	tess_status st = record_event(g, &g->followed, after);

	return st ? st : CUDA_CALL(g->where, cuStreamWaitEvent, stream, g->followed, 0);
}

static tess_status test_point(void *self, int32_t point)
{
	struct gpu *g = self;
	CUresult result;

	cuda.cuCtxSetCurrent(g->context);
	result = cuda.cuEventQuery(g->point[point]);
	return result == CUDA_SUCCESS           ? TESS_OK
	       : result == CUDA_ERROR_NOT_READY ? TESS_PENDING
	                                        : fail_stream(g, "cuEventQuery", result);
}

static tess_status refuse_pack(void *self, const struct tess_view *rows, struct tess_view *panels)
{
	(void)self, (void)rows, (void)panels;
	return cuda_host->fail(
		TESS_ENOTSUP,
		"cuda: weights are stored in rows; TESSERA_LAYOUT=panels is for the cpu");
}

/* Captures the work queued between the two calls into a graph. */
static tess_status capture_graph(void *self, void *stream, int32_t begin, void **graph)
{
	struct gpu *g = self;
	CUgraph captured = NULL;
	CUgraphExec exec = NULL;
	tess_status st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);

	if (g->sync_ops)
		return cuda_host->fail(TESS_ENOTSUP, "cuda: TESSERA_CUDA_SYNC=1 waits for each op");
	if (!st && begin) {
		st = CUDA_CALL(NULL, cuStreamBeginCapture, stream,
		               CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
		g->capturing = !st;
		return st;
	}
	g->capturing = false;
	if (!st)
		st = CUDA_CALL(NULL, cuStreamEndCapture, stream, &captured);
	if (!st)
		st = CUDA_CALL(NULL, cuGraphInstantiate, &exec, captured, 0);
	if (captured)
		cuda.cuGraphDestroy(captured);
	if (!st)
		*graph = exec;
	return st;
}

static tess_status replay_graph(void *self, void *graph, void *stream)
{
	struct gpu *g = self;
	tess_status st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);

	return st ? st : CUDA_CALL(g->where, cuGraphLaunch, graph, stream);
}

static void close_graph(void *self, void *graph)
{
	struct gpu *g = self;

	memory_sync_streams(g);
	cuda.cuGraphExecDestroy(graph);
}

/* Returns the KV dtype for weights of a dtype: 16-bit if activations are rounded to bf16, too. */
static int32_t prefer_kv_dtype(int32_t weights)
{
	bool rounds = weights == TESS_BF16 && !strcmp(cuda_host->option("cuda_math"), "auto");

	return rounds ? TESS_BF16 : TESS_F32;
}

/* Initializes the plugin; reports a missing GPU before there are ranks. */
static tess_status init_cuda_plugin(const struct tess_host *host)
{
	int32_t math, sync;
	int version = 0;
	tess_status st;

	cuda_host = host;
	st = read_cuda_options(&math, &sync);
	if (!st)
		st = cuda_loader.load_driver();
	if (st)
		return st;
	if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuDeviceGetCount(&gpus) != CUDA_SUCCESS ||
	    gpus < 1)
		return cuda_host->fail(TESS_ENOTSUP,
		                       "cuda: NVIDIA's driver finds no GPU; see nvidia-smi, and "
		                       "CUDA_VISIBLE_DEVICES if it is set");
	cuda.cuDriverGetVersion(&version);
	if (version / 1000 < CUDA_VERSION / 1000)
		return cuda_host->fail(
			TESS_ENOTSUP,
			"cuda: NVIDIA's driver supports CUDA %d.%d, this build needs "
			"%d.0; install a newer driver, or build with CUDA %d",
			version / 1000, version % 1000 / 10, CUDA_VERSION / 1000, version / 1000);
	return TESS_OK;
}

static const struct tess_device cuda_device = {
	.size = sizeof cuda_device,
	.mem = TESS_CUDA,
	.name = NAME,
	.summary = "NVIDIA GPUs",
	.count = count_gpus,
	.supports = op_check,
	.open = open_gpu,
	.alloc = memory_alloc,
	.free = memory_free,
	.run = op_run,
	.pack = refuse_pack,
	.copy = memory_copy,
	.sync = sync_gpu_stream,
	.close = close_gpu,
	.stream_open = open_gpu_stream,
	.stream_close = close_gpu_stream,
	.capture = capture_graph,
	.replay = replay_graph,
	.layout = TESS_ROWS,
	.free_bytes = memory_get_free_bytes,
	.graph_close = close_graph,
	.mark = mark_point,
	.reached = test_point,
	.kv_dtype = prefer_kv_dtype,
	.follow = follow_stream,
	.prompt_rows = 2048, /* products of fewer rows leave multiprocessors idle */
	.fuses = op_fuses,
	.rounds = op_rounds,
	.explains = 1,
	.host_alloc = memory_alloc_host,
	.host_free = memory_free_host,
};
static const struct tess_option math_option = {
	"cuda_math", "auto",
	"products of many rows on the cuda device: auto (as precise as the weights), f32 or tf32"
};
static const struct tess_option sync_option = {
	"cuda_sync", "0",
	"kernels: serialize the kernels of the cuda device; 1: wait for each op, so that "
	"a failure names it"
};

TESS_DEFINE_PLUGIN(NAME, "1.0", "Apache-2.0", .summary = "computes on NVIDIA GPUs",
                   .devices = TESS_LIST(tess_device, &cuda_device),
                   .options = TESS_LIST(tess_option, &math_option, &sync_option, &foreign_option),
                   .init = init_cuda_plugin);
