/*
 * port.h - the functions beyond C that kernels use, in CUDA. Tests compile the same kernels as C
 * for the CPU, with their own definitions (emulator.h).
 */
#ifndef TESS_DEVICES_CUDA_PORT_H
#define TESS_DEVICES_CUDA_PORT_H

#include "kernels.h"

enum { PORT_F32 = 1, PORT_BF16 = 3, PORT_F16 = 4, PORT_I64 = 5 }; /* tessera/plugin.h */

#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define MATHF static __device__ __forceinline__
/*
 * Defines a kernel that may start while the previous kernel on the stream ends (op_launch), on GPUs
 * from 9.0 on. It lets the next kernel start at once, and waits before it reads or writes anything.
 * A KERNEL_EARLY waits itself, and before that may prefetch, and load what only copies write
 * (load_copied). It limits its registers so that a multiprocessor can run `blocks` of it.
 */
#if __CUDA_ARCH__ >= 900
#define let_next_start() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define wait_for_kernels() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define let_next_start() (void)0
#define wait_for_kernels() (void)0
#endif
#define KERNEL_EARLY(threads, blocks, name, args) \
	DEVICE void name##_body(const struct args &a); \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
		name(const __grid_constant__ struct args a) \
	{ \
		let_next_start(); \
		name##_body(a); \
	} \
	DEVICE void name##_body(const struct args &a)
#define KERNEL(threads, name, args) \
	DEVICE void name##_waited(const struct args &a); \
	KERNEL_EARLY(threads, 1, name, args) \
	{ \
		wait_for_kernels(); \
		name##_waited(a); \
	} \
	DEVICE void name##_waited(const struct args &a)
#define SHARED __shared__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) float name[]
#define SWIZZLED_SHARED(name) extern __shared__ __align__(1024) float name[] /* the same memory */
#define UNROLL _Pragma("unroll")
#define PORT_TEXT(x) #x
#define UNROLL_BY(n) _Pragma(PORT_TEXT(unroll n))
#define shuffle_xor(x, mask) __shfl_xor_sync(0xffffffffu, x, mask)
#define sync_warp() __syncwarp()
#define sync_block() __syncthreads()
/* Operations on 32 bits of shared memory; return the old value. */
#define add_atomic(p, v) atomicAdd(p, v)
#define lower_atomic(p, v) atomicMin(p, v)
#define raise_atomic(p, v) atomicMax(p, v)

/*
 * Adds 1 to a word of global memory, and returns the old value. A block that counts later, and then
 * synchronizes, reads all that this block wrote before its last synchronization.
 */
DEVICE uint32_t count_ended(uint32_t *p)
{
	uint32_t was;

	asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
	             : "=r"(was)
	             : "l"(p)
	             : "memory");
	return was;
}

struct quad { /* 16 bytes */
	uint32_t at[4];
};

/* Loads weights, which are read once, and leaves the L1 cache to activations. Not before a wait. */
DEVICE struct quad load_stream(const void *p)
{
	struct quad v;

	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
	             : "l"(p));
	return v;
}

/* Loads 8 bytes of weights to the first two words, past the L1 cache. */
DEVICE struct quad load_half_stream(const void *p)
{
	struct quad v = { { 0 } };

	asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
	             : "=r"(v.at[0]), "=r"(v.at[1])
	             : "l"(p));
	return v;
}

/*
 * Load memory that only copies write, such as the inputs of a step, even before a wait: a kernel
 * that follows a copy starts when all earlier kernels have ended, so none of them can write there.
 */
DEVICE int32_t load_copied(const int32_t *p)
{
	int32_t v;

	asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(p));
	return v;
}
DEVICE int64_t load_copied_wide(const int64_t *p)
{
	int64_t v;

	asm volatile("ld.global.nc.s64 %0, [%1];" : "=l"(v) : "l"(p));
	return v;
}

