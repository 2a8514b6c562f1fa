#include "nn/program/storage.h"

#include "core/base/status.h"

#include <string.h>
#include <tessera/reduce.h>

/* of inference: elements of a run of weights that are read from files, and bytes of each */
enum { FETCHED_ELEMENTS = 1 << 20, FETCHED_BYTES = 32 };

tess_status tess_mesh_shape_train(const struct tess_mesh_shape *s, struct tess_mesh_shape *out,
                                  int32_t *shards)
{
	int32_t ddp = tess_mesh_shape_find(s, "ddp", 3);
	char text[TESS_MESH_TEXT];

	*shards = 0;
	*out = *s;
	if (ddp < 0)
		return TESS_OK;
	if (tess_mesh_shape_find(s, "dp", 2) != ddp + 1)
		return tess_fail(TESS_EINVAL,
		                 "mesh %s: ddp, whose ranks hold copies of what those along dp "
		                 "share, comes directly before dp: ddp=2,dp=2",
		                 tess_mesh_shape_format(s, text));
	*shards = s->dim[ddp + 1].size;
	*out = tess_mesh_shape_merge(s, ddp);
	return TESS_OK;
}

int32_t tess_program_count_shards(const struct tess_program *p)
{
	if (p->data_along < 0)
		return 1;
	return p->training->shards ? p->training->shards : p->mesh.dim[p->data_along].size;
}

struct tess_run tess_program_get_share(const struct tess_program *p, int64_t n, int32_t coordinate)
{
	int32_t shards = tess_program_count_shards(p), i = coordinate % shards;
	int64_t at = tess_edge(n, shards, i);

	return (struct tess_run){ at, tess_edge(n, shards, i + 1) - at };
}

uint64_t tess_program_get_bucket(const struct tess_program *p)
{
	uint64_t elements = p->offload_bucket ? p->offload_bucket : FETCHED_ELEMENTS;

	if (!p->training)
		return FETCHED_BYTES * elements;
	return p->training->bucket ? p->training->bucket : TESS_BUCKET_BYTES;
}

int64_t tess_program_limit_part(const struct tess_program *p, int64_t n)
{
	int64_t most = (int64_t)(tess_program_get_bucket(p) / sizeof(float));

	most += !most;
	return n < most ? n : most;
}

int64_t tess_weight_get_local_size(const struct tess_program *p, const struct tess_weight *w,
                                   int32_t rank, int32_t axis)
{
	struct tess_cut cut = tess_program_find_cut(p, rank, w->place, axis);

	return tess_dim_get_local_size(w->dim[axis], cut.nranks, cut.rank);
}

int64_t tess_weight_count_local(const struct tess_program *p, const struct tess_weight *w,
                                int32_t rank)
{
	int64_t n = tess_program_has_stage(p, rank, w->stage);

	for (int32_t a = 0; a < w->ndim; a++)
		n *= tess_weight_get_local_size(p, w, rank, a);
	return n;
}

static bool is_cut(const struct tess_weight *w, int32_t storage)
{
	return storage == TESS_REST ? w->rest_cut : w->state_cut;
}

struct tess_run tess_weight_get_kept(const struct tess_program *p, const struct tess_weight *w,
                                     int32_t rank, int32_t storage)
{
	int64_t n = tess_weight_count_local(p, w, rank);

	if (!is_cut(w, storage))
		return (struct tess_run){ 0, n };
	return tess_program_get_share(p, n, tess_program_get_cut(p, rank, p->data_along).rank);
}

bool tess_weight_is_trained(const struct tess_program *p, const struct tess_weight *w)
{
	for (int32_t i = 0; i < p->ngradients; i++)
		if (p->gradient[i].weight == w)
			return true;
	return false;
}

bool tess_weight_is_shared(const struct tess_program *p, const struct tess_weight *w)
{
	return w->state_cut && !w->rest_cut && !w->table && tess_weight_is_trained(p, w);
}

bool tess_program_has_values_apart(const struct tess_program *p)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (tess_location_is_apart(p, p->weight[i]->state_location) ||
		    tess_location_is_apart(p, p->weight[i]->rest_location))
			return true;
	return false;
}

bool tess_update_may_be_early(double clip, double balance, bool has_stages)
{
	return !(clip > 0) && !(balance > 0) && !has_stages;
}

bool tess_program_may_update_late(const struct tess_program *p)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (tess_location_is_apart(p, p->weight[i]->rest_location) ||
		    tess_weight_is_shared(p, p->weight[i]))
			return false;
	return true;
}

