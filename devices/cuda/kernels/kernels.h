/*
 * kernels.h - the kernels and their arguments, for the host code, for nvcc, and for tests that run
 * the kernels on the CPU.
 *
 * A kernel takes one struct by value. Pitches and strides are in elements.
 */
#ifndef TESS_DEVICES_CUDA_KERNELS_H
#define TESS_DEVICES_CUDA_KERNELS_H

#include <stdint.h>

/* KERNEL(name, struct of its arguments) */
#define CUDA_KERNELS(KERNEL) \
	KERNEL(map_elements, map_args) \
	KERNEL(map_halves, map_args) \
	KERNEL(rotate_pairs, rope_args) \
	KERNEL(normalize_runs, norm_args) \
	KERNEL(normalize_long_runs, norm_args) \
	KERNEL(look_up_rows, embed_args) \
	KERNEL(gather_rows, gather_args) \
	KERNEL(copy_elements, copy_args) \
	KERNEL(draw_ids, sample_args) \
	KERNEL(round_rows, cast_args) \
	KERNEL(widen_rows, cast_args) \
	KERNEL(multiply_any, multiply_args) \
	KERNEL(multiply_f32_1, multiply_args) \
	KERNEL(multiply_f32_pair, multiply_args) \
	KERNEL(multiply_f32_2, multiply_args) \
	KERNEL(multiply_f32_4, multiply_args) \
	KERNEL(multiply_f32_8, multiply_args) \
	KERNEL(multiply_f32_norm, multiply_args) \
	KERNEL(multiply_f32_norm_pair, multiply_args) \
	KERNEL(multiply_bf16_1, multiply_args) \
	KERNEL(multiply_bf16_pair, multiply_args) \
	KERNEL(multiply_bf16_2, multiply_args) \
	KERNEL(multiply_bf16_4, multiply_args) \
	KERNEL(multiply_bf16_8, multiply_args) \
	KERNEL(multiply_bf16_norm, multiply_args) \
	KERNEL(multiply_bf16_norm_pair, multiply_args) \
	KERNEL(multiply_f16_1, multiply_args) \
	KERNEL(multiply_f16_pair, multiply_args) \
	KERNEL(multiply_f16_2, multiply_args) \
	KERNEL(multiply_f16_4, multiply_args) \
	KERNEL(multiply_f16_8, multiply_args) \
	KERNEL(multiply_f16_norm, multiply_args) \
	KERNEL(multiply_f16_norm_pair, multiply_args) \
	KERNEL(store_keys, attention_args) \
	KERNEL(attend_rows_f32, rope_args) \
	KERNEL(attend_rows_bf16, rope_args) \
	KERNEL(attend_rows_long, rope_args) \
	KERNEL(attend_tiles_64, attention_args) \
	KERNEL(attend_tiles_128, attention_args) \
	KERNEL(attend_tiles_256, attention_args) \
	KERNEL(attend_tensor_64, attention_args) \
	KERNEL(attend_tensor_96, attention_args) \
	KERNEL(attend_tensor_128, attention_args) \
	KERNEL(attend_wgmma_64, attention_args) \
	KERNEL(attend_wgmma_128, attention_args) \
	KERNEL(multiply_tensor_16, tensor_args) \
	KERNEL(multiply_tensor_32, tensor_args) \
	KERNEL(multiply_tensor_64, tensor_args) \
	KERNEL(multiply_tensor_wide, tensor_args) \
	KERNEL(multiply_groups_16, tensor_group_args) \
	KERNEL(multiply_groups_32, tensor_group_args) \
	KERNEL(multiply_groups_64, tensor_group_args) \
	KERNEL(multiply_groups_bf16, tensor_group_args) \
	KERNEL(weigh_texts, text_args) \
	KERNEL(add_texts, text_args) \
	KERNEL(derive_keys, text_args) \
	KERNEL(round_texts, padded_args) \
	KERNEL(widen_texts, padded_args) \
	KERNEL(route_experts, route_args) \
	KERNEL(count_expert_rows, list_args) \
	KERNEL(list_expert_rows, list_args) \
	KERNEL(multiply_groups, group_args) \
	KERNEL(activate_listed, experts_args) \
	KERNEL(sum_row_products, row_sum_args) \
	KERNEL(multiply_gate_up, experts_args) \
	KERNEL(multiply_down, experts_args) \
	KERNEL(combine_experts, experts_args) \
	KERNEL(multiply_row_gates, experts_args) \
	KERNEL(add_row_experts, experts_args) \
	KERNEL(derive_route, derive_args) \
	KERNEL(sum_balance, derive_args) \
	KERNEL(add_balance, derive_args) \
	KERNEL(derive_balance, derive_args) \
	KERNEL(derive_weights, derive_args) \
	KERNEL(derive_experts, experts_args) \
	KERNEL(multiply_heads, heads_args) \
	KERNEL(derive_gates, glu_d_args) \
	KERNEL(measure_runs, norm_args) \
	KERNEL(derive_runs, norm_d_args) \
	KERNEL(derive_long_runs, norm_d_args) \
	KERNEL(multiply_runs, row_dot_args) \
	KERNEL(add_heads, head_sum_args) \
	KERNEL(drop_elements, drop_rows_args) \
	KERNEL(add_columns, columns_args) \
	KERNEL(add_token_rows, embed_dw_args) \
	KERNEL(multiply_turned, turned_args) \
	KERNEL(find_maxima, loss_args) \
	KERNEL(add_exponentials, loss_args) \
	KERNEL(pick_labels, loss_args) \
	KERNEL(derive_logits, loss_args) \
	KERNEL(update_weights, update_args) \
	KERNEL(add_squares, squares_args) \
	KERNEL(finish_squares, squares_args)

