/*
 * tessera/device.h - the contract of ops, and the interface of a device that computes them.
 *
 * A recorded program is a list of ops. An op is data: a kind, views of its operands and outs,
 * numbers, and for sums the ranges of the contracted axis that this rank adds. This header defines
 * every kind. docs/ops.md has what ops share: the order of sums, the layouts of weights, and how
 * values may be placed.
 *
 * Example:
 *     static void add_values(const struct tess_op *op)
 *     {
 *             const struct tess_view *a = &op->in[0], *b = &op->in[1], *y = &op->out[0];
 *
 *             for (int64_t t = 0; t < y->shape[0]; t++)
 *                     for (int64_t i = 0; i < y->shape[1]; i++)
 *                             ((float *)y->data)[t * y->stride[0] + i] =
 *                                     ((const float *)a->data)[t * a->stride[0] + i] +
 *                                     ((const float *)b->data)[t * b->stride[0] + i];
 *     }
 */
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include <tessera/plugin.h>
#include <tessera/split.h>

/* clang-format off */

TESS_BEGIN

enum {                                  /* layouts of a view */
	TESS_ROWS = 0,                  /* element (i, j) at i * stride[0] + j * stride[1] */
	TESS_PANELS                     /* a weight [out, in] as [out / 16][in][16] */
};

enum {                                  /* rows of TESS_MXFP4, which only `pack` reads: blocks */
	TESS_MXFP4_ELEMENTS = 32,       /* elements of a row: a byte of their scale, then their */
	TESS_MXFP4_BYTES = 17           /* codes, the first of each two in the low 4 bits */
};

struct tess_view {                      /* a tensor in memory; a value, final; never owns data */
	void *data;                     /* the first element */
	int32_t dtype;                  /* TESS_F32, ... */
	int32_t ndim;                   /* axes; 0: an optional operand is absent */
	int32_t layout;                 /* TESS_ROWS or TESS_PANELS */
	int32_t reserved;               /* 0 */
	int64_t shape[TESS_DIMS];       /* elements of each axis */
	int64_t stride[TESS_DIMS];      /* in elements; panels: from panel to panel, then 16 */
};

struct tess_tree {                      /* a sum over units (split.h); a value, final */
	int64_t n;                      /* units of the complete dimension */
	int64_t lo, hi;                 /* units that this rank adds: [lo, hi) */
	int32_t first;                  /* its terms are term[first .. first + terms) */
	int32_t terms;                  /* number of terms */
};

struct tess_term {                      /* what one operand adds to each unit; a value, final */
	int32_t operand;                /* index of the operand whose axis is contracted */
	int32_t reserved;               /* 0 */
	const int64_t *bound;           /* [hi - lo + 1] offsets into that axis: unit lo + i adds
	                                 * the elements [bound[i], bound[i + 1]) */
};

/*
 * Kinds of ops. _D, _DX and _DW are the gradients of values and of weights. The numbers stay within
 * an ABI: a new kind is the last one.
 */
enum {
	/* products */
	TESS_OP_LINEAR = 1,             /* rows times weights */
	TESS_OP_LINEAR_DX,
	TESS_OP_LINEAR_DW,
	TESS_OP_HEAD_LINEAR,            /* each head of a row times a weight of its own */
	TESS_OP_HEAD_LINEAR_DW,
	/* tables */
	TESS_OP_EMBED,                  /* rows of a table by id */
	TESS_OP_EMBED_DW,
	TESS_OP_SELECT_ROWS,            /* some rows of a value */
	TESS_OP_COPY,                   /* a value with other strides */
	/* elements and rows */
	TESS_OP_ADD,
	TESS_OP_SCALE,                  /* times a number */
	TESS_OP_GLU,                    /* an activation, gated or not */
	TESS_OP_GLU_D,
	TESS_OP_SIGMOID,
	TESS_OP_SIGMOID_D,
	TESS_OP_BIAS,                   /* plus a vector */
	TESS_OP_BIAS_DW,
	TESS_OP_NORM,                   /* RMS norm and layer norm */
	TESS_OP_NORM_D,
	TESS_OP_NORM_DW,
	TESS_OP_DROPOUT,
	/* positions */
	TESS_OP_ROPE,                   /* rotary embedding; its own gradient */
	TESS_OP_ATTENTION,              /* causal, with the KV cache */
	TESS_OP_ATTENTION_D,
	/* mixtures of experts */
	TESS_OP_ROUTE,                  /* routing weights from logits */
	TESS_OP_ROUTE_D,
	TESS_OP_EXPERTS,                /* the MLP of the experts that rows request */
	TESS_OP_EXPERTS_D,
	TESS_OP_EXPERTS_DW,
	TESS_OP_COMBINE,                /* weighted sum of the results of experts */
	TESS_OP_COMBINE_D,
	TESS_OP_BALANCE,                /* sums for the load balancing loss */
	TESS_OP_BALANCE_D,
	/* sums of gradients */
	TESS_OP_HEAD_SUM,               /* over the heads that share a key-value head */
	TESS_OP_SEQUENCE_SUM,           /* over the sequences of a step */
	/* loss */
	TESS_OP_LOSS_MAX,               /* the three parts of the cross-entropy */
	TESS_OP_LOSS_SUM,
	TESS_OP_LOSS_PICK,
	TESS_OP_LOSS,                   /* the loss of each row from them */
	TESS_OP_LOSS_D,
	/* sampling; optimizer */
	TESS_OP_SAMPLE,                 /* chooses the next id of each row */
	TESS_OP_SQUARES,                /* for the norm of the gradient */
	TESS_OP_ADAMW,
	TESS_OP_SGD,
	/* elements and rows, continued */
	TESS_OP_MUL,                    /* times a value, or times a factor for each row */
	TESS_OP_ROW_DOT,                /* the gradient of these factors */
	TESS_OP_CLAMP,
	TESS_OP_CLAMP_D,
	TESS_OP_KINDS                   /* one more than the last kind */
};

