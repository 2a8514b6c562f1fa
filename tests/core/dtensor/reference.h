/*
 * reference.h - random redistributions, and what each rank holds before and after them: computed
 * one element at a time from its global index, by the text of tessera/dtensor.h.
 */
#ifndef TESS_TESTS_DTENSOR_REFERENCE_H
#define TESS_TESTS_DTENSOR_REFERENCE_H

#include <stdbool.h>
#include <tessera/tessera.h>

enum { CASE_DIMS = 4, CASE_AXES = 4, CASE_PARTS = 3 * CASE_AXES, CASE_RANKS = 8 };

/* How the tensor of a case is made. */
enum { MADE_FROM_LOCAL, MADE_FROM_ROOT, MADE_FROM_FULL };

struct dtensor_case {
	uint64_t seed;
	int32_t nranks, ndims, size[CASE_DIMS]; /* of the mesh */
	char mesh[64];
	int64_t shape[CASE_AXES];
	struct tess_dtensor_part parts[CASE_PARTS];
	struct tess_place from[CASE_DIMS], to[CASE_DIMS];
	struct tess_dtensor_spec spec;
	int32_t made, root;
};

/* Makes a case for a world of n ranks; equal on all ranks. */
void dtensor_case_make(uint64_t seed, int32_t nranks, struct dtensor_case *c);
/* Formats a case for messages. */
const char *dtensor_case_format(const struct dtensor_case *c, char text[1024]);

/*
 * Returns the elements that a rank holds after a redistribution from c->from to `to`, in a buffer
 * that the caller frees. *bytes: their length. With to == c->from: those of the made tensor.
 */
void *dtensor_case_compute_local(const struct dtensor_case *c, const struct tess_place *to,
                                 int32_t rank, size_t *bytes);
/* Returns all elements of a tensor that is not from_local, in a buffer that the caller frees. */
void *dtensor_case_compute_full(const struct dtensor_case *c);
/* Returns whether a rank holds global index `at` of an axis. */
bool dtensor_case_holds(const struct dtensor_case *c, const struct tess_place *places, int32_t rank,
                        int32_t axis, int64_t at);

#endif
