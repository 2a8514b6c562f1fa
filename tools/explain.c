/* explain.c - `tessera explain`: prints what each rank of a plan would hold and send. */
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/train.h>

struct explain_options {
	struct tess_tool_session session;
	const char *svg, *schedule, *timeline, *times;
	struct tess_tool_list recompute;
	const char *offload_optimizer, *offload_weights;
	int32_t tokens, batch, micro, sequence, optimizer;
	uint64_t memory, tile;
	double clip;
	bool program, storage, json, train;
};

/* ---- the command ----------------------------------------------------------------------------- */

static const char *name_optimizer(int32_t kind)
{
	return kind == TESS_ADAMW ? "adamw" : "sgd";
}

/* Returns whether the step has micro-batches, whose schedule may be simulated. */
static bool has_pipeline(const struct explain_options *a)
{
	return a->micro || a->schedule || a->timeline || a->times;
}

static tess_status check_kind_of_step(const struct explain_options *a)
{
	if (a->storage && (a->json || a->program))
		return tess_fail(TESS_EINVAL, "--storage prints text, and no program; leave out "
		                              "--json and --program");
	if (a->times && (a->storage || a->json || a->program))
		return tess_fail(TESS_EINVAL,
		                 "--timeline-times adds to the tables; leave out --json, --program "
		                 "and --storage");
	if (!a->train && has_pipeline(a))
		return tess_fail(TESS_EINVAL,
		                 "--micro-batches, --pipeline-schedule, --timeline and "
		                 "--timeline-times are of a step of training; add --train");
	if (!a->train &&
	    (a->batch || a->sequence || a->optimizer || a->recompute.n || a->clip != 1))
		return tess_fail(TESS_EINVAL,
		                 "--batch, --sequence, --optimizer, --clip and --recompute are of "
		                 "a step of training; add --train");
	if (!a->train && (a->offload_optimizer || a->tile || a->session.math))
		return tess_fail(TESS_EINVAL, "%s is of a step of training; add --train",
		                 a->tile           ? "--tile"
		                 : a->session.math ? "--math"
		                                   : "--offload-optimizer");
	if (a->offload_weights && !a->train == !!strcmp(a->offload_weights, "files"))
		return tess_fail(TESS_EINVAL,
		                 "--offload-weights %s: use \"files\", those of the checkpoint, or "
		                 "with --train a folder, disk or host",
		                 a->offload_weights);
	if (a->train && a->session.weights)
		return tess_fail(
			TESS_EINVAL,
			"--weights bf16, q8, bf12 and mxfp4 are for inference: training changes "
			"weights in their own dtype");
	if (a->train && (a->tokens || a->session.kv_dtype))
		return tess_fail(TESS_EINVAL,
		                 "--tokens and --kv are of a step of inference; with --train give "
		                 "--batch and --sequence");
	return tess_tool_check_tile(a->tile, a->memory);
}

#define AT(member) TESS_TOOL_AT(struct explain_options, member)

static const struct tess_tool_option inference_options[] = {
	{ "tokens", "N", "rows of the step (default: 1, as in decoding one sequence)", AT(tokens),
	  .lo = 1, .hi = INT32_MAX },
	{ 0 },
};

static const struct tess_tool_option training_options[] = {
	{ "train", NULL, "explain a training step with its gradients and optimizer", AT(train) },
	{ "batch", "N", "global batch: sequences of a step, of all ranks (default: 8)", AT(batch),
	  .lo = 1, .hi = 1 << 20 },
	{ "micro-batches", "N",
	  "parts of the batch; the tables are of one part (default: 1, or those of FILE.csv)",
	  AT(micro), .lo = 1, .hi = 1 << 16 },
	{ "pipeline-schedule", "S",
	  "print the timeline of a step along pp: gpipe, 1f1b, interleaved:V, looped-bfs:V, zb-h1, "
	  "zb-v (V: stages a rank), or FILE.csv that torch wrote (default: 1f1b)",
	  AT(schedule) },
	{ "timeline-times", "FILE",
	  "simulate the durations in a JSON file (default: F, I and W take 1, B 2)", AT(times) },
	{ "sequence", "N", "ids of a sequence (default: 1024, or the checkpoint's maximum length)",
	  AT(sequence), .lo = 1, .hi = 1 << 20 },
	{ "optimizer", NULL, "optimizer; sgd has no momentum here (default: adamw)", AT(optimizer),
	  .lo = TESS_ADAMW, .hi = TESS_SGD, .get_name = name_optimizer },
	{ "clip", "X",
	  "limit of the gradient norm, as in tessera train; 0: off, and gradients in files are "
	  "not read for it",
	  AT(clip), .hi = 1e30 },
	{ "recompute", "PATTERN",
	  "recompute values of these modules for the backward, to save memory; repeatable",
	  AT(recompute) },
	{ "offload-optimizer", "DIR|disk|host",
	  "keep the optimizer's state in files in DIR; disk: in a folder of another host",
	  AT(offload_optimizer) },
	{ "offload-weights", "DIR|disk|host|files",
	  "keep weights between their uses, and gradients, in files in DIR; files, without "
	  "--train: those of the checkpoint, as with tessera generate --offload-weights",
	  AT(offload_weights) },
	{ "tile", "SIZE|auto",
	  "maximum bytes of a weight that is gathered at once; auto: the largest with which a rank "
	  "fits in --memory",
	  .at = offsetof(struct explain_options, tile), .parse = tess_tool_parse_tile },
	{ 0 },
};

