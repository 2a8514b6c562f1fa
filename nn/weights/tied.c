#include "nn/weights/tied.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"

#include <stdlib.h>
#include <tessera/reduce.h>

struct tied_pass { /* moves a weight, or the gradient of a tied head, to the other rank's place */
	const struct tess_parameters *s;
	struct tess_group *const *along;
	/*
	 * Memory of the host for two parts of what is in files, or in memory of the host next to a
	 * device. NULL: nothing is.
	 */
	float *window;
	/* parts pass through the window also if this rank has them in memory of a device */
	bool on_host;
};

/* Sends n elements to the rank of another stage, or receives them. */
static tess_status exchange_part(const struct tied_pass *m, const struct tess_weight *w, void *data,
                                 int64_t n, int32_t dtype, int32_t kind, int32_t stage)
{
	const struct tess_parameters *s = m->s;
	const struct tess_opened_device *d = m->on_host ? &s->host : &s->weights.device;
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = kind,
		                     .dtype = dtype,
		                     .mem = d->table->mem,
		                     .stream = d->stream,
		                     .peer = s->program->stage_rank[stage],
		                     .src = kind == TESS_SEND ? data : NULL,
		                     .dst = kind == TESS_SEND ? NULL : data,
		                     .count = (uint64_t)n,
		                     .where = w->name };

	return n ? tess_group_run(m->along[s->program->pipeline_along], &c) : TESS_OK;
}

/* Adds n elements to `sum`. */
static tess_status add_gradient_part(const struct tied_pass *m, const struct tess_weight *w,
                                     float *sum, float *more, int64_t n)
{
	const struct tess_opened_device *d = m->on_host ? &m->s->host : &m->s->weights.device;
	struct tess_view in[2] = {
		{ .data = sum, .dtype = TESS_F32, .ndim = 2, .shape = { 1, n }, .stride = { n, 1 } }
	};
	struct tess_op op = { .size = sizeof op,
		              .kind = TESS_OP_ADD,
		              .nin = 2,
		              .nout = 1,
		              .in = in,
		              .out = in,
		              .stream = d->stream,
		              .where = w->name };

	in[1] = in[0];
	in[1].data = more;
	return TESS_PLUGIN_CALL_FOR(d->table, w->name, op_get_kind_name(op.kind), run, d->self,
	                            &op);
}

/* Moves elements of a value between where this rank keeps it, and `part`. */
static tess_status move_tied_part(const struct tied_pass *m, const struct tess_weight *w,
                                  int32_t what, int64_t at, int64_t n, bool back, void *part)
{
	int32_t dtype;
	int64_t kept;
	char *there = tess_parameter_find(m->s, w, what, &dtype, &kept);

	if (!there)
		return tess_offload_move(&m->s->offload, w, what, at, n, back, part);
	there += (uint64_t)at * tess_width(dtype);
	if (there == part)
		return TESS_OK;
	return tess_device_move(&m->s->weights.device, w->name, back ? there : part,
	                        back ? part : there, (uint64_t)n * tess_width(dtype));
}

/* Returns memory for elements of a value: in place, or in the window. */
static void *find_tied_part(const struct tied_pass *m, const struct tess_weight *w, int32_t what,
                            int64_t at, void *window)
{
	int32_t dtype;
	int64_t kept;
	char *there = tess_parameter_find(m->s, w, what, &dtype, &kept);

	return there && !m->on_host ? there + (uint64_t)at * tess_width(dtype) : window;
}

/* Adds elements of the gradient of a head to that of its table. */
static tess_status add_to_table(const struct tied_pass *m, const struct tess_weight *w,
                                const struct tess_weight *table, int64_t at, int64_t n, float *more,
                                float *window)
{
	float *sum = find_tied_part(m, table, TESS_GRADIENT, at, window);
	tess_status st = move_tied_part(m, table, TESS_GRADIENT, at, n, false, sum);

	if (!st)
		st = add_gradient_part(m, w, sum, more, n);
	return st ? st : move_tied_part(m, table, TESS_GRADIENT, at, n, true, sum);
}

