#include "nn/weights/tied.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"

#include <stdlib.h>
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

/* Finds elements of a gradient in memory, or reads them from its file to `window`. */
static tess_status find_gradient_part(const struct tess_parameters *s, const struct tess_weight *w,
                                      int64_t at, int64_t n, float *window, float **out)
{
	float *gradient = s->each[w->index].gradient;

	*out = gradient ? gradient + at : window;
	return gradient ? TESS_OK
	                : tess_offload_move(&s->offload, w, TESS_GRADIENT, at, n, false, window);
}

/* Adds elements of the gradient of a head to that of its table. */
static tess_status add_to_table(const struct tess_parameters *s, const struct tess_weight *w,
                                const struct tess_weight *table, int64_t at, int64_t n, float *more,
                                float *window)
{
	float *sum;
	tess_status st = find_gradient_part(s, table, at, n, window, &sum);

	if (!st)
		st = add_gradient_part(s, w, sum, more, n);
	if (!st && sum == window)
		st = tess_offload_move(&s->offload, table, TESS_GRADIENT, at, n, true, window);
	return st;
}

/* Adds the gradient of the head w, or sends or receives it part by part. */
static tess_status add_gradient(const struct tess_parameters *s, struct tess_group *const *along,
                                const struct tess_weight *w, const struct tess_weight *table,
                                float *window)
{
	bool has_head = tess_program_has_stage(s->program, s->rank, w->stage);
	bool has_table = tess_program_has_stage(s->program, s->rank, table->stage);
	const struct tess_weight *kept = has_table ? table : tess_weight_get_home(w);
	int64_t end = s->each[kept->index].state.len;
	float *sum = window ? window + tess_program_limit_part(s->program, end) : NULL;
	float *head = s->each[w->index].gradient; /* received parts go to its begin */
	tess_status st = TESS_OK;

	for (int64_t at = 0, n; at < end && !st; at += n) {
		n = tess_program_limit_part(s->program, end - at);
		if (has_head)
			st = find_gradient_part(s, w, at, n, window, &head);
		if (!st && !has_table)
			st = exchange_part(s, along, w, head, n, TESS_F32, TESS_SEND, table->stage);
		else if (!st && !has_head)
			st = exchange_part(s, along, w, head, n, TESS_F32, TESS_RECV, w->stage);
		if (!st && has_table)
			st = add_to_table(s, w, table, at, n, head, sum);
	}
	return st;
}

/* Makes room for two parts of a gradient in files; *out NULL: none is in a file. */
static tess_status alloc_window(const struct tess_parameters *s, float **out)
{
	uint64_t most = (uint64_t)tess_program_limit_part(s->program, INT64_MAX);

	*out = NULL;
	if (!s->offload.disk[TESS_REST])
		return TESS_OK;
	*out = aligned_alloc(TESS_DISK_ALIGN, tess_offload_pad(2 * most * sizeof(float)));
	return *out ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory for tied weights in files");
}

/* Returns whether there are tied weights with gradients of their own. */
static bool has_tied(const struct tess_parameters *s)
{
	for (int32_t i = 0; i < s->program->nweights; i++)
		if (tess_weight_get_table(s->program->weight[i]) && s->each[i].has_gradient)
			return true;
	return false;
}

tess_status tess_tied_add_gradients(const struct tess_parameters *s,
                                    struct tess_group *const *along)
{
	const struct tess_program *p = s->program;
	float *window = NULL;
	tess_status st = has_tied(s) ? alloc_window(s, &window) : TESS_OK;

	for (int32_t i = 0; i < p->nweights && !st; i++) {
		const struct tess_weight *table = tess_weight_get_table(p->weight[i]);

		if (table && s->each[i].has_gradient) /* apart, and in this stage or the table's */
			st = add_gradient(s, along, p->weight[i], table, window);
	}
	free(window);
	return st;
}

/* Sends the table to the rank that has the copy w, or receives it: part by part between files. */
static tess_status send_table(const struct tess_parameters *s, struct tess_group *const *along,
                              const struct tess_weight *w, const struct tess_weight *table,
                              char *window)
{
	bool has_copy = tess_program_has_stage(s->program, s->rank, w->stage);
	const struct tess_weight *mine = has_copy ? w : table;
	const struct tess_parameter *a = &s->each[mine->index];
	bool parts = w->rest_location == TESS_LOCATION_DISK ||
	             table->rest_location == TESS_LOCATION_DISK;
	uint64_t width = tess_width(w->dtype);
	tess_status st = TESS_OK;

	if (!has_copy && !tess_program_has_stage(s->program, s->rank, table->stage))
		return TESS_OK;
	for (int64_t at = 0, n; at < a->rest.len && !st; at += n) {
		char *part = a->weight ? (char *)a->weight + (uint64_t)at * width : window;

		n = a->rest.len - at;
		n = parts ? tess_program_limit_part(s->program, n) : n;
		if (!a->weight && !has_copy)
			st = tess_offload_move(&s->offload, mine, TESS_WEIGHT, at, n, false, part);
		if (!st)
			st = exchange_part(s, along, w, part, n, w->dtype,
			                   has_copy ? TESS_RECV : TESS_SEND,
			                   has_copy ? table->stage : w->stage);
		if (!st && !a->weight && has_copy)
			st = tess_offload_move(&s->offload, mine, TESS_WEIGHT, at, n, true, part);
	}
	return st;
}

/* Returns whether there are copies of tables. */
static bool has_copies(const struct tess_program *p)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (p->weight[i]->copies)
			return true;
	return false;
}

tess_status tess_tied_copy_tables(const struct tess_parameters *s, struct tess_group *const *along)
{
	const struct tess_program *p = s->program;
	float *window = NULL;
	tess_status st = has_copies(p) ? alloc_window(s, &window) : TESS_OK;

	for (int32_t i = 0; i < p->nweights && !st; i++) {
		if (p->weight[i]->copies)
			st = send_table(s, along, p->weight[i], p->weight[i]->copies,
			                (char *)window);
	}
	free(window);
	return st;
}
