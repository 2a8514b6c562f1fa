/*
 * test_geometries.c - models of random sizes: logits have the bits of one rank for any ranks, plan,
 * chunks of prompts, concurrent sequences, threads and instructions. Some have weights in fewer
 * bits; weights of bf16 in 12 bits, and those stored in MXFP4 in bf16, give the same logits.
 *
 * Environment: GEOMETRY_SEED (default 1), GEOMETRY_FIRST (0), GEOMETRIES (12; with a sanitizer 2,
 * with ThreadSanitizer 1) of each family; GEOMETRY_DEVICE: another device, whose logits are close
 * to the CPU's on one rank. script/geometries sets them.
 */
#include "core/world/mesh_shape.h"
#include "nn/generate/runner.h"
#include "nn/program/plan.h"
#include "tests/support/draw.h"
#include "tests/support/geometry.h"
#include "tests/support/spawn.h"

#include "tests/support/suite.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { TEXTS = 3, LENGTH_MAX = 90, WAYS = THIN > 1 ? 3 : 5 };

struct way {
	int32_t nranks, threads, weights; /* weights: see tess_runner_parts */
	const char *plan, *isa, *device;
	char mesh[32];
	int64_t chunk; /* rows of a sequence in a step */
	bool together; /* a step has rows of all sequences */
};

struct geometry_job {
	const struct geometry *g;
	struct way way;
	int32_t kv_dtype;
	int64_t length[TEXTS];
	int32_t ids[TEXTS][LENGTH_MAX];
	float *logits[TEXTS]; /* [length][vocabulary], from rank 0 */
};

/* Lists the next rows of the sequences [first, last), each in its slot; *n: number of sequences. */
static void list_step_rows(const struct geometry_job *job, const struct tess_runner *s, int first,
                           int last, struct tess_rows *rows, int64_t *n)
{
	*n = 0;
	for (int i = first; i < last; i++) {
		int64_t at = tess_runner_get_length(s, i), left = job->length[i] - at;

		left = left < job->way.chunk ? left : job->way.chunk;
		if (left)
			rows[(*n)++] = (struct tess_rows){
				.slot = i, .n = left, .nselected = left, .ids = job->ids[i] + at
			};
	}
}

static tess_status run_texts(struct geometry_job *job, struct tess_runner *s, bool first_rank,
                             int first, int last)
{
	int64_t vocabulary = job->g->vocabulary, n;
	struct tess_rows rows[TEXTS];
	const float *logits;
	tess_status st = TESS_OK;

	list_step_rows(job, s, first, last, rows, &n);
	while (n && !st) {
		st = tess_runner_step(s, rows, n, 0, &logits);
		for (int64_t i = 0; i < n && first_rank && !st; i++) {
			int64_t end = tess_runner_get_length(s, rows[i].slot);

			memcpy(job->logits[rows[i].slot] + (end - rows[i].n) * vocabulary, logits,
			       sizeof *logits * (size_t)(rows[i].n * vocabulary));
			logits += rows[i].n * vocabulary;
		}
		list_step_rows(job, s, first, last, rows, &n);
	}
	return st;
}

static tess_status run_geometry_on_rank(struct tess_world *w, void *arg)
{
	struct geometry_job *job = arg;
	struct tess_runner_parts parts = { .model = job->g->model,
		                           .source = &job->g->source,
		                           .group = tess_world_group(w),
		                           .threads = job->way.threads,
		                           .kv_dtype = job->kv_dtype,
		                           .weights = job->way.weights };
	bool first_rank = tess_world_rank(w) == 0;
	struct tess_runner *s = NULL;
	struct tess_plan plan;
	int32_t slot;
	struct tess_mesh *mesh = NULL;
	tess_status st = tess_plan_open(parts.model, job->way.plan, NULL, 0, &plan);

	if (st)
		return st;
	parts.plan = &plan;
	st = tess_mesh_open(w, job->way.mesh, &mesh);
	if (!st)
		parts.mesh = *tess_mesh_get_shape(mesh);
	for (int32_t i = 0; i < parts.mesh.ndims; i++)
		parts.along[i] = tess_mesh_group(mesh, parts.mesh.dim[i].name);
	if (!st)
		st = tess_runner_new(&parts, &s);
	for (int i = 0; i < TEXTS && !st; i++)
		st = tess_runner_open_slot(s, &slot);
	for (int i = 0; i < (job->way.together ? 1 : TEXTS) && !st; i++)
		st = run_texts(job, s, first_rank, i, job->way.together ? TEXTS : i + 1);
	tess_runner_free(s);
	tess_mesh_close(mesh);
	tess_plan_free(&plan);
	return st;
}

