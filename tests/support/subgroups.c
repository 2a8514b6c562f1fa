#include "subgroups.h"
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/sum/exact.h"
#include "core/sum/shared_region.h"
#include "core/world/world.h"
#include "data.h"
#include "entries.h"
#include "tree_sum.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>

/* ---- splits ---------------------------------------------------------------------------------- */

/* Checks that the group has these world ranks in this order, and that collectives work in it. */
static tess_status check_members(struct tess_group *g, const char *name, const int32_t *want,
                                 int32_t n)
{
	int32_t me = tess_group_rank(g), got[64] = { 0 };
	tess_status st;

	if (tess_group_size(g) != n || strcmp(tess_group_name(g), name))
		return tess_fail(TESS_EBUG, "group %s has %d ranks; expected %s of %d",
		                 tess_group_name(g), tess_group_size(g), name, n);
	if (tess_group_member(g, -1) != -1 || tess_group_member(g, n) != -1)
		return tess_fail(TESS_EBUG, "group %s has members beyond its %d", name, n);
	st = tess_all_gather(g, &want[me], got, 1, TESS_I32, "is_of");
	for (int32_t r = 0; r < n && !st; r++)
		if (tess_group_member(g, r) != want[r] || got[r] != want[r])
			st = tess_fail(TESS_EBUG,
			               "rank %d of group %s is %d, and sent %d; expected %d", r,
			               name, tess_group_member(g, r), got[r], want[r]);
	return st;
}

static tess_status check_every_kind(struct tess_group *g)
{
	static const uint64_t counts[] = { 3, 0, 40000 };
	int32_t n = tess_group_size(g);
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < 3 * 8 && !st; i++) {
		struct conform_case c = { .kind = TESS_BROADCAST + i % 8,
			                  .dtype = i % 2 ? TESS_F32 : TESS_BF16,
			                  .op = TESS_SUM,
			                  .count = counts[i / 8],
			                  .in_place = i % 3 == 0 };

		c.root = tess_kind_rooted(c.kind) ? n - 1 : 0;
		st = data_run(g, &c);
	}
	return st ? st : tess_barrier(g, "every_kind");
}

static tess_status split_by_parity(struct tess_world *w, bool reversed)
{
	int32_t me = tess_world_rank(w), n = tess_world_size(w), parity = me % 2, m = 0;
	int32_t want[64];
	struct tess_group *g = NULL;
	char name[16];
	tess_status st =
		tess_group_split(tess_world_group(w), parity, reversed ? -me : 7, "parity", &g);

	if (st)
		return st;
	for (int32_t r = parity; r < n; r += 2)
		want[m++] = r;
	for (int32_t i = 0; reversed && i < m / 2; i++) {
		int32_t low = want[i];

		want[i] = want[m - 1 - i];
		want[m - 1 - i] = low;
	}
	snprintf(name, sizeof name, "parity/%d", parity);
	st = check_members(g, name, want, m);
	if (!st)
		st = check_every_kind(g);
	if (!st)
		tess_group_close(g);
	return st;
}

/* Splits off the middle ranks; the outer ranks are in no group, and continue. */
static tess_status split_without_ends(struct tess_world *w)
{
	int32_t me = tess_world_rank(w), n = tess_world_size(w), m = 0, want[64];
	bool inside = me && me < n - 1;
	struct tess_group *g = tess_world_group(w), *newest = w->groups;
	tess_status st = tess_group_split(g, inside ? 3 : -1, 0, NULL, &g);

	if (!st && (!g != !inside || (w->groups == newest) == inside))
		return tess_fail(TESS_EBUG, "rank %d of %d got %p", me, n, (void *)g);
	for (int32_t r = 1; r < n - 1; r++)
		want[m++] = r;
	if (!st && g)
		st = check_members(g, "split/3", want, m);
	if (!st)
		st = tess_barrier(tess_world_group(w), "outside");
	if (!st)
		tess_group_close(g);
	return st;
}

