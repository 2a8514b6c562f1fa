/*
 * fake_cuda.c - fakes of NVIDIA's driver, cuBLASLt and cuDNN (fake_dnn.c) for the table of the CUDA
 * device: host memory, kernels run by the emulator at once, products as plain loops. A GPU would
 * run them asynchronously and in parallel.
 *
 * FAKE_CUDA_FAILS=CALL makes that call fail ("pending": events are never reached; "pools": memory
 * pools are missing; "clusters": so are clusters; "dnn": cuDNN is missing). FAKE_CUDA_MEMORY limits
 * memory to so many bytes. FAKE_CUDA_VERSION is the driver's, FAKE_CUDA_COMPUTE the GPU's, and
 * FAKE_CUDA_SHARED the shared memory of a block.
 */
#include "emulated_kernels.h"
#include "fake_dnn.h"
#include "gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { GPUS = 2 };

struct block { /* block of device memory */
	struct block *next;
	char *data;
	uint64_t bytes;
	bool host; /* pinned: kernels can write there, too */
};

enum { FUNCTIONS_MAX = 256 };

struct task { /* task of a graph */
	struct task *next;
	const struct emulated_entry *kernel; /* NULL: a product */
	struct emulated_index grid, block;
	unsigned cluster, shared; /* blocks in y that share memory; bytes of it */
	_Alignas(16) char args[1024];
	struct cublasLtMatmulDesc *product;
	struct layout *w, *x, *y, *more;
	const float *wp, *xp, *morep;
	float beta;
	void *yp;
};

struct CUstream_st {
	bool captures;
	struct CUgraph_st *graph; /* being captured; or NULL */
};

struct CUgraph_st { /* also as CUgraphExec */
	struct task *first, **last;
};

struct cublasLtMatmulDesc {
	cublasComputeType_t compute;
	cublasOperation_t turn_w, turn_x;
};

struct layout {
	cudaDataType type;
	uint64_t rows, cols;
	int64_t ld, step;
	int32_t count;
};

struct cuda_table cuda;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all below, and the emulator */
static struct block *blocks;
static uint64_t used;

static bool is_to_fail(const char *call)
{
	const char *name = getenv("FAKE_CUDA_FAILS");

	return name && !strcmp(name, call);
}

bool fake_cuda_fails(const char *call)
{
	return is_to_fail(call);
}

