/*
 * cpu.h - what the files of the CPU device share.
 *
 * An op is checked (check.c), its sums become a list of steps (sum.c), and the kernels run it.
 * Files with kernels are compiled once for each instruction set: CPU_ISA is scalar, avx2 or avx512,
 * CPU_NAME gives their functions a name of their own, and kernels.c lists them. Same source, same
 * operations in the same order for every output: same bits.
 */
#ifndef TESS_CPU_H
#define TESS_CPU_H

#include <stdbool.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/reduce.h>

#include "pool.h"
#include "sum.h"

#define CPU_PASTE(a, b) a##_##b
#define CPU_EXPAND(a, b) CPU_PASTE(a, b)
#define CPU_NAME(name) CPU_EXPAND(name, CPU_ISA)

/* Before a loop whose iterations do not depend on each other, even where it works in place. */
#if defined(__clang__)
#define CPU_LANES _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CPU_LANES _Pragma("GCC ivdep")
#else
#define CPU_LANES
#endif

enum { LANES = 16 }; /* columns of a panel */
enum { KEYS = 64, KEY_UNITS = 1 << 25 }; /* a unit of keys, and how many units */

struct cpu;
typedef tess_status cpu_run(struct cpu *cpu, const struct tess_op *op);

struct cpu_kernels {
	const char *name;
	cpu_run *linear, *embed, *norm, *bias, *rope, *attention, *glu, *add, *copy;
	pool_fn *pack; /* over panels, of a struct pack */
};

struct pack {
	const struct tess_view *rows, *panels;
};

/* An opened device. One thread at a time calls it; what it keeps grows and never shrinks. */
struct cpu {
	const struct cpu_kernels *kernels;
	struct pool *pool;
	int32_t nthreads;
	struct sum sum; /* of the op that runs */
	struct {
		void *data;
		size_t bytes;
	} shared_scratch, thread_scratch;
	size_t thread_scratch_bytes;
};

extern const struct tess_host *cpu_host;

/* Scratch memory for all threads together, 64-byte aligned; valid until the next call. */
tess_status cpu_get_shared_scratch(struct cpu *cpu, size_t bytes, void **out);
/* `bytes` for each thread; thread i's are at cpu_get_thread_scratch(cpu, i). */
tess_status cpu_grow_thread_scratch(struct cpu *cpu, size_t bytes);
static inline void *cpu_get_thread_scratch(const struct cpu *cpu, int32_t thread)
{
	return (char *)cpu->thread_scratch.data + cpu->thread_scratch_bytes * (size_t)thread;
}

/* The steps of op's sums become cpu->sum; see sum.h. */
tess_status cpu_plan_sum(struct cpu *cpu, const struct tess_op *op, bool partial, int64_t step_max);

/* Whether the device runs `op`: all of its shapes, strides, types and sums. */
tess_status cpu_check(const struct tess_op *op);
/* Whether `rows` can be made into panels. */
tess_status cpu_check_rows(const struct tess_view *rows);

static inline float f16_widen(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff, bits;
	float f;

	if (rest < 0x400) { /* zero and subnormal: exact */
		f = (float)rest * 0x1p-24f;
		memcpy(&bits, &f, sizeof bits);
	} else {
		bits = (rest << 13) + (rest < 0x7c00 ? 112u << 23 : 224u << 23);
		if (rest > 0x7c00)
			bits |= 1u << 22; /* quiet, as the processor makes a NaN */
	}
	bits |= sign;
	memcpy(&f, &bits, sizeof f);
	return f;
}

/* Element `at` of weights of any type, which may lie at any address. */
static inline float load_weight_element(const void *data, int32_t dtype, int64_t at)
{
	uint16_t h;
	float f;

	if (dtype == TESS_F32) {
		memcpy(&f, (const char *)data + at * 4, sizeof f);
		return f;
	}
	memcpy(&h, (const char *)data + at * 2, sizeof h);
	return dtype == TESS_BF16 ? tess_bf16_load(h) : f16_widen(h);
}

/* Row `t` of activations. */
static inline float *get_row(const struct tess_view *v, int64_t t)
{
	return (float *)v->data + t * v->stride[0];
}

/* Whether the out has one axis more than what is finished. */
static inline bool is_partial(const struct tess_op *op, int32_t ndim)
{
	return op->out[0].ndim > ndim;
}

#endif