uint64_t tess_weight_get_width(const struct tess_weight *w, int32_t what)
{
	return what == TESS_WEIGHT ? tess_width(w->dtype) : sizeof(float);
}

bool tess_weight_is_own_master(const struct tess_weight *w, struct tess_run rest,
                               struct tess_run state)
{
	return w->dtype == TESS_F32 && rest.start <= state.start &&
	       state.start + state.len <= rest.start + rest.len;
}

uint64_t tess_weight_count_state_bytes(const struct tess_program *p, const struct tess_weight *w,
                                       int32_t rank, int32_t moments)
{
	struct tess_run rest = tess_weight_get_kept(p, w, rank, TESS_REST);
	struct tess_run state = tess_weight_get_kept(p, w, rank, TESS_STATE);

	moments += !tess_weight_is_own_master(w, rest, state);
	return 64 * (uint64_t)(tess_up(state.len, 16) * moments);
}

int32_t tess_weight_get_copy(const struct tess_program *p, const struct tess_weight *w,
                             int32_t rank, int32_t storage)
{
	int32_t copy = 0;

	for (int32_t i = 0; i < p->mesh.ndims; i++) {
		bool shares = i == p->data_along && is_cut(w, storage);
		int32_t ranks = shares ? tess_program_count_shards(p) : 1;

		/* ranks of other stages keep nothing */
		if (i == p->pipeline_along || w->place[i].kind == TESS_SHARD)
			continue;
		copy = copy * (p->mesh.dim[i].size / ranks) +
		       tess_mesh_shape_coordinate(&p->mesh, i, rank) / ranks;
	}
	return copy;
}

/* ---- the tensors of files -------------------------------------------------------------------- */

static tess_status add_tensor(struct tess_arena *arena, const struct tess_program *p,
                              const struct tess_weight *w, int64_t expert, int32_t part,
                              struct tess_stored_tensor **list, int64_t *n)
{
	const struct tess_files *files = &w->files;
	char text[TESS_FILE_NAME];
	const char *name = tess_files_format(files, expert, part, text);
	struct tess_stored_tensor *grown = tess_arena_grow(arena, *list, (size_t)*n, sizeof *grown);
	struct tess_trained about = { .name = tess_arena_format(arena, "%s", name),
		                      .dtype = w->dtype,
		                      .size = 1,
		                      .trained = tess_weight_is_trained(p, w) };
	int64_t at;

	if (!grown || !about.name)
		return TESS_ENOMEM;
	for (int32_t a = files->by_expert; a < w->ndim; a++) {
		bool cut = files->nparts > 1 && a == w->out_dim;
		const struct tess_dim *d =
			cut ? tess_dim_get_piece(w->dim[a], part, &at) : w->dim[a];

		about.shape[about.ndim++] = d->size;
		about.size *= d->size;
	}
	*list = grown;
	grown[(*n)++] = (struct tess_stored_tensor){ about, w, files->by_expert ? expert : -1,
		                                     files->nparts > 1 ? part : -1 };
	return TESS_OK;
}

tess_status tess_stored_tensors_list(const struct tess_program *p, struct tess_arena *arena,
                                     struct tess_stored_tensor **out, int64_t *n)
{
	struct tess_stored_tensor *list = NULL;
	tess_status st = TESS_OK;

	*n = 0;
	for (int32_t i = 0; i < p->nweights && !st; i++) {
		const struct tess_weight *w = p->weight[i];
		int64_t experts = w->files.by_expert ? w->dim[0]->size : 1;

		for (int64_t e = 0; e < experts && !tess_weight_get_table(w); e++)
			for (int32_t k = 0; k < w->files.nparts && !st; k++)
				st = add_tensor(arena, p, w, e, k, &list, n);
	}
	if (!st)
		*out = list;
	return st;
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct span { /* one piece of an axis */
	int64_t stored, local, n; /* first index in the file, and in the local part */
	int64_t nlocal, nstored; /* sizes of the axis: local, and in the file */
	int64_t npieces;
};

/* The span of an absent axis: one row. */
static const struct span one = { .n = 1, .nlocal = 1, .nstored = 1, .npieces = 1 };

static struct span find_span(const struct tess_kept_walk *w, int32_t axis, int64_t piece)
{
	const struct tess_stored_tensor *t = w->tensor;
	const struct tess_dim *dim = t->weight->dim[axis];
	struct tess_cut cut = tess_program_find_cut(w->p, w->rank, t->weight->place, axis);
	bool in_parts = t->part >= 0 && axis == t->weight->out_dim;
	struct span s = { .nlocal = tess_dim_get_local_size(dim, cut.nranks, cut.rank),
		          .nstored = dim->size,
		          .npieces = in_parts ? 1 : tess_dim_count_pieces(dim) };
	struct tess_run held, owned;
	int64_t at;

