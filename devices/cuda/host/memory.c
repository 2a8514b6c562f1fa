/* memory.c - memory of a GPU: allocations of its stream-ordered pool, copies, scratch memory. */
#include "gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STAGED_MIN = 1 << 16 }; /* the driver stages smaller copies itself, without waiting */
enum { SHARED_MIN = 8 << 20, RECEIVE_AHEAD = 3 }; /* bytes that threads share; chunks */

tess_status memory_get_free_bytes(void *self, uint64_t *out)
{
	struct gpu *g = self;
	size_t free_bytes = 0, total = 0;
	tess_status st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);

	if (!st)
		st = CUDA_CALL(NULL, cuMemGetInfo, &free_bytes, &total);
	if (!st)
		*out = free_bytes;
	return st;
}

static tess_status fail_allocation(uint64_t bytes, CUresult why)
{
	size_t free_bytes = 0, total = 0;

	if (why != CUDA_ERROR_OUT_OF_MEMORY ||
	    cuda.cuMemGetInfo(&free_bytes, &total) != CUDA_SUCCESS)
		return cuda_fail_call(NULL, "cuMemAlloc", why);
	return cuda_host->fail(TESS_ENOMEM,
	                       "cuda: no room for %llu MiB: %llu of %llu MiB of the GPU are free; "
	                       "use more GPUs (-n), or less: --kv-memory, --batch",
	                       (unsigned long long)tess_up((int64_t)bytes, 1 << 20),
	                       (unsigned long long)(free_bytes >> 20),
	                       (unsigned long long)(total >> 20));
}

/* Allocates memory, and waits for it, so that any stream may use it at once. */
tess_status memory_alloc(void *self, uint64_t bytes, void **out)
{
	struct gpu *g = self;
	CUdeviceptr p = 0;
	tess_status st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);
	CUresult result;

	if (st)
		return st;
	bytes = bytes ? bytes : 1;
	result =
		g->memory ? cuda.cuMemAllocAsync(&p, bytes, g->memory) : cuda.cuMemAlloc(&p, bytes);
	if (result != CUDA_SUCCESS)
		return fail_allocation(bytes, result);
	if (g->memory)
		st = CUDA_CALL(NULL, cuStreamSynchronize, g->memory);
	if (!st)
		*out = (void *)(uintptr_t)p;
	return st;
}

/*
 * Waits for the streams of this rank only: work of another rank in the process may wait for this
 * rank.
 */
void memory_sync_streams(struct gpu *g)
{
	cuda.cuCtxSetCurrent(g->context);
	for (int i = 0; i < STREAMS_MAX; i++)
		if (g->streams[i])
			cuda.cuStreamSynchronize(g->streams[i]);
}

void memory_free(void *self, void *p)
{
	struct gpu *g = self;

	if (!p)
		return;
	memory_sync_streams(g);
	if (!g->memory) {
		cuda.cuMemFree((CUdeviceptr)(uintptr_t)p);
		return;
	}
	cuda.cuMemFreeAsync((CUdeviceptr)(uintptr_t)p, g->memory);
	cuda.cuStreamSynchronize(g->memory);
}

/* Allocates page-locked host memory: copies of it do not pass through stages. */
tess_status memory_alloc_host(void *self, uint64_t bytes, void **out)
{
	struct gpu *g = self;
	tess_status st = CUDA_CALL(NULL, cuCtxSetCurrent, g->context);
	CUresult result;

	if (st)
		return st;
	result = cuda.cuMemHostAlloc(out, bytes ? bytes : 1, CU_MEMHOSTALLOC_PORTABLE);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return cuda_host->fail(TESS_ENOMEM,
		                       "cuda: the driver locks no %llu MiB of host memory; use "
		                       "more hosts, or offload less",
		                       (unsigned long long)tess_up((int64_t)bytes, 1 << 20));
	return cuda_check_call(NULL, "cuMemHostAlloc", result);
}

void memory_free_host(void *self, void *p)
{
	struct gpu *g = self;

	cuda.cuCtxSetCurrent(g->context);
	if (p)
		cuda.cuMemFreeHost(p);
}

