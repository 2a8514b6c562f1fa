/* model_rank.c - one rank of `tessera bench decode|prefill|batch`: opens, runs rounds. */
#include "model.h"

#include "api/session.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/generate/runner.h"
#include "nn/generate/sequence.h"
#include "nn/program/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/util/random.h>
#include <unistd.h>

struct model_rank {
	struct tess_world *world;
	const struct model_options *options;
	struct tess_group *all;
	struct tess_mesh *mesh;
	struct tess_session *session;
	struct tess_session_info info;
	struct tess_profile profile;
	struct model_result result;
	bool first;
	/* of the current case: */
	struct model_case c;
	struct tess_sequence **text;
	struct tess_request *request;
	const struct tess_request **list;
	int32_t *ids; /* ids of the longest prompt */
	int64_t nsteps; /* steps of the current round */
};

int32_t *model_make_ids(int64_t n, int64_t vocabulary, uint32_t seed)
{
	int32_t *ids = malloc((size_t)(n + 4) * sizeof *ids);

	for (int64_t i = 0; i < n && ids; i += 4) {
		uint32_t word[4] = { (uint32_t)i };

		tess_philox(seed, 0, word);
		for (int j = 0; j < 4; j++)
			ids[i + j] = (int32_t)(word[j] % (uint64_t)vocabulary);
	}
	return ids;
}

/* ---- texts ----------------------------------------------------------------------------------- */

int model_end_text(void *self, int64_t i, const struct tess_result *r, const char *text, uint64_t n)
{
	(void)self;
	(void)i;
	(void)text;
	(void)n;
	return r->finish == TESS_FINISH_FAILED ? tess_fail(r->status, "%s", r->sentence)
	                                       : TESS_GO_ON;
}

static int count_step(void *self)
{
	struct model_rank *r = self;

	r->nsteps++;
	return tess_tool_is_interrupted() ? TESS_END_ALL : TESS_GO_ON;
}

/* Appends `rows` ids to each sequence, then chooses `tokens`; -1: none. */
static tess_status advance_texts(struct model_rank *r, int64_t rows, int64_t tokens)
{
	static const struct tess_sampling greedy = { .top_p = 1 };
	static const int32_t none = 0;
	struct tess_generation how = { .size = sizeof how,
		                       .chunk = r->options->chunk,
		                       .self = r,
		                       .on_end = model_end_text,
		                       .on_step = count_step };

	r->nsteps = 0;
	for (int32_t i = 0; i < r->c.batch; i++) {
		r->request[i] = (struct tess_request){ .size = sizeof *r->request,
			                               .ids = r->ids + i,
			                               .nids = rows,
			                               .sequence = r->text[i],
			                               .sampling = &greedy,
			                               .stop = &none,
			                               .max_tokens = tokens };
		r->list[i] = &r->request[i];
	}
	return tess_session_generate(r->session, r->list, r->c.batch, &how);
}

static void close_texts(struct model_rank *r)
{
	for (int32_t i = 0; i < r->c.batch && r->text; i++) {
		tess_sequence_close(r->text[i]);
		r->text[i] = NULL;
	}
}

/* Truncates all sequences to their context; false: they must be computed again. */
static bool rewind_texts(struct model_rank *r)
{
	struct tess_runner *runner = tess_session_runner(r->session);
	int64_t context = r->options->context;

	for (int32_t i = 0; i < r->c.batch; i++) {
		struct tess_sequence *q = r->text[i];

		if (!q || !tess_runner_rewind_slot(runner, q->slot, context))
			return false;
		q->nids = q->ncached = context;
	}
	return true;
}

