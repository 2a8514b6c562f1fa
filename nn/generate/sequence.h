/* sequence.h - one text: its ids, and the slot of the KV cache with those that were computed. */
#ifndef TESS_NN_SEQUENCE_H
#define TESS_NN_SEQUENCE_H

#include "nn/generate/runner.h"

struct tess_sequence { /* the same on all ranks */
	struct tess_runner *runner;
	int32_t slot; /* -1: another replica computes it, and this rank only knows its ids */
	void *owner; /* and its number for it */
	int64_t number;
	int32_t replica;
	int32_t *ids;
	int64_t nids, capacity;
	int64_t ncached; /* the first ids, whose keys and values are in the cache */
};

/* Takes a slot if this replica computes it. *out is yours: tess_sequence_free. */
tess_status tess_sequence_new(struct tess_runner *r, bool here, struct tess_sequence **out);
/* TESS_EINVAL: an id outside the vocabulary; nothing is appended. */
tess_status tess_sequence_append(struct tess_sequence *q, const int32_t *ids, int64_t n);
/* Room for n ids in all, which it then has; those past the old ones are not set. */
tess_status tess_sequence_resize(struct tess_sequence *q, int64_t n);
/* Frees its pages. NULL: nothing. */
void tess_sequence_free(struct tess_sequence *q);

/* The next `n` ids that are not computed yet, as rows of a step. */
struct tess_rows tess_sequence_get_rows(const struct tess_sequence *q, int64_t n,
                                        int64_t nselected);

#endif