static const struct tess_tool_option fit_options[] = {
	{ "memory", "SIZE",
	  "memory of a rank, as in 80G (80 * 10^9) or 24GiB: print whether it is enough, and for "
	  "how many sequences",
	  .at = offsetof(struct explain_options, memory), .parse = tess_tool_parse_memory },
	{ 0 },
};

static const struct tess_tool_option output_options[] = {
	{ "program", NULL, "print computations and moves, with placements; +: in the step before",
	  AT(program) },
	{ "storage", NULL, "print how ranks store each weight in memory, and why", AT(storage) },
	{ "json", NULL, "print one JSON object", AT(json) },
	{ "svg", "FILE", "also draw what each rank holds and what moves", AT(svg) },
	{ "timeline", "FILE", "also draw the timeline of --pipeline-schedule as SVG",
	  AT(timeline) },
	{ 0 },
};

/* TESS_PENDING: --help was printed. */
static tess_status parse_explain_options(int argc, char **argv, struct explain_options *a)
{
	const struct tess_tool_section sections[] = {
		{ "Ranks", tess_tool_mesh_options, .to = &a->session },
		{ "Plan", tess_tool_plan_options, .to = &a->session },
		{ "Step of inference", inference_options, .to = a },
		{ "", tess_tool_memory_options, .to = &a->session },
		{ "Step of training", training_options, .to = a },
		{ "", tess_tool_math_options, .to = &a->session },
		{ "Memory", fit_options, .to = a },
		{ "Output", output_options, .to = a },
		{ 0 },
	};
	tess_status st =
		tess_tool_parse_model(argc, argv, &tess_tool_explain, sections, &a->session.model);

	if (!st)
		st = check_kind_of_step(a);
	if (!st)
		st = tess_tool_take_strategy(&a->session);
	if (!st && a->train && a->session.strategy) {
		a->schedule = a->schedule ? a->schedule : a->session.strategy->pipeline_schedule;
		a->micro = a->micro ? a->micro : (int32_t)a->session.strategy->micro_batches;
	}
	return st;
}

static tess_status format_explanation(const struct tess_explanation *e,
                                      const struct explain_options *a, int32_t form, char **text)
{
	return tess_explanation_format(e, form, a->session.model, a->session.positions, text);
}

/* Writes a picture; option: its name, for messages. */
static tess_status write_picture(const char *option, const char *path, const char *text)
{
	FILE *f = fopen(path, "w");
	bool written = f && fputs(text, f) >= 0 && !fflush(f);
	tess_status st =
		written ? TESS_OK : tess_fail(TESS_EIO, "%s %s: %s", option, path, strerror(errno));

	if (f)
		fclose(f);
	return st;
}

static tess_status draw_explanation(const struct tess_explanation *e,
                                    const struct explain_options *a)
{
	char *text = NULL;
	tess_status st = format_explanation(e, a, TESS_EXPLAIN_SVG, &text);

	if (!st)
		st = write_picture("--svg", a->svg, text);
	free(text);
	return st;
}

static int32_t get_batch(const struct explain_options *a)
{
	return a->batch ? a->batch : 8;
}

