/* explain.c - `tessera explain`: prints what each rank of a plan would hold and send. */
#include "explain.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/train.h>

enum { NAME = EXPLAIN_NAME };

struct explain_options {
	struct tess_tool_session session;
	const char *svg;
	struct tess_tool_list recompute;
	int32_t tokens, batch, sequence, optimizer;
	bool program, storage, json, train;
};

/* ---- text ------------------------------------------------------------------------------------ */

/* Replaces layer numbers, "layers.3.mlp" -> "layers.*.mlp", so that lines of layers are equal. */
static const char *make_pattern(const char *name, char out[NAME])
{
	size_t n = 0;
	bool start = true;

	for (const char *c = name; *c && n < NAME - 2; start = *c == '.', c++) {
		if (start && *c >= '0' && *c <= '9') {
			out[n++] = '*';
			c += strspn(c, "0123456789") - 1;
		} else {
			out[n++] = *c;
		}
	}
	out[n] = 0;
	return out;
}

struct text_line {
	char *text;
	int64_t times; /* number of times it was added */
};

struct text_lines { /* without duplicates */
	struct text_line *line;
	size_t n;
	bool failed; /* out of memory: lines are missing */
};

static void add_text_line(struct text_lines *l, const char *text)
{
	size_t i = 0;

	while (i < l->n && strcmp(l->line[i].text, text))
		i++;
	if (i == l->n) {
		struct text_line *more = realloc(l->line, (l->n + 1) * sizeof *more);

		if (more)
			l->line = more;
		if (!more || !(more[i].text = strdup(text))) {
			l->failed = true;
			return;
		}
		more[i].times = 0;
		l->n++;
	}
	l->line[i].times++;
}

/* Prints and frees the lines. TESS_ENOMEM: not all of them could be added. */
static tess_status print_lines(struct text_lines *l)
{
	tess_status st = l->failed ? tess_fail(TESS_ENOMEM, "out of memory") : TESS_OK;

	for (size_t i = 0; i < l->n; i++) {
		printf("%s %6lld\n", l->line[i].text, (long long)l->line[i].times);
		free(l->line[i].text);
	}
	free(l->line);
	return st;
}

/* Formats "344x64", or "86..87x64" if shards differ; returns the bytes of the largest shard. */
static uint64_t format_shard_shape(const struct tess_explanation *e, int32_t i, char *out,
                                   size_t size)
{
	int64_t shape[TESS_DIMS], lo[TESS_DIMS], hi[TESS_DIMS] = { 0 };
	uint64_t max = 0;
	size_t n = 0;

	for (int32_t r = 0; r < e->nranks; r++) {
		uint64_t bytes = tess_explanation_shard(e, i, r, shape);

		max = bytes > max ? bytes : max;
		for (int32_t a = 0; a < e->parameters[i]->ndim; a++) {
			lo[a] = r && lo[a] < shape[a] ? lo[a] : shape[a];
			hi[a] = hi[a] > shape[a] ? hi[a] : shape[a];
		}
	}
	*out = 0;
	for (int32_t a = 0; a < e->parameters[i]->ndim && n < size; a++)
		n += (size_t)snprintf(out + n, size - n, lo[a] == hi[a] ? "%s%lld" : "%s%lld..%lld",
		                      a ? "x" : "", (long long)lo[a], (long long)hi[a]);
	return max;
}

/* Formats "Shard(0)", or on several mesh dimensions "tp:Shard(0) xp:Partial" or "Replicate". */
static const char *format_places(const struct tess_explanation *e, const struct tess_place *place,
                                 char out[NAME])
{
	char one[TESS_PLACE_SIZE];
	size_t n = 0;

	snprintf(out, NAME, "%s", e->ndims > 1 ? "Replicate" : tess_place_format(place[0], one));
	for (int32_t i = 0; i < e->ndims && e->ndims > 1 && n < NAME; i++)
		if (place[i].kind != TESS_REPLICATE)
			n += (size_t)snprintf(out + n, NAME - n, "%s%s:%s", n ? " " : "",
			                      e->dim_names[i], tess_place_format(place[i], one));
	return out;
}

const char *explain_format_styles(const struct tess_explanation *e, const char *const *style,
                                  char out[NAME])
{
	size_t n = 0;

	snprintf(out, NAME, "%s", e->ndims > 1 ? "replicate" : style[0]);
	for (int32_t i = 0; i < e->ndims && e->ndims > 1 && n < NAME; i++)
		if (strcmp(style[i], "replicate") != 0)
			n += (size_t)snprintf(out + n, NAME - n, "%s%s:%s", n ? " " : "",
			                      e->dim_names[i], style[i]);
	return out;
}

