/* explain.c - explains what each rank of a plan holds, computes and sends, from its program. */
#include "api/explaining.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "nn/generate/cut_logits.h"
#include "nn/program/storage.h"
#include "nn/program/strategy.h"
#include "nn/train/trainer.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { PRESET_LENGTH = 1024, PRESET_POSITIONS = 2048 }; /* of a sequence; of the KV cache */

/* ---- shards ---------------------------------------------------------------------------------- */

/* Fails with the name of `function` unless the explanation has parameter i and the rank. */
static bool has_shard(const char *function, const struct tess_explanation *e, int32_t i,
                      int32_t rank)
{
	bool has = e && i >= 0 && i < e->nparameters && rank >= 0 && rank < e->nranks;

	if (!has)
		tess_fail(TESS_EINVAL, "%s: there is no parameter %d on a rank %d", function,
		          (int)i, (int)rank);
	return has;
}

uint64_t tess_explanation_shard(const struct tess_explanation *e, int32_t i, int32_t rank,
                                int64_t *shape)
{
	const struct explanation *x = (const struct explanation *)e;

	if (!has_shard(__func__, e, i, rank))
		return 0;
	return tess_explaining_measure_shard(x->program, x->program->weight[i],
	                                     tess_explaining_get_program_rank(x, rank), shape);
}

