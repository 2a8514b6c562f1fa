/*
 * Ids that are chosen from logits in parts: those that the whole rows choose, with ties among the
 * logits, for any sampling, number of ranks and mixture of texts; and what is not finite.
 */
#include "../unit/draw.h"
#include "../unit/suite.h"
#include "core/shard/dim.h"
#include "nn/cut_logits.h"
#include "spawn.h"

#include <math.h>
#include <string.h>

enum { STEPS = 100, TEXTS = 5, ROWS_MAX = 3, VOCABULARY_MAX = 700, SEEN = 40 };

struct drawn_text { /* the same on all ranks */
	struct tess_sampling sampling;
	int32_t seen[SEEN];
	float logits[ROWS_MAX * VOCABULARY_MAX];
	struct tess_cut_row row;
};

struct drawn_step {
	struct tess_dim vocabulary;
	struct drawn_text text[TEXTS];
};

static int ncandidates, nties; /* rows that were chosen from candidates; rows with too many ties */

/* Few distinct values: many logits are equal. One row in six has some that are not finite. */
static void draw_test_row(uint64_t *seed, int64_t n, float *out)
{
	uint64_t values = 2 + draw_below(seed, draw_below(seed, 2) ? 4 : 4000);
	static const float odd[] = { NAN, INFINITY, -INFINITY };

	for (int64_t i = 0; i < n; i++)
		out[i] = (float)draw_below(seed, values) / (float)values * 12 - 6;
	for (int i = 0; i < 3 && !draw_below(seed, 6); i++)
		out[draw_below(seed, (uint64_t)n)] = odd[draw_below(seed, 3)];
}

static void draw_text(uint64_t *seed, int64_t vocabulary, struct drawn_text *t)
{
	t->row = (struct tess_cut_row){ .nrows = 1 + (int64_t)draw_below(seed, ROWS_MAX),
		                        .sampling = draw_below(seed, 8) ? &t->sampling : NULL,
		                        .seen = t->seen,
		                        .nseen = (int64_t)draw_below(seed, SEEN),
		                        .whole = !draw_below(seed, 4) };
	t->row.whole |= !t->row.sampling || t->row.nrows > 1;
	t->sampling = (struct tess_sampling){ .temperature = 0.7 * (double)draw_below(seed, 3),
		                              .top_p = draw_below(seed, 2) ? 1 : 0.8,
		                              .min_p = draw_below(seed, 2) ? 0 : 0.1,
		                              .repetition_penalty = draw_below(seed, 2) ? 0 : 1.7,
		                              .top_k = (int64_t)draw_below(seed, 12),
		                              .seed = *seed };
	for (int i = 0; i < SEEN; i++)
		t->seen[i] = (int32_t)draw_below(seed, (uint64_t)vocabulary);
	for (int64_t i = 0; i < t->row.nrows; i++)
		draw_test_row(seed, vocabulary, t->logits + i * vocabulary);
}

static void draw_step(uint64_t *seed, struct drawn_step *s)
{
	for (int i = 0; i < TEXTS; i++)
		draw_text(seed, s->vocabulary.size, &s->text[i]);
}

/* What a step gives each rank: its columns of the rows of all texts. */
static void cut_step(const struct drawn_step *s, int32_t nranks, int32_t rank, float *out)
{
	struct tess_run run;

	tess_dim_get_local_runs(&s->vocabulary, nranks, rank, &run);
	for (int i = 0; i < TEXTS; i++)
		for (int64_t k = 0; k < s->text[i].row.nrows; k++, out += run.len)
			memcpy(out, s->text[i].logits + k * s->vocabulary.size + run.start,
			       (size_t)run.len * sizeof *out);
}

/* On rank 0. */
static tess_status check_row(const struct drawn_step *s, const struct drawn_text *t,
                             struct tess_sampler *sampler, uint64_t step)
{
	int64_t n = s->vocabulary.size;
	const float *last = t->logits + (t->row.nrows - 1) * n;
	struct tess_odd_logits odd = tess_logits_find_odd(last, n);
	int32_t want;