tess_status memory_get_scratch(struct gpu *g, uint64_t bytes, void **out)
{
	struct scratch *s = g->scratch;
	tess_status st;

	if (s && s->bytes >= bytes) {
		*out = s->data;
		return TESS_OK;
	}
	if (g->capturing)
		return cuda_host->fail(TESS_EBUG,
		                       "%s: cuda: an op of a graph needs %llu bytes of scratch "
		                       "memory: run it once before it is captured",
		                       g->where, (unsigned long long)bytes);
	bytes = s && bytes < 2 * s->bytes ? 2 * s->bytes : bytes;
	s = calloc(1, sizeof *s);
	st = s ? memory_alloc(g, bytes, &s->data) : cuda_host->fail(TESS_ENOMEM, "out of memory");
	if (st) {
		free(s);
		return st;
	}
	s->bytes = bytes;
	s->next = g->scratch; /* graphs use the old ones */
	g->scratch = s;
	*out = s->data;
	return TESS_OK;
}

void memory_close(struct gpu *g)
{
	struct scratch *s;

	while ((s = g->scratch)) {
		g->scratch = s->next;
		memory_free(g, s->data);
		free(s);
	}
	for (int i = 0; i < STAGES; i++) {
		if (g->stage[i].done)
			cuda.cuEventDestroy(g->stage[i].done);
		if (g->stage[i].host)
			cuda.cuMemFreeHost(g->stage[i].host);
	}
}

tess_status memory_alloc_zeros(struct gpu *g, const struct tess_op *op, uint64_t bytes, void **out)
{
	void *zeros, *memory = NULL;
	tess_status st;

	if (g->capturing)
		return cuda_host->fail(TESS_EBUG,
		                       "%s: cuda: an op of a graph needs memory: run it once "
		                       "before it is captured",
		                       op->where);
	zeros = calloc(1, bytes);
	st = zeros ? memory_alloc(g, bytes, &memory)
	           : cuda_host->fail(TESS_ENOMEM, "%s: cuda: out of memory", op->where);
	if (!st)
		st = memory_copy(g, memory, zeros, bytes, op->stream);
	if (!st) /* ops of any stream may use it */
		st = CUDA_CALL(op->where, cuStreamSynchronize, op->stream);
	free(zeros);
	if (st)
		memory_free(g, memory);
	else
		*out = memory;
	return st;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static tess_status open_stages(struct gpu *g)
{
	tess_status st = TESS_OK;

	for (int i = 0; i < STAGES && !st; i++) {
		struct stage *s = &g->stage[i];

		if (!s->host)
			st = CUDA_CALL(NULL, cuMemHostAlloc, &s->host, STAGE_BYTES, 0);
		if (!st && !s->done)
			st = CUDA_CALL(NULL, cuEventCreate, &s->done, CU_EVENT_DISABLE_TIMING);
	}
	return st;
}

/*
 * Returns whether memory is pageable: the driver has not allocated it, and its copies would not
 * overlap.
 */
static bool is_pageable(const void *p)
{
	CUpointer_attribute what = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	CUmemorytype type = 0;
	void *values[] = { &type };

	/* a query of a single attribute would fail, which debugging tools report */
	return cuda.cuPointerGetAttributes(1, &what, values, (CUdeviceptr)(uintptr_t)p) !=
	               CUDA_SUCCESS ||
	       !type;
}

static uint64_t get_chunk(uint64_t bytes, uint64_t i)
{
	uint64_t left = bytes - i * STAGE_BYTES;

	return left < STAGE_BYTES ? left : STAGE_BYTES;
}

static tess_status queue_memcpy(struct gpu *g, void *dst, const void *src, uint64_t bytes,
                                const struct stage *s, CUstream stream)
{
	tess_status st = CUDA_CALL(g->where, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)dst,
	                           (CUdeviceptr)(uintptr_t)src, bytes, stream);

	return st || !s ? st : CUDA_CALL(g->where, cuEventRecord, s->done, stream);
}

struct share { /* share of a copy: chunks first, first + step, .. */
	struct gpu *g;
	char *dst;
	const char *src;
	uint64_t bytes, first, step;
	CUstream stream;
	CUresult result; /* result of `call` */
	const char *call;
	pthread_t thread;
	bool started;
};

