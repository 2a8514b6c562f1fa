/*
 * emulator.h - runs the kernels of devices/cuda on the CPU, as C: a block at a time, its threads as
 * coroutines that meet at barriers. It shows indices, barriers and arithmetic, not the memory model
 * or the speed of a GPU.
 */
#ifndef TESS_TESTS_GPU_EMULATOR_H
#define TESS_TESTS_GPU_EMULATOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tessera/reduce.h>

struct emulated_index {
	unsigned x, y, z;
};
extern struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
extern float emulated_shared[]; /* of the running block */

typedef void emulated_kernel(const void *args);
/* Runs all blocks of a kernel, with `shared` bytes of memory each. One call at a time. */
void emulator_run(emulated_kernel *kernel, const void *args, struct emulated_index grid,
                  struct emulated_index block, unsigned shared);
void emulator_sync_block(void);
void emulator_sync_warp(void);
float emulator_shuffle_xor(float x, int mask);

#ifdef EMULATED_KERNELS /* port.h */
#define DEVICE static inline
#define MATHF static inline
#define KERNEL(threads, name, args) static void name(struct args a)
#define SHARED static
#define DYNAMIC_SHARED(name) float *name = emulated_shared
#define UNROLL
#define UNROLL_BY(n)
#define shuffle_xor emulator_shuffle_xor
#define sync_block emulator_sync_block
#define sync_warp emulator_sync_warp
#define unpack_float tess_float
#define pack_float tess_bits
#define widen_f16 tess_f16_load

struct quad {
	uint32_t at[4];
};

/* As on a GPU, 16 bytes at an address of 16. */
static inline struct quad emulator_load_quad(const void *p)
{
	return *(const struct quad *)__builtin_assume_aligned(p, 16);
}
#define load_quad emulator_load_quad
#define load_stream emulator_load_quad
#endif

#endif
