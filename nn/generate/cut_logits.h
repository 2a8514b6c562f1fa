/*
 * cut_logits.h - chooses the next ids of sequences whose logits are cut by vocabulary.
 *
 * Each rank finds the candidates of its part. Complete rows are gathered on request, and if
 * candidates are insufficient: to sample without top-k, if the candidates of a top-k would take
 * more bytes, or if an unsent id ties with the last candidate that may be kept.
 */
#ifndef TESS_NN_CUT_LOGITS_H
#define TESS_NN_CUT_LOGITS_H

#include "nn/generate/runner.h"
#include "nn/generate/sample.h"

struct tess_odd_logits { /* a value: the non-finite logits of a row */
	int64_t count, id; /* how many, and the id of the first */
	int64_t is_nan;
};
struct tess_odd_logits tess_logits_find_odd(const float *logits, int64_t n);

struct tess_cut_row { /* the selected rows of a sequence; the same on all ranks */
	int64_t nrows;
	const struct tess_sampling *sampling; /* the last row chooses an id; NULL: it does not */
	const int32_t *seen;
	int64_t nseen;
	bool whole; /* complete rows are requested */
	int64_t k; /* set: candidates of each rank for the last row; 0: rows are complete */
	/* set on rank 0 */
	const float *logits; /* [nrows, vocabulary] */
	const struct tess_candidate *candidates; /* if k is not 0 */
	int64_t ncandidates;
	struct tess_odd_logits odd;
};

struct tess_cut_logits;

/* Collective over the group that `cut` names. *out is yours: tess_cut_logits_free. */
tess_status tess_cut_logits_new(const struct tess_vocabulary_cut *cut,
                                struct tess_cut_logits **out);
void tess_cut_logits_free(struct tess_cut_logits *c);

/*
 * Sets the logits or candidates of all rows. part: this rank's part of the rows of a step, one
 * sequence's after another's. The results are borrowed until the next call. Collective.
 */
tess_status tess_cut_logits_read(struct tess_cut_logits *c, const float *part,
                                 struct tess_cut_row *rows, int64_t n);

/* Returns the bytes that a rank sends for one greedy id. */
uint64_t tess_cut_logits_count_greedy_bytes(int32_t nranks);

#endif
