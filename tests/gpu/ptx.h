/*
 * ptx.h - the runtime of the C code that ptx_to_c generates from PTX: memory with the checks of
 * compute-sanitizer, and operations that C lacks. A wrong access ends the process with a message.
 */
#ifndef TESS_TESTS_GPU_PTX_H
#define TESS_TESTS_GPU_PTX_H

#include "emulated_kernels.h"

#include <stdbool.h>

enum { PTX_COPIES = 256, PTX_PRODUCTS = 32, PTX_SUMS = 4 };

/* A thread of a kernel. */
struct ptx_thread {
	const char *kernel;
	bool waited; /* for earlier kernels, after which it may access memory */
	/* barriers of the block, of the warp and of the cluster that it has passed */
	uint32_t bars, warp_bars, cluster_bars;
	int ncopies, groups; /* pending copies to shared memory; committed groups */
	char *to[PTX_COPIES];
	int group[PTX_COPIES];
	bool unpublished; /* finished copies that products may not read */
	bool begun; /* after wgmma.fence */
	int nproducts, nsums; /* pending products, and their sums */
	uint64_t right[PTX_PRODUCTS]; /* descriptors */
	struct {
		float *to[32], value[32];
	} sum[PTX_SUMS];
};

char *ptx_shared(uint64_t at);
/* Returns the address `at` in the shared memory of a block of the cluster. */
uint32_t ptx_map_peer(uint32_t at, uint32_t rank);
/*
 * Check an access. All bytes must be of one object, aligned to their number. Since a common
 * barrier, no other thread may have written them, or for a write have read them. Races of single
 * bytes are not detected.
 */
void ptx_read(const struct ptx_thread *t, const char *p, unsigned bytes);
void ptx_write(const struct ptx_thread *t, const char *p, unsigned bytes);
/*
 * Checks a read that needs no wait (ld.nc): no kernel has written there since the last copy, which
 * waits for kernels, and for which kernels wait (emulated_settled).
 */
void ptx_read_copied(const struct ptx_thread *t, const char *p, unsigned bytes);
/* Check relaxed accesses: a write may race with a read, which then returns either value. */
void ptx_read_relaxed(const struct ptx_thread *t, const char *p, unsigned bytes);
void ptx_write_relaxed(const struct ptx_thread *t, const char *p, unsigned bytes);
uint32_t ptx_add_atomic(const struct ptx_thread *t, char *p, uint32_t v);
uint32_t ptx_min_atomic(const struct ptx_thread *t, char *p, uint32_t v);
uint32_t ptx_max_atomic(const struct ptx_thread *t, char *p, uint32_t v);
/*
 * Adds atomically and orders blocks. A block that counts later, and then synchronizes, reads all
 * that this block wrote before its last barrier.
 */
uint32_t ptx_count_ended(const struct ptx_thread *t, char *p, uint32_t v);
void ptx_prefetch(const struct ptx_thread *t, const char *p);

void ptx_sync_block(struct ptx_thread *t);
void ptx_sync_cluster(struct ptx_thread *t);
void ptx_sync_warp(struct ptx_thread *t, uint32_t lanes);
uint32_t ptx_shuffle(uint32_t value, uint32_t mask, uint32_t clamp, uint32_t lanes);
void ptx_load_matrices(const struct ptx_thread *t, const char *row, int turned, uint32_t *out);
void ptx_copy_async(struct ptx_thread *t, char *to, const char *from, uint32_t bytes,
                    uint32_t filled);
void ptx_commit_copies(struct ptx_thread *t);
/*
 * Emulate wgmma. Registers of c are NaN until the thread waits, and nothing may write b until then.
 * Copies to b are published before a barrier.
 */
void ptx_begin_products(struct ptx_thread *t);
void ptx_multiply_group(struct ptx_thread *t, float *const c[32], const uint32_t *a, uint64_t b,
                        int add);
void ptx_commit_products(struct ptx_thread *t);
void ptx_wait_products(struct ptx_thread *t, int n);
void ptx_publish_copies(struct ptx_thread *t);
void ptx_wait_copies(struct ptx_thread *t, int n);

static inline float ptx_f32(uint32_t bits)
{
	return tess_float(bits);
}
static inline uint32_t ptx_bits_f32(float f)
{
	return tess_bits(f);
}
static inline double ptx_f64(uint64_t bits)
{
	double d;

	memcpy(&d, &bits, sizeof d);
	return d;
}
static inline uint64_t ptx_bits_f64(double d)
{
	uint64_t bits;

	memcpy(&bits, &d, sizeof bits);
	return bits;
}

/* Returns `value` with the sign of `sign`, which is the first operand in PTX. */
static inline float ptx_copysignf(float sign, float value)
{
	return copysignf(value, sign);
}
static inline double ptx_copysign(double sign, double value)
{
	return copysign(value, sign);
}

/* Rounds toward zero, clamped to the range; NaN is 0. */
static inline int32_t ptx_truncate_s32(double d)
{
	return isnan(d) ? 0 : d >= 0x1p31 ? INT32_MAX : d < -0x1p31 ? INT32_MIN : (int32_t)d;
}
static inline int64_t ptx_truncate_s64(double d)
{
	return isnan(d) ? 0 : d >= 0x1p63 ? INT64_MAX : d < -0x1p63 ? INT64_MIN : (int64_t)d;
}
static inline uint32_t ptx_truncate_u32(double d)
{
	return !(d > 0) ? 0 : d >= 0x1p32 ? UINT32_MAX : (uint32_t)d;
}
static inline uint64_t ptx_truncate_u64(double d)
{
	return !(d > 0) ? 0 : d >= 0x1p64 ? UINT64_MAX : (uint64_t)d;
}

static inline uint32_t ptx_pack_bf16(float high, float low)
{
	return (uint32_t)tess_bf16_round(low) | (uint32_t)tess_bf16_round(high) << 16;
}

/* Inserts n bits of `bits` at bit `at` of `value` (bfi). */
static inline uint64_t ptx_insert_b64(uint64_t bits, uint64_t value, uint32_t at, uint32_t n)
{
	uint64_t mask = at > 63 ? 0 : (n > 63 ? UINT64_MAX : (UINT64_C(1) << n) - 1) << at;

	return (value & ~mask) | ((at > 63 ? 0 : bits << at) & mask);
}
static inline uint32_t ptx_insert_b32(uint32_t bits, uint32_t value, uint32_t at, uint32_t n)
{
	return (uint32_t)ptx_insert_b64(bits, value, at, n);
}

#endif
