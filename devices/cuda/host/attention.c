/*
 * attention.c - launches attention: stores keys and values, then computes rows and tiles of rows.
 */
#include "gpu.h"

#include <math.h>

#define LOG2_E 0x1.715476p+0f

enum { WGMMA_MAJOR = 9 };

/* Returns the kernel of f32 tiles for the head size, and its shared memory. */
static struct launch choose_tile_kernel(const struct attention_args *a)
{
	int32_t most = a->d > a->dv ? a->d : a->dv, each = most <= 64    ? 64
	                                                   : most <= 128 ? 128
	                                                                 : 256;

	return (struct launch){ .kernel = each == 64    ? KERNEL_attend_tiles_64
		                          : each == 128 ? KERNEL_attend_tiles_128
		                                        : KERNEL_attend_tiles_256,
		                .blocks = { a->heads, tess_up(a->rows, TILE_ROWS), 1 },
		                .threads = ATTEND_THREADS,
		                .shared = (each * (TILE_ROWS + KEYS) + KEYS * TILE_ROWS) *
		                          (int32_t)sizeof(float),
		                .args = a };
}

/*
 * Returns whether tiles can be used: not with values inside keys, large heads, or too little shared
 * memory. Few rows of several sequences, of which the GPU knows the lengths, use no tiles: most
 * have one row each, and a launch of tiles would find none.
 */
static bool can_use_tiles(const struct gpu *g, const struct attention_args *a)
{
	return a->rows >= TILED_ROWS_MIN && (a->rows > NEW_ROWS_MAX || a->slots == 1) && a->v &&
	       a->d <= TILED_HEAD_MAX && a->dv <= TILED_HEAD_MAX &&
	       choose_tile_kernel(a).shared <= g->shared_max;
}

/*
 * Returns the maximum parts of the keys so that, with few rows, each multiprocessor has two blocks.
 * The GPU reads the positions: rows with few keys use one part.
 */
static int32_t choose_parts(const struct gpu *g, const struct attention_args *a)
{
	int64_t blocks = a->rows * a->kv * a->head_blocks, parts = 2 * g->processors / blocks;
	int64_t most = a->blocks > WHOLE_PAGES ? tess_up(a->blocks, PART_PAGES) : 1;

	parts = parts < most ? parts : most;
	return parts < 1 ? 1 : parts > PARTS_MAX ? PARTS_MAX : (int32_t)parts;
}

/* Returns the query heads of a tile on tensor cores, which share one key-value head. */
static int32_t choose_tile_heads(const struct attention_args *a)
{
	int32_t heads = ATTEND_WARPS;

	while (a->group % heads || a->first_head % heads || a->heads % heads)
		heads /= 2;
	return heads;
}

struct sinks op_read_sinks(const struct tess_op *op)
{
	const struct tess_view *v = op->nin > 7 ? &op->in[7] : NULL;

	return v ? (struct sinks){ v->data, v->stride[0], v->dtype } : (struct sinks){ 0 };
}