static struct tess_trainer_options make_explained_options(const struct explain_options *a,
                                                          int32_t nmicro)
{
	return (struct tess_trainer_options){ .size = sizeof(struct tess_trainer_options),
		                              .positions = a->session.positions,
		                              .plan = a->session.plan,
		                              .overrides = a->session.overrides.text,
		                              .ignore_unexpected = a->session.ignore_unexpected,
		                              .optimizer = a->optimizer,
		                              .clip = a->clip,
		                              .pipeline_schedule = a->schedule,
		                              .recompute =
		                                      a->recompute.n ? a->recompute.text : NULL,
		                              .micro_batches = nmicro,
		                              .offload_optimizer = a->offload_optimizer,
		                              .offload_weights = a->offload_weights,
		                              .tile = a->tile,
		                              .math = a->session.math };
}

/* Explains a step, with --tile auto after a->tile is chosen for it. */
static tess_status explain_training(struct explain_options *a, int32_t nmicro,
                                    struct tess_explanation **out)
{
	struct tess_tool_tiling t = { .model = a->session.model,
		                      .mesh = a->session.mesh ? a->session.mesh : "tp",
		                      .ranks = a->session.ranks,
		                      .sequences = get_batch(a) / nmicro,
		                      .length = a->sequence,
		                      .options = make_explained_options(a, nmicro),
		                      .memory = a->memory };
	tess_status st = a->tile == TESS_TOOL_TILE_AUTO ? tess_tool_find_tile(&t) : TESS_OK;

	a->tile = t.options.tile;
	return st ? st
	          : tess_explain_training(t.model, t.mesh, t.ranks, t.sequences, t.length,
	                                  &t.options, out);
}

static tess_status explain_inference(const struct explain_options *a, struct tess_explanation **out)
{
	struct tess_session_options options = { .size = sizeof options,
		                                .positions = a->session.positions,
		                                .plan = a->session.plan,
		                                .overrides = a->session.overrides.text,
		                                .ignore_unexpected = a->session.ignore_unexpected,
		                                .kv_dtype = a->session.kv_dtype,
		                                .weights = a->session.weights,
		                                .offload_weights = a->offload_weights != NULL };

	return tess_explain(a->session.model, a->session.mesh ? a->session.mesh : "tp",
	                    a->session.ranks, a->tokens ? a->tokens : 1, &options, out);
}

static tess_status print_explanation(const struct tess_explanation *e,
                                     const struct explain_options *a)
{
	int32_t form = a->json      ? a->program ? TESS_EXPLAIN_JSON_PROGRAM : TESS_EXPLAIN_JSON
	               : a->storage ? TESS_EXPLAIN_STORAGE
	               : a->program ? TESS_EXPLAIN_PROGRAM
	                            : TESS_EXPLAIN_TEXT;
	char *text = NULL;
	tess_status st = format_explanation(e, a, form, &text);

	if (!st)
		fputs(text, stdout);
	free(text);
	return st;
}

/* ---- the step of a pipeline ------------------------------------------------------------------ */

/* Opens the schedule on the mesh, if that has stages. */
static tess_status open_pipeline(const struct explain_options *a, struct tess_pipeline **out)
{
	const char *name = a->schedule ? a->schedule : "1f1b";
	int32_t nranks = 1;
	tess_status st = tess_tool_count_pipeline_ranks(a->session.mesh, a->session.ranks, &nranks);

	if (nranks > 1)
		return tess_pipeline_open(name, nranks, a->micro, out);
	if (!st && (a->schedule || a->timeline))
		st = tess_fail(TESS_EINVAL,
		               "--pipeline-schedule %s: the mesh has no stages; use --mesh pp=N",
		               name);
	return st;
}

/* Opens the schedule, and explains one of its micro-batches. */
static tess_status explain_micro_batch(struct explain_options *a, struct tess_explanation **e,
                                       struct tess_pipeline **out)
{
	int32_t nmicro;
	tess_status st = has_pipeline(a) ? open_pipeline(a, out) : TESS_OK;

	if (st)
		return st;
	nmicro = *out ? (*out)->nmicro : a->micro ? a->micro : 1;
	st = tess_tool_check_batch(&a->session, get_batch(a), nmicro);
	return st ? st : explain_training(a, nmicro, e);
}

static tess_status simulate_pipeline(const struct explain_options *a, const struct tess_pipeline *p,
                                     struct tess_timeline **out)
{
	struct tess_pipeline_times *times = NULL;
	tess_status st = a->times ? tess_pipeline_read_times(p, a->times, &times) : TESS_OK;

	if (!st)
		st = tess_pipeline_simulate(p, times, out);
	free(times);
	return st;
}