#define CUDA_KERNEL_INDEX(name, args) KERNEL_##name,
enum { CUDA_KERNELS(CUDA_KERNEL_INDEX) KERNELS };

enum { WARP = 32 };
enum { MAP_THREADS = 256, NORM_THREADS_MAX = 512, MULTIPLY_THREADS = 128, ATTEND_THREADS = 128 };
/* Rope: threads of a block; units of a row for these, and for keys in pages; as powers of two. */
enum { ROPE_SHIFT = 8, ROPE_THREADS = 1 << ROPE_SHIFT, KEY_SHIFT = 4 };
/* Norms: fours of adjacent elements that a thread loads at once; threads of a block of runs. */
enum { NORM_QUADS = 4, NORM_HELD = 4 * NORM_QUADS, NORM_THREADS = 128 };
enum { BLOCK_WARPS = NORM_THREADS_MAX / WARP }; /* maximum warps of a sum */
enum { SAMPLE_THREADS = 512, SAMPLE_BUCKETS = SAMPLE_THREADS, SAMPLE_LIST = 4096 };
/* so that the candidates of a bucket of ids can be listed */
enum { SAMPLE_COLUMNS_MAX = SAMPLE_BUCKETS * SAMPLE_LIST };

/* Faults that a kernel finds in values that only it reads; written to `fault` in host memory. */
enum { FAULT_ROPE = 1, FAULT_SELECT_ROWS, FAULT_ATTENTION, FAULT_TEXT, FAULT_EXPERTS };

enum { MAP_ADD = 1, MAP_BIAS, MAP_GLU, MAP_SCALE, MAP_SIGMOID, MAP_SIGMOID_D, MAP_MUL };
enum { MAP_FACTOR = MAP_MUL + 1, MAP_CLAMP, MAP_CLAMP_D };
/*
 * y = f(a, b); BIAS: b is one row, of type b_dtype; FACTOR: one column. map_halves: a and b are
 * bf16, and 16 bytes of each row can be read in one access.
 */
struct map_args {
	const float *a;
	const void *b; /* NULL: none */
	float *y; /* NULL: not written */
	uint16_t *rounded; /* y as bf16, too, without gaps; or NULL */
	int64_t a_pitch, b_pitch, y_pitch, rows, columns;
	int32_t kind, activation, b_dtype;
	int32_t wide; /* 16 bytes of each row can be read and written in one access */
	float factor; /* CLAMP: the lower limit */
	float high; /* CLAMP: the upper limit */
};