struct attention_args op_make_attention_args(const struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *q = &op->in[0], *k = &op->in[1], *v = &op->in[2];
	const struct tess_view *pages = &op->in[5];
	int32_t d = (int32_t)op->num[TESS_ATTENTION_HEAD];
	struct attention_args a = {
		.q = q->data,
		.k = k->data,
		.v = v->ndim ? v->data : NULL,
		.out = op->out[0].data,
		.position = op->in[3].data,
		.slot = op->in[4].data,
		.page = pages->data,
		.fault = g->fault,
		.q_pitch = q->stride[0],
		.k_pitch = k->stride[0],
		.v_pitch = v->ndim ? v->stride[0] : 0,
		.out_pitch = op->out[0].stride[0],
		.page_pitch = pages->stride[0],
		.keys = (int64_t)op->num[TESS_ATTENTION_KEYS],
		.values = (int64_t)op->num[TESS_ATTENTION_VALUES],
		.rows = q->shape[0],
		.slots = pages->shape[0],
		.blocks = pages->shape[1],
		.window = (int64_t)fmin(op->num[TESS_ATTENTION_WINDOW], INT32_MAX),
		.chunked = op->num[TESS_ATTENTION_CHUNKED] != 0,
		.heads = (int32_t)(q->shape[1] / d),
		.kv = (int32_t)(k->shape[1] / d),
		.group = (int32_t)op->num[TESS_ATTENTION_GROUP],
		.first_head = (int32_t)op->num[TESS_ATTENTION_FIRST],
		.d = d,
		.dv = (int32_t)op->num[TESS_ATTENTION_VALUE],
		.dtype = (int32_t)op->num[TESS_ATTENTION_DTYPE],
		.scale = (float)op->num[TESS_ATTENTION_SCALE],
		.softcap = (float)op->num[TESS_ATTENTION_SOFTCAP],
		.sinks = op_read_sinks(op),
	};

	a.head_blocks = (int32_t)tess_up(a.group < a.heads ? a.group : a.heads, ATTEND_HEADS);
	a.unit = a.softcap != 0.0f ? LOG2_E : a.scale * LOG2_E;
	a.sink_unit = LOG2_E / a.unit;
	a.bend = a.softcap != 0.0f ? 2 * LOG2_E * a.scale / a.softcap : 0.0f;
	a.tile_heads = choose_tile_heads(&a);
	a.tiled = can_use_tiles(g, &a);
	a.parts = a.rows ? choose_parts(g, &a) : 1;
	return a;
}

bool op_stores_own_keys(const struct attention_args *a)
{
	return a->rows <= NEW_ROWS_MAX && !a->tiled;
}

static int32_t choose_row_kernel(const struct attention_args *a)
{
	if (a->dtype == TESS_F32)
		return KERNEL_attend_rows_f32;
	return a->dv <= VALUE_SHORT ? KERNEL_attend_rows_bf16 : KERNEL_attend_rows_long;
}

/* Returns the arguments for rows: queries and keys, or the inputs of their ROPEs. */
static struct rope_args make_row_args(const struct gpu *g, const struct handover *from,
                                      const struct attention_args *a)
{
	struct rope_args r = { .of = { { .x = a->q, .x_pitch = a->q_pitch },
		                       { .x = a->k, .x_pitch = a->k_pitch } } };

	if (from->rope) {
		r = op_make_rope_args(g, from->rope, from->rope->next);
		r.of[1].y = NULL;
	}
	r.key = op_stores_own_keys(a) ? 1 : -1;
	r.to = *a;
	return r;
}

static tess_status launch_rows(struct gpu *g, const struct handover *from,
                               const struct attention_args *a)
{
	int32_t floats = ATTEND_HEADS * a->d + ATTEND_WARPS * ATTEND_HEADS * (SPAN + 3 + a->dv) +
	                 ATTEND_WARPS * (a->d + (a->v ? a->dv : 0));
	struct rope_args r = make_row_args(g, from, a);

	if (a->tiled && a->slots == 1) /* all rows are one run, computed by tiles */
		return TESS_OK;
	return op_launch(g, from->op,
	                 (struct launch){ .kernel = choose_row_kernel(a),
	                                  .blocks = { a->rows, a->kv * a->head_blocks, a->parts },
	                                  .threads = ATTEND_THREADS,
	                                  .shared = floats * (int32_t)sizeof(float),
	                                  .args = &r });
}

/* Allocates scratch memory of parts, and their counts. */
static tess_status open_key_parts(struct gpu *g, const struct tess_op *op, uint64_t bytes,
                                  struct attention_args *a)
{
	void *part = NULL, *ended = NULL;
	tess_status st = bytes ? memory_get_scratch(g, bytes, &part) : TESS_OK;

	if (!st && bytes && !g->ended_keys) {
		st = memory_alloc_zeros(g, op, (uint64_t)g->processors * sizeof *g->ended_keys,
		                        &ended);
		g->ended_keys = ended;
	}
	a->part = part;
	a->ended = g->ended_keys;
	return st;
}