/*
 * How the blocks below are read.
 *
 * T        number of tokens (rows) on this rank; may be 0
 * [T, N]   f32 rows: stride[0] >= N, stride[1] = 1; other dtypes are named; bf16 where the device
 *          `rounds` them
 * vector   weight [N] in f32, bf16 or f16
 * weight   [N, K] in f32, bf16 or f16: rows of any strides, or panels
 * linear   a weight that may also be TESS_Q8, TESS_BF12 or TESS_MXFP4, in panels
 * ids      i32 [T], dense; so are positions, slots and labels
 * g        the gradient of an out of the forward op; dx: the gradient of operand x
 * Partial  an out that may have one more, leading axis, [nodes, ...]: instead of the finished sum
 *          the largest nodes of each tree's units [lo, hi), those of the first tree first. On a
 *          device without `exact` it is one node. A finished sum needs all units of its trees.
 * tokens   a sum over the rows of a step, see TESS_TOKENS_SEQUENCES
 *
 * Weights are widened to f32 exactly, and arithmetic is f32. Unless FMA is named, each operation is
 * rounded by itself; FMA(x, w) adds x * w to the sum with one rounding. Sums over trees have the
 * order of docs/ops.md; a chain adds in increasing index from +0. exp, erf, tanh, sin, cos and log
 * are the device's own: a device with `exact` gives the same bits everywhere.
 *
 * In place: an out of ADD, MUL, SCALE, GLU, GLU_D, SIGMOID, SIGMOID_D, CLAMP, CLAMP_D, BIAS, NORM,
 * NORM_D, ROPE, DROPOUT and LOSS_D may have the address and strides of an operand [T, N]. Outs of
 * other ops overlap no operand.
 *
 * The core checks every op by these rules before it calls supports() or run().
 */

/*
 * Sums over tokens. One tree for each sequence of which this rank has rows, in the order of the
 * rows, over the sequence's units of 32 positions; one term of row numbers of operand 0. A rank
 * without rows has no tree. What is summed to a vector is one row [1, N].
 *
 * Finished out: all sequences are here. Each is finished, then added by the tree over them, and
 * finished. Partial out: with `sequences` > 0 each sequence is finished, and the nodes are those of
 * [first, first + trees) of the tree over sequences; with 0 they are the nodes of each sequence's
 * own tree.
 */
enum {
	TESS_TOKENS_SEQUENCES,          /* sequences of the complete step, or 0 */
	TESS_TOKENS_FIRST,              /* index of this rank's first sequence */
	TESS_TOKENS_NUMS                /* numbers of the kind follow */
};

/* ---- products */

/*
 * LINEAR: y_i = x W_i^T, for n weights.
 *   in     x [T, K]; linear W_1 [N_1, K] .. W_n [N_n, K]
 *   out    y_i [T, N_i], or all Partials [nodes, T, N_i]
 *   num    none, or TESS_LINEAR_MATH
 *   tree   over K, operand 0, alike for all weights; elements of K in no unit are not added
 * y[t, j] = sum over K of FMA(x[t, k], W[j, k]).
 */
enum {
	TESS_LINEAR_MATH,               /* dtype of products: 0: the device's own, which is f32 if
	                                 * sums are exact; TESS_F32: f32 on every device, as for
	                                 * routers; TESS_BF16: "Products of bf16" in docs/ops.md,
	                                 * which rounds f32 and f16 weights in rows, too */
	TESS_LINEAR_NUMS
};

/*
 * LINEAR_DX: the gradient of x over all weights of a LINEAR.
 *   in     g_1 [T, N_1] .. g_n; weights W_1 [N_1, K] .. W_n, in rows
 *   out    dx [T, K], Partial [nodes, T, K]
 *   num    none, or TESS_LINEAR_MATH
 *   tree   over all N_i; operand of a term is i, bounds are offsets into N_i
 * dx[t, k] = sum over all j of FMA(g[t, j], W[j, k]).
 */

/*
 * LINEAR_DW: the gradient of a weight.
 *   in     x [T, K]; g [T, N]
 *   out    dW [N, K], Partial [nodes, N, K]; the stride of one of the two axes is 1
 *   num    TESS_TOKENS_..., then TESS_LINEAR_DW_... or nothing
 *   tree   tokens
 * dW[j, k] = sum over tokens of FMA(g[t, j], x[t, k]).
 */
enum {
	TESS_LINEAR_DW_DTYPE = TESS_TOKENS_NUMS, /* dtype of the weight; absent: f32 */
	TESS_LINEAR_DW_MATH, /* as TESS_LINEAR_MATH; absent: 0 */
	TESS_LINEAR_DW_NUMS
};

/*
 * HEAD_LINEAR: each head of x times its own matrix; the rest of the head is copied.
 *   in     x [T, heads * (K + rest)]; weight W [heads, N, K]: the stride of a head, then those of
 *          its matrix in rows or panels
 *   out    y [T, heads * (N + rest)]
 * y[t, h, j] = chain over k of FMA(x[t, h, k], W[h, j, k]), then + 0.0f. The last `rest` elements
 * of a head of y are those of x. The gradient of x is HEAD_LINEAR of g, with the strides of N and K
 * of the weight exchanged.
 */

/*
 * HEAD_LINEAR_DW: the gradient of the weight of HEAD_LINEAR, without the rest.
 *   in     x [T, heads * (K + rest)]; g [T, heads * (N + rest)]
 *   out    dW [heads, N, K], Partial [nodes, heads, N, K]; the stride of N or K is 1
 *   num    TESS_TOKENS_...
 *   tree   tokens
 * dW[h, j, k] = sum over tokens of FMA(g[t, h, j], x[t, h, k]).
 */

/* ---- tables */

/*
 * EMBED: looks up rows of a table.
 *   in     ids; weight table [V, H], in rows or panels
 *   out    y [T, H], Partial [nodes, T, H]
 *   num    TESS_EMBED_FIRST
 *   tree   over V, only for a Partial
 * y is the row of the id, + 0.0f. In a Partial the row is in the node whose units hold the id. All
 * other nodes, and rows of ids that this rank does not hold, are 0. Ids outside the vocabulary are
 * refused before any op runs.
 */
enum {
	TESS_EMBED_FIRST,               /* id of row 0 of the table; may be negative */
	TESS_EMBED_NUMS
};

