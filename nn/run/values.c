#include "nn/run/values.h"

#include "core/base/memory_file.h"
#include "core/base/status.h"
#include "nn/program/agree.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

/* ---- rows on this rank ----------------------------------------------------------------------- */

void tess_value_store_clear(struct tess_value_store *s)
{
	for (int32_t i = 0; i < s->nvalues; i++)
		free(s->rows[i].data);
	free(s->rows);
	free(s->parts);
	*s = (struct tess_value_store){ 0 };
}

static bool is_data_or_stage(const struct tess_mesh_dim *dim)
{
	return !strcmp(dim->name, "dp") || !strcmp(dim->name, "pp");
}

/* Returns whether this rank stores the values of its stage: the first one but for pp and dp. */
static bool is_first(const struct tess_program *p, int32_t rank)
{
	for (int32_t i = 0; i < p->mesh.ndims; i++)
		if (!is_data_or_stage(&p->mesh.dim[i]) &&
		    tess_mesh_shape_coordinate(&p->mesh, i, rank))
			return false;
	return true;
}

static tess_status reserve_value_rows(struct tess_stored_rows *r, int64_t n, int64_t columns)
{
	int64_t capacity = r->capacity ? r->capacity : n;
	float *more;

	while (capacity < r->nrows + n)
		capacity *= 2;
	if (capacity == r->capacity)
		return TESS_OK;
	more = realloc(r->data, (size_t)(capacity * columns) * sizeof *more);
	if (!more)
		return tess_fail(TESS_ENOMEM, "values: out of memory for %lld rows of %lld",
		                 (long long)capacity, (long long)columns);
	r->data = more;
	r->capacity = capacity;
	return TESS_OK;
}

/* Queues the copy of one value behind the rows so far. */
static tess_status read_value(struct tess_stored_rows *r, const struct tess_kept_value *v,
                              const void *from, const struct tess_opened_device *device)
{
	int64_t n = v->value->dim[0]->size, columns = v->value->dim[1]->size;
	tess_status st = TESS_OK;

	if (from && n)
		st = reserve_value_rows(r, n, columns);
	if (!st && from && n)
		st = tess_device_copy(device, v->module, r->data + r->nrows * columns, from,
		                      (uint64_t)(n * columns) * sizeof *r->data);
	r->nrows += n;
	return st;
}

tess_status tess_value_store_add_step(struct tess_value_store *s, const int64_t *parts,
                                      int32_t nreplicas)
{
	size_t each = (size_t)nreplicas * sizeof *parts;
	int64_t *more = parts ? realloc(s->parts, ((size_t)s->nparts + 1) * each) : NULL;

	s->nsteps++;
	if (!parts)
		return TESS_OK;
	if (!more) {
		tess_value_store_clear(s);
		return tess_fail(TESS_ENOMEM, "values: out of memory");
	}
	s->parts = more;
	memcpy(more + s->nparts * nreplicas, parts, each);
	s->nparts++;
	return TESS_OK;
}

tess_status tess_value_store_read(struct tess_value_store *s, const struct tess_program *p,
                                  const struct tess_rank_program *l, int32_t stage,
                                  const struct tess_opened_device *device)
{
	bool first = is_first(p, l->rank);
	tess_status st = TESS_OK;

	if (!s->rows) {
		s->rows = calloc((size_t)p->nvalues + 1, sizeof *s->rows);
		s->nvalues = s->rows ? p->nvalues : 0;
	}
	if (!s->rows)
		st = tess_fail(TESS_ENOMEM, "values: out of memory");
	for (int32_t i = 0; i < p->nvalues && !st; i++)
		if (stage == TESS_STAGES_ALL || stage == p->values[i].stage)
			st = read_value(&s->rows[i], &p->values[i], first ? l->values[i] : NULL,
			                device);
	if (!st)
		st = tess_device_sync(device, "values");
	if (st)
		tess_value_store_clear(s);
	return st;
}

/* ---- which rank held what -------------------------------------------------------------------- */

struct held_run { /* elements from `start` on, by a rank */
	int64_t start;
	int32_t rank;
};

