/*
 * gpu.h - declarations shared by the host files of the CUDA device.
 *
 * table.c finds the driver, cuBLASLt and cuDNN; cuda.c is the plugin; memory.c copies; ops.c runs a
 * step. rows.c, attention*.c, experts*.c and training.c launch kernels (launch.c); product*.c and
 * blas.c multiply matrices; dnn.c calls cuDNN; fuse.c decides which ops are one step, and
 * handover.c passes results between them.
 */
#ifndef TESS_DEVICES_CUDA_GPU_H
#define TESS_DEVICES_CUDA_GPU_H

#include "kernels.h"
#include "table.h"

#include <stdbool.h>
#include <tessera/device.h>
#include <tessera/reduce.h>

enum { STREAMS_MAX = 16, STAGES = 16, STAGE_BYTES = 1 << 20, WHERE = 128, POINTS = 2 };
enum { COPIERS_MAX = 8 }; /* divides STAGES: each stage belongs to one thread */
enum { MATH_AUTO, MATH_F32, MATH_TF32 }; /* TESSERA_CUDA_MATH */

struct stage { /* pinned host memory for copies of pageable memory */
	void *host;
	CUevent done;
};

struct scratch { /* device memory that ops share; larger blocks come first, and all are kept */
	struct scratch *next;
	void *data;
	uint64_t bytes;
};

struct blas;
struct dnn;

/* An opened GPU of one rank, which makes one call at a time. Its ops are all on one stream. */
struct gpu {
	CUdevice device;
	CUcontext context; /* the device's primary one, which NCCL uses, too */
	CUmodule module;
	CUfunction kernel[KERNELS];
	int32_t processors,
		shared_max; /* multiprocessors; maximum bytes of shared memory of a block */
	int32_t math;
	int32_t major; /* major compute capability */
	bool sync_ops; /* TESSERA_CUDA_SYNC=1 */
	bool starts_early; /* kernels wait for the previous one (port.h): 9.0 and newer */
	CUstream memory; /* for allocations; NULL: no memory pools, as on some virtual GPUs */
	CUstream streams[STREAMS_MAX]; /* open ones, or NULL */
	bool capturing;
	CUevent point[POINTS]; /* for mark; NULL: not used yet */
	CUevent followed; /* for follow, recorded again each time; NULL: not used yet */
	struct stage stage[STAGES];
	int32_t copiers; /* threads that fill stages: a power of two */
	struct scratch *scratch;
	struct blas *blas;
	struct dnn *dnn; /* NULL: not opened yet */
	float *sums; /* sums of parts of products, allocated by product_tensor.c; or NULL */
	uint32_t *ended; /* counts of parts */
	/* 1 + clusters of n wide blocks that run at once; 0: unknown; [1]: of DEEP_STAGES */
	int32_t clusters[2][PRODUCT_PARTS + 1];
	int32_t *fault; /* in host memory that kernels write */
	uint32_t *ended_keys; /* counts of parts of rows, allocated by attention.c; or NULL */
	char where[WHERE]; /* the module of the last op, for later failures */
	int32_t kind; /* kind of the last op */
};

struct handover { /* state that the finished ops of a step pass to the next one */
	const struct tess_op *op; /* the next one; NULL: the step is done */
	const struct tess_op *norm; /* NORM that the LINEAR computes of its x; or NULL */
	const struct tess_op *rope; /* first of two ROPEs that the ATTENTION computes; or NULL */
	uint16_t *rounded; /* x of the LINEAR in scratch memory, as bf16; or NULL */
	bool dropped; /* and nowhere else */
	bool half; /* operands of the GLU are bf16, in place of f32 */
	bool stored; /* keys and values of the ATTENTION are in their pages */
};

extern const struct tess_host *cuda_host;
int32_t cuda_get_math(void); /* set by the option: MATH_AUTO, ... */