static tess_status print_parameters(const struct tess_explanation *e)
{
	char name[NAME], shape[64], place[NAME], style[NAME], text[768];
	int width = e->ndims > 1 ? 24 : 12;
	struct text_lines l = { 0 };

	printf("%-46s %-24s %-*s %-16s %12s %6s\n", "parameter", "style", width, "placement",
	       "shard of a rank", "bytes of it", "times");
	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *p = e->parameters[i];
		uint64_t max = format_shard_shape(e, i, shape, sizeof shape);

		snprintf(text, sizeof text, "%-46s %-24s %-*s %s %-*s %12llu",
		         p->tied ? "  (read again by a tied head)" : make_pattern(p->name, name),
		         explain_format_styles(e, p->styles, style), width,
		         format_places(e, p->places, place), tess_dtype_name(p->dtype),
		         15 - (int)strlen(tess_dtype_name(p->dtype)), shape,
		         (unsigned long long)max);
		add_text_line(&l, text);
	}
	return print_lines(&l);
}

static tess_status print_collectives(const struct tess_explanation *e)
{
	char name[NAME], a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE], text[512];
	int width = e->ndims > 1 ? 16 : 0; /* width of the column of mesh dimensions */
	struct text_lines l = { 0 };
	bool sums = false;
	tess_status st;

	printf("\n%-46s %-15s %-*s%-24s %14s %14s %6s\n", "module", "collective", width,
	       width ? "along" : "", "from -> to", "bytes of value", "bytes a rank", "times");
	printf("%-46s %-15s %-*s%-24s %14s %14s\n", "", "", width, "", "", "", "sends, at most");
	for (int32_t i = 0; i < e->ncollectives; i++) {
		const struct tess_explained_collective *c = e->collectives[i];
		char how[2 * TESS_PLACE_SIZE + 8];

		snprintf(how, sizeof how, "%s -> %s", tess_place_format(c->from, a),
		         tess_place_format(c->to, b));
		sums = sums || c->from.kind == TESS_PARTIAL;
		snprintf(text, sizeof text, "%-46s %-15s %-*s%-24s %14llu %14llu",
		         make_pattern(c->module, name), tess_kind_name(c->kind), width,
		         width ? e->dim_names[c->dim] : "", how, (unsigned long long)c->bytes,
		         (unsigned long long)c->sent);
		add_text_line(&l, text);
	}
	if (!e->ncollectives)
		printf("(nothing moves)\n");
	st = print_lines(&l);
	if (e->logits_dim >= 0)
		printf("(logits stay cut by vocabulary along %s: for a greedy id a rank sends %llu "
		       "bytes; for a full row,\nor one sampled without a small top-k, at most "
		       "%llu)\n",
		       e->dim_names[e->logits_dim], (unsigned long long)e->greedy_bytes,
		       (unsigned long long)e->row_bytes);
	if (sums)
		printf("(sums keep their order: for the all_reduce or reduce_scatter of a Partial, "
		       "ranks may exchange its\nnodes by all_gather or all_to_all, which is then "
		       "the call that a failure names)\n");
	return st;
}

static void print_memory(const struct tess_explanation *e, int64_t positions)
{
	printf("\nbytes that a rank holds (KV cache for %lld positions%s%s, step of %lld "
	       "token%s)\n\n%-8s %16s %16s %16s\n",
	       (long long)positions, e->kv_dtype ? " in " : "",
	       e->kv_dtype ? tess_dtype_name(e->kv_dtype) : "", (long long)e->tokens,
	       e->tokens == 1 ? "" : "s", "rank", "weights", "KV cache", "step");
	for (int32_t k = 0; k < e->nranks; k++) {
		const struct tess_explained_rank *r = e->ranks[k];

		printf("%-8d %16llu %16llu %16llu\n", (int)k, (unsigned long long)r->weights,
		       (unsigned long long)r->cache * (unsigned long long)positions,
		       (unsigned long long)r->step);
	}
}

static void print_plan(const char *name, const struct tess_explained_plan *p)
{
	printf("%-8.8s %22llu %16llu\n", name, (unsigned long long)p->sent,
	       (unsigned long long)p->weights);
}

/* Prints the totals of the plan and of the plan of Transformers. */
static void print_plans(const struct tess_explanation *e)
{
	printf("\n%-8s %22s %16s\n%-8s %22s %16s\n", "plan", "bytes a rank sends", "weights", "",
	       "in a step, at most", "of a rank");
	print_plan(e->plan, &e->total);
	if (e->hf.weights && strcmp(e->plan, "hf") != 0)
		print_plan("hf", &e->hf);
}