/*
 * EMBED_DW: the gradient of the table.
 *   in     ids; g [T, H]
 *   out    dtable [V, H], Partial [nodes, V, H]
 *   num    TESS_TOKENS_..., then as EMBED
 *   tree   tokens
 * Row i is the sum, by additions, of the rows of g whose id is that of row i; without any it is +0.
 */

/*
 * SELECT_ROWS: y[s] = x[rows[s]].
 *   in     x [T, N]; rows i32 [S]
 *   out    y [S, N]
 */

/*
 * COPY: copies elements between strides.
 *   in     x, at most 3 axes, any strides, any dtype except compressed ones
 *   out    y of the shape and dtype of x, any strides
 */

/* ---- elements and rows */

/*
 * ADD: y = a + b.
 *   in     a [T, N]; b [T, N]
 *   out    y [T, N]
 */

/*
 * SCALE: y = x * factor, with the factor rounded to f32.
 *   in     x [T, N]
 *   out    y [T, N]
 *   num    TESS_SCALE_FACTOR
 */
enum {
	TESS_SCALE_FACTOR,
	TESS_SCALE_NUMS
};

/*
 * GLU: y = act(a) * b, or act(a).
 *   in     a [T, N]; b [T, N], optional: one operand
 *   out    y [T, N]
 *   num    TESS_GLU_ACTIVATION
 * silu:       a * (1 / (1 + exp(-a)))
 * gelu:       (a * 0.5) * (1 + erf(a * 0.70710678))
 * gelu_tanh:  (a * 0.5) * (1 + tanh(0.79788456 * (a + 0.044715 * ((a * a) * a))))
 * relu:       a < 0 ? 0 : a
 * tanh:       tanh(a)
 */
enum {
	TESS_GLU_ACTIVATION,            /* TESS_SILU to TESS_TANH */
	TESS_GLU_NUMS
};

/*
 * GLU_D: the gradients of GLU.
 *   in     a [T, N]; b [T, N] or absent; g [T, N]
 *   out    da [T, N]; db [T, N] or absent
 *   num    as GLU
 * With f = act(a) and u = g * b (without b: g): db = g * f, da = u * f'.
 * silu:       s = 1 / (1 + exp(-a)), f' = s * (1 + a * (1 - s))
 * gelu:       f' = 0.5 * (1 + erf(a * 0.70710678)) + a * (0.39894228 * exp((a * a) * -0.5))
 * gelu_tanh:  t = tanh(0.79788456 * (a + 0.044715 * ((a * a) * a))),
 *             f' = (1 + t) * 0.5
 *                  + ((a * 0.5) * (1 - t * t)) * (0.79788456 * (1 + 0.134145 * (a * a)))
 * relu:       da = a <= 0 ? 0 : u
 * tanh:       f' = 1 - t * t, t = tanh(a)
 */

/*
 * SIGMOID: y = 1 / (1 + exp(-x)).
 *   in     x [T, N]
 *   out    y [T, N]
 */

/*
 * SIGMOID_D: dx = g * (y * (1 - y)).
 *   in     y [T, N], the out of SIGMOID; g [T, N]
 *   out    dx [T, N]
 */

/*
 * MUL: y = a * b.
 *   in     a [T, N]; b [T, N], or [T, 1]: a factor for each row
 *   out    y [T, N]
 */

/*
 * ROW_DOT: y[t, 0] = sum over columns of FMA(a, b): of a MUL, the gradient of factors.
 *   in     a [T, N]; b [T, N]
 *   out    y [T, 1]
 *   tree   one with one term, over N
 */

/*
 * CLAMP: y = x < low ? low : x > high ? high : x. NaN stays.
 *   in     x [T, N]
 *   out    y [T, N]
 *   num    TESS_CLAMP_...
 */
enum {
	TESS_CLAMP_LOW,                 /* rounded to f32, not above high */
	TESS_CLAMP_HIGH,                /* rounded to f32 */
	TESS_CLAMP_NUMS
};

/*
 * CLAMP_D: dx = x < low or x > high ? 0 : g.
 *   in     x [T, N]; g [T, N]
 *   out    dx [T, N]
 *   num    as CLAMP
 */

/*
 * BIAS: y = x + b in each row.
 *   in     x [T, N]; vector b [N]
 *   out    y [T, N]
 */

/*
 * BIAS_DW: the gradient of a bias: the sum of g over tokens, by additions.
 *   in     g [T, N]
 *   out    db [1, N], Partial [nodes, 1, N]
 *   num    TESS_TOKENS_...
 *   tree   tokens
 */

/*
 * NORM: normalizes each row, or each run of a row.
 *   in     x [T, H]; vector w [H or run], or absent: 1; TESS_LAYER: vector b of the same size,
 *          optional
 *   out    y [T, H]
 *   num    TESS_NORM_...
 *   tree   one with one term: over H, or over a run as one unit
 * n is the number of elements summed, as f32. Square root and division are those of IEEE.
 * TESS_RMS:    s = 1 / sqrt(sum of FMA(x, x) / n + eps), y = (x * s) * w
 * TESS_LAYER:  d = x - sum(x) / n, s = 1 / sqrt(sum of FMA(d, d) / n + eps), y = (d * s) * w + b
 */
enum {
	TESS_NORM_KIND,                 /* TESS_RMS or TESS_LAYER */
	TESS_NORM_EPS,                  /* rounded to f32 */
	TESS_NORM_RUN,                  /* elements of a run, such as a head; 0: all H */
	TESS_NORM_OFFSET,               /* 1: w is the rounded sum 1 + w; else 0 */
	TESS_NORM_NUMS
};

/*
 * NORM_D: the gradient of x.
 *   in     x [T, H]; vector w; g [T, H]
 *   out    dx [T, H]
 *   num    as NORM
 *   tree   as NORM
 * s, d, n and w are those of NORM, and u = g * w. Sums of products are of FMA(u, h).
 * TESS_RMS:    h = x * s, c = sum(u * h) / n, dx = s * (u - h * c)
 * TESS_LAYER:  h = d * s, a = sum(u) / n, c = sum(u * h) / n, dx = s * ((u - a) - h * c)
 */

