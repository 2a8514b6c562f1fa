#include "nn/program/program.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "core/shard/move.h"

#include <stdio.h>

enum {
#define OP(kind, name, outs, weight, cost, backward, lower) TABLE_HAS_OP_##kind,
#define RECORD(kind, name, backward, lower) TABLE_HAS_RECORD_##kind,
#include "nn/op/kinds.def"
	TABLE_ROWS
};
_Static_assert(TABLE_ROWS == TESS_REC_KINDS - 1, "a kind has no row in nn/op/kinds.def");

const char *tess_record_kind_name(int32_t kind)
{
	static const char *const names[] = {
#define OP(kind, name, outs, weight, cost, backward, lower) [TESS_OP_##kind] = #name,
#define RECORD(kind, name, backward, lower) [TESS_REC_##kind] = #name,
#include "nn/op/kinds.def"
	};

	return kind > 0 && kind < TESS_REC_KINDS ? names[kind] : "unknown";
}

double tess_experts_find_share(int64_t n, int64_t top, int64_t held)
{
	double none = 1;

	for (int64_t i = 0; i < top; i++)
		none *= n - held > i ? (double)(n - held - i) / (double)(n - i) : 0;
	return 1 - none;
}

int32_t tess_move_kind(const struct tess_program *p, const struct tess_record *move)
{
	int32_t call = tess_move_choose_call(move->in[0]->place[move->along],
	                                     move->out[0]->place[move->along]);
	bool one = move->out[0] == p->logits && p->logits_root >= 0;

	return call == TESS_ALL_GATHER && one ? TESS_GATHER : call;
}

const char *tess_move_name(const struct tess_program *p, const struct tess_record *move)
{
	int32_t kind = tess_move_kind(p, move);

	if (kind)
		return tess_kind_name(kind);
	return move->out[0]->place[move->along].kind == TESS_PARTIAL ? "keep" : "slice";
}

int64_t tess_program_max_pieces(const struct tess_program *p)
{
	int64_t max = 1;

	for (int32_t i = 0; i < p->nweights; i++) {
		for (int32_t a = 0; a < p->weight[i]->ndim; a++) {
			int64_t pieces = tess_dim_count_pieces(p->weight[i]->dim[a]);

			max = pieces > max ? pieces : max;
		}
	}
	return max;
}

int32_t tess_weight_role(const struct tess_weight *w, int32_t along)
{
	if (w->place[along].kind != TESS_SHARD)
		return TESS_ROLE_WHOLE;
	return w->place[along].dim == w->out_dim  ? TESS_ROLE_OUT
	       : w->place[along].dim == w->in_dim ? TESS_ROLE_IN
	                                          : TESS_ROLE_EXPERTS;
}

const struct tess_weight *tess_weight_get_table(const struct tess_weight *w)
{
	const struct tess_weight *read = tess_weight_get_home(w);

	return read->copies ? read->copies : w->table;
}

int64_t tess_weight_count_elements(const struct tess_weight *w)
{
	int64_t n = 1;

	for (int32_t a = 0; a < w->ndim; a++)
		n *= w->dim[a]->size;
	return n;
}

int32_t tess_program_count_ahead(const struct tess_program *p)
{
	return p->training || !tess_program_is_on_host(p) ? 1 : p->nstages;
}

int32_t tess_program_get_pipeline_rank(const struct tess_program *p, int32_t rank)
{
	return tess_program_get_cut(p, rank, p->pipeline_along).rank;
}

bool tess_program_has_stage(const struct tess_program *p, int32_t rank, int32_t stage)
{
	return stage == TESS_STAGES_ALL ||
	       p->stage_rank[stage] == tess_program_get_pipeline_rank(p, rank);
}

struct tess_cut tess_program_get_cut(const struct tess_program *p, int32_t rank, int32_t along)
{
	if (along < 0)
		return (struct tess_cut){ 1, 0 };
	return (struct tess_cut){ p->mesh.dim[along].size,
		                  tess_mesh_shape_coordinate(&p->mesh, along, rank) };
}

struct tess_cut tess_program_find_cut(const struct tess_program *p, int32_t rank,
                                      const struct tess_place *place, int32_t axis)
{
	return tess_program_get_cut(p, rank,
	                            tess_places_find(place, p->mesh.ndims, TESS_SHARD, axis));
}

int64_t tess_head_parts_count(const struct tess_head_parts *heads, int32_t n, int64_t in)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < n; i++) {
		const struct tess_head_part *p = &heads->part[i];

		sum += p->in_out ? tess_up(in, 16) * 16 * p->count
		                 : tess_up(p->count, 16) * 16 * in;
	}
	return sum;
}

void tess_program_free(struct tess_program *p)
{
	struct tess_arena arena;

	if (!p)
		return;
	for (int32_t i = 0; i < p->nopen_styles; i++)
		if (p->open_styles[i].style->close)
			TESS_PLUGIN_DO(p->open_styles[i].style, p->open_styles[i].module, close,
			               p->open_styles[i].state);
	arena = p->arena;
	tess_arena_free(&arena);
}

/* Returns the first element of an axis on a rank; -1: it has several ranges. */
static int64_t find_offset(const struct tess_program *p, const struct tess_tensor *t, int32_t axis,
                           int32_t rank)
{
	struct tess_cut cut = tess_program_find_cut(p, rank, t->place, axis);
	struct tess_run run;

	if (cut.nranks == 1)
		return 0;
	if (tess_dim_count_pieces(t->dim[axis]) > 1)
		return -1;
	tess_dim_get_local_runs(t->dim[axis], cut.nranks, cut.rank, &run);
	return run.start;
}

size_t tess_module_measure_number(const char *module, size_t *number)
{
	for (const char *at = module; *at;) {
		size_t len = strcspn(at, "."), digits = strspn(at, "0123456789");

		*number = (size_t)(at - module);
		if (len && digits == len)
			return *number + len;
		at += len + (at[len] == '.');
	}
	return 0;
}

struct tess_operand tess_tensor_describe(const struct tess_program *p, const struct tess_tensor *t,
                                         int32_t along, int32_t rank)
{
	struct tess_operand o = {
		.dtype = t->dtype, .ndim = t->ndim, .place = t->place[along], .local = t->local
	};

	for (int32_t i = 0; i < t->ndim; i++) {
		o.shape[i] = t->dim[i]->size;
		o.offset[i] = rank < 0 ? 0 : find_offset(p, t, i, rank);
	}
	return o;
}

bool tess_tensor_has_same_dims(const struct tess_tensor *a, const struct tess_tensor *b)
{
	bool same = a->ndim == b->ndim;

	for (int32_t i = 0; same && i < a->ndim; i++)
		same = a->dim[i] == b->dim[i];
	return same;
}

bool tess_tensor_is_vector(const struct tess_tensor *t)
{
	return t->ndim == 1 && !t->dim[0]->may_be_empty;
}

tess_status tess_ids_check(const int32_t *ids, int64_t n, int64_t first, int64_t vocabulary)
{
	for (int64_t i = 0; i < n; i++)
		if (ids[i] < 0 || ids[i] >= vocabulary)
			return tess_fail(
				TESS_EINVAL,
				"id %d at position %lld is outside the vocabulary; use 0 to %lld",
				(int)ids[i], (long long)(first + i), (long long)vocabulary - 1);
	return TESS_OK;
}
