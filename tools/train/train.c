/* train.c - `tessera train`: reads options, checks them, starts the ranks. */
#include "train.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(member) TESS_TOOL_AT(struct train_options, member)

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status parse_betas(const char *name, const char *text, void *to)
{
	const char *comma = strchr(text, ',');
	double *betas = to;
	char first[32];
	tess_status st;

	snprintf(first, sizeof first, "%.*s", comma ? (int)(comma - text) : 0, text);
	st = tess_tool_parse_real(name, first, 0, 1, &betas[0]);
	if (!st)
		st = tess_tool_parse_real(name, comma + 1, 0, 1, &betas[1]);
	return st ? tess_fail(TESS_EINVAL, "%s %s: two numbers from 0 to 1, as 0.9,0.95", name,
	                      text)
	          : TESS_OK;
}

static const char *get_optimizer_name(int32_t i)
{
	return i == TESS_ADAMW ? "adamw" : "sgd";
}

static const char *get_schedule_name(int32_t i)
{
	return i == TESS_CONSTANT ? "constant" : "cosine";
}

/* Reads the learning rate's schedule. */
static tess_status parse_schedule(const char *name, const char *text, void *to)
{
	for (int32_t i = TESS_CONSTANT; i <= TESS_COSINE; i++)
		if (!strcmp(text, get_schedule_name(i))) {
			*(int32_t *)to = i;
			return TESS_OK;
		}
	return tess_fail(TESS_EINVAL,
	                 "%s %s: must be constant or cosine, of the learning rate; the schedule of "
	                 "a pipeline is --pipeline-schedule",
	                 name, text);
}

/*
 * Chooses schedule and micro-batches: those of the options, or else of the strategy. Checks the
 * schedule, and takes the number of micro-batches from its file, if it has one.
 */
static tess_status choose_micro_batches(struct train_options *a)
{
	const struct tess_strategy *s = a->session.strategy;
	struct tess_pipeline *p = NULL;
	tess_status st = TESS_OK;

	if (s && !a->pipeline_schedule)
		a->pipeline_schedule = s->pipeline_schedule;
	if (s && !a->micro)
		a->micro = (int32_t)s->micro_batches;
	if (a->pipeline_schedule)
		st = tess_pipeline_open(a->pipeline_schedule, 0, a->micro, &p);
	a->micro = p ? p->nmicro : a->micro ? a->micro : 1;
	tess_pipeline_close(p);
	return st;
}

/* Refuses options that contradict each other. */
static tess_status check_train_options(const struct train_options *a)
{
	tess_status st;

	if (!a->data.n)
		return tess_fail(TESS_EINVAL, "no --data is given, a file of texts or ids");
	if (!a->save && (a->save_every || a->restarts))
		return tess_fail(TESS_EINVAL, "--%s needs a directory: --save DIR",
		                 a->save_every ? "save-every" : "max-restarts");
	if (!a->eval_data.n && a->eval_every)
		return tess_fail(TESS_EINVAL, "--eval-every needs files: --eval-data FILE");
	if (a->min_lr > a->lr)
		return tess_fail(TESS_EINVAL, "--min-lr %g is above --lr %g", a->min_lr, a->lr);
	if (a->memory && a->tile != TESS_TOOL_TILE_AUTO)
		return tess_fail(TESS_EINVAL,
		                 "--memory is what --tile auto keeps to; add that, or leave out "
		                 "--memory");
	st = tess_tool_check_tile(a->tile, a->memory);
	return st ? st : tess_tool_check_batch(&a->session, a->batch, a->micro);
}

static const struct tess_tool_option rank_options[] = {
	{ "max-restarts", "N", "restart all ranks from the last save when one dies, up to N times",
	  AT(restarts), .hi = 1 << 20 },
	{ 0 },
};

static const struct tess_tool_option step_memory_options[] = {
	{ "bucket", "SIZE",
	  "bytes of gradients added, and of zero3 weights gathered, at once (default: 25MiB)",
	  AT(bucket) },
	{ "offload-optimizer", "DIR|host",
	  "keep the optimizer's state in files in DIR, a folder on a local disk; host: next to a "
	  "GPU, in memory of the host",
	  AT(offload_optimizer) },
	{ "offload-weights", "DIR|host",
	  "keep weights between their uses, and gradients, in files in DIR; host: next to a GPU, "
	  "in memory of the host",
	  AT(offload_weights) },
	{ "tile", "SIZE|auto",
	  "maximum bytes of a weight that is gathered or fetched at once; auto: the largest with "
	  "which a rank fits in --memory",
	  .at = offsetof(struct train_options, tile), .parse = tess_tool_parse_tile },
	{ "memory", "SIZE",
	  "memory of a rank, as in 80G (80 * 10^9) or 24GiB: --tile auto keeps to it",
	  .at = offsetof(struct train_options, memory), .parse = tess_tool_parse_memory },
	{ "recompute", "PATTERN",
	  "recompute values of these modules for the backward, to save memory; repeatable",
	  AT(recompute) },
	{ 0 },
};

