/* A model of two types that records nothing; -D gives it no type, or an invalid one. */
#include <tessera/model.h>

#ifndef TYPES
#define TYPES "abi_model", "abi-Model.2",
#endif

static struct tess_tensor *abi_model_forward(struct tess_nn *nn, struct tess_tensor *ids)
{
	(void)nn;
	return ids;
}

static const char *const types[] = { TYPES NULL };
static const struct tess_model model = {
	.size = sizeof model,
	.name = "abi",
	.summary = "records nothing",
	.types = types,
	.forward = abi_model_forward,
};

TESS_DEFINE_PLUGIN("abi", "1.0", "Apache-2.0", .models = TESS_LIST(tess_model, &model),
                   .needs_nn = TESS_UPTO(tess_nn, split));
