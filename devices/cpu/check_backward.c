/* Checks the ops of training by docs/ops.md. */
#include "check.h"

tess_status cpu_supports(const struct tess_op *op)
{
	return cpu_check(op);
}
