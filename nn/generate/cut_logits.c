#include "nn/generate/cut_logits.h"

#include "core/base/status.h"
#include "core/shard/dim.h"
#include "nn/program/agree.h"
#include "nn/run/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 64-bit words that a rank sends for a row before its candidates. */
struct summary {
	int64_t found; /* candidates, including unsent ones that tie with the last one */
	struct tess_odd_logits odd;
};
enum { SUMMARY_WORDS = sizeof(struct summary) / 8, WORDS = sizeof(struct tess_candidate) / 8 };

struct tess_cut_logits {
	struct tess_vocabulary_cut cut;
	int32_t nranks, rank;
	int64_t first, cols; /* this rank's part */
	struct tess_sampler *sampler; /* sampler of this part */
	int64_t nwords, nrows; /* room, in words per rank and in complete rows */
	int64_t *words, *all_words; /* words of this rank, and of all ranks */
	struct tess_candidate *candidates;
	float *packed; /* this rank's parts of complete rows */
	float *blocks, *rows; /* on rank 0: the parts of all ranks, and the complete rows */
	uint64_t *counts;
};

struct tess_odd_logits tess_logits_find_odd(const float *logits, int64_t n)
{
	struct tess_odd_logits odd = { 0, tess_logits_find_not_finite(logits, n), 0 };

	for (int64_t i = odd.id; i >= 0 && i < n; i++)
		odd.count += !isfinite(logits[i]);
	odd.is_nan = odd.count && isnan(logits[odd.id]);
	return odd;
}

tess_status tess_cut_logits_new(const struct tess_vocabulary_cut *cut, struct tess_cut_logits **out)
{
	struct tess_cut_logits *c = calloc(1, sizeof *c);
	tess_status st = c ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	struct tess_run run;

	if (!st) {
		c->cut = *cut;
		c->nranks = tess_group_size(cut->group);
		c->rank = tess_group_rank(cut->group);
		tess_dim_get_local_runs(cut->vocabulary, c->nranks, c->rank, &run);
		c->first = run.start;
		c->cols = run.len;
		c->counts = calloc((size_t)c->nranks, sizeof *c->counts);
		st = c->counts ? tess_sampler_new_part(run.start, run.len, &c->sampler)
		               : tess_fail(TESS_ENOMEM, "out of memory");
	}
	st = tess_group_agree_status(cut->group, st, "generate:candidates");
	if (st)
		tess_cut_logits_free(c);
	else
		*out = c;
	return st;
}

void tess_cut_logits_free(struct tess_cut_logits *c)
{
	if (!c)
		return;
	free(c->words);
	free(c->all_words);
	free(c->candidates);
	free(c->packed);
	free(c->blocks);
	free(c->rows);
	free(c->counts);
	tess_sampler_free(c->sampler);
	free(c);
}

static bool resize_buffer(void *buffer, int64_t n, size_t width)
{
	void **at = buffer, *more = realloc(*at, (size_t)n * width);

	*at = more ? more : *at;
	return more != NULL;
}

/* Agrees on the status of an allocation: all ranks grow in one call, or none. */
static tess_status agree_on_room(struct tess_cut_logits *c, bool enough, int64_t *room, int64_t n)
{
	tess_status st = enough ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	st = tess_group_agree_status(c->cut.group, st, "generate:candidates");
	if (!st)
		*room = n;
	return st;
}

static tess_status reserve_words(struct tess_cut_logits *c, int64_t n)
{
	int64_t all = n * c->nranks;

	if (n <= c->nwords)
		return TESS_OK;
	return agree_on_room(c,
	                     resize_buffer(&c->words, n, sizeof *c->words) &&
	                             resize_buffer(&c->all_words, all, sizeof *c->words) &&
	                             resize_buffer(&c->candidates, all, sizeof *c->candidates),
	                     &c->nwords, n);
}

