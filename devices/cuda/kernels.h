/*
 * kernels.h - the kernels and their arguments: read by the host code and by nvcc, and by the tests,
 * which run the kernels on the CPU.
 *
 * A kernel takes one struct by value. Pitches and strides are in elements.
 */
#ifndef TESS_DEVICES_CUDA_KERNELS_H
#define TESS_DEVICES_CUDA_KERNELS_H

#include <stdint.h>

/* KERNEL(name, struct of its arguments) */
#define CUDA_KERNELS(KERNEL) \
	KERNEL(map_elements, map_args) \
	KERNEL(rotate_pairs, rope_args) \
	KERNEL(normalize_runs, norm_args) \
	KERNEL(look_up_rows, embed_args) \
	KERNEL(gather_rows, gather_args) \
	KERNEL(copy_elements, copy_args) \
	KERNEL(find_largest, argmax_args) \
	KERNEL(round_rows, cast_args) \
	KERNEL(widen_rows, cast_args) \
	KERNEL(multiply_any, multiply_args) \
	KERNEL(multiply_f32_1, multiply_args) \
	KERNEL(multiply_f32_2, multiply_args) \
	KERNEL(multiply_f32_4, multiply_args) \
	KERNEL(multiply_f32_8, multiply_args) \
	KERNEL(multiply_bf16_1, multiply_args) \
	KERNEL(multiply_bf16_2, multiply_args) \
	KERNEL(multiply_bf16_4, multiply_args) \
	KERNEL(multiply_bf16_8, multiply_args) \
	KERNEL(multiply_f16_1, multiply_args) \
	KERNEL(multiply_f16_2, multiply_args) \
	KERNEL(multiply_f16_4, multiply_args) \
	KERNEL(multiply_f16_8, multiply_args) \
	KERNEL(store_keys, attention_args) \
	KERNEL(attend_rows_f32, attention_args) \
	KERNEL(attend_rows_bf16, attention_args) \
	KERNEL(merge_parts, attention_args) \
	KERNEL(attend_tiles_64, attention_args) \
	KERNEL(attend_tiles_128, attention_args) \
	KERNEL(attend_tiles_256, attention_args) \
	KERNEL(attend_tensor_64, attention_args) \
	KERNEL(attend_tensor_128, attention_args) \
	KERNEL(route_experts, route_args) \
	KERNEL(list_expert_rows, experts_args) \
	KERNEL(multiply_gate_up, experts_args) \
	KERNEL(multiply_down, experts_args) \
	KERNEL(combine_experts, experts_args) \
	KERNEL(multiply_heads, heads_args)

#define CUDA_KERNEL_INDEX(name, args) KERNEL_##name,
enum { CUDA_KERNELS(CUDA_KERNEL_INDEX) KERNELS };

enum { WARP = 32 };
enum { MAP_THREADS = 256, NORM_THREADS_MAX = 512, MULTIPLY_THREADS = 128, ATTEND_THREADS = 128 };
enum { ARGMAX_THREADS = 1024 };

/* What a kernel finds wrong with a value that only it reads, at `fault` in host memory. */
enum { FAULT_ROPE = 1, FAULT_SELECT_ROWS, FAULT_ATTENTION };

enum { MAP_ADD = 1, MAP_BIAS, MAP_GLU, MAP_SCALE };
struct map_args { /* y = f(a, b); BIAS: b is one row, of type b_dtype */
	const float *a;
	const void *b; /* NULL: none */
	float *y;
	int64_t a_pitch, b_pitch, y_pitch, rows, columns;
	int32_t kind, activation, b_dtype;
	int32_t wide; /* 16 bytes of each row can be read and written at once */
	float factor;
};

struct rope_args {
	const float *x, *table;
	float *y;
	const int32_t *position;
	int32_t *fault;
	int64_t x_pitch, y_pitch, table_pitch, positions, rows, columns;
	int64_t each, first, width; /* of a head: the elements [first, first + width) turn */
	int32_t interleaved;
};

struct norm_args {
	const float *x;
	const void *w, *b; /* b NULL: none */
	float *y;
	int64_t x_pitch, y_pitch, w_stride, b_stride, rows, runs, each;
	float eps, offset; /* added to w */
	int32_t layer, w_dtype, b_dtype;
};

struct embed_args {
	const int32_t *id;
	const void *table;
	float *y;
	int64_t stride[2], y_pitch, rows, columns;
	int64_t first, entries; /* the id of row 0 of the table, and its rows */
	int64_t lo, hi; /* entries that this rank owns: others give 0 */
	int32_t dtype;
};

