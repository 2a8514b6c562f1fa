/* explain.c - what each rank of a plan would hold, compute and send, read from its program. */
#include "core/base/status.h"
#include "hf/session.h"
#include "nn/cut_logits.h"
#include "nn/lower.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { ROWS_MAX = 1 << 20 }; /* of a step */

struct explanation {
	struct tess_explanation e; /* first: the caller sees this */
	struct tess_arena arena;
	struct tess_planned_model model;
	struct tess_program *program;
	struct tess_mesh_shape mesh; /* with dp, along which nothing is placed */
	const char *dim_name[TESS_MESH_DIMS];
	int32_t dim_size[TESS_MESH_DIMS];
	int32_t program_dim[TESS_MESH_DIMS]; /* of each dimension, that of the program; -1: dp */
	struct tess_explained_parameter **parameters;
	struct tess_explained_value **values; /* by the id of the tensor */
	uint64_t *sent; /* by record: the most that a rank sends */
};

/* ---- what a rank holds ----------------------------------------------------------------------- */

/* The rank of the program that a rank of the mesh runs. */
static int32_t get_program_rank(const struct explanation *x, int32_t rank)
{
	return tess_mesh_shape_project(&x->mesh, rank, &x->program->mesh);
}

/* The part of a weight that a rank of the program holds: its bytes, and its shape unless NULL. */
static uint64_t measure_shard(const struct tess_program *p, const struct tess_weight *w,
                              int32_t rank, int64_t *shape)
{
	uint64_t bytes = w->table ? 0 : tess_width(w->dtype);

	for (int32_t a = 0; a < w->ndim; a++) {
		struct tess_cut cut = tess_program_find_cut(p, rank, w->place, a);
		int64_t n = tess_dim_get_local_size(w->dim[a], cut.nranks, cut.rank);

		bytes *= (uint64_t)n;
		if (shape)
			shape[a] = n;
	}
	return bytes;
}

uint64_t tess_explanation_shard(const struct tess_explanation *e, int32_t i, int32_t rank,
                                int64_t *shape)
{
	const struct explanation *x = (const struct explanation *)e;

	return measure_shard(x->program, x->program->weight[i], get_program_rank(x, rank), shape);
}

int64_t tess_explanation_list_runs(const struct tess_explanation *e, int32_t i, int32_t rank,
                                   int32_t axis, int64_t (*run)[2], int64_t most)
{
	const struct explanation *x = (const struct explanation *)e;
	const struct tess_weight *w = x->program->weight[i];
	struct tess_cut cut =
		tess_program_find_cut(x->program, get_program_rank(x, rank), w->place, axis);
	int64_t n = tess_dim_count_pieces(w->dim[axis]), at;

	for (int64_t k = 0; k < n && k < most; k++) {
		const struct tess_dim *piece = tess_dim_get_piece(w->dim[axis], k, &at);
		struct tess_run held;

		tess_dim_get_local_runs(piece, cut.nranks, cut.rank, &held);
		run[k][0] = at + held.start;
		run[k][1] = run[k][0] + held.len;
	}
	return n;
}

static void measure_rank(const struct explanation *x, const struct tess_rank_program *l,
                         struct tess_explained_rank *out)
{
	for (int32_t i = 0; i < x->program->nweights; i++)
		out->weights += measure_shard(x->program, x->program->weight[i], l->rank, NULL);
	for (int32_t i = 0; i < l->nclasses; i++)
		out->cache += l->page_class[i].bytes / 64;
	out->step = l->bytes;
}

/* ---- what a rank sends ----------------------------------------------------------------------- */

/*
 * Bytes that a rank sends in one step: nodes to the ranks that add them and sums to all, or blocks.
 */
static uint64_t count_sent_bytes(const struct tess_step *s, struct tess_cut cut)
{
	uint64_t n = (uint64_t)cut.nranks, sum = 0;

	if (s->kind == TESS_STEP_SUM) {
		uint64_t nodes = (uint64_t)tess_sum_nodes(&s->sum, cut.nranks, cut.rank);

		return 4 * s->sum.count * (nodes + !s->sum.share) * (n - 1) / n;
	}
	if (s->coll.kind == TESS_GATHER)
		return cut.rank == s->coll.root ? 0 : 4 * s->coll.count;
	if (s->coll.kind == TESS_ALL_GATHER)
		return 4 * s->coll.count * (n - 1);
	for (int32_t q = 0; q < cut.nranks; q++)
		sum += q == cut.rank ? 0 : 4 * s->coll.send_counts[q];
	return sum;
}

