/* heads.c - lowers records that work inside each head: split_heads, join_heads, head_linear. */
#include "nn/lower/build.h"

#include <tessera/reduce.h>

/* Copies the parts of heads: they are not contiguous in x, the in, or for join_heads the out. */
void build_add_split_heads(struct build *b, const struct tess_record *rec)
{
	bool join = rec->kind == TESS_REC_JOIN_HEADS;
	const struct tess_tensor *whole = join ? rec->out[0] : rec->in[0];
	struct value *x = build_get_value(b, whole);
	int64_t each = whole->dim[1]->unit_size, at = 0;

	for (int32_t i = 0; i < (join ? rec->nin : rec->nout); i++) {
		const struct tess_tensor *part = join ? rec->in[i] : rec->out[i];
		struct value *y = build_get_value(b, part), in = *x, out = *y;
		int64_t n = part->dim[1]->unit_size;

		/* [rows, heads, n], as the nodes of a Partial */
		in.offset += tess_width(x->dtype) * (uint64_t)at;
		in.partial = out.partial = true;
		in.nodes = out.nodes = x->rows;
		in.rows = out.rows = x->cols / each;
		in.cols = out.cols = n;
		in.node_stride = x->row_stride;
		in.row_stride = each;
		out.node_stride = y->row_stride;
		out.row_stride = n;
		build_add_copy(b, join ? &out : &in, join ? &in : &out);
		at += n;
	}
}

void build_add_join(struct build *b, const struct tess_record *rec)
{
	struct value *y = build_get_value(b, rec->out[0]), part;
	bool rows = rec->in[0]->dim[1] == rec->out[0]->dim[1];
	int64_t at = 0;

	for (int32_t i = 0; i < rec->nin; i++) {
		struct value *x = build_get_value(b, rec->in[i]);

		part = rows ? build_slice_value(y, at, x->rows, 0, x->cols)
		            : build_slice_value(y, 0, y->rows, at, x->cols);
		build_add_copy(b, x, &part);
		at += rows ? x->rows : x->cols;
	}
}

/* Returns the weights [heads, N, K] of a part of the heads from `lo` on, *at elements into v. */
static struct tess_view make_head_part_view(const struct tess_weight *w, const struct tess_view *v,
                                            int32_t part, int64_t lo, int64_t heads, int64_t *at)
{
	const struct tess_head_part *p = &w->heads->part[part];
	int64_t each = w->dim[0]->unit_size, in = w->dim[1]->size;
	struct tess_view out = { .dtype = v->dtype,
		                 .ndim = 3,
		                 .layout = v->layout,
		                 .shape = { heads, p->in_out ? in : p->count,
		                            p->in_out ? p->count : in } };

	if (v->layout == TESS_PANELS) {
		out.stride[0] = tess_head_parts_count(w->heads, w->heads->n, in);
		out.stride[1] = 16 * out.shape[2];
		out.stride[2] = 16;
		*at = lo * out.stride[0] + tess_head_parts_count(w->heads, part, in);
	} else {
		out.stride[0] = each * v->stride[0];
		out.stride[1] = v->stride[p->in_out];
		out.stride[2] = v->stride[!p->in_out];
		*at = (lo * each + p->first) * v->stride[0];
	}
	return out;
}

void build_add_head_linear(struct build *b, const struct tess_record *rec)
{
	const struct tess_weight *w = rec->weight[0];
	struct value *x = build_get_value(b, rec->in[0]);
	struct tess_cut cut = build_find_cut(b, rec->in[0]->place, 1);
	bool cut_alike = tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, 0) >= 0;
	struct tess_view v = build_describe_weight(b, w);
	int64_t lo, hi, at;
	struct tess_step *s;

	if (!x->rows || !x->cols)
		return;
	tess_dim_get_rank_units(rec->in[0]->dim[1], cut.nranks, cut.rank, &lo, &hi);
	s = build_add_op(b, TESS_OP_HEAD_LINEAR, 2, 1);
	build_set_input(b, s, 0, x);
	v = make_head_part_view(w, &v, (int32_t)rec->num[TESS_REC_HEAD_PART],
	                        cut_alike ? 0 : lo / w->dim[0]->group,
	                        x->cols / rec->in[0]->dim[1]->unit_size, &at);
	if (rec->num[TESS_REC_HEAD_BACK] != 0)
		tess_view_swap_axes(&v, 1);
	build_set_weight_part(b, s, 1, w, &v, at);
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
}

/* Lowers the gradient of one part; the out is the gradient of all parts. */
void build_add_head_linear_dw(struct build *b, const struct tess_record *rec)
{
	const struct tess_weight *w = rec->weight[0];
	const struct tess_head_part *p = &w->heads->part[(int32_t)rec->num[TESS_REC_HEAD_PART]];
	struct value *y = build_get_value(b, rec->out[0]), at;
	struct tess_view *v;
	struct tess_step *s;
	int32_t a;

	if (y->partial && !y->nodes)
		return;
	at = build_slice_value(y, p->first, y->rows, 0, y->cols);
	s = build_add_op(b, TESS_OP_HEAD_LINEAR_DW, 2, 1);
	build_set_input(b, s, 0, build_get_value(b, rec->in[0]));
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, &at);
	build_set_token_sum(b, &s->op, rec->in[1], rec->out[0], 0, NULL);
	if (b->status)
		return;
	v = &s->out[0];
	a = v->ndim++ - 1; /* rows become heads, and rows of the part */
	v->shape[a + 1] = v->shape[a];
	v->stride[a + 1] = v->stride[a];
	v->shape[a] = p->count;
	v->stride[a] = y->row_stride;
	v->shape[a - 1] = y->rows / w->dim[0]->unit_size;
	v->stride[a - 1] = w->dim[0]->unit_size * y->row_stride;
	if (p->in_out)
		tess_view_swap_axes(v, a);
}
