/*
 * tessera/values.h - values of modules: the outputs that a session or a trainer keeps, on the host
 * and in files, and where two runs differ.
 *
 * A session or a trainer that was opened with the option `values` keeps the output of each module
 * that the pattern matches. The output is the value that the module's style returns. It is gathered
 * and summed over all ranks, so it has one shape for any plan and mesh. Moves and sums are exact:
 * no other bit of a run depends on the option.
 *
 * Example:
 *     static tess_status compare_runs(const char *a, const char *b)
 *     {
 *             struct tess_values *x = NULL, *y = NULL;
 *             struct tess_comparison *c = NULL;
 *             tess_status st = tess_values_load(a, &x);
 *
 *             st = st ? st : tess_values_load(b, &y);
 *             st = st ? st : tess_values_compare(x, y, TESS_TOLERANCE_AUTO, &c);
 *             if (!st && c->first >= 0)
 *                     printf("first difference: %s\n", c->values[c->first]->name);
 *             tess_comparison_free(c);
 *             tess_values_free(y);
 *             tess_values_free(x);
 *             return st;
 *     }
 */
#ifndef TESSERA_VALUES_H
#define TESSERA_VALUES_H

#include <tessera/plugin.h>

TESS_BEGIN

struct tess_session;
struct tess_trainer;

/* Named tensors on the host, in order: modules in the order in which they end. */
struct tess_values;

/* A tensor of a list of values. The caller sets size; all that it points to is borrowed. */
struct tess_value {
	/* sizeof(struct tess_value). */
	uint32_t size;
	/* Element type: TESS_F32, ... */
	int32_t dtype;
	/* Name of the module, such as "model.layers.0.mlp", or of any other tensor. A module that
	 * a model calls twice has a second value "NAME#2". */
	const char *name;
	/* Elements, dense, the last axis fastest: [product of shape]. */
	const void *data;
	/* Global shape: the first ndim are used. */
	int64_t shape[TESS_DIMS];
	/* Number of axes. */
	int32_t ndim;
	int32_t reserved;
	/* Ranks that hold the parts of the value under the plan, for tess_value_find_rank; NULL:
	 * every rank holds all of it, or it is unknown. A list of parts "AXIS:START:RANK", each up
	 * to the next START of its axis, such as "1:0:0 1:32:1". */
	const char *holders;
	/* The styles of the module that the plan names, with their files: "colwise (FILE)", on a
	 * mesh "colwise along tp (FILE)", separated by ", "; NULL: none, or unknown. */
	const char *styles;
};
TESS_TIGHT(tess_value, styles);

/* Makes an empty list. The caller frees *out by tess_values_free. */
tess_status tess_values_new(struct tess_values **out);

/*
 * Appends a copy of a tensor with its data; holders and styles may be NULL. TESS_EINVAL: the name
 * is empty or in the list, the element type is unknown, or the shape is invalid.
 */
tess_status tess_values_add(struct tess_values *v, const struct tess_value *value);

/* Returns the number of tensors. */
int64_t tess_values_count(const struct tess_values *v);

/* Fills in tensor i, up to out->size; borrowed from `v`. TESS_EINVAL: it does not exist. */
tess_status tess_values_get(const struct tess_values *v, int64_t i, struct tess_value *out);

/* Returns the index of a tensor; -1: it does not exist. */
int64_t tess_values_find(const struct tess_values *v, const char *name);

/*
 * Returns the world rank that held an element when the values were taken; -1: unknown, or every
 * rank holds it. row: index over all axes but the last; column: index on the last axis.
 */
int32_t tess_value_find_rank(const struct tess_value *value, int64_t row, int64_t column);

/*
 * Returns the arithmetic of the run that made the values: "exact" or "fast" sums, the element types
 * of products, KV cache and weights; in training, the number of micro-batches. "": unknown.
 * Borrowed from `v`.
 */
const char *tess_values_get_numerics(const struct tess_values *v);

/* Reads all tensors of a safetensors file. The caller frees *out by tess_values_free. */
tess_status tess_values_load(const char *path, struct tess_values **out);