int64_t tess_explanation_list_ranges(const struct tess_explanation *e, int32_t i, int32_t rank,
                                     int32_t axis, int64_t (*run)[2], int64_t most)
{
	const struct explanation *x = (const struct explanation *)e;
	const struct tess_weight *w;
	struct tess_cut cut;
	int32_t mine;
	int64_t n, at;
	bool here;

	if (!has_shard(__func__, e, i, rank))
		return 0;
	w = x->program->weight[i];
	if (axis < 0 || axis >= w->ndim || most < 0 || (most && !run)) {
		tess_fail(TESS_EINVAL, "%s: axis %d, %lld runs%s", __func__, (int)axis,
		          (long long)most, run ? "" : " without a list");
		return 0;
	}
	mine = tess_explaining_get_program_rank(x, rank);
	cut = tess_program_find_cut(x->program, mine, w->place, axis);
	here = tess_program_has_stage(x->program, mine, w->stage);
	n = tess_dim_count_pieces(w->dim[axis]);
	for (int64_t k = 0; k < n && k < most; k++) {
		const struct tess_dim *piece = tess_dim_get_piece(w->dim[axis], k, &at);
		struct tess_run held;

		tess_dim_get_local_runs(piece, cut.nranks, cut.rank, &held);
		held.len *= here;
		run[k][0] = at + held.start;
		run[k][1] = run[k][0] + held.len;
	}
	return n;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static struct tess_place make_stage_place(int32_t stage)
{
	return stage == TESS_STAGES_ALL ? tess_place_replicate()
	                                : (struct tess_place){ .kind = TESS_STAGE, .dim = stage };
}

/* Lists places by dimension of the mesh instead of the program; along pp the place of a stage. */
static const struct tess_place *list_places(struct explanation *x, const struct tess_place *place,
                                            int32_t stage)
{
	struct tess_place *list = TESS_NEW(&x->arena, struct tess_place, x->e.ndims);

	for (int32_t i = 0; i < x->e.ndims && list; i++) {
		int32_t along = x->program_dim[i];

		list[i] = along < 0                             ? tess_place_replicate()
		          : along == x->program->pipeline_along ? make_stage_place(stage)
		                                                : place[along];
	}
	return list;
}

static const char *const *list_styles(struct explanation *x, const struct tess_weight *w)
{
	const char **list = TESS_NEW(&x->arena, const char *, x->e.ndims);

	for (int32_t i = 0; i < x->e.ndims && list; i++)
		list[i] = x->program_dim[i] < 0 ? "replicate" : w->style[x->program_dim[i]];
	return list;
}

static tess_status list_parameters(struct explanation *x)
{
	int32_t n = x->program->nweights;

	x->parameters = TESS_NEW(&x->arena, struct tess_explained_parameter *, n);
	for (int32_t i = 0; i < n && x->parameters; i++) {
		const struct tess_weight *w = x->program->weight[i];
		struct tess_explained_parameter *p =
			TESS_NEW(&x->arena, struct tess_explained_parameter, 1);
		int64_t *shape = TESS_NEW(&x->arena, int64_t, w->ndim);

		if (!p || !shape)
			return TESS_ENOMEM;
		for (int32_t a = 0; a < w->ndim; a++)
			shape[a] = w->dim[a]->size;
		*p = (struct tess_explained_parameter){
			.name = w->name,
			.styles = list_styles(x, w),
			.places = list_places(x, w->place, w->stage),
			.shape = shape,
			.dtype = w->compressed ? w->compressed : w->dtype,
			.ndim = w->ndim,
			.tied = w->table    ? 1
			        : w->copies ? 2
			                    : 0,
			.from_config = w->absent
		};
		if (!p->styles || !p->places)
			return TESS_ENOMEM;
		x->e.from_config += !p->tied && p->from_config;
		x->parameters[i] = p;
	}
	x->e.nparameters = n;
	x->e.parameters = (const struct tess_explained_parameter *const *)x->parameters;
	return x->parameters ? TESS_OK : TESS_ENOMEM;
}

static uint64_t count_value_bytes(const struct tess_tensor *t)
{
	uint64_t bytes = tess_width(t->dtype);

	for (int32_t a = 0; a < t->ndim; a++)
		bytes *= (uint64_t)t->dim[a]->size;
	return bytes;
}

static uint64_t count_weight_bytes(const struct tess_record *rec)
{
	uint64_t sum = 0;

	for (int32_t i = 0; i < rec->nweight; i++)
		sum += tess_width(rec->weight[i]->dtype) *
		       (uint64_t)tess_weight_count_elements(rec->weight[i]);
	return sum;
}

/* Counts the bytes of a hook's collective, over all blocks of a rank. */
static uint64_t count_local_bytes(const struct tess_program *p, const struct tess_record *rec)
{
	uint64_t in = count_value_bytes(rec->in[0]), out = count_value_bytes(rec->out[0]);

	return in == out ? in / (uint64_t)p->mesh.dim[rec->along].size : in < out ? in : out;
}

/* Describes the collective of record i along a dimension of the program, apart from moves. */
static struct tess_explained_collective describe_collective(const struct explanation *x, int32_t i,
                                                            int32_t along)
{
	const struct tess_record *rec = x->program->record[i];
	int32_t kind = x->sent[i * x->program->mesh.ndims + along].kind;
	struct tess_place shard = tess_place_shard(0), whole = tess_place_replicate();
	bool sum = kind == TESS_ALL_REDUCE || kind == TESS_REDUCE_SCATTER;

	if (rec->kind == TESS_REC_SEND)
		return (struct tess_explained_collective){
			.kind = kind,
			.from = make_stage_place(rec->stage),
			.to = make_stage_place((int32_t)rec->num[TESS_REC_SEND_TO]),
			.bytes = count_value_bytes(rec->in[0]),
		};
	if (rec->kind == TESS_REC_EXPERT_ROWS)
		return (struct tess_explained_collective){
			.kind = kind,
			.from = rec->in[0]->place[along],
			.to = rec->out[0]->place[along],
			.bytes = count_value_bytes(rec->in[0]),
		};
	if (rec->kind == TESS_REC_COLLECTIVE) /* a hook's, of local values */
		return (struct tess_explained_collective){
			.kind = (int32_t)rec->num[TESS_REC_COLLECTIVE_KIND],
			.from = shard,
			.to = shard,
			.bytes = count_local_bytes(x->program, rec),
		};
	return (struct tess_explained_collective){
		.kind = kind,
		.from = sum ? tess_place_partial() : shard,
		.to = kind == TESS_ALL_REDUCE || kind == TESS_ALL_GATHER ? whole : shard,
		.bytes = rec->nweight && !sum ? count_weight_bytes(rec)
		                              : count_value_bytes(rec->in[0]),
	};
}

static tess_status add_collective(struct explanation *x, int32_t i, int32_t along,
                                  const struct tess_explained_collective *about)
{
	struct tess_explained_collective *c =
		TESS_NEW(&x->arena, struct tess_explained_collective, 1);
	struct tess_explained_collective **list =
		tess_arena_grow(&x->arena, x->collectives, (size_t)x->e.ncollectives, sizeof *list);

	if (!c || !list)
		return TESS_ENOMEM;
	*c = *about;
	while (x->program_dim[c->dim] != along)
		c->dim++;
	c->module = x->program->record[i]->module;
	c->record = i;
	c->sent = x->sent[i * x->program->mesh.ndims + along].bytes;
	c->expected = x->sent[i * x->program->mesh.ndims + along].expected;
	x->collectives = list;
	list[x->e.ncollectives++] = c;
	return TESS_OK;
}

static tess_status list_collectives(struct explanation *x)
{
	const struct tess_program *p = x->program;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nrecords && !st; i++) {
		const struct tess_record *rec = p->record[i];
		int32_t kind = rec->kind == TESS_REC_MOVE ? tess_move_kind(p, rec) : 0;

		for (int32_t along = 0; along < p->mesh.ndims && !st; along++) {
			struct tess_explained_collective about;

			if (rec->kind == TESS_REC_MOVE ? !kind || along != rec->along
			                               : !x->sent[i * p->mesh.ndims + along].kind)
				continue;
			about = describe_collective(x, i, along);
			if (kind) {
				about.kind = kind;
				about.from = rec->in[0]->place[along];
				about.to = rec->out[0]->place[along];
			}
			st = add_collective(x, i, along, &about);
		}
	}
	x->e.collectives = (const struct tess_explained_collective *const *)x->collectives;
	return st;
}

