/* train.c - `tessera train`: arguments, what can be refused before ranks start, their start. */
#include "train.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const help =
	"usage: tessera train MODEL --data FILE [-n N] [--mesh M] [--backend B] [--threads T]\n"
	"       [--device D] [--plan P] [--plan-override PATTERN=STYLE] [--ignore-unexpected]\n"
	"       [--bucket SIZE] [--recompute PATTERN] [--max-restarts N]\n"
	"       [--sequence L] [--separate] [--token-dtype DTYPE] [--eval-data FILE]\n"
	"       [--eval-every N] [--steps N] [--batch N] [--micro-batches N] [--seed S]\n"
	"       [--optimizer NAME] [--lr X] [--min-lr X] [--warmup N] [--schedule NAME]\n"
	"       [--betas X,Y] [--eps X] [--momentum X] [--weight-decay X] [--clip X]\n"
	"       [--aux-loss X] [--dropout X] [--save DIR] [--save-every N] [--keep N]\n"
	"       [--resume DIR] [--log FILE] [--curve FILE] [--check] [--digest] [--flight DIR]\n"
	"       [--help]\n"
	"\n"
	"Trains a checkpoint directory on N ranks, and saves it as one that transformers loads.\n"
	"On CPUs no bit depends on the number of ranks, mesh, plan or backend, or on a resume.\n"
	"\n"
	"ranks and plan\n"
	"  -n N                number of ranks: threads over loopback, else processes\n"
	"  --mesh M            dimensions of the ranks: tp=4 (default tp=N), dp=2,tp=2; along\n"
	"                      dp are replicas, along pp stages\n"
	"  --backend B         loopback, gloo, ... (TESSERA_BACKEND; default auto)\n"
	"  --threads T         compute threads per rank (default: CPUs / ranks)\n"
	"  --device D          NAME[:INDEX] (TESSERA_DEVICE; default cpu)\n"
	"  --max-restarts N    starts all ranks again when one dies, from the last save\n"
	"  --plan P            auto, none, a plan of the model (tp, tp+sp, ep, hf), file, JSON\n"
	"  --plan-override PATTERN=STYLE  replaces a rule; may be repeated; dp:**=zero3\n"
	"  --ignore-unexpected  skips tensors that no module uses, with a warning\n"
	"  --bucket SIZE       bytes that dp adds, and zero3 gathers, at once (default 25MiB)\n"
	"  --recompute PATTERN  modules whose values are computed again; may be repeated\n"
	"data\n"
	"  --data FILE         .jsonl: {\"text\": ...} a line; .bin, .u16, .u32: packed ids;\n"
	"                      may be repeated\n"
	"  --sequence L        ids of a sequence (default: 1024, or less if the model has less)\n"
	"  --separate          each text is a sequence by itself\n"
	"  --token-dtype DTYPE  u16 or u32 (default: by name and vocabulary)\n"
	"  --eval-data FILE    measures the loss on these too; may be repeated\n"
	"  --eval-every N      steps between evaluations (default: at the end)\n"
	"steps\n"
	"  --steps N           (default: all sequences once, in whole batches)\n"
	"  --batch N           sequences of a step, of all ranks together (default 8)\n"
	"  --micro-batches N   parts of a batch, one after the other (default 1)\n"
	"  --seed S            of the order of sequences, and of dropout (default 0)\n"
	"  --optimizer NAME    adamw or sgd (default adamw)\n"
	"  --lr X              learning rate (default 5e-5)\n"
	"  --min-lr X          after the last step of the cosine schedule (default 0)\n"
	"  --warmup N          steps in which the learning rate rises (default 0)\n"
	"  --schedule NAME     constant or cosine (default constant)\n"
	"  --betas X,Y  --eps X  of adamw (default 0.9,0.999 and 1e-8)\n"
	"  --momentum X        of sgd (default 0)\n"
	"  --weight-decay X    of weights of two axes and more (default 0)\n"
	"  --clip X            limit of the gradient norm; 0: none (default 1)\n"
	"  --aux-loss X        factor of the loss that balances experts (default 0)\n"
	"  --dropout X         instead of what config.json says; 0: none\n"
	"output\n"
	"  --save DIR          saves as DIR/step-N: at the end, and at Ctrl-C\n"
	"  --save-every N      steps between saves\n"
	"  --keep N            saves that are kept; 0: all (default 2)\n"
	"  --resume DIR        goes on from the newest save in DIR, or the save DIR\n"
	"  --log FILE          one JSON object a step\n"
	"  --curve FILE        draws the loss as SVG\n"
	"  --check             compares weights and values of ranks (TESSERA_CHECK)\n"
	"  --digest            prints SHA-256 of all losses and of the final weights\n"
	"  --flight DIR        after a failure, the last calls of all ranks (TESSERA_FLIGHT)\n"
	"  --help              this text\n"
	"\n"
	"examples:\n"
	"  tessera train data --data stories.jsonl --steps 100 --lr 1e-3 --save out\n"
	"  tessera train data --data stories.jsonl -n 4 --mesh dp=2,tp=2 --save out --resume out\n";

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status parse_positive(const char *name, const char *text, void *to)
{
	return tess_tool_parse_real(name, text, 0, 1e30, to);
}

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

