/*
 * cut_logits.h - the next ids of texts whose logits the ranks hold in parts of the vocabulary.
 *
 * Each rank finds the candidates of its part. Whole rows are gathered where they are asked for, and
 * where candidates are not enough: to sample without top-k, or with one whose candidates would take
 * more bytes, or if an id that was not sent ties with the last candidate that may be kept.
 */
#ifndef TESS_NN_CUT_LOGITS_H
#define TESS_NN_CUT_LOGITS_H

#include "nn/generate/runner.h"
#include "nn/generate/sample.h"

struct tess_odd_logits { /* a value: those of a row that are NaN or Inf */
	int64_t count, id; /* how many, and the first of them */
	int64_t is_nan;
};
struct tess_odd_logits tess_logits_find_odd(const float *logits, int64_t n);

struct tess_cut_row { /* the selected rows of a text; the same on all ranks */
	int64_t nrows;
	const struct tess_sampling *sampling; /* the last one chooses an id; NULL: it does not */
	const int32_t *seen;
	int64_t nseen;
	bool whole; /* they are asked for */
	int64_t k; /* set: candidates of each rank for the last one; 0: rows are whole */
	/* set on rank 0 */
	const float *logits; /* [nrows, vocabulary] */
	const struct tess_candidate *candidates; /* where k is not 0 */
	int64_t ncandidates;
	struct tess_odd_logits odd;
};

struct tess_cut_logits;

/* Collective over the group of the cut. *out is yours: tess_cut_logits_free. */
tess_status tess_cut_logits_new(const struct tess_vocabulary_cut *cut,
                                struct tess_cut_logits **out);
void tess_cut_logits_free(struct tess_cut_logits *c);

/*
 * Collective. `part`: this rank's part of the rows of a step, one text's after another's. What is
 * set is borrowed until the next call.
 */
tess_status tess_cut_logits_read(struct tess_cut_logits *c, const float *part,
                                 struct tess_cut_row *rows, int64_t n);

/* Bytes that a rank sends for one greedy id. */
uint64_t tess_cut_logits_count_greedy_bytes(int32_t nranks);

#endif
