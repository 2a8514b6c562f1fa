/* training.c - what ranks send in a training step, and what plans need. */
#include "api/explain/format.h"

#include <string.h>

/* ---- text ------------------------------------------------------------------------------------ */

void explain_print_traffic(const struct tess_explanation *e, FILE *f)
{
	char a[16], b[16], c[16], d[16];

	fprintf(f, "\nwhat a rank sends in a step, at most\n\n%-8s %10s %10s %10s %10s\n", "along",
	        "forward", "repeated", "backward", "gradients");
	for (int32_t i = 0; i < e->ndims; i++) {
		const struct tess_explained_traffic *t = &e->traffic[i];

		if (e->dim_sizes[i] > 1)
			fprintf(f, "%-8s %10s %10s %10s %10s\n", e->dim_names[i],
			        explain_format_bytes(t->forward, a),
			        explain_format_bytes(t->repeated, b),
			        explain_format_bytes(t->backward, c),
			        explain_format_bytes(t->gradients, d));
	}
	if (e->nranks == 1)
		fprintf(f, "(nothing)\n");
}

static void print_training_plan(const char *name, const struct tess_explained_plan *p, FILE *f)
{
	char a[16], b[16], c[16], d[16];

	fprintf(f, "%-22.22s %14s %10s %10s %10s\n", name, explain_format_bytes(p->sent, a),
	        explain_format_bytes(p->weights, b), explain_format_bytes(p->step, c),
	        explain_format_bytes(p->total, d));
}

void explain_print_training_plans(const struct tess_explanation *e, FILE *f)
{
	char name[EXPLAIN_NAME];

	fprintf(f, "\n%-22s %14s %10s %10s %10s\n%-22s %14s %10s\n", "plan", "a rank sends",
	        "weights", "step", "total", "", "at most", "of a rank");
	snprintf(name, sizeof name, "%s%s", e->plan, e->kept.total ? ", recomputing" : "");
	print_training_plan(name, &e->total, f);
	if (e->kept.total) {
		snprintf(name, sizeof name, "%s, all values kept", e->plan);
		print_training_plan(name, &e->kept, f);
	}
	if (e->hf.weights && strcmp(e->plan, "hf") != 0)
		print_training_plan("hf", &e->hf, f);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *make_traffic_json(const struct tess_explanation *e)
{
	json_t *all = json_object();

	for (int32_t d = 0; d < e->ndims; d++) {
		const struct tess_explained_traffic *t = &e->traffic[d];

		json_object_set_new(
			all, e->dim_names[d],
			json_pack("{s:I, s:I, s:I, s:I}", "forward", (json_int_t)t->forward,
		                  "repeated", (json_int_t)t->repeated, "backward",
		                  (json_int_t)t->backward, "gradients", (json_int_t)t->gradients));
	}
	return all;
}

json_t *explain_make_plan_json(const struct tess_explanation *e,
                               const struct tess_explained_plan *p)
{
	json_t *o = json_pack("{s:I, s:I}", "sent", (json_int_t)p->sent, "weights",
	                      (json_int_t)p->weights);

	if (o && e->sequences) {
		json_object_set_new(o, "step", json_integer((json_int_t)p->step));
		json_object_set_new(o, "total", json_integer((json_int_t)p->total));
	}
	return o;
}

void explain_add_training_json(const struct tess_explanation *e, json_t *o)
{
	json_object_set_new(o, "sequences", json_integer(e->sequences));
	json_object_set_new(o, "micro_batches", json_integer(e->micro_batches));
	json_object_set_new(o, "traffic", make_traffic_json(e));
	if (explain_has_files(e))
		json_object_set_new(o, "disk", explain_make_disk_json(e));
	if (explain_uses_host(e))
		json_object_set_new(o, "host", explain_make_host_json(e));
	if (e->widest)
		json_object_set_new(o, "widest",
		                    json_pack("{s:s, s:I}", "parameter", e->widest, "bytes",
		                              (json_int_t)e->widest_bytes));
	if (e->kept.total)
		json_object_set_new(o, "kept", explain_make_plan_json(e, &e->kept));
}
