#include "nn/op/kinds.h"

#include <stddef.h>

static const struct op_kind kinds[] = {
#define OP(kind, name, outs, weight, cost, backward, lower) \
	[TESS_OP_##kind] = { #name, weight, .check_##outs = op_check_##name },
#include "nn/op/kinds.def"
};

const struct op_kind *op_find_kind(int32_t kind)
{
	return kind > 0 && kind < TESS_OP_KINDS ? &kinds[kind] : NULL;
}