static tess_status run_way(struct geometry_job *job)
{
	for (int i = 0; i < TEXTS; i++)
		memset(job->logits[i], 0xff, 4 * (size_t)(job->length[i] * job->g->vocabulary));
	setenv("TESSERA_CPU", job->way.isa, 1);
	setenv("TESSERA_DEVICE", job->way.device, 1);
	return tess_world_spawn(job->way.nranks, run_geometry_on_rank, job);
}

static const char *choose_isa(uint64_t *seed)
{
	static const char *const isas[] = { "auto", "scalar", "avx2" };
	int n = 2;

#if defined(__x86_64__)
	n = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 3 : 2;
#endif
	return isas[draw_below(seed, (uint64_t)n)];
}

/* Draws what holds the weights on one rank. Every device has 0, as in the files. */
static int32_t draw_weight_kind(uint64_t *seed)
{
	static const int32_t kinds[] = { 0, 0, TESS_Q8, TESS_MXFP4 };

	return getenv("GEOMETRY_DEVICE") ? 0 : kinds[draw_below(seed, 4)];
}

/* Draws what holds the same values as `weights`. */
static int32_t draw_same_weights(const struct geometry *g, int32_t weights, uint64_t *seed)
{
	if (weights || g->dtype != TESS_BF16 || getenv("GEOMETRY_DEVICE") || draw_below(seed, 2))
		return weights;
	return g->mxfp4 && draw_below(seed, 2) ? TESS_BF16 : TESS_BF12;
}

static struct way draw_way(const struct geometry *g, int32_t weights, uint64_t *seed)
{
	int32_t most = g->most_ranks < 8 ? g->most_ranks : 8, npresets = 0;
	struct way w = { .nranks = 1 + (int32_t)draw_below(seed, (uint64_t)most),
		         .threads = TSAN ? 2 : 1 + (int32_t)draw_below(seed, 2),
		         .weights = draw_same_weights(g, weights, seed),
		         .isa = choose_isa(seed),
		         .device = "cpu",
		         .chunk = 1 +
		                  (int64_t)draw_below(seed, draw_below(seed, 2) ? 8 : LENGTH_MAX),
		         .together = draw_below(seed, 2) };

	while (g->model->presets[npresets].name)
		npresets++;
	w.plan = g->model->presets[draw_below(seed, (uint64_t)npresets)].name;
	if (getenv("GEOMETRY_DEVICE"))
		w.device = getenv("GEOMETRY_DEVICE");
	strcpy(w.mesh, "tp");
	if (!strcmp(w.plan, "ep") && w.nranks % 2 == 0 && draw_below(seed, 2))
		snprintf(w.mesh, sizeof w.mesh, "ep=2,tp=%d", (int)w.nranks / 2);
	return w;
}

static void draw_geometry_job(struct geometry_job *job, const struct geometry *g, uint64_t *seed)
{
	*job = (struct geometry_job){ .g = g,
		                      .way = { 1, 1, draw_weight_kind(seed), "none", "auto", "cpu",
		                               "tp", LENGTH_MAX, false },
		                      .kv_dtype = draw_below(seed, 3) ? TESS_F32 : TESS_BF16 };

	if (getenv("GEOMETRY_DEVICE")) /* close keys may be rounded differently */
		job->kv_dtype = TESS_F32;
	for (int i = 0; i < TEXTS; i++) {
		job->length[i] = 1 + (int64_t)draw_below(seed, i ? 20 : LENGTH_MAX);
		for (int64_t k = 0; k < job->length[i]; k++)
			job->ids[i][k] = (int32_t)draw_below(seed, (uint64_t)g->vocabulary);
		job->logits[i] = malloc(4 * (size_t)(job->length[i] * g->vocabulary));
	}
}

