/* machine_steps.c - one rank of `tessera bench machine`: times the steps of a checkpoint. */
#include "machine.h"

#include "api/session.h"
#include "core/base/status.h"
#include "core/world/group.h"
#include "model.h"
#include "nn/generate/runner.h"
#include "nn/program/agree.h"
#include "nn/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/train.h>

struct generation { /* sequences with a prompt, then decode */
	int32_t batch, prompt, tokens;
};
/* The first one also warms up. The caches of many sequences exceed that of the CPU. */
static const struct generation generations[] = {
	{ 16, 32, 6 }, { 8, 64, 6 }, { 1, 512, 6 }, { 4, 32, 6 }, { 2, 64, 6 },
	{ 32, 2, 6 },  { 1, 16, 8 }, { 1, 256, 2 }, { 1, 32, 2 },
};
struct training { /* sequences of one length */
	int32_t batch, length;
};
static const struct training trainings[] = {
	{ 4, 128 }, { 1, 32 }, { 1, 64 }, { 2, 64 }, { 1, 256 }
};
enum {
	GENERATIONS = sizeof generations / sizeof *generations,
	TRAININGS = sizeof trainings / sizeof *trainings,
	BATCH_MAX = 32,
	ROUNDS_MAX = 64
};

struct step_rank {
	const struct machine_job *job;
	struct tess_group *all;
	struct tess_mesh *mesh;
	bool first;
	int32_t nreplicas, threads;
	struct tess_profile profile;
	int64_t first_training; /* sample */
	int32_t *ids;
	/* generation */
	struct tess_session *session;
	struct tess_session_info info;
	int64_t ended, steps_ns; /* the last step's end, and the profile's ns then */
	int32_t batch; /* ids that a step chooses */
	/* samples of what steps take besides their ops and calls */
	struct machine_point *rest;
	int32_t nrest;
};

enum { REST_MAX = 1 << 14 };

static void add_rest(struct step_rank *r, const char *key, double rows, double work, int64_t ns)
{
	struct machine_point *p = &r->rest[r->nrest];

	if (r->nrest == REST_MAX || ns <= 0 || !r->profile.keeps_samples)
		return;
	*p = (struct machine_point){ .class = TESS_TERM_MEMORY,
		                     .training = !strcmp(key, "adamw"),
		                     .rows = rows,
		                     .work = work,
		                     .seconds = 1e-9 * (double)ns };
	strcpy(p->key, key);
	r->nrest++;
}

/* Broadcasts whether rank 0 continues: it has time, and is not interrupted. */
static tess_status share_more(struct step_rank *r, int64_t deadline, int32_t round, int32_t *more)
{
	*more = !tess_tool_is_interrupted() &&
	        (!round ||
	         (tess_now() < deadline && round < ROUNDS_MAX && !r->job->options->quick));
	return tess_broadcast(r->all, more, 1, TESS_I32, 0, "bench");
}

/*
 * Adds to the samples from `first` on the share of the time that this rank has waited for slower
 * ranks, since the profile was cleared. Collective.
 */
static tess_status include_waits(struct step_rank *r, int64_t first)
{
	struct tess_profile *p = &r->profile;
	int64_t moving, wait, ops = 1;
	double factor;
	tess_status st = tess_profile_split_calls(p, &moving, &wait);

	if (st)
		return st;
	for (int32_t i = 0; i < TESS_PROFILE_STEPS; i++)
		ops += p->op[i].ns;
	factor = 1 + (double)wait / (double)ops;
	for (int64_t i = first; i < p->nsamples; i++)
		p->sample[i].ns = (int64_t)((double)p->sample[i].ns * factor);
	return TESS_OK;
}

/* ---- generation ------------------------------------------------------------------------------ */

/* Notes what a step has taken besides its ops and calls: sampling, and the order of requests. */
static int note_step(void *self)
{
	struct step_rank *r = self;
	int64_t now = tess_now(), steps = r->profile.ns;

	if (r->ended)
		add_rest(r, "sample", r->batch,
		         (double)sizeof(float) * (double)(r->info.vocabulary * r->batch),
		         now - r->ended - (steps - r->steps_ns));
	r->ended = tess_now();
	r->steps_ns = steps;
	return tess_tool_is_interrupted() ? TESS_END_ALL : TESS_GO_ON;
}

static tess_status run_generation(struct step_rank *r, const struct generation *g)
{
	static const struct tess_sampling greedy = { .top_p = 1 };
	static const int32_t none = 0;
	struct tess_generation how = {
		.size = sizeof how, .self = r, .on_end = model_end_text, .on_step = note_step
	};
	struct tess_request request[BATCH_MAX];
	const struct tess_request *list[BATCH_MAX];
	/* replicas get equal parts */
	int32_t n = g->batch % r->nreplicas ? r->nreplicas : g->batch;

	r->batch = n / r->nreplicas;
	r->ended = 0;
	for (int32_t i = 0; i < n; i++) {
		request[i] = (struct tess_request){ .size = sizeof *request,
			                            .ids = r->ids + i,
			                            .nids = g->prompt,
			                            .sampling = &greedy,
			                            .stop = &none,
			                            .max_tokens = g->tokens };
		list[i] = &request[i];
	}
	return tess_session_generate(r->session, list, n, &how);
}

