/*
 * gpu.h - shared by the host files of the CUDA device.
 *
 * table.c finds the driver and cuBLASLt, cuda.c is the plugin, memory.c copies, ops.c, attention.c
 * and experts.c launch the kernels of an op, product.c and blas.c multiply matrices.
 */
#ifndef TESS_DEVICES_CUDA_GPU_H
#define TESS_DEVICES_CUDA_GPU_H

#include "kernels.h"
#include "table.h"

#include <stdbool.h>
#include <tessera/device.h>
#include <tessera/reduce.h>

enum { STREAMS_MAX = 8, STAGES = 4, STAGE_BYTES = 1 << 20, WHERE = 128, POINTS = 2 };
enum { MATH_AUTO, MATH_F32, MATH_TF32 }; /* TESSERA_CUDA_MATH */

struct stage { /* pinned host memory that a copy goes through */
	void *host;
	CUevent done;
};

struct scratch { /* device memory that ops share; larger blocks go in front, and all are kept */
	struct scratch *next;
	void *data;
	uint64_t bytes;
};

struct blas;

/* An opened GPU of one rank, which makes one call at a time. Its ops are all on one stream. */
struct gpu {
	CUdevice device;
	CUcontext context; /* the device's primary one, which NCCL uses, too */
	CUmodule module;
	CUfunction kernel[KERNELS];
	int32_t processors,
		shared_max; /* multiprocessors; bytes of shared memory a block can have */
	int32_t math;
	bool sync_ops; /* TESSERA_CUDA_SYNC */
	CUstream memory; /* of allocations */
	CUstream streams[STREAMS_MAX]; /* that are open, or NULL */
	bool capturing;
	CUevent point[POINTS]; /* of mark; NULL: not used yet */
	struct stage stage[STAGES];
	struct scratch *scratch;
	struct blas *blas;
	int32_t *fault; /* in host memory that kernels write */
	char where[WHERE]; /* the module of the last op, for what fails later */
	int32_t kind; /* of that op */
};

extern const struct tess_host *cuda_host;

/* The sentence of a failed call: WHERE: cuda: CALL: why. `where` may be NULL. */
tess_status cuda_fail_call(const char *where, const char *call, CUresult why);
static inline tess_status cuda_check_call(const char *where, const char *call, CUresult why)
{
	return why == CUDA_SUCCESS ? TESS_OK : cuda_fail_call(where, call, why);
}
#define CUDA_CALL(where, call, ...) cuda_check_call(where, #call, cuda.call(__VA_ARGS__))

/* table.c: fills the parts of `cuda`, once; TESS_ENOTSUP: they are not here. */
extern const struct cuda_loader {
	tess_status (*load_driver)(void), (*load_blas)(void);
} cuda_loader;

/* ---- memory.c */
tess_status memory_alloc(void *self, uint64_t bytes, void **out);
void memory_free(void *self, void *p);
/* Waits for all that was queued: nothing uses memory or a graph any more. */
void memory_sync_streams(struct gpu *g);
tess_status memory_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream);
tess_status memory_get_free_bytes(void *self, uint64_t *out);
/* At least so many bytes that the next op may use, too. Not while a graph is captured. */
tess_status memory_get_scratch(struct gpu *g, uint64_t bytes, void **out);
void memory_close(struct gpu *g);

/* ---- ops.c, attention.c, product.c, experts.c */
tess_status op_check(const struct tess_op *op);
tess_status op_run(void *self, const struct tess_op *op);
struct launch { /* a value */
	int32_t kernel;
	int64_t blocks[3]; /* x any number, y and z at most 65535 */
	int32_t threads, shared; /* shared: bytes */
	const void *args;
};
tess_status op_launch(struct gpu *g, const struct tess_op *op, struct launch l);
tess_status op_run_attention(struct gpu *g, const struct tess_op *op);
tess_status op_run_linear(struct gpu *g, const struct tess_op *op);
tess_status op_run_head_linear(struct gpu *g, const struct tess_op *op);
tess_status op_run_route(struct gpu *g, const struct tess_op *op);
tess_status op_run_experts(struct gpu *g, const struct tess_op *op);
tess_status op_run_combine(struct gpu *g, const struct tess_op *op);
/* What the device lacks for a valid ROUTE or EXPERTS; NULL: nothing. */
const char *op_find_experts_limit(const struct tess_op *op);

/* ---- blas.c */
struct product { /* y [rows, columns] = x [rows, k] w', or is added to y */
	const void *x, *w;
	float *y;
	int64_t rows, columns, k, x_pitch, y_pitch;
	int64_t w_stride[2]; /* of a column of y, and of k: one of them is 1 */
	int32_t dtype; /* of x and w: TESS_F32 or TESS_BF16 */
	bool tf32, accumulate;
};
/* TESS_ENOTSUP, without a sentence: cuBLASLt has nothing for it. */
tess_status blas_multiply(struct gpu *g, const struct tess_op *op, const struct product *p);
void blas_close(struct gpu *g);

/* devices/cpu/check.c, compiled for this device */
extern const struct tess_host *cpu_host;
tess_status cpu_check(const struct tess_op *op);

/* Whether 16 bytes of each row can be read at once. */
static inline bool is_row_aligned(const void *p, int64_t pitch, int64_t width)
{
	return (uintptr_t)p % 16 == 0 && pitch * width % 16 == 0;
}

/* Row t of activations. */
static inline float *get_gpu_row(const struct tess_view *v, int64_t t)
{
	return (float *)v->data + t * v->stride[v->ndim - 2];
}

#endif
