#include "nn/run/check.h"

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/world/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct finding { /* result of one rank; sent as i64 */
	int64_t hash, count; /* hash of its part; count: elements */
	int64_t found, row, column; /* found: 0 or 1; row, column: in the full value */
	int64_t bits, other; /* the element here, and on the reference rank */
};
enum { FIELDS = sizeof(struct finding) / sizeof(int64_t) };

/* Returns the bits of an element; of eight bytes, both halves combined. */
static uint32_t load_element_bits(const struct tess_view *v, int64_t node, int64_t row,
                                  int64_t column)
{
	int32_t a = v->ndim == 3;
	size_t width = tess_width(v->dtype);
	int64_t at = (a ? node * v->stride[0] : 0) + row * v->stride[a] + column;
	uint32_t bits[2] = { 0 };

	memcpy(bits, (const char *)v->data + width * (size_t)at, width);
	return bits[0] ^ bits[1];
}

/* NaN and Inf have an exponent of all ones. */
static bool is_not_finite(uint32_t bits)
{
	return (bits & 0x7f800000) == 0x7f800000;
}

int64_t tess_logits_find_not_finite(const float *x, int64_t n)
{
	enum { RUN = 256 }; /* elements that are tested without a branch, by vector code */

	for (int64_t i = 0; i < n; i++) {
		int found = 0;

		for (int j = 0; j < RUN && i + RUN <= n; j++)
			found |= !isfinite(x[i + j]);
		if (!found && i + RUN <= n)
			i += RUN - 1;
		else if (!isfinite(x[i]))
			return i;
	}
	return -1;
}

/* Returns the global index of element `at` of this rank's part of an axis. */
static int64_t map_to_global(const struct tess_check *c, int32_t axis, int64_t at)
{
	/* with three axes, rows are those of this rank's part: the first two axes together */
	const struct tess_dim *d =
		axis < c->tensor->ndim && c->tensor->ndim < 3 ? c->tensor->dim[axis] : NULL;
	struct tess_run *run;
	int64_t i = 0;

	if (!d)
		return at;
	run = calloc((size_t)tess_dim_count_pieces(d), sizeof *run);
	if (!run)
		return at;
	tess_dim_list_local_runs(
		d, tess_program_find_cut(c->program, c->rank, c->tensor->place, axis), run);
	while (at >= run[i].len)
		at -= run[i++].len;
	at += run[i].start;
	free(run);
	return at;
}

static void set_finding(const struct tess_check *c, int64_t row, int64_t column, uint32_t bits,
                        struct finding *out)
{
	out->found = 1;
	out->row = tess_tensor_is_vector(c->tensor) ? 0 : map_to_global(c, 0, row);
	out->column = map_to_global(c, tess_tensor_is_vector(c->tensor) ? 0 : 1, column);
	out->bits = bits;
}

/* Hashes this rank's part, and finds its first NaN or Inf. */
static struct finding scan_part(const struct tess_check *c)
{
	const struct tess_view *v = &c->view;
	int32_t a = v->ndim == 3;
	int64_t nodes = a ? v->shape[0] : 1;
	struct finding f = { .count = nodes * v->shape[a] * v->shape[a + 1] };
	uint64_t hash = TESS_HASH_EMPTY;

	for (int64_t i = 0; i < nodes; i++)
		for (int64_t r = 0; r < v->shape[a]; r++)
			for (int64_t k = 0; k < v->shape[a + 1]; k++) {
				uint32_t bits = load_element_bits(v, i, r, k);

				hash = tess_hash_word(hash, bits);
				if (!f.found && v->dtype == TESS_F32 && is_not_finite(bits))
					set_finding(c, r, k, bits, &f);
			}
	f.hash = (int64_t)(hash ^ hash >> 32);
	return f;
}

tess_status tess_check_open_group(const struct tess_program *p, struct tess_group *all,
                                  struct tess_group **out)
{
	*out = all;
	if (!p->check || p->pipeline_along < 0)
		return TESS_OK;
	return tess_group_split(all, tess_program_get_pipeline_rank(p, tess_group_rank(all)), 0,
	                        "stage", out);
}