/* Reports a failed call as "WHERE: cuda: CALL: why". `where` may be NULL. */
tess_status cuda_fail_call(const char *where, const char *call, CUresult why);
static inline tess_status cuda_check_call(const char *where, const char *call, CUresult why)
{
	return why == CUDA_SUCCESS ? TESS_OK : cuda_fail_call(where, call, why);
}
#define CUDA_CALL(where, call, ...) cuda_check_call(where, #call, cuda.call(__VA_ARGS__))

/* table.c: fills the parts of `cuda`, once; TESS_ENOTSUP: a library is missing. */
extern const struct cuda_loader {
	tess_status (*load_driver)(void), (*load_blas)(void), (*load_dnn)(void);
} cuda_loader;

/* ---- memory.c */
tess_status memory_alloc(void *self, uint64_t bytes, void **out);
void memory_free(void *self, void *p);
tess_status memory_alloc_host(void *self, uint64_t bytes, void **out);
void memory_free_host(void *self, void *p);
/* Allocates memory that is 0, before the first op that uses it; not while a graph is captured. */
tess_status memory_alloc_zeros(struct gpu *g, const struct tess_op *op, uint64_t bytes, void **out);
/* Waits for all queued work: then nothing uses memory or a graph. */
void memory_sync_streams(struct gpu *g);
tess_status memory_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream);
tess_status memory_get_free_bytes(void *self, uint64_t *out);
/* Returns at least `bytes` bytes, which the next op may use, too. Not while a graph is captured. */
tess_status memory_get_scratch(struct gpu *g, uint64_t bytes, void **out);
void memory_close(struct gpu *g);

/* ---- launch.c */
enum { GRID_MAX = 65535 }; /* blocks in y and z */
struct launch { /* a value */
	int32_t kernel;
	int64_t blocks[3]; /* x any number, y and z at most GRID_MAX */
	int32_t threads, shared; /* shared: bytes */
	int32_t cluster; /* adjacent blocks in y that share memory, on GPUs from 9.0 on; 0: none */
	const void *args;
};
tess_status op_launch(struct gpu *g, const struct tess_op *op, struct launch l);
/*
 * Launches a kernel with a thread for each of `columns` columns, whose blocks walk down the rows.
 */
tess_status op_launch_rows(struct gpu *g, const struct tess_op *op, int32_t kernel, int64_t rows,
                           int64_t columns, const void *args);
/* Rounds rows of f32 to rows of bf16, whose pitch is a multiple of 4. */
tess_status op_round_rows(struct gpu *g, const struct tess_op *op, const float *x, int64_t pitch,
                          int64_t rows, int64_t columns, void *y, int64_t y_pitch);

/* ---- ops.c */
tess_status op_check(const struct tess_op *op);
tess_status op_run(void *self, const struct tess_op *op);

/* Launches an op. */
typedef tess_status gpu_run(struct gpu *g, const struct tess_op *op);
/* Launches from->op, and maybe those after it (fuse.c). */
typedef tess_status gpu_run_fused(struct gpu *g, const struct handover *from, struct handover *to);

/* ---- rows.c */
gpu_run op_run_map; /* BIAS, ADD, SCALE */
gpu_run_fused op_run_glu, op_run_rope, op_run_norm, op_run_add;
/* Returns the arguments of a ROPE and of the one that is computed with it, which may be NULL. */
struct rope_args op_make_rope_args(const struct gpu *g, const struct tess_op *op,
                                   const struct tess_op *second);
gpu_run op_run_embed, op_run_select_rows, op_run_copy, op_run_sample;
/* Returns the arguments of a norm, x and the output without weights. */
struct norm_args op_make_norm_args(const struct tess_op *op, const double *num);
void op_set_norm_weight(const struct tess_view *w, struct norm_args *a);
/* Launches a kernel over the runs of a norm. args: its arguments, which may be a. */
tess_status op_launch_norm(struct gpu *g, const struct tess_op *op, int32_t kernel,
                           const struct norm_args *a, const void *args);

