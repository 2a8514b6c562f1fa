/*
 * geometry.h - checkpoints of random sizes, in memory: a config.json that is drawn from a seed, and
 * parameters of the shapes that the model makes of it.
 */
#ifndef TESS_TESTS_SUPPORT_GEOMETRY_H
#define TESS_TESTS_SUPPORT_GEOMETRY_H

#include "nn/program/source.h"

#include <tessera/model.h>

struct geometry {
	const struct tess_model *model;
	json_t *config;
	struct tess_source source;
	int32_t dtype; /* of the parameters */
	int32_t most_ranks; /* that can run it */
	int64_t vocabulary;
	struct geometry_tensor { /* by name */
		char *name;
		struct tess_view view;
	} * tensor;
	int32_t ntensors;
};

extern const char *const geometry_families[]; /* ends with NULL */

/* *out must stay where it is: geometry_close. The sentence of a failure is in tess_error(). */
tess_status geometry_open(const char *family, uint64_t seed, struct geometry *out);
void geometry_close(struct geometry *g);

#endif