void tess_check_close_group(struct tess_group *group, const struct tess_group *all)
{
	if (group != all)
		tess_group_close(group);
}

/* Returns the ranks of the mesh between those of the group, the ranks of a stage. */
static int32_t count_stage_stride(const struct tess_program *p, int32_t *nranks)
{
	*nranks = p->pipeline_along < 0 ? 1 : p->mesh.dim[p->pipeline_along].size;
	return p->pipeline_along < 0 ? 1 : p->mesh.dim[p->pipeline_along].stride;
}

/* Returns the rank in the group of a rank of the mesh. */
static int32_t find_member(const struct tess_program *p, int32_t rank)
{
	int32_t nranks, stride = count_stage_stride(p, &nranks);

	return rank / (stride * nranks) * stride + rank % stride;
}

/* Returns the rank of the mesh, with coordinate 0 along pp, of a rank in the group. */
static int32_t find_mesh_rank(const struct tess_program *p, int32_t member)
{
	int32_t nranks, stride = count_stage_stride(p, &nranks);

	return member / stride * stride * nranks + member % stride;
}

/*
 * Returns the lowest rank of the group that holds the same part as `member`: the first along
 * dimensions with a replicated value. Along dp, ranks have different tokens and sums.
 */
static int32_t find_first_alike(const struct tess_check *c, int32_t member)
{
	const struct tess_mesh_shape *mesh = &c->program->mesh;
	int32_t rank = find_mesh_rank(c->program, member);
	const struct tess_dim *tokens = c->program->training ? c->program->tokens : NULL;
	bool apart = tokens && (c->tensor->dim[0] == tokens || c->tensor->sum == tokens);

	for (int32_t i = 0; i < mesh->ndims; i++)
		if (c->tensor->place[i].kind == TESS_REPLICATE &&
		    !(apart && i == c->program->data_along))
			rank -= tess_mesh_shape_coordinate(mesh, i, rank) * mesh->dim[i].stride;
	return find_member(c->program, rank);
}

/* Returns the lowest rank with the most frequent hash among those with the part of `first`. */
static int32_t find_majority(const struct tess_check *c, const struct finding *all, int32_t n,
                             int32_t first)
{
	int32_t best = first, max_count = 0;

	for (int32_t r = 0; r < n; r++) {
		int32_t count = 0;

		for (int32_t q = 0; q < n; q++)
			count += find_first_alike(c, q) == first && all[q].hash == all[r].hash;
		if (find_first_alike(c, r) == first && count > max_count) {
			max_count = count;
			best = r;
		}
	}
	return best;
}

static double convert_bits(const struct tess_check *c, int64_t bits)
{
	uint32_t low = (uint32_t)bits;
	float f;

	if (c->view.dtype == TESS_I8)
		return (double)(int8_t)low;
	if (c->view.dtype != TESS_F32)
		return (double)(int32_t)low;
	memcpy(&f, &low, sizeof f);
	return (double)f;
}

/* Returns the module: for weights that share an input, the one whose output is checked. */
static const char *get_checked_module(const struct tess_check *c)
{
	return c->record->kind == TESS_OP_LINEAR ? c->tensor->module : c->record->module;
}

enum { CAUSE_TEXT = 640 };

/* Names the style whose function has computed the value; `otherwise`: an op has. */
static const char *name_cause(const struct tess_check *c, const char *otherwise,
                              char text[static CAUSE_TEXT])
{
	struct tess_plugin_origin origin;

	if (!c->record->style || !tess_registry_find_origin(c->record->style, &origin))
		return otherwise;
	snprintf(text, CAUSE_TEXT, "style %s (%s)", origin.name, origin.path);
	return text;
}