static tess_status reserve_rows(struct tess_cut_logits *c, int64_t n)
{
	int64_t cells = c->rank ? 1 : n * c->cut.vocabulary->size;

	if (n <= c->nrows)
		return TESS_OK;
	return agree_on_room(c,
	                     resize_buffer(&c->packed, n * c->cols, sizeof *c->packed) &&
	                             resize_buffer(&c->blocks, cells, sizeof *c->blocks) &&
	                             resize_buffer(&c->rows, cells, sizeof *c->rows),
	                     &c->nrows, n);
}

/* ---- candidates ------------------------------------------------------------------------------ */

/*
 * Returns the number of candidates of each rank for this row; 0: the complete row is needed, or has
 * fewer bytes than the candidates that each rank sends to all.
 */
static int64_t count_candidates(const struct tess_cut_logits *c, const struct tess_cut_row *row)
{
	int64_t n = c->nranks;

	if (row->whole || !row->sampling)
		return 0;
	if (row->sampling->temperature == 0)
		return 1;
	return row->sampling->top_k <= c->cut.vocabulary->size / (4 * n * n) ? row->sampling->top_k
	                                                                     : 0;
}

static int64_t count_words(int64_t k)
{
	return k ? SUMMARY_WORDS + k * WORDS : 0;
}

uint64_t tess_cut_logits_count_greedy_bytes(int32_t nranks)
{
	return 8 * (uint64_t)count_words(1) * (uint64_t)(nranks - 1);
}

static void find_row_candidates(struct tess_cut_logits *c, const struct tess_cut_row *row,
                                const float *part, int64_t *words)
{
	struct summary s = { .odd = tess_logits_find_odd(part, c->cols) };

	s.odd.id += c->first;
	s.found =
		tess_sampler_find_candidates(c->sampler, row->sampling, part, row->seen, row->nseen,
	                                     (struct tess_candidate *)(words + SUMMARY_WORDS));
	memcpy(words, &s, sizeof s);
}

/* Merges the candidates of all ranks for a row whose words begin at `at` of each rank's. */
static void merge_candidates(struct tess_cut_logits *c, struct tess_cut_row *row, int64_t nwords,
                             int64_t at, struct tess_candidate *out)
{
	row->candidates = out;
	row->ncandidates = 0;
	row->odd = (struct tess_odd_logits){ 0 };
	for (int32_t q = 0; q < c->nranks; q++) {
		const int64_t *words = c->all_words + q * nwords + at;
		struct summary s;
		int64_t n;

		memcpy(&s, words, sizeof s);
		if (s.odd.count && !row->odd.count)
			row->odd = (struct tess_odd_logits){ 0, s.odd.id, s.odd.is_nan };
		row->odd.count += s.odd.count;
		n = s.found < row->k ? s.found : row->k;
		memcpy(out + row->ncandidates, words + SUMMARY_WORDS, (size_t)n * sizeof *out);
		row->ncandidates += n;
	}
}

/* Returns true if an unsent id may be one of the k best, or tie with the last of them. */
static bool lacks_candidates(const struct tess_cut_logits *c, const struct tess_cut_row *row,
                             int64_t nwords, int64_t at)
{
	for (int32_t q = 0; q < c->nranks; q++) {
		const int64_t *words = c->all_words + q * nwords + at;
		struct tess_candidate last;
		struct summary s;
		int64_t better = 0;

		memcpy(&s, words, sizeof s);
		if (s.found <= row->k || row->sampling->temperature == 0)
			continue;
		memcpy(&last, words + SUMMARY_WORDS + (row->k - 1) * WORDS, sizeof last);
		for (int64_t i = 0; i < row->ncandidates; i++)
			better += row->candidates[i].score > last.score;
		if (better < row->k)
			return true;
	}
	return false;
}

static tess_status exchange_candidates(struct tess_cut_logits *c, const float *part,
                                       struct tess_cut_row *rows, int64_t n, int64_t nwords)
{
	struct tess_candidate *out = c->candidates;
	int64_t at = 0, began;
	tess_status st;

