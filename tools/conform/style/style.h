/*
 * style.h - the parts of `tessera conform --style`.
 *
 * A part is a job whose ranks are threads of one process. It computes small models with the style
 * on one module, and compares every bit with one rank without a plan.
 */
#ifndef TESS_TOOLS_CONFORM_STYLE_STYLE_H
#define TESS_TOOLS_CONFORM_STYLE_STYLE_H

#include "core/world/mesh_shape.h"
#include "model.h"
#include "tools/conform/conform.h"

/* What a style is for: modules of a tensor-parallel rank, of a replica, of a pipeline stage. */
enum conform_role { CONFORM_NO_ROLE, CONFORM_TENSOR, CONFORM_DATA, CONFORM_STAGE };

struct conform_style { /* the style of the job, borrowed */
	const struct tess_style *table;
	char name[64];
	const char *spec, *config; /* spec: name and configuration, as in a plan */
};
tess_status conform_style_find(const char *spec, struct conform_style *out);

/*
 * Returns the role of a style, by its layouts of all kinds of modules. CONFORM_NO_ROLE: it refuses
 * them all, the message is that of the first.
 */
enum conform_role conform_style_find_role(const struct conform_style *style, int32_t nranks);
/* Returns whether the style accepts modules of this kind, and cuts a parameter of them. */
bool conform_style_cuts(const struct conform_style *style, int32_t nranks, const char *kind);

conform_run conform_run_style_functions, conform_run_style_refusals, conform_run_style_life;

/* ---- values: compute.c ----------------------------------------------------------------------- */

enum { CONFORM_VALUES = 64 };

struct conform_values { /* logits, or a loss and gradients */
	double loss; /* 0 for logits */
	int32_t n;
	struct conform_value {
		char name[96];
		int64_t size, columns;
		float *data;
	} value[CONFORM_VALUES];
};
void conform_values_free(struct conform_values *v);

struct conform_mesh { /* the ranks of a program, and their groups */
	struct tess_group *group;
	struct tess_mesh_shape shape;
	struct tess_group *along[TESS_MESH_DIMS];
};

/*
 * Run a model with a plan. Collective over the mesh. *out is set on its rank 0, and empty on the
 * others; the caller frees it. *began: the plan was accepted. training: nsequences of them, so that
 * each replica has one.
 */
tess_status conform_compute_logits(const struct conform_mesh *mesh, const struct conform_model *m,
                                   const char *plan, bool *began, struct conform_values *out);
tess_status conform_compute_gradients(const struct conform_mesh *mesh,
                                      const struct conform_model *m, const char *plan,
                                      int32_t nsequences, bool *began, struct conform_values *out);
/*
 * Returns whether all values are equal: to the bit, or with a tolerance, relative to the largest
 * absolute value. Otherwise sets `text` to the first difference.
 */
bool conform_values_are_equal(const struct conform_values *want, const struct conform_values *have,
                              double tolerance, char text[CONFORM_TEXT]);

#endif
