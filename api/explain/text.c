/* text.c - the tables of an explanation. */
#include "api/explain/format.h"

#include "core/base/status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>

/* Replaces layer numbers, "layers.3.mlp" -> "layers.*.mlp", so that lines of layers are equal. */
static const char *make_pattern(const char *name, char out[EXPLAIN_NAME])
{
	size_t n = 0;
	bool start = true;

	for (const char *c = name; *c && n < EXPLAIN_NAME - 2; start = *c == '.', c++) {
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
static tess_status print_text_lines(struct text_lines *l, FILE *f)
{
	tess_status st = l->failed ? tess_fail(TESS_ENOMEM, "out of memory") : TESS_OK;

	for (size_t i = 0; i < l->n; i++) {
		fprintf(f, "%s %6lld\n", l->line[i].text, (long long)l->line[i].times);
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

const char *explain_format_places(const struct tess_explanation *e, const struct tess_place *place,
                                  char out[EXPLAIN_NAME])
{
	char one[TESS_PLACE_SIZE];
	size_t n = 0;

	snprintf(out, EXPLAIN_NAME, "%s",
	         e->ndims > 1 ? "Replicate" : tess_place_format(place[0], one));
	for (int32_t i = 0; i < e->ndims && e->ndims > 1 && n < EXPLAIN_NAME; i++)
		if (place[i].kind != TESS_REPLICATE)
			n += (size_t)snprintf(out + n, EXPLAIN_NAME - n, "%s%s:%s", n ? " " : "",
			                      e->dim_names[i], tess_place_format(place[i], one));
	return out;
}

const char *explain_format_styles(const struct tess_explanation *e, const char *const *style,
                                  char out[EXPLAIN_NAME])
{
	size_t n = 0;

	snprintf(out, EXPLAIN_NAME, "%s", e->ndims > 1 ? "replicate" : style[0]);
	for (int32_t i = 0; i < e->ndims && e->ndims > 1 && n < EXPLAIN_NAME; i++)
		if (strcmp(style[i], "replicate") != 0)
			n += (size_t)snprintf(out + n, EXPLAIN_NAME - n, "%s%s:%s", n ? " " : "",
			                      e->dim_names[i], style[i]);
	return out;
}

static tess_status print_parameters(const struct tess_explanation *e, FILE *f)
{
	char name[EXPLAIN_NAME], shape[64], place[EXPLAIN_NAME], style[EXPLAIN_NAME], text[768];
	int width = e->ndims > 1 ? 24 : 12;
	struct text_lines l = { 0 };

	fprintf(f, "%-46s %-24s %-*s %-16s %12s %6s\n", "parameter", "style", width, "placement",
	        "shard of a rank", "bytes of it", "times");
	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *p = e->parameters[i];
		uint64_t max = format_shard_shape(e, i, shape, sizeof shape);

		snprintf(text, sizeof text, "%-46s %-24s %-*s %s %-*s %12llu",
		         p->tied == 2 ? "  (copy for a tied head)"
		         : p->tied    ? "  (read again by a tied head)"
		                      : make_pattern(p->name, name),
		         explain_format_styles(e, p->styles, style), width,
		         explain_format_places(e, p->places, place), tess_dtype_name(p->dtype),
		         15 - (int)strlen(tess_dtype_name(p->dtype)), shape,
		         (unsigned long long)max);
		add_text_line(&l, text);
	}
	return print_text_lines(&l, f);
}

static tess_status print_collectives(const struct tess_explanation *e, FILE *f)
{
	char name[EXPLAIN_NAME], a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE], text[512];
	int width = e->ndims > 1 ? 16 : 0; /* width of the column of mesh dimensions */
	struct text_lines l = { 0 };
	bool sums = false;
	tess_status st;

	fprintf(f, "\n%-46s %-15s %-*s%-24s %14s %14s %6s\n", "module", "collective", width,
	        width ? "along" : "", "from -> to", "bytes of value", "bytes a rank", "times");
	fprintf(f, "%-46s %-15s %-*s%-24s %14s %14s\n", "", "", width, "", "", "",
	        "sends, at most");
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
		fprintf(f, "(nothing moves)\n");
	st = print_text_lines(&l, f);
	if (e->logits_dim >= 0)
		fprintf(f,
		        "(logits stay cut by vocabulary along %s: for a greedy id a rank sends "
		        "%llu bytes; for a full row,\nor one sampled without a small top-k, "
		        "at most %llu)\n",
		        e->dim_names[e->logits_dim], (unsigned long long)e->greedy_bytes,
		        (unsigned long long)e->row_bytes);
	if (sums)
		fprintf(f, "(sums keep their order: for the all_reduce or reduce_scatter of a "
		           "Partial, ranks may exchange its\nnodes by all_gather or all_to_all, "
		           "which is then the call that a failure names)\n");
	return st;
}

static void print_memory(const struct tess_explanation *e, int64_t positions, FILE *f)
{
	fprintf(f,
	        "\nbytes that a rank holds (KV cache for %lld positions%s%s, step of %lld "
	        "token%s)\n\n%-8s %16s %16s %16s\n",
	        (long long)positions, e->kv_dtype ? " in " : "",
	        e->kv_dtype ? tess_dtype_name(e->kv_dtype) : "", (long long)e->tokens,
	        e->tokens == 1 ? "" : "s", "rank", "weights", "KV cache", "step");
	for (int32_t k = 0; k < e->nranks; k++) {
		const struct tess_explained_rank *r = e->ranks[k];

		fprintf(f, "%-8d %16llu %16llu %16llu\n", (int)k, (unsigned long long)r->weights,
		        (unsigned long long)r->cache * (unsigned long long)positions,
		        (unsigned long long)r->step);
	}
}

static void print_plan(const char *name, const struct tess_explained_plan *p, FILE *f)
{
	fprintf(f, "%-8.8s %22llu %16llu\n", name, (unsigned long long)p->sent,
	        (unsigned long long)p->weights);
}

/* Prints the totals of the plan and of the plan of Transformers. */
static void print_plans(const struct tess_explanation *e, FILE *f)
{
	fprintf(f, "\n%-8s %22s %16s\n%-8s %22s %16s\n", "plan", "bytes a rank sends", "weights",
	        "", "in a step, at most", "of a rank");
	print_plan(e->plan, &e->total, f);
	if (e->hf.weights && strcmp(e->plan, "hf") != 0)
		print_plan("hf", &e->hf, f);
}

void explain_print_program(const struct tess_explanation *e, FILE *f)
{
	char place[EXPLAIN_NAME];

	for (int32_t i = 0; i < e->nrecords; i++) {
		const struct tess_explained_record *rec = e->records[i];

		fprintf(f, "%4d %s%-*s %-14s %-44s", (int)i, rec->fused < 0 ? "" : "+",
		        rec->fused < 0 ? 10 : 9, rec->kind, rec->move ? rec->move : "",
		        rec->module);
		for (int32_t k = 0; rec->in[k]; k++)
			fprintf(f, " v%d:%s", (int)rec->in[k]->id,
			        explain_format_places(e, rec->in[k]->places, place));
		for (int32_t k = 0; rec->parameters[k]; k++)
			fprintf(f, " W:%s",
			        explain_format_places(e, rec->parameters[k]->places, place));
		fprintf(f, " ->");
		for (int32_t k = 0; rec->out[k]; k++)
			fprintf(f, " v%d:%s", (int)rec->out[k]->id,
			        explain_format_places(e, rec->out[k]->places, place));
		fprintf(f, "\n");
	}
}

tess_status explain_print_storage(const struct tess_explanation *e, FILE *f)
{
	struct tess_weight_storage *list = calloc((size_t)e->nparameters + 1, sizeof *list);
	tess_status st = list ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory"), printed;
	struct text_lines l = { 0 };
	char name[EXPLAIN_NAME], text[512];

	fprintf(f, "%-46s %-20s %-5s %12s %12s  %-36s %6s\n", "parameter", "stored as", "dtype",
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
	printed = print_text_lines(&l, f);
	free(list);
	return st ? st : printed;
}

/* Prints the mesh of several dimensions, as in --mesh: ", mesh dp=2,tp=4". */
static void print_mesh(const struct tess_explanation *e, FILE *f)
{
	for (int32_t i = 0; i < e->ndims && e->ndims > 1; i++)
		fprintf(f, "%s%s=%d", i ? "," : ", mesh ", e->dim_names[i], (int)e->dim_sizes[i]);
}

tess_status explain_print_text(const struct tess_explanation *e, const char *dir, int64_t positions,
                               FILE *f)
{
	tess_status st;

	fprintf(f, "%s, model %s, plan %s, %d rank%s", dir, e->model, e->plan, (int)e->nranks,
	        e->nranks > 1 ? "s" : "");
	print_mesh(e, f);
	fprintf(f, "\n");
	if (e->from_config)
		fprintf(f,
		        "(the files of %d parameters are absent: shapes are those of the "
		        "model, dtypes that of config.json)\n",
		        (int)e->from_config);
	fprintf(f, "\n");
	st = print_parameters(e, f);
	if (!st)
		st = print_collectives(e, f);
	if (e->sequences) {
		explain_print_training_memory(e, f);
		explain_print_traffic(e, f);
		explain_print_training_plans(e, f);
	} else {
		print_memory(e, positions, f);
		print_plans(e, f);
	}
	return st;
}