/*
 * NORM_DW: the gradient of w. That of b is BIAS_DW.
 *   in     x [T, H]; g [T, H]
 *   out    dw [1, H], Partial [nodes, 1, H]; runs are kept apart
 *   num    TESS_TOKENS_..., then as NORM
 *   tree   that of NORM, then tokens
 * dw = sum over tokens of FMA(g, h), with h of NORM_D.
 */

/*
 * DROPOUT: drops elements at random, and scales the others. It is its own gradient.
 *   in     x [T, N]; positions; slots; step i32 [4]
 *   out    y [T, N]
 *   num    TESS_DROPOUT_...
 * Element j of row t has i = first + j. Its random number is word i % 4 of Philox4x32-10
 * (tessera/util/random.h) of the counter (i / 4, position, step[2] + slot, site) under the key
 * (step[0], step[1]). If the number is less than rate * 2^32, rounded down, y is +0. Else y is x
 * times 1 / (1 - rate), which is computed in double and rounded once. step[2] is the index of the
 * sequence of slot 0 in the complete step. So the number of an element does not depend on the rank.
 */
enum {
	TESS_DROPOUT_RATE,              /* more than 0, less than 1 */
	TESS_DROPOUT_SITE,              /* number of the dropout in the program */
	TESS_DROPOUT_FIRST,             /* index of column 0 in the complete row */
	TESS_DROPOUT_NUMS
};

/* ---- positions */

/*
 * ROPE: rotates pairs of elements of each head by an angle of the position. Its gradient is ROPE
 * with the inverse.
 *   in     x [T, N]; positions; table f32 [P, width]: cosines, then sines, of width / 2 angles;
 *          P may be 0 while a plan is checked
 *   out    y [T, N]
 *   num    TESS_ROPE_...
 * Pair i of the `width` elements is (i, i + width / 2), interleaved (2i, 2i + 1). With cos and sin
 * of row position[t]: y[a] = x[a] * cos - x[b] * sin, y[b] = x[b] * cos + x[a] * sin. Elements
 * outside of `width` are copied.
 */
enum {
	TESS_ROPE_HEAD,                 /* elements of a head; heads fill a row */
	TESS_ROPE_FIRST,                /* first rotated element of a head */
	TESS_ROPE_WIDTH,                /* number of rotated elements, even */
	TESS_ROPE_INTERLEAVED,          /* 0 or 1 */
	TESS_ROPE_INVERSE,              /* 1: sin is -sin */
	TESS_ROPE_NUMS
};

/*
 * ATTENTION: stores keys and values, then attends to the positions up to each row's own.
 *   in     q [T, h * d]; k [T, g * d]; v [T, g * value], optional: ndim 0; positions; slots;
 *          pages i64 [slots, blocks], 0 rows while a plan is checked, or ndim 0;
 *          with dropout: step i32 [4], ndim 0 if sinks follow without dropout; with sinks:
 *          vector sinks [h]
 *   out    y [T, h * value]
 *   num    TESS_ATTENTION_...
 *   tree   none; the keys are summed in units of 64 positions, n = 2^25
 * A slot is one sequence. Rows of a slot are adjacent, and their positions increase by one.
 *
 * pages[s][b] is the address of the page of positions 64 b to 64 b + 63 of slot s in the device's
 * memory, 0 if there is none (not yet, or before the window). At byte `keys` of a page are this
 * op's keys [g, d, 64], at byte `values` its values [g, 64, value], in `dtype`, rounded to nearest
 * even once when stored. Other bytes are of other layers. No op writes positions, slots or pages.
 *
 * k and v of all rows are stored first. Then query head h, with key-value head (first + h) / group
 * - first / group, over the positions p <= own (and p > own - window, if there is one, or chunked:
 * p >= own - own % window):
 *   z_p = (chain over d of FMA(q, k_p)) * scale; with a softcap c: z_p = c * tanh(z_p / c)
 *   m = max z_p; e_p = exp(z_p - m); s = sum of e_p, chains of additions in a unit
 *   w_p = e_p / s; y = sum of FMA(w_p, v_p)
 * With the sink a of the head, m is at least a, and s is the finished sum + exp(a - m).
 * A masked position is absent: it is neither multiplied nor added.
 *
 * Without v the value of a position is the first `value` elements of its key, and pages have keys
 * only. Without pages (training) the rows of each slot are a complete sequence from position 0,
 * whose k and v are its keys and values, and nothing is stored. With `dtype` TESS_BF16 a device
 * without `exact` may then round operands, weights and outs to bf16.
 *
 * Dropout: after the softmax w_p of row t is dropped or scaled as element p of the row at site
 * `site` + i, i the number of the head among all heads; see DROPOUT.
 */
enum {
	TESS_ATTENTION_SCALE,           /* of scores */
	TESS_ATTENTION_WINDOW,          /* positions that a row attends to; 0: all */
	TESS_ATTENTION_HEAD,            /* d: elements of a head of q and k */
	TESS_ATTENTION_FIRST,           /* index of this rank's first query head */
	TESS_ATTENTION_GROUP,           /* query heads that share a key-value head */
	TESS_ATTENTION_KEYS,            /* bytes in a page before the keys; without pages: the
	                                 * length of the longest sequence if slots are 0, 1, .. in
	                                 * this order, else 0 */
	TESS_ATTENTION_VALUES,          /* bytes in a page before the values; without pages: the
	                                 * number of sequences, or 0 as above */
	TESS_ATTENTION_DTYPE,           /* of the cache: TESS_F32 or TESS_BF16 */
	TESS_ATTENTION_SOFTCAP,         /* 0: none */
	TESS_ATTENTION_VALUE,           /* elements of a head of v; without v at most d */
	TESS_ATTENTION_RATE,            /* of dropout; 0: none */
	TESS_ATTENTION_SITE,            /* of dropout, of head 0 */
	TESS_ATTENTION_CHUNKED,         /* 1: the window is the chunk of a row, from a multiple of
	                                 * its size on; else 0 */
	TESS_ATTENTION_NUMS
};