/* Splits halves of halves down to single ranks; the parents are closed before their children. */
static tess_status split_into_halves(struct tess_world *w)
{
	struct tess_group *g[8] = { tess_world_group(w) };
	int depth = 0;
	tess_status st = TESS_OK;

	while (tess_group_size(g[depth]) > 1 && !st) {
		int32_t n = tess_group_size(g[depth]),
			high = tess_group_rank(g[depth]) >= (n + 1) / 2;
		int32_t first = tess_group_member(g[depth], high ? (n + 1) / 2 : 0), want[64];

		st = tess_group_split(g[depth], high, 0, "half", &g[depth + 1]);
		if (st)
			break;
		n = high ? n / 2 : (n + 1) / 2;
		for (int32_t i = 0; i < n; i++)
			want[i] = first + i;
		st = check_members(g[++depth], high ? "half/1" : "half/0", want, n);
	}
	if (!st)
		st = check_every_kind(g[depth]);
	for (int i = 1; i <= depth && !st; i++)
		tess_group_close(g[i]);
	return st;
}

/*
 * Checks the groups of a split: members and their order, every kind of collective, splits of
 * splits.
 */
static tess_status check_splits(struct tess_world *w)
{
	tess_status st = check_every_kind(tess_world_group(w));

	if (!st)
		st = split_by_parity(w, false);
	if (!st)
		st = split_by_parity(w, true);
	if (!st)
		st = split_without_ends(w);
	return st ? st : split_into_halves(w);
}

/* ---- several groups at once ------------------------------------------------------------------ */

/*
 * Overlaps calls of three groups. Each rank begins with another group; all complete the groups in
 * one order, but the calls of a group in different orders.
 */
static tess_status overlap_group_calls(struct tess_world *w)
{
	enum { GROUPS = 3, KINDS = 4, ALL = GROUPS * KINDS };
	int32_t me = tess_world_rank(w), n = tess_world_size(w);
	struct tess_group *g[GROUPS] = { tess_world_group(w) };
	struct data_pending work[ALL];
	tess_status st = tess_group_split(g[0], me % 2, -me, "parity", &g[1]);

	if (!st)
		st = tess_group_split(g[0], me >= n / 2, 0, "half", &g[2]);
	for (int round = 0; round < 6 && !st; round++) {
		for (int i = 0; i < ALL && !st; i++) {
			int which = (i + me) % GROUPS, call = i / GROUPS;
			struct tess_group *at = g[which];
			struct conform_case c = { .kind = TESS_ALL_REDUCE + call,
				                  .dtype = TESS_I32,
				                  .op = TESS_SUM,
				                  .count = round % 2 ? 20000 : 20 };

			c.root = tess_kind_rooted(c.kind) ? tess_group_size(at) - 1 : 0;
			st = data_start(at, &c, &work[which * KINDS + call]);
		}
		for (int i = 0; i < ALL && !st; i++) {
			int call = i % KINDS;

			st = data_finish(&work[i - call + (me % 2 ? KINDS - 1 - call : call)]);
		}
	}
	if (!st)
		tess_group_close(g[1 + me % 2]);
	if (!st)
		tess_group_close(g[2 - me % 2]);
	return st;
}

/* ---- exact sums ------------------------------------------------------------------------------ */

static float compute_leaf(const void *arg, const struct tess_tree *tree, int64_t unit)
{
	uint64_t k = *(const uint64_t *)arg;
	uint32_t h = (uint32_t)unit * 2246822519u ^ (uint32_t)k * 3266489917u;

	(void)tree;
	h ^= h >> 15;
	h *= 2654435761u;
	return (float)(int32_t)h * (h % 8 ? 1.0f : 1e-5f);
}

/*
 * Reduces this rank's nodes into `to`; checks that every rank gets the sum by definition, bit for
 * bit.
 */
