/*
 * move.c - moves the elements of a distributed tensor: each move is along one mesh dimension, and
 * consists of copies, the collective that core/shard/move.h chooses, and copies.
 */
#include "core/shard/move.h"

#include "core/base/status.h"
#include "core/dtensor/dtensor.h"
#include "core/rendezvous/call_desc.h"
#include "core/sum/reduction.h"
#include "core/world/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

struct mover { /* a move along one mesh dimension, on one rank */
	const struct tess_dtensor *t;
	struct tess_group *group;
	struct tess_cut cut;
	int32_t along;
	struct tess_place from, to;
	/* the dims that `from` and `to` cut, as mesh dimensions before `along` leave them */
	const struct tess_dim *was, *is;
	struct tess_arena dims; /* owns them */
	size_t width;
	struct tess_coll call; /* kind 0: none. With lists, without buffers */
	bool empty; /* no rank of the group has elements */
	/* one buffer, since a failed call keeps its lists and `where` */
	uint64_t *send_counts, *recv_counts;
	struct tess_copy *copies;
	char *where;
};

/* ---- description ----------------------------------------------------------------------------- */

/* Multiplies the sizes of all axes but two, which may be -1 or equal. */
static int64_t count_others(const struct mover *m, const int64_t *shape, int32_t a, int32_t b)
{
	int64_t n = 1;

	for (int32_t k = 0; k < m->t->spec.ndim; k++)
		n *= k == a || k == b ? 1 : shape[k];
	return n;
}

/* Describes the call of the move on a rank that holds `shape`. */
static void describe_move(struct mover *m, const int64_t *shape)
{
	int32_t n = m->cut.nranks, was = m->was ? m->from.dim : -1;
	int64_t others = count_others(m, shape, was, -1);
	struct tess_coll *c = &m->call;

	*c = (struct tess_coll){ .size = sizeof *c,
		                 .kind = tess_move_choose_call(m->from, m->to),
		                 .dtype = m->t->spec.dtype,
		                 .op = m->from.op,
		                 .where = m->where };
	m->empty = !others || (m->was && !m->was->size);
	switch (c->kind) {
	case TESS_ALL_GATHER:
		tess_move_count_owned(m->was, n, others, m->recv_counts);
		c->recv_counts = m->recv_counts;
		c->count = m->recv_counts[m->cut.rank];
		break;
	case TESS_ALL_TO_ALL:
		tess_move_count_exchanged(m->was, m->is, m->cut,
		                          count_others(m, shape, was, m->to.dim), m->send_counts,
		                          m->recv_counts);
		c->send_counts = m->send_counts;
		c->recv_counts = m->recv_counts;
		break;
	case TESS_REDUCE_SCATTER:
		tess_move_count_held(m->is, n, count_others(m, shape, m->to.dim, -1),
		                     m->send_counts);
		c->send_counts = m->send_counts;
		c->count = m->send_counts[m->cut.rank];
		break;
	case TESS_ALL_REDUCE:
		c->count = (uint64_t)others;
		break;
	}
}

/* Returns the hash of what the ranks must agree on in a move. */
static uint64_t hash_move(const struct mover *m)
{
	uint64_t h = tess_hash_mix(m->t->hash, (uint64_t)m->along);
	const struct tess_place *p[] = { &m->from, &m->to };

	for (int i = 0; i < 2; i++)
		h = tess_hash_mix(h, (uint64_t)p[i]->kind << 32 |
		                             (uint64_t)(p[i]->dim << 8 | p[i]->op));
	return h;
}

static void close_mover(struct mover *m)
{
	tess_world_buffer_free(tess_mesh_world(m->t->mesh), m->send_counts);
	tess_arena_free(&m->dims);
}

/* Makes the dim that a rank's group cuts by a place. NULL: it cuts none, or there is no memory. */
static const struct tess_dim *nest_dim(struct mover *m, const struct tess_place *at, int32_t rank,
                                       struct tess_place p)
{
	return p.kind == TESS_SHARD
	               ? tess_dtensor_nest_axis(m->t, at, rank, m->along, p.dim, &m->dims)
	               : NULL;
}