/*
 * ATTENTION_D: the gradients of ATTENTION without pages.
 *   in     q, k, v or absent, positions, slots as there; g [T, h * value]; step and sinks as there
 *   out    dq [T, h * d]; dk [T, h * d]; dv [T, h * value], or absent without v; with sinks:
 *          dsinks [T, h], whose sum over rows is the gradient
 *   num    as ATTENTION
 *   tree   none; keys as ATTENTION, queries in units of 32 positions, n = 2^26
 * dk and dv are those of each query head; HEAD_SUM adds the heads of a group. For row t and query
 * head h, over the positions p that t attends to, with z, w and c of ATTENTION:
 *   u_p = chain over value of FMA(g, v_p); r = sum of FMA(w_p, u_p)
 *   s_p = w_p * (u_p - r); softcap: y = z_p / c, s_p = s_p * (1 - y * y); s_p = s_p * scale
 *   dq = sum of FMA(s_p, k_p); dsinks = -((exp(a - m) / s) * r)
 * For each position and query head, over the queries that attend to it:
 *   dk = sum of FMA(s, q); dv = sum of FMA(w, g)
 * Without v, dv is added to the first `value` elements of dk. Dropout applies to w in dv, and to
 * u_p before r and s_p, which read w_p before dropout. A masked pair is absent; a device may add
 * its product with 0, so which sums are NaN is not defined if an operand is non-finite.
 */

/* ---- mixtures of experts */

/*
 * ROUTE: routing weights of each row; 0 for experts that the row does not request.
 *   in     logits [T, E]; vector b [E], the correction, optional: one operand
 *   out    weights [T, E]
 *   num    TESS_ROUTE_...
 * Scores, softmax:  s_i = exp(x_i - max) / sum, the sum a chain of additions
 * Scores, sigmoid:  s_i = 1 / (1 + exp(-x_i))
 * Choice:           the `top` largest of c_i = s_i + b_i. With groups > 1, runs of E / groups
 *                   experts, only the groups with the largest sums of their two largest c remain;
 *                   flag 4: those with the largest c.
 *                   Of equal values the lowest index is first; a NaN is larger than any number.
 * Weights:          w_i = s_i * scale of the chosen; normalized: (s_i / (S + eps)) * scale, S the
 *                   chain of additions of the chosen s_i
 */
enum {
	TESS_ROUTE_TOP,                 /* experts of a row */
	TESS_ROUTE_FLAGS,               /* bits: 1 sigmoid, else softmax; 2 normalize; 4 above */
	TESS_ROUTE_EPS,                 /* added to the sum of the chosen */
	TESS_ROUTE_SCALE,               /* of weights */
	TESS_ROUTE_GROUPS,              /* equal groups of experts; 0 or 1: none */
	TESS_ROUTE_GROUPS_KEPT,         /* groups that experts are chosen from */
	TESS_ROUTE_NUMS
};

/*
 * ROUTE_D: the gradient of the logits. The choice, b and groups have none.
 *   in     logits [T, E]; weights [T, E]; g [T, E]
 *   out    dlogits [T, E]
 *   num    as ROUTE
 * Sums are chains over the chosen experts, with s and S of ROUTE and a_i = g_i * scale:
 * normalized:  n_i = s_i / (S + eps), c = sum of FMA(a_i, n_i), q_i = (a_i - c) / (S + eps)
 * else:        q_i = a_i; q_i = 0 for experts not chosen
 * softmax:     r = sum of FMA(q_i, s_i), dlogits = s_i * (q_i - r) for every expert
 * sigmoid:     dlogits = q_i * (s_i * (1 - s_i)), +0 for experts not chosen
 */

/*
 * EXPERTS: the MLPs of the experts, each over the rows that request it.
 *   in     x [T, K]; weights [T, e] of this rank's e experts; linear gate_up [e, 2F, K]; linear
 *          down [e, H, F]; stride[0] is that of an expert, then those of its matrix; optional:
 *          weights b [e, 2F] in rows, biases
 *   out    y [T, H], Partial [nodes, T, H]; with s slots [T, s * H], Partial [nodes, T, s * H]
 *   num    TESS_EXPERTS_...
 *   tree   over K (operand 0); over F (operand 3); over the experts (operand 1), one a unit
 * A weight of 0 is an expert that the row does not request: its result is absent, and the matrices
 * of an expert without rows are not read. For the others, with products as in LINEAR:
 *   [a | b] = x * gate_up, finished, + bias; h = act(a) * b, as GLU; z = h * down, finished
 * With a limit L, columns of gate_up alternate: a, b, a, b, ..; then c = min(a, L), u = b in
 * [-L, L], h = (c / (1 + exp(-(alpha * c)))) * (u + 1).
 *   y = sum over experts of w * z; a leaf is the rounded product
 * With slots nothing is weighted or added: slot j of a row is z (or its nodes over F) of expert j
 * among those that the row requests here, in increasing order; other slots are 0.
 */
enum {
	TESS_EXPERTS_ACTIVATION,        /* as GLU */
	TESS_EXPERTS_SLOTS,             /* s, at least the experts of any row here; 0: no slots */
	TESS_EXPERTS_MATH,              /* as TESS_LINEAR_MATH */
	TESS_EXPERTS_TOP,               /* maximum experts that a row requests; 0: all */
	TESS_EXPERTS_LIMIT,             /* L; 0: none */
	TESS_EXPERTS_ALPHA,             /* with a limit */
	TESS_EXPERTS_NUMS
};

/*
 * EXPERTS_D: the gradients of EXPERTS with slots, as if each weight were 1.
 *   in     x [T, K]; weights [T, e]; gate_up [e, 2F, K] and down [e, H, F], weights in rows;
 *          g [T, H]; optional: the biases
 *   out    dx [T, s * K], Partial [nodes, T, s * K]; mid [T, s * 3F]
 *   num    as EXPERTS, with slots
 *   tree   over K (operand 0); over H (operand 4); over 2F (operand 2)
 * For each requested expert, with products by FMA, the activation first:
 *   [a | b] = x * gate_up; e_f = sum over H of g_j * down[j, f]
 *   h = act(a) * b; db = e * act(a); da = (e * b) * act'(a), as GLU_D
 *   a slot of mid is [da | db | h]; one of dx is the sum over 2F of [da | db]_j * gate_up[j, k]
 * With a limit, [da | db] alternate as [a | b]; with s = 1 / (1 + exp(-(alpha * c))):
 *   da = (e * (u + 1)) * (s * (1 + (alpha * c) * (1 - s))), +0 if a > L; db = e * (c * s), +0 if
 *   b is outside of [-L, L]
 * Unused slots of dx are 0, of mid not written. COMBINE of dx is the gradient of x.
 */

