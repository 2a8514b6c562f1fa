#include "nn/train/trainer.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/group/device.h"
#include "nn/program/agree.h"
#include "nn/record/unexpected.h"
#include "nn/run/check.h"
#include "nn/run/options.h"
#include "nn/train/squares.h"
#include "nn/train/trainer_state.h"
#include "nn/weights/tied.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/util/clock.h>

/* ---- open ------------------------------------------------------------------------------------ */

static void set_trainer_groups(struct tess_trainer *t)
{
	const struct tess_mesh_shape *mesh = &t->parts.mesh;
	int32_t dp = tess_mesh_shape_find(mesh, "dp", 2);

	t->groups = (struct tess_run_groups){ .all = t->parts.group,
		                              .along = t->parts.along,
		                              .stage = t->parts.group,
		                              .shards = t->parts.shards,
		                              .waited = &t->waited };
	t->rank = tess_group_rank(t->parts.group);
	t->nreplicas = 1;
	if (dp >= 0 && mesh->dim[dp].size > 1) {
		t->replicas = t->parts.along[dp];
		t->nreplicas = mesh->dim[dp].size;
		t->replica = tess_group_rank(t->replicas);
	}
	t->memory.shared = tess_step_memory_choose_group(mesh, t->parts.along);
}

/* Makes a shape of one sequence of one id per replica, to find the parameters. */
static struct tess_shape make_first_shape(const struct tess_trainer *t, int64_t *lengths,
                                          struct tess_training *training)
{
	const struct tess_batch batch = { .nsequences = t->nreplicas, .lengths = lengths };

	for (int32_t i = 0; i < t->nreplicas; i++)
		lengths[i] = 1;
	return tess_trainer_make_shape(t, &batch, false, training);
}

static tess_status record_first_program(struct tess_trainer *t, const struct tess_device *device)
{
	const struct tess_trainer_parts *parts = &t->parts;
	int64_t *lengths = calloc((size_t)t->nreplicas, sizeof *lengths), check = 0;
	uint64_t min = 0, bucket = 0;
	struct tess_training training;
	tess_status st = tess_option_get_int("check", 0, 1, &check);

	if (!st)
		st = tess_run_read_offload(&min, &bucket);
	t->programs.options = (struct tess_record_options){
		.model = parts->model,
		.plan = parts->plan,
		.source = parts->source,
		.mesh = parts->mesh,
		.positions = parts->positions,
		.rest_location = tess_location_parse(parts->options->offload_weights),
		.offload_min = min,
		.offload_bucket = bucket,
		.tile = parts->options->tile,
		.math = parts->options->math,
		.values = t->pattern,
		.check = check,
		.pipeline = t->pipeline,
		.device = device
	};
	t->programs.group = t->programs.all = parts->group;
	if (!lengths)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		st = tess_programs_record_first(&t->programs,
		                                make_first_shape(t, lengths, &training));
	free(lengths);
	if (st)
		return st;
	/* replaces the caller's list, which is only borrowed during the call */
	t->training.recompute = t->programs.first->program->training->recompute;
	return tess_unexpected_check(t->programs.first->program, parts->model, parts->source,
	                             t->rank == 0);
}

/* Checks where an option puts values; name: that of the option of the command. */
static tess_status check_offload_option(const char *name, const char *value,
                                        const struct tess_device *device)
{
	tess_status st = tess_location_check_device(name, value, device);

	if (!st && value && (!*value || !strcmp(value, "disk")))
		return tess_fail(TESS_EINVAL,
		                 "--%s: \"%s\" names no folder; use --%s DIR, a folder on a local "
		                 "disk, or ./disk for a folder of that name",
		                 name, value, name);
	return st;
}

tess_status tess_trainer_check(const struct tess_trainer_options *options)
{
	struct tess_trainer_options mine = { .size = sizeof mine }, *o = &mine;
	const struct tess_device *device;
	struct tess_optimizer optimizer;
	int32_t index;
	tess_status st = TESS_REQUIRE(options);

	if (!st)
		st = tess_sized_copy("tess_trainer_options", options, &mine, sizeof mine);
	if (!st)
		st = tess_optimizer_read(o, &optimizer);
	if (!st && (o->threads < 0 || o->positions < 0))
		st = tess_fail(TESS_EINVAL, "threads %d, positions %lld: use 0 or more",
		               (int)o->threads, (long long)o->positions);
	if (!st)
		st = tess_trainer_check_math(o->math);
	if (!st)
		st = tess_run_check_options(o->threads, 0);
	if (!st)
		st = tess_device_find(&device, &index);
	if (!st)
		st = tess_squares_check_device(device);
	if (!st)
		st = check_offload_option("offload-optimizer", o->offload_optimizer, device);
	return st ? st : check_offload_option("offload-weights", o->offload_weights, device);
}