/* Makes sequences as long as the context. */
static tess_status prepare_texts(struct model_rank *r)
{
	tess_status st = TESS_OK;

	if (rewind_texts(r))
		return TESS_OK;
	close_texts(r);
	for (int32_t i = 0; i < r->c.batch && !st; i++)
		st = tess_sequence_open(r->session, &r->text[i]);
	return st || !r->options->context ? st : advance_texts(r, r->options->context, -1);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Broadcasts whether rank 0 is interrupted. */
static tess_status share_interrupt(struct model_rank *r, int32_t *stop)
{
	*stop = r->first && tess_tool_is_interrupted();
	return tess_broadcast(r->all, stop, 1, TESS_I32, 0, "bench");
}

static void show_round(const struct model_rank *r, int32_t i)
{
	const struct model_options *a = r->options;

	if (!r->first || !isatty(STDERR_FILENO))
		return;
	if (i < 0)
		fprintf(stderr, "\r\033[K%s: %d %s, first to warm up", model_kinds[a->kind].name,
		        (int)r->c.batch, r->c.batch > 1 ? "texts" : "text");
	else if (i < a->rounds)
		fprintf(stderr, "\r\033[K%s: %d %s, round %d of %d", model_kinds[a->kind].name,
		        (int)r->c.batch, r->c.batch > 1 ? "texts" : "text", i + 1, (int)a->rounds);
	else
		fputs("\r\033[K", stderr);
}

/* Runs a round. profile: accumulates its steps, or NULL. */
static tess_status run_round(struct model_rank *r, struct tess_profile *profile,
                             struct model_round *out)
{
	const struct model_options *a = r->options;
	bool prefill = a->kind == MODEL_PREFILL;
	struct tess_runner *runner = tess_session_runner(r->session);
	int32_t ahead = tess_runner_count_ahead(runner);
	int64_t began, moving, wait;
	tess_status st = prepare_texts(r);

	if (!st)
		st = tess_barrier(r->all, "bench");
	if (profile)
		tess_profile_clear(profile);
	tess_runner_set_profile(runner, profile);
	began = tess_now();
	if (!st)
		st = advance_texts(r, prefill ? a->tokens : 1, prefill ? 1 : a->tokens);
	*out = (struct model_round){ .seconds = 1e-9 * (double)(tess_now() - began) };
	tess_runner_set_profile(runner, NULL);
	/* with stages, a step has a share of the texts, and the last texts are shared out again */
	if (!st && r->first && !prefill && r->nsteps > a->tokens * ahead + ahead - 1)
		st = tess_fail(TESS_ENOMEM,
		               "the KV cache has no room for %d texts of %d positions at once; use "
		               "a smaller --batch, or a larger --kv-memory",
		               (int)r->c.batch, (int)(a->context + a->tokens));
	st = tess_group_agree_status(r->all, st, "bench");
	if (st || !profile)
		return st;
	st = tess_profile_split_calls(profile, &moving, &wait);
	out->moving = 1e-9 * (double)moving;
	out->wait = 1e-9 * (double)wait;
	memcpy(out->op, profile->op, sizeof out->op);
	return st;
}

/* Counts bytes and FLOP of a forward in the warm-up round. */
static tess_status count_forward(struct model_rank *r)
{
	const struct tess_profile *p = &r->profile;
	uint64_t sum[3] = { p->weight_bytes, p->kv_bytes };
	uint64_t n = (uint64_t)r->c.forwards;
	tess_status st;

	for (int32_t i = 0; i < TESS_PROFILE_STEPS; i++)
		sum[2] += p->op[i].flops;
	st = tess_all_reduce(r->all, sum, sum, 3, TESS_I64, TESS_SUM, "bench");
	r->c.weight_bytes = sum[0] / n;
	r->c.kv_bytes = sum[1] / n;
	r->c.flops = sum[2] / n;
	return st;
}

static tess_status time_case_rounds(struct model_rank *r, int32_t *stop)
{
	const struct model_options *a = r->options;
	struct model_round warm;
	tess_status st;

	show_round(r, -1);
	st = run_round(r, &r->profile, &warm);
	if (!st)
		st = count_forward(r);
	for (int32_t i = 0; i < a->rounds && !st; i++) {
		st = share_interrupt(r, stop);
		if (st || *stop)
			return st;
		show_round(r, i);
		st = run_round(r, a->breakdown ? &r->profile : NULL, &r->c.round[i]);
	}
	if (!st)
		st = share_interrupt(r, stop);
	show_round(r, a->rounds);
	return st;
}

static tess_status run_case(struct model_rank *r, int32_t batch, int32_t *stop)
{
	const struct model_options *a = r->options;
	bool prefill = a->kind == MODEL_PREFILL;
	int64_t rows = prefill && a->tokens > a->context ? a->tokens : a->context;
	size_t n = (size_t)batch;
	tess_status st;

	r->c = (struct model_case){ .batch = batch, .forwards = prefill ? 1 : a->tokens };
	r->c.round = calloc((size_t)a->rounds, sizeof *r->c.round);
	r->text = calloc(n, sizeof *r->text);
	r->request = calloc(n, sizeof *r->request);
	r->list = calloc(n, sizeof *r->list);
	r->ids = model_make_ids(rows + batch + 1, r->info.vocabulary, 1);
	st = r->c.round && r->text && r->request && r->list && r->ids
	             ? TESS_OK
	             : tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_status(r->all, st, "bench");
	if (!st)
		st = time_case_rounds(r, stop);
	if (!st && !*stop && r->first)
		st = model_print_case(&r->result, &r->c);
	close_texts(r);
	free(r->c.round);
	free(r->text);
	free(r->request);
	free(r->list);
	free(r->ids);
	return st;
}

/* ---- the rank -------------------------------------------------------------------------------- */

static tess_status measure_model(struct model_rank *r)
{
	const struct model_options *a = r->options;
	struct tess_session_options options = tess_tool_get_session_options(&a->session);
	int32_t stop = 0;
	tess_status st = tess_session_open(r->mesh, a->session.model, &options, &r->session);

	if (st)
		return st;
	r->info.size = sizeof r->info;
	tess_session_get_info(r->session, &r->info);
	r->result = (struct model_result){ .options = a,
		                           .nranks = tess_world_size(r->world),
		                           .threads = tess_runner_count_threads(
						   tess_session_runner(r->session)),
		                           .backend = tess_world_backend(r->world),
		                           .device = tess_option_get("device") };
	if (r->first)
		tess_tool_check_environment();
	st = tess_runner_pack_weights(tess_session_runner(r->session));
	if (!st && a->breakdown)
		st = model_measure_limits(r->all, r->result.threads, &r->result.limits);
	if (!st && r->first)
		model_print_head(&r->result);
	for (int32_t i = 0; i < a->ncases && !st && !stop; i++)
		st = run_case(r, a->batch[i], &stop);
	return st;
}

tess_status model_run_rank(struct tess_world *world, void *options)
{
	struct model_rank r = { .world = world, .options = options };
	const char *mesh = r.options->session.mesh;
	tess_status st;

	r.all = tess_world_group(world);
	r.first = tess_world_rank(world) == 0;
	if (r.first || !tess_tool_has_threads(tess_world_size(world)))
		tess_tool_catch_interrupt(NULL);
	st = tess_mesh_open(world, mesh ? mesh : "tp", &r.mesh);
	if (!st)
		st = measure_model(&r);
	if (st)
		tess_world_fail(world, st, tess_error());
	tess_profile_free(&r.profile);
	tess_session_close(r.session);
	tess_mesh_close(r.mesh);
	return st;
}