/* Prefetches 128 bytes to the L2 cache. Later writes to them are seen. */
DEVICE void prefetch_line(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

DEVICE void store_quad(void *p, struct quad v)
{
	*(uint4 *)p = make_uint4(v.at[0], v.at[1], v.at[2], v.at[3]);
}

/* Stores 16 bytes to global memory in one access: nvcc may split a plain store into four. */
DEVICE void store_global_quad(void *p, struct quad v)
{
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.at[0]),
	             "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3])
	             : "memory");
}

/* Stores 8 bytes to global memory in one access. */
DEVICE void store_global_pair(void *p, uint32_t first, uint32_t second)
{
	asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(first), "r"(second)
	             : "memory");
}

DEVICE struct quad load_quad(const void *p)
{
	uint4 u = *(const uint4 *)p;
	struct quad v = { { u.x, u.y, u.z, u.w } };

	return v;
}

/* Loads 8 bytes to the first two words. */
DEVICE struct quad load_pair(const void *p)
{
	uint2 u = *(const uint2 *)p;
	struct quad v = { { u.x, u.y, 0, 0 } };

	return v;
}

/* Loads and stores in global memory, while other blocks may access adjacent bytes. */
DEVICE struct quad load_quad_relaxed(const void *p)
{
	struct quad v;

	asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
	             : "l"(p));
	return v;
}

DEVICE void store_word_relaxed(void *p, uint32_t v)
{
	asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

DEVICE void store_half_relaxed(void *p, uint16_t v)
{
	asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(p), "h"(v) : "memory");
}

/*
 * Waits for all threads of the cluster, and orders its accesses to shared memory. No block may end
 * before the others have read it.
 */
#if __CUDA_ARCH__ >= 900
#define sync_cluster() \
	asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" :: \
	                     : "memory")
#else
#define sync_cluster() (void)0
#endif

/* Loads 16 bytes from the place of p in the shared memory of block `rank` of the cluster. */
DEVICE struct quad load_peer_quad(const void *p, int rank)
{
	struct quad v = { { 0 } };

#if __CUDA_ARCH__ >= 900
	uint32_t at;

	asm("mapa.shared::cluster.u32 %0, %1, %2;"
	    : "=r"(at)
	    : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(rank));
	asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
	             : "r"(at)
	             : "memory");
#endif
	return v;
}

/* Copies 16 bytes to shared memory, or zeros (bytes 0), asynchronously. */
DEVICE void copy_async(void *to, const void *from, int bytes)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
	             :
	             : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes)
	             : "memory");
}
#define commit_copies() asm volatile("cp.async.commit_group;" ::: "memory")
#define wait_copies(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

/*
 * Loads four transposed 8 x 8 matrices of 16 bits; lane i has the address of row i % 8 of matrix i
 * / 8.
 */
DEVICE void load_matrices(const void *row, uint32_t *out)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
	             : "r"((uint32_t)__cvta_generic_to_shared(row))
	             : "memory");
}

/* Loads four 8 x 8 matrices of 16 bits without transposing them. */
DEVICE void load_straight_matrices(const void *row, uint32_t *out)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
	             : "r"((uint32_t)__cvta_generic_to_shared(row))
	             : "memory");
}

/* Computes c [16, 8] += a [16, 16] * b [16, 8], of bf16, added in f32. */
DEVICE void multiply_matrices(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
	    "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/*
 * wgmma, by a warpgroup: multiply_group computes c [64, 64] += a [64, 16] * b [16, 64], and
 * start_group_product c = a * b, of bf16, added in f32. Each warp has 16 rows of a and c in
 * registers, in the layout of multiply_matrices. b describes 16 rows of 128 bytes in shared memory
 * (describe_right_side). Nothing may use c and a before wait_products; begin_products precedes
 * products whose registers other instructions have written.
 */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1
#define GROUP_PRODUCT(name, add) \
	DEVICE void name(float(*c)[4], const uint32_t *a, uint64_t b) \
	{ \
		asm volatile( \
			"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, " \
			"%4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
			"%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
			"{%32, %33, %34, %35}, %36, " #add ", 1, 1, 1;" \
			: "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), \
			  "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), \
			  "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
			  "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), \
			  "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), \
			  "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), \
			  "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), \
			  "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]) \
			: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
	}