static tess_status read_trainer_options(struct tess_trainer *t)
{
	const struct tess_trainer_options *o = t->parts.options;
	tess_status st;

	t->pattern = o->values ? strdup(o->values) : NULL;
	if (o->values && !t->pattern)
		return tess_fail(TESS_ENOMEM, "out of memory");
	t->own_schedule = o->pipeline_schedule ? strdup(o->pipeline_schedule) : NULL;
	if (o->pipeline_schedule && !t->own_schedule)
		return tess_fail(TESS_ENOMEM, "out of memory");
	t->schedule = t->own_schedule ? t->own_schedule : "1f1b";
	t->clip = o->clip;
	t->training.recompute = o->recompute;
	t->training.dropout = o->dropout;
	t->seed = o->seed;
	t->balance = t->training.balance = o->balance;
	t->training.bucket = o->bucket;
	t->training.state_location = tess_location_parse(o->offload_optimizer);
	t->training.shards = t->parts.shards ? tess_group_size(t->parts.shards) : 0;
	st = tess_trainer_check(o);
	if (!st)
		st = tess_optimizer_read(o, &t->optimizer);
	return st ? st : tess_trainer_open_schedule(t);
}

/* Loads parameters, and finds their gradients in the first program. Collective. */
static tess_status load_parameters(struct tess_trainer *t)
{
	struct tess_shaped_program *first;
	const struct tess_trainer_options *o = t->parts.options;
	const char *const dir[2] = {
		[TESS_REST] = o->offload_weights, [TESS_STATE] = o->offload_optimizer
	};
	tess_status st = tess_parameters_load(
		t->programs.first->program, t->parts.source, t->rank, &t->device,
		tess_optimizer_count_moments(&t->optimizer), dir, &t->parameters);

	if (!st)
		st = tess_update_open(&t->optimizer, &t->parameters, &t->update);
	if (!st)
		st = tess_early_update_open(t);
	if (!st)
		st = tess_device_alloc(&t->device, "norm", sizeof(struct tess_accumulator),
		                       &t->squares);
	st = tess_group_agree_status(t->parts.group, st, "weights");
	if (st)
		return st;
	t->programs.weights = t->parameters.weights.view;
	t->groups.offload = &t->parameters.offload;
	t->parameters.offload.moved = t->moved[0];
	t->update.files.moved = t->moved[1];
	return tess_trainer_prepare(t, t->programs.first->shape, &first);
}

/* Warns on rank 0 if a weight needs more memory at once than `tile` of the options. */
static void warn_of_tile(const struct tess_trainer *t, const struct tess_rank_program *l)
{
	if (t->rank == 0 && l->widest)
		tess_log(
			TESS_WARN, "train",
			"tile %llu is too small for %s: its smallest part needs %llu bytes at once",
			(unsigned long long)t->programs.first->program->tile, l->widest->name,
			(unsigned long long)l->widest_bytes);
}

/* Checks the device's ops before weights are loaded, with a program of any shape. */
static tess_status check_first_program(const struct tess_trainer *t)
{
	struct tess_rank_program *l;
	tess_status st = tess_program_lower(t->programs.first->program, t->rank, NULL, &l);

	if (st)
		return st;
	warn_of_tile(t, l);
	st = tess_rank_program_check_device(l, t->programs.options.device);
	tess_rank_program_free(l);
	return st;
}

/* Attaches the device, also to the group of shares if there are several copies. Collective. */
static tess_status attach_trainer_device(struct tess_trainer *t)
{
	const struct tess_trainer_parts *p = &t->parts;
	int32_t along = tess_mesh_shape_find(&p->mesh, "dp", 2), at;
	tess_status st = tess_device_attach(&t->device, &p->mesh, t->rank, p->group, p->along);

	if (st || !p->shards || tess_device_is_host(&t->device))
		return st;
	at = tess_mesh_shape_coordinate(&p->mesh, along, t->rank) % tess_group_size(p->shards);
	return tess_group_attach_device(p->shards, t->device.table, t->device.self, t->device.index,
	                                p->group, t->rank - at * p->mesh.dim[along].stride);
}

