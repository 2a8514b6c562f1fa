/* rows.c - ops over rows of activations: norms, rope, elements, lookups, copies, sampling. */
#include "gpu.h"

static struct map_args make_map_args(const struct tess_op *op, int32_t kind)
{
	const struct tess_view *x = &op->in[0], *b = op->nin > 1 ? &op->in[1] : NULL;

	return (struct map_args){ .a = x->data,
		                  .b = b ? b->data : NULL,
		                  .y = op->out[0].data,
		                  .a_pitch = x->stride[0],
		                  .b_pitch = b ? b->stride[0] : 0,
		                  .y_pitch = op->out[0].stride[0],
		                  .rows = x->shape[0],
		                  .columns = x->shape[1],
		                  .kind = kind,
		                  .b_dtype = b ? b->dtype : 0 };
}

/* Returns the map of an op that is one by itself. */
static int32_t find_map(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_BIAS:
		return MAP_BIAS;
	case TESS_OP_ADD:
		return MAP_ADD;
	case TESS_OP_SCALE:
		return MAP_SCALE;
	case TESS_OP_MUL:
		return op->in[1].shape[1] == op->in[0].shape[1] ? MAP_MUL : MAP_FACTOR;
	case TESS_OP_CLAMP:
		return MAP_CLAMP;
	case TESS_OP_CLAMP_D:
		return MAP_CLAMP_D;
	default:
		return op->kind == TESS_OP_SIGMOID_D ? MAP_SIGMOID_D : MAP_SIGMOID;
	}
}

static tess_status launch_map(struct gpu *g, const struct tess_op *op, struct map_args *a)
{
	a->wide = is_row_aligned(a->a, a->a_pitch, sizeof(float)) &&
	          is_row_aligned(a->y, a->y_pitch, sizeof(float)) &&
	          (!a->b || a->kind == MAP_BIAS || a->kind == MAP_FACTOR ||
	           is_row_aligned(a->b, a->b_pitch, sizeof(float)));
	return op_launch_rows(g, op, KERNEL_map_elements, a->rows, tess_up(a->columns, 4), a);
}

tess_status op_run_map(struct gpu *g, const struct tess_op *op)
{
	struct map_args a = make_map_args(op, find_map(op));

	if (op->kind == TESS_OP_SCALE)
		a.factor = (float)op->num[TESS_SCALE_FACTOR];
	if (op->kind == TESS_OP_CLAMP || op->kind == TESS_OP_CLAMP_D) {
		a.factor = (float)op->num[TESS_CLAMP_LOW];
		a.high = (float)op->num[TESS_CLAMP_HIGH];
	}
	return launch_map(g, op, &a);
}

tess_status op_run_glu(struct gpu *g, const struct handover *from, struct handover *to)
{
	const struct tess_op *op = from->op;
	struct map_args a = make_map_args(op, MAP_GLU);
	tess_status st = handover_round_rows(g, op, 0, &a.y, to);

	a.activation = (int32_t)op->num[TESS_GLU_ACTIVATION];
	a.rounded = to->rounded;
	if (!st && from->half)
		return op_launch_rows(g, op, KERNEL_map_halves, a.rows, tess_up(a.columns, 8), &a);
	return st ? st : launch_map(g, op, &a);
}

/* Lets a ROPE store the keys and values of the ATTENTION after it; returns whether it does. */
static bool join_key_store(struct gpu *g, const struct tess_op *second, struct rope_args *a)
{
	a->to = op_make_attention_args(g, second->next);
	if (op_stores_own_keys(&a->to))
		return false;
	a->key = a->to.k == a->of[1].y;
	if (a->key == 1 && second->only_next) /* they are read in their pages */
		a->of[1].y = NULL;
	a->of[2].x = a->to.v;
	a->of[2].x_pitch = a->to.v_pitch;
	a->of[2].columns = a->to.v ? (int64_t)a->to.kv * a->to.dv : 0;
	return true;
}

struct rope_args op_make_rope_args(const struct gpu *g, const struct tess_op *op,
                                   const struct tess_op *second)
{
	const struct tess_view *table = &op->in[2];
	struct rope_args a = { .table = table->data,
		               .position = op->in[1].data,
		               .fault = g->fault,
		               .table_pitch = table->stride[0],
		               .positions = table->shape[0],
		               .rows = op->in[0].shape[0],
		               .each = (int64_t)op->num[TESS_ROPE_HEAD],
		               .first = (int64_t)op->num[TESS_ROPE_FIRST],
		               .width = (int64_t)op->num[TESS_ROPE_WIDTH],
		               .interleaved = op->num[TESS_ROPE_INTERLEAVED] != 0,
		               .inverse = op->num[TESS_ROPE_INVERSE] != 0,
		               .key = -1 };

	for (int i = 0; i < (second ? 2 : 1); i++) {
		const struct tess_op *of = i ? second : op;

		a.of[i].x = of->in[0].data;
		a.of[i].y = of->out[0].data;
		a.of[i].x_pitch = of->in[0].stride[0];
		a.of[i].y_pitch = of->out[0].stride[0];
		a.of[i].columns = of->in[0].shape[1];
	}
	return a;
}