struct norm_args {
	const float *x, *more; /* more: added to x, into total; NULL: none */
	const void *w, *b; /* b NULL: none */
	float *y, *total; /* y NULL: not written */
	uint16_t *rounded; /* y as bf16, too, without gaps; or NULL */
	int64_t x_pitch, more_pitch, total_pitch, y_pitch, w_stride, b_stride, rows, runs, each;
	float eps, offset; /* offset: added to w */
	int32_t layer, w_dtype, b_dtype;
	int32_t threads; /* of a run: a warp, or the block */
	int32_t held; /* four adjacent elements are one access, and a run fits the registers */
};

struct norm_d_args { /* norm.y: dx */
	struct norm_args norm;
	const float *g;
	int64_t g_pitch;
};

struct row_dot_args {
	const float *a, *b;
	float *y;
	int64_t a_pitch, b_pitch, y_pitch, columns;
};

struct glu_d_args {
	const float *a, *b, *g; /* b NULL: none, and no db */
	float *da, *db;
	int64_t a_pitch, b_pitch, g_pitch, da_pitch, db_pitch, rows, columns;
	int32_t activation, wide;
	int32_t da_half, db_half; /* da, or db, is bf16, of a multiple of 8 columns */
};

struct head_sum_args { /* for heads [lo, hi) of each run of `group` */
	const float *x;
	float *y;
	int64_t x_pitch, y_pitch, rows, columns, width, group, lo, hi;
};

struct columns_args { /* y: a row for each block of rows */
	const float *g, *x, *moments; /* x NULL: plain sum; moments: mean and scale of its runs */
	float *y;
	int64_t g_pitch, x_pitch, y_pitch, rows, columns, each, run, runs;
};

enum { EMBED_ROWS = 8 }; /* rows of the table of a block */
struct embed_dw_args {
	const int32_t *id;
	const float *g;
	float *y;
	int64_t g_pitch, y_pitch, rows, columns, first, entries;
};

struct turned_args {
	const float *x, *w;
	float *y;
	int64_t x_pitch, w_pitch, y_pitch, rows, columns, k;
};

enum { LOSS_THREADS = 256, NO_LABEL = -100 };
struct loss_args { /* for logits z, or their results for each row; NULL: unused by this op */
	const float *z, *max, *sum, *pick, *count;
	const int32_t *label;
	float *y;
	int64_t z_pitch, max_pitch, sum_pitch, pick_pitch, y_pitch, rows, columns;
	int64_t first, lo, hi; /* the label of column 0; the columns of this rank */
	int32_t wide; /* 16 bytes of each row of z and y can be accessed at once */
	int32_t half; /* y of LOSS_D is bf16, of a multiple of 8 columns */
};

struct update_args { /* v NULL: SGD, m NULL: without momentum */
	const float *g;
	float *w, *m, *v;
	uint16_t *rounded; /* NULL: none */
	int64_t n;
	int32_t dtype; /* dtype of rounded */
	int32_t wide; /* 16 bytes of each can be accessed at once, 8 bytes of `rounded` */
	float factor, keep, new_m, old_v, new_v, rate, bias, eps, momentum, decay;
};

enum { SQUARE_BINS = 64, SQUARE_THREADS = SQUARE_BINS, SQUARE_DIGITS = 18, SQUARE_FIELDS };
enum { SQUARE_LOADS = 8, SQUARE_MOST = 1024 }; /* fours at once, and elements, of a thread */
enum { FINISH_WARPS = 16, FINISH_THREADS = FINISH_WARPS * WARP };
struct squares_args { /* part: fields of each block */
	const float *x;
	int64_t *part, *sum;
	int64_t n, parts;
	int32_t wide; /* 16 bytes of x can be read in one access */
};

