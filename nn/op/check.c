#include "nn/op/check.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"

static const char *find_violation(const struct tess_op *op, const struct op_kind *kind,
                                  const struct tess_device *device)
{
	if (op->nin < 1 || op->nout < 1)
		return "it has no operand, or no out";
	return kind->check_whole ? kind->check_whole(op) : kind->check_partial(op, device->exact);
}

enum { VIEWS_MAX = 16 }; /* of an op with rows of bf16 */

/* Views rows of bf16 as f32 where the device rounds them: the other rules are the same. */
static void view_as_f32(const struct tess_device *device, struct tess_op *op,
                        struct tess_view *view)
{
	int32_t n = op->nin + op->nout;

	if (!device->rounds || n > VIEWS_MAX)
		return;
	for (int32_t i = 0; i < n; i++) {
		view[i] = i < op->nin ? op->in[i] : op->out[i - op->nin];
		if (view[i].dtype == TESS_BF16 &&
		    TESS_PLUGIN_VALUE_QUICK(device, op->where, rounds, op, i) == 1)
			view[i].dtype = TESS_F32;
	}
	op->in = view;
	op->out = view + op->nin;
}

tess_status tess_op_check(const struct tess_op *given, const struct tess_device *device)
{
	const struct op_kind *kind = op_find_kind(given->kind);
	const char *where = given->where ? given->where : "an op", *rule;
	struct tess_view view[VIEWS_MAX];
	struct tess_op copy = *given, *op = &copy;

	if (!kind)
		return tess_fail(TESS_ENOTSUP, "%s: there are no ops of kind %d", where,
		                 (int)op->kind);
	view_as_f32(device, op, view);
	rule = find_violation(op, kind, device);
	return rule ? tess_fail(TESS_ENOTSUP, "%s: %s: %s", where, kind->name, rule) : TESS_OK;
}