	HOLDS(!t->row.whole || !t->row.k);
	if (!t->row.k) {
		nties += t->row.sampling && !t->row.whole;
		HOLDS(!memcmp(t->row.logits, t->logits, (size_t)(t->row.nrows * n) * sizeof *last));
		return TESS_OK;
	}
	HOLDS(odd.count == t->row.odd.count);
	HOLDS(!odd.count || (odd.id == t->row.odd.id && odd.is_nan == t->row.odd.is_nan));
	if (odd.count)
		return TESS_OK;
	ncandidates++;
	want = tess_sampler_draw(sampler, &t->sampling, last, t->seen, t->row.nseen, step);
	HOLDS(tess_sampler_draw_candidates(sampler, &t->sampling, t->row.candidates,
	                                   t->row.ncandidates, step) == want);
	return TESS_OK;
}

static tess_status check_cut_steps(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	struct drawn_step *s = calloc(1, sizeof *s);
	float *part = calloc(TEXTS * ROWS_MAX * VOCABULARY_MAX, sizeof *part);
	uint64_t seed = 5 + (uint64_t)tess_world_size(w);
	struct tess_vocabulary_cut cut = { g, &s->vocabulary };
	struct tess_sampler *sampler;
	struct tess_cut_logits *c;
	tess_status st = TESS_OK;

	s->vocabulary = (struct tess_dim){
		.size = *(int *)arg, .nunits = 32, .base = &s->vocabulary, .group = 1
	};
	HOLDS(part && !tess_cut_logits_new(&cut, &c));
	HOLDS(!tess_sampler_new(s->vocabulary.size, &sampler));
	for (uint64_t i = 0; i < STEPS && !st; i++) {
		struct tess_cut_row rows[TEXTS];

		draw_step(&seed, s);
		cut_step(s, tess_world_size(w), tess_world_rank(w), part);
		for (int k = 0; k < TEXTS; k++)
			rows[k] = s->text[k].row;
		st = tess_cut_logits_read(c, part, rows, TEXTS);
		for (int k = 0; k < TEXTS && !st && !tess_world_rank(w); k++) {
			s->text[k].row = rows[k];
			st = check_row(s, &s->text[k], sampler, i);
		}
	}
	tess_sampler_free(sampler);
	tess_cut_logits_free(c);
	free(part);
	free(s);
	return st;
}

/* The row of a sampling that has no few candidates, and one whose candidates tie, are gathered. */
START_TEST(chooses_as_whole_rows_do)
{
	int size = _i % 2 ? 53 : VOCABULARY_MAX;

	ncandidates = nties = 0;
	spawn_ranks(1 + _i / 2, check_cut_steps, &size);
	ck_assert_int_gt(ncandidates, STEPS / 10);
	ck_assert_int_gt(nties, STEPS / 4);
}
END_TEST

/* Of equal candidates all are kept, and the draw is among them. */
START_TEST(ties_of_two_parts)
{
	static const struct tess_candidate list[] = { { 3, 7 }, { 1, 2 }, { 3, 11 }, { 3, 15 } };
	struct tess_sampling how = { .temperature = 1, .top_p = 1, .top_k = 2 };
	struct tess_sampler *s;
	int count[16] = { 0 };

	ck_assert(!tess_sampler_new(16, &s));
	for (uint64_t i = 0; i < 300; i++)
		count[tess_sampler_draw_candidates(s, &how, list, 4, i)]++;
	ck_assert(count[7] > 50 && count[11] > 50 && count[15] > 50 && !count[2]);
	how.temperature = 0;
	ck_assert_int_eq(tess_sampler_draw_candidates(s, &how, list, 4, 0), 7);
	tess_sampler_free(s);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("cut_logits", 60, &r);

	tcase_add_loop_test(t, chooses_as_whole_rows_do, 0, 16);
	tcase_add_test(t, ties_of_two_parts);
	return suite_end(r);
}