static tess_status time_generations(struct step_rank *r, int64_t deadline)
{
	int32_t more = 1;
	tess_status st;

	r->profile.keeps_samples = false;
	st = run_generation(r, &generations[0]);
	tess_profile_clear(&r->profile);
	r->profile.keeps_samples = true;
	for (int32_t round = 0; !st; round++) {
		st = share_more(r, deadline, round, &more);
		if (st || !more)
			break;
		for (int32_t i = 0; i < GENERATIONS && !st; i++)
			st = run_generation(r, &generations[i]);
		st = tess_group_agree_status(r->all, st, "bench");
	}
	return st;
}

static tess_status measure_generation(struct step_rank *r, int64_t deadline)
{
	struct tess_session_options options = { .size = sizeof options,
		                                .threads = r->job->options->threads };
	tess_status st = tess_session_open(r->mesh, r->job->dir, &options, &r->session);
	struct tess_runner *runner;

	if (st)
		return st;
	runner = tess_session_runner(r->session);
	r->info.size = sizeof r->info;
	tess_session_get_info(r->session, &r->info);
	r->threads = tess_runner_count_threads(runner);
	st = tess_runner_pack_weights(runner);
	tess_runner_set_profile(runner, &r->profile);
	if (!st)
		st = time_generations(r, deadline);
	if (!st)
		st = include_waits(r, 0);
	tess_runner_set_profile(runner, NULL);
	tess_session_close(r->session);
	return st;
}

/* ---- training -------------------------------------------------------------------------------- */

/* Notes what a step has taken besides its ops and calls: the optimizer, and the norm. */
static void note_training(struct step_rank *r, const struct tess_trainer *t, int64_t ns)
{
	struct tess_trainer_info info = { .size = sizeof info };
	double n;

	tess_trainer_get_info(t, &info);
	n = (double)info.gradient_bytes / sizeof(float);
	/* as tess_optimizer_time counts: f32 weights and two moments, twice, and gradients */
	add_rest(r, "adamw", n / 1024, n * (2 * 4 + 2 * 8 + 4), ns);
}

static tess_status run_training(struct step_rank *r, struct tess_trainer *t,
                                const struct training *g)
{
	struct tess_training_result result = { .size = sizeof result };
	int64_t lengths[BATCH_MAX], began, before = r->profile.ns;
	struct tess_batch batch = { .nsequences = g->batch * r->nreplicas,
		                    .lengths = lengths,
		                    .ids = r->ids };
	tess_status st;

	for (int64_t i = 0; i < batch.nsequences; i++)
		lengths[i] = g->length;
	began = tess_now();
	st = tess_trainer_step(t, &batch, 1, 1e-5, &result);
	if (!st)
		note_training(r, t, tess_now() - began - (r->profile.ns - before));
	return st;
}

static tess_status time_trainings(struct step_rank *r, struct tess_trainer *t, int64_t deadline)
{
	int32_t more = 1;
	tess_status st;

	r->profile.keeps_samples = false;
	st = run_training(r, t, &trainings[0]);
	tess_profile_clear(&r->profile);
	r->profile.keeps_samples = true;
	for (int32_t round = 0; !st; round++) {
		st = share_more(r, deadline, round, &more);
		if (st || !more)
			break;
		for (int32_t i = 0; i < TRAININGS && !st; i++)
			st = run_training(r, t, &trainings[i]);
	}
	return st;
}

/* math: the dtype of products. */
static tess_status measure_training_steps(struct step_rank *r, int32_t math, int64_t deadline)
{
	struct tess_trainer_options options = { .size = sizeof options,
		                                .threads = r->job->options->threads,
		                                .ignore_unexpected = 1,
		                                .math = math };
	int64_t first = r->profile.nsamples;
	char dir[4096];
	struct tess_trainer *t;
	tess_status st;

	snprintf(dir, sizeof dir, "%.4000s/" MACHINE_SHORT, r->job->dir);
	st = tess_trainer_open(r->mesh, dir, &options, &t);

	if (st)
		return st;
	tess_trainer_set_profile(t, &r->profile);
	st = time_trainings(r, t, deadline);
	if (!st)
		st = include_waits(r, first);
	tess_trainer_set_profile(t, NULL);
	tess_trainer_close(t);
	return st;
}

/* ---- samples --------------------------------------------------------------------------------- */