static tess_status parse_id_bytes(const char *name, const char *text, void *to)
{
	int32_t bytes = !strcmp(text, "u16") ? 2 : !strcmp(text, "u32") ? 4 : 0;

	*(int32_t *)to = bytes;
	return bytes ? TESS_OK : tess_fail(TESS_EINVAL, "%s %s: use u16 or u32", name, text);
}

static const char *get_optimizer_name(int32_t i)
{
	return i == TESS_ADAMW ? "adamw" : "sgd";
}

static const char *get_schedule_name(int32_t i)
{
	return i == TESS_CONSTANT ? "constant" : "cosine";
}

/* What fits no other option, or the number of ranks. */
static tess_status check_train_options(const struct train_options *a)
{
	if (!a->data.n)
		return tess_fail(TESS_EINVAL, "no --data is given, a file of texts or ids");
	if (a->batch % a->micro)
		return tess_fail(TESS_EINVAL,
		                 "--batch %d: cannot be cut into %d micro-batches of as many "
		                 "sequences",
		                 (int)a->batch, (int)a->micro);
	if (!a->save && (a->save_every || a->restarts))
		return tess_fail(TESS_EINVAL, "--%s needs a directory: --save DIR",
		                 a->save_every ? "save-every" : "max-restarts");
	if (!a->eval_data.n && a->eval_every)
		return tess_fail(TESS_EINVAL, "--eval-every needs files: --eval-data FILE");
	if (a->min_lr > a->lr)
		return tess_fail(TESS_EINVAL, "--min-lr %g is above --lr %g", a->min_lr, a->lr);
	return TESS_OK;
}