/* Sets the rank of a move from placements `at`. */
static tess_status aim_mover(struct mover *m, const struct tess_place *at, int32_t rank)
{
	tess_arena_free(&m->dims);
	m->cut = tess_dtensor_get_cut(m->t, rank, m->along);
	m->was = nest_dim(m, at, rank, m->from);
	m->is = nest_dim(m, at, rank, m->to);
	return (m->from.kind == TESS_SHARD && !m->was) || (m->to.kind == TESS_SHARD && !m->is)
	               ? TESS_ENOMEM
	               : TESS_OK;
}

/* Opens a move from placements `at` for this rank. */
static tess_status open_mover(struct mover *m, const struct tess_dtensor *t,
                              const struct tess_place *at, struct tess_move move)
{
	struct tess_place from = at[move.along];
	const struct tess_mesh_dim *dim = &t->ranks->dim[move.along];
	char name[TESS_DTENSOR_TEXT], a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];
	size_t n = (size_t)dim->size, pieces = 1;
	tess_status st;

	for (int32_t k = 0; k < t->spec.ndim; k++)
		if ((size_t)tess_dim_count_pieces(t->dim[k]) > pieces)
			pieces = (size_t)tess_dim_count_pieces(t->dim[k]);
	*m = (struct mover){ .t = t,
		             .group = tess_mesh_group(t->mesh, dim->name),
		             .along = move.along,
		             .from = from,
		             .to = move.to,
		             .width = tess_width(t->spec.dtype) };
	m->send_counts = tess_world_buffer_new(2 * n * sizeof(uint64_t) +
	                                       pieces * sizeof *m->copies + TESS_DTENSOR_TEXT);
	if (!m->send_counts)
		return tess_fail(TESS_ENOMEM, "%s: no memory for a move", t->spec.name);
	m->recv_counts = m->send_counts + n;
	m->copies = (struct tess_copy *)(m->recv_counts + n);
	m->where = (char *)(m->copies + pieces);
	snprintf(m->where, TESS_DTENSOR_TEXT, "%.400s: %s -> %s along %s",
	         tess_dtensor_format(t, name), tess_place_format(from, a),
	         tess_place_format(move.to, b), dim->name);
	st = aim_mover(m, at, t->rank);
	if (st)
		close_mover(m);
	return st;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static uint64_t count_block_elements(const struct mover *m, const struct dtensor_block *b)
{
	return (uint64_t)tess_dtensor_count_elements(m->t, b->shape);
}

static uint64_t count_block_bytes(const struct mover *m, const struct dtensor_block *b)
{
	return tess_dtensor_count_bytes(m->t, b->shape);
}

/* Makes the copies in m->copies along an axis, whose blocks may differ in this axis only. */
static void copy_along(const struct mover *m, int32_t axis, const struct dtensor_block *from,
                       const struct dtensor_block *to)
{
	size_t inner = m->width;
	int64_t outer = 1;

	for (int32_t k = 0; k < m->t->spec.ndim; k++)
		if (k < axis)
			outer *= from->shape[k];
		else if (k > axis)
			inner *= (size_t)from->shape[k];
	for (int64_t o = 0; o < outer; o++)
		for (int64_t i = 0; i < tess_dim_count_pieces(m->t->dim[axis]); i++) {
			const struct tess_copy *c = &m->copies[i];
			int64_t src = o * from->shape[axis] + c->from;
			int64_t dst = o * to->shape[axis] + c->to;

			if (c->len)
				memcpy(to->data + (size_t)dst * inner,
				       from->data + (size_t)src * inner, (size_t)c->len * inner);
		}
}

/* Copies what each rank will hold to a block of its own, one after the other. */
static void pack_blocks(const struct mover *m, const struct dtensor_block *b, char *to)
{
	struct dtensor_block part = *b;
	int32_t axis = m->to.dim;

	part.data = to;
	for (int32_t q = 0; q < m->cut.nranks; q++) {
		part.shape[axis] = tess_dim_get_local_size(m->is, m->cut.nranks, q);
		tess_move_list_held(m->is, (struct tess_cut){ m->cut.nranks, q }, m->copies);
		copy_along(m, axis, b, &part);
		part.data += count_block_bytes(m, &part);
	}
}