/* ---- attention.c, attention_d.c, product.c, experts.c, experts_d.c */
/* Returns the arguments of ATTENTION over pages, without scratch memory. */
/* Returns the sinks of ATTENTION or of its backward. */
struct sinks op_read_sinks(const struct tess_op *op);
struct attention_args op_make_attention_args(const struct gpu *g, const struct tess_op *op);
/* Returns whether the kernel of rows stores the keys and values of the step. */
bool op_stores_own_keys(const struct attention_args *a);
gpu_run_fused op_run_attention, op_run_linear;
/* Runs ATTENTION without pages, and ATTENTION_D. */
gpu_run op_run_texts;
gpu_run op_run_linear_dx, op_run_head_linear, op_run_head_linear_dw;
gpu_run op_run_route, op_run_experts, op_run_combine, op_run_balance;
gpu_run op_run_route_d, op_run_experts_d, op_run_experts_dw, op_run_combine_d, op_run_balance_d;
/* Returns what the device lacks for a valid ROUTE or EXPERTS, or their backward; or NULL. */
const char *op_find_experts_limit(const struct tess_op *op);
const char *op_find_experts_d_limit(const struct tess_op *op);
/* Finds the range of elements that trees [from, to) add; false if they are several ranges. */
bool op_find_run(const struct tess_op *op, int32_t from, int32_t to, int64_t *at, int64_t *len);

/* ---- experts.c, for experts_d.c */
struct carving { /* a layout of scratch memory; base NULL: only counts */
	char *base;
	int64_t used;
};
void *experts_take_scratch(struct carving *l, int64_t bytes);
/* Returns the arguments of EXPERTS and EXPERTS_D, without lists. */
struct experts_args experts_make_args(struct gpu *g, const struct tess_op *op);
/* Counts the rows that fit one part of the op, with `floats` floats for each listed row. */
int64_t experts_count_part(const struct experts_args *a, int64_t floats);
/* Lays out the lists of `rows` rows; place and slot if requested. */
void experts_lay_out_lists(struct list_args *l, struct carving *at, bool places, bool slots);
tess_status experts_launch_lists(struct gpu *g, const struct tess_op *op,
                                 const struct list_args *l);
tess_status experts_launch_combine(struct gpu *g, const struct tess_op *op,
                                   const struct experts_args *a);

/* ---- groups.c */
/*
 * How experts multiply. EXPERTS_ROWS: up to one row of each on average; rows are separate, in f32.
 * EXPERTS_FEW: up to 8 rows of each on average; by columns, a warp each, in f32. EXPERTS_BF16: more
 * than 8 rows of a step; on tensor cores. EXPERTS_F32: other cases; by tiles.
 */
enum experts_path { EXPERTS_ROWS, EXPERTS_FEW, EXPERTS_F32, EXPERTS_BF16 };
enum experts_path experts_choose_path(const struct gpu *g, const struct experts_args *a);
/* Computes z of the listed rows. Hidden has 2 ffn floats for each in f32, ffn bf16 in bf16. */
tess_status experts_multiply_f32(struct gpu *g, const struct tess_op *op,
                                 const struct experts_args *a);
tess_status experts_multiply_bf16(struct gpu *g, const struct tess_op *op,
                                  const struct experts_args *a);
/* Computes HEAD_LINEAR without the rest. */
tess_status experts_multiply_heads(struct gpu *g, const struct tess_op *op, int32_t heads,
                                   const struct heads_args *a);
/* Computes y = x w' of the rows of each group, in f32. */
tess_status experts_launch_groups(struct gpu *g, const struct tess_op *op, int32_t groups,
                                  const struct group_args *a);

