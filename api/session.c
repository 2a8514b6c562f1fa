#include "api/session.h"

#include "api/fingerprint.h"
#include "api/requests.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/world/mesh_shape.h"
#include "nn/program/agree.h"
#include "nn/program/settings.h"
#include "nn/record/unexpected.h"
#include "nn/run/options.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/style.h>

/* ---- checkpoint and plan --------------------------------------------------------------------- */

/* Chooses the maximum length: the trained context length, limited by the options. */
static int64_t choose_positions(const json_t *settings, const struct tess_session_options *options)
{
	int64_t n = json_integer_value(json_object_get(settings, "max_position_embeddings"));
	int64_t most = options && TESS_HAS(options, tess_session_options, positions)
	                       ? options->positions
	                       : 0;

	return most > 0 && (most < n || !n) ? most : n;
}

static tess_status apply_defaults(struct tess_planned_model *p,
                                  const struct tess_session_options *options)
{
	json_t *settings = NULL;
	tess_status st = tess_settings_merge(p->model, p->source.config, &settings);

	if (!st)
		st = tess_checkpoint_set_settings(p->checkpoint, settings);
	p->positions = choose_positions(settings, options);
	json_decref(settings);
	return st;
}

/* Sets where weights are between uses, and opens the files for reading. */
static tess_status set_offload(const struct tess_session_options *options,
                               struct tess_planned_model *p)
{
	if (!options || !TESS_HAS(options, tess_session_options, offload_weights) ||
	    !options->offload_weights)
		return TESS_OK;
	if (options->offload_weights != 1)
		return tess_fail(TESS_EINVAL, "offload_weights %d: use 0 or 1",
		                 (int)options->offload_weights);
	if (p->weights && p->weights != TESS_BF16)
		return tess_fail(TESS_EINVAL,
		                 "weights that are read before each use stay as in the files, and "
		                 "not in %s; leave out --weights, or --offload-weights",
		                 tess_dtype_name(p->weights));
	p->rest_location = TESS_LOCATION_DISK;
	return tess_checkpoint_reopen(p->checkpoint);
}

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
	p.weights =
		options && TESS_HAS(options, tess_session_options, weights) ? options->weights : 0;
	if (p.weights && p.weights != TESS_BF16 && (p.weights < TESS_Q8 || p.weights > TESS_MXFP4))
		st = tess_fail(TESS_EINVAL,
		               "%s: weights of dtype %d in memory; use 0, TESS_BF16, TESS_Q8, "
		               "TESS_BF12 or TESS_MXFP4",
		               dir, (int)p.weights);
	p.kv_dtype = options ? options->kv_dtype : 0;
	p.values =
		options && TESS_HAS(options, tess_session_options, values) ? options->values : NULL;
	p.math = options && TESS_HAS(options, tess_session_options, math) ? options->math : 0;
	if (!st && p.math && p.math != TESS_F32 && p.math != TESS_BF16)
		st = tess_fail(TESS_EINVAL,
		               "%s: products of dtype %d; use 0, TESS_F32 or TESS_BF16", dir,
		               (int)p.math);
	if (!st)
		st = set_offload(options, &p);
	if (!st)
		st = tess_plugin_find_model(tess_checkpoint_config(p.checkpoint)->type, &p.model);
	if (!st)
		st = apply_defaults(&p, options);
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

static tess_status record_checked(const struct tess_planned_model *p,
                                  const struct tess_record_options *options,
                                  struct tess_program **out)
{
	struct tess_program *program;
	tess_status st = tess_program_compile(options, &program);

	if (st)
		return st;
	st = tess_unexpected_check(program, p->model, &p->source, false);
	if (st)
		tess_program_free(program);
	else
		*out = program;
	return st;
}

/* Sets what programs of inference and of training have in common. */
static tess_status make_record_options(const struct tess_planned_model *p,
                                       const struct tess_mesh_shape *mesh,
                                       struct tess_record_options *out)
{
	*out = (struct tess_record_options){ .model = p->model,
		                             .plan = &p->plan,
		                             .source = &p->source,
		                             .mesh = *mesh,
		                             .positions = p->positions,
		                             .device = p->device,
		                             .values = p->values,
		                             .math = p->math,
		                             .rest_location = p->rest_location };
	return tess_run_read_offload(&out->offload_min, &out->offload_bucket);
}

