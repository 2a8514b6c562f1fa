/*
 * tessera/device.h - a device computes. An op is data, as a collective is: the recorded program is
 * a list of ops, and the checker, explain, the memory plan, the cost model and run() read it.
 */
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include <tessera/plugin.h>
#include <tessera/split.h>

TESS_BEGIN

enum { TESS_ROWS = 0, TESS_PANELS };
struct tess_view {                      /* a value, final: never owns data */
	void *data;
	int32_t dtype, ndim;
	int32_t layout, reserved;           /* TESS_PANELS: weight [out, in] as [out/16][in][16] */
	int64_t shape[TESS_DIMS], stride[TESS_DIMS];    /* elements; panels: of a panel, and 16 */
};

struct tess_tree {                      /* a value, final: sums units [lo, hi) of n (split.h) */
	int64_t n, lo, hi;
	int32_t first, terms;           /* its terms: term[first .. first + terms) */
};
struct tess_term {                      /* a value, final: what one operand adds to the leaves */
	int32_t operand, reserved;          /* leaf u: the first term's run, then the next one's */
	const int64_t *bound;           /* [hi - lo + 1] offsets into the contracted axis */
};

/*
 * What a record computes; docs/ops.md has operands, numbers and meaning of each. Values are never
 * renumbered; those of the backward are reserved here beside the op that they belong to.
 */
enum {
	TESS_OP_LINEAR = 1, TESS_OP_LINEAR_DX, TESS_OP_LINEAR_DW, TESS_OP_EMBED, TESS_OP_EMBED_DW,
	TESS_OP_NORM, TESS_OP_NORM_D, TESS_OP_ROPE, TESS_OP_ATTENTION, TESS_OP_ATTENTION_D,
	TESS_OP_GLU, TESS_OP_GLU_D, TESS_OP_ADD, TESS_OP_SCALE, TESS_OP_LOSS, TESS_OP_LOSS_D,
	TESS_OP_ROUTE, TESS_OP_EXPERTS, TESS_OP_ADAMW, TESS_OP_COPY, TESS_OP_FILL, TESS_OP_BIAS,
	TESS_OP_SELECT_ROWS, TESS_OP_HEAD_LINEAR, TESS_OP_COMBINE, TESS_OP_NORM_DW, TESS_OP_BIAS_DW,
	TESS_OP_HEAD_SUM, TESS_OP_SEQUENCE_SUM, TESS_OP_LOSS_MAX, TESS_OP_LOSS_SUM,
	TESS_OP_LOSS_PICK, TESS_OP_ROUTE_D, TESS_OP_EXPERTS_D, TESS_OP_EXPERTS_DW,
	TESS_OP_COMBINE_D, TESS_OP_HEAD_LINEAR_DW, TESS_OP_BALANCE, TESS_OP_BALANCE_D,
	TESS_OP_DROPOUT, TESS_OP_SQUARES, TESS_OP_SGD, TESS_OP_SAMPLE
};

/* The indices of tess_op.num, by kind of op; docs/ops.md has the units. */
enum { TESS_TOKENS_SEQUENCES, TESS_TOKENS_FIRST, TESS_TOKENS_NUMS };    /* of sums over tokens */
enum { TESS_LINEAR_DW_DTYPE = TESS_TOKENS_NUMS, TESS_LINEAR_DW_NUMS };  /* or without dtype */
enum { TESS_EMBED_FIRST, TESS_EMBED_NUMS };
enum { TESS_NORM_KIND, TESS_NORM_EPS, TESS_NORM_RUN, TESS_NORM_OFFSET, TESS_NORM_NUMS };
enum {
	TESS_ROPE_HEAD, TESS_ROPE_FIRST, TESS_ROPE_WIDTH, TESS_ROPE_INTERLEAVED, TESS_ROPE_INVERSE,
	TESS_ROPE_NUMS
};
enum { TESS_GLU_ACTIVATION, TESS_GLU_NUMS };
enum { TESS_SCALE_FACTOR, TESS_SCALE_NUMS };
enum { TESS_DROPOUT_RATE, TESS_DROPOUT_SITE, TESS_DROPOUT_FIRST, TESS_DROPOUT_NUMS };
enum { TESS_HEAD_SUM_WIDTH, TESS_HEAD_SUM_GROUP, TESS_HEAD_SUM_NUMS };
enum { TESS_LOSS_FIRST, TESS_LOSS_NUMS };
enum {
	TESS_ADAMW_LR, TESS_ADAMW_BETA1, TESS_ADAMW_BETA2, TESS_ADAMW_EPS, TESS_ADAMW_DECAY,
	TESS_ADAMW_BIAS1, TESS_ADAMW_BIAS2, TESS_ADAMW_FACTOR, TESS_ADAMW_NUMS
};
enum { TESS_SGD_LR, TESS_SGD_MOMENTUM, TESS_SGD_DECAY, TESS_SGD_FACTOR, TESS_SGD_NUMS };
enum {
	TESS_ROUTE_TOP, TESS_ROUTE_FLAGS, TESS_ROUTE_EPS, TESS_ROUTE_SCALE, TESS_ROUTE_GROUPS,
	TESS_ROUTE_GROUPS_KEPT, TESS_ROUTE_NUMS
};
enum { TESS_LINEAR_MATH, TESS_LINEAR_NUMS };    /* or none: of what dtype products are */
enum {
	TESS_EXPERTS_ACTIVATION, TESS_EXPERTS_SLOTS, TESS_EXPERTS_MATH, TESS_EXPERTS_TOP,
	TESS_EXPERTS_NUMS
};
enum { TESS_BALANCE_FACTOR, TESS_BALANCE_TOP, TESS_BALANCE_NUMS };
/* Columns of an operand and of the out; NAN: 1 if the first non-finite logit is NaN, else 0. */
enum {
	TESS_SAMPLE_TEMPERATURE, TESS_SAMPLE_TOP_P, TESS_SAMPLE_MIN_P, TESS_SAMPLE_TOP_K,
	TESS_SAMPLE_NUMBER, TESS_SAMPLE_PENALTY, TESS_SAMPLE_SET, TESS_SAMPLE_NUMS
};
enum { TESS_SAMPLE_ID, TESS_SAMPLE_ODD, TESS_SAMPLE_FIRST_ODD, TESS_SAMPLE_NAN, TESS_SAMPLE_OUTS };
enum {
	TESS_ATTENTION_SCALE, TESS_ATTENTION_WINDOW, TESS_ATTENTION_HEAD, TESS_ATTENTION_FIRST,
	TESS_ATTENTION_GROUP, TESS_ATTENTION_KEYS, TESS_ATTENTION_VALUES, TESS_ATTENTION_DTYPE,
	TESS_ATTENTION_SOFTCAP, TESS_ATTENTION_VALUE, TESS_ATTENTION_RATE, TESS_ATTENTION_SITE,
	TESS_ATTENTION_NUMS
};

