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

/* Lists a rank of each kind of program: the others have shards of the same shapes. Returns n. */
static int32_t list_kinds(const struct tess_explanation *e, int32_t *ranks)
{
	int32_t n = 0;

	for (int32_t r = 0; r < e->nranks; r++) {
		int32_t i = 0;

		while (i < n && e->ranks[ranks[i]] != e->ranks[r])
			i++;
		if (i == n)
			ranks[n++] = r;
	}
	return n;
}

/*
 * Formats "344x64", or "86..87x64" if shards of these ranks differ; returns the bytes of the
 * largest shard. Ranks of other stages have none.
 */
static uint64_t format_shard_shape(const struct tess_explanation *e, int32_t i,
                                   const int32_t *ranks, int32_t nranks, char out[64])
{
	int64_t shape[TESS_DIMS], lo[TESS_DIMS] = { 0 }, hi[TESS_DIMS] = { 0 };
	uint64_t max = 0;
	bool found = false;
	size_t n = 0;

	for (int32_t k = 0; k < nranks; k++) {
		uint64_t bytes = tess_explanation_shard(e, i, ranks[k], shape);

		if (!explain_has_stage(e, e->parameters[i]->places, ranks[k]))
			continue;
		max = bytes > max ? bytes : max;
		for (int32_t a = 0; a < e->parameters[i]->ndim; a++) {
			lo[a] = found && lo[a] < shape[a] ? lo[a] : shape[a];
			hi[a] = hi[a] > shape[a] ? hi[a] : shape[a];
		}
		found = true;
	}
	*out = 0;
	for (int32_t a = 0; a < e->parameters[i]->ndim && n < 64; a++)
		n += (size_t)snprintf(out + n, 64 - n, lo[a] == hi[a] ? "%s%lld" : "%s%lld..%lld",
		                      a ? "x" : "", (long long)lo[a], (long long)hi[a]);
	return max;
}

/* stages: with the placements along pp. */
static const char *format_places(const struct tess_explanation *e, const struct tess_place *place,
                                 bool stages, char out[EXPLAIN_NAME])
{
	char one[TESS_PLACE_SIZE];
	size_t n = 0;

	snprintf(out, EXPLAIN_NAME, "%s",
	         e->ndims > 1 ? "Replicate" : tess_place_format(place[0], one));
	for (int32_t i = 0; i < e->ndims && e->ndims > 1 && n < EXPLAIN_NAME; i++)
		if (place[i].kind != TESS_REPLICATE && (stages || place[i].kind != TESS_STAGE))
			n += (size_t)snprintf(out + n, EXPLAIN_NAME - n, "%s%s:%s", n ? " " : "",
			                      e->dim_names[i], tess_place_format(place[i], one));
	return out;
}

const char *explain_format_places(const struct tess_explanation *e, const struct tess_place *place,
                                  char out[EXPLAIN_NAME])
{
	return format_places(e, place, true, out);
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
	char bytes[16];
	int width = e->ndims > 1 ? 24 : 12;
	int32_t *ranks = calloc((size_t)e->nranks, sizeof *ranks), nranks;
	struct text_lines l = { 0 };

	if (!ranks)
		return tess_fail(TESS_ENOMEM, "out of memory");
	nranks = list_kinds(e, ranks);
	fprintf(f, "%-46s %-24s %-*s %-16s %10s %6s\n", "parameter", "style", width, "placement",
	        "shard of a rank", "bytes", "times");
	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *p = e->parameters[i];
		uint64_t max = format_shard_shape(e, i, ranks, nranks, shape);

		snprintf(text, sizeof text, "%-46s %-24s %-*s %s %-*s %10s",
		         p->tied == 2 ? "  (copy for a tied head)"
		         : p->tied    ? "  (read again by a tied head)"
		                      : make_pattern(p->name, name),
		         explain_format_styles(e, p->styles, style), width,
		         format_places(e, p->places, false, place), tess_dtype_name(p->dtype),
		         15 - (int)strlen(tess_dtype_name(p->dtype)), shape,
		         explain_format_bytes(max, bytes));
		add_text_line(&l, text);
	}
	free(ranks);
	return print_text_lines(&l, f);
}

static void print_stages(const struct tess_explanation *e, FILE *f)
{
	char count[16];

	if (e->nstages < 2)
		return;
	fprintf(f, "\n%-6s %6s %14s  %s\n", "stage", "pp", "parameters", "modules");
	for (int32_t i = 0; i < e->nstages; i++)
		fprintf(f, "%-6d %6d %14s  %s\n", (int)i, (int)e->stages[i].rank,
		        explain_format_count(e->stages[i].elements, count), e->stages[i].modules);
}