/*
 * EXPERTS_DW: the gradients of the matrices.
 *   in     x [T, K]; weights [T, e]; g [T, H]; mid [T, s * 3F] of EXPERTS_D
 *   out    dgate_up [e, 2F, K], Partial [nodes, e, 2F, K]; ddown [e, H, F], Partial
 *          [nodes, e, H, F]; the stride of one of the last two axes is 1; optional: dbias
 *          [e, 2F, 1], Partial [nodes, e, 2F, 1]
 *   num    TESS_TOKENS_..., then TESS_EXPERTS_DW_MATH or nothing
 *   tree   tokens
 * Over the tokens that request the expert, with weight w; the product with w is rounded:
 *   dgate_up[j, k] = sum of FMA(w * [da | db]_j, x_k); ddown[j, f] = sum of FMA(w * g_j, h_f)
 * dbias[j] = sum of w * [da | db]_j. An expert without tokens gets +0. TESS_BF16 rounds the
 * products with w; dbias stays in f32.
 */
enum {
	TESS_EXPERTS_DW_MATH = TESS_TOKENS_NUMS, /* as TESS_LINEAR_MATH; absent: 0 */
	TESS_EXPERTS_DW_NUMS
};

/*
 * COMBINE: y = sum over the experts of w * z, in the order of EXPERTS.
 *   in     z [T, s * H], the finished out of EXPERTS with slots; weights [T, e]
 *   out    y [T, H], Partial [nodes, T, H]
 *   tree   over the experts (operand 1)
 */

/*
 * COMBINE_D: the gradient of the weights.
 *   in     z [T, s * H]; weights [T, e]; g [T, H]
 *   out    dw [T, e]
 *   tree   over H (operand 2)
 * dw of a requested expert is the sum over H of FMA(g, z), z its slot; of the others +0.
 */

/*
 * BALANCE: sums over tokens of L mixtures, for the load balancing loss.
 *   in     logits_1 [T, E]; weights_1 [T, E] .. logits_L; weights_L
 *   out    totals [2L, E], dense; Partial [nodes, 2L, E]
 *   num    TESS_TOKENS_...
 *   tree   tokens
 * Row 2l counts the tokens that request each expert of mixture l. Row 2l + 1 adds the softmax of
 * the logits, computed like ROUTE. Both sums are additions.
 */

/*
 * BALANCE_D: the gradient of the load balancing loss for the logits of one mixture.
 *   in     logits [T, E]; totals [2L, E]
 *   out    dlogits [T, E]
 *   num    TESS_BALANCE_...
 * The loss of all mixtures together is factor * E * sum over experts of (c_i / N) * (p_i / N).
 * c_i is the chain of additions of rows 2l over l, p_i that of rows 2l + 1, N the chain of c_i over
 * i, divided by top. With s of ROUTE with softmax:
 *   q_i = (factor * E) * (c_i / N) / N; r = chain of FMA(q_i, s_i); dlogits = s_i * (q_i - r)
 */
enum {
	TESS_BALANCE_FACTOR,            /* of the loss */
	TESS_BALANCE_TOP,               /* experts of a row */
	TESS_BALANCE_NUMS
};

/* ---- sums of gradients */

/*
 * HEAD_SUM: adds the heads of each group.
 *   in     x [T, runs * group * width]
 *   out    y [T, runs * width]; of one run Partial [nodes, T, width]
 *   num    TESS_HEAD_SUM_...
 *   tree   over the heads of a group; bounds count heads
 * Units are added by plain additions.
 */
enum {
	TESS_HEAD_SUM_WIDTH,            /* columns of a head */
	TESS_HEAD_SUM_GROUP,            /* heads of a group */
	TESS_HEAD_SUM_NUMS
};

/*
 * SEQUENCE_SUM: adds the finished rows of sequences by the tree over sequences.
 *   in     x [rows, N], one for each sequence here
 *   out    y [1, N], Partial [nodes, 1, N]
 *   num    TESS_TOKENS_...
 */

/* ---- loss: three numbers of a row, which ranks exchange instead of logits; then the loss */

/*
 * LOSS_MAX: the largest logit of each row that is not NaN, + 0.0f; -inf if there is none.
 *   in     z [T, V]
 *   out    max [T, 1]
 */

/*
 * LOSS_SUM: the sum of exp(z - max), by additions.
 *   in     z [T, V]; max [T, 1]
 *   out    sum [T, 1], Partial [nodes, T, 1]
 *   tree   over V, with one term each
 */

/*
 * LOSS_PICK: z at the label, one term like EMBED; 0 for label -100 and labels not held here.
 *   in     z [T, V]; labels
 *   out    pick [T, 1], Partial [nodes, T, 1]
 *   num    TESS_LOSS_FIRST
 *   tree   over V, only for a Partial
 */
enum {
	TESS_LOSS_FIRST,                /* label of column 0 */
	TESS_LOSS_NUMS
};

/*
 * LOSS: (log(sum) + max) - pick; +0 for label -100.
 *   in     max [T, 1]; sum [T, 1]; pick [T, 1]; labels
 *   out    loss [T, 1]
 */

/*
 * LOSS_D: (exp(z - max) / sum - (1 at the label, else 0)) / count; +0 in rows of label -100.
 *   in     z [T, V]; max [T, 1]; sum [T, 1]; labels; count f32 [1], the labels of the step
 *   out    dz [T, V]
 *   num    as LOSS_PICK
 */

/* ---- sampling */