GROUP_PRODUCT(start_group_product, 0)
GROUP_PRODUCT(multiply_group, 1)
#define begin_products() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define commit_products() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define wait_products() asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
/* Lets no use of n registers move before wait_products. */
#define hold_floats(x, n) \
	EACH(i, n) \
	asm volatile("" : "+f"((x)[i])::"memory")
/* Makes this thread's finished copies to shared memory visible to products. */
#define publish_copies() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

/* Describes 16 rows of 128 bytes, whose 16 bytes are at `chunk ^ (row & 7)`; at: of 1024 bytes. */
DEVICE uint64_t describe_right_side(const void *at)
{
	const uint64_t eight_rows = 1024 >> 4, swizzle_128 = 1;

	return (uint64_t)(__cvta_generic_to_shared(at) & 0x3ffff) >> 4 | (uint64_t)1 << 16 |
	       eight_rows << 32 | swizzle_128 << 62;
}
#endif

/* Rounds two floats to nearest even, the first in the lower half. */
DEVICE uint32_t pack_bf16(float low, float high)
{
	uint32_t x;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
	return x;
}

/* Computes 2^x with an error of a few units in the last place; 0 where the result is subnormal. */
DEVICE float exp2_fast(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Computes 1 / x with an error of one unit in the last place; 0 where the result is subnormal. */
DEVICE float invert_fast(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

DEVICE float widen_f16(uint16_t h)
{
	float f;

	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
	return f;
}

DEVICE uint16_t round_f16(float f)
{
	uint16_t h;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
}

DEVICE float unpack_float(uint32_t bits)
{
	return __uint_as_float(bits);
}

DEVICE uint32_t pack_float(float f)
{
	return __float_as_uint(f);
}
#else
#include "emulator.h"
#endif

/* Unrolled loops, so that arrays that they index can stay in registers. */
#define EACH(i, n) UNROLL for (int i = 0; i < (n); i++)
#define EACH_MASK(mask, from, end) UNROLL for (int mask = (from); mask < (end); mask *= 2)

DEVICE struct quad pack_quad(const float *x)
{
	struct quad v;

	EACH(i, 4)
		v.at[i] = pack_float(x[i]);
	return v;
}

/* Rounds to nearest even; a NaN stays NaN. */
DEVICE uint16_t round_bf16(float f)
{
	uint32_t u = pack_float(f);

	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Returns the bits of element `at` of weights of any dtype. */
DEVICE uint32_t load_bits(const void *data, int32_t dtype, int64_t at)
{
	return dtype == PORT_F32 ? ((const uint32_t *)data)[at] : ((const uint16_t *)data)[at];
}

DEVICE float widen_bits(uint32_t bits, int32_t dtype)
{
	if (dtype == PORT_F32)
		return unpack_float(bits);
	return dtype == PORT_BF16 ? unpack_float(bits << 16) : widen_f16((uint16_t)bits);
}

DEVICE float widen_element(const void *data, int32_t dtype, int64_t at)
{
	return widen_bits(load_bits(data, dtype, at), dtype);
}

/* Widens the first four elements of 16 bytes. */
DEVICE void widen_four(struct quad v, int32_t dtype, float *out)
{
	EACH(i, 4) {
		uint32_t bits = dtype == PORT_F32 ? v.at[i] : v.at[i / 2] >> i % 2 * 16;

		out[i] = widen_bits(dtype == PORT_F32 ? bits : bits & 0xffffu, dtype);
	}
}

/* Widens the elements of 16 bytes: 4 f32, or 8 of 16 bits. */
DEVICE void widen_quad(struct quad v, int32_t dtype, float *out)
{
	EACH(i, 4) {
		if (dtype == PORT_F32) {
			out[i] = unpack_float(v.at[i]);
		} else if (dtype == PORT_BF16) {
			out[2 * i] = unpack_float(v.at[i] << 16);
			out[2 * i + 1] = unpack_float(v.at[i] & 0xffff0000u);
		} else {
			out[2 * i] = widen_f16((uint16_t)v.at[i]);
			out[2 * i + 1] = widen_f16((uint16_t)(v.at[i] >> 16));
		}
	}
}

#endif