/* Keeps the most of all ranks for each record; steps are in the order of records. */
static void measure_sent(struct explanation *x, const struct tess_rank_program *l)
{
	uint64_t sum = 0;

	for (int32_t i = 0; i < l->nsteps; i++) {
		const struct tess_step *s = l->step[i];

		if (i && l->step[i - 1]->record != s->record)
			sum = 0;
		if (s->kind == TESS_STEP_SUM || s->kind == TESS_STEP_COLL)
			sum += count_sent_bytes(
				s, tess_program_get_cut(x->program, l->rank, s->along));
		if (sum > x->sent[s->record])
			x->sent[s->record] = sum;
	}
}

static tess_status measure_ranks(struct explanation *x)
{
	int32_t n = x->e.nranks, nprogram = x->program->mesh.nranks;
	struct tess_explained_rank *rank = TESS_NEW(&x->arena, struct tess_explained_rank,
	                                            nprogram),
				   **list = TESS_NEW(&x->arena, struct tess_explained_rank *, n);
	int32_t *first = TESS_NEW(&x->arena, int32_t, nprogram);
	tess_status st;

	x->sent = TESS_NEW(&x->arena, uint64_t, x->program->nrecords);
	if (!rank || !list || !first || !x->sent)
		return TESS_ENOMEM;
	st = tess_program_find_alike(x->program, first);
	for (int32_t r = 0; r < nprogram && !st; r++) {
		struct tess_rank_program *lowered;

		if (first[r] != r)
			continue;
		st = tess_program_lower(x->program, r, NULL, &lowered);
		if (st)
			break;
		measure_rank(x, lowered, &rank[r]);
		measure_sent(x, lowered);
		tess_rank_program_free(lowered);
	}
	for (int32_t r = 0; r < n; r++)
		list[r] = &rank[first[get_program_rank(x, r)]];
	x->e.ranks = (const struct tess_explained_rank *const *)list;
	return st;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Places of the program by dimension of the mesh. */
static const struct tess_place *list_places(struct explanation *x, const struct tess_place *place)
{
	struct tess_place *list = TESS_NEW(&x->arena, struct tess_place, x->e.ndims);

	for (int32_t i = 0; i < x->e.ndims && list; i++)
		list[i] = x->program_dim[i] < 0 ? tess_place_replicate() : place[x->program_dim[i]];
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
		*p = (struct tess_explained_parameter){ .name = w->name,
			                                .styles = list_styles(x, w),
			                                .places = list_places(x, w->place),
			                                .shape = shape,
			                                .dtype = w->dtype,
			                                .ndim = w->ndim,
			                                .tied = w->table != NULL,
			                                .from_config = w->absent };
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

static tess_status list_collectives(struct explanation *x)
{
	const struct tess_program *p = x->program;
	struct tess_explained_collective **list =
		TESS_NEW(&x->arena, struct tess_explained_collective *, p->nrecords);

	for (int32_t i = 0; i < p->nrecords && list; i++) {
		const struct tess_record *rec = p->record[i];
		struct tess_explained_collective *c;
		int32_t kind = rec->kind == TESS_REC_MOVE ? tess_move_kind(p, rec) : 0, dim = 0;

		if (!kind)
			continue;
		while (x->program_dim[dim] != rec->along)
			dim++;
		c = TESS_NEW(&x->arena, struct tess_explained_collective, 1);
		if (!c)
			return TESS_ENOMEM;
		*c = (struct tess_explained_collective){ .module = rec->module,
			                                 .kind = kind,
			                                 .dim = dim,
			                                 .record = i,
			                                 .from = rec->in[0]->place[rec->along],
			                                 .to = rec->out[0]->place[rec->along],
			                                 .bytes = count_value_bytes(rec->in[0]),
			                                 .sent = x->sent[i] };
		list[x->e.ncollectives++] = c;
	}
	x->e.collectives = (const struct tess_explained_collective *const *)list;
	return list ? TESS_OK : TESS_ENOMEM;
}

/* The values of n tensors, then NULL. */
static const struct tess_explained_value *const *list_values(struct explanation *x,
                                                             struct tess_tensor *const *tensor,
                                                             int32_t n)
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
			(*v)->places = list_places(x, tensor[i]->place);
		}
		if (!(*v)->places)
			return NULL;
		list[i] = *v;
	}
	return (const struct tess_explained_value *const *)list;
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
			.move = rec->kind == TESS_REC_MOVE ? tess_move_name(p, rec) : NULL,
			.in = list_values(x, rec->in, rec->nin),
			.out = list_values(x, rec->out, rec->nout),
			.parameters = parameters,
		};
		if (!list[i]->in || !list[i]->out)
			return TESS_ENOMEM;
	}
	x->e.nrecords = p->nrecords;
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
	for (int32_t r = 1; r < cut.nranks; r++) { /* rank 0 gets the row */
		uint64_t bytes =
			4 * (uint64_t)tess_dim_get_local_size(p->logits->dim[1], cut.nranks, r);

		x->e.row_bytes = bytes > x->e.row_bytes ? bytes : x->e.row_bytes;
	}
}

/* ---- totals ---------------------------------------------------------------------------------- */