/* Lists the values of n tensors, then NULL; new ones are produced by `stage`. */
static const struct tess_explained_value *const *list_values(struct explanation *x,
                                                             struct tess_tensor *const *tensor,
                                                             int32_t n, int32_t stage)
{
	struct tess_explained_value **list =
		TESS_NEW(&x->arena, struct tess_explained_value *, n + 1);

	for (int32_t i = 0; i < n && list; i++) {
		struct tess_explained_value **v = &x->values[tensor[i]->id];

		if (!*v) {
			*v = TESS_NEW(&x->arena, struct tess_explained_value, 1);
			if (!*v)
				return NULL;
			(*v)->id = tensor[i]->id;
			(*v)->places = list_places(x, tensor[i]->place, stage);
		}
		if (!(*v)->places)
			return NULL;
		list[i] = *v;
	}
	return (const struct tess_explained_value *const *)list;
}

static const char *get_move_name(const struct tess_program *p, const struct tess_record *rec)
{
	if (rec->kind == TESS_REC_COLLECTIVE)
		return tess_kind_name((int32_t)rec->num[TESS_REC_COLLECTIVE_KIND]);
	return rec->kind == TESS_REC_MOVE ? tess_move_name(p, rec) : NULL;
}

static tess_status list_records(struct explanation *x)
{
	const struct tess_program *p = x->program;
	struct tess_explained_record **list =
		TESS_NEW(&x->arena, struct tess_explained_record *, p->nrecords);

	x->values = TESS_NEW(&x->arena, struct tess_explained_value *, p->ntensors);
	if (!list || !x->values)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		const struct tess_explained_parameter **parameters = TESS_NEW(
			&x->arena, const struct tess_explained_parameter *, rec->nweight + 1);

		list[i] = TESS_NEW(&x->arena, struct tess_explained_record, 1);
		if (!list[i] || !parameters)
			return TESS_ENOMEM;
		for (int32_t k = 0; k < rec->nweight; k++)
			parameters[k] = x->parameters[rec->weight[k]->index];
		*list[i] = (struct tess_explained_record){
			.module = rec->module,
			.kind = tess_record_kind_name(rec->kind),
			.move = get_move_name(p, rec),
			.in = list_values(x, rec->in, rec->nin, TESS_STAGES_ALL),
			.out = list_values(x, rec->out, rec->nout, rec->stage),
			.parameters = parameters,
			.fused = x->fused[i] - 1,
		};
		if (!list[i]->in || !list[i]->out)
			return TESS_ENOMEM;
	}
	x->e.nrecords = p->nrecords;
	x->e.all_expert_rows = p->all_expert_rows;
	x->e.records = (const struct tess_explained_record *const *)list;
	return TESS_OK;
}