static tess_status record_and_load(struct tess_trainer *t)
{
	const struct tess_device *device = NULL;
	int32_t index = -1;
	tess_status st = read_trainer_options(t);

	if (!st)
		st = tess_device_find(&device, &index);
	if (!st)
		st = record_first_program(t, device);
	if (!st)
		st = check_first_program(t);
	st = tess_group_agree_status(t->parts.group, st, "program");
	if (!st)
		st = tess_programs_compare(&t->programs);
	if (st)
		return st;
	st = tess_check_open_group(t->programs.first->program, t->parts.group, &t->groups.stage);
	if (!st)
		st = tess_device_open(device, index, t->parts.options->threads, t->parts.group,
		                      &t->device);
	if (!st && t->replicas)
		st = tess_device_open_call_stream(&t->device);
	t->memory.device = &t->device;
	t->memory.at.stream = t->device.stream;
	if (!st)
		st = tess_parameters_check_room(t->programs.first->program, t->rank, &t->device,
		                                tess_optimizer_count_moments(&t->optimizer));
	st = tess_group_agree_status(t->parts.group, st, "device");
	if (!st)
		st = attach_trainer_device(t);
	if (!st && t->pipeline)
		st = tess_channels_open(t->programs.first->program,
		                        t->parts.along[t->programs.first->program->pipeline_along],
		                        &t->device, &t->groups.channels);
	st = tess_group_agree_status(t->parts.group, st, "device");
	return st ? st : load_parameters(t);
}

tess_status tess_trainer_new(const struct tess_trainer_parts *parts, struct tess_trainer **out)
{
	struct tess_trainer *t = calloc(1, sizeof *t);
	tess_status st;

	if (!t)
		return tess_fail(TESS_ENOMEM, "out of memory");
	t->parts = *parts;
	t->parts.close_parts = NULL;
	set_trainer_groups(t);
	st = record_and_load(t);
	t->parts.options = NULL; /* borrowed during the call only */
	if (st) {
		tess_trainer_close(t);
		return st;
	}
	t->parts.close_parts = parts->close_parts;
	*out = t;
	return TESS_OK;
}

void tess_trainer_close(struct tess_trainer *t)
{
	if (!t)
		return;
	tess_device_drain(&t->device);
	if (t->memory.is_registered)
		tess_step_memory_free(&t->memory);
	tess_channels_close(&t->groups.channels);
	if (t->parts.shards && t->device.self)
		tess_group_detach_device(t->parts.shards, t->device.self);
	tess_device_detach(&t->device, &t->parts.mesh, t->parts.group, t->parts.along);
	tess_device_drain(&t->device);
	tess_step_memory_free(&t->memory);
	free(t->losses);
	tess_value_store_clear(&t->values);
	free(t->pattern);
	free(t->own_schedule);
	tess_check_close_group(t->groups.stage, t->parts.group);
	tess_trainer_close_timeline(t);
	tess_pipeline_close(t->pipeline);
	tess_device_free(&t->device, t->squares);
	tess_update_thread_close(t->update_thread);
	tess_update_close(&t->update);
	tess_parameters_free(&t->parameters);
	tess_programs_free(&t->programs);
	tess_device_close(&t->device);
	if (t->parts.close_parts)
		t->parts.close_parts(t->parts.self);
	free(t);
}

/* ---- a step ---------------------------------------------------------------------------------- */

struct step { /* a step that runs */
	const struct tess_batch *micro;
	int64_t n;
	struct tess_batch_totals totals;
	int32_t *nonfinite; /* by sequence, in the order of the batches: its loss is NaN or Inf */
	double loss, norm;
	bool updates; /* weights are updated */
	bool updates_early; /* from when their gradients are final */
};

