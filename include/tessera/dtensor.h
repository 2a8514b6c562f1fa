/*
 * tessera/dtensor.h - distributed tensors for programs: a tensor of which each rank of a mesh holds
 * a part, as PyTorch's DTensor. tessera/tessera.h includes it.
 *
 * A tensor has a global shape and one placement along each mesh dimension:
 *   TESS_REPLICATE  every rank along the dimension holds the same elements
 *   TESS_SHARD      axis `dim` (negative: from the end) is cut by tessera/split.h: of n units rank
 *                   r of m holds [tess_edge(n, m, r), tess_edge(n, m, r + 1)). A unit is an
 *                   element unless `parts` groups them, so sizes differ by 1 or less; a rank may
 *                   hold none. PyTorch cuts chunks of ceil(n / m) instead
 *   TESS_PARTIAL    every rank holds an addend of all elements. `op` combines them: TESS_SUM (also
 *                   0), TESS_PROD, TESS_MIN or TESS_MAX
 * Several mesh dimensions may cut one axis, in their order: each cuts the units that the cuts
 * before it leave, by the same rule. Of 7 elements over dp=2,tp=2 the ranks hold 2, 2, 2 and 1. A
 * tensor may be Partial along several mesh dimensions, with one op: a maximum of sums is no sum of
 * maxima, so with different ops its value would depend on which is finished first.
 *
 * A Partial has one addend per rank. They are combined in the tree of tessera/split.h over the
 * ranks, one unit each; along several mesh dimensions, along the first of them first. So results
 * are the same in every run and over every backend, but sums and products of floats depend on the
 * number of ranks, unlike the sums of a model. 16-bit floats are combined in f32 and rounded once
 * per mesh dimension; integers wrap; min and max give NaN if an addend has it; every NaN gets the
 * same bits; no sum of floats is -0. With TESSERA_REDUCE=fast, sums of f32 have the order of the
 * backend.
 *
 * Elements are in host memory, in row-major order. Functions that communicate are collective over
 * the mesh and block: all ranks make the same calls with equal specs, placements and roots; if a
 * call differs, the error of every rank names both. Errors found before a call is made, such as an
 * invalid placement, concern the calling rank only and leave the tensor unchanged.
 *
 * Example:
 *     static tess_status scale_rows(struct tess_mesh *dp, const float *full)
 *     {
 *             static const int64_t shape[] = { 5, 7 };
 *             static const struct tess_place rows = { .kind = TESS_SHARD, .dim = 0 };
 *             static const struct tess_place whole = { .kind = TESS_REPLICATE };
 *             const struct tess_dtensor_spec spec = { .size = sizeof spec,
 *                                                     .dtype = TESS_F32,
 *                                                     .ndim = 2,
 *                                                     .shape = shape,
 *                                                     .places = &rows };
 *             struct tess_dtensor *t = NULL, *all = NULL;
 *             tess_status st = tess_dtensor_distribute(dp, &spec, -1, full, &t);
 *             int64_t n[2] = { 0, 0 };
 *
 *             if (!st)
 *                     st = tess_dtensor_get_local_shape(t, -1, n);
 *             for (int64_t i = 0; !st && i < n[0] * n[1]; i++)
 *                     ((float *)tess_dtensor_local(t))[i] *= 2;
 *             if (!st)
 *                     st = tess_dtensor_redistribute(t, &whole, &all);
 *             tess_dtensor_free(t);
 *             tess_dtensor_free(all);
 *             return st;
 *     }
 */
#ifndef TESSERA_DTENSOR_H
#define TESSERA_DTENSOR_H

#include <tessera/style.h>

TESS_BEGIN

struct tess_mesh;

/* A distributed tensor, as one rank uses it. */
struct tess_dtensor;

/* Maximum number of axes. */
enum { TESS_DTENSOR_AXES = 16 };

/* A part of an axis. A value, final. */
struct tess_dtensor_part {
	/* Axis, from 0. */
	int32_t axis;
	/* 0. */
	int32_t reserved;
	/* Elements. */
	int64_t size;
	/* Units in which the part is cut, 1 to `size` (heads); 0: each element is a unit. */
	int64_t units;
};

/* Describes a distributed tensor; equal on all ranks. */
struct tess_dtensor_spec {
	/* sizeof(struct tess_dtensor_spec). */
	uint32_t size;
	/* Element type: TESS_F32, ... TESS_U8. */
	int32_t dtype;
	/* Number of axes, 0 to TESS_DTENSOR_AXES. */
	int32_t ndim;
	/* Length of `parts`. */
	int32_t nparts;
	/* Global shape: [ndim] elements, 0 or more. NULL if ndim is 0. */
	const int64_t *shape;
	/* Placements: one per mesh dimension. */
	const struct tess_place *places;
	/* Parts that are fused in axes: [nparts], of each axis in order, with all of its elements.
	 * Each part is cut by itself (gate and up; query, key and value). An axis without parts is
	 * one part in units of elements. NULL: none. */
	const struct tess_dtensor_part *parts;
	/* Name of the tensor, for messages; NULL: "tensor". */
	const char *name;
};
TESS_TIGHT(tess_dtensor_spec, name);