/* Adds the gradient of the head w, or sends or receives it part by part. */
static tess_status add_gradient(const struct tied_pass *m, const struct tess_weight *w,
                                const struct tess_weight *table)
{
	const struct tess_program *p = m->s->program;
	bool has_head = tess_program_has_stage(p, m->s->rank, w->stage);
	bool has_table = tess_program_has_stage(p, m->s->rank, table->stage);
	const struct tess_weight *kept = has_table ? table : tess_weight_get_home(w);
	int64_t end = m->s->each[kept->index].state.len;
	float *sum = m->window ? m->window + tess_program_limit_part(p, end) : NULL;
	tess_status st = TESS_OK;

	for (int64_t at = 0, n; at < end && !st; at += n) {
		/* received parts go to the begin of the head's room */
		float *head = find_tied_part(m, w, TESS_GRADIENT, has_head ? at : 0, m->window);

		n = tess_program_limit_part(p, end - at);
		if (has_head)
			st = move_tied_part(m, w, TESS_GRADIENT, at, n, false, head);
		if (!st && !has_table)
			st = exchange_part(m, w, head, n, TESS_F32, TESS_SEND, table->stage);
		else if (!st && !has_head)
			st = exchange_part(m, w, head, n, TESS_F32, TESS_RECV, w->stage);
		if (!st && has_table)
			st = add_to_table(m, w, table, at, n, head, sum);
	}
	return st;
}

/* Returns whether parts of two weights pass through memory of the host, on all ranks. */
static bool are_on_host(const struct tess_parameters *s, const struct tess_weight *a,
                        const struct tess_weight *b)
{
	const struct tess_program *p = s->program;

	return s->offload.layout.pinned && (tess_location_is_apart(p, a->rest_location) ||
	                                    tess_location_is_apart(p, b->rest_location));
}

/* Makes room for two parts of a gradient in files, or in memory of the host next to a device. */
static tess_status open_pass(const struct tess_parameters *s, struct tess_group *const *along,
                             struct tied_pass *out)
{
	uint64_t most = (uint64_t)tess_program_limit_part(s->program, INT64_MAX);

	*out = (struct tied_pass){ .s = s, .along = along };
	if (!s->offload.layout.bytes[TESS_REST] && !s->host.self)
		return TESS_OK;
	out->window = aligned_alloc(TESS_DISK_ALIGN, tess_offload_pad(2 * most * sizeof(float)));
	return out->window
	               ? TESS_OK
	               : tess_fail(TESS_ENOMEM, "no memory for parts of tied weights: %llu bytes",
	                           (unsigned long long)(2 * most * sizeof(float)));
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
	struct tied_pass m = { 0 };
	tess_status st = has_tied(s) ? open_pass(s, along, &m) : TESS_OK;

	for (int32_t i = 0; i < p->nweights && !st; i++) {
		const struct tess_weight *w = p->weight[i], *table = tess_weight_get_table(w);

		if (!table ||
		    !s->each[i].has_gradient) /* apart, and in this stage or the table's */
			continue;
		m.on_host = are_on_host(s, tess_weight_get_home(w), table);
		st = add_gradient(&m, w, table);
	}
	free(m.window);
	return st;
}

/* Sends the table to the rank that has the copy w, or receives it: part by part between files. */
static tess_status send_table(const struct tied_pass *m, const struct tess_weight *w,
                              const struct tess_weight *table)
{
	const struct tess_program *p = m->s->program;
	bool has_copy = tess_program_has_stage(p, m->s->rank, w->stage);
	const struct tess_weight *mine = has_copy ? w : table;
	int64_t end = m->s->each[mine->index].rest.len;
	bool parts = tess_location_is_apart(p, w->rest_location) ||
	             tess_location_is_apart(p, table->rest_location);
	tess_status st = TESS_OK;

	if (!has_copy && !tess_program_has_stage(p, m->s->rank, table->stage))
		return TESS_OK;
	for (int64_t at = 0, n; at < end && !st; at += n) {
		void *part = find_tied_part(m, mine, TESS_WEIGHT, at, m->window);

		n = end - at;
		n = parts ? tess_program_limit_part(p, n) : n;
		if (!has_copy)
			st = move_tied_part(m, mine, TESS_WEIGHT, at, n, false, part);
		if (!st)
			st = exchange_part(m, w, part, n, w->dtype,
			                   has_copy ? TESS_RECV : TESS_SEND,
			                   has_copy ? table->stage : w->stage);
		if (!st && has_copy)
			st = move_tied_part(m, mine, TESS_WEIGHT, at, n, true, part);
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
	struct tied_pass m = { 0 };
	tess_status st = has_copies(p) ? open_pass(s, along, &m) : TESS_OK;

	for (int32_t i = 0; i < p->nweights && !st; i++) {
		const struct tess_weight *w = p->weight[i];

		if (!w->copies)
			continue;
		m.on_host = are_on_host(s, w, w->copies);
		st = send_table(&m, w, w->copies);
	}
	free(m.window);
	return st;
}
