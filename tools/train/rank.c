/* rank.c - one rank of `tessera train`: executes the commands of rank 0. */
#include "train.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { HASHED_AT_ONCE = 1 << 20 };

/* ---- signals --------------------------------------------------------------------------------- */

/* Catches signals; rank 0 ends the run for all ranks, and threads share its handler. */
static void catch_train_interrupt(const struct train_run *r)
{
	bool first = tess_world_rank(r->world) == 0;
	const char *notice = "\ntessera train: ends after this step; a second Ctrl-C or SIGTERM "
			     "ends it now\n";

	if (first)
		tess_tool_remove_parts(r->options->save);
	if (r->options->save)
		notice = "\ntessera train: ends after this step, with a save; a second Ctrl-C or "
			 "SIGTERM ends it now, without one\n";
	if (first || !tess_tool_has_threads(tess_world_size(r->world)))
		tess_tool_catch_interrupt(first ? notice : NULL);
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is reported like a full disk */
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Receives a batch from rank 0, and cuts it into micro-batches of equally many sequences. */
static tess_status share_batch(struct train_run *r, const struct train_command *c)
{
	struct tess_group *g = tess_world_group(r->world);
	int64_t each = c->nsequences / c->nmicro, at = 0;
	tess_status st = tess_broadcast(g, r->lengths, (uint64_t)c->nsequences, TESS_I64, 0,
	                                "train:lengths");

	if (!st)
		st = tess_broadcast(g, r->ids, (uint64_t)c->nids, TESS_I32, 0, "train:ids");
	if (!st && c->masked)
		st = tess_broadcast(g, r->labels, (uint64_t)c->nids, TESS_I32, 0, "train:labels");
	for (int64_t i = 0; i < c->nsequences && !st; at += r->lengths[i++])
		if (i % each == 0)
			r->micro[i / each] = (struct tess_batch){
				.nsequences = each,
				.lengths = r->lengths + i,
				.ids = r->ids + at,
				.labels = c->masked ? r->labels + at : NULL,
			};
	return st;
}

/* Computes the digest of all weights, which rank 0 gathers by name. */
static tess_status hash_weights(struct train_run *r)
{
	bool first = tess_world_rank(r->world) == 0;
	unsigned char *part = malloc(first ? HASHED_AT_ONCE * sizeof(float) : 1);
	tess_status st = part ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	crypto_hash_sha256_init(&r->weights);
	for (int64_t i = 0; i < tess_trainer_count_tensors(r->trainer) && !st; i++) {
		const struct tess_trained *t = tess_trainer_get_tensor(r->trainer, i);
		int64_t width = t->dtype == TESS_F32 ? 4 : 2, n;

		crypto_hash_sha256_update(&r->weights, (const unsigned char *)t->name,
		                          strlen(t->name) + 1);
		for (int64_t at = 0; at < t->size && !st; at += n) {
			n = t->size - at < HASHED_AT_ONCE ? t->size - at : HASHED_AT_ONCE;
			st = tess_trainer_gather(r->trainer, TESS_WEIGHT, i, at, n, 0, part);
			if (!st && first)
				crypto_hash_sha256_update(&r->weights, part,
				                          (unsigned long long)(n * width));
		}
	}
	free(part);
	return st;
}

static tess_status perform_command(struct train_run *r, const struct train_command *c)
{
	const struct train_options *a = r->options;
	char *state;
	tess_status st;

	switch (c->kind) {
	case TRAIN_STEP:
	case TRAIN_EVALUATE:
		st = share_batch(r, c);
		if (!st && c->kind == TRAIN_STEP)
			return tess_trainer_step(r->trainer, r->micro, c->nmicro, c->lr,
			                         &r->result);
		return st ? st
		          : tess_trainer_compute_gradients(r->trainer, r->micro, c->nmicro,
		                                           &r->result);
	case TRAIN_LOAD:
		st = tess_trainer_load(r->trainer, c->text, &state);
		if (!st) {
			free(r->state);
			r->state = state;
		}
		return st;
	case TRAIN_SAVE:
		return tess_trainer_save(r->trainer, a->save, a->keep, r->state ? r->state : "{}");
	case TRAIN_HASH:
		return hash_weights(r);
	default:
		return c->status ? tess_fail((tess_status)c->status, "%s", c->text) : TESS_OK;
	}
}

tess_status train_run_command(struct train_run *r, struct train_command *c)
{
	tess_status st = tess_broadcast(tess_world_group(r->world), c, sizeof *c, TESS_I8, 0,
	                                "train:command");

	if (!st)
		st = perform_command(r, c);
	r->failed = st && c->kind != TRAIN_HASH;
	return st;
}

/* Executes commands until the last one, or until one fails, on all ranks alike. */
static tess_status follow_commands(struct train_run *r)
{
	struct train_command c = { .kind = TRAIN_STEP };
	tess_status st = TESS_OK;

	while (!st && c.kind != TRAIN_END)
		st = train_run_command(r, &c);
	return st;
}

/* ---- the rank -------------------------------------------------------------------------------- */

static double choose_given(double value, double preset)
{
	return value > 0 ? value : preset;
}

struct tess_trainer_options train_make_options(const struct train_options *a)
{
	return (struct tess_trainer_options){
		.size = sizeof(struct tess_trainer_options),
		.threads = a->session.threads,
		.plan = a->session.plan,
		.overrides = a->session.overrides.text,
		.ignore_unexpected = a->session.ignore_unexpected,
		.optimizer = a->optimizer,
		.beta1 = choose_given(a->betas[0], -1),
		.beta2 = choose_given(a->betas[1], -1),
		.eps = choose_given(a->eps, -1),
		.momentum = a->momentum,
		.weight_decay = a->weight_decay,
		.clip = a->clip,
		.balance = a->aux_loss,
		.dropout = a->dropout < 0 ? 0 : choose_given(a->dropout, -1),
		.seed = (uint64_t)a->seed,
		.bucket = a->bucket,
		.recompute = a->recompute.n ? a->recompute.text : NULL,
		.pipeline_schedule = a->pipeline_schedule,
		.micro_batches = a->micro,
		.offload_optimizer = a->offload_optimizer,
		.offload_weights = a->offload_weights,
		.tile = a->tile,
		.math = a->session.math,
	};
}

static tess_status open_train_run(struct train_run *r)
{
	const struct train_options *a = r->options;
	struct tess_trainer_options options = train_make_options(a);
	tess_status st =
		tess_mesh_open(r->world, a->session.mesh ? a->session.mesh : "tp", &r->mesh);

	if (!st)
		st = tess_trainer_open(r->mesh, a->session.model, &options, &r->trainer);
	r->failed = st != TESS_OK;
	if (st)
		return st;
	r->info.size = sizeof r->info;
	r->result.size = sizeof r->result;
	tess_trainer_get_info(r->trainer, &r->info);
	r->sequence = tess_tool_choose_sequence(&a->rows, r->info.positions);
	r->lengths = calloc((size_t)a->batch, sizeof *r->lengths);
	r->ids = calloc((size_t)(a->batch * r->sequence), sizeof *r->ids);
	r->labels = calloc((size_t)(a->batch * r->sequence), sizeof *r->labels);
	r->micro = calloc((size_t)a->micro, sizeof *r->micro);
	return r->lengths && r->ids && r->labels && r->micro
	               ? TESS_OK
	               : tess_fail(TESS_ENOMEM, "out of memory for a batch");
}

/* Takes the tile of --tile auto that rank 0 chooses. The command has chosen it for threads. */
static tess_status share_tile(struct tess_world *world, struct train_options *a)
{
	tess_status st = TESS_OK;

	if (a->tile != TESS_TOOL_TILE_AUTO)
		return TESS_OK;
	if (tess_world_rank(world) == 0)
		st = train_choose_tile(a, tess_world_size(world), true);
	return st ? st
	          : tess_broadcast(tess_world_group(world), &a->tile, sizeof a->tile, TESS_I8, 0,
	                           "train:tile");
}

/* Takes the dtype of products that rank 0 chooses. The command has chosen it for threads. */
static tess_status share_math(struct tess_world *world, struct train_options *a)
{
	tess_status st = TESS_OK;

	if (a->session.math || (!a->resume && !a->save))
		return TESS_OK;
	if (tess_world_rank(world) == 0)
		st = train_choose_math(a);
	return st ? st
	          : tess_broadcast(tess_world_group(world), &a->session.math, 1, TESS_I32, 0,
	                           "train:math");
}

tess_status train_run_rank(struct tess_world *world, void *options)
{
	struct train_run r = { .options = options, .world = world };
	tess_status st;

	catch_train_interrupt(&r);
	st = share_math(world, options);
	if (!st)
		st = share_tile(world, options);
	if (!st)
		st = open_train_run(&r);
	if (!st)
		st = tess_world_rank(world) == 0 ? train_drive(&r) : follow_commands(&r);
	if (st && !r.failed)
		tess_world_fail(world, st, tess_error());
	free(r.lengths);
	free(r.ids);
	free(r.labels);
	free(r.micro);
	free(r.state);
	tess_trainer_close(r.trainer);
	tess_mesh_close(r.mesh);
	return st;
}