/* Checks that the numbers differ: otherwise a comparison would prove nothing. */
static void expect_logits_that_differ(const struct geometry_job *job, const char *about)
{
	const float *x = job->logits[0];
	bool differ = false;

	for (int64_t i = 0; i < job->length[0] * job->g->vocabulary; i++) {
		if (!isfinite(x[i]))
			ck_abort_msg("%s: logit %" PRId64 " is %g", about, i, (double)x[i]);
		differ = differ || x[i] != x[0];
	}
	ck_assert_msg(differ, "%s: all logits are %g", about, (double)x[0]);
}

/* Compares two sequences: bit for bit on the CPU, within 1e-4 of the largest logit elsewhere. */
static bool is_same_text(const struct geometry_job *job, int text, const float *want)
{
	int64_t n = job->length[text] * job->g->vocabulary;
	const float *have = job->logits[text];
	float largest = 0, error = 0;

	if (!strcmp(job->way.device, "cpu"))
		return !memcmp(want, have, sizeof *want * (size_t)n);
	for (int64_t i = 0; i < n; i++) {
		largest = fmaxf(largest, fabsf(want[i]));
		error = fmaxf(error, fabsf(have[i] - want[i]));
		if (isnan(have[i]))
			return false;
	}
	return error <= 1e-4f * largest;
}

/* Compares one geometry on one rank with several other ways. */
static void compare_ways(const char *family, uint64_t seed, uint64_t number)
{
	uint64_t state = seed * 1000003 + number;
	struct geometry_job job;
	struct geometry g;
	float *want[TEXTS];
	char about[64], *config;
	int32_t weights;
	tess_status st;

	snprintf(about, sizeof about, "seed %" PRIu64 ", %s %" PRIu64, seed, family, number);
	for (const char *c = family; *c; c++)
		state = state * 31 + (uint64_t)*c;
	st = geometry_open(family, draw_below(&state, UINT64_MAX), true, &g);
	config = json_dumps(g.config, JSON_COMPACT);
	ck_assert_msg(!st, "%s: %s: %s", about, config, tess_error());
	draw_geometry_job(&job, &g, &state);
	weights = job.way.weights;
	if (TSAN) /* the expected bits are also those without TSan */
		job.way = draw_way(&g, weights, &state);
	ck_assert_msg(!run_way(&job), "%s: %s: %s", about, config, tess_error());
	expect_logits_that_differ(&job, about);
	for (int i = 0; i < TEXTS; i++) {
		size_t bytes = 4 * (size_t)(job.length[i] * g.vocabulary);

		want[i] = memcpy(malloc(bytes), job.logits[i], bytes);
	}
	for (int k = 0; k < WAYS && !TSAN; k++) {
		struct way *w = &job.way;

		*w = draw_way(&g, weights, &state);
		ck_assert_msg(!run_way(&job), "%s: %d ranks, %s, plan %s: %s: %s", about,
		              (int)w->nranks, w->mesh, w->plan, tess_error(), config);
		for (int i = 0; i < TEXTS; i++)
			if (!is_same_text(&job, i, want[i]))
				ck_abort_msg(
					"%s: text %d of %d differs with %d ranks of %d threads, "
					"%s, plan %s, %s, weights %d for %d, chunks of %d, %s: %s",
					about, i, (int)job.length[i], (int)w->nranks,
					(int)w->threads, w->mesh, w->plan, w->isa, (int)w->weights,
					(int)weights, (int)w->chunk,
					w->together ? "together" : "alone", config);
	}
	for (int i = 0; i < TEXTS; i++) {
		free(want[i]);
		free(job.logits[i]);
	}
	free(config);
	geometry_close(&g);
}

static uint64_t read_environment_number(const char *key, uint64_t preset)
{
	const char *text = getenv(key);

	return text ? strtoull(text, NULL, 10) : preset;
}

START_TEST(bits_of_one_rank)
{
	uint64_t first = read_environment_number("GEOMETRY_FIRST", 0),
		 n = read_environment_number("GEOMETRIES", TSAN       ? 1
	                                                   : THIN > 1 ? 2
	                                                              : 12);

	for (uint64_t i = first; i < first + n; i++)
		compare_ways(geometry_get_family(_i), read_environment_number("GEOMETRY_SEED", 1),
		             i);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("geometries", 3600, &r);

	tcase_add_loop_test(t, bits_of_one_rank, 0, geometry_count_families());
	return suite_end(r);
}