struct embed_args {
	const int32_t *id;
	const void *table;
	float *y;
	int64_t stride[2], y_pitch, rows, columns;
	int64_t first, entries; /* the id of row 0 of the table, and its rows */
	int64_t lo, hi; /* entries that this rank owns: others give 0 */
	int32_t dtype;
	int32_t wide; /* four adjacent elements can be read and written in one access */
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
	int32_t width; /* bytes of an element: 1, 2, 4 or 8 */
};

struct sample_args { /* how [rows][7], y [rows][4], seen [sets][..]: SAMPLE in tessera/device.h */
	const float *x;
	const double *how;
	int32_t *y;
	uint32_t *seen;
	int64_t x_pitch, how_pitch, y_pitch, seen_pitch;
	int32_t columns;
};

struct cast_args { /* round_rows: f32 to bf16; widen_rows: any weights to f32 */
	const void *x;
	void *y;
	int64_t x_stride[2], y_pitch, rows, columns;
	int32_t dtype, wide; /* wide: 16 bytes of a row of x can be read in one access */
};

enum { MULTIPLY_WEIGHTS = 4, MULTIPLY_ROWS = 8 };
enum { MULTIPLY_COLUMNS = 4 }; /* columns of a block, with one row; of a warp, with more than 4 */
struct multiplied { /* a weight, and its output */
	const void *w;
	const float *more; /* may be y; NULL: nothing */
	float *y;
	int64_t stride[2], more_pitch, y_pitch, columns;
	int32_t first_block;
};
struct multiply_args { /* y_i = x W_i' + more_i */
	const float *x;
	int64_t x_pitch, k;
	int32_t rows, nweights, dtype;
	const void *norm; /* weights of the fused RMS norm of one row x, of `dtype`; or NULL */
	float eps, offset; /* eps of the norm; offset of its weights */
	float *glu; /* act(y_0) * y_1 of two weights, which a warp adds together; or NULL */
	int64_t glu_pitch;
	int32_t activation;
	struct multiplied of[MULTIPLY_WEIGHTS];
};

/* Maximum rows of a block; its columns; maximum parts of K; blocks on a multiprocessor. */
enum { PRODUCT_ROWS = 64, PRODUCT_COLUMNS = 64, PRODUCT_PARTS = 8, PRODUCT_BLOCKS = 2 };
/*
 * Terms of a stage, and stages in shared memory, which the sums reuse. With fewer rows a block
 * still requests all 96 KiB, which all GPUs have: blocks that start early spread over all
 * multiprocessors, and those of the next product follow when these end.
 */
enum { STAGE_TERMS = 64, PRODUCT_STAGES = 6, SUMS_GAP = 8 };
enum { PRODUCT_BYTES = PRODUCT_STAGES * (PRODUCT_COLUMNS + PRODUCT_ROWS) * STAGE_TERMS * 2 };
/*
 * Columns of a wide block; its stages if several blocks are on a multiprocessor, or if one has all
 * of its shared memory; bytes of a stage.
 */
enum { WIDE_COLUMNS = 128, WIDE_STAGES = 4, DEEP_STAGES = 9 };
enum { WIDE_BYTES = (WIDE_COLUMNS + PRODUCT_ROWS) * STAGE_TERMS * 2 };
/* Threads of a block of C columns: two warps, one for each half of the terms, for 32 columns. */
#define PRODUCT_THREADS(C) ((C)*2)
struct tensor_args { /* y_i = x W_i' + more_i */
	const uint16_t *x; /* bf16, as the weights */
	int64_t x_pitch, k, part; /* part: terms of a block, a multiple of STAGE_TERMS */
	int32_t rows, nweights;
	int32_t wide; /* 16 bytes of each row of y and more can be read and written in one access */
	uint16_t *glu; /* act(y_0) * y_1 in bf16, in place of both; or NULL */
	int64_t glu_pitch;
	int32_t activation;
	int32_t ring; /* stages of a wide block: WIDE_STAGES or DEEP_STAGES */
	float *sums; /* sums of the parts, each [tiles][rows][PRODUCT_COLUMNS] */
	uint32_t *ended; /* number of finished parts of each tile; 0 between kernels */
	struct multiplied of[MULTIPLY_WEIGHTS];
};