static void print_program(const struct tess_explanation *e)
{
	char place[NAME];

	for (int32_t i = 0; i < e->nrecords; i++) {
		const struct tess_explained_record *rec = e->records[i];

		printf("%4d %s%-*s %-14s %-44s", (int)i, rec->fused < 0 ? "" : "+",
		       rec->fused < 0 ? 10 : 9, rec->kind, rec->move ? rec->move : "", rec->module);
		for (int32_t k = 0; rec->in[k]; k++)
			printf(" v%d:%s", (int)rec->in[k]->id,
			       format_places(e, rec->in[k]->places, place));
		for (int32_t k = 0; rec->parameters[k]; k++)
			printf(" W:%s", format_places(e, rec->parameters[k]->places, place));
		printf(" ->");
		for (int32_t k = 0; rec->out[k]; k++)
			printf(" v%d:%s", (int)rec->out[k]->id,
			       format_places(e, rec->out[k]->places, place));
		printf("\n");
	}
}

/* Prints the lines that the weights of all ranks have, without those of other stages. */
static tess_status print_storage(const struct tess_explanation *e)
{
	struct tess_weight_storage *list = calloc((size_t)e->nparameters + 1, sizeof *list);
	tess_status st = list ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory"), printed;
	struct text_lines l = { 0 };
	char name[NAME], text[512];

	printf("%-46s %-20s %-5s %12s %12s  %-36s %6s\n", "parameter", "stored as", "dtype",
	       "mapped", "allocated", "because", "times");
	for (int32_t r = 0; r < e->nranks && !st; r++) {
		st = tess_explanation_list_weights(e, r, list);
		for (int32_t i = 0; i < e->nparameters && !st; i++) {
			const struct tess_weight_storage *w = &list[i];

			if (!strcmp(w->kind, "elsewhere"))
				continue;
			snprintf(text, sizeof text, "%-46s %-20s %-5s %12llu %12llu  %-36s",
			         make_pattern(w->name, name), w->kind, tess_dtype_name(w->dtype),
			         (unsigned long long)w->mapped, (unsigned long long)w->bytes,
			         w->reason);
			add_text_line(&l, text);
		}
	}
	printed = print_lines(&l);
	free(list);
	return st ? st : printed;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *make_parameters_json(const struct tess_explanation *e)
{
	char place[NAME], style[NAME];
	int64_t shape[TESS_DIMS] = { 0 }, before[TESS_DIMS];
	json_t *all = json_array();

	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *p = e->parameters[i];
		json_t *ranks, *last = NULL;

		if (p->tied)
			continue;
		ranks = json_array();
		for (int32_t k = 0; k < e->nranks; k++) {
			uint64_t bytes = tess_explanation_shard(e, i, k, shape);
			json_t *sizes;

			if (last && !memcmp(shape, before, sizeof *shape * (size_t)p->ndim)) {
				json_array_append(ranks, last); /* equal to the previous rank */
				continue;
			}
			memcpy(before, shape, sizeof before);
			sizes = json_array();

			for (int32_t a = 0; a < p->ndim; a++)
				json_array_append_new(sizes, json_integer(shape[a]));
			last = json_pack("{s:o, s:I}", "shape", sizes, "bytes", (json_int_t)bytes);
			json_array_append_new(ranks, last);
		}
		json_array_append_new(
			all, json_pack("{s:s, s:s, s:s, s:o*, s:s, s:o}", "name", p->name, "style",
		                       explain_format_styles(e, p->styles, style), "dtype",
		                       tess_dtype_name(p->dtype), "from_config",
		                       p->from_config ? json_true() : NULL, "placement",
		                       format_places(e, p->places, place), "ranks", ranks));
	}
	return all;
}

static json_t *make_collectives_json(const struct tess_explanation *e)
{
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];
	json_t *all = json_array();

	for (int32_t i = 0; i < e->ncollectives; i++) {
		const struct tess_explained_collective *c = e->collectives[i];

		json_array_append_new(
			all,
			json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "record",
		                  (int)c->record, "module", c->module, "kind",
		                  tess_kind_name(c->kind), "along", e->dim_names[c->dim], "from",
		                  tess_place_format(c->from, a), "to", tess_place_format(c->to, b),
		                  "bytes", (json_int_t)c->bytes, "sent", (json_int_t)c->sent));
	}
	return all;
}

static json_t *make_values_json(const struct tess_explanation *e,
                                const struct tess_explained_value *const *v)
{
	char place[NAME];
	json_t *all = json_array();

	for (; *v; v++)
		json_array_append_new(all,
		                      json_pack("{s:i, s:s}", "value", (int)(*v)->id, "placement",
		                                format_places(e, (*v)->places, place)));
	return all;
}

