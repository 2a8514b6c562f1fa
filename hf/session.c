#include "hf/session.h"

#include "core/base/status.h"
#include "core/registry/registry.h"
#include "nn/agree.h"
#include "nn/unexpected.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tess_session {
	struct tess_planned_model model;
	struct tess_group *all; /* the world's */
	struct tess_group *alone; /* of this rank, where the mesh has no dimension but dp */
	struct tess_runner *runner;
	struct tess_tokenizer *tokenizer;
};

/* ---- checkpoint and plan --------------------------------------------------------------------- */

tess_status tess_planned_model_open(const char *dir, const struct tess_session_options *options,
                                    int32_t how, struct tess_planned_model *out)
{
	const char *const *overrides = options ? options->overrides : NULL;
	struct tess_planned_model p = { 0 };
	int32_t n = 0;
	tess_status st = tess_checkpoint_open(dir, how, &p.checkpoint);

	while (overrides && overrides[n])
		n++;
	if (st)
		return st;
	p.source = tess_checkpoint_make_source(p.checkpoint);
	p.source.ignore_unexpected = options && options->ignore_unexpected;
	st = tess_plugin_find_model(tess_checkpoint_config(p.checkpoint)->type, &p.model);
	if (st)
		st = tess_fail_in(st, "%s", dir);
	if (!st)
		st = tess_plan_open(p.model, options ? options->plan : NULL, overrides, n, &p.plan);
	if (st)
		tess_checkpoint_close(p.checkpoint);
	else
		*out = p;
	return st;
}

void tess_planned_model_close(struct tess_planned_model *p)
{
	if (!p || !p->checkpoint)
		return;
	tess_plan_free(&p->plan);
	tess_checkpoint_close(p->checkpoint);
	*p = (struct tess_planned_model){ 0 };
}

tess_status tess_planned_model_record(const struct tess_planned_model *p,
                                      const struct tess_mesh_shape *mesh, int64_t ntokens,
                                      struct tess_program **out)
{
	struct tess_record_options options = { .model = p->model,
		                               .plan = &p->plan,
		                               .source = &p->source,
		                               .mesh = tess_mesh_shape_remove(mesh, "dp"),
		                               .ntokens = ntokens,
		                               .nselected = 1,
		                               .logits_root = 0 };
	struct tess_program *program;
	tess_status st = tess_program_record(&options, &program);

	if (st)
		return st;
	st = tess_unexpected_check(program, p->model, &p->source, false);
	if (st)
		tess_program_free(program);
	else
		*out = program;
	return st;
}

void tess_planned_model_warn_unused(const struct tess_planned_model *p,
                                    const struct tess_program *program)
{
	tess_checkpoint_warn_unused(p->checkpoint);
	tess_unexpected_check(program, p->model, &p->source, true);
}

int64_t tess_planned_model_positions(const struct tess_planned_model *p)
{
	const json_t *n = json_object_get(tess_checkpoint_config(p->checkpoint)->root,
	                                  "max_position_embeddings");

	return json_is_integer(n) && json_integer_value(n) > 0 ? json_integer_value(n) : 0;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* The groups of this rank's replica: of all dimensions of the mesh but dp. */
static tess_status open_replica_groups(struct tess_session *s, struct tess_mesh *mesh,
                                       struct tess_runner_parts *parts)
{
	const struct tess_mesh_shape *shape = tess_mesh_get_shape(mesh);
	const struct tess_mesh_dim *dim = parts->mesh.dim;
	char names[TESS_MESH_TEXT];
	size_t len = 0;
	tess_status st;

	parts->all = s->all;
	parts->mesh = tess_mesh_shape_remove(shape, "dp");
	for (int32_t i = 0; i < parts->mesh.ndims; i++) {
		parts->along[i] = tess_mesh_group(mesh, dim[i].name);
		len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", i ? "," : "",
		                        dim[i].name);
	}
	if (!parts->along[0]) {
		st = tess_group_split(s->all, tess_group_rank(s->all), 0, "tp", &s->alone);
		parts->group = parts->along[0] = s->alone;
		return st;
	}
	st = tess_mesh_slice(mesh, names);
	parts->group = tess_mesh_group(mesh, names);
	return st;
}

static tess_status open_session(struct tess_mesh *mesh, const char *dir,
                                const struct tess_session_options *how, struct tess_session **out)
{
	struct tess_session_options mine = { .size = sizeof mine };
	struct tess_session *s = calloc(1, sizeof *s);
	tess_status st;

	if (!s)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (how)
		memcpy(&mine, how, how->size < sizeof mine ? how->size : sizeof mine);
	s->all = tess_world_group(tess_mesh_world(mesh));
	st = tess_group_agree_status(
		s->all, tess_planned_model_open(dir, &mine, TESS_CHECKPOINT_WHOLE, &s->model),
		"session");
	if (!st && tess_group_rank(s->all) == 0)
		tess_checkpoint_warn_unused(s->model.checkpoint);
	if (!st) {
		struct tess_runner_parts parts = { .model = s->model.model,
			                           .plan = &s->model.plan,
			                           .source = &s->model.source,
			                           .threads = mine.threads };

		st = open_replica_groups(s, mesh, &parts);
		if (!st)
			st = tess_runner_new(&parts, &s->runner);
	}
	if (st)
		tess_session_close(s);
	else
		*out = s;
	return st;
}