/* TESS_PENDING: --help was printed. */
static tess_status parse_train_options(int argc, char **argv, struct train_options *a)
{
	bool check = false;
	const struct tess_tool_option table[] = {
		{ "n", .number = &a->ranks, .lo = 1, .hi = 1024, .local = true },
		{ "mesh", .text = &a->mesh },
		{ "backend", .parse = tess_tool_set_option, .local = true },
		{ "device", .parse = tess_tool_set_option, .local = true },
		{ "threads", .number = &a->threads, .lo = 1, .hi = 1024, .local = true },
		{ "max-restarts", .number = &a->restarts, .lo = 0, .hi = 1 << 20 },
		{ "plan", .text = &a->plan },
		{ "plan-override", .parse = tess_tool_parse_override, .to = &a->overrides },
		{ "ignore-unexpected", .flag = &a->ignore_unexpected },
		{ "bucket", .parse = tess_tool_parse_size, .to = &a->bucket },
		{ "recompute", .parse = tess_tool_parse_override, .to = &a->recompute },
		{ "data", .parse = tess_tool_parse_override, .to = &a->data },
		{ "sequence", .number = &a->sequence, .lo = 2, .hi = 1 << 30 },
		{ "separate", .flag = &a->separate },
		{ "token-dtype", .parse = parse_id_bytes, .to = &a->id_bytes },
		{ "eval-data", .parse = tess_tool_parse_override, .to = &a->eval_data },
		{ "eval-every", .number = &a->eval_every, .lo = 1, .hi = INT32_MAX },
		{ "steps", .number = &a->steps, .lo = 1, .hi = INT32_MAX },
		{ "batch", .number = &a->batch, .lo = 1, .hi = TRAIN_BATCH_MAX },
		{ "micro-batches", .number = &a->micro, .lo = 1, .hi = TRAIN_BATCH_MAX },
		{ "seed", .parse = tess_tool_parse_seed, .to = &a->seed },
		{ "optimizer", .number = &a->optimizer, .lo = TESS_ADAMW, .hi = TESS_SGD,
		  .get_name = get_optimizer_name },
		{ "lr", .parse = parse_positive, .to = &a->lr },
		{ "min-lr", .parse = parse_positive, .to = &a->min_lr },
		{ "warmup", .number = &a->warmup, .lo = 0, .hi = INT32_MAX },
		{ "schedule", .number = &a->schedule, .lo = TESS_CONSTANT, .hi = TESS_COSINE,
		  .get_name = get_schedule_name },
		{ "betas", .parse = parse_betas, .to = a->betas },
		{ "eps", .parse = parse_positive, .to = &a->eps },
		{ "momentum", .parse = parse_positive, .to = &a->momentum },
		{ "weight-decay", .parse = parse_positive, .to = &a->weight_decay },
		{ "clip", .parse = parse_positive, .to = &a->clip },
		{ "aux-loss", .parse = parse_positive, .to = &a->aux_loss },
		{ "dropout", .parse = parse_positive, .to = &a->dropout },
		{ "save", .text = &a->save, .local = true },
		{ "save-every", .number = &a->save_every, .lo = 1, .hi = INT32_MAX },
		{ "keep", .number = &a->keep, .lo = 0, .hi = INT32_MAX },
		{ "resume", .text = &a->resume },
		{ "log", .text = &a->log, .local = true },
		{ "curve", .text = &a->curve, .local = true },
		{ "check", .flag = &check },
		{ "digest", .flag = &a->digest },
		{ "flight", .text = &a->flight, .local = true },
		{ 0 },
	};
	tess_status st = tess_tool_parse_options(argc, argv, help, false, table);

	if (st)
		return st;
	if (optind + 1 != argc)
		return tess_fail(TESS_EINVAL, "%s",
		                 optind < argc
		                         ? "give one MODEL: a checkpoint directory"
		                         : "no MODEL is given, a checkpoint directory; see --help");
	a->model = argv[optind];
	if (check)
		st = tess_option_set("check", "1");
	return st ? st : check_train_options(a);
}

/* ---- running --------------------------------------------------------------------------------- */

/* What rank 0 would miss, once all weights are read. */
static tess_status check_train_files(const struct train_options *a)
{
	const struct tess_tool_overrides *const lists[] = { &a->data, &a->eval_data };
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

static tess_status run_train(struct train_options *a, char **argv, int *exit_status)
{
	struct tess_trainer_options options = train_make_options(a);
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	if (!st)
		st = tess_tool_set_flight(a->flight, launched);
	if (!st && launched)
		return tess_tool_join_job(a->ranks, train_run_rank, a);
	if (!st && !a->ranks)
		st = tess_mesh_count_ranks(a->mesh, &a->ranks);
	if (!st)
		st = check_train_files(a);
	if (!st)
		st = tess_tool_check_training(a->model, a->mesh, a->ranks, a->batch / a->micro,
		                              a->sequence, &options);
	if (st)
		return st;
	if (a->restarts) /* ranks that are threads end with their process */
		return tess_tool_run_processes(a->ranks, a->restarts, argv, exit_status);
	return tess_tool_run_ranks(a->ranks, argv, train_run_rank, a, exit_status);
}

/* Whether starting the job again may help. */
static bool is_lost_rank(tess_status st)
{
	return st == TESS_EPEER || st == TESS_ETIMEOUT || st == TESS_EABORTED || st == TESS_EDEVICE;
}

int tess_tool_train(int argc, char **argv)
{
	struct train_options a = { .batch = 8,
		                   .micro = 1,
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
