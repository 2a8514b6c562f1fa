#include "nn/train/squares.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"
#include "nn/weights/kept.h"

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

tess_status tess_squares_check_device(const struct tess_device *device)
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
                                     const struct tess_squares_part *part,
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

tess_status tess_squares_add_part(const struct tess_opened_device *device,
                                  const struct tess_parameters *s,
                                  const struct tess_squares_part *part,
                                  struct tess_accumulator *sum)
{
	const struct tess_parameter *a = &s->each[part->weight->index];
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < a->ntensors && !st; i++)
		if (a->tensor[i].about.trained)
			st = add_owned_squares(device, s, &a->tensor[i], part, sum);
	return st;
}
