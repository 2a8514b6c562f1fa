/* model_kinds.c - the kinds of `tessera bench` for models, and their defaults. */
#include "model.h"

const struct model_kind model_kinds[MODEL_KINDS] = {
	[MODEL_DECODE] = { "decode", 16, 64, 5, 1, { 1 } },
	[MODEL_PREFILL] = { "prefill", 0, 512, 5, 1, { 1 } },
	[MODEL_BATCH] = { "batch", 16, 64, 5, 3, { 1, 8, 32 } },
	[MODEL_LOAD] = { "load", 16, 2, 3, 1, { 1 } },
};