/* ---- logits that stay cut -------------------------------------------------------------------- */

static void measure_logits(struct explanation *x)
{
	const struct tess_program *p = x->program;
	struct tess_cut cut;

	x->e.logits_dim = -1;
	if (p->vocabulary_along < 0)
		return;
	while (x->program_dim[++x->e.logits_dim] != p->vocabulary_along)
		;
	cut = tess_program_get_cut(p, 0, p->vocabulary_along);
	x->e.greedy_bytes = tess_cut_logits_count_greedy_bytes(cut.nranks);
	for (int32_t r = 1; r < cut.nranks; r++) { /* rank 0 receives the row */
		uint64_t bytes =
			4 * (uint64_t)tess_dim_get_local_size(p->logits->dim[1], cut.nranks, r);

		x->e.row_bytes = bytes > x->e.row_bytes ? bytes : x->e.row_bytes;
	}
}

/* ---- totals ---------------------------------------------------------------------------------- */

struct explanation tess_explaining_copy(const struct explanation *x)
{
	struct explanation copy = *x;

	copy.program = NULL;
	copy.arena = (struct tess_arena){ 0 };
	copy.e = (struct tess_explanation){ .nranks = x->e.nranks,
		                            .tokens = x->e.tokens,
		                            .sequences = x->e.sequences };
	return copy;
}

tess_status tess_explaining_measure_copy(struct explanation *copy)
{
	tess_status st = tess_explaining_record(copy, 0, &copy->program);

	return st ? st : tess_explaining_measure_ranks(copy);
}

void tess_explaining_free_copy(struct explanation *copy)
{
	tess_program_free(copy->program);
	tess_arena_free(&copy->arena);
}

/* Measures this mesh and step with another plan, or without recomputation; 0 if refused. */
static tess_status measure_other(const struct explanation *x, const struct tess_plan *plan,
                                 const struct tess_trainer_options *training,
                                 struct tess_explained_plan *out)
{
	struct explanation other = tess_explaining_copy(x);
	tess_status st;

	other.training = training;
	other.model.plan = *plan;
	st = tess_explaining_measure_copy(&other);
	if (!st)
		*out = tess_explaining_measure_plan(&other);
	tess_explaining_free_copy(&other);
	return st == TESS_ENOMEM ? st : TESS_OK;
}

/* Measures Transformers' plan on this mesh, unless the model has none or it is refused. */
static tess_status measure_hf_plan(struct explanation *x)
{
	struct tess_plan plan;
	tess_status st = tess_plan_open(x->model.model, "hf", NULL, 0, &plan);

	if (st)
		return st == TESS_ENOMEM ? st : TESS_OK;
	st = measure_other(x, &plan, x->training, &x->e.hf);
	tess_plan_free(&plan);
	return st;
}

/* Measures the memory without recomputation. */
static tess_status measure_kept(struct explanation *x)
{
	struct tess_trainer_options kept;

	if (!x->training || !x->training->recompute)
		return TESS_OK;
	kept = *x->training;
	kept.recompute = NULL;
	return measure_other(x, &x->model.plan, &kept, &x->e.kept);
}

