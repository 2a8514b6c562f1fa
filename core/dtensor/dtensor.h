/* dtensor.h - the state of a distributed tensor, and a part of it while it moves. */
#ifndef TESS_DTENSOR_STATE_H
#define TESS_DTENSOR_STATE_H

#include "core/base/arena.h"
#include "core/shard/dim.h"
#include "core/shard/move.h"
#include "core/shard/place.h"
#include "core/world/mesh_shape.h"

#include <tessera/dtensor.h>

/* Bytes of a formatted tensor or list of placements, with the 0; longer text is cut. */
enum { TESS_DTENSOR_TEXT = 512 };

struct dtensor_block { /* elements of one rank, dense, in row-major order */
	int64_t shape[TESS_DTENSOR_AXES];
	char *data;
};

struct tess_dtensor {
	struct tess_arena arena; /* owns what `spec` and `dim` point to */
	struct tess_mesh *mesh;
	const struct tess_mesh_shape *ranks; /* of the mesh */
	struct tess_dtensor_spec spec; /* normalized */
	const struct tess_dim *dim[TESS_DTENSOR_AXES];
	int32_t rank; /* in the world */
	uint64_t bytes; /* of all elements */
	uint64_t hash; /* of what the ranks must agree on, apart from the placements */
	struct dtensor_block local; /* owned */
};

/* ---- description (spec.c) ------------------------------------------------------------------ */

/* Makes a tensor without elements from a spec, which it checks and copies. */
tess_status tess_dtensor_describe(struct tess_mesh *m, const struct tess_dtensor_spec *spec,
                                  struct tess_dtensor **out);
/* Makes a tensor without elements that differs from `t` in its placements, which are normalized. */
tess_status tess_dtensor_describe_moved(const struct tess_dtensor *t,
                                        const struct tess_place *places, struct tess_dtensor **out);
/*
 * Checks placements of a redistribution and normalizes them to out[mesh dims]; ASIS becomes that of
 * the tensor.
 */
tess_status tess_dtensor_check_target(const struct tess_dtensor *t, const struct tess_place *places,
                                      struct tess_place *out);
/* Formats "NAME [5, 7]". */
const char *tess_dtensor_format(const struct tess_dtensor *t, char text[TESS_DTENSOR_TEXT]);

/* ---- parts --------------------------------------------------------------------------------- */

struct tess_cut tess_dtensor_get_cut(const struct tess_dtensor *t, int32_t rank, int32_t along);
/*
 * Makes the dim of what a rank holds of an axis by the cuts along the first n mesh dimensions, in
 * an arena if there are any. NULL, with a message: no memory.
 */
const struct tess_dim *tess_dtensor_nest_axis(const struct tess_dtensor *t,
                                              const struct tess_place *places, int32_t rank,
                                              int32_t n, int32_t axis, struct tess_arena *arena);
/* Computes the shape of what a rank holds under these placements. */
void tess_dtensor_compute_shape(const struct tess_dtensor *t, const struct tess_place *places,
                                int32_t rank, int64_t *shape);
/* Return how many elements a part of this shape has, and its bytes. */
int64_t tess_dtensor_count_elements(const struct tess_dtensor *t, const int64_t *shape);
size_t tess_dtensor_count_bytes(const struct tess_dtensor *t, const int64_t *shape);
/* Sets the placements of a tensor that every rank has in full. */
void tess_dtensor_replicate(const struct tess_dtensor *t, struct tess_place *places);
/* Allocates the elements of a block, not initialized. TESS_ENOMEM: names the tensor. */
tess_status tess_dtensor_alloc(const struct tess_dtensor *t, struct dtensor_block *b);
/* Frees the elements of a block, or keeps them for late writes after a failure. */
void tess_dtensor_free_block(const struct tess_dtensor *t, struct dtensor_block *b);

/* ---- which moves (path.c) ------------------------------------------------------------------ */

struct tess_dtensor_path { /* from one list of placements to another, both normalized */
	const struct tess_dtensor *t;
	struct tess_place at[TESS_MESH_DIMS]; /* the caller sets at[move.along] after a move */
	struct tess_place to[TESS_MESH_DIMS];
	int32_t spare; /* see tess_move_find_next */
};

void tess_dtensor_begin_path(const struct tess_dtensor *t, const struct tess_place *from,
                             const struct tess_place *to, struct tess_dtensor_path *p);
/*
 * Finds the next move; false: there is none. Placements along single ranks change last, and do not
 * affect other moves.
 */
bool tess_dtensor_find_move(const struct tess_dtensor_path *p, struct tess_move *out);
/* Returns whether a move copies nothing, since there is one rank along its mesh dimension. */
bool tess_dtensor_is_alone(const struct tess_dtensor *t, int32_t along, struct tess_place from);

/* ---- moves (move.c) ------------------------------------------------------------------------ */

/*
 * Moves a block from placements `at` to `to`, both normalized. The block is replaced; its elements
 * are freed unless they are those of `borrowed`. Collective; blocking.
 */
tess_status tess_dtensor_move_block(const struct tess_dtensor *t, const struct tess_place *at,
                                    const struct tess_place *to, const char *borrowed,
                                    struct dtensor_block *b);
/*
 * Distributes the full elements of world rank `root` as `places`. The block gets the elements of
 * this rank. Collective; blocking.
 */
tess_status tess_dtensor_scatter(const struct tess_dtensor *t, const struct tess_place *places,
                                 int32_t root, const void *full, struct dtensor_block *b);
/* Sets the call and the bytes of a move from placements `at`. */
tess_status tess_dtensor_measure_move(const struct tess_dtensor *t, const struct tess_place *at,
                                      struct tess_dtensor_move *move);

#endif
