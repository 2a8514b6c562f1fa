/*
 * storage.h - which elements of the tensors of a checkpoint each rank of a training program keeps,
 * and which of those it owns: for loading, gathering, norms and saving.
 *
 * A rank's local part of a weight is dense, in the order of its axes as stored: [experts][rows]
 * [columns] of local sizes. Of its elements the rank keeps a span: all, or a share where styles cut
 * the weight at rest, or its state, once more. Every element is owned by one rank, the first of
 * those that keep it.
 */
#ifndef TESS_NN_STORAGE_H
#define TESS_NN_STORAGE_H

#include "nn/program/program.h"

#include <tessera/train.h>

enum { TESS_REST, TESS_STATE }; /* the weight between steps; gradient, master and moments */

/*
 * The mesh of a program of training on ranks laid out so: ddp and dp, side by side, are one
 * dimension of data, whose neighbours along dp keep the shares of one copy. *shards: so many, for
 * tess_training.shards; 0: there is no ddp. TESS_EINVAL: ddp is elsewhere.
 */
tess_status tess_mesh_shape_train(const struct tess_mesh_shape *s, struct tess_mesh_shape *out,
                                  int32_t *shards);

/* Ranks along dp that keep the shares of one copy; 1: nothing is cut. */
int32_t tess_program_count_shards(const struct tess_program *p);
/* Of n elements the share of a rank, by its coordinate along dp. */
struct tess_run tess_program_get_share(const struct tess_program *p, int64_t n, int32_t coordinate);

/* Elements of the local part; 0 where the weight is in another stage of a pipeline. */
int64_t tess_weight_count_local(const struct tess_program *p, const struct tess_weight *w,
                                int32_t rank);
/* The span of them that `rank` keeps. */
struct tess_run tess_weight_get_kept(const struct tess_program *p, const struct tess_weight *w,
                                     int32_t rank, int32_t storage);

/*
 * Returns which of the copies of a weight the elements of `rank` belong to: 0, 1, ... Ranks with
 * one number keep each element of the weight together; those with 0 own them.
 */
int32_t tess_weight_get_copy(const struct tess_program *p, const struct tess_weight *w,
                             int32_t rank, int32_t storage);

/*
 * Bytes of what the optimizer keeps of a weight that is trained: `moments` values of each element,
 * and a master unless the weight can be its own.
 */
uint64_t tess_weight_count_state_bytes(const struct tess_program *p, const struct tess_weight *w,
                                       int32_t rank, int32_t moments);

struct tess_stored_tensor { /* a tensor in the checkpoint's files */
	struct tess_trained about;
	const struct tess_weight *weight; /* that it is, or is a part of */
	int64_t expert; /* of axis 0 of the weight, where each has its own file; else -1 */
	int32_t part; /* of the out dim, where each has its own file; else -1 */
};

/* All tensors, in the order of the program's weights; in `arena`. TESS_ENOMEM. */
tess_status tess_stored_tensors_list(const struct tess_program *p, struct tess_arena *arena,
                                     struct tess_stored_tensor **out, int64_t *n);

struct tess_kept_run {
	int64_t stored; /* its first element in the stored tensor */
	int64_t kept; /* the same element in the span that the rank keeps */
	int64_t n;
};

enum { TESS_HELD, TESS_OWNED, TESS_OWNED_IN_COPY };

/*
 * Walks the runs of a stored tensor that `rank` keeps (TESS_HELD), or of those the runs that it
 * owns, or would own if its copy were the first (TESS_OWNED_IN_COPY: the ranks of each copy cover
 * the tensor once), in increasing order of both offsets: begin, then next until that returns false.
 * The caller reads no field.
 */
struct tess_kept_walk {
	const struct tess_program *p;
	const struct tess_stored_tensor *tensor;
	struct tess_run kept;
	int32_t rank, ownership;
	int64_t expert, piece[2], row; /* where the next run begins */
	bool done;
};
void tess_kept_walk_begin(struct tess_kept_walk *w, const struct tess_program *p,
                          const struct tess_stored_tensor *tensor, int32_t rank, int32_t storage,
                          int32_t ownership);
bool tess_kept_walk_next(struct tess_kept_walk *w, struct tess_kept_run *out);

/* Elements of such runs that lie in [first, first + n) of the stored tensor. */
int64_t tess_kept_count(const struct tess_program *p, const struct tess_stored_tensor *tensor,
                        int32_t rank, int32_t storage, int32_t ownership, int64_t first, int64_t n);

#endif