/* Measures the bytes that a rank sends along each dimension, by part of the step. */
static tess_status measure_traffic(struct explanation *x)
{
	const struct tess_program *p = x->program;
	struct tess_explained_traffic *t =
		TESS_NEW(&x->arena, struct tess_explained_traffic, x->e.ndims);
	int32_t forward = 0;

	if (!t)
		return TESS_ENOMEM;
	while (forward < p->nrecords && p->record[forward]->kind != TESS_OP_LOSS_MAX)
		forward++;
	for (int32_t i = 0; i < p->nrecords; i++)
		for (int32_t d = 0; d < x->e.ndims; d++) {
			int32_t along = x->program_dim[d];
			uint64_t bytes = along < 0 ? 0 : x->sent[i * p->mesh.ndims + along].bytes;

			if (p->record[i]->kind == TESS_REC_GRADIENT)
				t[d].gradients += bytes;
			else if (p->record[i]->repeats)
				t[d].repeated += bytes;
			else if (i < forward)
				t[d].forward += bytes;
			else
				t[d].backward += bytes;
		}
	for (int32_t d = 0; d < x->e.ndims && x->training; d++) {
		if (x->program_dim[d] == p->data_along)
			t[d].gradients += tess_explaining_count_returned(p);
		if (x->program_dim[d] == p->pipeline_along)
			t[d].gradients += tess_explaining_count_tied(p);
	}
	x->e.traffic = t;
	return TESS_OK;
}

/* ---- explain --------------------------------------------------------------------------------- */

tess_status tess_explaining_set_mesh(struct explanation *x, const struct tess_mesh_shape *given)
{
	struct tess_mesh_shape replica;
	tess_status st = TESS_OK;

	x->mesh = *given;
	if (x->training)
		st = tess_mesh_shape_train(given, &x->mesh, &x->shards);
	if (st)
		return st;
	x->mesh = tess_mesh_shape_complete(&x->mesh);
	replica = tess_mesh_shape_get_replica(&x->mesh);
	for (int32_t i = 0; i < x->mesh.ndims; i++) {
		const char *name = x->mesh.dim[i].name;

		x->dim_name[i] = name;
		x->dim_size[i] = x->mesh.dim[i].size;
		x->program_dim[i] =
			x->training ? i : tess_mesh_shape_find(&replica, name, strlen(name));
	}
	x->e.ndims = x->mesh.ndims;
	x->e.dim_names = x->dim_name;
	x->e.dim_sizes = x->dim_size;
	x->e.nranks = x->mesh.nranks;
	return st;
}

tess_status tess_explaining_open_schedule(struct explanation *x)
{
	const struct tess_trainer_options *o = x->training;
	int32_t pp = tess_mesh_shape_find(&x->mesh, "pp", 2);
	const char *name = o && o->pipeline_schedule ? o->pipeline_schedule : "1f1b";
	int64_t n = o ? o->micro_batches : 0;
	tess_status st;

	if (!o || pp < 0 || x->mesh.dim[pp].size == 1)
		return o && o->pipeline_schedule ? tess_trainer_refuse_schedule(name) : TESS_OK;
	if (n < 0 || n > INT32_MAX)
		return tess_fail(TESS_EINVAL, "%lld micro-batches; use 0 to %d", (long long)n,
		                 INT32_MAX);
	st = tess_pipeline_open(name, x->mesh.dim[pp].size, (int32_t)n, &x->pipeline);
	return st ? st : tess_pipeline_simulate(x->pipeline, NULL, &x->timeline);
}

