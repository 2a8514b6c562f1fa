/*
 * cpu.h - shared by the files of the CPU device.
 *
 * sum.c turns the sums of an op into a list of steps, which the kernels run. Files with kernels are
 * compiled once per instruction set: CPU_ISA is scalar, avx2, avx512 or neon, CPU_NAME makes names
 * unique, and kernels.c lists them. The operations of every output and their order are equal in
 * all, so the bits do not depend on the instruction set.
 */
#ifndef TESS_DEVICES_CPU_CPU_H
#define TESS_DEVICES_CPU_CPU_H

#include <stdbool.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/reduce.h>

#include "pool.h"
#include "sum.h"

#define CPU_PASTE(a, b) a##_##b
#define CPU_EXPAND(a, b) CPU_PASTE(a, b)
#define CPU_NAME(name) CPU_EXPAND(name, CPU_ISA)

/* Before a loop whose iterations are independent, even if it works in place. */
#if defined(__clang__)
#define CPU_LANES _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CPU_LANES _Pragma("GCC ivdep")
#else
#define CPU_LANES
#endif

enum { LANES = 16 }; /* columns of a panel */
enum { KEYS = 64, KEY_UNITS = 1 << 25 }; /* keys of a unit, and units of the tree */

struct cpu;
struct pair_tiles;
typedef tess_status cpu_run(struct cpu *cpu, const struct tess_op *op);

struct cpu_kernels {
	cpu_run *run[TESS_OP_KINDS];
	pool_fn *pack, *quantize, *pack_bf12, *pack_mxfp4; /* over panels; arg: struct pack */
	const struct pair_tiles *pairs;
};

struct pack {
	const struct tess_view *rows, *panels;
	bool *refused; /* by panel: it has values that its dtype cannot store */
};

/* An opened device, called by one thread at a time. Its memory grows and never shrinks. */
struct cpu {
	const struct cpu_kernels *kernels;
	const struct pair_tiles *pairs; /* for products of bf16 */
	struct pool *pool;
	int32_t nthreads;
	struct sum_plans plans;
	const struct sum *sum; /* the current op's */
	struct {
		void *data;
		size_t bytes;
	} shared_scratch, row_scratch, thread_scratch;
	size_t thread_scratch_bytes;
};

extern const struct tess_host *cpu_host;

/* Returns the tiles of products of bf16 if number `at` of op requests them, else NULL. */
static inline const struct pair_tiles *cpu_find_pairs(const struct cpu *cpu,
                                                      const struct tess_op *op, int32_t at)
{
	return op->nnum > at && op->num[at] == TESS_BF16 ? cpu->pairs : NULL;
}

/* Returns scratch memory shared by all threads, 64-byte aligned, valid until the next call. */
tess_status cpu_get_shared_scratch(struct cpu *cpu, size_t bytes, void **out);
/* Returns shared scratch memory that no op inside another op uses. */
tess_status cpu_get_row_scratch(struct cpu *cpu, size_t bytes, void **out);
/* Provides `bytes` for each thread; thread i's are at cpu_get_thread_scratch(cpu, i). */
tess_status cpu_grow_thread_scratch(struct cpu *cpu, size_t bytes);
static inline void *cpu_get_thread_scratch(const struct cpu *cpu, int32_t thread)
{
	return (char *)cpu->thread_scratch.data + cpu->thread_scratch_bytes * (size_t)thread;
}

/* Sets cpu->sum to the steps of op's sums (sum.h). */
tess_status cpu_plan_sum(struct cpu *cpu, const struct tess_op *op, bool partial, int64_t step_max);
/* Sets cpu->sum to the steps of a sum over tokens, of op's trees from `tree` on. */
tess_status cpu_plan_tokens(struct cpu *cpu, const struct tess_op *op, int32_t tree,
                            int64_t step_max);
/* Sets *sum to the steps of one tree, by itself. */
tess_status cpu_plan_tree(struct cpu *cpu, const struct tess_op *op, int32_t tree, bool partial,
                          int64_t step_max, const struct sum **sum);

/* Returns element `at` of weights of any type, at any address. */
static inline float load_weight_element(const void *data, int32_t dtype, int64_t at)
{
	uint16_t h;
	float f;

	if (dtype == TESS_F32) {
		memcpy(&f, (const char *)data + at * 4, sizeof f);
		return f;
	}
	memcpy(&h, (const char *)data + at * 2, sizeof h);
	return dtype == TESS_BF16 ? tess_bf16_load(h) : tess_f16_load(h);
}

/* Returns the bytes of an element; strides of compressed weights are bytes. */
static inline int64_t get_weight_width(int32_t dtype)
{
	return dtype >= TESS_Q8 ? 1 : (int64_t)tess_width(dtype);
}

enum { BF12_BLOCK = 8, BF12_BLOCK_BYTES = 192 }; /* a block of TESS_BF12: elements of K, bytes */

/* Returns the bytes from the start of a panel of k elements to its blocks. */
static inline int64_t bf12_get_offset(int64_t k)
{
	return 64 + 64 * tess_up(k, 256);
}

/* Returns matrix `i` of a stack. */
static inline struct tess_view get_matrix(const struct tess_view *w, int64_t i)
{
	return (struct tess_view){
		.data = (char *)w->data + i * w->stride[0] * get_weight_width(w->dtype),
		.dtype = w->dtype,
		.ndim = w->ndim - 1,
		.layout = w->layout,
		.shape = { w->shape[1], w->shape[2] },
		.stride = { w->stride[1], w->stride[2] },
	};
}

/* Returns x, g and d of the LINEAR_DW of head h in a HEAD_LINEAR_DW. */
static inline void get_head_sum(const struct tess_op *op, int64_t h, struct tess_view v[3])
{
	const struct tess_view *d = &op->out[0];
	int32_t axis = d->ndim - 3; /* the axis of heads */

	v[0] = op->in[0];
	v[1] = op->in[1];
	v[2] = *d;
	v[2].ndim--;
	for (int32_t i = axis; i < v[2].ndim; i++) {
		v[2].shape[i] = d->shape[i + 1];
		v[2].stride[i] = d->stride[i + 1];
	}
	for (int32_t i = 0; i < 2; i++) {
		if (v[i].data)
			v[i].data = (float *)v[i].data + h * (v[i].shape[1] / d->shape[axis]);
		v[i].shape[1] = d->shape[axis + 2 - i];
	}
	if (d->data)
		v[2].data = (float *)d->data + h * d->stride[axis];
}

/* Returns row `t` of activations. */
static inline float *get_row(const struct tess_view *v, int64_t t)
{
	return (float *)v->data + t * v->stride[0];
}

/* Returns whether the output is a Partial: it has one more axis than a finished one. */
static inline bool is_partial(const struct tess_op *op, int32_t ndim)
{
	return op->out[0].ndim > ndim;
}

#endif