static tess_status check_sum_in_group(struct tess_group *g, int64_t n, uint64_t count, float *to,
                                      float *out)
{
	struct tess_sum s = { .ntree = 1, .n = &n, .count = count, .where = "subgroups:sum" };
	const struct tess_tree tree = { .n = n, .hi = n };
	int32_t ranks = tess_group_size(g), me = tess_group_rank(g);
	int64_t lo = tess_edge(n, ranks, me), hi = tess_edge(n, ranks, me + 1), at = lo;
	const float *nodes = to;
	struct tess_node one;
	tess_status st;

	while (tess_node_next(n, lo, hi, &at, &one))
		for (uint64_t k = 0; k < count; k++)
			tree_sum_node(&tree, 0, n, one.depth, one.at, compute_leaf, &k, to++);
	st = tess_group_sum(g, &s, nodes, out);
	for (uint64_t k = 0; k < count && !st; k++) {
		float want = 0;

		tree_sum_node(&tree, 0, n, 0, 0, compute_leaf, &k, &want);
		want += 0.0f;
		if (memcmp(&out[k], &want, sizeof want))
			st = tess_fail(TESS_EBUG, "element %d of a sum over %s is %a; expected %a",
			               (int)k, tess_group_name(g), (double)out[k], (double)want);
	}
	return st;
}

/* Checks sums in a fixed order. */
static tess_status sum_exactly_in_subgroups(struct tess_world *w)
{
	enum { UNITS = 7, COUNT_MAX = 17000 };
	uint64_t bytes = (2 * UNITS + 1) * COUNT_MAX * sizeof(float);
	int32_t me = tess_world_rank(w);
	struct tess_group *g;
	float *memory = malloc(bytes);
	void *shared;
	tess_status st = memory ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	if (!st)
		st = tess_group_split(tess_world_group(w), me % 2, -me, "parity", &g);
	for (int i = 0; i < 2 && !st; i++)
		st = check_sum_in_group(g, UNITS, i ? COUNT_MAX : 100, memory,
		                        memory + 2 * UNITS * COUNT_MAX);
	if (!st && tess_group_has_shared_memory(g)) {
		st = tess_group_alloc(g, &bytes, &shared);
		if (!st)
			st = check_sum_in_group(g, UNITS, COUNT_MAX, shared,
			                        (float *)shared + 2 * UNITS * COUNT_MAX);
		if (!st)
			st = tess_barrier(g, "end");
		if (!st)
			tess_group_free(g, shared);
	}
	if (!st)
		tess_group_close(g);
	free(memory);
	return st;
}

/* ---- meshes ---------------------------------------------------------------------------------- */

/*
 * Checks that the slice's group has only the ranks that differ from this one along these strides
 * and sizes.
 */
static tess_status check_slice(const struct tess_mesh *m, const char *dims, const int32_t *size,
                               const int32_t *stride, int32_t ndims)
{
	struct tess_group *g = tess_mesh_group(m, dims);
	int32_t me, base, all = 1, got = 0;
	tess_status st;

	if (!g)
		return tess_fail(TESS_EBUG, "the mesh has no group %s", dims);
	base = me = tess_group_member(g, tess_group_rank(g));
	for (int32_t i = 0; i < ndims; i++) {
		base -= me / stride[i] % size[i] * stride[i];
		all *= size[i];
	}
	if (tess_group_size(g) != all || tess_mesh_size(m, dims) != all ||
	    tess_mesh_rank(m, dims) != tess_group_rank(g))
		return tess_fail(TESS_EBUG,
		                 "rank %d: slice %s: %d of %d, but the group has %d of %d", me,
		                 dims, tess_mesh_rank(m, dims), tess_mesh_size(m, dims),
		                 tess_group_rank(g), tess_group_size(g));
	for (int32_t r = 0; r < all; r++) {
		int32_t rest = r, want = base;

		for (int32_t i = ndims - 1; i >= 0; i--) {
			want += rest % size[i] * stride[i];
			rest /= size[i];
		}
		if (tess_group_member(g, r) != want)
			return tess_fail(TESS_EBUG, "rank %d of slice %s is %d; expected %d", r,
			                 dims, tess_group_member(g, r), want);
		got += want;
	}
	st = tess_all_reduce(g, &me, &base, 1, TESS_I32, TESS_SUM, "check_slice");
	return st || base == got ? st
	                         : tess_fail(TESS_EBUG, "the sum along %s is %d; expected %d", dims,
	                                     base, got);
}