/* Returns whether heads and their rows can be read and written four elements at a time. */
static bool is_rope_wide(const struct rope_args *a)
{
	bool wide = a->first % 4 == 0 && a->width % 8 == 0 && a->each % 4 == 0 &&
	            a->to.dv % 4 == 0 && is_row_aligned(a->table, a->table_pitch, sizeof(float));

	for (int i = 0; i < 3; i++)
		wide = wide && is_row_aligned(a->of[i].x, a->of[i].x_pitch, sizeof(float)) &&
		       is_row_aligned(a->of[i].y, a->of[i].y_pitch, sizeof(float));
	return wide;
}

static tess_status launch_rope(struct gpu *g, const struct tess_op *op, struct rope_args *a)
{
	struct launch l = { .kernel = KERNEL_rotate_pairs,
		            .blocks = { 0, 1,
		                        a->of[2].columns ? 3
		                        : a->of[1].x     ? 2
		                                         : 1 },
		            .threads = MAP_THREADS,
		            .args = a };

	a->wide = is_rope_wide(a);
	for (int i = 0; i < l.blocks[2]; i++) {
		int64_t units = i == 2 ? a->of[2].columns
		                       : a->of[i].columns / a->each * (a->each - a->width / 2);
		int32_t down = i == a->key && a->to.v, shift = KEY_SHIFT;

		units /= a->wide ? 4 : 1;
		while (!down && shift < ROPE_SHIFT && 1 << shift < units)
			shift++;
		a->of[i].units = (uint32_t)units;
		a->of[i].down = down;
		a->of[i].tile_shift = shift;
		units = tess_up(units, 1 << shift) * tess_up(a->rows, ROPE_THREADS >> shift);
		l.blocks[0] = units > l.blocks[0] ? units : l.blocks[0];
	}
	return op_launch(g, op, l);
}

tess_status op_run_rope(struct gpu *g, const struct handover *from, struct handover *to)
{
	const struct tess_op *op = from->op, *second = op->next;
	const struct tess_op *attention = second ? second->next : NULL;
	struct rope_args a = op_make_rope_args(g, op, second);

	to->op = attention;
	if (attention && handover_can_turn(op, attention)) {
		struct attention_args its = op_make_attention_args(g, attention);

		to->rope = op_stores_own_keys(&its) ? op : NULL;
	}
	if (to->rope)
		return TESS_OK;
	to->stored = attention && join_key_store(g, second, &a);
	return launch_rope(g, op, &a);
}

struct norm_args op_make_norm_args(const struct tess_op *op, const double *num)
{
	const struct tess_view *x = &op->in[0];
	int64_t columns = x->shape[1], warps;
	struct norm_args a = { .x = x->data,
		               .y = op->out[0].data,
		               .x_pitch = x->stride[0],
		               .y_pitch = op->out[0].stride[0],
		               .rows = x->shape[0],
		               .each = (int64_t)num[TESS_NORM_RUN],
		               .eps = (float)num[TESS_NORM_EPS],
		               .offset = (float)num[TESS_NORM_OFFSET],
		               .layer = num[TESS_NORM_KIND] == TESS_LAYER };

	a.each = a.each ? a.each : columns;
	a.runs = columns / a.each;
	warps = tess_up(a.each, NORM_HELD * WARP);
	a.threads = (int32_t)(warps < BLOCK_WARPS ? warps : BLOCK_WARPS) * WARP;
	a.held = a.each % 4 == 0 && a.each <= NORM_HELD * a.threads &&
	         is_row_aligned(a.x, a.x_pitch, sizeof(float));
	return a;
}

/* Returns whether the kernels can read four weights in one access; also if there are none. */
static bool is_wide_weight(const struct tess_view *w)
{
	return !w->data ||
	       (w->stride[0] == 1 && (uintptr_t)w->data % (4 * tess_width(w->dtype)) == 0);
}

void op_set_norm_weight(const struct tess_view *w, struct norm_args *a)
{
	a->w = w->data;
	a->w_stride = w->stride[0];
	a->w_dtype = w->dtype;
	a->held = a->held && is_wide_weight(w);
}

tess_status op_launch_norm(struct gpu *g, const struct tess_op *op, int32_t kernel,
                           const struct norm_args *a, const void *args)
{
	int32_t threads = a->threads > WARP ? a->threads : NORM_THREADS;

	return op_launch(
		g, op,
		(struct launch){
			.kernel = kernel,
			.blocks = { tess_up(a->rows * a->runs, threads / a->threads), 1, 1 },
			.threads = threads,
			.args = args });
}