/*
 * SAMPLE: chooses an id of each row of logits. Optional; requires mark() and reached().
 *   in     x [T, V]; how f64 [T, TESS_SAMPLE_NUMS]: columns TESS_SAMPLE_TEMPERATURE, ...
 *   out    y i32 [T, TESS_SAMPLE_OUTS]: columns TESS_SAMPLE_ID, ...;
 *          seen i32 [S, ceil(V / 32)], read and written: a bit for each id, from bit 0 of word 0
 * With a penalty other than 0 and 1 the finite logits whose bits are set are divided by it, or
 * multiplied if negative, in double; then the bit of the chosen id is set. No two rows of x have
 * the same row of `seen`.
 *
 * Greedy: the largest finite logit, of equal ones the lowest id. It is the choice for temperature
 * 0, and if a logit is non-finite. Else in double, each operation rounded:
 *   score = x / temperature + 0.0; weight = exp(score - the largest score), with the exp of
 *     tessera/util/exp.h
 *   candidates are sorted by falling score, of equal ones by increasing id
 *   top-k, 0 < k < V: removes those after the k-th that are not equal to it
 *   top-p, p < 1: with t the sum of the weights from last to first, removes the last candidate, but
 *     never the first, while the chain of weight / t of all removed, itself included, is at most
 *     1 - p
 *   min-p, m > 0: removes the last while its weight is less than m
 *   from u * (sum of the rest, last to first) weights are subtracted, first to last: the first
 *     candidate that makes it negative is chosen, else the last one
 * A device may round a penalized logit to the nearest finite f32, add weights rounded by up to
 * V * 2^-63 of their sum, compare with m * (1 + e), |e| < 2^-20, and take a temperature below 1e-30
 * as 0. So its choice may differ from the CPU's if u, or the end of a filter, is that near to the
 * end of a candidate's interval. Equal operands give equal choices.
 */
enum {                                  /* columns of `how` */
	TESS_SAMPLE_TEMPERATURE,        /* 0: greedy */
	TESS_SAMPLE_TOP_P,              /* 1: off */
	TESS_SAMPLE_MIN_P,              /* 0: off */
	TESS_SAMPLE_TOP_K,              /* 0: off */
	TESS_SAMPLE_NUMBER,             /* u in [0, 1) */
	TESS_SAMPLE_PENALTY,            /* of ids in `seen`; 0 or 1: off */
	TESS_SAMPLE_SET,                /* row of `seen` */
	TESS_SAMPLE_NUMS
};
enum {                                  /* columns of the out */
	TESS_SAMPLE_ID,                 /* the choice */
	TESS_SAMPLE_ODD,                /* number of non-finite logits */
	TESS_SAMPLE_FIRST_ODD,          /* index of the first of them, or -1 */
	TESS_SAMPLE_NAN,                /* 1: the first non-finite logit is a NaN; else 0 */
	TESS_SAMPLE_OUTS
};

/* ---- optimizer */

/*
 * SQUARES: adds the squares of x to a sum without rounding, so the order does not matter.
 *   in     x f32 [n], dense
 *   out    sum i64 [19], read and written
 * The sum is that of sum[i] * 2^(32 * i - 298) over the 18 digits i. All digits but the last are in
 * [0, 2^32) afterwards. sum[18] counts the non-finite elements, which are in no digit.
 */

/*
 * ADAMW: updates a weight and its state. All are dense.
 *   in     g f32 [n]
 *   out    w f32 [n]; m f32 [n]; v f32 [n]; the rounded w, bf16 or f16 [n], or absent
 *   num    TESS_ADAMW_...
 * 1 - lr * decay, 1 - beta1, lr / bias1, sqrt(bias2) and the like are computed in double and
 * rounded once. Then in f32:
 *   u = g * factor; w = w * (1 - lr * decay); m = m + (1 - beta1) * (u - m)
 *   v = beta2 * v + ((1 - beta2) * u) * u
 *   w = w - ((lr / bias1) * m) / (sqrt(v) / sqrt(bias2) + eps)
 * The rounded w is w to nearest even.
 */
enum {
	TESS_ADAMW_LR,                  /* learning rate */
	TESS_ADAMW_BETA1,               /* decay of m */
	TESS_ADAMW_BETA2,               /* decay of v */
	TESS_ADAMW_EPS,
	TESS_ADAMW_DECAY,               /* weight decay */
	TESS_ADAMW_BIAS1,               /* 1 - beta1^t of step t = 1, 2, .. */
	TESS_ADAMW_BIAS2,               /* 1 - beta2^t */
	TESS_ADAMW_FACTOR,              /* of the gradient: clipping */
	TESS_ADAMW_NUMS
};

/*
 * SGD: u = g * factor + decay * w; m = momentum * m + u (without m: u); w = w - lr * m. All are
 * dense.
 *   in     g f32 [n]
 *   out    w f32 [n]; m f32 [n] or absent; the rounded w, bf16 or f16 [n], or absent
 *   num    TESS_SGD_...
 */
enum {
	TESS_SGD_LR,                    /* learning rate */
	TESS_SGD_MOMENTUM,
	TESS_SGD_DECAY,                 /* weight decay */
	TESS_SGD_FACTOR,                /* of the gradient: clipping */
	TESS_SGD_NUMS
};

/*
 * One op: a kind, its operands, outs, numbers and trees. Lists are borrowed for the call.
 */
struct tess_op {
	uint32_t size;                  /* sizeof(struct tess_op) of the core */
	int32_t kind;                   /* TESS_OP_... */
	int32_t nin;                    /* number of operands */
	int32_t nout;                   /* number of outs */
	int32_t nnum;                   /* number of numbers */
	int32_t ntree;                  /* number of trees */
	int32_t nterm;                  /* number of terms */
	int32_t reserved;               /* 0 */
	const struct tess_view *in;     /* operands; data may be NULL in supports() */
	const struct tess_view *out;    /* outs; one axis more, [nodes, ...]: a Partial */
	const double *num;              /* numbers; integers up to 2^53 are exact */
	const struct tess_tree *tree;   /* several: each is finished, then the tree over them */
	const struct tess_term *term;   /* terms of all trees */
	void *stream;                   /* of stream_open(), or NULL */
	const char *where;              /* the module, for messages */
	const struct tess_op *next;     /* the next op of a fused step; NULL: the last one */
	int64_t only_next;              /* 1: only `next` reads the outs, so they need not be
	                                 * written; 0 without `next` */
};
TESS_TIGHT(tess_op, only_next);

/*
 * The functions of a device. Only run, pack and copy access memory of alloc(), unless `mem` is
 * TESS_HOST. Work on a stream runs in the order of its calls. `stream` is one of stream_open, or
 * NULL if that is missing or `mem` is TESS_HOST. Host memory of a copy must not change before sync;
 * a struct tess_op may.
 */