/* One move of a redistribution, along one mesh dimension. A value, final. */
struct tess_dtensor_move {
	/* Kind of the call: TESS_ALL_GATHER, TESS_ALL_TO_ALL, TESS_ALL_REDUCE or
	 * TESS_REDUCE_SCATTER; 0: no call, since no rank needs elements of another, or because
	 * there is one rank along the mesh dimension. */
	int32_t kind;
	/* Index of the mesh dimension. */
	int32_t dim;
	/* Placement along it before the move. */
	struct tess_place from;
	/* Placement along it after the move. */
	struct tess_place to;
	/* Bytes of the tensor, over all ranks. */
	uint64_t bytes;
	/* Maximum number of bytes that one rank sends, as tess_explained_collective has it. */
	uint64_t sent;
};

/*
 * Makes a tensor of the parts that the ranks have. Copies local[], this rank's elements in the
 * shape of tess_dtensor_get_local_shape; NULL: the elements are 0, to be written through
 * tess_dtensor_local. Does not communicate, so parts that ought to be equal are not compared. The
 * mesh stays open until the caller frees *out: tess_dtensor_free.
 */
tess_status tess_dtensor_from_local(struct tess_mesh *m, const struct tess_dtensor_spec *spec,
                                    const void *local, struct tess_dtensor **out);

/*
 * Distributes a full tensor. root: the world rank whose full[] has all elements in row-major order;
 * the full[] of other ranks is not read. It scatters or broadcasts along one mesh dimension after
 * the other. root -1: every rank passes the same full[], and nothing is sent. Along a Partial, rank
 * 0 keeps the elements, and the others get the identity of its op, as in
 * tess_dtensor_redistribute. Collective unless root is -1. The caller frees *out.
 */
tess_status tess_dtensor_distribute(struct tess_mesh *m, const struct tess_dtensor_spec *spec,
                                    int32_t root, const void *full, struct tess_dtensor **out);

/*
 * Makes a copy of a tensor with other placements, one per mesh dimension; TESS_ASIS: unchanged. The
 * moves are those of recorded programs (tess_dtensor_list_moves). If several mesh dimensions cut an
 * axis, a change of one undoes the cuts after it first: they move to another axis that no mesh
 * dimension cuts, or are gathered, and move back. So fewest bytes are sent if the mesh dimension
 * that changes most often is the last.
 *
 * From Replicate to Partial, rank 0 along the dimension keeps the elements, and the others get the
 * identity of the op: 0, 1, or the largest or smallest value. PyTorch divides by the number of
 * ranks instead, which rounds. From Shard to Partial, each rank keeps its elements.
 *
 * `t` is unchanged. Collective. The caller frees *out.
 *
 * TESS_EINVAL: the tensor would be Partial along two mesh dimensions with different ops.
 */
tess_status tess_dtensor_redistribute(const struct tess_dtensor *t, const struct tess_place *places,
                                      struct tess_dtensor **out);

/* Writes all elements to full[] on every rank, in row-major order: Replicate along all dimensions.
 * Collective. */
tess_status tess_dtensor_full(const struct tess_dtensor *t, void *full);

/*
 * Lists the moves of tess_dtensor_redistribute, in order, without making them: the first `most` go
 * to moves[]. *n: their number, at most 2 per mesh dimension. Not collective; all ranks get the
 * same list.
 */
tess_status tess_dtensor_list_moves(const struct tess_dtensor *t, const struct tess_place *places,
                                    struct tess_dtensor_move *moves, int32_t most, int32_t *n);

/*
 * Returns this rank's elements, in row-major order, aligned to 64 bytes. The caller may write them.
 * Borrowed until tess_dtensor_free.
 */
void *tess_dtensor_local(struct tess_dtensor *t);

/*
 * Returns the description of a tensor. Its placements have no negative dims and no op 0. Borrowed
 * until tess_dtensor_free.
 */
const struct tess_dtensor_spec *tess_dtensor_get_spec(const struct tess_dtensor *t);

/* Writes the shape of what a world rank holds to shape[ndim]. rank -1: this rank. */
tess_status tess_dtensor_get_local_shape(const struct tess_dtensor *t, int32_t rank,
                                         int64_t *shape);

/*
 * Lists the ranges [begin, end) of `axis` that a world rank holds, in global elements, in order:
 * one for each part, maybe empty. The first `most` of them go to range[]. rank -1: this rank.
 * Returns the number of ranges; 0: the rank or the axis does not exist.
 */
int64_t tess_dtensor_list_ranges(const struct tess_dtensor *t, int32_t rank, int32_t axis,
                                 int64_t (*range)[2], int64_t most);

/* Frees a tensor. Not collective. NULL is accepted. */
void tess_dtensor_free(struct tess_dtensor *t);

TESS_END
#endif