struct tess_op {                        /* an out [nodes, ...], with one axis more, is a Partial */
	uint32_t size;
	int32_t kind;
	int32_t nin, nout, nnum, ntree, nterm, reserved;
	const struct tess_view *in;
	const struct tess_view *out;
	const double *num;              /* eps, base, scale, ...; integers up to 2^53 are exact */
	const struct tess_tree *tree;   /* several: each is finished, then the tree over them */
	const struct tess_term *term;
	void *stream;
	const char *where;
	/* The op that is run next on the stream, with nothing between; NULL: unknown. A device may
	 * compute both: its call for the next one then does nothing. */
	const struct tess_op *next;
	/* 1: nothing but `next` reads the outs. A device that hands them on to it by itself may
	 * leave their memory unwritten. 0 without `next`. */
	int64_t only_next;
};
TESS_TIGHT(tess_op, only_next);

/*
 * Memory of alloc() is read and written by run, pack and copy only, unless `mem` is TESS_HOST. What
 * is queued on a stream runs in order; `stream` is one of stream_open, or NULL if that is missing
 * or `mem` is TESS_HOST. Host memory of a copy must not change before sync; an op may.
 */
struct tess_device {
	uint32_t size;
	int32_t mem;                    /* of alloc: TESS_HOST, TESS_CUDA, or 32 to TESS_MEM_MAX */
	const char *name, *summary;
	/* required */
	int32_t (*count)(void);                                 /* 0: none on this machine */
	/* Refuses an op that this device cannot run: a kind without a kernel, a size too large.
	 * The core has checked shapes, types and sums by docs/ops.md. Reads no data. */
	tess_status (*supports)(const struct tess_op *op);
	tess_status (*open)(int32_t index, int32_t nthreads, void **self);
	tess_status (*alloc)(void *self, uint64_t bytes, void **out);   /* 64-byte aligned */
	void (*free)(void *self, void *p);
	tess_status (*run)(void *self, const struct tess_op *op);       /* queued on op->stream */
	/* From rows in host memory; done when it returns. */
	tess_status (*pack)(void *self, const struct tess_view *rows, struct tess_view *panels);
	tess_status (*copy)(void *self, void *dst, const void *src, uint64_t bytes, void *stream);
	tess_status (*sync)(void *self, void *stream);
	void (*close)(void *self);
	/* optional */
	tess_status (*stream_open)(void *self, void **stream);
	void (*stream_close)(void *self, void *stream);
	tess_status (*capture)(void *self, void *stream, int32_t begin, void **graph);
	tess_status (*replay)(void *self, void *graph, void *stream);
	int32_t layout;                 /* of linear weights, as it wants it: TESS_ROWS, ... */
	int32_t exact;                  /* 1: sums are in the order of split.h; 0: a Partial is one
	                                   node, [1, ...], and the ranks' are added in any order */
	tess_status (*free_bytes)(void *self, uint64_t *out);   /* of its memory, now */
	void (*graph_close)(void *self, void *graph);           /* of capture */
	/* Both or none: point 0 or 1 of a rank; reached: TESS_PENDING until all is done that was
	 * queued on the stream before it was marked last. */
	tess_status (*mark)(void *self, void *stream, int32_t point);
	tess_status (*reached)(void *self, int32_t point);
	/* Of the KV cache beside linear weights of a dtype, where a session does not say: TESS_F32,
	 * as without it, or TESS_BF16. In training: the dtype of attention. */
	int32_t (*kv_dtype)(int32_t weights);
	/* What is queued on `stream` from now on runs after what is on `after` now. */
	tess_status (*follow)(void *self, void *stream, void *after);
	int64_t prompt_rows;            /* of prompts in a step, by default; 0: 512 */
};
TESS_TIGHT(tess_device, prompt_rows);

TESS_END
#endif