static tess_status fail_not_finite(const struct tess_check *c, struct tess_group *g,
                                   const struct finding *f, int32_t rank)
{
	char cause[CAUSE_TEXT];

	tess_fail(TESS_EINVAL,
	          "%s: %s gives %s on rank %d, at row %lld, column %lld: the first value of this "
	          "step that is not finite; check this module's weights, and %s",
	          get_checked_module(c), tess_record_kind_name(c->record->kind),
	          isnan(convert_bits(c, f->bits)) ? "NaN" : "Inf", (int)rank, (long long)f->row,
	          (long long)f->column, name_cause(c, "its style or plugin", cause));
	return tess_group_fail_together(g, TESS_EINVAL);
}

static uint32_t load_bits_at(const struct tess_view *v, int64_t i)
{
	int64_t rows = v->shape[v->ndim - 2], columns = v->shape[v->ndim - 1];

	return load_element_bits(v, i / columns / rows, i / columns % rows, i % columns);
}

/* Finds the first element that differs from the one on rank `from`, which broadcasts its part. */
static tess_status find_difference(const struct tess_check *c, struct tess_group *g, int32_t from,
                                   int64_t count, uint32_t *theirs, struct finding *out)
{
	int64_t rows = c->view.shape[c->view.ndim - 2], columns = c->view.shape[c->view.ndim - 1];
	bool alike =
		find_first_alike(c, find_member(c->program, c->rank)) == find_first_alike(c, from);
	tess_status st;

	for (int64_t i = 0; i < count && alike; i++)
		theirs[i] = load_bits_at(&c->view, i);
	st = tess_broadcast(g, theirs, (uint64_t)count, TESS_I32, from, c->record->module);
	*out = (struct finding){ 0 };
	for (int64_t i = 0; i < count && !st && alike && !out->found; i++) {
		uint32_t mine = load_bits_at(&c->view, i);

		if (mine == theirs[i])
			continue;
		set_finding(c, i / columns % rows, i % columns, mine, out);
		out->other = theirs[i];
	}
	return st;
}

/* Reports ranks that differ from others with the part of `first`. Collective. */
static tess_status fail_difference(const struct tess_check *c, struct tess_group *g,
                                   struct finding *all, int32_t n, int32_t first)
{
	int32_t from = find_majority(c, all, n, first), r = 0;
	int64_t count = all[from].count;
	uint32_t *theirs = malloc((size_t)(count + 1) * sizeof *theirs);
	char cause[CAUSE_TEXT];
	struct finding mine;
	tess_status st = theirs ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = find_difference(c, g, from, count, theirs, &mine);
	if (!st)
		st = tess_all_gather(g, &mine, all, FIELDS, TESS_I64, c->record->module);
	while (!st && r < n - 1 && !all[r].found)
		r++;
	if (!st) {
		tess_fail(TESS_EMISMATCH,
		          "%s: %s gives %.9g on rank %d but %.9g on rank %d, at row %lld, column "
		          "%lld, where all ranks must hold the same value; %s makes them differ",
		          get_checked_module(c), tess_record_kind_name(c->record->kind),
		          convert_bits(c, all[r].bits), (int)tess_group_member(g, r),
		          convert_bits(c, all[r].other), (int)tess_group_member(g, from),
		          (long long)all[r].row, (long long)all[r].column,
		          name_cause(c, "its style or a plugin's function", cause));
		st = tess_group_fail_together(g, TESS_EMISMATCH);
	}
	free(theirs);
	return st;
}

tess_status tess_check_run(const struct tess_check *c, struct tess_group *g)
{
	int32_t n = tess_group_size(g);
	struct finding mine = scan_part(c), *all = calloc((size_t)n, sizeof *all);
	tess_status st = all ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = tess_all_gather(g, &mine, all, FIELDS, TESS_I64, c->record->module);
	for (int32_t r = 0; r < n && !st; r++)
		if (all[r].found)
			st = fail_not_finite(c, g, &all[r], tess_group_member(g, r));
	for (int32_t r = 0; r < n && !st; r++)
		if (all[r].hash != all[find_first_alike(c, r)].hash)
			st = fail_difference(c, g, all, n, find_first_alike(c, r));
	free(all);
	return st;
}