static int compare_held_runs(const void *a, const void *b)
{
	const struct held_run *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* Prints the owners of an axis that mesh dimension `along` cuts, after those of another axis. */
static tess_status print_axis(FILE *f, const struct tess_program *p, const struct tess_group *group,
                              const struct tess_dim *dim, int32_t axis, int32_t along, int32_t base,
                              bool after)
{
	const struct tess_mesh_dim *d = &p->mesh.dim[along];
	int64_t pieces = tess_dim_count_pieces(dim), n = 0;
	struct tess_run *run = calloc((size_t)pieces, sizeof *run);
	struct held_run *list = calloc((size_t)(pieces * d->size), sizeof *list);
	tess_status st = run && list ? TESS_OK : tess_fail(TESS_ENOMEM, "values: out of memory");

	for (int32_t r = 0; r < d->size && !st; r++) {
		tess_dim_get_owned_runs(dim, d->size, r, run);
		for (int64_t i = 0; i < pieces; i++)
			if (run[i].len)
				list[n++] = (struct held_run){
					run[i].start, base + tess_group_member(group, r * d->stride)
				};
	}
	if (!st)
		qsort(list, (size_t)n, sizeof *list, compare_held_runs);
	for (int64_t i = 0; i < n; i++)
		fprintf(f, "%s%d:%lld:%d", after || i ? " " : "", (int)axis,
		        (long long)list[i].start, (int)list[i].rank);
	free(run);
	free(list);
	return st;
}

/* Returns the rank of a stage, as an offset to other coordinates. */
static int32_t find_stage_rank(const struct tess_program *p, int32_t stage)
{
	return p->pipeline_along < 0 ? 0
	                             : p->stage_rank[stage] * p->mesh.dim[p->pipeline_along].stride;
}

/* Describes the ranks that hold a value. with_rows: tokens of one step, which ranks may cut. */
static tess_status describe_holders(const struct tess_program *p, const struct tess_group *group,
                                    const struct tess_kept_value *v, bool with_rows, char **out)
{
	int32_t base = tess_group_member(group, find_stage_rank(p, v->stage));
	char *text = NULL;
	size_t len = 0;
	FILE *f = tess_memory_file_open(&text, &len);
	tess_status st = f ? TESS_OK : TESS_ENOMEM;
	bool any = false, failed;

	for (int32_t axis = with_rows ? 0 : 1; axis < 2 && !st; axis++) {
		int32_t along = tess_places_find(v->placed->place, p->mesh.ndims, TESS_SHARD, axis);

		if (along < 0 || p->mesh.dim[along].size == 1)
			continue;
		st = print_axis(f, p, group, v->placed->dim[axis], axis, along, any ? 0 : base,
		                any);
		any = true;
	}
	if (!st && !any && p->pipeline_along >= 0)
		fprintf(f, "1:0:%d", (int)base);
	failed = f && ferror(f);
	if (f)
		fclose(f);
	if (!st && failed)
		st = tess_fail(TESS_ENOMEM, "values: out of memory");
	if (st || !len) {
		free(text);
		text = NULL;
	}
	*out = text;
	return st;
}

/* ---- taking ---------------------------------------------------------------------------------- */

void tess_taken_values_free(struct tess_taken_value *v, int32_t n)
{
	for (int32_t i = 0; v && i < n; i++) {
		free(v[i].data);
		free(v[i].holders);
	}
	free(v);
}

/* Counts the rows of one replica. */
static int64_t count_replica_rows(const struct tess_value_store *s, int32_t i, int32_t replica,
                                  int32_t nreplicas)
{
	int64_t n = 0;

	if (!s->parts)
		return s->rows ? s->rows[i].nrows : 0;
	for (int64_t k = 0; k < s->nparts; k++)
		n += s->parts[k * nreplicas + replica];
	return n;
}

static tess_status allocate_taken(const struct tess_value_store *s, const struct tess_program *p,
                                  const struct tess_group *group, int32_t nreplicas,
                                  struct tess_taken_value **out)
{
	struct tess_taken_value *list = calloc((size_t)p->nvalues + 1, sizeof *list);
	tess_status st = list ? TESS_OK : tess_fail(TESS_ENOMEM, "values: out of memory");

	for (int32_t i = 0; i < p->nvalues && !st; i++) {
		struct tess_taken_value *v = &list[i];

		v->name = p->values[i].name;
		v->styles = p->values[i].styles;
		v->columns = p->values[i].value->dim[1]->size;
		for (int32_t d = 0; d < nreplicas; d++)
			v->rows += count_replica_rows(s, i, d, nreplicas);
		v->data = malloc((size_t)(v->rows * v->columns) * sizeof *v->data + 1);
		st = v->data ? describe_holders(p, group, &p->values[i],
		                                s->nsteps == 1 && nreplicas == 1, &v->holders)
		             : tess_fail(TESS_ENOMEM, "%s: no memory for its values", v->name);
	}
	if (st)
		tess_taken_values_free(list, p->nvalues);
	else
		*out = list;
	return st;
}

/* Returns the rank that stores value i of a replica. */
static int32_t find_owner(const struct tess_program *p, int32_t i, int32_t replica)
{
	int32_t dp = p->training ? tess_mesh_shape_find(&p->mesh, "dp", 2) : -1;

	return find_stage_rank(p, p->values[i].stage) +
	       (dp >= 0 ? replica * p->mesh.dim[dp].stride : 0);
}

/* Copies n rows of one replica to their places among those of all replicas. */
static void place_rows(const struct tess_value_store *s, const float *from, int32_t replica,
                       int32_t nreplicas, struct tess_taken_value *v)
{
	int64_t at = 0;

	if (!s->parts)
		memcpy(v->data, from, (size_t)(v->rows * v->columns) * sizeof *from);
	for (int64_t k = 0; k < s->nparts; k++) {
		for (int32_t d = 0; d < nreplicas; d++) {
			int64_t n = s->parts[k * nreplicas + d];

			if (d == replica && n) {
				memcpy(v->data + at * v->columns, from,
				       (size_t)(n * v->columns) * sizeof *from);
				from += n * v->columns;
			}
			at += n;
		}
	}
}

/* Sends the rows of value i of a replica from their rank to rank 0. */
static tess_status send_value_rows(const struct tess_value_store *s, const struct tess_program *p,
                                   struct tess_group *group, int32_t i, int32_t replica,
                                   int32_t nreplicas, struct tess_taken_value *v)
{
	int32_t owner = find_owner(p, i, replica), rank = tess_group_rank(group);
	int64_t n = count_replica_rows(s, i, replica, nreplicas) * p->values[i].value->dim[1]->size;
	struct tess_coll c = { .size = sizeof c,
		               .kind = rank ? TESS_SEND : TESS_RECV,
		               .dtype = TESS_F32,
		               .count = (uint64_t)n,
		               .peer = rank ? 0 : owner,
		               .where = p->values[i].module };
	float *received = NULL;
	tess_status st = TESS_OK;

	if (!n || (rank && rank != owner))
		return TESS_OK;
	if (!owner) {
		place_rows(s, s->rows[i].data, replica, nreplicas, v);
		return TESS_OK;
	}
	if (rank)
		c.src = s->rows[i].data;
	else
		c.dst = received = malloc((size_t)n * sizeof *received);
	st = rank || received
	             ? tess_group_run(group, &c)
	             : tess_fail(TESS_ENOMEM, "%s: no memory for its values", p->values[i].module);
	if (!st && received)
		place_rows(s, received, replica, nreplicas, v);
	free(received);
	return st;
}

tess_status tess_value_store_take(struct tess_value_store *s, const struct tess_program *p,
                                  struct tess_group *group, int32_t nreplicas,
                                  struct tess_taken_value **out)
{
	struct tess_taken_value *list = NULL;
	bool first = tess_group_rank(group) == 0;
	tess_status st = first ? allocate_taken(s, p, group, nreplicas, &list) : TESS_OK;

	st = tess_group_agree_status(group, st, "values");
	for (int32_t i = 0; i < p->nvalues && !st; i++)
		for (int32_t d = 0; d < nreplicas && !st; d++)
			st = send_value_rows(s, p, group, i, d, nreplicas, first ? &list[i] : NULL);
	if (st) {
		tess_taken_values_free(list, p->nvalues);
		return st;
	}
	tess_value_store_clear(s);
	*out = list;
	return TESS_OK;
}