#define FAIL_IF_TOLD(call) \
	if (is_to_fail(#call)) \
	return CUDA_ERROR_ILLEGAL_ADDRESS

static uint64_t get_environment_number(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text ? strtoull(text, NULL, 10) : otherwise;
}

/* ---- the driver ------------------------------------------------------------------------------ */

static CUresult fake_init(unsigned flags)
{
	(void)flags;
	return is_to_fail("cuInit") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

static CUresult fake_get_version(int *version)
{
	*version = (int)get_environment_number("FAKE_CUDA_VERSION", CUDA_VERSION);
	return CUDA_SUCCESS;
}

static CUresult fake_get_count(int *count)
{
	*count = GPUS;
	return CUDA_SUCCESS;
}

static CUresult fake_get_device(CUdevice *device, int index)
{
	*device = index;
	return CUDA_SUCCESS;
}

static CUresult fake_get_name(char *name, int size, CUdevice device)
{
	snprintf(name, (size_t)size, "Fake %d", device);
	return CUDA_SUCCESS;
}

static CUresult fake_get_attribute(int *value, CUdevice_attribute what, CUdevice device)
{
	int compute = (int)get_environment_number("FAKE_CUDA_COMPUTE", 90);

	(void)device;
	switch ((int)what) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = compute / 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = compute % 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = (int)get_environment_number("FAKE_CUDA_PROCESSORS", 8);
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
		*value = !is_to_fail("pools");
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*value = (int)get_environment_number("FAKE_CUDA_SHARED", EMULATED_SHARED_MAX);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult fake_retain_context(CUcontext *context, CUdevice device)
{
	*context = (CUcontext)(uintptr_t)(device + 1);
	return CUDA_SUCCESS;
}

static CUresult fake_release_context(CUdevice device)
{
	(void)device;
	return CUDA_SUCCESS;
}

static CUresult fake_set_context(CUcontext context)
{
	return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult fake_get_error_name(CUresult error, const char **name)
{
	*name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
	return CUDA_SUCCESS;
}

static CUresult fake_get_error_string(CUresult error, const char **text)
{
	*text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "simulated failure";
	return CUDA_SUCCESS;
}

static CUresult fake_load_module(CUmodule *module, const void *image)
{
	FAIL_IF_TOLD(cuModuleLoadData);
	*module = (CUmodule)(uintptr_t)image;
	return CUDA_SUCCESS;
}

static CUresult fake_unload_module(CUmodule module)
{
	(void)module;
	return CUDA_SUCCESS;
}

static CUresult fake_get_function(CUfunction *function, CUmodule module, const char *name)
{
	(void)module;
	for (const struct emulated_entry *e = emulated_entries; e->name; e++) {
		if (!strcmp(e->name, name)) {
			*function = (CUfunction)(uintptr_t)e;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_NOT_FOUND;
}

/* Limits of dynamic shared memory of each kernel in bytes; 0: not set. */
static unsigned shared_limits[FUNCTIONS_MAX];

/* Sets the limit: static and dynamic shared memory must fit a block, or 48 KiB if it is not set. */
static CUresult fake_set_function(CUfunction function, CUfunction_attribute what, int value)
{
	const struct emulated_entry *e = (const struct emulated_entry *)(const void *)function;
	unsigned bytes = (unsigned)value;
	int i = (int)(e - emulated_entries);

	if (what != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || i >= FUNCTIONS_MAX ||
	    bytes + e->shared > get_environment_number("FAKE_CUDA_SHARED", EMULATED_SHARED_MAX))
		return CUDA_ERROR_INVALID_VALUE;
	shared_limits[i] = bytes;
	return CUDA_SUCCESS;
}

static bool has_shared_memory(const struct emulated_entry *e, unsigned bytes)
{
	unsigned limit = shared_limits[e - emulated_entries];

	return limit ? bytes <= limit : bytes + e->shared <= 48 << 10;
}

static void run_task(const struct task *k);

/* Records that all kernels up to now end before any later one starts. */
static void settle_kernels(void)
{
	pthread_mutex_lock(&lock);
	emulated_settled = emulated_launch;
	pthread_mutex_unlock(&lock);
}

/* Runs a task, or adds a copy to the graph that the stream captures. */
static CUresult take_task(CUstream stream, const struct task *k)
{
	struct task *copy;

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!stream->captures) {
		pthread_mutex_lock(&lock);
		run_task(k);
		pthread_mutex_unlock(&lock);
		return CUDA_SUCCESS;
	}
	copy = malloc(sizeof *copy);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*copy = *k;
	copy->next = NULL;
	*stream->graph->last = copy;
	stream->graph->last = &copy->next;
	return CUDA_SUCCESS;
}

/* Launches a kernel. Code for GPUs before 9.0 must not start early: it does not wait. */
static CUresult fake_launch(const CUlaunchConfig *how, CUfunction function, void **args,
                            void **extra)
{
	struct task k = { .kernel = (const struct emulated_entry *)(const void *)function,
		          .grid = { how->gridDimX, how->gridDimY, how->gridDimZ },
		          .block = { how->blockDimX, how->blockDimY, how->blockDimZ },
		          .cluster = 1,
		          .shared = how->sharedMemBytes };
	bool early = get_environment_number("FAKE_CUDA_COMPUTE", 90) >= 90;

	FAIL_IF_TOLD(cuLaunchKernelEx);
	for (unsigned i = 0; i < how->numAttrs && early; i++)
		if (how->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			k.cluster = how->attrs[i].value.clusterDim.y;
	if (!k.grid.x || !k.grid.y || !k.grid.z || k.grid.y > 65535 || k.grid.z > 65535 ||
	    k.block.x > 1024 || k.block.y != 1 || k.block.z != 1 ||
	    !has_shared_memory(k.kernel, k.shared) || extra || how->numAttrs > 2 * early ||
	    k.grid.y % k.cluster || k.cluster > EMULATED_CLUSTER_MAX ||
	    (k.cluster > 1 && is_to_fail("clusters")) || k.kernel->bytes > sizeof k.args)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(k.args, args[0], k.kernel->bytes);
	return take_task(how->hStream, &k);
}

/*
 * Counts the clusters of a kernel that run at once: on GPCs of 16 multiprocessors, of 228 KiB each,
 * of which a block takes 1 KiB more than it requests.
 */
static CUresult fake_count_clusters(int *clusters, CUfunction function, const CUlaunchConfig *how)
{
	const struct emulated_entry *e = (const struct emulated_entry *)(const void *)function;
	int processors = (int)get_environment_number("FAKE_CUDA_PROCESSORS", 8);
	int each = (228 << 10) / (int)(how->sharedMemBytes + e->shared + (1 << 10)), n;

	*clusters = 99; /* meaningless if the call fails */
	if (how->numAttrs != 1 || how->attrs[0].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ||
	    !has_shared_memory(e, how->sharedMemBytes) || is_to_fail("clusters") ||
	    get_environment_number("FAKE_CUDA_COMPUTE", 90) < 90)
		return CUDA_ERROR_INVALID_VALUE;
	n = (int)how->attrs[0].value.clusterDim.y;
	*clusters = processors / 16 * (16 * each / n) + processors % 16 * each / n;
	return CUDA_SUCCESS;
}

static CUresult fake_create_stream(CUstream *stream, unsigned flags)
{
	*stream = flags == CU_STREAM_NON_BLOCKING ? calloc(1, sizeof **stream) : NULL;
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_destroy_stream(CUstream stream)
{
	free(stream);
	return CUDA_SUCCESS;
}

static CUresult fake_sync_stream(CUstream stream)
{
	FAIL_IF_TOLD(cuStreamSynchronize);
	return !stream || stream->captures ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static CUresult fake_begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
	(void)mode;
	FAIL_IF_TOLD(cuStreamBeginCapture);
	stream->graph = calloc(1, sizeof *stream->graph);
	if (!stream->graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->graph->last = &stream->graph->first;
	stream->captures = true;
	return CUDA_SUCCESS;
}

static CUresult fake_end_capture(CUstream stream, CUgraph *graph)
{
	*graph = stream->graph;
	stream->captures = false;
	return CUDA_SUCCESS;
}

/* Moves the tasks to the exec. */
static CUresult fake_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	struct CUgraph_st *copy = malloc(sizeof *copy);

	(void)flags;
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->first = graph->first;
	graph->first = NULL;
	*exec = (CUgraphExec)(void *)copy;
	return CUDA_SUCCESS;
}

static CUresult fake_launch_graph(CUgraphExec exec, CUstream stream)
{
	const struct CUgraph_st *graph = (const struct CUgraph_st *)(const void *)exec;
	CUresult result = CUDA_SUCCESS;

	FAIL_IF_TOLD(cuGraphLaunch);
	settle_kernels();
	for (const struct task *k = graph->first; k && !result; k = k->next)
		result = take_task(stream, k);
	return result;
}

static CUresult fake_destroy_graph(CUgraph graph)
{
	for (struct task *k = graph->first, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	free(graph);
	return CUDA_SUCCESS;
}

static CUresult fake_destroy_exec(CUgraphExec exec)
{
	return fake_destroy_graph((CUgraph)(void *)exec);
}

static CUresult fake_create_event(CUevent *event, unsigned flags)
{
	(void)flags;
	*event = malloc(1);
	return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_destroy_event(CUevent event)
{
	free(event);
	return CUDA_SUCCESS;
}

static CUresult fake_record_event(CUevent event, CUstream stream)
{
	return event && stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Does nothing: recorded work has already run. */
static CUresult fake_wait_event(CUstream stream, CUevent event, unsigned flags)
{
	FAIL_IF_TOLD(cuStreamWaitEvent);
	return stream && event && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fake_sync_event(CUevent event)
{
	return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fake_query_event(CUevent event)
{
	FAIL_IF_TOLD(cuEventQuery);
	if (is_to_fail("pending"))
		return CUDA_ERROR_NOT_READY;
	return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fake_get_memory(size_t *free_bytes, size_t *total)
{
	*total = get_environment_number("FAKE_CUDA_MEMORY", UINT64_C(1) << 30);
	*free_bytes = *total - used;
	return CUDA_SUCCESS;
}

/* Adds memory, filled with NaN. */
static void *add_memory(size_t bytes, bool host)
{
	struct block *b = malloc(sizeof *b);
	size_t size = (bytes + 255) / 256 * 256;

	if (!b)
		abort();
	*b = (struct block){ .data = aligned_alloc(256, size), .bytes = bytes, .host = host };
	if (!b->data)
		abort();
	memset(b->data, 0xff, size);
	pthread_mutex_lock(&lock);
	b->next = blocks;
	blocks = b;
	used += host ? 0 : bytes;
	pthread_mutex_unlock(&lock);
	return b->data;
}

static CUresult remove_memory(const void *p, bool host)
{
	struct block **at = &blocks, *b;

	pthread_mutex_lock(&lock);
	while (*at && ((*at)->data != p || (*at)->host != host))
		at = &(*at)->next;
	b = *at;
	if (b) {
		*at = b->next;
		used -= host ? 0 : b->bytes;
		free(b->data);
		free(b);
	}
	pthread_mutex_unlock(&lock);
	return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_alloc(CUdeviceptr *out, size_t bytes)
{
	size_t free_bytes, total;

	fake_get_memory(&free_bytes, &total);
	if (bytes > free_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUdeviceptr)(uintptr_t)add_memory(bytes, false);
	return CUDA_SUCCESS;
}

static CUresult fake_free(CUdeviceptr p)
{
	return remove_memory((const void *)(uintptr_t)p, false);
}

static CUresult fake_alloc_queued(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return !stream || stream->captures || is_to_fail("pools") ? CUDA_ERROR_NOT_SUPPORTED
	                                                          : fake_alloc(out, bytes);
}

static CUresult fake_free_queued(CUdeviceptr p, CUstream stream)
{
	return stream ? fake_free(p) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fake_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	FAIL_IF_TOLD(cuMemcpyAsync);
	if (!stream || stream->captures)
		return CUDA_ERROR_INVALID_HANDLE;
	memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
	settle_kernels();
	return CUDA_SUCCESS;
}

static CUresult fake_alloc_host(void **out, size_t bytes, unsigned flags)
{
	(void)flags;
	*out = add_memory(bytes, true);
	return CUDA_SUCCESS;
}

static CUresult fake_free_host(void *p)
{
	return remove_memory(p, true);
}

static const struct block *find_allocation(const char *p)
{
	const struct block *b = blocks;

	while (b && (p < b->data || p >= b->data + b->bytes))
		b = b->next;
	return b;
}

static enum emulated_memory judge_memory(const char *p, size_t bytes)
{
	const struct block *b = find_allocation(p);

	if (!b || p + bytes > b->data + b->bytes)
		return EMULATED_NO_MEMORY;
	return b->host ? EMULATED_HOST : EMULATED_DEVICE;
}

bool fake_cuda_has_bytes(const void *p, size_t bytes)
{
	bool has;

	pthread_mutex_lock(&lock);
	has = judge_memory(p, bytes) == EMULATED_DEVICE;
	pthread_mutex_unlock(&lock);
	return has;
}

/* Returns the type of device memory, and 0 for other memory. */
static CUresult fake_get_pointer(unsigned n, CUpointer_attribute *what, void **values,
                                 CUdeviceptr p)
{
	const struct block *b;

	if (n != 1 || *what != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	b = find_allocation((const char *)(uintptr_t)p);
	*(CUmemorytype *)values[0] = b && !b->host ? CU_MEMORYTYPE_DEVICE : 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* ---- cuBLASLt -------------------------------------------------------------------------------- */

static cublasStatus_t fake_open_blas(cublasLtHandle_t *handle)
{
	*handle = malloc(1);
	return is_to_fail("cublasLtCreate") ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t free_pointer(void *p)
{
	free(p);
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_close_blas(cublasLtHandle_t handle)
{
	return free_pointer(handle);
}

static cublasStatus_t fake_create_product(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                          cudaDataType_t scale)
{
	struct cublasLtMatmulDesc *d = calloc(1, sizeof *d);

	if (!d || scale != CUDA_R_32F)
		return CUBLAS_STATUS_INVALID_VALUE;
	d->compute = compute;
	*out = (cublasLtMatmulDesc_t)(void *)d;
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_destroy_product(cublasLtMatmulDesc_t d)
{
	return free_pointer(d);
}

static cublasStatus_t fake_set_product(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                       const void *value, size_t bytes)
{
	struct cublasLtMatmulDesc *p = (struct cublasLtMatmulDesc *)(void *)d;

	if ((what != CUBLASLT_MATMUL_DESC_TRANSA && what != CUBLASLT_MATMUL_DESC_TRANSB) ||
	    bytes != sizeof(cublasOperation_t))
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(what == CUBLASLT_MATMUL_DESC_TRANSA ? &p->turn_w : &p->turn_x, value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_create_wish(cublasLtMatmulPreference_t *out)
{
	*out = malloc(1);
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_destroy_wish(cublasLtMatmulPreference_t wish)
{
	return free_pointer(wish);
}

static cublasStatus_t fake_set_wish(cublasLtMatmulPreference_t wish,
                                    cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                    size_t bytes)
{
	(void)wish, (void)what, (void)value, (void)bytes;
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_create_layout(cublasLtMatrixLayout_t *out, cudaDataType type,
                                         uint64_t rows, uint64_t cols, int64_t ld)
{
	struct layout *l = malloc(sizeof *l);

	if (!l || ld < (int64_t)rows) {
		free(l);
		return CUBLAS_STATUS_INVALID_VALUE;
	}
	*l = (struct layout){ type, rows, cols, ld, 0, 1 };
	*out = (cublasLtMatrixLayout_t)(void *)l;
	return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_destroy_layout(cublasLtMatrixLayout_t l)
{
	return free_pointer(l);
}

static cublasStatus_t fake_set_layout(cublasLtMatrixLayout_t layout,
                                      cublasLtMatrixLayoutAttribute_t what, const void *value,
                                      size_t bytes)
{
	struct layout *l = (struct layout *)(void *)layout;

	if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof l->count)
		memcpy(&l->count, value, bytes);
	else if (what == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof l->step)
		memcpy(&l->step, value, bytes);
	else
		return CUBLAS_STATUS_INVALID_VALUE;
	return CUBLAS_STATUS_SUCCESS;
}

/*
 * Chooses an algorithm. FAKE_CUDA_FAILS=heuristic: none; batch: none for several products at once.
 */
static cublasStatus_t fake_choose(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                  cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                  cublasLtMatmulPreference_t wish, int wanted,
                                  cublasLtMatmulHeuristicResult_t *result, int *found)
{
	(void)handle, (void)product, (void)b, (void)c, (void)d, (void)wish;
	*found = wanted && !is_to_fail("heuristic") &&
	         (((struct layout *)(void *)a)->count == 1 || !is_to_fail("batch"));
	memset(result, 0, sizeof *result);
	return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Loads element (row, col) of a column-major matrix; TF32 keeps 10 bits of the fraction. */
static float load_matrix(const struct layout *l, const void *data, int32_t of, uint64_t row,
                         uint64_t col, bool tf32)
{
	int64_t at = (int64_t)row + (int64_t)col * l->ld + of * l->step;
	float x;

	if (l->type == CUDA_R_16BF)
		return tess_bf16_load(((const uint16_t *)data)[at]);
	x = ((const float *)data)[at];
	return tf32 ? tess_float((tess_bits(x) + 0x1000) & 0xffffe000u) : x;
}

static void run_one_product(const struct task *k, int32_t of)
{
	bool turn = k->product->turn_w == CUBLAS_OP_T, turn_x = k->product->turn_x == CUBLAS_OP_T,
	     tf32 = k->product->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	uint64_t depth = turn ? k->w->rows : k->w->cols;

	for (uint64_t col = 0; col < k->y->cols; col++) {
		for (uint64_t row = 0; row < k->y->rows; row++) {
			int64_t at = (int64_t)row + (int64_t)col * k->y->ld + of * k->y->step;
			float sum = 0;

			for (uint64_t i = 0; i < depth; i++)
				sum = fmaf(load_matrix(k->w, k->wp, of, turn ? i : row,
				                       turn ? row : i, tf32),
				           load_matrix(k->x, k->xp, of, turn_x ? col : i,
				                       turn_x ? i : col, tf32),
				           sum);
			if (k->beta != 0)
				sum += k->beta *
				       load_matrix(k->more, k->morep, of, row, col, false);
			if (k->y->type == CUDA_R_16BF)
				((uint16_t *)k->yp)[at] = tess_bf16_round(sum);
			else
				((float *)k->yp)[at] = sum;
		}
	}
}

static void run_product(const struct task *k)
{
	for (int32_t i = 0; i < k->y->count; i++)
		run_one_product(k, i);
}

static void run_task(const struct task *k)
{
	if (k->kernel)
		emulator_run(k->kernel->kernel, k->args, k->grid, k->block, k->cluster,
		             k->kernel->shared + k->shared);
	else
		run_product(k);
}

static cublasStatus_t fake_multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                    const void *alpha, const void *a, cublasLtMatrixLayout_t al,
                                    const void *b, cublasLtMatrixLayout_t bl, const void *beta,
                                    const void *c, cublasLtMatrixLayout_t cl, void *d,
                                    cublasLtMatrixLayout_t dl, const cublasLtMatmulAlgo_t *algo,
                                    void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
	struct task k = { .product = (struct cublasLtMatmulDesc *)(void *)product,
		          .w = (struct layout *)(void *)al,
		          .x = (struct layout *)(void *)bl,
		          .y = (struct layout *)(void *)dl,
		          .wp = a,
		          .xp = b,
		          .more = (struct layout *)(void *)cl,
		          .morep = c,
		          .yp = d,
		          .beta = *(const float *)beta };

	if (!handle || !algo || !workspace || !workspace_bytes || !c ||
	    *(const float *)alpha != 1 || k.more->type != k.y->type || k.more->rows != k.y->rows ||
	    k.more->cols != k.y->cols || (c == d && cl != dl) || k.w->count != k.y->count ||
	    k.x->count != k.y->count || is_to_fail("cublasLtMatmul"))
		return CUBLAS_STATUS_INVALID_VALUE;
	return take_task((CUstream)stream, &k) == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS
	                                                       : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* ---- the table ------------------------------------------------------------------------------- */

const char cuda_fatbin[] = "none: kernels are found by name";

static tess_status fill_fake_table(void)
{
	emulated_judge_memory = judge_memory;
	cuda = (struct cuda_table){
		.cuInit = fake_init,
		.cuDriverGetVersion = fake_get_version,
		.cuDeviceGetCount = fake_get_count,
		.cuDeviceGet = fake_get_device,
		.cuDeviceGetName = fake_get_name,
		.cuDeviceGetAttribute = fake_get_attribute,
		.cuDevicePrimaryCtxRetain = fake_retain_context,
		.cuDevicePrimaryCtxRelease = fake_release_context,
		.cuCtxSetCurrent = fake_set_context,
		.cuGetErrorName = fake_get_error_name,
		.cuGetErrorString = fake_get_error_string,
		.cuModuleLoadData = fake_load_module,
		.cuModuleUnload = fake_unload_module,
		.cuModuleGetFunction = fake_get_function,
		.cuFuncSetAttribute = fake_set_function,
		.cuLaunchKernelEx = fake_launch,
		.cuOccupancyMaxActiveClusters = fake_count_clusters,
		.cuStreamCreate = fake_create_stream,
		.cuStreamDestroy = fake_destroy_stream,
		.cuStreamSynchronize = fake_sync_stream,
		.cuStreamWaitEvent = fake_wait_event,
		.cuStreamBeginCapture = fake_begin_capture,
		.cuStreamEndCapture = fake_end_capture,
		.cuGraphInstantiate = fake_instantiate,
		.cuGraphLaunch = fake_launch_graph,
		.cuGraphDestroy = fake_destroy_graph,
		.cuGraphExecDestroy = fake_destroy_exec,
		.cuEventCreate = fake_create_event,
		.cuEventDestroy = fake_destroy_event,
		.cuEventRecord = fake_record_event,
		.cuEventSynchronize = fake_sync_event,
		.cuEventQuery = fake_query_event,
		.cuMemAlloc = fake_alloc,
		.cuMemFree = fake_free,
		.cuMemAllocAsync = fake_alloc_queued,
		.cuMemFreeAsync = fake_free_queued,
		.cuMemcpyAsync = fake_copy,
		.cuMemGetInfo = fake_get_memory,
		.cuMemHostAlloc = fake_alloc_host,
		.cuMemFreeHost = fake_free_host,
		.cuPointerGetAttributes = fake_get_pointer,
		.cublasLtCreate = fake_open_blas,
		.cublasLtDestroy = fake_close_blas,
		.cublasLtMatmul = fake_multiply,
		.cublasLtMatmulAlgoGetHeuristic = fake_choose,
		.cublasLtMatmulDescCreate = fake_create_product,
		.cublasLtMatmulDescDestroy = fake_destroy_product,
		.cublasLtMatmulDescSetAttribute = fake_set_product,
		.cublasLtMatmulPreferenceCreate = fake_create_wish,
		.cublasLtMatmulPreferenceDestroy = fake_destroy_wish,
		.cublasLtMatmulPreferenceSetAttribute = fake_set_wish,
		.cublasLtMatrixLayoutCreate = fake_create_layout,
		.cublasLtMatrixLayoutSetAttribute = fake_set_layout,
		.cublasLtMatrixLayoutDestroy = fake_destroy_layout,
	};
	fake_dnn_fill_table();
	return TESS_OK;
}

static tess_status find_fake_blas(void)
{
	return TESS_OK;
}

static tess_status find_fake_dnn(void)
{
	return is_to_fail("dnn") ? TESS_ENOTSUP : TESS_OK;
}

const struct cuda_loader cuda_loader = { fill_fake_table, find_fake_blas, find_fake_dnn };