/*
 * Returns whether tensor cores can be used. They read stored keys and values, 16 bytes and 16
 * elements at a time, and find the maximum score before scaling.
 */
static bool can_use_tensor_cores(const struct gpu *g, const struct attention_args *a)
{
	return g->math != MATH_F32 && a->dtype == TESS_BF16 && a->scale > 0 &&
	       a->d <= TENSOR_HEAD_MAX && a->dv <= TENSOR_HEAD_MAX && a->d % 16 == 0 &&
	       a->dv % 16 == 0 && a->keys % 16 == 0 && a->values % 16 == 0;
}

/*
 * Returns whether wgmma can be used: on GPUs of 9.0 only. The kernel depends on the model and the
 * GPU only, so that a row has the same bits alone and in a batch.
 */
static bool can_use_wgmma(const struct gpu *g, const struct attention_args *a)
{
	return g->major == WGMMA_MAJOR && a->d == a->dv && (a->d == 64 || a->d == 128) &&
	       WGMMA_SHARED(a->d) <= g->shared_max;
}

static tess_status launch_wgmma_tiles(struct gpu *g, const struct tess_op *op,
                                      const struct attention_args *a)
{
	int32_t groups = GROUPS(a->d), rows = groups * GROUP_ROWS / a->tile_heads;
	struct launch tiles = { .kernel = a->d == 64 ? KERNEL_attend_wgmma_64
		                                     : KERNEL_attend_wgmma_128,
		                .blocks = { a->heads / a->tile_heads, tess_up(a->rows, rows), 1 },
		                .threads = groups * GROUP_THREADS,
		                .shared = WGMMA_SHARED(a->d),
		                .args = a };

	return op_launch(g, op, tiles);
}

static tess_status launch_tensor_tiles(struct gpu *g, const struct tess_op *op,
                                       const struct attention_args *a)
{
	int32_t most = a->d > a->dv ? a->d : a->dv, each = most <= 64 ? 64 : most <= 96 ? 96 : 128;
	int32_t rows = TENSOR_ROWS / a->tile_heads;
	struct launch tiles = { .kernel = each == 64   ? KERNEL_attend_tensor_64
		                          : each == 96 ? KERNEL_attend_tensor_96
		                                       : KERNEL_attend_tensor_128,
		                .blocks = { a->heads / a->tile_heads, tess_up(a->rows, rows), 1 },
		                .threads = ATTEND_THREADS,
		                .shared = TENSOR_SHARED(each),
		                .args = a };

	return op_launch(g, op, tiles);
}

static tess_status attend_pages(struct gpu *g, const struct handover *from, struct handover *to)
{
	const struct tess_op *op = from->op;
	struct attention_args a = op_make_attention_args(g, op);
	struct launch store = { .kernel = KERNEL_store_keys,
		                .blocks = { a.rows, a.kv, 1 },
		                .threads = ATTEND_THREADS,
		                .args = &a };
	int64_t floats = a.parts > 1 ? a.rows * a.heads * a.parts * (a.dv + 2) : 0;
	uint64_t used = (uint64_t)tess_up(floats, 64) * 64 * sizeof(float);
	tess_status st = handover_round_rows(g, op, used, &a.out, to);

	a.rounded = to->rounded;
	if (!st)
		st = open_key_parts(g, op, used, &a);
	if (!st && !from->stored && !op_stores_own_keys(&a))
		st = op_launch(g, op, store);
	if (!st)
		st = launch_rows(g, from, &a);
	if (st || !a.tiled)
		return st;
	if (can_use_tensor_cores(g, &a) && can_use_wgmma(g, &a))
		return launch_wgmma_tiles(g, op, &a);
	return can_use_tensor_cores(g, &a) ? launch_tensor_tiles(g, op, &a)
	                                   : op_launch(g, op, choose_tile_kernel(&a));
}

tess_status op_run_attention(struct gpu *g, const struct handover *from, struct handover *to)
{
	return from->op->in[5].ndim ? attend_pages(g, from, to) : op_run_texts(g, from->op);
}
