#include "nn/weights/tied.h"

#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"

#include <tessera/reduce.h>

/* Sends n elements to the rank of another stage, or receives them. */
static tess_status exchange_part(const struct tess_parameters *s, struct tess_group *const *along,
                                 const struct tess_weight *w, void *data, int64_t n, int32_t dtype,
                                 int32_t kind, int32_t stage)
{
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = kind,
		                     .dtype = dtype,
		                     .mem = s->weights.device.table->mem,
		                     .stream = s->weights.device.stream,
		                     .peer = s->program->stage_rank[stage],
		                     .src = kind == TESS_SEND ? data : NULL,
		                     .dst = kind == TESS_SEND ? NULL : data,
		                     .count = (uint64_t)n,
		                     .where = w->name };

	return n ? tess_group_run(along[s->program->pipeline_along], &c) : TESS_OK;
}

/* Adds n elements to `sum`. */
static tess_status add_gradient_part(const struct tess_parameters *s, const struct tess_weight *w,
                                     float *sum, float *more, int64_t n)
{
	struct tess_view in[2] = {
		{ .data = sum, .dtype = TESS_F32, .ndim = 2, .shape = { 1, n }, .stride = { n, 1 } }
	};
	struct tess_op op = { .size = sizeof op,
		              .kind = TESS_OP_ADD,
		              .nin = 2,
		              .nout = 1,
		              .in = in,
		              .out = in,
		              .stream = s->weights.device.stream,
		              .where = w->name };

	in[1] = in[0];
	in[1].data = more;
	return TESS_PLUGIN_CALL_FOR(s->weights.device.table, w->name, op_get_kind_name(op.kind),
	                            run, s->weights.device.self, &op);
}

/* Adds the gradient of the head w, or sends or receives it part by part. */
static tess_status add_gradient(const struct tess_parameters *s, struct tess_group *const *along,
                                const struct tess_weight *w, const struct tess_weight *table)
{
	bool has_head = tess_program_has_stage(s->program, s->rank, w->stage);
	bool has_table = tess_program_has_stage(s->program, s->rank, table->stage);
	const struct tess_weight *kept = has_table ? table : w->table ? w->table : w;
	float *head = s->each[w->index].gradient, *sum = s->each[table->index].gradient;
	tess_status st = TESS_OK;

	for (int64_t at = 0, n, end = s->each[kept->index].state.len; at < end && !st; at += n) {
		n = tess_program_limit_tied_part(s->program, end - at);
		if (!has_table)
			st = exchange_part(s, along, w, head + at, n, TESS_F32, TESS_SEND,
			                   table->stage);
		else if (!has_head)
			st = exchange_part(s, along, w, head, n, TESS_F32, TESS_RECV, w->stage);
		if (!st && has_table)
			st = add_gradient_part(s, w, sum + at, has_head ? head + at : head, n);
	}
	return st;
}

tess_status tess_tied_add_gradients(const struct tess_parameters *s,
                                    struct tess_group *const *along)
{
	const struct tess_program *p = s->program;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nweights && !st; i++) {
		const struct tess_weight *table = tess_weight_get_table(p->weight[i]);

		if (table && s->each[i].gradient) /* apart, and in this stage or the table's */
			st = add_gradient(s, along, p->weight[i], table);
	}
	return st;
}

/* Sends the table to the rank that has the copy w, or receives it. */
static tess_status send_table(const struct tess_parameters *s, struct tess_group *const *along,
                              const struct tess_weight *w, const struct tess_weight *table)
{
	bool has_copy = tess_program_has_stage(s->program, s->rank, w->stage);
	const struct tess_parameter *a = &s->each[has_copy ? w->index : table->index];

	if (!has_copy && !tess_program_has_stage(s->program, s->rank, table->stage))
		return TESS_OK;
	return exchange_part(s, along, w, a->weight, a->rest.len, w->dtype,
	                     has_copy ? TESS_RECV : TESS_SEND, has_copy ? table->stage : w->stage);
}

tess_status tess_tied_copy_tables(const struct tess_parameters *s, struct tess_group *const *along)
{
	const struct tess_program *p = s->program;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nweights && !st; i++) {
		if (p->weight[i]->copies)
			st = send_table(s, along, p->weight[i], p->weight[i]->copies);
	}
	return st;
}