static const struct tess_tool_option data_options[] = {
	{ "data", "FILE",
	  "training data: texts or chats in .jsonl, a text in .txt, ids in .bin, .u16, .u32; "
	  "repeatable, required",
	  AT(data) },
	{ "eval-data", "FILE", "data to evaluate the loss on; repeatable", AT(eval_data) },
	{ "eval-every", "N", "steps between evaluations (default: only after the last step)",
	  AT(eval_every), .lo = 1, .hi = INT32_MAX },
	{ 0 },
};

static const struct tess_tool_option step_options[] = {
	{ "steps", "N", "total number of steps (default: each sequence once, in full batches)",
	  AT(steps), .lo = 1, .hi = INT32_MAX },
	{ "batch", "N", "global batch: sequences of a step, of all ranks", AT(batch), .lo = 1,
	  .hi = TRAIN_BATCH_MAX },
	{ "micro-batches", "N", "parts of the batch that are computed one after the other",
	  AT(micro), .lo = 1, .hi = TRAIN_BATCH_MAX },
	{ "pipeline-schedule", "S",
	  "order of micro-batches along pp: gpipe, 1f1b, interleaved:V, looped-bfs:V, zb-h1, zb-v, "
	  "or FILE.csv as torch writes it (default: 1f1b)",
	  AT(pipeline_schedule) },
	{ "seed", "S", "seed of the order of sequences and of dropout", AT(seed) },
	{ "optimizer", NULL, "optimizer", AT(optimizer), .lo = TESS_ADAMW, .hi = TESS_SGD,
	  .get_name = get_optimizer_name },
	{ "lr", "X", "learning rate", AT(lr), .hi = 1e30 },
	{ "min-lr", "X", "final learning rate of the cosine schedule", AT(min_lr), .hi = 1e30 },
	{ "warmup", "N", "steps of linear warmup", AT(warmup), .hi = INT32_MAX },
	{ "schedule", NULL, "learning rate after the warmup (default: constant)", AT(schedule),
	  .lo = TESS_CONSTANT, .hi = TESS_COSINE, .get_name = get_schedule_name,
	  .parse = parse_schedule },
	{ "betas", "X,Y", "betas of adamw (default: 0.9,0.999)", .parse = parse_betas, AT(betas) },
	{ "eps", "X", "epsilon of adamw", AT(eps), .hi = 1e30 },
	{ "momentum", "X", "momentum of sgd", AT(momentum), .hi = 1e30 },
	{ "weight-decay", "X", "decay of weights with two or more dimensions", AT(weight_decay),
	  .hi = 1e30 },
	{ "clip", "X", "clip the global gradient norm to X; 0: off", AT(clip), .hi = 1e30 },
	{ "aux-loss", "X", "factor of the load balancing loss of experts", AT(aux_loss),
	  .hi = 1e30 },
	{ "dropout", "X", "dropout probability; 0: off (default: config.json's)", AT(dropout),
	  .hi = 1e30 },
	{ 0 },
};

static const struct tess_tool_option output_options[] = {
	{ "save", "DIR", "save as DIR/step-N at the end and at Ctrl-C", AT(save), .local = true },
	{ "save-every", "N", "steps between saves (default: only at the end)", AT(save_every),
	  .lo = 1, .hi = INT32_MAX },
	{ "keep", "N", "number of saves to keep; 0: all", AT(keep), .hi = INT32_MAX },
	{ "resume", "DIR", "continue from the newest save in DIR, or from the save DIR",
	  AT(resume) },
	{ "log", "FILE", "write one JSON object per step", AT(log), .local = true },
	{ "curve", "FILE", "draw the loss as SVG", AT(curve), .local = true },
	{ "check", NULL,
	  "compare weights and values across ranks, find NaN and Inf (TESSERA_CHECK)",
	  .parse = tess_tool_set_option },
	{ "digest", NULL, "print the SHA-256 of all losses and of the final weights", AT(digest) },
	{ "flight", "DIR", "record the last calls of all ranks (default: TESSERA_FLIGHT)",
	  AT(flight), .local = true },
	{ 0 },
};