static tess_status check_mesh(struct tess_world *w, int32_t a, int32_t b, int32_t c)
{
	const int32_t size[3] = { a, b, c }, stride[3] = { b * c, c, 1 };
	struct tess_mesh *m;
	char text[64];
	tess_status st;

	snprintf(text, sizeof text, a % 2 ? "pp=%d,dp=%d,tp" : "pp=%d,dp=%d,tp=%d", a, b, c);
	st = tess_mesh_open(w, text, &m);
	if (st)
		return st;
	st = check_slice(m, "pp", size, stride, 1);
	if (!st)
		st = check_slice(m, "dp", size + 1, stride + 1, 1);
	if (!st)
		st = check_slice(m, "tp", size + 2, stride + 2, 1);
	if (!st && (tess_mesh_group(m, "dp,tp") || tess_mesh_group(m, "ep")))
		st = tess_fail(TESS_EBUG, "mesh %s has slices that were not opened", text);
	if (!st && !(st = tess_mesh_slice(m, "dp,tp")))
		st = check_slice(m, "dp,tp", size + 1, stride + 1, 2);
	if (!st && !(st = tess_mesh_slice(m, "tp,pp")))
		st = check_slice(m, "tp,pp", (int32_t[]){ c, a }, (int32_t[]){ 1, b * c }, 2);
	if (!st && !(st = tess_mesh_slice(m, "pp,dp,tp")) &&
	    tess_mesh_group(m, "pp,dp,tp") != tess_world_group(w))
		st = tess_fail(TESS_EBUG,
		               "the slice of all of mesh %s is another group than the world's",
		               text);
	if (!st)
		tess_mesh_close(m);
	return st;
}

/* Opens all meshes of up to three dimensions that fit the world, with their slices. */
static tess_status open_all_meshes(struct tess_world *w)
{
	int32_t n = tess_world_size(w);
	struct tess_mesh *m;
	tess_status st = tess_mesh_open(w, "tp", &m);

	if (!st && (tess_mesh_group(m, "tp") != tess_world_group(w) || tess_mesh_group(m, "dp")))
		st = tess_fail(TESS_EBUG, "the mesh \"tp\" has other groups than it should");
	if (!st)
		tess_mesh_close(m);
	for (int32_t a = 1; a <= n; a++)
		for (int32_t b = 1; a * b <= n; b++)
			if (n % (a * b) == 0 && !st)
				st = check_mesh(w, a, b, n / a / b);
	return st;
}

/* ---- leaving while calls are under way ------------------------------------------------------- */

/* Closes a group on rank 0, which then leaves the world, during calls that need it. */
static tess_status leave_groups_early(struct tess_world *w)
{
	enum { COUNT = 1 << 20 };
	static float first[2][COUNT]; /* for rank 0, whose second call outlives this function */
	struct tess_group *g = tess_world_group(w);
	bool leaves = tess_world_rank(w) == 0;
	tess_status st = TESS_OK;

	for (int i = 0; i < 2 && !st; i++) {
		float *x = leaves ? first[i] : calloc(COUNT, sizeof *x), n = 0;
		struct tess_coll c = { .size = sizeof c,
			               .kind = TESS_ALL_REDUCE,
			               .dtype = TESS_F32,
			               .src = x,
			               .dst = x,
			               .count = COUNT,
			               .where = "subgroups:leave" };
		struct tess_work *work;

		if (!x)
			return tess_fail(TESS_ENOMEM, "no memory");
		x[COUNT - 1] = 1;
		if (i == 0)
			st = tess_group_split(g, 0, 0, "leave", &g);
		n = (float)tess_group_size(g);
		if (!st)
			st = leaves ? tess_group_start(g, &c, &work) : tess_group_run(g, &c);
		if (!st && i == 0)
			tess_group_close(g);
		if (!st && (!leaves || i == 0) && x[COUNT - 1] != n)
			st = tess_fail(TESS_EBUG, "a sum of ones is %g of %g ranks",
			               (double)x[COUNT - 1], (double)n);
		if (!leaves)
			free(x);
		g = tess_world_group(w);
	}
	return st;
}

