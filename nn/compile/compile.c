#include "nn/compile/compile.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/backward/backward.h"
#include "nn/compile/fetched.h"
#include "nn/compile/pipeline.h"
#include "nn/compile/values.h"
#include "nn/program/compressed.h"
#include "nn/program/settings.h"
#include "nn/record/recorder.h"

static tess_status finish_program(struct tess_recorder *r, struct tess_tensor *logits)
{
	int32_t nforward;
	tess_status st = TESS_OK;

	if (!r->status && !logits)
		tess_recorder_fail(r, TESS_EINVAL, "model %s: forward gave no logits",
		                   r->options->model->name);
	tess_recorder_check_rows(r, "forward's result", logits);
	if (!r->status && r->p->nselected != r->p->ntokens && logits->dim[0] != r->p->rows->dim[0])
		tess_recorder_fail(r, TESS_EINVAL,
		                   "model %s: forward gave the logits of all rows; call "
		                   "select_rows() before the head",
		                   r->options->model->name);
	if (!r->status && r->path)
		tess_recorder_fail(r, TESS_EINVAL, "model %s: module %s was never left",
		                   r->options->model->name, tess_recorder_format_path(r, NULL));
	r->p->logits = tess_logits_place(r, logits);
	if (!r->status)
		tess_recorder_check_rules(r);
	if (!r->status)
		tess_program_set_router_math(r->p);
	if (!r->status && r->p->training && r->p->training->balance > 0)
		tess_program_record_balance(r);
	nforward = r->p->nrecords;
	/* the backward has the products of the forward; inference compresses weights first */
	if (!r->status && r->p->training && r->options->math == TESS_BF16)
		st = tess_program_set_math(r->p, TESS_BF16);
	if (!r->status && r->p->training)
		tess_program_record_backward(r);
	if (!r->status && r->options->values)
		tess_values_record(r);
	tess_pipeline_cut(r, nforward);
	tess_program_place_fetched(r);
	if (!r->status && r->options->weights)
		st = tess_program_compress(r->p, r->options->weights);
	if (!r->status && !st && !r->p->training && r->options->math == TESS_BF16)
		st = tess_program_set_math(r->p, TESS_BF16);
	if (st)
		tess_recorder_keep_error(r, st);
	return r->status;
}

static tess_status record_model(struct tess_recorder *r)
{
	struct tess_tensor *logits =
		TESS_PLUGIN_VALUE(r->options->model, NULL, forward, &r->nn, r->p->ids);
	tess_status st = finish_program(r, logits);

	if (!st)
		return TESS_OK;
	tess_recorder_name_rules(r);
	return tess_fail(st, "%s", r->sentence ? r->sentence : "out of memory");
}

static const struct tess_place *make_whole_place(struct tess_program *p)
{
	struct tess_place *place = TESS_NEW(&p->arena, struct tess_place, p->mesh.ndims);

	for (int32_t i = 0; i < p->mesh.ndims && place; i++)
		place[i] = tess_place_replicate();
	return place;
}

/* Returns the mesh dimension whose ranks have the stages of the program; -1: one stage. */
static int32_t find_pipeline(const struct tess_mesh_shape *mesh)
{
	int32_t pp = tess_mesh_shape_find(mesh, "pp", 2);

	return pp >= 0 && mesh->dim[pp].size > 1 ? pp : -1;
}

static bool has_weights_apart(const struct tess_pipeline *pipeline)
{
	for (int32_t r = 0; r < pipeline->nranks; r++)
		for (int32_t i = 0; i < pipeline->nactions[r]; i++)
			if (pipeline->actions[r][i].kind == TESS_PIPELINE_BACKWARD_WEIGHTS)
				return true;
	return false;
}

/* Sets the stages of each rank along pp: those of the schedule, or one. */
static tess_status set_stages(struct tess_program *p, const struct tess_pipeline *pipeline)
{
	int32_t nranks = tess_program_get_cut(p, 0, p->pipeline_along).nranks, *rank_of;

	pipeline = p->pipeline_along >= 0 ? pipeline : NULL;
	if (pipeline && pipeline->nranks != nranks)
		return tess_fail(TESS_EINVAL,
		                 "schedule %s is for %d ranks, and the mesh has %d along pp",
		                 pipeline->name, (int)pipeline->nranks, (int)nranks);
	p->nstages = pipeline ? pipeline->nstages : nranks;
	p->weights_apart = pipeline && has_weights_apart(pipeline);
	p->stage_rank = rank_of = TESS_NEW(&p->arena, int32_t, p->nstages);
	for (int32_t s = 0; s < p->nstages && rank_of; s++)
		rank_of[s] = pipeline ? pipeline->rank_of[s] : s;
	return rank_of ? TESS_OK : TESS_ENOMEM;
}

tess_status tess_program_compile(const struct tess_record_options *options,
                                 struct tess_program **out)
{
	struct tess_recorder r = { .options = options };
	struct tess_program bootstrap = { 0 };
	struct tess_program *p = TESS_NEW(&bootstrap.arena, struct tess_program, 1);
	tess_status st = tess_plan_check_mesh(options->plan, &options->mesh);

	if (st || !p)
		return tess_arena_free(&bootstrap.arena), st ? st : TESS_ENOMEM;
	*p = bootstrap; /* the program is in its own arena */
	p->mesh = options->mesh;
	p->ntokens = options->ntokens;
	p->nselected = options->nselected;
	p->logits_root = options->logits_root;
	p->vocabulary_along = -1;
	p->pipeline_along = find_pipeline(&p->mesh);
	p->max_positions = options->positions;
	p->check = options->check;
	p->device = options->device;
	p->rest_location = options->rest_location;
	p->offload_min = options->offload_min;
	p->offload_bucket = options->offload_bucket;
	p->tile = options->tile;
	r.p = p;
	st = set_stages(p, options->pipeline);
	r.used_rules = TESS_NEW(&p->arena, bool, options->plan->nrules + 1);
	r.whole = make_whole_place(p);
	r.nn.size = sizeof r.nn;
	tess_ops_install(&r.nn);
	if (!st)
		st = r.used_rules && r.whole ? tess_stored_check(options->model) : TESS_ENOMEM;
	if (!st)
		st = tess_settings_merge(options->model, options->source->config, &r.settings);
	if (!st)
		st = tess_inputs_make(&r);
	if (!st)
		st = record_model(&r);
	json_decref(r.settings);
	if (st)
		tess_program_free(p);
	else
		*out = p;
	return st;
}