static tess_status draw_pipeline(const struct tess_timeline *t, const struct explain_options *a)
{
	char *text = NULL;
	tess_status st = tess_timeline_format(t, TESS_TIMELINE_SVG, &text);

	if (!st)
		st = write_picture("--timeline", a->timeline, text);
	free(text);
	return st;
}

static tess_status print_pipeline(const struct tess_timeline *t)
{
	char *text = NULL;
	tess_status st = tess_timeline_format(t, TESS_TIMELINE_TEXT, &text);

	if (!st)
		printf("\n%s", text);
	free(text);
	return st;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static tess_status check_positions_of_cache(const struct tess_explanation *e,
                                            const struct explain_options *a, bool *usage)
{
	*usage = e->positions && a->session.positions > e->positions;
	return *usage ? tess_fail(
				TESS_EINVAL,
				"--positions %lld: must be at most %lld, the checkpoint's maximum "
				"length",
				(long long)a->session.positions, (long long)e->positions)
	              : TESS_OK;
}

static void print_tile_limit(const struct tess_explanation *e, uint64_t tile)
{
	printf("\ntile: %.3g MiB of gathered weights at once", (double)tile / (1 << 20));
	if (e->widest)
		printf("; %s has no parts that are so small: %.3g MiB", e->widest,
		       (double)e->widest_bytes / (1 << 20));
	printf("\n");
}

static tess_status explain_plan(struct explain_options *a, bool *usage)
{
	struct tess_explanation *e = NULL;
	struct tess_pipeline *p = NULL;
	struct tess_timeline *t = NULL;
	bool text = !a->json && !a->program && !a->storage;
	const struct tess_tool_output outputs[] = { { "--svg", a->svg },
		                                    { "--timeline", a->timeline },
		                                    { 0 } };
	const char *const schedule[] = { a->schedule, NULL }, *const times[] = { a->times, NULL };
	tess_status st = tess_tool_check_outputs(
		outputs, &(struct tess_tool_inputs){ .model = a->session.model,
	                                             .plan = a->session.plan,
	                                             .files = { schedule, times } });

	if (!st)
		st = a->train ? explain_micro_batch(a, &e, &p) : explain_inference(a, &e);
	if (!st)
		st = check_positions_of_cache(e, a, usage);
	if (!st && p && (text || a->timeline))
		st = simulate_pipeline(a, p, &t);
	if (!st && a->memory)
		st = tess_explanation_fit(e, a->memory, a->session.positions);
	if (!st && a->svg)
		st = draw_explanation(e, a);
	if (!st && t && a->timeline)
		st = draw_pipeline(t, a);
	if (!st)
		st = print_explanation(e, a);
	if (!st && text && a->tile)
		print_tile_limit(e, a->tile);
	if (!st && t && text)
		st = print_pipeline(t);
	tess_timeline_free(t);
	tess_pipeline_close(p);
	tess_explanation_free(e);
	return st;
}

static int execute_explain(int argc, char **argv)
{
	struct explain_options a = { .clip = 1 };
	tess_status st = parse_explain_options(argc, argv, &a);
	bool usage = st < 0;

	if (st == TESS_PENDING)
		return 0;
	if (!st)
		st = explain_plan(&a, &usage);
	if (st)
		fprintf(stderr, "tessera explain: %s\n", tess_error());
	return st ? usage ? 2 : 1 : 0;
}

const struct tess_tool_command tess_tool_explain = {
	"explain",
	"show what each rank of a plan would hold and send, without starting ranks",
	"MODEL [options]",
	"Records the program of a checkpoint under a plan, checks it, and prints what each of N\n"
	"ranks would hold and send. Starts no rank and reads no weight: config.json is enough.\n"
	"Lines that are the same in each layer are printed once, with * and with their number.\n",
	"  tessera explain data -n 8\n"
	"  tessera explain data -n 3 --plan tp+sp --tokens 128\n"
	"  tessera explain data --mesh dp=2,tp=4 --svg mesh.svg\n"
	"  tessera explain data -n 2 --memory 80G --positions 512\n"
	"  tessera explain data --train --mesh dp=2,tp=2 --plan-override 'dp:**=zero3'\n"
	"  tessera explain data --train --offload-optimizer /tmp --offload-weights /tmp\n"
	"  tessera explain data --train --mesh pp=4 --micro-batches 8 --pipeline-schedule zb-h1\n"
	"  tessera explain data -n 2 --program --plan-override 'model.layers.*.mlp=isolated'\n",
	execute_explain,
};
