#include "nn/op/check.h"

#include "core/base/status.h"
#include "nn/op/kinds.h"

static const char *find_violation(const struct tess_op *op, const struct op_kind *kind,
                                  const struct tess_device *device)
{
	if (op->nin < 1 || op->nout < 1)
		return "it has no operand, or no out";
	return kind->check_whole ? kind->check_whole(op) : kind->check_partial(op, device->exact);
}

tess_status tess_op_check(const struct tess_op *op, const struct tess_device *device)
{
	const struct op_kind *kind = op_find_kind(op->kind);
	const char *where = op->where ? op->where : "an op", *rule;

	if (!kind)
		return tess_fail(TESS_ENOTSUP, "%s: there are no ops of kind %d", where,
		                 (int)op->kind);
	rule = find_violation(op, kind, device);
	return rule ? tess_fail(TESS_ENOTSUP, "%s: %s: %s", where, kind->name, rule) : TESS_OK;
}
