/* training.c - what ranks hold and send in a training step. */
#include "api/explain/format.h"

#include <string.h>

/* ---- text ------------------------------------------------------------------------------------ */

void explain_print_training_memory(const struct tess_explanation *e, FILE *f)
{
	fprintf(f,
	        "\nbytes that a rank holds (a step of %lld sequence%s of %lld tokens)\n\n"
	        "%-8s %14s %14s %14s %14s %14s\n",
	        (long long)e->sequences, e->sequences == 1 ? "" : "s",
	        (long long)(e->tokens / e->sequences), "rank", "weights", "gradients", "optimizer",
	        "step", "total");
	for (int32_t k = 0; k < e->nranks; k++) {
		const struct tess_explained_rank *r = e->ranks[k];

		fprintf(f, "%-8d %14llu %14llu %14llu %14llu %14llu\n", (int)k,
		        (unsigned long long)r->weights, (unsigned long long)r->gradients,
		        (unsigned long long)r->state, (unsigned long long)r->step,
		        (unsigned long long)r->total);
	}
}

void explain_print_traffic(const struct tess_explanation *e, FILE *f)
{
	fprintf(f, "\nbytes that a rank sends in a step, at most\n\n%-8s %14s %14s %14s %14s\n",
	        "along", "forward", "repeated", "backward", "gradients");
	for (int32_t d = 0; d < e->ndims; d++) {
		const struct tess_explained_traffic *t = &e->traffic[d];

		if (e->dim_sizes[d] > 1)
			fprintf(f, "%-8s %14llu %14llu %14llu %14llu\n", e->dim_names[d],
			        (unsigned long long)t->forward, (unsigned long long)t->repeated,
			        (unsigned long long)t->backward, (unsigned long long)t->gradients);
	}
	if (e->nranks == 1)
		fprintf(f, "(nothing)\n");
}

static void print_training_plan(const char *name, const struct tess_explained_plan *p, FILE *f)
{
	fprintf(f, "%-22.22s %14llu %14llu %14llu %14llu\n", name, (unsigned long long)p->sent,
	        (unsigned long long)p->weights, (unsigned long long)p->step,
	        (unsigned long long)p->total);
}

void explain_print_training_plans(const struct tess_explanation *e, FILE *f)
{
	char name[EXPLAIN_NAME];

	fprintf(f, "\n%-22s %14s %14s %14s %14s\n%-22s %14s %14s %14s %14s\n", "plan",
	        "bytes a rank", "weights", "step", "total", "", "sends, at most", "of a rank", "",
	        "");
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

static json_t *make_rank_json(const struct tess_explained_rank *r)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "weights", (json_int_t)r->weights,
	                 "gradients", (json_int_t)r->gradients, "optimizer", (json_int_t)r->state,
	                 "step", (json_int_t)r->step, "total", (json_int_t)r->total);
}

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
	json_t *memory = json_array();

	for (int32_t k = 0; k < e->nranks; k++)
		json_array_append_new(memory, make_rank_json(e->ranks[k]));
	json_object_set_new(o, "memory", memory);
	json_object_set_new(o, "sequences", json_integer(e->sequences));
	json_object_set_new(o, "traffic", make_traffic_json(e));
	if (e->kept.total)
		json_object_set_new(o, "kept", explain_make_plan_json(e, &e->kept));
}