/* Positions of a page; query heads that share the keys of a block; rows of a tile. */
enum { KEYS = 64, ATTEND_HEADS = 4, ATTEND_WARPS = ATTEND_THREADS / WARP, TILE_ROWS = 32 };
enum {
	SPAN = KEYS / ATTEND_WARPS,
	LOADS = 4,
	PARTS_MAX = WARP
}; /* positions of a page of a warp; loads in flight; parts of a row's keys */
/* Maximum pages that one block adds alone; minimum pages of a part. */
enum { WHOLE_PAGES = 4, PART_PAGES = 2 };
/* Maximum rows of a step whose keys attention stores; the warps that store and add a single key. */
enum { NEW_ROWS_MAX = 64, STORE_WARP = ATTEND_WARPS - 2, OWN_KEY_WARP = ATTEND_WARPS - 1 };
/* Maximum elements of a key, of a value, and of one that attend_rows_bf16 supports. */
enum { HEAD_MAX = 1024, VALUE_MAX = 512, VALUE_SHORT = 256 };
/* Minimum adjacent rows of a slot that form a tile; maximum elements of its heads. */
enum { TILED_ROWS_MIN = 16, TILED_HEAD_MAX = 256 };
/* On tensor cores: rows of a tile, over all of its heads; rows of a warp; elements of a head. */
enum { TENSOR_ROWS = 128, TENSOR_WARP_ROWS = 32, TENSOR_HEAD_MAX = 128 };
/* Bytes in shared memory: a row of values or a query; a stage; a tile. */
#define VALUES_ROW(D) ((D) <= 64 ? 128 : 256)
#define STAGE_BYTES(D) ((D)*KEYS * 2 + KEYS * VALUES_ROW(D))
#define TENSOR_SHARED(D) (2 * STAGE_BYTES(D) + TENSOR_ROWS * VALUES_ROW(D) + 128)
/*
 * With wgmma: threads of a warpgroup, and its rows over all heads; warpgroups of a block, which is
 * also the number of pages of a stage; bytes of a page's keys and values.
 */
enum { GROUP_THREADS = 4 * WARP, GROUP_ROWS = 64 };
#define GROUPS(D) ((D) <= 64 ? 4 : 2)
#define PAGE_BYTES(D) (2 * (D)*KEYS * 2)
#define WGMMA_SHARED(D) (2 * GROUPS(D) * PAGE_BYTES(D) + 128)
struct sinks { /* of local heads: a score that has no value */
	const void *data; /* NULL: none */
	int64_t stride;
	int32_t dtype;
};
struct attention_args {
	const float *q, *k, *v; /* v NULL: values are the start of their keys, [64, d] */
	float *out; /* NULL: not written */
	const int32_t *position, *slot;
	const int64_t *page;
	int32_t *fault;
	uint16_t *rounded; /* out as bf16, too, without gaps; or NULL */
	float *part; /* [rows][heads][parts][dv + 2]: maximum, sum, weighted values */
	uint32_t *ended; /* finished parts of each row and block of heads; 0 between kernels */
	int64_t q_pitch, k_pitch, v_pitch, out_pitch, page_pitch;
	int64_t keys, values; /* offsets in a page, bytes */
	int64_t rows, slots, blocks, window; /* window 0: all keys */
	int32_t heads, kv, group, first_head; /* local heads; first_head: global index */
	int32_t d, dv, dtype, parts;
	int32_t chunked; /* the window is the chunk of a row */
	int32_t head_blocks; /* blocks of ATTEND_HEADS query heads for each key-value head */
	int32_t tile_heads; /* heads of a tile on tensor cores, which share keys: 1, 2 or 4 */
	int32_t tiled; /* runs of at least TILED_ROWS_MIN rows are left to attend_tiles */
	int32_t wide; /* 16 bytes of keys, and of values, can be read in one access */
	float scale, softcap;
	float unit, bend; /* on tensor cores: factors to log2 of weights, and of e^2x of tanh(x) */
	float sink_unit; /* on tensor cores: factor from sinks to scores before `unit` */
	struct sinks sinks;
};

