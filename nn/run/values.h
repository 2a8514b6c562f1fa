/* values.h - the values of modules that steps keep, in host memory until they are taken. */
#ifndef TESS_NN_RUN_VALUES_H
#define TESS_NN_RUN_VALUES_H

#include "nn/lower/lower.h"
#include "nn/weights/device.h"

struct tess_stored_rows { /* the rows of one module on this rank */
	float *data; /* NULL: another rank has them */
	int64_t nrows, capacity;
};

struct tess_value_store { /* {0}: empty */
	int32_t nvalues;
	struct tess_stored_rows *rows; /* [nvalues] */
	/* the rows of each replica in each micro-batch, [nparts][nreplicas]; inference: NULL */
	int64_t *parts;
	int64_t nparts;
	int64_t nsteps; /* programs that have run */
};

/*
 * Appends the values that a step of `p` has kept on this rank, of one stage or of
 * TESS_STAGES_ALL. Waits for the device. A failure drops all rows.
 */
tess_status tess_value_store_read(struct tess_value_store *s, const struct tess_program *p,
                                  const struct tess_rank_program *l, int32_t stage,
                                  const struct tess_opened_device *device);
/*
 * Counts a step whose values have been appended. parts: in training, the rows of each of the
 * `nreplicas` replicas; NULL: inference. A failure drops all rows.
 */
tess_status tess_value_store_add_step(struct tess_value_store *s, const int64_t *parts,
                                      int32_t nreplicas);

struct tess_taken_value { /* on rank 0; data and holders are malloc'ed */
	const char *name, *styles; /* borrowed from the program; styles: NULL: none */
	int64_t rows, columns;
	float *data;
	char *holders; /* see tess_value; NULL: none */
};

/*
 * Gathers all rows on rank 0 of `group`, the ranks of p's mesh, and empties the store. *out: on
 * rank 0 [p->nvalues], which the caller frees by tess_taken_values_free; NULL on other ranks.
 * Collective.
 */
tess_status tess_value_store_take(struct tess_value_store *s, const struct tess_program *p,
                                  struct tess_group *group, int32_t nreplicas,
                                  struct tess_taken_value **out);
/* Frees n values and what they still own. NULL: does nothing. */
void tess_taken_values_free(struct tess_taken_value *v, int32_t n);

/* Drops all rows. */
void tess_value_store_clear(struct tess_value_store *s);

#endif