/* Launches a norm. add: the ADD whose output is normalized, if it was not run; or NULL. */
static tess_status launch_norm_of(struct gpu *g, const struct tess_op *op,
                                  const struct tess_op *add, struct handover *to)
{
	const struct tess_view *b = op->nin > 2 ? &op->in[2] : NULL;
	struct norm_args a = op_make_norm_args(op, op->num);
	tess_status st;

	op_set_norm_weight(&op->in[1], &a);
	if (b) {
		a.b = b->data;
		a.b_stride = b->stride[0];
		a.b_dtype = b->dtype;
		a.held = a.held && is_wide_weight(b);
	}
	if (add) {
		a.x = add->in[0].data;
		a.x_pitch = add->in[0].stride[0];
		a.more = add->in[1].data;
		a.more_pitch = add->in[1].stride[0];
		a.total = add->out[0].data;
		a.total_pitch = add->out[0].stride[0];
		a.held = a.held && is_row_aligned(a.x, a.x_pitch, sizeof(float)) &&
		         is_row_aligned(a.more, a.more_pitch, sizeof(float));
	}
	st = handover_round_rows(g, op, 0, &a.y, to);
	a.rounded = to->rounded;
	a.held = a.held && is_row_aligned(a.y, a.y_pitch, sizeof(float));
	return st ? st
	          : op_launch_norm(g, op,
	                           a.held ? KERNEL_normalize_runs : KERNEL_normalize_long_runs, &a,
	                           &a);
}

tess_status op_run_norm(struct gpu *g, const struct handover *from, struct handover *to)
{
	to->norm = handover_is_normed(from->op) ? from->op : NULL;
	return to->norm ? TESS_OK : launch_norm_of(g, from->op, NULL, to);
}

tess_status op_run_add(struct gpu *g, const struct handover *from, struct handover *to)
{
	const struct tess_op *norm = from->op->next;

	if (!norm || handover_is_normed(norm))
		return op_run_map(g, from->op);
	to->op = norm->next;
	return launch_norm_of(g, norm, from->op, to);
}

/*
 * Looks up rows. In a Partial only the ids of this rank's own units, which are one range, have a
 * row.
 */
tess_status op_run_embed(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *table = &op->in[1], *y = &op->out[0];
	struct embed_args a = { .id = op->in[0].data,
		                .table = table->data,
		                .y = y->data,
		                .stride = { table->stride[0], table->stride[1] },
		                .y_pitch = y->stride[y->ndim - 2],
		                .rows = op->in[0].shape[0],
		                .columns = table->shape[1],
		                .first = (int64_t)op->num[TESS_EMBED_FIRST],
		                .entries = table->shape[0],
		                .hi = table->shape[0],
		                .dtype = table->dtype };

	if (y->ndim == 3) {
		const struct tess_tree *t = &op->tree[0];

		a.lo = op->term[t->first].bound[0];
		a.hi = op->term[t->first].bound[t->hi - t->lo];
	}
	a.wide = a.columns % 4 == 0 && a.stride[1] == 1 && a.stride[0] % 4 == 0 &&
	         (uintptr_t)a.table % (4 * tess_width(a.dtype)) == 0 &&
	         is_row_aligned(a.y, a.y_pitch, sizeof(float));
	return op_launch_rows(g, op, KERNEL_look_up_rows, a.rows, tess_up(a.columns, 4), &a);
}

tess_status op_run_select_rows(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct gather_args a = { .x = x->data,
		                 .y = y->data,
		                 .row = op->in[1].data,
		                 .fault = g->fault,
		                 .x_pitch = x->stride[0],
		                 .y_pitch = y->stride[0],
		                 .x_rows = x->shape[0],
		                 .rows = y->shape[0],
		                 .columns = y->shape[1] };

	return op_launch_rows(g, op, KERNEL_gather_rows, a.rows, a.columns, &a);
}

/* Copies up to 3 axes; the last one, whose neighbours share a block, has the smallest steps. */
tess_status op_run_copy(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct copy_args a = { .from = x->data,
		               .to = y->data,
		               .n = { 1, 1, 1 },
		               .width = (int32_t)tess_width(x->dtype) };

	for (int i = 0, axis = 3 - x->ndim; i < x->ndim; i++, axis++) {
		a.n[axis] = x->shape[i];
		a.from_step[axis] = x->stride[i] * a.width;
		a.to_step[axis] = y->stride[i] * a.width;
	}
	return op_launch_rows(g, op, KERNEL_copy_elements, a.n[0] * a.n[1], a.n[2], &a);
}

tess_status op_run_sample(struct gpu *g, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *how = &op->in[1], *y = &op->out[0],
			       *seen = &op->out[1];
	struct sample_args a = { .x = x->data,
		                 .how = how->data,
		                 .y = y->data,
		                 .seen = seen->data,
		                 .x_pitch = x->stride[0],
		                 .how_pitch = how->stride[0],
		                 .y_pitch = y->stride[0],
		                 .seen_pitch = seen->stride[0],
		                 .columns = (int32_t)x->shape[1] };

	return op_launch(g, op,
	                 (struct launch){ .kernel = KERNEL_draw_ids,
	                                  .blocks = { x->shape[0], 1, 1 },
	                                  .threads = SAMPLE_THREADS,
	                                  .args = &a });
}