tess_status subgroups_run_all(struct tess_world *w)
{
	tess_status st = check_splits(w);

	if (!st)
		st = overlap_group_calls(w);
	if (!st)
		st = sum_exactly_in_subgroups(w);
	if (!st)
		st = open_all_meshes(w);
	return st ? st : leave_groups_early(w);
}

/* ---- opening and closing groups -------------------------------------------------------------- */

/*
 * Opens two pairs of groups, each rank in one group of a pair; odd ranks close them in the other
 * order.
 */
static tess_status open_and_close_groups(struct tess_world *w, int round)
{
	int32_t me = tess_world_rank(w);
	struct tess_group *a, *b;
	int32_t x = 1, y = 0;
	tess_status st = tess_group_split(tess_world_group(w), (me + round) % 2, -me, "a", &a);

	if (!st)
		st = tess_group_split(tess_world_group(w), 0, round % 3 ? me : -me, "b", &b);
	if (!st)
		st = tess_all_reduce(a, &x, &y, 1, TESS_I32, TESS_SUM, "live.a");
	if (!st && y != tess_group_size(a))
		st = tess_fail(TESS_EBUG, "a sum of ones is %d", y);
	if (!st)
		st = tess_all_reduce(b, &x, &y, 1, TESS_I32, TESS_SUM, "live.b");
	if (!st)
		tess_group_close(me % 2 ? a : b);
	if (!st)
		tess_group_close(me % 2 ? b : a);
	return st;
}

/* Returns the allocated bytes; 0 with a sanitizer, which has a heap of its own. */
static size_t measure_heap(void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	return 0;
#else
	return mallinfo2().uordblks;
#endif
}

struct resource_usage {
	size_t bytes;
	int files;
};

/*
 * Measures usage while no rank has a group open, one rank at a time, because counting files takes
 * memory.
 */
static tess_status measure_resources(struct tess_world *w, struct resource_usage *out)
{
	tess_status st = tess_barrier(tess_world_group(w), "still");

	out->bytes = measure_heap();
	if (!st)
		st = tess_barrier(tess_world_group(w), "bytes");
	out->files = count_dir_entries("/proc/self/fd");
	return st ? st : tess_barrier(tess_world_group(w), "files");
}

/* Measures what ROUNDS of groups leave allocated on this rank. */
static tess_status measure_rounds(struct tess_world *w, struct resource_usage *before,
                                  struct resource_usage *after)
{
	enum { ROUNDS = 100 };
	tess_status st = measure_resources(w, before);

	for (int i = 0; i < ROUNDS && !st; i++)
		st = open_and_close_groups(w, i);
	return st ? st : measure_resources(w, after);
}

/*
 * Measures repeatedly: a library may enlarge its lists a few times while messages are queued on
 * busy CPUs, but a leak of each group shows in every measurement. All ranks measure again if one
 * has to.
 */
tess_status subgroups_open_and_close(struct tess_world *w)
{
	enum { WARM = 10, MEASUREMENTS = 5, SPARE = 32 << 10 };
	struct resource_usage before = { 0 }, after = { 0 };
	int32_t mine = 1, grown = 1;
	tess_status st = TESS_OK;

	for (int i = 0; i < WARM && !st; i++)
		st = open_and_close_groups(w, i);
	for (int i = 0; i < MEASUREMENTS && grown && !st; i++) {
		st = measure_rounds(w, &before, &after);
		mine = after.bytes > before.bytes + SPARE;
		if (!st)
			st = tess_all_reduce(tess_world_group(w), &mine, &grown, 1, TESS_I32,
			                     TESS_MAX, "grown");
		if (!st && after.files > before.files + 2)
			return tess_fail(TESS_EBUG, "%d open files became %d", before.files,
			                 after.files);
	}
	if (!st && mine)
		return tess_fail(TESS_EBUG, "%zu bytes of heap became %zu", before.bytes,
		                 after.bytes);
	return st;
}