struct tess_device {
	uint32_t size;                  /* sizeof(struct tess_device) */
	int32_t mem;                    /* of alloc: TESS_HOST, TESS_CUDA, or 32 to TESS_MEM_MAX */
	const char *name;               /* that of the file: tess-device-NAME.so */
	const char *summary;            /* one line for `tessera info` */

	/* ---- required */

	/* Returns the number of devices on this machine; 0: none. */
	int32_t (*count)(void);
	/* Refuses an op that this device cannot run: a kind without a kernel, a size too large.
	 * The core has checked it by the rules of its kind. Reads no data. */
	tess_status (*supports)(const struct tess_op *op);
	/* Opens device `index` for one rank; nthreads: CPU threads that it may use. */
	tess_status (*open)(int32_t index, int32_t nthreads, void **self);
	/* Allocates memory, aligned to 64 bytes. */
	tess_status (*alloc)(void *self, uint64_t bytes, void **out);
	/* Frees memory of alloc(), which no queued work uses. */
	void (*free)(void *self, void *p);
	/* Runs a step, or queues it on op->stream: `op`, then the ops linked to it by `next`. */
	tess_status (*run)(void *self, const struct tess_op *op);
	/* Packs rows in host memory into panels; done when it returns. Rows of TESS_MXFP4 become
	 * panels of it. */
	tess_status (*pack)(void *self, const struct tess_view *rows, struct tess_view *panels);
	/* Copies between host and device, or within the device. */
	tess_status (*copy)(void *self, void *dst, const void *src, uint64_t bytes, void *stream);
	/* Blocks until the stream is done, and returns the first failure of its queued work. */
	tess_status (*sync)(void *self, void *stream);
	/* Closes the device of one rank. */
	void (*close)(void *self);

	/* ---- optional */

	/* Opens a stream; the core closes it. */
	tess_status (*stream_open)(void *self, void **stream);
	/* Closes a stream. */
	void (*stream_close)(void *self, void *stream);
	/* Records ops instead of running them (begin 1), or gives their graph (begin 0). */
	tess_status (*capture)(void *self, void *stream, int32_t begin, void **graph);
	/* Queues the ops of a graph again. */
	tess_status (*replay)(void *self, void *graph, void *stream);
	int32_t layout;                 /* of linear weights: TESS_ROWS or TESS_PANELS */
	int32_t exact;                  /* 1: sums are in the order of split.h; 0: a Partial is
	                                 * one node, [1, ...], and nodes are added in any order */
	/* Gives the free bytes of its memory. */
	tess_status (*free_bytes)(void *self, uint64_t *out);
	/* Frees a graph of capture(). */
	void (*graph_close)(void *self, void *graph);
	/* Marks the queued work of the stream as point 0 or 1. Requires reached. */
	tess_status (*mark)(void *self, void *stream, int32_t point);
	/* Returns TESS_OK if all work queued before the last mark of `point` is done, else
	 * TESS_PENDING. Does not block. */
	tess_status (*reached)(void *self, int32_t point);
	/* Returns the default dtype of the KV cache for linear weights of a dtype: TESS_F32, as if
	 * it were missing, or TESS_BF16. In training: the dtype of attention. */
	int32_t (*kv_dtype)(int32_t weights);
	/* Orders later work of `stream` after the work that is queued on `after` now. */
	tess_status (*follow)(void *self, void *stream, void *after);
	int64_t prompt_rows;            /* default of prompt tokens in a step; 0: 512 */
	/*
	 * Returns 1 to get the ops from `op` on, linked by `next`, as one step. Called when a
	 * program is lowered, for each op that follows another: all ops but the last are one step
	 * already, and 0 makes the last one the first of the next step. Addresses are made up and
	 * show only shared memory; tables of pages have no size yet, those of rope one row.
	 * Without this function each op is a step.
	 */
	int32_t (*fuses)(const struct tess_op *op);
	/*
	 * Makes this device a wrapper: TESSERA_DEVICE=mine:cpu computes some ops in `mine` and the
	 * others in the inner device, cpu. Returns the table of this device around the device
	 * `name`; *out is borrowed. Called once for each name, not concurrently. Required in that
	 * table:
	 *   supports  TESS_OK: this device runs the op; TESS_ENOTSUP: the inner device does. Called
	 *             again before each run, with the shapes of the step. `next` may be set
	 *   run       gets the ops that supports() accepts, one at a time
	 *   mem       the kind of memory that run() accesses; 0: any. Must be the inner device's
	 *   exact     1 if the inner device is exact: sums of this device are, too
	 * fuses is NULL: the inner device fuses its own ops. All other fields that are NULL or 0
	 * are those of the inner device. `self` is that of the inner device, in all functions. So
	 * an open() of this device calls that of the inner one, from host->device. A device with
	 * `wrap` is not used alone: its own table needs no other function.
	 */
	tess_status (*wrap)(const char *name, const struct tess_device **out);
	/*
	 * Returns 1 if view `i` of an op, of its operands and then its outs, may be bf16 in place
	 * of f32 rows: an operand that the device rounds to bf16 before it multiplies, or an out
	 * that it can write rounded. Called in training, when a program is lowered, and to check
	 * an op with such a view. If all that write and read a value agree, it is stored as bf16:
	 * the same results, and fewer bytes. NULL, and around another device: all rows are f32.
	 */
	int32_t (*rounds)(const struct tess_op *op, int32_t i);
	int64_t explains;               /* 1: kv_dtype, fuses and rounds may be called although
	                                 * init() of the plugin has returned TESS_ENOTSUP, so a
	                                 * plan is explained on a machine without this device */
	/* Allocates host memory that copies on a stream read and write while the caller continues.
	 * NULL: the core uses memory of malloc. Requires host_free. */
	tess_status (*host_alloc)(void *self, uint64_t bytes, void **out);
	/* Frees memory of host_alloc(), which no copy uses. */
	void (*host_free)(void *self, void *p);
};
TESS_TIGHT(tess_device, host_free);

TESS_END

/* clang-format on */
#endif