/* ---- training.c */
gpu_run op_run_linear_dw, op_run_embed_dw, op_run_norm_d, op_run_norm_dw;
gpu_run op_run_row_dot;
gpu_run op_run_glu_d, op_run_head_sum, op_run_dropout, op_run_squares;
gpu_run op_run_bias_dw; /* and SEQUENCE_SUM */
gpu_run op_run_loss; /* LOSS_MAX, ..., LOSS_D */
gpu_run op_run_update; /* ADAMW, SGD */
/* Returns what the device lacks for a valid sum over tokens, heads or the vocabulary; or NULL. */
const char *op_find_training_limit(const struct tess_op *op);

/* ---- fuse.c */
int32_t op_fuses(const struct tess_op *op);
/* Returns whether the op can read or write view `i` as bf16 (`rounds` of tess_device). */
int32_t op_rounds(const struct tess_op *op, int32_t i);

/* ---- handover.c: `next` of an op has passed op_fuses. */
static inline const struct tess_op *handover_get_next(const struct tess_op *op, int32_t kind)
{
	return op->next && op->next->kind == kind ? op->next : NULL;
}
/* Returns whether the LINEAR after a NORM computes it. */
static inline bool handover_is_normed(const struct tess_op *norm)
{
	return norm->kind == TESS_OP_NORM && norm->next && norm->in[0].shape[0] == 1;
}
/* Returns whether an ATTENTION may read the inputs of both ROPEs, and rotate them itself. */
bool handover_can_turn(const struct tess_op *rope, const struct tess_op *attention);
/* Returns the operand that the ADD after a product adds to it. */
const struct tess_view *handover_get_added(const struct tess_op *linear);
/* Returns the GLU after a product if nothing reads its operands and output as f32; or NULL. */
const struct tess_op *handover_get_halved_glu(const struct gpu *g, const struct tess_op *linear);
/*
 * Prepares an op whose output is bf16, or the op before a LINEAR of many rows. Sets to->rounded to
 * the memory for a dense bf16 copy of its output, and *out to NULL if nothing reads the f32 output.
 * used: bytes of scratch memory of the op itself, a multiple of 256.
 */
tess_status handover_round_rows(struct gpu *g, const struct tess_op *op, uint64_t used, float **out,
                                struct handover *to);

/* ---- blas.c */
struct product { /* y [rows, columns] = x [rows, k] w' + more */
	const void *x, *w;
	const float *more; /* may be y; NULL: nothing is added */
	void *y; /* f32 */
	int64_t rows, columns, k, y_pitch, more_pitch;
	int64_t x_stride[2]; /* steps of a row of y, and of k: one of them is 1 */
	int64_t w_stride[2]; /* steps of a column of y, and of k: one of them is 1 */
	int32_t dtype; /* dtype of x and w: TESS_F32 or TESS_BF16 */
	bool tf32, half; /* half: y is bf16 */
	int32_t count; /* products of one x, whose w and y are w_step and y_step elements apart */
	int64_t w_step, y_step;
};
/* Multiplies by cuBLASLt. TESS_ENOTSUP, without a message: it does not support the product. */
tess_status blas_multiply(struct gpu *g, const struct tess_op *op, const struct product *p);
void blas_close(struct gpu *g);

/* ---- dnn.c */
/* Operands of attention: bf16 [texts, length, heads, d]; STATS, SUM: f32 [texts, heads, length]. */
enum dnn_operand {
	DNN_Q,
	DNN_K,
	DNN_V,
	DNN_O,
	DNN_STATS,
	DNN_G,
	DNN_DQ,
	DNN_DK,
	DNN_DV,
	DNN_SUM,
	DNN_POINTERS,
	DNN_SCALE = DNN_POINTERS,
	DNN_SOFTCAP,
	DNN_WINDOW,
	DNN_HIDDEN,
	DNN_ONE,
	DNN_OPERANDS
};
struct dnn_shape { /* causal attention; without gaps, compared as bytes */
	int64_t texts, length, heads, d;
	int32_t backward; /* reads Q, K, V, O, STATS, G; else O and STATS are written */
	float scale, softcap, window; /* 0: no softcap, no window */
};
/* Returns whether cuDNN can be used; the first call opens it. */
bool dnn_is_usable(struct gpu *g);
/*
 * Returns the bytes of workspace. TESS_ENOTSUP, without a message: cuDNN has no plan for the shape.
 */