static int compare_points(const void *a, const void *b)
{
	const struct machine_point *p = a, *q = b;
	int names = strcmp(p->key, q->key);

	if (names || p->training != q->training)
		return names ? names : p->training - q->training;
	if (p->rows != q->rows)
		return p->rows < q->rows ? -1 : 1;
	return p->work < q->work ? -1 : p->work > q->work;
}

static int compare_seconds(const void *a, const void *b)
{
	double x = ((const struct machine_point *)a)->seconds,
	       y = ((const struct machine_point *)b)->seconds;

	return (x > y) - (x < y);
}

/*
 * Appends points [0, n), which have one key and one number of rows, as one. Its time is the mean of
 * the faster half, which other processes change little.
 */
static void add_mean(struct machine_result *out, struct machine_point *p, int32_t n)
{
	struct machine_point *to = &out->point[out->npoints];
	int32_t end = (n + 1) / 2;
	double work = 0, seconds = 0;

	if (out->npoints == MACHINE_POINTS)
		return;
	for (int32_t i = 0; i < n; i++)
		work += p[i].work / n;
	qsort(p, (size_t)n, sizeof *p, compare_seconds);
	for (int32_t i = 0; i < end; i++)
		seconds += p[i].seconds / end;
	*to = p[0];
	to->work = work;
	to->seconds = seconds;
	out->npoints++;
}

/* Groups samples of one key and number of rows whose work differs by less than an eighth. */
static void group_points(struct machine_point *p, int32_t n, struct machine_result *out)
{
	int32_t first = 0;

	qsort(p, (size_t)n, sizeof *p, compare_points);
	for (int32_t i = 1; i <= n; i++) {
		if (i < n && !strcmp(p[i].key, p[first].key) &&
		    p[i].training == p[first].training && p[i].rows == p[first].rows &&
		    p[i].work <= 1.125 * p[first].work)
			continue;
		add_mean(out, p + first, i - first);
		first = i;
	}
}

/* Joins the names of a sample's ops as tess_step_work_name. */
static void name_sample(const struct tess_profile_sample *s, char name[static TESS_STEP_NAME])
{
	struct tess_op op[TESS_PROFILE_OPS] = { 0 };

	for (int32_t i = 0; i < TESS_PROFILE_OPS && s->kind[i]; i++) {
		op[i].kind = s->kind[i];
		if (i)
			op[i - 1].next = &op[i];
	}
	tess_step_work_name(op, s->bf16, name);
}

static tess_status collect_samples(struct step_rank *r, struct machine_result *out)
{
	int64_t n = r->profile.nsamples;
	struct machine_point *p = calloc((size_t)(n + 1), sizeof *p);

	if (!p || r->profile.status) {
		free(p);
		return tess_fail(TESS_ENOMEM, "out of memory for the times of steps");
	}
	for (int64_t i = 0; i < n; i++) {
		const struct tess_profile_sample *s = &r->profile.sample[i];

		p[i] = (struct machine_point){ .class = s->class,
			                       .training = i >= r->first_training,
			                       .rows = s->rows,
			                       .work = s->work,
			                       .seconds = 1e-9 * (double)s->ns / s->parts };
		name_sample(s, p[i].key);
	}
	out->threads = r->threads;
	group_points(p, (int32_t)n, out);
	group_points(r->rest, r->nrest, out);
	free(p);
	return TESS_OK;
}

/* ---- the rank -------------------------------------------------------------------------------- */

static tess_status measure_steps_of_rank(struct step_rank *r)
{
	int64_t third = (int64_t)(1e9 / 3 * r->job->seconds), began = tess_now();
	tess_status st;

	r->ids = model_make_ids(4096, 500, 1);
	r->rest = calloc(REST_MAX, sizeof *r->rest);
	st = r->ids && r->rest ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_status(r->all, st, "bench");
	if (!st)
		st = measure_generation(r, began + third);
	r->first_training = r->profile.nsamples;
	if (!st)
		st = measure_training_steps(r, TESS_F32, began + 2 * third);
	return st ? st : measure_training_steps(r, TESS_BF16, began + 3 * third);
}

tess_status machine_measure_steps(struct tess_world *w, void *job, void *result)
{
	struct step_rank r = { .job = job, .all = tess_world_group(w) };
	tess_status st;

	r.first = tess_world_rank(w) == 0;
	st = tess_mesh_open(w, r.job->mesh, &r.mesh);
	if (!st) {
		r.nreplicas = tess_mesh_size(r.mesh, "dp");
		r.nreplicas = r.nreplicas ? r.nreplicas : 1;
		st = measure_steps_of_rank(&r);
	}
	if (!st && r.first)
		st = collect_samples(&r, result);
	if (st)
		tess_world_fail(w, st, tess_error());
	tess_profile_free(&r.profile);
	tess_mesh_close(r.mesh);
	free(r.ids);
	free(r.rest);
	return st;
}
