/* norm.c - the norm of the gradient, of all ranks. */
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

struct square_sum {
	const struct tess_opened_device *device;
	void *sum; /* a struct tess_accumulator in its memory */
};

/* Adds the squares of n elements in memory of the device. */
static tess_status add_squares(const struct square_sum *to, const struct tess_weight *w,
                               float *data, int64_t n)
{
	const struct tess_opened_device *d = to->device;
	struct tess_view in = describe_vector(data, TESS_F32, n);
	struct tess_view out = describe_vector(to->sum, TESS_I64, TESS_ACCUMULATOR_FIELDS);
	struct tess_op op = make_squares(&in, &out, w->name);

	op.stream = d->stream;
	return n ? TESS_PLUGIN_CALL_FOR(d->table, w->name, op_get_kind_name(op.kind), run, d->self,
	                                &op)
	         : TESS_OK;
}

/* Adds the squares of elements [at, at + n) of a gradient; of one in a file, window by window. */
static tess_status add_squares_of(struct square_sum sums[2], struct tess_kept *gradient, int64_t at,
                                  int64_t n)
{
	const struct square_sum *to = &sums[gradient->offload && gradient->offload->pinned];
	tess_status st = TESS_OK;

	if (!gradient->offload)
		return add_squares(to, gradient->weight, (float *)gradient->data + at, n);
	for (int64_t end = at + n; at < end && !st; at += n) {
		void *data;

		n = end - at;
		st = tess_kept_map(gradient, at, &n, &data);
		if (!st)
			st = add_squares(to, gradient->weight, data, n);
	}
	return st;
}

/* Adds the squares of the elements that this rank owns, adjacent ranges at once. */
static tess_status add_owned_squares(struct tess_trainer *t, struct square_sum sums[2],
                                     const struct tess_stored_tensor *tensor)
{
	struct tess_kept_run run, more = { 0 };
	struct tess_kept_walk w;
	struct tess_kept gradient;
	tess_status st = TESS_OK;

	tess_kept_open(&t->parameters, tensor->weight, TESS_GRADIENT, false, &gradient);
	tess_kept_walk_begin(&w, t->parameters.program, tensor, t->rank, TESS_STATE, TESS_OWNED);
	while (!st && tess_kept_walk_next(&w, &run)) {
		if (run.kept == more.kept + more.n) {
			more.n += run.n;
			continue;
		}
		st = add_squares_of(sums, &gradient, more.kept, more.n);
		more = run;
	}
	if (!st)
		st = add_squares_of(sums, &gradient, more.kept, more.n);
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
	struct tess_accumulator sum = { 0 }, on_host = { 0 };
	struct square_sum sums[2] = { { &t->device, t->squares },
		                      { &t->parameters.host, &on_host } };
	tess_status st = tess_device_clear(&t->device, "norm", t->squares, sizeof sum);

	for (int64_t i = 0; i < t->parameters.ntensors && !st; i++)
		if (t->parameters.tensor[i].about.trained)
			st = add_owned_squares(t, sums, &t->parameters.tensor[i]);
	if (!st)
		st = tess_device_move(&t->device, "norm", &sum, t->squares, sizeof sum);
	if (!st)
		add_host_sum(&on_host, &sum);
	st = tess_group_agree_status(t->parts.group, st, "norm");
	if (!st)
		st = tess_trainer_add_accumulators(t, t->parts.group, &sum, "norm");
	*norm = sqrt(tess_accumulator_round(&sum));
	return st;
}