static struct tess_explained_plan measure_plan(const struct explanation *x)
{
	struct tess_explained_plan t = { 0 };

	for (int32_t i = 0; i < x->program->nrecords; i++)
		t.sent += x->sent[i];
	if (x->program->vocabulary_along >= 0)
		t.sent += tess_cut_logits_count_greedy_bytes(
			tess_program_get_cut(x->program, 0, x->program->vocabulary_along).nranks);
	for (int32_t r = 0; r < x->e.nranks; r++)
		if (x->e.ranks[r]->weights > t.weights)
			t.weights = x->e.ranks[r]->weights;
	return t;
}

/* What Transformers' plan would take on this mesh, unless the model has none or it is refused. */
static void measure_hf_plan(struct explanation *x)
{
	struct explanation hf = { .model = x->model, .mesh = x->mesh, .e.nranks = x->e.nranks };

	if (tess_plan_open(x->model.model, "hf", NULL, 0, &hf.model.plan))
		return;
	if (!tess_planned_model_record(&hf.model, &x->mesh, x->e.tokens, &hf.program) &&
	    !measure_ranks(&hf))
		x->e.hf = measure_plan(&hf);
	tess_program_free(hf.program);
	tess_plan_free(&hf.model.plan);
	tess_arena_free(&hf.arena);
}

/* ---- explain --------------------------------------------------------------------------------- */

/* "tp=8", "dp=2,tp=4"; "dp=2" has one rank along tp. */
static tess_status read_mesh_text(struct explanation *x, const char *text, int32_t nranks)
{
	struct tess_mesh_shape replica;
	char all[TESS_MESH_TEXT];
	tess_status st = tess_mesh_shape_parse(text, nranks, &x->mesh);

	if (st)
		return st;
	replica = tess_mesh_shape_remove(&x->mesh, "dp");
	if (tess_mesh_shape_find(&x->mesh, replica.dim[0].name, strlen(replica.dim[0].name)) < 0) {
		tess_mesh_shape_format(&x->mesh, all);
		st = tess_mesh_shape_parse(strcat(all, ",tp=1"), nranks, &x->mesh);
	}
	for (int32_t i = 0; i < x->mesh.ndims; i++) {
		const char *name = x->mesh.dim[i].name;

		x->dim_name[i] = name;
		x->dim_size[i] = x->mesh.dim[i].size;
		x->program_dim[i] = tess_mesh_shape_find(&replica, name, strlen(name));
	}
	x->e.ndims = x->mesh.ndims;
	x->e.dim_names = x->dim_name;
	x->e.dim_sizes = x->dim_size;
	x->e.nranks = x->mesh.nranks;
	return st;
}

static tess_status explain_program(struct explanation *x, const char *dir, int64_t tokens,
                                   const struct tess_session_options *options)
{
	struct tess_session_options mine = { .size = sizeof mine };
	tess_status st;

	if (tokens < 1 || tokens > ROWS_MAX)
		return tess_fail(TESS_EINVAL, "a step of %lld rows; it has 1 to %d",
		                 (long long)tokens, ROWS_MAX);
	if (options)
		memcpy(&mine, options, options->size < sizeof mine ? options->size : sizeof mine);
	st = tess_planned_model_open(dir, &mine, TESS_CHECKPOINT_CONFIG, &x->model);
	if (!st)
		st = tess_planned_model_record(&x->model, &x->mesh, tokens, &x->program);
	if (st)
		return st;
	tess_planned_model_warn_unused(&x->model, x->program);
	x->e.model = x->model.model->name;
	x->e.plan = x->model.plan.name;
	x->e.tokens = tokens;
	x->e.positions = x->program->max_positions;
	st = list_parameters(x);
	if (!st)
		st = measure_ranks(x);
	if (!st)
		st = list_collectives(x);
	if (!st)
		st = list_records(x);
	if (st)
		return st;
	measure_logits(x);
	x->e.total = measure_plan(x);
	measure_hf_plan(x);
	return TESS_OK;
}

tess_status tess_explain(const char *dir, const char *mesh, int32_t nranks, int64_t tokens,
                         const struct tess_session_options *options, struct tess_explanation **out)
{
	struct explanation *x = calloc(1, sizeof *x);
	fenv_t callers;
	tess_status st;

	if (!x)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", dir);
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = read_mesh_text(x, mesh, nranks);
	if (!st)
		st = explain_program(x, dir, tokens, options);
	fesetenv(&callers);
	if (st)
		tess_explanation_free(&x->e);
	else
		*out = &x->e;
	return st;
}

void tess_explanation_free(struct tess_explanation *e)
{
	struct explanation *x = (struct explanation *)e;

	if (!x)
		return;
	tess_program_free(x->program);
	tess_planned_model_close(&x->model);
	tess_arena_free(&x->arena);
	free(x);
}