/* TESS_PENDING: --help was printed. */
static tess_status parse_train_options(int argc, char **argv, struct train_options *a)
{
	const struct tess_tool_section sections[] = {
		{ "Ranks", tess_tool_mesh_options, .to = &a->session },
		{ "", tess_tool_job_options, .to = &a->session },
		{ "", rank_options, .to = a },
		{ "Plan and memory", tess_tool_plan_options, .to = &a->session },
		{ "", step_memory_options, .to = a },
		{ "Data", data_options, .to = a },
		{ "", tess_tool_data_options, .to = &a->rows },
		{ "Steps", step_options, .to = a },
		{ "", tess_tool_math_options, .to = &a->session },
		{ "Output", output_options, .to = a },
		{ 0 },
	};
	tess_status st =
		tess_tool_parse_model(argc, argv, &tess_tool_train, sections, &a->session.model);

	if (!st)
		st = tess_tool_take_strategy(&a->session);
	if (!st)
		st = choose_micro_batches(a);
	return st ? st : check_train_options(a);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Checks the files that rank 0 opens after the weights are read. */
static tess_status check_train_files(const struct train_options *a)
{
	const struct tess_tool_list *const lists[] = { &a->data, &a->eval_data };
	char resumed[TRAIN_TEXT];
	tess_status st = TESS_OK;

	for (int k = 0; k < 2; k++)
		for (int32_t i = 0; i < lists[k]->n && !st; i++)
			if (access(lists[k]->text[i], R_OK))
				st = tess_fail(TESS_ENOENT, "%s: %s", lists[k]->text[i],
				               strerror(errno));
	if (!st)
		st = train_check_outputs(a);
	if (!st)
		st = train_find_resumed(a, resumed);
	return st ? st : train_check_directory(a, resumed);
}

/* Checks the step that all ranks would refuse, with the tile of --tile auto. */
static tess_status check_train_step(struct train_options *a)
{
	bool threads = !a->restarts && tess_tool_has_threads(a->session.ranks);
	tess_status st = a->tile == TESS_TOOL_TILE_AUTO
	                         ? train_choose_tile(a, a->session.ranks, threads)
	                         : TESS_OK;
	struct tess_trainer_options options = train_make_options(a);

	return st ? st
	          : tess_tool_check_training(a->session.model, a->session.mesh, a->session.ranks,
	                                     a->batch / a->micro, a->rows.sequence, &options);
}

/* Ranks that keep different weights in files make different calls. */
static tess_status compare_offload_options(const struct train_options *a)
{
	return a->offload_optimizer || a->offload_weights
	               ? tess_tool_add_compared("TESSERA_OFFLOAD_MIN",
	                                        tess_option_get("offload_min"))
	               : TESS_OK;
}

static tess_status run_train(struct train_options *a, char **argv, int *exit_status)
{
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	if (!st)
		st = compare_offload_options(a);
	if (!st)
		st = tess_tool_set_flight(a->flight, launched);
	if (!st && launched)
		return tess_tool_join_job(a->session.ranks, train_run_rank, a);
	if (!st && !a->session.ranks)
		st = tess_mesh_count_ranks(a->session.mesh, &a->session.ranks);
	if (!st)
		st = check_train_files(a);
	if (!st)
		st = train_choose_math(a);
	if (!st)
		st = check_train_step(a);
	if (st)
		return st;
	if (a->restarts) /* threads cannot be restarted */
		return tess_tool_run_processes(a->session.ranks, a->restarts, argv, exit_status);
	return tess_tool_run_ranks(a->session.ranks, argv, train_run_rank, a, exit_status);
}

/* Returns whether a restart of the job may help. */
static bool is_lost_rank(tess_status st)
{
	return st == TESS_EPEER || st == TESS_ETIMEOUT || st == TESS_EABORTED || st == TESS_EDEVICE;
}

static int execute_train(int argc, char **argv)
{
	struct train_options a = { .batch = 8,
		                   .keep = 2,
		                   .optimizer = TESS_ADAMW,
		                   .schedule = TESS_CONSTANT,
		                   .lr = 5e-5,
		                   .betas = { 0.9, 0.999 },
		                   .eps = 1e-8,
		                   .clip = 1,
		                   .dropout = -1 };
	tess_status st = parse_train_options(argc, argv, &a);
	int exit_status = 0;
	bool usage = st < 0;

	if (!st)
		st = run_train(&a, argv, &exit_status);
	if (st < 0)
		tess_tool_print_error("train");
	if (st < 0)
		return usage ? 2 : is_lost_rank(st) ? 1 : tess_tool_share_status(1);
	if (exit_status || tess_tool_is_interrupted())
		return exit_status ? exit_status : tess_tool_get_interrupt_status();
	return 0;
}

const struct tess_tool_command tess_tool_train = {
	"train",
	"train a checkpoint on N ranks",
	"MODEL --data FILE [options]",
	"Trains a checkpoint directory on N ranks, and saves it as a directory that Transformers\n"
	"loads. On CPUs no bit depends on the number of ranks, the mesh, the plan, the backend,\n"
	"or a resume.\n",
	"  tessera train data --data stories.jsonl --steps 100 --lr 1e-3 --save out\n"
	"  tessera train data --data stories.jsonl -n 4 --mesh dp=2,tp=2 --save out --resume out\n"
	"  tessera train llama --data train.bin --mesh dp=8 --plan-override 'dp:**=zero3'\n",
	execute_train,
};
