#include "nn/train/optimizer.h"

#include "core/base/math.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/base/thread_state.h"
#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"

#include <math.h>
#include <string.h>
#include <tessera/reduce.h>

/* ---- options --------------------------------------------------------------------------------- */

static double choose_number(double given, double preset)
{
	return given < 0 ? 0 : given == 0 ? preset : given; /* NaN stays */
}

tess_status tess_optimizer_read(const struct tess_trainer_options *o, struct tess_optimizer *out)
{
	struct tess_optimizer r = { .kind = o->optimizer ? o->optimizer : TESS_ADAMW,
		                    .beta1 = choose_number(o->beta1, 0.9),
		                    .beta2 = choose_number(o->beta2, 0.999),
		                    .eps = choose_number(o->eps, 1e-8),
		                    .momentum = o->momentum,
		                    .decay = o->weight_decay };
	const struct {
		const char *name;
		double value, below;
	} numbers[] = { { "beta1", r.beta1, 1 },
		        { "beta2", r.beta2, 1 },
		        { "eps", r.eps, INFINITY },
		        { "momentum", r.momentum, 1 },
		        { "weight decay", r.decay, INFINITY },
		        { "clip", o->clip, INFINITY },
		        { "balance", o->balance, INFINITY },
		        { "dropout", o->dropout < 0 ? 0 : o->dropout, 1 } };

	if (r.kind != TESS_ADAMW && r.kind != TESS_SGD)
		return tess_fail(TESS_EINVAL, "optimizer %d; use TESS_ADAMW or TESS_SGD",
		                 (int)r.kind);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (!(numbers[i].value >= 0 && numbers[i].value < numbers[i].below))
			return tess_fail(TESS_EINVAL, "%s %g; use 0 or more%s", numbers[i].name,
			                 numbers[i].value,
			                 numbers[i].below == 1 ? ", and less than 1" : "");
	*out = r;
	return TESS_OK;
}

int32_t tess_optimizer_count_moments(const struct tess_optimizer *o)
{
	return o->kind == TESS_ADAMW ? 2 : o->momentum > 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static struct tess_view make_flat_view(void *data, int32_t dtype, int64_t n)
{
	return (struct tess_view){
		.data = data, .dtype = dtype, .ndim = data ? 1 : 0, .shape = { n }, .stride = { 1 }
	};
}

/* Writes the numbers of the op, and returns how many there are. */
static int32_t list_numbers(const struct tess_optimizer *o, const struct tess_optimizer_step *step,
                            double decay, double *num)
{
	const double adamw[TESS_ADAMW_NUMS] = {
		[TESS_ADAMW_LR] = step->lr,
		[TESS_ADAMW_BETA1] = o->beta1,
		[TESS_ADAMW_BETA2] = o->beta2,
		[TESS_ADAMW_EPS] = o->eps,
		[TESS_ADAMW_DECAY] = decay,
		[TESS_ADAMW_BIAS1] = 1 - tess_pow_f64(o->beta1, (double)step->number),
		[TESS_ADAMW_BIAS2] = 1 - tess_pow_f64(o->beta2, (double)step->number),
		[TESS_ADAMW_FACTOR] = step->factor,
	};
	const double sgd[TESS_SGD_NUMS] = {
		[TESS_SGD_LR] = step->lr,
		[TESS_SGD_MOMENTUM] = o->momentum,
		[TESS_SGD_DECAY] = decay,
		[TESS_SGD_FACTOR] = step->factor,
	};

	if (o->kind == TESS_ADAMW)
		memcpy(num, adamw, sizeof adamw);
	else
		memcpy(num, sgd, sizeof sgd);
	return o->kind == TESS_ADAMW ? TESS_ADAMW_NUMS : TESS_SGD_NUMS;
}

tess_status tess_optimizer_run(const struct tess_optimizer *o,
                               const struct tess_optimizer_step *step,
                               const struct tess_opened_device *device, const struct tess_weight *w,
                               const struct tess_optimizer_values *v)
{
	const struct tess_view in = make_flat_view((void *)v->gradient, TESS_F32, v->n);
	struct tess_view out[4] = { make_flat_view(v->master, TESS_F32, v->n),
		                    make_flat_view(v->moment[0], TESS_F32, v->n) };
	double num[TESS_ADAMW_NUMS];
	struct tess_op op = { .size = sizeof op,
		              .kind = o->kind == TESS_ADAMW ? TESS_OP_ADAMW : TESS_OP_SGD,
		              .nin = 1,
		              .nout = o->kind == TESS_ADAMW ? 4 : 3,
		              .in = &in,
		              .out = out,
		              .num = num,
		              .stream = device->stream,
		              .where = w->name };

	if (o->kind == TESS_ADAMW)
		out[2] = make_flat_view(v->moment[1], TESS_F32, v->n);
	out[op.nout - 1] = make_flat_view(w->dtype == TESS_F32 ? NULL : v->rounded, w->dtype, v->n);
	op.nnum = list_numbers(o, step, w->ndim > 1 ? o->decay : 0, num);
	return v->n ? TESS_PLUGIN_CALL_FOR(device->table, w->name, op_get_kind_name(op.kind), run,
	                                   device->self, &op)
	            : TESS_OK;
}

/* ---- learning rates -------------------------------------------------------------------------- */

static double compute_scheduled_rate(const struct tess_schedule *s, int64_t step)
{
	static const double pi = 3.14159265358979323846;
	double done;

	if (step < s->warmup)
		return s->lr * (double)(step + 1) / (double)s->warmup;
	if (s->kind == TESS_CONSTANT)
		return s->lr;
	done = step < s->steps ? (double)(step - s->warmup) / (double)(s->steps - s->warmup) : 1;
	return s->least + (s->lr - s->least) * (1 + tess_cos_f64(pi * done)) / 2;
}

double tess_schedule_get(const struct tess_schedule *s, int64_t step)
{
	struct tess_thread_state callers;
	double lr;

	if (TESS_REQUIRE(s))
		return NAN;
	if (step < 0 || (s->kind != TESS_CONSTANT && s->kind != TESS_COSINE)) {
		tess_fail(TESS_EINVAL, "tess_schedule_get: step %lld of a schedule of kind %d",
		          (long long)step, (int)s->kind);
		return NAN;
	}
	tess_thread_state_begin(&callers);
	lr = compute_scheduled_rate(s, step);
	tess_thread_state_restore(&callers);
	return lr;
}

tess_status tess_trainer_check_math(int32_t dtype)
{
	if (dtype == TESS_F16)
		return tess_fail(TESS_EINVAL,
		                 "products of f16: gradients below 6e-8 would be 0, and values "
		                 "above 65504 infinite, without the scaling of losses, which is "
		                 "not offered; use TESS_BF16 (--math bf16), which has the range "
		                 "of f32");
	if (dtype && dtype != TESS_F32 && dtype != TESS_BF16)
		return tess_fail(TESS_EINVAL, "products of dtype %d; use 0, TESS_F32 or TESS_BF16",
		                 (int)dtype);
	return TESS_OK;
}