/* Copies chunks to stages while the previous chunks are sent to the GPU. */
static void *send_share(void *arg)
{
	struct share *c = arg;

	c->call = "cuCtxSetCurrent";
	c->result = cuda.cuCtxSetCurrent(c->g->context);
	for (uint64_t i = c->first; i * STAGE_BYTES < c->bytes && !c->result; i += c->step) {
		struct stage *s = &c->g->stage[i % STAGES];
		uint64_t at = i * STAGE_BYTES, n = get_chunk(c->bytes, i);

		c->call = "cuEventSynchronize";
		c->result = cuda.cuEventSynchronize(s->done);
		if (c->result)
			break;
		memcpy(s->host, c->src + at, n);
		c->call = "cuMemcpyAsync";
		c->result = cuda.cuMemcpyAsync((CUdeviceptr)(uintptr_t)(c->dst + at),
		                               (CUdeviceptr)(uintptr_t)s->host, n, c->stream);
		if (c->result)
			break;
		c->call = "cuEventRecord";
		c->result = cuda.cuEventRecord(s->done, c->stream);
	}
	return NULL;
}

/*
 * Sends chunks. Threads share large copies: one reads a file's pages slower than the GPU accepts
 * them.
 */
static tess_status send_chunks(struct gpu *g, char *dst, const char *src, uint64_t bytes,
                               CUstream stream)
{
	int32_t n = bytes < SHARED_MIN ? 1 : g->copiers;
	struct share share[COPIERS_MAX];
	tess_status st = TESS_OK;

	for (int32_t i = n - 1; i >= 0; i--) {
		struct share *c = &share[i];

		*c = (struct share){ .g = g,
			             .dst = dst,
			             .src = src,
			             .bytes = bytes,
			             .first = (uint64_t)i,
			             .step = (uint64_t)n,
			             .stream = stream };
		c->started = i && !pthread_create(&c->thread, NULL, send_share, c);
		if (!c->started)
			send_share(c);
	}
	for (int32_t i = 0; i < n; i++) {
		if (share[i].started)
			pthread_join(share[i].thread, NULL);
		if (!st)
			st = cuda_check_call(g->where, share[i].call, share[i].result);
	}
	return st;
}

/*
 * Receives chunks; the next ones arrive while one is copied from its stage. Waits first for copies
 * on other streams that may still read the stage.
 */
static tess_status receive_chunks(struct gpu *g, char *dst, const char *src, uint64_t bytes,
                                  CUstream stream)
{
	uint64_t n = (bytes + STAGE_BYTES - 1) / STAGE_BYTES, ahead = RECEIVE_AHEAD;
	tess_status st = TESS_OK;

	for (uint64_t i = 0; i < n + ahead && !st; i++) {
		if (i < n)
			st = CUDA_CALL(g->where, cuEventSynchronize, g->stage[i % STAGES].done);
		if (!st && i < n)
			st = queue_memcpy(g, g->stage[i % STAGES].host, src + i * STAGE_BYTES,
			                  get_chunk(bytes, i), &g->stage[i % STAGES], stream);
		if (st || i < ahead)
			continue;
		st = CUDA_CALL(g->where, cuEventSynchronize, g->stage[(i - ahead) % STAGES].done);
		if (!st)
			memcpy(dst + (i - ahead) * STAGE_BYTES, g->stage[(i - ahead) % STAGES].host,
			       get_chunk(bytes, i - ahead));
	}
	return st;
}

tess_status memory_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream)
{
	struct gpu *g = self;
	bool send, receive;
	tess_status st = CUDA_CALL(g->where, cuCtxSetCurrent, g->context);

	if (st || !bytes)
		return st;
	if (bytes < STAGED_MIN || g->capturing)
		return queue_memcpy(g, dst, src, bytes, NULL, stream);
	send = is_pageable(src);
	receive = is_pageable(dst);
	if (send == receive)
		return queue_memcpy(g, dst, src, bytes, NULL, stream);
	st = open_stages(g);
	if (st)
		return st;
	return send ? send_chunks(g, dst, src, bytes, stream)
	            : receive_chunks(g, dst, src, bytes, stream);
}