/* Copies the block of each rank to its place. */
static void unpack_rank_blocks(const struct mover *m, char *from, const struct dtensor_block *b)
{
	struct dtensor_block part = *b;
	int32_t axis = m->from.dim;

	part.data = from;
	for (int32_t q = 0; q < m->cut.nranks; q++) {
		part.shape[axis] = tess_dim_get_owned_size(m->was, m->cut.nranks, q);
		tess_move_list_gathered(m->was, (struct tess_cut){ m->cut.nranks, q }, m->copies);
		copy_along(m, axis, &part, b);
		part.data += count_block_bytes(m, &part);
	}
}

/* Returns whether blocks of the ranks along an axis follow one another in the full axis. */
static bool are_blocks_in_place(const struct mover *m, int32_t axis, const struct dtensor_block *b)
{
	int64_t outer = 1;

	for (int32_t k = 0; k < axis; k++)
		outer *= b->shape[k];
	return outer == 1 && tess_dim_count_pieces(m->t->dim[axis]) == 1;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Allocates a buffer for packed elements. */
static tess_status alloc_packed(const struct mover *m, uint64_t elements, char **out)
{
	*out = tess_world_buffer_new(elements * m->width);
	return *out ? TESS_OK
	            : tess_fail(TESS_ENOMEM, "%s: no memory for %llu packed elements", m->where,
	                        (unsigned long long)elements);
}

static void free_packed(const struct mover *m, char *packed)
{
	tess_world_buffer_free(tess_mesh_world(m->t->mesh), packed);
}

/* Slices, or makes a Partial. */
static tess_status move_locally(struct mover *m, const struct dtensor_block *from,
                                struct dtensor_block *to)
{
	const struct tess_dtensor *t = m->t;

	if (m->to.kind == TESS_SHARD) {
		tess_move_list_held(m->is, m->cut, m->copies);
		copy_along(m, m->to.dim, from, to);
		return TESS_OK;
	}
	tess_reduction_fill_identity(t->spec.dtype, m->to.op, count_block_elements(m, to),
	                             to->data);
	if (m->from.kind == TESS_SHARD) {
		tess_move_list_gathered(m->was, m->cut, m->copies);
		copy_along(m, m->from.dim, from, to);
	} else if (m->cut.rank == 0 && count_block_bytes(m, to)) {
		memcpy(to->data, from->data, count_block_bytes(m, to));
	}
	return TESS_OK;
}

/*
 * Sets *out to what each rank will hold, one after the other: packed, or in place. Free it unless
 * it is from->data.
 */
static tess_status pack_unless_in_place(const struct mover *m, const struct dtensor_block *from,
                                        char **out)
{
	tess_status st;

	*out = from->data;
	if (are_blocks_in_place(m, m->to.dim, from))
		return TESS_OK;
	st = alloc_packed(m, count_block_elements(m, from), out);
	if (!st)
		pack_blocks(m, from, *out);
	return st;
}

static tess_status gather_block(struct mover *m, const struct dtensor_block *from,
                                struct dtensor_block *to)
{
	bool direct = are_blocks_in_place(m, m->from.dim, to);
	char *packed = to->data;
	tess_status st = TESS_OK;

	if (!direct)
		st = alloc_packed(m, count_block_elements(m, to), &packed);
	if (st)
		return st;
	m->call.src = from->data;
	m->call.dst = packed;
	st = tess_group_run(m->group, &m->call);
	if (direct)
		return st;
	if (!st)
		unpack_rank_blocks(m, packed, to);
	free_packed(m, packed);
	return st;
}

static tess_status exchange_block(struct mover *m, const struct dtensor_block *from,
                                  struct dtensor_block *to)
{
	uint64_t sent = tess_block_begin(m->send_counts, 0, m->cut.nranks);
	char *out = NULL, *in = NULL;
	tess_status st = alloc_packed(m, sent, &out);

	if (!st)
		st = alloc_packed(m, count_block_elements(m, to), &in);
	if (!st) {
		pack_blocks(m, from, out);
		m->call.src = out;
		m->call.dst = in;
		st = tess_group_run(m->group, &m->call);
	}
	if (!st)
		unpack_rank_blocks(m, in, to);
	free_packed(m, out);
	free_packed(m, in);
	return st;
}

static tess_status reduce_block(struct mover *m, const struct dtensor_block *from,
                                struct dtensor_block *to)
{
	struct tess_reduction r = { .dtype = m->call.dtype,
		                    .op = m->from.op,
		                    .count = count_block_elements(m, from),
		                    .share = m->call.send_counts,
		                    .fingerprint = m->call.fingerprint,
		                    .where = m->where };
	char *packed = from->data;
	tess_status st = TESS_OK;

	if (r.share)
		st = pack_unless_in_place(m, from, &packed);
	if (!st)
		st = tess_group_reduce(m->group, &r, packed, to->data);
	if (packed != from->data)
		free_packed(m, packed);
	return st;
}

static tess_status run_call(struct mover *m, const struct dtensor_block *from,
                            struct dtensor_block *to)
{
	m->call.fingerprint = hash_move(m);
	switch (m->empty ? 0 : m->call.kind) {
	case TESS_ALL_GATHER:
		return gather_block(m, from, to);
	case TESS_ALL_TO_ALL:
		return exchange_block(m, from, to);
	case TESS_ALL_REDUCE:
	case TESS_REDUCE_SCATTER:
		return reduce_block(m, from, to);
	default:
		return m->call.kind ? TESS_OK : move_locally(m, from, to);
	}
}

/* Allocates this rank's block after a move from placements `at`. */
static tess_status alloc_moved(const struct tess_dtensor *t, const struct tess_place *at,
                               struct tess_move move, struct dtensor_block *to)
{
	struct tess_place after[TESS_MESH_DIMS];

	memcpy(after, at, sizeof *after * (size_t)t->ranks->ndims);
	after[move.along] = move.to;
	tess_dtensor_compute_shape(t, after, t->rank, to->shape);
	return tess_dtensor_alloc(t, to);
}

/* Makes one move of this rank's block from placements `at`; allocates the result. */
static tess_status move_once(const struct tess_dtensor *t, const struct tess_place *at,
                             struct tess_move move, const struct dtensor_block *from,
                             struct dtensor_block *to)
{
	struct mover m;
	tess_status st = open_mover(&m, t, at, move);

	if (st)
		return st;
	describe_move(&m, from->shape);
	st = alloc_moved(t, at, move, to);
	if (!st)
		st = run_call(&m, from, to);
	close_mover(&m);
	return st;
}

tess_status tess_dtensor_move_block(const struct tess_dtensor *t, const struct tess_place *at,
                                    const struct tess_place *to, const char *borrowed,
                                    struct dtensor_block *b)
{
	struct dtensor_block next = { .data = NULL };
	struct tess_dtensor_path path;
	struct tess_move move;
	tess_status st = TESS_OK;

	tess_dtensor_begin_path(t, at, to, &path);
	for (; !st && tess_dtensor_find_move(&path, &move); path.at[move.along] = move.to) {
		if (tess_dtensor_is_alone(t, move.along, path.at[move.along]))
			continue;
		st = move_once(t, path.at, move, b, &next);
		if (b->data != borrowed)
			tess_dtensor_free_block(t, b);
		*b = next;
		next.data = NULL;
	}
	if (!st && b->data == borrowed) { /* no move */
		next = *b;
		st = tess_dtensor_alloc(t, &next);
		if (!st && borrowed)
			memcpy(next.data, borrowed, tess_dtensor_count_bytes(t, b->shape));
		*b = next;
	}
	if (st)
		tess_dtensor_free_block(t, b);
	return st;
}

tess_status tess_dtensor_measure_move(const struct tess_dtensor *t, const struct tess_place *at,
                                      struct tess_dtensor_move *move)
{
	struct mover m;
	int64_t shape[TESS_DTENSOR_AXES];
	tess_status st;

	move->bytes = t->bytes;
	move->sent = 0;
	move->kind = 0;
	if (tess_dtensor_is_alone(t, move->dim, move->from))
		return TESS_OK;
	st = open_mover(&m, t, at, (struct tess_move){ move->dim, move->to });
	if (st)
		return st;
	for (int32_t r = 0; r < t->ranks->nranks; r++) {
		uint64_t sent;

		st = aim_mover(&m, at, r);
		if (st)
			break;
		tess_dtensor_compute_shape(t, at, r, shape);
		describe_move(&m, shape);
		move->kind = m.call.kind;
		if (move->from.kind == TESS_PARTIAL)
			sent = tess_move_count_reduced(tess_dtensor_count_bytes(t, shape), 1,
			                               move->to.kind == TESS_SHARD, m.cut.nranks);
		else
			sent = move->kind ? tess_coll_sent_bytes(&m.call, m.cut.rank, m.cut.nranks)
			                  : 0;
		move->sent = sent > move->sent ? sent : move->sent;
	}
	close_mover(&m);
	return st;
}

/* ---- distribution from a root ---------------------------------------------------------------- */

/* Returns whether a rank takes part along mesh dimension i: it has the root's later coordinates. */
static bool is_beside_root(const struct tess_dtensor *t, int32_t root, int32_t i)
{
	for (int32_t k = i + 1; k < t->ranks->ndims; k++)
		if (tess_dtensor_get_cut(t, t->rank, k).rank !=
		    tess_dtensor_get_cut(t, root, k).rank)
			return false;
	return true;
}

/* Describes the call that sends the root's elements: all of them, or a part to each rank. */
static void describe_send(struct mover *m, int32_t root, const int64_t *shape)
{
	struct tess_coll *c = &m->call;

	*c = (struct tess_coll){ .size = sizeof *c,
		                 .kind = TESS_BROADCAST,
		                 .dtype = m->t->spec.dtype,
		                 .root = root,
		                 .fingerprint = hash_move(m),
		                 .count = (uint64_t)tess_dtensor_count_elements(m->t, shape),
		                 .where = m->where };
	m->empty = !c->count;
	if (m->to.kind != TESS_SHARD)
		return;
	tess_move_count_held(m->is, m->cut.nranks, count_others(m, shape, m->to.dim, -1),
	                     m->send_counts);
	c->kind = TESS_SCATTER;
	c->send_counts = m->send_counts;
	c->count = m->send_counts[m->cut.rank];
}

/* Sends the root's elements along one mesh dimension. */
static tess_status send_along(struct mover *m, int32_t root, const struct dtensor_block *from,
                              struct dtensor_block *to)
{
	bool here = root == m->cut.rank;
	char *packed = from->data;
	tess_status st = TESS_OK;

	describe_send(m, root, from->shape);
	if (m->empty)
		return TESS_OK;
	if (here && m->call.send_counts)
		st = pack_unless_in_place(m, from, &packed);
	m->call.src = here ? packed : NULL;
	m->call.dst = to->data;
	if (!st)
		st = tess_group_run(m->group, &m->call);
	if (packed != from->data)
		free_packed(m, packed);
	return st;
}

/* Sends from placements `at` along one mesh dimension, to this rank's block after it. */
static tess_status scatter_along(const struct tess_dtensor *t, const struct tess_place *at,
                                 struct tess_move move, int32_t root,
                                 const struct dtensor_block *from, struct dtensor_block *to)
{
	struct mover m;
	tess_status st = open_mover(&m, t, at, move);

	to->data = NULL;
	if (st)
		return st;
	st = alloc_moved(t, at, move, to);
	if (!st)
		st = send_along(&m, tess_dtensor_get_cut(t, root, move.along).rank, from, to);
	close_mover(&m);
	return st;
}

tess_status tess_dtensor_scatter(const struct tess_dtensor *t, const struct tess_place *places,
                                 int32_t root, const void *full, struct dtensor_block *b)
{
	struct tess_place at[TESS_MESH_DIMS];
	struct dtensor_block from = { .data = t->rank == root ? (char *)full : NULL }, to;
	tess_status st = TESS_OK;

	tess_dtensor_replicate(t, at);
	for (int32_t i = 0; i < t->ranks->ndims && !st; i++) {
		struct tess_move move = { i, places[i].kind == TESS_SHARD ? places[i] : at[i] };

		tess_dtensor_compute_shape(t, at, t->rank, from.shape);
		if (is_beside_root(t, root, i)) {
			st = scatter_along(t, at, move, root, &from, &to);
			if (from.data != full)
				tess_dtensor_free_block(t, &from);
			from = to;
		}
		at[i] = move.to;
	}
	if (st) {
		tess_dtensor_free_block(t, &from);
		return st;
	}
	st = tess_dtensor_move_block(t, at, places, NULL, &from); /* to Partial */
	if (!st)
		*b = from;
	return st;
}