/* Writes a safetensors file; a file at `path` is replaced when the new one is complete. */
tess_status tess_values_save(const struct tess_values *v, const char *path);

/* Frees values. NULL is accepted. */
void tess_values_free(struct tess_values *v);

/* ---- values of a session or a trainer -------------------------------------------------------- */

/*
 * Takes the values that the steps of a session have kept since it was opened, or since the last
 * call. Rows of steps follow each other: [rows, elements], f32. A module before the head has a row
 * per id, the head a row per selected row of logits. Along `dp` they are those of the first
 * replica. Rank 0 of the mesh gets them in *out, and frees them by tess_values_free; the others get
 * NULL. Take values after each step or a few of them: they are in host memory until then.
 * Collective; blocks. TESS_EINVAL: the session was opened without `values`.
 */
tess_status tess_session_take_values(struct tess_session *s, struct tess_values **out);

/*
 * Takes the values that the last steps of a trainer have kept, like tess_session_take_values: a row
 * per id of all sequences of all micro-batches, in order. Collective; blocks. TESS_EINVAL: the
 * trainer was opened without `values`.
 */
tess_status tess_trainer_take_values(struct tess_trainer *t, struct tess_values **out);

/* ---- comparing ------------------------------------------------------------------------------- */

/*
 * The tolerance of tess_values_compare that compares bits if the runs had the same exact arithmetic
 * (tess_values_get_numerics), and else allows 1e-5.
 */
#define TESS_TOLERANCE_AUTO (-1.0)

/* States of a tensor in a comparison. */
enum {
	TESS_VALUE_EQUAL, /* no element differs by more than the tolerance */
	TESS_VALUE_DIFFERENT,
	TESS_VALUE_RESHAPED, /* the shapes differ */
	TESS_VALUE_ONLY_FIRST, /* the second list has no tensor of this name */
	TESS_VALUE_ONLY_SECOND
};

/* Result for one tensor. */
struct tess_value_comparison {
	/* Name of the tensor. */
	const char *name;
	/* TESS_VALUE_EQUAL, ... */
	int32_t state;
	/* World rank that holds the element below in the first run; -1: unknown, or every rank. */
	int32_t rank;
	/* Index of the first different element over all axes but the last; -1: none. */
	int64_t row;
	/* Its index on the last axis; -1: none. */
	int64_t column;
	/* That element in the first list. */
	double a;
	/* That element in the second list. */
	double b;
	/* Steps from one to the other among the numbers of f32; UINT64_MAX: one is NaN. */
	uint64_t ulps;
	/* Number of different elements. */
	int64_t ndifferent;
	/* Largest difference of two elements; infinite if one is non-finite. */
	double largest;
	/* Largest allowed difference; 0: of bits, or of numbers if the tolerance is not 0. */
	double allowed;
	/* The styles of the module in the first run (tess_value); NULL: none, or unknown. */
	const char *styles;
};

/* A comparison. It owns all that it points to, and grows at its end. */
struct tess_comparison {
	/* Results in the order of the first list, then tensors of the second only:
	 * [nvalues]. */
	const struct tess_value_comparison *const *values;
	/* Number of results. */
	int64_t nvalues;
	/* Number of tensors in both lists. */
	int64_t ncompared;
	/* Number of those that differ, by elements or by shape. */
	int64_t ndifferent;
	/* Index of the first of them; -1: none. */
	int64_t first;
	/* The tolerance used; 0: bits are compared. */
	double tolerance;
};

/*
 * Compares the tensors of two lists by name. tolerance: the difference allowed to elements of a
 * tensor, as a fraction of the largest finite element of the first; 0: compares bits, where all
 * NaNs are equal; or TESS_TOLERANCE_AUTO. The caller frees *out by tess_comparison_free.
 * TESS_EINVAL: the lists have no name in common, or the tolerance is invalid.
 */
tess_status tess_values_compare(const struct tess_values *a, const struct tess_values *b,
                                double tolerance, struct tess_comparison **out);

/* Frees a comparison. NULL is accepted. */
void tess_comparison_free(struct tess_comparison *c);

TESS_END
#endif
