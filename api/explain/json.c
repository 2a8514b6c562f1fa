/* json.c - an explanation as a JSON object. */
#include "api/explain/format.h"

#include <string.h>
#include <tessera/names.h>

static json_t *make_parameters_json(const struct tess_explanation *e)
{
	char place[EXPLAIN_NAME], style[EXPLAIN_NAME];
	int64_t shape[TESS_DIMS] = { 0 }, before[TESS_DIMS];
	json_t *all = json_array();

	for (int32_t i = 0; i < e->nparameters; i++) {
		const struct tess_explained_parameter *p = e->parameters[i];
		json_t *ranks, *last = NULL;

		if (p->tied == 1)
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
			all, json_pack("{s:s, s:s, s:s, s:o*, s:o*, s:s, s:o}", "name", p->name,
		                       "style", explain_format_styles(e, p->styles, style), "dtype",
		                       tess_dtype_name(p->dtype), "from_config",
		                       p->from_config ? json_true() : NULL, "copy",
		                       p->tied ? json_true() : NULL, "placement",
		                       explain_format_places(e, p->places, place), "ranks", ranks));
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
			json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "record",
		                  (int)c->record, "module", c->module, "kind",
		                  tess_kind_name(c->kind), "along", e->dim_names[c->dim], "from",
		                  tess_place_format(c->from, a), "to", tess_place_format(c->to, b),
		                  "bytes", (json_int_t)c->bytes, "sent", (json_int_t)c->sent,
		                  "expected", (json_int_t)c->expected));
	}
	return all;
}

static json_t *make_values_json(const struct tess_explanation *e,
                                const struct tess_explained_value *const *v)
{
	char place[EXPLAIN_NAME];
	json_t *all = json_array();

	for (; *v; v++)
		json_array_append_new(all,
		                      json_pack("{s:i, s:s}", "value", (int)(*v)->id, "placement",
		                                explain_format_places(e, (*v)->places, place)));
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

static json_t *make_stages_json(const struct tess_explanation *e)
{
	json_t *all = json_array();

	for (int32_t i = 0; i < e->nstages; i++)
		json_array_append_new(all,
		                      json_pack("{s:i, s:I, s:s}", "rank", (int)e->stages[i].rank,
		                                "elements", (json_int_t)e->stages[i].elements,
		                                "modules", e->stages[i].modules));
	return all;
}

json_t *explain_make_json(const struct tess_explanation *e, int64_t positions, bool program)
{
	json_t *mesh = json_array(), *o;

	for (int32_t i = 0; i < e->ndims; i++)
		json_array_append_new(mesh, json_pack("{s:s, s:i}", "name", e->dim_names[i], "size",
		                                      (int)e->dim_sizes[i]));
	o = json_pack("{s:s, s:s, s:i, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:s*, s:s*}",
	              "model", e->model, "plan", e->plan, "ranks", (int)e->nranks, "mesh", mesh,
	              "tokens", (json_int_t)e->tokens, "positions", (json_int_t)positions,
	              "elements", (json_int_t)e->elements, "active", (json_int_t)e->active,
	              "parameters", make_parameters_json(e), "collectives",
	              make_collectives_json(e), "stages", make_stages_json(e), "assumed",
	              e->assumed, "all_expert_rows", e->all_expert_rows);
	if (!explain_add_memory_json(e, positions, o)) {
		json_decref(o);
		return NULL;
	}
	if (e->sequences)
		explain_add_training_json(e, o);
	else if (e->kv_dtype)
		json_object_set_new(o, "kv", json_string(tess_dtype_name(e->kv_dtype)));
	if (program)
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
	return o;
}