static tess_status compute_gradients(struct tess_trainer *t, struct step *s)
{
	struct tess_accumulator loss = { 0 };
	tess_status st = TESS_OK;

	t->training.balance = t->balance / (double)s->n;
	t->training.several = s->n > 1;
	s->nonfinite = calloc((size_t)s->totals.nsequences, sizeof *s->nonfinite);
	st = s->nonfinite ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_status(t->parts.group, st, "step");
	if (!st && t->pipeline)
		st = tess_trainer_run_pipeline(t, s->micro, (int32_t)s->n, s->updates, &s->totals,
		                               &loss, s->nonfinite);
	for (int64_t i = 0; i < s->n && !st && !t->pipeline; i++)
		st = tess_trainer_run_batch(t, &s->micro[i], i > 0,
		                            s->updates_early && i == s->n - 1, &s->totals, &loss,
		                            s->nonfinite);
	if (st) /* of some micro-batches only */
		tess_value_store_clear(&t->values);
	if (!st)
		st = tess_group_post_stage_failure(
			t->parts.group, t->parameters.program,
			tess_tied_add_gradients(&t->parameters, t->parts.along));
	if (!st)
		st = tess_trainer_add_accumulators(t, t->replicas, &loss, "loss");
	s->loss = tess_accumulator_round(&loss) / (double)s->totals.nlabels + s->totals.balance;
	return st ? st : tess_trainer_measure_norm(t, &s->norm);
}

/* Reports the sequences with non-finite losses, of all replicas: "sequences 0, 3 of 8". */
static tess_status refuse_nonfinite_loss(struct tess_trainer *t, struct step *s)
{
	char list[128] = "";
	int64_t found = 0;
	tess_status st = TESS_OK;

	if (t->replicas)
		st = tess_all_reduce(t->replicas, s->nonfinite, s->nonfinite,
		                     (uint64_t)s->totals.nsequences, TESS_I32, TESS_MAX, "loss");
	if (st)
		return st;
	for (int64_t i = 0; i < s->totals.nsequences; i++)
		if (s->nonfinite[i] && found++ < 8)
			snprintf(list + strlen(list), sizeof list - strlen(list), "%s%lld",
			         found > 1 ? ", " : "", (long long)i);
	return tess_fail(TESS_EINVAL,
	                 "step %lld: the loss of sequence%s %s%s of %lld (counted from 0) is not "
	                 "finite, so no weight has changed; use a lower learning rate, a longer "
	                 "warm-up or clipping, and look at the ids of %s; TESSERA_CHECK=1 names "
	                 "the first module that computes NaN or Inf",
	                 (long long)t->step + 1, found > 1 ? "s" : "", list,
	                 found > 8 ? ", ..." : "", (long long)s->totals.nsequences,
	                 found > 1 ? "these sequences" : "this sequence");
}

static tess_status check_finite(struct tess_trainer *t, struct step *s)
{
	if (t->early.has_begun && (!isfinite(s->norm) || !isfinite(s->loss)))
		return tess_fail(TESS_EINVAL,
		                 "step %lld: the gradient is not finite, and the loss is %g; some "
		                 "weights have changed, since without clipping they do before the "
		                 "norm is known: resume from the last save, with a lower learning "
		                 "rate, or with clipping, which changes no weight then",
		                 (long long)t->step + 1, s->loss);
	if (!isfinite(s->loss) && isfinite(s->totals.balance))
		return refuse_nonfinite_loss(t, s);
	if (!isfinite(s->norm) || !isfinite(s->loss))
		return tess_fail(TESS_EINVAL,
		                 "step %lld: the gradient is not finite, and the loss is %g; no "
		                 "weight has changed; use a lower learning rate or a longer "
		                 "warm-up; TESSERA_CHECK=1 names the first module that computes "
		                 "NaN or Inf",
		                 (long long)t->step + 1, s->loss);
	return TESS_OK;
}

static void copy_result(const struct tess_trainer *t, const struct step *s, bool updated,
                        int64_t began, struct tess_training_result *out)
{
	struct tess_training_result r = {
		.updated = updated,
		.loss = s->loss,
		.balance = t->balance > 0 ? s->totals.balance / t->balance : 0,
		.norm = s->norm,
		.ntokens = s->totals.ntokens,
		.nlabels = s->totals.nlabels,
		.seconds = 1e-9 * (double)(tess_now() - began),
		.communication = tess_group_size(t->parts.group) > 1 ? 1e-9 * (double)t->waited : 0,
		.offload_read = t->moved[0][0],
		.offload_written = t->moved[0][1],
	};

	r.size = out->size < sizeof r ? out->size : sizeof r;
	memcpy(out, &r, r.size);
}

static double compute_factor(const struct tess_trainer *t, double norm)
{
	double factor = t->clip > 0 ? t->clip / (norm + 1e-6) : 1;

	return factor < 1 ? factor : 1;
}