/* Prints the bytes of exchanges of rows with the ranks of their experts. */
static void print_expected(const struct tess_explanation *e, FILE *f)
{
	uint64_t sent = 0, expected = 0;
	char a[16], b[16];

	for (int32_t i = 0; i < e->ncollectives; i++)
		if (e->collectives[i]->expected < e->collectives[i]->sent) {
			sent += e->collectives[i]->sent;
			expected += e->collectives[i]->expected;
		}
	if (sent)
		fprintf(f,
		        "(all_to_all of experts: a rank sends %s in all, at most; %s if rows "
		        "request all experts equally often.\nEach rank has memory for all rows, so "
		        "none is dropped)\n",
		        explain_format_bytes(sent, a), explain_format_bytes(expected, b));
	if (e->all_expert_rows)
		fprintf(f, "(experts exchange all rows: %s)\n", e->all_expert_rows);
}

static tess_status print_collectives(const struct tess_explanation *e, FILE *f)
{
	char name[EXPLAIN_NAME], a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE], text[512];
	char bytes[16], sent[16];
	int width = e->ndims > 1 ? 16 : 0; /* width of the column of mesh dimensions */
	struct text_lines l = { 0 };
	bool sums = false;
	tess_status st;

	fprintf(f, "\n%-46s %-15s %-*s%-24s %10s %14s %6s\n", "module", "collective", width,
	        width ? "along" : "", "from -> to", "value", "a rank sends", "times");
	for (int32_t i = 0; i < e->ncollectives; i++) {
		const struct tess_explained_collective *c = e->collectives[i];
		char how[2 * TESS_PLACE_SIZE + 8];

		snprintf(how, sizeof how, "%s -> %s", tess_place_format(c->from, a),
		         tess_place_format(c->to, b));
		sums = sums || c->from.kind == TESS_PARTIAL;
		snprintf(text, sizeof text, "%-46s %-15s %-*s%-24s %10s %14s",
		         make_pattern(c->module, name), tess_kind_name(c->kind), width,
		         width ? e->dim_names[c->dim] : "", how,
		         explain_format_bytes(c->bytes, bytes),
		         explain_format_bytes(c->sent, sent));
		add_text_line(&l, text);
	}
	if (!e->ncollectives)
		fprintf(f, "(nothing moves)\n");
	st = print_text_lines(&l, f);
	if (e->logits_dim >= 0)
		fprintf(f,
		        "(logits stay cut by vocabulary along %s: for a greedy id a rank sends "
		        "%s; for a full row,\nor one sampled without a small top-k, at most "
		        "%s)\n",
		        e->dim_names[e->logits_dim], explain_format_bytes(e->greedy_bytes, bytes),
		        explain_format_bytes(e->row_bytes, sent));
	print_expected(e, f);
	if (sums)
		fprintf(f, "(sums keep their order: for the all_reduce or reduce_scatter of a "
		           "Partial, ranks may exchange its\nnodes by all_gather or all_to_all, "
		           "which is then the call that a failure names)\n");
	return st;
}

static void print_plan(const char *name, const struct tess_explained_plan *p, FILE *f)
{
	char sent[16], weights[16];

	fprintf(f, "%-20.20s %14s %10s\n", name, explain_format_bytes(p->sent, sent),
	        explain_format_bytes(p->weights, weights));
}

/* Prints the totals of the plan and of the plan of Transformers. */
static void print_plans(const struct tess_explanation *e, FILE *f)
{
	fprintf(f, "\n%-20s %14s %10s\n%-20s %14s %10s\n", "plan", "a rank sends", "weights", "",
	        "at most", "of a rank");
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

static void print_counts(const struct tess_explanation *e, FILE *f)
{
	char count[16];

	fprintf(f, "%s parameters", explain_format_count(e->elements, count));
	if (e->active < e->elements)
		fprintf(f, ", %s of them active for a token",
		        explain_format_count(e->active, count));
	fprintf(f, "\n");
	if (e->assumed)
		fprintf(f, "(%s)\n", e->assumed);
	if (e->from_config)
		fprintf(f,
		        "(the files of %d parameters are absent: shapes are those of the "
		        "model, dtypes that of config.json)\n",
		        (int)e->from_config);
	fprintf(f, "\n");
}

tess_status explain_print_text(const struct tess_explanation *e, const char *dir, int64_t positions,
                               FILE *f)
{
	tess_status st;

	fprintf(f, "%s, model %s, plan %s, %d rank%s", dir, e->model, e->plan, (int)e->nranks,
	        e->nranks > 1 ? "s" : "");
	print_mesh(e, f);
	fprintf(f, "\n");
	print_counts(e, f);
	st = print_parameters(e, f);
	if (st)
		return st;
	print_stages(e, f);
	st = print_collectives(e, f);
	if (!st)
		st = explain_print_memory(e, positions, f);
	if (st)
		return st;
	if (e->sequences) {
		explain_print_disk(e, f);
		explain_print_traffic(e, f);
		explain_print_training_plans(e, f);
	} else {
		print_plans(e, f);
	}
	return TESS_OK;
}
