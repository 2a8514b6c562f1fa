/* dx.c - the columns of dx of a linear record, and the order of its sum. */
#include "core/base/status.h"
#include "nn/lower/build.h"

struct tess_run build_find_dx_columns(struct build *b, const struct tess_weight *w,
                                      const struct tess_tensor *dx)
{
	int32_t along = tess_places_find(dx->place, b->p->mesh.ndims, TESS_SHARD, 1);

	if (along < 0 || tess_weight_role(w, along) == TESS_ROLE_IN) /* the weight is cut like dx */
		return (struct tess_run){ 0, tess_weight_get_local_size(b->p, w, b->l->rank,
			                                                w->in_dim) };
	if (tess_dim_count_pieces(w->dim[w->in_dim]) > 1) {
		b->status = tess_fail(TESS_ENOTSUP,
		                      "%s: an input of several parts that other weights cut is not "
		                      "supported in training; cut this weight like them",
		                      w->name);
		return (struct tess_run){ 0, 0 };
	}
	tess_dim_list_local_runs(w->dim[w->in_dim], build_find_cut(b, dx->place, 1), b->runs);
	return b->runs[0];
}

void build_add_dx_trees(struct build *b, struct tess_op *op, const struct tess_record *rec)
{
	struct build_operand *over = TESS_NEW(&b->l->arena, struct build_operand, rec->nweight);
	int32_t partial = tess_places_find(rec->out[0]->place, b->p->mesh.ndims, TESS_PARTIAL, 0);

	if (!over) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < rec->nweight; i++) {
		const struct tess_weight *w = rec->weight[i];

		over[i] = (struct build_operand){ w->dim[w->out_dim],
			                          build_find_cut(b, w->place, w->out_dim) };
	}
	build_add_trees(b, op, rec->nweight, over, tess_program_get_cut(b->p, b->l->rank, partial));
}
