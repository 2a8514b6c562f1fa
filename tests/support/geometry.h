/*
 * geometry.h - checkpoints of random sizes, in memory: a config.json drawn from a seed, and
 * parameters of the shapes that the model derives from it.
 */
#ifndef TESS_TESTS_SUPPORT_GEOMETRY_H
#define TESS_TESTS_SUPPORT_GEOMETRY_H

#include "nn/program/source.h"

#include <tessera/model.h>

struct geometry {
	const struct tess_model *model;
	json_t *config;
	struct tess_source source;
	int32_t dtype; /* type of the parameters */
	bool mxfp4; /* those of experts are stored in MXFP4 */
	int32_t most_ranks; /* maximum number of ranks */
	int64_t vocabulary;
	struct geometry_tensor { /* Tensors by name. */
		char *name;
		struct tess_view view;
	} * tensor;
	int32_t ntensors;
};

/* Returns the number of families, and the name of one. */
int32_t geometry_count_families(void);
const char *geometry_get_family(int32_t i);

/*
 * Opens a checkpoint; *out must stay in place until geometry_close. mxfp4: the experts of some are
 * stored in MXFP4, which cannot be trained. A failure's message is in tess_error().
 */
tess_status geometry_open(const char *family, uint64_t seed, bool mxfp4, struct geometry *out);
void geometry_close(struct geometry *g);

#endif
