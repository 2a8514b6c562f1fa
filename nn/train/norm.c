#include "nn/train/norm.h"

#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"
#include "nn/program/agree.h"
#include "nn/train/trainer_state.h"
#include "nn/weights/kept.h"

#include <math.h>
#include <string.h>
#include <tessera/util/clock.h>

static struct tess_view describe_vector(void *data, int32_t dtype, int64_t n)
{
	return (struct tess_view){
		.data = data, .dtype = dtype, .ndim = 1, .shape = { n }, .stride = { 1 }
	};
}

/* Makes the op that adds the squares of the elements of `in` to `out`. */
static struct tess_op make_squares(struct tess_view *in, struct tess_view *out, const char *where)
{
	return (struct tess_op){ .size = sizeof(struct tess_op),
		                 .kind = TESS_OP_SQUARES,
		                 .nin = 1,
		                 .nout = 1,
		                 .in = in,
		                 .out = out,
		                 .where = where };
}

tess_status tess_norm_check_device(const struct tess_device *device)
{
	struct tess_view in = describe_vector(NULL, TESS_F32, 1);
	struct tess_view out = describe_vector(NULL, TESS_I64, TESS_ACCUMULATOR_FIELDS);
	struct tess_op op = make_squares(&in, &out, "norm");
	tess_status st = tess_device_check_op(device, &op);

	return st ? tess_fail(TESS_ENOTSUP,
	                      "device %s does not train: it has no ops of training; use "
	                      "TESSERA_DEVICE=cpu",
	                      device->name)
	          : TESS_OK;
}

tess_status tess_trainer_add_accumulators(struct tess_trainer *t, struct tess_group *group,
                                          struct tess_accumulator *a, const char *where)
{
	int64_t fields[TESS_ACCUMULATOR_FIELDS], began = tess_now();
	tess_status st;

	if (!group)
		return TESS_OK;
	memcpy(fields, a, sizeof fields);
	st = tess_all_reduce(group, fields, fields, TESS_ACCUMULATOR_FIELDS, TESS_I64, TESS_SUM,
	                     where);
	memcpy(a, fields, sizeof fields);
	t->waited += tess_now() - began;
	return st;
}

/* Adds the squares of n elements in memory of the device to *sum. */
static tess_status add_squares(const struct tess_opened_device *d, const struct tess_weight *w,
                               float *data, int64_t n, struct tess_accumulator *sum)
{
	struct tess_view in = describe_vector(data, TESS_F32, n);
	struct tess_view out = describe_vector(sum, TESS_I64, TESS_ACCUMULATOR_FIELDS);
	struct tess_op op = make_squares(&in, &out, w->name);

	op.stream = d->stream;
	return n ? TESS_PLUGIN_CALL_FOR(d->table, w->name, op_get_kind_name(op.kind), run, d->self,
	                                &op)
	         : TESS_OK;
}

/* Adds the squares of the elements of a part of a tensor's weight that this rank owns of it. */
static tess_status add_owned_squares(const struct tess_opened_device *d,
                                     const struct tess_parameters *s,
                                     const struct tess_stored_tensor *tensor,
                                     const struct tess_norm_part *part,
                                     struct tess_accumulator *sum)
{
	int64_t begin = part->first, end = begin; /* adjacent ranges at once */
	struct tess_kept_run run;
	struct tess_kept_walk w;
	tess_status st = TESS_OK;

	tess_kept_walk_begin(&w, s->program, tensor, s->rank, TESS_STATE, TESS_OWNED);
	while (!st && tess_kept_walk_next(&w, &run)) {
		int64_t lo = run.kept > part->first ? run.kept : part->first;
		int64_t hi = run.kept + run.n, last = part->first + part->n;

		hi = hi < last ? hi : last;
		if (run.kept >= last)
			break;
		if (lo >= hi)
			continue;
		if (lo != end) {
			st = add_squares(d, part->weight, part->gradient + (begin - part->first),
			                 end - begin, sum);
			begin = lo;
		}
		end = hi;
	}
	return st ? st
	          : add_squares(d, part->weight, part->gradient + (begin - part->first),
	                        end - begin, sum);
}

tess_status tess_norm_add_part(const struct tess_opened_device *device,
                               const struct tess_parameters *s, const struct tess_norm_part *part,
                               struct tess_accumulator *sum)
{
	const struct tess_parameter *a = &s->each[part->weight->index];
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < a->ntensors && !st; i++)
		if (a->tensor[i].about.trained)
			st = add_owned_squares(device, s, &a->tensor[i], part, sum);
	return st;
}

/*
 * Adds the squares of a gradient; of one in a file, window by window. Those of gradients in memory
 * of the host, next to a device with memory of its own, are added to *on_host.
 */
static tess_status add_weight_squares(struct tess_trainer *t, const struct tess_weight *w,
                                      struct tess_accumulator *on_host)
{
	const struct tess_opened_device *device;
	struct tess_norm_part part = { .weight = w };
	struct tess_kept gradient;
	tess_status st = TESS_OK;
	bool pinned;

	tess_kept_open(&t->parameters, w, TESS_GRADIENT, false, &gradient);
	pinned = gradient.offload && gradient.offload->pinned;
	device = pinned ? &t->parameters.host : &t->device;
	for (; part.first < gradient.n && !st; part.first += part.n) {
		void *data = gradient.data;

		part.n = gradient.n - part.first;
		if (gradient.offload)
			st = tess_kept_map(&gradient, part.first, &part.n, &data);
		part.gradient = data;
		if (!st && data)
			st = tess_norm_add_part(device, &t->parameters, &part,
			                        pinned ? on_host : t->squares);
	}
	return tess_kept_close(&gradient, st);
}

/* Adds an accumulator field by field. */
static void add_host_sum(const struct tess_accumulator *more, struct tess_accumulator *sum)
{
	for (int32_t i = 0; i < TESS_ACCUMULATOR_DIGITS; i++)
		sum->digit[i] += more->digit[i];
	sum->nonfinite += more->nonfinite;
}

tess_status tess_trainer_measure_norm(struct tess_trainer *t, double *norm)
{
	const struct tess_parameters *s = &t->parameters;
	struct tess_accumulator sum = { 0 }, on_host = { 0 };
	tess_status st = tess_device_clear(&t->device, "norm", t->squares, sizeof sum), early;

	tess_early_update_add_rest(t);
	for (int32_t i = 0; i < s->program->nweights && !st; i++)
		if (s->each[i].trained && !s->program->weight[i]->table &&
		    !(t->early.has_begun && s->offload.layout.weight[i].has_gradient))
			st = add_weight_squares(t, s->program->weight[i], &on_host);
	if (!st)
		st = tess_device_move(&t->device, "norm", &sum, t->squares, sizeof sum);
	add_host_sum(&on_host, &sum);
	early = tess_early_update_finish(t);
	if (t->early.has_begun) /* what the update has read */
		add_host_sum(&t->update.squares, &sum);
	st = tess_group_agree_status(t->parts.group, st ? st : early, "norm");
	if (!st)
		st = tess_trainer_add_accumulators(t, t->parts.group, &sum, "norm");
	*norm = sqrt(tess_accumulator_round(&sum));
	return st;
}
