/*
 * test_cut_logits.c - ids chosen from logits in parts: the ids that full rows give, with ties among
 * the logits, for any sampling, number of ranks and mixture of sequences; and non-finite logits.
 */
#include "core/shard/dim.h"
#include "nn/generate/cut_logits.h"
#include "tests/support/draw.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 100, TEXTS = 5, ROWS_MAX = 3, VOCABULARY_MAX = 700, SEEN = 40 };

struct drawn_text { /* a sequence, equal on all ranks */
	struct tess_sampling sampling;
	int32_t seen[SEEN];
	float logits[ROWS_MAX * VOCABULARY_MAX];
	struct tess_cut_row row;
};

struct drawn_step {
	struct tess_dim vocabulary;
	struct drawn_text text[TEXTS];
};

static int ncandidates, nties; /* rows chosen from candidates; rows with too many ties */

/* Draws few distinct values: many logits are equal. One row in six has some non-finite ones. */
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

/* Cuts a step's output for each rank: its columns of the rows of all sequences. */
static void cut_step(const struct drawn_step *s, int32_t nranks, int32_t rank, float *out)
{
	struct tess_run run;

	tess_dim_get_local_runs(&s->vocabulary, nranks, rank, &run);
	for (int i = 0; i < TEXTS; i++)
		for (int64_t k = 0; k < s->text[i].row.nrows; k++, out += run.len)
			memcpy(out, s->text[i].logits + k * s->vocabulary.size + run.start,
			       (size_t)run.len * sizeof *out);
}

static int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x < y) - (x > y);
}

/* Returns whether candidates do not decide: a part has more than k ties with the k best of all. */
static bool needs_whole_row(const struct drawn_step *s, const float *row, int64_t k, int32_t nranks)
{
	static float sorted[VOCABULARY_MAX];
	bool needs = false;

	memcpy(sorted, row, (size_t)s->vocabulary.size * sizeof *row);
	qsort(sorted, (size_t)s->vocabulary.size, sizeof *row, compare_floats);
	for (int32_t q = 0; q < nranks; q++) {
		struct tess_run run;
		int64_t n = 0;

		tess_dim_get_local_runs(&s->vocabulary, nranks, q, &run);
		for (int64_t i = 0; i < run.len; i++)
			n += row[run.start + i] >= sorted[k - 1];
		needs = needs || n > k;
	}
	return needs;
}

/*
 * Checks the gathered rows. A greedy id needs none; without a penalty, scores have the order of the
 * logits.
 */
static tess_status check_gathered(const struct drawn_step *s, const struct drawn_text *t,
                                  const float *row, int32_t nranks)
{
	int64_t k = t->sampling.top_k;
	bool small = k > 0 && k <= s->vocabulary.size / (4 * nranks * nranks);

	if (t->row.whole || !t->row.sampling || tess_logits_find_odd(row, s->vocabulary.size).count)
		return TESS_OK;
	if (t->sampling.temperature == 0)
		HOLDS(t->row.k == 1);
	else if (!small)
		HOLDS(!t->row.k);
	else if (!t->sampling.repetition_penalty)
		HOLDS(!t->row.k == needs_whole_row(s, row, k, nranks));
	return TESS_OK;
}

/* Checks a row on rank 0. */
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
	struct tess_vocabulary_cut cut = { g, &s->vocabulary, NULL };
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
			st = check_gathered(s, &s->text[k],
			                    s->text[k].logits +
			                            (rows[k].nrows - 1) * s->vocabulary.size,
			                    tess_world_size(w));
			if (!st)
				st = check_row(s, &s->text[k], sampler, i);
		}
	}
	tess_sampler_free(sampler);
	tess_cut_logits_free(c);
	free(part);
	free(s);
	return st;
}

/* Checks that rows are gathered if the sampling has too many candidates, or if they tie. */
START_TEST(chooses_as_whole_rows_do)
{
	int size = _i % 2 ? 53 : VOCABULARY_MAX;

	ncandidates = nties = 0;
	spawn_ranks(1 + _i / 2, check_cut_steps, &size);
	ck_assert_int_gt(ncandidates, STEPS / 10);
	ck_assert_int_gt(nties, STEPS / 4);
}
END_TEST

/* Checks that all equal candidates are kept, and that the draw is one of them. */
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

/* ---- sessions -------------------------------------------------------------------------------- */

enum { IDS = 9, SESSION_VOCABULARY = 512 };

struct stepped { /* the state of a rank */
	const char *const *overrides;
	float logits[(IDS + 1) * SESSION_VOCABULARY];
};

/* Checks that steps give full rows, to all ranks or to one, under any plan. */
static tess_status step_session(struct tess_world *w, void *arg)
{
	static const int32_t ids[IDS] = { 1, 403, 407, 261, 378, 5, 17, 99, 300 };
	struct stepped *to = arg;
	struct tess_session_options how = { .size = sizeof how, .overrides = to->overrides };
	struct tess_input in = { .ids = ids, .n = IDS, .nselected = IDS };
	struct tess_session *s;
	struct tess_mesh *mesh;
	const float *logits;

	HOLDS(!tess_mesh_open(w, "tp", &mesh) &&
	      !tess_session_open(mesh, SOURCE_ROOT "/data", &how, &s));
	HOLDS(!tess_sequence_open(s, &in.sequence) && !tess_session_step(s, &in, 1, -1, &logits));
	HOLDS(logits != NULL);
	if (!tess_world_rank(w))
		memcpy(to->logits, logits, IDS * SESSION_VOCABULARY * sizeof *logits);
	in.n = in.nselected = 1;
	HOLDS(!tess_session_step(s, &in, 1, 0, &logits));
	HOLDS(!logits == (tess_world_rank(w) != 0));
	if (logits)
		memcpy(to->logits + IDS * SESSION_VOCABULARY, logits,
		       SESSION_VOCABULARY * sizeof *logits);
	tess_session_close(s);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(steps_give_whole_rows)
{
	static const char *const cut[] = { "lm_head=loss_parallel", NULL };
	static struct stepped whole, parts = { .overrides = cut };

	spawn_ranks(1, step_session, &whole);
	spawn_ranks(3, step_session, &parts);
	ck_assert(!memcmp(whole.logits, parts.logits, sizeof whole.logits));
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("cut_logits", 60, &r);

	tcase_add_loop_test(t, chooses_as_whole_rows_do, 0, 16);
	tcase_add_test(t, ties_of_two_parts);
	tcase_add_test(t, steps_give_whole_rows);
	return suite_end(r);
}