tess_status dnn_plan(struct gpu *g, const struct tess_op *op, const struct dnn_shape *s,
                     int64_t *workspace);
/* Runs attention of a shape that has a plan. */
tess_status dnn_attend(struct gpu *g, const struct tess_op *op, const struct dnn_shape *s,
                       void *const operand[DNN_POINTERS], void *workspace);
void dnn_close(struct gpu *g);

/* ---- attention_dnn.c */
/*
 * Runs attention by cuDNN. TESS_ENOTSUP, without a message: only kernels support these sequences.
 */
tess_status op_run_texts_by_dnn(struct gpu *g, const struct tess_op *op, const struct text_args *a);

/* ---- product.c, product_tensor.c */
struct product_run { /* range of K to add, of x and of each weight */
	int64_t at, len;
	bool accumulate;
	bool half; /* the outputs become bf16, for the next GLU */
	const struct tess_op *add; /* the next op, computed as well; NULL: none */
	const struct tess_view *more; /* its addend */
	const struct tess_op *norm; /* the previous op, fused: its x is read; NULL: none */
	const uint16_t *rounded; /* x as bf16, in scratch memory; or NULL */
	bool dropped; /* and nowhere else */
	struct handover *to; /* for a LINEAR that is not LINEAR_DX */
};
int32_t product_get_math(int32_t math, const struct tess_op *op); /* returns the math of a LINEAR */
const void *product_get_weight(const struct tess_view *w, const struct product_run *r);
/* Describes weight i and row `row` of its output. */
struct multiplied product_describe_weight(const struct tess_op *op, const struct product_run *r,
                                          int32_t i, int64_t row);
/* Returns x as bf16, rows of *pitch: from the previous op, or rounded in scratch memory. */
tess_status product_round_x(struct gpu *g, const struct tess_op *op, const struct product_run *r,
                            const void **out, int64_t *pitch);
/* Sets r->add if the next op of the step is an ADD. */
void product_set_add(const struct tess_op *op, struct product_run *r);
/* Returns whether the kernels of 9 to 64 rows support it. */
bool product_can_use_tensor(const struct gpu *g, const struct tess_op *op,
                            const struct product_run *r);
tess_status product_multiply_tensor(struct gpu *g, const struct tess_op *op,
                                    const struct product_run *r);
/* Returns whether all inputs of a LINEAR are one range. */
bool product_is_one_run(const struct tess_op *op);
/*
 * Returns whether one launch of few rows, of x or of that of `norm` (or NULL), reads 16 bytes at a
 * time.
 */
bool product_reads_wide(const struct tess_op *op, const struct tess_op *norm);
/*
 * Returns whether the memory layout allows the kernels of few rows to compute a NORM for a LINEAR
 * of one.
 */
bool product_can_norm(const struct tess_op *op, const struct tess_op *norm);
/* Returns whether a LINEAR of many rows reads x only as bf16. */
bool product_reads_bf16(int32_t math, const struct tess_op *op);
/* Returns whether LINEAR, LINEAR_DX or LINEAR_DW of many rows reads operand i only as bf16. */
bool product_rounds(const struct tess_op *op, int32_t i);

/* Returns whether 16 bytes of each row can be read in one access. */
static inline bool is_row_aligned(const void *p, int64_t pitch, int64_t width)
{
	return (uintptr_t)p % 16 == 0 && pitch * width % 16 == 0;
}

/* Returns row t of activations. */
static inline float *get_gpu_row(const struct tess_view *v, int64_t t)
{
	return (float *)v->data + t * v->stride[v->ndim - 2];
}

#endif