struct rope_args {
	struct {
		const float *x;
		float *y;
		int64_t x_pitch, y_pitch, columns;
		uint32_t units; /* of a row: a thread rotates or copies one */
		int32_t tile_shift; /* a block has 2^tile_shift units of a row */
		int32_t down; /* adjacent threads have adjacent rows */
	} of[3]; /* blockIdx.z; 2: values, not rotated; y NULL: not written */
	const float *table;
	const int32_t *position;
	int32_t *fault;
	int64_t table_pitch, positions, rows;
	int64_t each, first, width; /* elements of a head; [first, first + width) are rotated */
	int32_t interleaved, inverse;
	int32_t wide; /* a unit is four pairs or elements, and reads and writes 16 bytes at once */
	/*
	 * The index in `of` of the keys for the pages of `to`, or -1. attend_rows rotates them and
	 * the queries if `width` is not 0.
	 */
	int32_t key;
	struct attention_args to;
};

struct drop_args { /* below 0: nothing is dropped */
	const int32_t *step; /* i32 [4]: the key of the step, its first sequence */
	uint64_t below; /* words that drop */
	float scale; /* factor of kept elements */
};

struct drop_rows_args {
	const float *x;
	float *y;
	const int32_t *position, *slot;
	int64_t x_pitch, y_pitch, rows, columns, first, site;
	struct drop_args drop;
};

/* Blocks of 64 columns that a thread block adds; state of a query: maximum, sum, mean. */
enum { TEXT_BLOCKS = 2, TEXT_STATE = 3 };
struct text_args { /* attention over complete sequences; g NULL: the forward */
	const float *q, *k, *v, *g; /* v is the start of k if latent */
	float *out, *dq, *dk, *dv_out, *state;
	float *dsinks; /* [rows][heads]; NULL: no sinks, or the forward */
	const int32_t *position, *slot;
	int32_t *fault;
	int64_t q_pitch, k_pitch, v_pitch, g_pitch, out_pitch, dq_pitch, dk_pitch, dv_pitch;
	int64_t dsinks_pitch;
	struct sinks sinks;
	int64_t rows, window, site; /* window 0: all keys; site: of local head 0 */
	int32_t heads, group, first_head, d, dv, latent;
	int32_t chunked; /* the window is the chunk of a row */
	float scale, softcap;
	struct drop_args drop;
};

enum { PADDED_PARTS = 4 };
struct padded { /* rows of f32, and as bf16 */
	float *row;
	uint16_t *padded; /* [sequences, length, heads, d] */
	int64_t pitch;
	int32_t of_group; /* a head of rows is one of each group of heads */
};
struct padded_args { /* sequences of equal length, padded with rows of 0 */
	struct padded part[PADDED_PARTS];
	const int32_t *position, *slot; /* [rows]; the slots are 0, 1, ... */
	int32_t *fault;
	int64_t rows, length, longest, first_text;
	int32_t heads, d, group, first_head, shift; /* shift: number of local heads to skip */
};

struct heads_args { /* y_h = x_h W_h', and a copy of the last `rest` elements of each head */
	const float *x;
	const void *w;
	float *y;
	int64_t x_pitch, y_pitch, stride[3], rows, n, k, rest;
	int64_t columns; /* multiplied columns: n, or 0 to copy only */
	int32_t dtype;
};

enum { EXPERTS_MAX = 1024, ROUTE_THREADS = 256 };
struct route_args {
	const float *x;
	const void *b; /* NULL: none */
	float *y;
	int64_t x_pitch, y_pitch, b_stride;
	int32_t b_dtype, experts, top, groups, kept, sigmoid, normalize, group_max;
	float eps, scale;
};

enum { LIST_THREADS = 256 };
struct list_args { /* lists the rows of each expert, one expert after another */
	const float *weights;
	int64_t pitch, rows;
	int32_t experts, capacity; /* capacity of row and slot */
	/*
	 * count[experts]: the rows of each, or NULL; begin[experts + 1]: its first in row[];
	 * expert[]: the expert of the entry; slot[]: the number of earlier experts of the row, or
	 * NULL; place[rows][experts]: the index of a row in row[], or -1; or NULL
	 */
	int32_t *count, *begin, *row, *expert, *slot, *place, *fault;
};