/* Clips gradients, updates the weights, and gathers the updated shares. */
static tess_status clip_and_update(struct tess_trainer *t, const struct step *s, double lr)
{
	const struct tess_optimizer_step step = { t->step + 1, lr, compute_factor(t, s->norm) };
	tess_status st = TESS_OK;
	int64_t began;

	if (!t->early.has_begun) {
		tess_update_begin(&t->update, &step);
		st = tess_update_finish(&t->update);
	}
	if (!st)
		st = tess_device_sync(&t->device, "optimizer");
	st = tess_group_agree_status(t->parts.group, st, "optimizer");
	began = tess_now();
	if (!st)
		st = tess_parameters_share(&t->parameters,
		                           t->parts.shards ? t->parts.shards : t->replicas);
	if (!st)
		st = tess_tied_copy_tables(&t->parameters, t->parts.along);
	t->waited += tess_now() - began;
	if (st)
		t->failed = t->step + 1;
	t->step += !st;
	return st;
}

/*
 * Prepares the update to begin in the backward, if the norm is not needed. A load balancing loss
 * may still become infinite then.
 */
static void prepare_early_update(struct tess_trainer *t, struct step *s, const double *lr)
{
	const struct tess_optimizer_step step = { t->step + 1, lr ? *lr : 0, 1 };

	s->updates_early = lr && t->may_update_early;
	tess_early_update_prepare(t, &step);
}

static tess_status compute_step(struct tess_trainer *t, const struct tess_batch *micro, int64_t n,
                                const double *lr, struct tess_training_result *out)
{
	struct step s = { .micro = micro, .n = n, .updates = lr != NULL };
	int64_t began = tess_now();
	tess_status st = tess_trainer_check_usable(t);

	if (!st)
		st = tess_trainer_check_batches(t, micro, n, lr ? *lr : 0, &s.totals);
	t->waited = tess_now() - began;
	memset(t->moved[0], 0, sizeof t->moved[0]);
	if (!st && !lr)
		st = tess_trainer_settle(t);
	prepare_early_update(t, &s, lr);
	if (!st)
		st = compute_gradients(t, &s);
	if (!st && lr)
		st = check_finite(t, &s);
	if (st && t->early.has_begun) {
		tess_early_update_abandon(t);
		t->failed = t->step + 1;
	}
	if (!st && lr)
		st = clip_and_update(t, &s, *lr);
	free(s.nonfinite);
	if (!t->is_updating)
		tess_early_update_count_moved(t);
	if (!st && out)
		copy_result(t, &s, lr != NULL, began, out);
	return st;
}

tess_status tess_trainer_check_usable(const struct tess_trainer *t)
{
	return t->failed ? tess_fail(TESS_EIO,
	                             "step %lld has failed after it had changed some weights; "
	                             "close the trainer, and resume from the last save",
	                             (long long)t->failed)
	                 : TESS_OK;
}

/* Runs a step in the default floating-point state. lr NULL: without the optimizer. */
static tess_status run_training_step(struct tess_trainer *t, const struct tess_batch *micro,
                                     int64_t n, const double *lr, struct tess_training_result *out)
{
	struct tess_thread_state callers;
	tess_status st;

	tess_thread_state_begin(&callers);
	st = compute_step(t, micro, n, lr, out);
	tess_thread_state_restore(&callers);
	return st;
}

static tess_status check_step_arguments(const struct tess_batch *micro, int64_t n,
                                        const struct tess_training_result *out)
{
	uint32_t size;
	tess_status st = tess_sized_copy("tess_training_result", out, &size, sizeof size);

	for (int64_t i = 0; i < n && !st; i++)
		if (micro[i].nsequences > 0 && (!micro[i].lengths || !micro[i].ids))
			st = tess_fail(TESS_EINVAL, "batch %lld: %lld sequences without %s",
			               (long long)i, (long long)micro[i].nsequences,
			               micro[i].lengths ? "ids" : "lengths");
	return st;
}

tess_status tess_trainer_step(struct tess_trainer *t, const struct tess_batch *micro, int64_t n,
                              double lr, struct tess_training_result *out)
{
	tess_status st = TESS_REQUIRE(t, micro);

	if (!st)
		st = check_step_arguments(micro, n, out);
	return st ? st : run_training_step(t, micro, n, &lr, out);
}