	for (int64_t i = 0; i < n; i++) {
		part += rows[i].nrows * c->cols;
		if (rows[i].k)
			find_row_candidates(c, &rows[i], part - c->cols, c->words + at);
		at += count_words(rows[i].k);
	}
	began = tess_profile_begin(c->cut.profile);
	st = tess_all_gather(c->cut.group, c->words, c->all_words, (uint64_t)nwords, TESS_I64,
	                     "generate:candidates");
	tess_profile_add_call(c->cut.profile, c->cut.group, began);
	at = 0;
	for (int64_t i = 0; i < n && !st; i++) {
		int64_t size = count_words(rows[i].k);

		if (!size)
			continue;
		merge_candidates(c, &rows[i], nwords, at, out);
		out += rows[i].ncandidates;
		if (lacks_candidates(c, &rows[i], nwords, at))
			rows[i].k = 0;
		at += size;
	}
	return st;
}

/* ---- complete rows --------------------------------------------------------------------------- */

/* Copies the blocks of columns from the ranks into rows. */
static void unpack_blocks(struct tess_cut_logits *c, int64_t nrows)
{
	int64_t vocabulary = c->cut.vocabulary->size, column = 0;
	const float *from = c->blocks;

	for (int32_t q = 0; q < c->nranks; q++) {
		int64_t cols = tess_dim_get_local_size(c->cut.vocabulary, c->nranks, q);

		for (int64_t i = 0; i < nrows; i++, from += cols)
			memcpy(c->rows + i * vocabulary + column, from,
			       (size_t)cols * sizeof *from);
		column += cols;
	}
}

static tess_status gather_whole_rows(struct tess_cut_logits *c, const float *part,
                                     struct tess_cut_row *rows, int64_t n, int64_t nrows)
{
	struct tess_coll gather = { .size = sizeof gather,
		                    .kind = TESS_GATHER,
		                    .dtype = TESS_F32,
		                    .src = c->packed,
		                    .dst = c->rank ? NULL : c->blocks,
		                    .count = (uint64_t)(nrows * c->cols),
		                    .recv_counts = c->counts,
		                    .where = "generate:logits" };
	int64_t at = 0, began;
	tess_status st;

	for (int32_t q = 0; q < c->nranks; q++)
		c->counts[q] = (uint64_t)nrows *
		               (uint64_t)tess_dim_get_local_size(c->cut.vocabulary, c->nranks, q);
	for (int64_t i = 0; i < n; part += rows[i++].nrows * c->cols) {
		if (rows[i].k)
			continue;
		memcpy(c->packed + at * c->cols, part,
		       (size_t)(rows[i].nrows * c->cols) * sizeof *part);
		rows[i].logits = c->rows + at * c->cut.vocabulary->size;
		at += rows[i].nrows;
	}
	began = tess_profile_begin(c->cut.profile);
	st = tess_group_run(c->cut.group, &gather);
	tess_profile_add_call(c->cut.profile, c->cut.group, began);
	if (!st && !c->rank)
		unpack_blocks(c, nrows);
	return st;
}

tess_status tess_cut_logits_read(struct tess_cut_logits *c, const float *part,
                                 struct tess_cut_row *rows, int64_t n)
{
	int64_t nwords = 0, nrows = 0;
	tess_status st;

	for (int64_t i = 0; i < n; i++) {
		rows[i].k = count_candidates(c, &rows[i]);
		rows[i].logits = NULL;
		nwords += count_words(rows[i].k);
	}
	st = reserve_words(c, nwords);
	if (!st && nwords)
		st = exchange_candidates(c, part, rows, n, nwords);
	for (int64_t i = 0; i < n; i++)
		nrows += rows[i].k ? 0 : rows[i].nrows;
	if (!st)
		st = reserve_rows(c, nrows);
	return st || !nrows ? st : gather_whole_rows(c, part, rows, n, nrows);
}