/* Reads numbers and makes tables in the default floating-point state, not that of the caller. */
tess_status tess_session_open(struct tess_mesh *mesh, const char *dir,
                              const struct tess_session_options *options, struct tess_session **out)
{
	fenv_t callers;
	tess_status st;

	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = open_session(mesh, dir, options, out);
	fesetenv(&callers);
	return st;
}

void tess_session_close(struct tess_session *s)
{
	if (!s)
		return;
	tess_tokenizer_close(s->tokenizer);
	tess_runner_free(s->runner);
	tess_group_close(s->alone);
	tess_planned_model_close(&s->model);
	free(s);
}

const struct tess_planned_model *tess_session_model(const struct tess_session *s)
{
	return &s->model;
}

struct tess_runner *tess_session_runner(struct tess_session *s)
{
	return s->runner;
}

tess_status tess_session_tokenizer(struct tess_session *s, const struct tess_tokenizer **out)
{
	tess_status st = TESS_OK;

	if (!s->tokenizer)
		st = tess_tokenizer_open(tess_checkpoint_dir(s->model.checkpoint), &s->tokenizer);
	if (!st)
		*out = s->tokenizer;
	return st;
}

/* ---- text ------------------------------------------------------------------------------------ */

static tess_status encode_prompt(struct tess_session *s, const char *text, size_t len,
                                 int32_t **ids, size_t *n)
{
	const struct tess_tokenizer *t;
	tess_status st = tess_session_tokenizer(s, &t);

	return st ? st : tess_tokenizer_encode(t, text, len, true, ids, n);
}

tess_status tess_session_share_prompt(struct tess_session *s, const char *text, size_t len,
                                      const int32_t *ids, int64_t nids, int32_t **out, int64_t *n)
{
	bool first = tess_group_rank(s->all) == 0;
	int32_t *list = NULL;
	size_t nmade = (size_t)nids;
	int64_t count;
	tess_status st = TESS_OK;

	if (first && !ids)
		st = encode_prompt(s, text, len, &list, &nmade);
	st = tess_group_agree_status(s->all, st, "prompt");
	if (st)
		return st;
	count = (int64_t)nmade;
	st = tess_broadcast(s->all, &count, 1, TESS_I64, 0, "prompt:length");
	if (!st && !list) {
		list = malloc((size_t)(count + 1) * sizeof *list);
		if (list && first)
			memcpy(list, ids, (size_t)count * sizeof *list);
	}
	if (!st)
		st = tess_group_agree_status(
			s->all, list ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory"), "prompt");
	if (!st)
		st = tess_broadcast(s->all, list, (uint64_t)count, TESS_I32, 0, "prompt:ids");
	if (st) {
		free(list);
		return st;
	}
	*out = list;
	*n = count;
	return TESS_OK;
}

struct stream { /* rank 0: turns ids into the caller's text */
	struct tess_decode_stream *decoder;
	int (*text)(void *self, const char *bytes, size_t n);
	void *self;
};

static int push_chosen_id(void *self, int32_t id, const float *logits)
{
	struct stream *to = self;
	const char *bytes;
	size_t n = 0;
	tess_status st = tess_decode_stream_push(to->decoder, id, &bytes, &n);

	(void)logits;
	if (st)
		return st;
	return n && to->text(to->self, bytes, n);
}

static tess_status stream_text(struct tess_session *s, struct tess_generate_request *request,
                               struct stream *to)
{
	const struct tess_tokenizer *t;
	struct tess_generate_result result;
	const char *bytes;
	size_t n = 0;
	tess_status st = TESS_OK;

	if (tess_group_rank(s->all) == 0) {
		st = tess_session_tokenizer(s, &t);
		if (!st)
			st = tess_decode_stream_open(t, true, &to->decoder);
		request->self = to;
		request->on_token = push_chosen_id;
	}
	st = tess_group_agree_status(s->all, st, "text");
	if (st)
		goto out;
	st = tess_generate_run(s->runner, request, &result);
	if (tess_group_size(tess_runner_group(s->runner)) < tess_group_size(s->all))
		st = tess_group_agree_status(s->all, st, "text"); /* of other replicas */
	if (st)
		goto out;
	if (to->decoder)
		st = tess_decode_stream_finish(to->decoder, &bytes, &n);
	if (!st && n)
		to->text(to->self, bytes, n);
	st = tess_group_agree_status(s->all, st, "text");
out:
	tess_decode_stream_close(to->decoder);
	return st;
}

tess_status tess_session_generate(struct tess_session *s, const char *prompt, int64_t max_tokens,
                                  int (*text)(void *self, const char *bytes, size_t n), void *self)
{
	const struct tess_generation *gen = tess_checkpoint_generation(s->model.checkpoint);
	struct stream to = { .text = text, .self = self };
	struct tess_generate_request request = { .max_tokens = max_tokens, .nstop = gen->neos };
	int32_t *ids, stop[TESS_EOS_MAX];
	tess_status st = tess_session_share_prompt(s, prompt, strlen(prompt), NULL, 0, &ids,
	                                           &request.nprompt);

	if (st)
		return st;
	for (int32_t i = 0; i < gen->neos; i++)
		stop[i] = (int32_t)gen->eos[i];
	request.prompt = ids;
	request.stop = stop;
	st = stream_text(s, &request, &to);
	free(ids);
	return st;
}
