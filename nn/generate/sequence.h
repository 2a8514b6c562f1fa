/* sequence.h - one sequence: its ids, and the KV-cache slot with the computed ones. */
#ifndef TESS_NN_SEQUENCE_H
#define TESS_NN_SEQUENCE_H

#include "nn/generate/runner.h"

struct tess_sequence { /* equal on all ranks */
	struct tess_runner *runner;
	int32_t slot; /* -1: another replica computes it, and this rank has only its ids */
	void *owner; /* the caller's, like `number` and `replica` */
	int64_t number;
	int32_t replica;
	int32_t *ids;
	int64_t nids, capacity;
	int64_t ncached; /* the first ids, whose keys and values are in the cache */
};

/* Makes a sequence, with a slot if this replica computes it. *out is yours: tess_sequence_free. */
tess_status tess_sequence_new(struct tess_runner *r, bool here, struct tess_sequence **out);
/* Appends ids. TESS_EINVAL: an id is outside the vocabulary, and none is appended. */
tess_status tess_sequence_append(struct tess_sequence *q, const int32_t *ids, int64_t n);
/* Resizes to n ids; ids past the old ones are unset. */
tess_status tess_sequence_resize(struct tess_sequence *q, int64_t n);
/* Frees the sequence and its pages. NULL: nothing. */
void tess_sequence_free(struct tess_sequence *q);

/* Returns the next `n` uncomputed ids, as rows of a step. */
struct tess_rows tess_sequence_get_rows(const struct tess_sequence *q, int64_t n,
                                        int64_t nselected);

#endif