static json_t *make_program_json(const struct tess_explanation *e)
{
	json_t *all = json_array();

	for (int32_t i = 0; i < e->nrecords; i++) {
		const struct tess_explained_record *rec = e->records[i];
		json_t *parameters = json_array();
		json_t *fused = rec->fused < 0 ? NULL : json_integer(rec->fused);

		for (int32_t k = 0; rec->parameters[k]; k++)
			json_array_append_new(parameters, json_string(rec->parameters[k]->name));
		json_array_append_new(
			all,
			json_pack("{s:i, s:s, s:s, s:o, s:o, s:o, s:o*}", "record", (int)i,
		                  "module", rec->module, "kind", rec->move ? rec->move : rec->kind,
		                  "in", make_values_json(e, rec->in), "parameters", parameters,
		                  "out", make_values_json(e, rec->out), "fused", fused));
	}
	return all;
}

static json_t *make_memory_json(const struct tess_explanation *e, int64_t positions)
{
	json_t *memory = json_array();

	for (int32_t k = 0; k < e->nranks; k++)
		json_array_append_new(memory, json_pack("{s:I, s:I, s:I}", "weights",
		                                        (json_int_t)e->ranks[k]->weights, "cache",
		                                        (json_int_t)e->ranks[k]->cache * positions,
		                                        "step", (json_int_t)e->ranks[k]->step));
	return memory;
}

static void print_explain_json(const struct tess_explanation *e, const struct explain_options *a)
{
	json_t *mesh = json_array(), *o;

	for (int32_t i = 0; i < e->ndims; i++)
		json_array_append_new(mesh, json_pack("{s:s, s:i}", "name", e->dim_names[i], "size",
		                                      (int)e->dim_sizes[i]));
	o = json_pack("{s:s, s:s, s:i, s:o, s:I, s:I, s:o, s:o, s:o}", "model", e->model, "plan",
	              e->plan, "ranks", (int)e->nranks, "mesh", mesh, "tokens",
	              (json_int_t)e->tokens, "positions", (json_int_t)a->session.positions,
	              "parameters", make_parameters_json(e), "collectives",
	              make_collectives_json(e), "memory",
	              make_memory_json(e, a->session.positions));
	if (e->sequences)
		explain_add_training_json(e, o);
	else if (e->kv_dtype)
		json_object_set_new(o, "kv", json_string(tess_dtype_name(e->kv_dtype)));
	if (a->program)
		json_object_set_new(o, "program", make_program_json(e));
	if (e->logits_dim >= 0)
		json_object_set_new(o, "logits",
		                    json_pack("{s:s, s:I, s:I}", "cut_along",
		                              e->dim_names[e->logits_dim], "greedy",
		                              (json_int_t)e->greedy_bytes, "row",
		                              (json_int_t)e->row_bytes));
	json_object_set_new(o, "total", explain_make_plan_json(e, &e->total));
	if (e->hf.weights)
		json_object_set_new(o, "hf", explain_make_plan_json(e, &e->hf));
	json_dumpf(o, stdout, JSON_INDENT(1));
	printf("\n");
	json_decref(o);
}

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
		return tess_fail(TESS_EINVAL,
		                 "--weights q8 and bf12 are for inference: training changes "
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

static tess_status write_picture(const struct tess_explanation *e, const struct explain_options *a)
{
	FILE *f = fopen(a->svg, "w");
	tess_status st = f ? explain_draw(e, a->session.model, f) : TESS_OK;
	bool written = f && !fflush(f) && !ferror(f);

	if (!st && !written)
		st = tess_fail(TESS_EIO, "--svg %s: %s", a->svg, strerror(errno));
	if (f)
		fclose(f);
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
	tess_status st;

	printf("%s, model %s, plan %s, %d rank%s%s%s\n", a->session.model, e->model, e->plan,
	       (int)e->nranks, e->nranks > 1 ? "s" : "", e->ndims > 1 ? ", mesh " : "",
	       e->ndims > 1 ? a->session.mesh : "");
	if (e->from_config)
		printf("(the files of %d parameters are absent: shapes are those of the "
		       "model, dtypes that of config.json)\n",
		       (int)e->from_config);
	printf("\n");
	st = print_parameters(e);
	if (!st)
		st = print_collectives(e);
	if (e->sequences) {
		explain_print_training_memory(e);
		explain_print_traffic(e);
		explain_print_training_plans(e);
	} else {
		print_memory(e, a->session.positions);
		print_plans(e);
	}
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
	if (!a->session.positions)
		a->session.positions =
			e->positions && e->positions < 2048 ? (int32_t)e->positions : 2048;
	if (!st && a->svg)
		st = write_picture(e, a);
	if (!st && a->json)
		print_explain_json(e, a);
	else if (!st && a->storage)
		st = print_storage(e);
	else if (!st && a->program)
		print_program(e);
	else if (!st)
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