struct gather_args {
	const float *x;
	float *y;
	const int32_t *row;
	int32_t *fault;
	int64_t x_pitch, y_pitch, x_rows, rows, columns;
};

struct copy_args {
	const char *from;
	char *to;
	int64_t n[3], from_step[3], to_step[3]; /* steps in bytes */
	int32_t width; /* of an element: 1, 2, 4 or 8 */
};

struct argmax_args { /* y [rows][4]: see TESS_OP_ARGMAX in docs/ops.md */
	const float *x;
	int32_t *y;
	int64_t x_pitch, y_pitch, rows, columns;
};

struct cast_args { /* round_rows: f32 to bf16; widen_rows: any weights to f32 */
	const void *x;
	void *y;
	int64_t x_stride[2], y_pitch, rows, columns;
	int32_t dtype, wide; /* wide: 16 bytes of a row of x can be read at once */
};

enum { MULTIPLY_WEIGHTS = 4, MULTIPLY_ROWS = 8 };
struct multiply_args { /* y_i = x W_i', or is added to y_i */
	const float *x;
	int64_t x_pitch, k;
	int32_t rows, nweights, dtype, accumulate;
	struct {
		const void *w;
		float *y;
		int64_t stride[2], y_pitch, columns;
		int32_t first_block;
	} of[MULTIPLY_WEIGHTS];
};

/* Positions of a page; query heads that share the keys which a block reads; rows of a tile. */
enum { KEYS = 64, ATTEND_HEADS = 4, ATTEND_WARPS = ATTEND_THREADS / WARP, TILE_ROWS = 32 };
enum {
	SPAN = KEYS / ATTEND_WARPS,
	LOADS = 4
}; /* positions of a page that a warp has; loads at once */
/* The most elements of a key and of a value; adjacent rows of a slot, at least, that are a tile. */
enum { HEAD_MAX = 1024, VALUE_MAX = 512, TILED_ROWS_MIN = 16, TILED_HEAD_MAX = 256 };
enum { TENSOR_ROWS = 64, TENSOR_HEAD_MAX = 128 }; /* of a tile on tensor cores */
struct attention_args {
	const float *q, *k, *v; /* v NULL: values begin their keys, [64, d] */
	float *out;
	const int32_t *position, *slot;
	const int64_t *page;
	int32_t *fault;
	float *part; /* [rows][heads][parts][dv + 2]: maximum, sum, weighted values */
	int64_t q_pitch, k_pitch, v_pitch, out_pitch, page_pitch;
	int64_t keys, values; /* bytes from the start of a page */
	int64_t rows, slots, blocks, window; /* window 0: all keys */
	int32_t heads, kv, group, first_head; /* local heads; the global number of the first */
	int32_t d, dv, dtype, parts;
	int32_t head_blocks; /* blocks of ATTEND_HEADS query heads for each key-value head */
	int32_t tiled; /* runs of at least TILED_ROWS_MIN rows are left to attend_tiles */
	int32_t wide; /* 16 bytes of keys, and of values, can be read at once */
	float scale, softcap;
};

struct heads_args { /* y_h = x_h W_h', and the last `rest` elements of each head as they are */
	const float *x;
	const void *w;
	float *y;
	int64_t x_pitch, y_pitch, stride[3], rows, n, k, rest;
	int32_t dtype;
};

enum { EXPERTS_MAX = 1024 };
struct route_args {
	const float *x;
	const void *b; /* NULL: none */
	float *y;
	int64_t x_pitch, y_pitch, b_stride;
	int32_t b_dtype, experts, top, groups, kept, sigmoid, normalize;
	float eps, scale;
};

struct experts_args {
	const float *x, *weights;
	const void *gate_up, *down;
	float *y;
	int64_t x_pitch, weights_pitch, y_pitch, gate_up_stride[3], down_stride[3];
	int64_t rows, columns, ffn;
	int64_t k_first, k, f_first, f; /* elements that are added */
	int32_t experts, slots, activation, dtype;
	/* begin[experts + 1]: the first row of each expert in row[]; place[rows][experts]: where a
	 * row is there, or -1; hidden and z: [listed rows][ffn], [columns] */
	int32_t *begin, *row, *place; /* COMBINE: no place, x has the slots */
	float *hidden, *z;
};

#endif