	piece = in_parts ? t->part : piece;
	for (int64_t i = 0; i < piece; i++)
		s.local += tess_dim_get_local_size(tess_dim_get_piece(dim, i, &at), cut.nranks,
		                                   cut.rank);
	dim = tess_dim_get_piece(dim, piece, &at);
	if (in_parts) {
		s.nstored = dim->size;
		at = 0;
	}
	tess_dim_get_local_runs(dim, cut.nranks, cut.rank, &held);
	owned = held;
	if (w->ownership != TESS_HELD)
		tess_dim_get_owned_runs(dim, cut.nranks, cut.rank, &owned);
	s.local += owned.start - held.start;
	s.stored = at + owned.start;
	s.n = owned.len;
	return s;
}

/* Finds the next range, kept or not. Adjacent rows without gaps are one range. */
static bool find_next_run(struct tess_kept_walk *w, struct tess_kept_run *out)
{
	const struct tess_weight *weight = w->tensor->weight;
	int32_t ndim = weight->ndim;
	bool apart = w->tensor->expert >= 0;
	struct span experts = ndim == 3 ? find_span(w, 0, 0) : one;
	struct span rows = ndim > 1 ? find_span(w, ndim - 2, w->piece[0]) : one;
	struct span cols = find_span(w, ndim - 1, w->piece[1]);
	int64_t expert = apart ? w->tensor->expert - experts.stored : w->expert;
	bool whole = cols.n == cols.nlocal && cols.n == cols.nstored;
	int64_t step = whole ? rows.n : 1, row = w->row;

	if (expert < 0 || expert >= experts.n || w->done)
		return false;
	out->stored = (((apart ? 0 : experts.stored + expert) * rows.nstored) + rows.stored + row) *
	                      cols.nstored +
	              cols.stored;
	out->kept = ((experts.local + expert) * rows.nlocal + rows.local + row) * cols.nlocal +
	            cols.local;
	out->n = row < rows.n ? step * cols.n : 0;
	/* the next piece of columns, row, piece of rows, expert */
	if (++w->piece[1] < cols.npieces)
		return true;
	w->piece[1] = 0;
	w->row += step ? step : 1;
	if (w->row < rows.n)
		return true;
	w->row = 0;
	if (++w->piece[0] < rows.npieces)
		return true;
	w->piece[0] = 0;
	w->done = apart || ++w->expert == experts.n;
	return true;
}

void tess_kept_walk_begin(struct tess_kept_walk *w, const struct tess_program *p,
                          const struct tess_stored_tensor *tensor, int32_t rank, int32_t storage,
                          int32_t ownership)
{
	*w = (struct tess_kept_walk){ .p = p,
		                      .tensor = tensor,
		                      .rank = rank,
		                      .ownership = ownership,
		                      .kept = tess_weight_get_kept(p, tensor->weight, rank,
		                                                   storage) };
	w->done = ownership == TESS_OWNED && tess_weight_get_copy(p, tensor->weight, rank, storage);
}

bool tess_kept_walk_next(struct tess_kept_walk *w, struct tess_kept_run *out)
{
	struct tess_kept_run run;

	while (find_next_run(w, &run)) {
		int64_t lo = run.kept > w->kept.start ? run.kept : w->kept.start;
		int64_t end = w->kept.start + w->kept.len, hi = run.kept + run.n;

		hi = hi < end ? hi : end;
		if (lo >= hi)
			continue;
		out->stored = run.stored + (lo - run.kept);
		out->kept = lo - w->kept.start;
		out->n = hi - lo;
		return true;
	}
	return false;
}

int64_t tess_kept_count(const struct tess_program *p, const struct tess_stored_tensor *tensor,
                        int32_t rank, int32_t storage, int32_t ownership, int64_t first, int64_t n)
{
	struct tess_kept_walk w;
	struct tess_kept_run run;
	int64_t sum = 0;

	tess_kept_walk_begin(&w, p, tensor, rank, storage, ownership);
	while (tess_kept_walk_next(&w, &run)) {
		int64_t lo = run.stored > first ? run.stored : first,
			hi = run.stored + run.n < first + n ? run.stored + run.n : first + n;

		sum += hi > lo ? hi - lo : 0;
	}
	return sum;
}