static tess_status explain_program(struct explanation *x)
{
	tess_status st = tess_explaining_open_schedule(x);

	if (!st)
		st = tess_explaining_record(x, 0, &x->program);

	if (st)
		return st;
	if (!x->borrowed) /* the session has warned */
		tess_planned_model_warn_unused(&x->model, x->program);
	x->e.model = x->model.model->name;
	x->e.plan = x->model.plan.name;
	x->e.positions = x->program->max_positions;
	x->e.shown_positions = x->e.positions && x->e.positions < PRESET_POSITIONS
	                               ? x->e.positions
	                               : PRESET_POSITIONS;
	x->e.kv_dtype = x->program->kv_dtype;
	if (x->training)
		x->e.micro_batches = tess_explaining_count_micro_batches(x);
	st = list_parameters(x);
	if (!st)
		st = tess_explaining_measure_ranks(x);
	if (!st)
		st = list_collectives(x);
	if (!st)
		st = list_records(x);
	if (!st)
		st = tess_explaining_summarize(x);
	if (!st)
		st = measure_traffic(x);
	if (st)
		return st;
	measure_logits(x);
	x->e.total = tess_explaining_measure_plan(x);
	st = measure_hf_plan(x);
	return st ? st : measure_kept(x);
}

/* Chooses the rows of a step: `length`, or `length` per sequence. */
static tess_status choose_rows(struct explanation *x, int64_t length)
{
	int64_t sequences = x->training ? x->e.sequences : 1, most = x->model.positions;

	if (x->training && !length)
		length = most && most < PRESET_LENGTH ? most : PRESET_LENGTH;
	if (x->training && most && length > most)
		return tess_fail(TESS_EINVAL,
		                 "a sequence of %lld tokens; the checkpoint was made for %lld "
		                 "positions",
		                 (long long)length, (long long)most);
	if (sequences < 1 || length < 1)
		return tess_fail(TESS_EINVAL, "a step of %lld rows; it has 1 to %d",
		                 (long long)(sequences < length ? sequences : length),
		                 TESS_EXPLAINED_ROWS);
	if (sequences > TESS_EXPLAINED_ROWS || length > TESS_EXPLAINED_ROWS / sequences)
		return tess_fail(TESS_EINVAL,
		                 "a step of %lld sequences of %lld rows; it has 1 to %d rows",
		                 (long long)sequences, (long long)length, TESS_EXPLAINED_ROWS);
	x->e.tokens = sequences * length;
	x->nselected = 1;
	return TESS_OK;
}

/* Explains an open model. */
static tess_status explain_model(struct explanation *x, int64_t length)
{
	tess_status st = tess_explaining_find_device(x);

	if (!st)
		st = tess_explaining_check_offload(x);
	if (!st)
		st = choose_rows(x, length);
	if (!st)
		st = explain_program(x);
	return st ? st : tess_explaining_check_space(x);
}

static tess_status explain_checkpoint(struct explanation *x, const char *dir, const char *mesh,
                                      int32_t nranks, int64_t length,
                                      const struct tess_session_options *options)
{
	struct tess_mesh_shape given;
	tess_status st = tess_mesh_shape_parse(mesh, nranks, &given);

	if (!st)
		st = tess_explaining_set_mesh(x, &given);
	if (!st)
		st = tess_planned_model_open(dir, options, TESS_CHECKPOINT_CONFIG, &x->model);
	return st ? st : explain_model(x, length);
}

/* Returns an option without its folder. */
static const char *get_location_name(const char *option)
{
	int32_t location = tess_location_parse(option);

	return location == TESS_LOCATION_HOST   ? "host"
	       : location == TESS_LOCATION_DISK ? "disk"
	                                        : NULL;
}

/* Copies the strings of the caller that programs are recorded from, for tess_explanation_fit. */
static tess_status own_strings(struct explanation *x)
{
	const char *const *given = x->options.recompute;
	const char **list;
	size_t n = 0;

	if (x->model.values) {
		x->model.values =
			tess_arena_copy(&x->arena, x->model.values, strlen(x->model.values));
		if (!x->model.values)
			return TESS_ENOMEM;
	}
	while (given && given[n])
		n++;
	list = TESS_NEW(&x->arena, const char *, n + 1);
	for (size_t i = 0; i < n && list; i++) {
		list[i] = tess_arena_copy(&x->arena, given[i], strlen(given[i]));
		if (!list[i])
			return TESS_ENOMEM;
	}
	x->options.recompute = given ? list : NULL;
	x->options.offload_optimizer = get_location_name(x->options.offload_optimizer);
	x->options.offload_weights = get_location_name(x->options.offload_weights);
	return list ? TESS_OK : TESS_ENOMEM;
}

