/*
 * emulator.h - runs the kernels of devices/cuda on the CPU, as C: a block or a cluster of them at a
 * time, its threads as coroutines that synchronize at barriers. It emulates indices, barriers,
 * waits for copies and arithmetic, not the memory model or the speed of a GPU.
 */
#ifndef TESS_TESTS_GPU_EMULATOR_H
#define TESS_TESTS_GPU_EMULATOR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tessera/reduce.h>

struct emulated_index {
	unsigned x, y, z;
};
extern struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
enum { EMULATED_SHARED_MAX = 227 << 10, EMULATED_CLUSTER_MAX = 8 };
/* Shared memory of the blocks of a cluster, and of the running one. */
extern float emulated_cluster[EMULATED_CLUSTER_MAX][EMULATED_SHARED_MAX / sizeof(float)];
extern float *emulated_shared;
extern unsigned emulated_shared_bytes; /* size of the above */
extern unsigned emulated_block; /* index of the running block or cluster, from 1 on */
__attribute__((
	visibility("default"))) extern unsigned emulated_launch; /* launch index, for tests, too */
extern unsigned emulated_settled; /* the last launch before a copy or a graph, which wait for it */

enum emulated_memory { EMULATED_NO_MEMORY, EMULATED_DEVICE, EMULATED_HOST };
/* Returns the kind of the allocation that contains all bytes; set by the allocator (ptx.h). */
extern enum emulated_memory (*emulated_judge_memory)(const char *p, size_t bytes);

typedef void emulated_kernel(const void *args);
/*
 * Runs all blocks of a kernel, with `shared` bytes of memory each; `cluster` adjacent ones in y at
 * once. One call at a time.
 */
void emulator_run(emulated_kernel *kernel, const void *args, struct emulated_index grid,
                  struct emulated_index block, unsigned cluster, unsigned shared);
