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
	const char *svg;
	struct tess_tool_list recompute;
	int32_t tokens, batch, sequence, optimizer;
	bool program, storage, json, train;
};

/* ---- the command ----------------------------------------------------------------------------- */

static const char *name_optimizer(int32_t kind)
{
	return kind == TESS_ADAMW ? "adamw" : "sgd";
}

static tess_status check_kind_of_step(const struct explain_options *a)
{
	if (a->storage && (a->json || a->program))
		return tess_fail(TESS_EINVAL, "--storage prints text, and no program; leave out "
		                              "--json and --program");
	if (!a->train && (a->batch || a->sequence || a->optimizer || a->recompute.n))
		return tess_fail(TESS_EINVAL,
		                 "--batch, --sequence, --optimizer and --recompute are of a step "
		                 "of training; add --train");
	if (a->train && a->session.weights)
		return tess_fail(
			TESS_EINVAL,
			"--weights bf16, q8, bf12 and mxfp4 are for inference: training changes "
			"weights in their own dtype");
	if (a->train && (a->tokens || a->session.kv_dtype))
		return tess_fail(TESS_EINVAL,
		                 "--tokens and --kv are of a step of inference; with --train give "
		                 "--batch and --sequence");
	return TESS_OK;
}

#define AT(member) TESS_TOOL_AT(struct explain_options, member)

static const struct tess_tool_option inference_options[] = {
	{ "tokens", "N", "rows of the step (default: 1, as in decoding one sequence)", AT(tokens),
	  .lo = 1, .hi = 1 << 20 },
	{ 0 },
};

static const struct tess_tool_option training_options[] = {
	{ "train", NULL, "explain a training step with its gradients and optimizer", AT(train) },
	{ "batch", "N", "global batch: sequences of a step, of all ranks (default: 8)", AT(batch),
	  .lo = 1, .hi = 1 << 20 },
	{ "sequence", "N", "ids of a sequence (default: 1024, or the checkpoint's maximum length)",
	  AT(sequence), .lo = 1, .hi = 1 << 20 },
	{ "optimizer", NULL, "optimizer; sgd has no momentum here (default: adamw)", AT(optimizer),
	  .lo = TESS_ADAMW, .hi = TESS_SGD, .get_name = name_optimizer },
	{ "recompute", "PATTERN",
	  "recompute values of these modules for the backward, to save memory; repeatable",
	  AT(recompute) },
	{ 0 },
};

static const struct tess_tool_option output_options[] = {
	{ "program", NULL, "print computations and moves, with placements; +: in the step before",
	  AT(program) },
	{ "storage", NULL, "print how ranks store each weight in memory, and why", AT(storage) },
	{ "json", NULL, "print one JSON object", AT(json) },
	{ "svg", "FILE", "also draw what each rank holds and what moves", AT(svg) },
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
		{ "Output", output_options, .to = a },
		{ 0 },
	};
	tess_status st =
		tess_tool_parse_model(argc, argv, &tess_tool_explain, sections, &a->session.model);

	return st ? st : check_kind_of_step(a);
}

static tess_status format_explanation(const struct tess_explanation *e,
                                      const struct explain_options *a, int32_t form, char **text)
{
	return tess_explanation_format(e, form, a->session.model, a->session.positions, text);
}

static tess_status write_picture(const struct tess_explanation *e, const struct explain_options *a)
{
	FILE *f = fopen(a->svg, "w");
	char *text = NULL;
	tess_status st = f ? format_explanation(e, a, TESS_EXPLAIN_SVG, &text) : TESS_OK;
	bool written = f && (!text || fputs(text, f) >= 0) && !fflush(f);

	if (!st && !written)
		st = tess_fail(TESS_EIO, "--svg %s: %s", a->svg, strerror(errno));
	if (f)
		fclose(f);
	free(text);
	return st;
}

static tess_status explain_training(const struct explain_options *a, struct tess_explanation **out)
{
	struct tess_trainer_options options = { .size = sizeof options,
		                                .positions = a->session.positions,
		                                .plan = a->session.plan,
		                                .overrides = a->session.overrides.text,
		                                .ignore_unexpected = a->session.ignore_unexpected,
		                                .optimizer = a->optimizer,
		                                .recompute =
		                                        a->recompute.n ? a->recompute.text : NULL };

	return tess_explain_training(a->session.model, a->session.mesh ? a->session.mesh : "tp",
	                             a->session.ranks, a->batch ? a->batch : 8, a->sequence,
	                             &options, out);
}

static tess_status explain_inference(const struct explain_options *a, struct tess_explanation **out)
{
	struct tess_session_options options = { .size = sizeof options,
		                                .positions = a->session.positions,
		                                .plan = a->session.plan,
		                                .overrides = a->session.overrides.text,
		                                .ignore_unexpected = a->session.ignore_unexpected,
		                                .kv_dtype = a->session.kv_dtype,
		                                .weights = a->session.weights };

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

static tess_status explain_plan(struct explain_options *a, bool *usage)
{
	struct tess_explanation *e;
	const struct tess_tool_output outputs[] = { { "--svg", a->svg }, { 0 } };
	tess_status st = tess_tool_check_outputs(
		outputs,
		&(struct tess_tool_inputs){ .model = a->session.model, .plan = a->session.plan });

	if (!st)
		st = a->train ? explain_training(a, &e) : explain_inference(a, &e);
	if (st)
		return st;
	if (e->positions && a->session.positions > e->positions) {
		*usage = true;
		st = tess_fail(
			TESS_EINVAL,
			"--positions %lld: must be at most %lld, the checkpoint's maximum length",
			(long long)a->session.positions, (long long)e->positions);
	}
	if (!st && a->svg)
		st = write_picture(e, a);
	if (!st)
		st = print_explanation(e, a);
	tess_explanation_free(e);
	return st;
}

static int execute_explain(int argc, char **argv)
{
	struct explain_options a = { 0 };
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
	"  tessera explain data --train --mesh dp=2,tp=2 --plan-override 'dp:**=zero3'\n"
	"  tessera explain data -n 2 --program --plan-override 'model.layers.*.mlp=isolated'\n",
	execute_explain,
};