static tess_status make_explanation(const char *dir, const char *mesh, int32_t nranks,
                                    int64_t length, const struct tess_session_options *options,
                                    struct explanation *x, struct tess_explanation **out)
{
	fenv_t callers;
	tess_status st;

	if (!x)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", dir);
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = explain_checkpoint(x, dir, mesh, nranks, length, options);
	if (!st)
		st = own_strings(x);
	fesetenv(&callers);
	if (st)
		tess_explanation_free(&x->e);
	else
		*out = &x->e;
	return st;
}

tess_status tess_explain(const char *dir, const char *mesh, int32_t nranks, int64_t tokens,
                         const struct tess_session_options *options, struct tess_explanation **out)
{
	struct tess_session_options mine;
	tess_status st = TESS_REQUIRE(dir, mesh, out);

	if (!st)
		st = tess_session_options_read(options, &mine);
	return st ? st
	          : make_explanation(dir, mesh, nranks, tokens, &mine,
	                             calloc(1, sizeof(struct explanation)), out);
}

tess_status tess_session_explain(const struct tess_session *s, int64_t tokens,
                                 struct tess_explanation **out)
{
	struct explanation *x;
	fenv_t callers;
	tess_status st = TESS_REQUIRE(s, out);

	if (st)
		return st;
	x = calloc(1, sizeof *x);
	if (!x)
		return tess_fail(TESS_ENOMEM, "out of memory for an explanation");
	x->model = s->model;
	x->borrowed = true;
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = tess_explaining_set_mesh(x, tess_mesh_get_shape(s->mesh));
	if (!st)
		st = explain_model(x, tokens);
	fesetenv(&callers);
	if (st)
		tess_explanation_free(&x->e);
	else
		*out = &x->e;
	return st;
}

tess_status tess_explain_training(const char *dir, const char *mesh, int32_t nranks,
                                  int64_t sequences, int64_t length,
                                  const struct tess_trainer_options *options,
                                  struct tess_explanation **out)
{
	struct tess_trainer_options mine = { .size = sizeof mine };
	struct tess_session_options session = { .size = sizeof session };
	struct tess_strategy *strategy = NULL;
	struct tess_mesh_shape shape;
	struct explanation *x;
	struct tess_optimizer optimizer;
	tess_status st = TESS_REQUIRE(dir, mesh, out);

	if (!st)
		st = tess_sized_copy("tess_trainer_options", options, &mine, sizeof mine);
	if (!st)
		st = tess_optimizer_read(&mine, &optimizer);
	if (!st)
		st = tess_trainer_check_math(mine.math);
	if (!st)
		st = tess_mesh_shape_parse(mesh, nranks, &shape);
	if (!st)
		st = tess_strategy_complete(&mine, &shape, &strategy);
	session.threads = mine.threads;
	session.plan = mine.plan;
	session.overrides = mine.overrides;
	session.ignore_unexpected = mine.ignore_unexpected;
	session.positions = mine.positions;
	session.values = mine.values;
	if (!st)
		st = tess_session_options_read(&session, &session);
	x = st ? NULL : calloc(1, sizeof *x);
	if (x) {
		x->training = &x->options;
		x->options = mine;
		x->moments = tess_optimizer_count_moments(&optimizer);
		x->e.sequences = sequences;
	}
	if (!st)
		st = make_explanation(dir, mesh, nranks, length, &session, x, out);
	tess_strategy_free(strategy);
	return st;
}

void tess_explanation_free(struct tess_explanation *e)
{
	struct explanation *x = (struct explanation *)e;

	if (!x)
		return;
	tess_program_free(x->program);
	tess_timeline_free(x->timeline);
	tess_pipeline_close(x->pipeline);
	if (!x->borrowed)
		tess_planned_model_close(&x->model);
	tess_arena_free(&x->arena);
	free(x);
}