tess_status tess_trainer_compute_gradients(struct tess_trainer *t, const struct tess_batch *micro,
                                           int64_t n, struct tess_training_result *out)
{
	double dropout;
	tess_status st = TESS_REQUIRE(t, micro);

	if (!st)
		st = check_step_arguments(micro, n, out);
	if (st)
		return st;
	dropout = t->training.dropout;
	t->training.dropout = -1;
	st = run_training_step(t, micro, n, NULL, out);
	t->training.dropout = dropout;
	return st;
}

tess_status tess_trainer_take_stored(struct tess_trainer *t, struct tess_taken_value **out,
                                     int64_t *nmicro)
{
	if (!t->pattern)
		return tess_fail(TESS_EINVAL,
		                 "the trainer keeps no values; open it with a pattern of modules "
		                 "in the option values");
	*nmicro = t->values.nparts;
	return tess_value_store_take(&t->values, t->programs.first->program, t->parts.group,
	                             t->nreplicas, out);
}

const struct tess_program *tess_trainer_get_program(const struct tess_trainer *t)
{
	return t->programs.first->program;
}

/* ---- tensors and information ----------------------------------------------------------------- */

int64_t tess_trainer_count_tensors(const struct tess_trainer *t)
{
	return TESS_REQUIRE(t) ? 0 : t->parameters.ntensors;
}

const struct tess_trained *tess_trainer_get_tensor(const struct tess_trainer *t, int64_t i)
{
	if (TESS_REQUIRE(t))
		return NULL;
	if (i >= 0 && i < t->parameters.ntensors)
		return &t->parameters.tensor[i].about;
	tess_fail(TESS_EINVAL, "tess_trainer_get_tensor: there is no tensor %lld", (long long)i);
	return NULL;
}

int64_t tess_trainer_find_tensor(const struct tess_trainer *t, const char *name)
{
	int64_t n = TESS_REQUIRE(t, name) ? 0 : t->parameters.ntensors;

	for (int64_t i = 0; i < n; i++)
		if (!strcmp(t->parameters.tensor[i].about.name, name))
			return i;
	return -1;
}

tess_status tess_trainer_gather(struct tess_trainer *t, int32_t what, int64_t i, int64_t first,
                                int64_t n, int32_t root, void *out)
{
	tess_status st = TESS_REQUIRE(t);

	if (!st && n && (root == -1 || root == tess_group_rank(t->parts.group)))
		st = TESS_REQUIRE(out);
	if (!st)
		st = tess_trainer_settle(t);
	if (st)
		return st;
	return tess_parameters_gather(&t->parameters, t->parts.group, what, i, first, n, root, out);
}

void tess_trainer_get_info(const struct tess_trainer *t, struct tess_trainer_info *out)
{
	struct tess_trainer_info info = { 0 };
	const struct tess_program *p;
	const struct tess_offload_layout *files;

	if (TESS_REQUIRE(t, out))
		return;
	p = t->programs.first->program;
	files = &t->parameters.offload.layout;
	info = (struct tess_trainer_info){
		.step = t->step,
		.vocabulary = p->logits->dim[1]->size,
		.positions = p->max_positions,
		.weight_bytes = t->parameters.weight_bytes,
		.gradient_bytes = t->parameters.gradient_bytes,
		.state_bytes = t->parameters.state_bytes,
		.step_bytes = t->memory.bytes,
		.transfer_bytes = t->update.bytes,
		.weight_disk_bytes = files->pinned ? 0 : files->bytes[TESS_REST],
		.state_disk_bytes = files->pinned ? 0 : files->bytes[TESS_STATE],
		.weight_host_bytes = files->pinned ? files->bytes[TESS_REST] : 0,
		.state_host_bytes = files->pinned ? files->bytes[TESS_STATE] : 0
	};
	info.size = out->size < sizeof info ? out->size : sizeof info;
	memcpy(out, &info, info.size);
}

struct tess_parameters *tess_trainer_get_parameters(struct tess_trainer *t)
{
	return &t->parameters;
}

const struct tess_trainer_parts *tess_trainer_get_parts(const struct tess_trainer *t)
{
	return &t->parts;
}

const struct tess_optimizer *tess_trainer_get_optimizer(const struct tess_trainer *t)
{
	return &t->optimizer;
}

void tess_trainer_set_profile(struct tess_trainer *t, struct tess_profile *p)
{
	t->groups.profile = p;
}

void tess_trainer_set_step(struct tess_trainer *t, int64_t step)
{
	t->step = step;
}