void emulator_sync_block(void);
void emulator_sync_cluster(void);
/* Returns the shared memory of a block of the cluster; NULL if it has ended, or is none. */
float *emulator_find_peer(unsigned rank);
/* Returns the rank of the running block. */
unsigned emulator_get_rank(void);
void emulator_sync_warp(void);
float emulator_shuffle_xor(float x, int mask);
/* Emulates cp.async of 16 bytes, or of zeros (bytes 0). */
void emulator_copy_async(void *to, const void *from, int bytes);
void emulator_commit_copies(void);
void emulator_wait_copies(int n);
/* Emulate ldmatrix.x4.trans, ldmatrix.x4 and mma.m16n8k16 of a warp. */
void emulator_load_matrices(const void *row, uint32_t *out);
void emulator_load_straight_matrices(const void *row, uint32_t *out);
void emulator_multiply_matrices(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
/*
 * Emulates the share of a warp in wgmma.m64n64k16: c [8][4] += a * b, or without `add` c = a * b.
 */
void emulator_multiply_group(float *c, const uint32_t *a, uint64_t b, int add);
/* Returns the place in shared memory of the 16 bytes `chunk` of row 0 to 15 of a descriptor. */
const char *emulator_find_chunk(uint64_t b, unsigned row, unsigned chunk);

#ifdef EMULATED_KERNELS /* port.h */
#define DEVICE static inline
#define MATHF static inline
#define KERNEL(threads, name, args) static void name(struct args a)
#define KERNEL_EARLY(threads, blocks, name, args) KERNEL(threads, name, args)
#define wait_for_kernels() (void)0
#define prefetch_line emulator_prefetch_line
#define SHARED static
#define DYNAMIC_SHARED(name) float *name = emulated_shared
#define SWIZZLED_SHARED DYNAMIC_SHARED
#define UNROLL
#define UNROLL_BY(n)
#define shuffle_xor emulator_shuffle_xor
#define sync_block emulator_sync_block
#define sync_cluster emulator_sync_cluster
#define sync_warp emulator_sync_warp
#define unpack_float tess_float
#define pack_float tess_bits
#define widen_f16 tess_f16_load
#define round_f16 tess_f16_round

struct quad {
	uint32_t at[4];
};

/* Loads 16 bytes; traps like a GPU if they are misaligned. */
static inline struct quad emulator_load_quad(const void *p)
{
	return *(const struct quad *)__builtin_assume_aligned(p, 16);
}
static inline struct quad emulator_load_half(const void *p)
{
	struct quad v = { { 0 } };

	memcpy(v.at, __builtin_assume_aligned(p, 8), 8);
	return v;
}
static inline void emulator_store_quad(void *p, struct quad v)
{
	*(struct quad *)__builtin_assume_aligned(p, 16) = v;
}
static inline void emulator_store_pair(void *p, uint32_t first, uint32_t second)
{
	memcpy(__builtin_assume_aligned(p, 8), (uint32_t[]){ first, second }, 8);
}
static inline struct quad emulator_load_peer(const void *p, int rank)
{
	const char *peer = (const char *)emulator_find_peer((unsigned)rank);

	return emulator_load_quad(peer + ((const char *)p - (const char *)emulated_shared));
}
#define load_quad emulator_load_quad
#define load_peer_quad emulator_load_peer
#define store_quad emulator_store_quad
#define store_global_quad emulator_store_quad
#define store_global_pair emulator_store_pair
#define load_stream emulator_load_quad
#define load_half_stream emulator_load_half
#define load_copied(p) (*(p))
#define load_copied_wide(p) (*(p))
#define load_pair emulator_load_half
#define load_quad_relaxed emulator_load_quad
#define store_word_relaxed(p, v) (*(uint32_t *)(void *)(p) = (v))
#define store_half_relaxed(p, v) (*(p) = (v))
#define load_matrices emulator_load_matrices
#define load_straight_matrices emulator_load_straight_matrices
#define multiply_matrices emulator_multiply_matrices
#define HAS_WGMMA 1
#define start_group_product(c, a, b) emulator_multiply_group((c)[0], a, b, 0)
#define multiply_group(c, a, b) emulator_multiply_group((c)[0], a, b, 1)
#define begin_products() (void)0
#define commit_products() (void)0
#define wait_products() (void)0
#define publish_copies() (void)0
#define hold_floats(x, n) (void)0
#define describe_right_side emulator_describe_right_side
#define commit_copies emulator_commit_copies
#define wait_copies emulator_wait_copies
#define exp2_fast exp2f
#define invert_fast(x) (1.0f / (x))
#define copy_async emulator_copy_async
#define add_atomic emulator_add
#define count_ended(p) emulator_add(p, 1)
#define lower_atomic emulator_lower
#define raise_atomic emulator_raise
#define pack_bf16 emulator_pack_bf16

static inline uint64_t emulator_describe_right_side(const void *at)
{
	uint64_t offset = (uint64_t)((const char *)at - (const char *)emulated_shared);

	return offset >> 4 | UINT64_C(1) << 16 | UINT64_C(64) << 32 | UINT64_C(1) << 62;
}

/* Prefetches a line; traps like a GPU without memory there. */
static inline void emulator_prefetch_line(const void *p)
{
	(void)*(const volatile char *)p;
}

/* Adds atomically: threads switch at barriers only. */
static inline uint32_t emulator_add(uint32_t *p, uint32_t v)
{
	uint32_t was = *p;

	*p += v;
	return was;
}
static inline void emulator_lower(uint32_t *p, uint32_t v)
{
	*p = v < *p ? v : *p;
}
static inline void emulator_raise(uint32_t *p, uint32_t v)
{
	*p = v > *p ? v : *p;
}

static inline uint32_t emulator_pack_bf16(float low, float high)
{
	return (uint32_t)tess_bf16_round(low) | (uint32_t)tess_bf16_round(high) << 16;
}
#endif

#endif