tess_status tess_planned_model_record(const struct tess_planned_model *p,
                                      const struct tess_mesh_shape *mesh, int64_t ntokens,
                                      int64_t nselected, struct tess_program **out)
{
	struct tess_mesh_shape replica = tess_mesh_shape_get_replica(mesh);
	struct tess_record_options options;
	tess_status st = make_record_options(p, &replica, &options);

	options.ntokens = ntokens;
	options.nselected = nselected;
	options.kv_dtype = p->kv_dtype;
	options.weights = p->weights;
	options.logits_root = TESS_LOGITS_CUT;
	return st ? st : record_checked(p, &options, out);
}

tess_status tess_planned_model_record_training(const struct tess_planned_model *p,
                                               const struct tess_mesh_shape *mesh,
                                               const struct tess_training *training,
                                               const struct tess_pipeline *pipeline,
                                               struct tess_program **out)
{
	struct tess_record_options options;
	tess_status st = make_record_options(p, mesh, &options);

	options.tile = p->tile;
	options.pipeline = pipeline;
	options.training = training;
	for (int64_t i = 0; i < training->nsequences; i++)
		options.ntokens += training->lengths[i];
	options.nselected = options.ntokens;
	return st ? st : record_checked(p, &options, out);
}

void tess_planned_model_warn_unused(const struct tess_planned_model *p,
                                    const struct tess_program *program)
{
	tess_checkpoint_warn_unused(p->checkpoint);
	tess_unexpected_check(program, p->model, &p->source, true);
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* Opens the groups of this rank's replica; along an absent dimension it has one rank. */
static tess_status open_replica_groups(struct tess_session *s, struct tess_mesh *mesh,
                                       struct tess_runner_parts *parts)
{
	const struct tess_mesh_dim *dim = parts->mesh.dim;
	char names[TESS_MESH_TEXT] = "";
	size_t len = 0;
	tess_status st = TESS_OK;

	parts->all = s->all;
	parts->mesh = tess_mesh_shape_get_replica(tess_mesh_get_shape(mesh));
	for (int32_t i = 0; i < parts->mesh.ndims && !st; i++) {
		parts->along[i] = tess_mesh_group(mesh, dim[i].name);
		if (parts->along[i]) {
			len += (size_t)snprintf(names + len, sizeof names - len, "%s%s",
			                        len ? "," : "", dim[i].name);
			continue;
		}
		st = tess_group_split(s->all, tess_group_rank(s->all), 0, dim[i].name, &s->alone);
		parts->along[i] = s->alone;
	}
	if (!st && len)
		st = tess_mesh_slice(mesh, names);
	parts->group = len ? tess_mesh_group(mesh, names) : s->alone;
	return st;
}

tess_status tess_session_options_read(const struct tess_session_options *how,
                                      struct tess_session_options *out)
{
	struct tess_session_options mine = { .size = sizeof mine };
	struct tess_strategy *strategy = NULL;
	tess_status st = tess_sized_copy("tess_session_options", how, &mine, sizeof mine);

	if (!st)
		st = tess_strategy_read(mine.plan, &strategy);
	if (st)
		return st;
	if (strategy && !mine.threads)
		mine.threads = strategy->threads;
	tess_strategy_free(strategy);
	if (mine.kv_dtype && mine.kv_dtype != TESS_F32 && mine.kv_dtype != TESS_BF16)
		return tess_fail(TESS_EINVAL,
		                 "kv_dtype %d: a KV cache is of TESS_F32 or TESS_BF16; 0: as the "
		                 "device prefers",
		                 (int)mine.kv_dtype);
	if (mine.threads < 0 || mine.positions < 0)
		return tess_fail(TESS_EINVAL, "threads %d, positions %lld: use 0 or more",
		                 (int)mine.threads, (long long)mine.positions);
	*out = mine;
	return TESS_OK;
}

/* Compares the tokenizers of the replicas, which the first rank of each one reads. */
static tess_status compare_tokenizers(struct tess_session *s, const struct tess_group *replica)
{
	static const char *const files[] = { "tokenizer.json", "tokenizer_config.json" };

	return tess_files_compare(tess_checkpoint_dir(s->model.checkpoint), files,
	                          tess_group_rank(replica) == 0 ? 2 : 0, s->all, TESS_OK,
	                          "tokenizer");
}

static tess_status open_session(struct tess_mesh *mesh, const char *dir,
                                const struct tess_session_options *how, struct tess_session **out)
{
	struct tess_session *s = calloc(1, sizeof *s);
	struct tess_session_options mine;
	tess_status st;

	if (!s)
		return tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_session_options_read(how, &mine);
	s->mesh = mesh;
	tess_mesh_hold(mesh, 1);
	s->all = tess_world_group(tess_mesh_world(mesh));
	s->dp_group = tess_mesh_group(mesh, "dp");
	s->nreplicas = s->dp_group ? tess_mesh_size(mesh, "dp") : 1;
	s->replica = s->dp_group ? tess_mesh_rank(mesh, "dp") : 0;
	if (!st)
		st = tess_planned_model_open(dir, &mine, TESS_CHECKPOINT_WHOLE, &s->model);
	st = tess_checkpoint_compare(s->model.checkpoint, s->all, st, "session");
	if (!st && tess_group_rank(s->all) == 0)
		tess_checkpoint_warn_unused(s->model.checkpoint);
	if (!st) {
		struct tess_runner_parts parts = { .model = s->model.model,
			                           .plan = &s->model.plan,
			                           .source = &s->model.source,
			                           .positions = s->model.positions,
			                           .threads = mine.threads,
			                           .kv_dtype = s->model.kv_dtype,
			                           .weights = mine.weights,
			                           .math = mine.math,
			                           .offload_weights = mine.offload_weights,
			                           .kv_memory = mine.kv_memory,
			                           .values = mine.values,
			                           .stores_values = mine.values && !s->replica };

		st = open_replica_groups(s, mesh, &parts);
		if (!st && s->nreplicas > 1)
			st = compare_tokenizers(s, parts.group);
		if (!st)
			st = tess_runner_new(&parts, &s->runner);
	}
	if (st)
		tess_session_close(s);
	else
		*out = s;
	return st;
}

/* Reads numbers and computes tables in the default floating-point state, not the caller's. */
tess_status tess_session_open(struct tess_mesh *mesh, const char *dir,
                              const struct tess_session_options *options, struct tess_session **out)
{
	fenv_t callers;
	tess_status st = TESS_REQUIRE(mesh, dir, out);

	if (st)
		return st;
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = open_session(mesh, dir, options, out);
	fesetenv(&callers);
	return st;
}

bool tess_session_refuse_close(struct tess_session *s)
{
	s->closed_inside |= s->ngenerating > 0;
	return s->ngenerating > 0;
}

void tess_session_close(struct tess_session *s)
{
	if (!s || tess_session_refuse_close(s))
		return;
	for (int64_t i = 0; i < s->nsequences; i++)
		tess_sequence_free(s->sequences[i]);
	free(s->sequences);
	tess_tokenizer_close(s->tokenizer);
	free(s->tokenizer_error);
	tess_runner_free(s->runner);
	tess_group_close(s->alone);
	tess_planned_model_close(&s->model);
	tess_mesh_hold(s->mesh, -1);
	free(s);
}

struct tess_runner *tess_session_runner(struct tess_session *s)
{
	return s->runner;
}

tess_status tess_session_get_tokenizer(struct tess_session *s, const struct tess_tokenizer **out)
{
	tess_status st = TESS_REQUIRE(s, out);

	if (st)
		return st;
	if (s->tokenizer_error) /* a failure is final */
		return tess_fail(s->tokenizer_status, "%s", s->tokenizer_error);
	if (!s->tokenizer)
		st = tess_tokenizer_open(tess_checkpoint_dir(s->model.checkpoint), &s->tokenizer);
	if (st && st != TESS_ENOMEM) {
		s->tokenizer_status = st;
		s->tokenizer_error = strdup(tess_error());
	}
	if (!st)
		*out = s->tokenizer;
	return st;
}

/* Sets the fields that come from the checkpoint. */
static void set_checkpoint_info(const struct tess_planned_model *model, int64_t vocabulary,
                                int64_t positions, struct tess_session_info *out)
{
	const struct tess_generation_config *g = tess_checkpoint_generation(model->checkpoint);

	out->vocabulary = vocabulary;
	out->positions = positions;
	out->max_tokens = g->max_new_tokens;
	out->sampling = tess_generation_config_get_sampling(g);
}

static void copy_info(const struct tess_session_info *info, struct tess_session_info *out)
{
	uint32_t size = out->size < sizeof *info ? out->size : sizeof *info;

	memcpy(out, info, size);
	out->size = size;
}

void tess_session_get_info(const struct tess_session *s, struct tess_session_info *out)
{
	struct tess_session_info info = { 0 };
	struct tess_runner_memory memory;
	struct tess_runner_room room;

	if (TESS_REQUIRE(s, out))
		return;
	memory = tess_runner_get_memory(s->runner);
	room = tess_runner_get_room(s->runner);
	info = (struct tess_session_info){ .replica = s->replica,
		                           .nreplicas = s->nreplicas,
		                           .weight_bytes = memory.weights,
		                           .kv_bytes = memory.cache,
		                           .step_bytes = memory.step,
		                           .kv_used_bytes = room.used,
		                           .kv_limit = room.limit,
		                           .mapped_bytes = memory.mapped,
		                           .offloaded_bytes = memory.offloaded };
	set_checkpoint_info(&s->model, tess_runner_vocabulary(s->runner),
	                    tess_runner_positions(s->runner), &info);
	copy_info(&info, out);
}

int32_t tess_session_list_weights(const struct tess_session *s, struct tess_weight_storage *out,
                                  int32_t most)
{
	const struct tess_weight_decision *list;
	int32_t n;

	if (!s || most < 0 || (most && !out)) {
		tess_fail(TESS_EINVAL, "%s: %d weights%s", __func__, (int)most,
		          s ? "" : " of no session");
		return 0;
	}
	list = tess_runner_get_weights(s->runner, &n);
	tess_weight_decisions_describe(list, n < most ? n : most, out);
	return n;
}

tess_status tess_session_check(const char *dir, const char *mesh, int32_t n,
                               const struct tess_session_options *options,
                               struct tess_session_info *out)
{
	struct tess_session_info info = { .nreplicas = 1 };
	struct tess_session_options mine;
	struct tess_program *program = NULL;
	struct tess_planned_model p;
	struct tess_mesh_shape shape;
	tess_status st = TESS_REQUIRE(dir, out);

	if (!st && n < 0)
		st = tess_fail(TESS_EINVAL, "tess_session_check: %d ranks", (int)n);
	if (!st)
		st = tess_sized_copy("tess_session_info", out, &info, sizeof out->size);
	if (!st)
		st = tess_mesh_shape_parse(mesh ? mesh : "tp", n, &shape);
	if (!st)
		st = tess_session_options_read(options, &mine);
	if (!st)
		st = tess_planned_model_open(dir, &mine, TESS_CHECKPOINT_HEADERS, &p);
	if (st)
		return st;
	st = tess_planned_model_record(&p, &shape, 1, 1, &program);
	if (!st)
		st = tess_run_check_options(mine.threads, p.weights);
	if (!st) {
		set_checkpoint_info(&p, program->logits->dim[1]->size, program->max_positions,
		                    &info);
		copy_info(&info, out);
	}
	tess_program_free(program);
	tess_planned_model_close(&p);
	return st;
}

tess_status tess_session_check_prompt(const struct tess_session_info *info, const int32_t *ids,
                                      int64_t n)
{
	tess_status st;

	if (!info || n < 1 || !ids)
		return tess_fail(TESS_EINVAL, "the prompt is empty: it has no ids");
	st = tess_prompt_check_length(n, info->positions);
	return st ? st : tess_ids_check(ids, n, 0, info->vocabulary);
}
