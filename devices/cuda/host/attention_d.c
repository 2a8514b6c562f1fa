/* attention_d.c - launches attention over complete sequences, without pages, and its backward. */
#include "gpu.h"

#include <tessera/util/random.h>

static struct drop_args read_dropout(const struct tess_op *op)
{
	struct drop_args d = { .below = tess_drop_below(op->num[TESS_ATTENTION_RATE]),
		               .scale = tess_drop_scale(op->num[TESS_ATTENTION_RATE]) };

	d.step = d.below ? op->in[6].data : NULL;
	return d;
}

static struct text_args make_text_args(const struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *q = &op->in[0], *k = &op->in[1], *v = &op->in[2];
	const struct tess_view *y = op->out;
	bool backward = op->kind == TESS_OP_ATTENTION_D;
	int32_t d = (int32_t)op->num[TESS_ATTENTION_HEAD];
	struct text_args a = {
		.q = q->data,
		.k = k->data,
		.v = v->ndim ? v->data : k->data,
		.g = backward ? op->in[5].data : NULL,
		.position = op->in[3].data,
		.slot = op->in[4].data,
		.fault = g->fault,
		.q_pitch = q->stride[0],
		.k_pitch = k->stride[0],
		.v_pitch = v->ndim ? v->stride[0] : k->stride[0],
		.g_pitch = backward ? op->in[5].stride[0] : 0,
		.rows = q->shape[0],
		.window = (int64_t)op->num[TESS_ATTENTION_WINDOW],
		.chunked = op->num[TESS_ATTENTION_CHUNKED] != 0,
		.site = (int64_t)op->num[TESS_ATTENTION_SITE] +
		        (int64_t)op->num[TESS_ATTENTION_FIRST],
		.heads = (int32_t)(q->shape[1] / d),
		.group = (int32_t)op->num[TESS_ATTENTION_GROUP],
		.first_head = (int32_t)op->num[TESS_ATTENTION_FIRST],
		.d = d,
		.dv = (int32_t)op->num[TESS_ATTENTION_VALUE],
		.latent = !v->ndim,
		.scale = (float)op->num[TESS_ATTENTION_SCALE],
		.softcap = (float)op->num[TESS_ATTENTION_SOFTCAP],
		.sinks = op_read_sinks(op),
		.drop = read_dropout(op),
	};

	if (backward) {
		a.dq = y[0].data, a.dq_pitch = y[0].stride[0];
		a.dk = y[1].data, a.dk_pitch = y[1].stride[0];
		a.dv_out = v->ndim ? y[2].data : NULL, a.dv_pitch = v->ndim ? y[2].stride[0] : 0;
		if (op->nout > 3)
			a.dsinks = y[3].data, a.dsinks_pitch = y[3].stride[0];
	} else {
		a.out = y[0].data, a.out_pitch = y[0].stride[0];
	}
	return a;
}

/* Launches a kernel with a block for each tile of rows, each head, and each run of `columns`. */
static tess_status launch_text_tiles(struct gpu *g, const struct tess_op *op, int32_t kernel,
                                     int64_t columns, const struct text_args *a)
{
	return op_launch(g, op,
	                 (struct launch){ .kernel = kernel,
	                                  .blocks = { tess_up(a->rows, TILE_ROWS), a->heads,
	                                              tess_up(columns, TEXT_BLOCKS * KEYS) },
	                                  .threads = ATTEND_THREADS,
	                                  .shared = (TILE_ROWS + KEYS + 2 * TILE_ROWS) * KEYS *
	                                            (int32_t)sizeof(float),
	                                  .args = a });
}

tess_status op_run_texts(struct gpu *g, const struct tess_op *op)
{
	struct text_args a = make_text_args(g, op);
	int64_t most = a.d > a.dv ? a.d : a.dv;
	void *state = NULL;
	tess_status st;

	if (!a.rows)
		return TESS_OK;
	st = op_run_texts_by_dnn(g, op, &a);
	if (st != TESS_ENOTSUP)
		return st;
	st = memory_get_scratch(g, (uint64_t)(a.rows * a.heads * TEXT_STATE) * sizeof(float),
	                        &state);
	a.state = state;
	if (!st)
		st = launch_text_tiles(g, op, KERNEL_weigh_texts, 1, &a);
	if (!st)
		st = launch_text_tiles(g, op, KERNEL_add_texts, a.g ? a.d : a.dv, &a);
	if (!st && a.g)
		st = launch_text_tiles(g, op, KERNEL_derive_keys, most, &a);
	return st;
}