enum { GROUP_DEPTH = 32, GROUP_BYTES = 2 * GROUP_DEPTH * KEYS * 4 }; /* terms in shared memory */
struct group_args { /* y = x w' for the rows of each group */
	const float *x;
	const void *w;
	float *y;
	const int32_t *begin, *row; /* from a list, whose rows are those of y; NULL: all rows */
	int64_t x_pitch, y_pitch, x_step, y_step; /* steps: from group to group */
	int64_t w_stride[3], rows, n, k;
	int32_t dtype;
};

/* Rows and columns of a block on tensor cores; bytes of its stages or sums, and of their starts. */
enum { TENSOR_TILE = 128, TENSOR_PITCH = 132, TENSOR_BYTES = (3 * 2 * 128 + 16) * TENSOR_TILE };
/* A tile of fewer rows: its columns; stages of STAGE_TERMS, or sums of both halves of the terms. */
enum { LISTED_COLUMNS = 64, LISTED_STAGES = 6, LISTED_PITCH = LISTED_COLUMNS + 8 };
struct gates { /* how the rows of gate_up of an expert become act(gate) * up */
	const void *bias; /* [experts][2 ffn]; NULL: none */
	int64_t bias_stride[2];
	int64_t step, up; /* rows from a gate to the next one, and to its up */
	int32_t bias_dtype, activation;
	float limit, alpha; /* limit 0: none */
};
struct tensor_group_args {
	const uint16_t *x, *w; /* bf16 */
	void *y; /* f32; gated: act(gate) * up in bf16, and w has n rows of each */
	const int32_t *begin, *row; /* from a list; row NULL: as in x; begin NULL: all rows */
	int64_t x_pitch, y_pitch, x_step, y_step; /* steps: from group to group */
	int64_t w_stride[2], rows, n, k; /* w_stride: from group to group, row to row */
	struct gates gates;
	int32_t gated, row_blocks;
};

struct row_side { /* a side of a product, summed over rows */
	const float *data; /* NULL: ones */
	int64_t pitch, step, slot, n; /* step: from group to group; slot: from slot to slot, or 0 */
	int32_t weighted;
};
struct row_sum_args { /* y = the sum of g' x over the rows of each group */
	struct row_side g, x;
	const float *weights;
	const int32_t *begin, *row, *slot; /* NULL: all rows */
	float *y;
	int64_t weights_pitch, y_stride[3], rows;
};

enum { BALANCE_ROWS = 64 };
struct derive_args { /* gradients of routes, of their weights, and of the balancing loss */
	const float *x, *weights, *g;
	float *y;
	int32_t *fault;
	int64_t x_pitch, weights_pitch, g_pitch, y_pitch, rows, columns;
	int32_t experts, most, sigmoid, normalize; /* most: slots of a row */
	float eps, scale;
};

struct experts_args {
	const float *x, *weights;
	const void *gate_up, *down;
	float *y;
	int64_t x_pitch, weights_pitch, y_pitch, gate_up_stride[3], down_stride[3];
	int64_t rows, columns, ffn;
	int64_t k_first, k, f_first, f; /* the added elements */
	int32_t experts, slots, dtype;
	struct gates gates;
	int32_t most; /* maximum number of experts of a row */
	int32_t wide; /* 16 bytes of combined values can be read and written in one access */
	const int32_t *begin, *row, *place; /* from list_args; COMBINE: none, x has the slots */
	const int32_t *expert; /* a block y for each listed row; NULL: each expert */
	const int32_t *owner; /* the expert of each listed row */
	int32_t *fault;
	/* [listed rows][ffn] or larger, [columns]; by rows: [rows][most][ffn], without lists */
	float *hidden, *z;
	void *rounded; /* x in bf16, [rows][k] */
};

#endif
