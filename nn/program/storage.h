/*
 * storage.h - the elements of a checkpoint's tensors that each rank of a training program keeps and
 * owns: for loading, gathering, norms and saving.
 *
 * A rank's local part of a weight is dense, in the order of its axes as stored: [experts][rows]
 * [columns] of local sizes. The rank keeps a range of these elements: all, or a share if styles cut
 * the weight at rest, or its state, once more. Every element is owned by one rank, the first of
 * those that keep it.
 */
#ifndef TESS_NN_STORAGE_H
#define TESS_NN_STORAGE_H

#include "nn/program/program.h"

#include <tessera/train.h>

enum { TESS_REST, TESS_STATE }; /* the weight between steps; gradient, master and moments */

/*
 * Returns the mesh of a training program for ranks with mesh `s`: ddp and dp, which are adjacent,
 * become one dimension of data, whose adjacent ranks along dp keep the shares of one copy. *shards:
 * their number, for tess_training.shards; 0: no ddp. TESS_EINVAL: ddp is not adjacent to dp.
 */
tess_status tess_mesh_shape_train(const struct tess_mesh_shape *s, struct tess_mesh_shape *out,
                                  int32_t *shards);

/* Counts the ranks along dp that keep the shares of one copy; 1: nothing is cut. */
int32_t tess_program_count_shards(const struct tess_program *p);
/* Returns a rank's share of n elements, by its coordinate along dp. */
struct tess_run tess_program_get_share(const struct tess_program *p, int64_t n, int32_t coordinate);

/* Returns the bytes of gradients that are added at once, and of weights that are gathered. */
uint64_t tess_program_get_bucket(const struct tess_program *p);
/*
 * Returns how many of n elements of a gradient are moved at once: n, or at most a bucket of them,
 * but at least 1.
 */
int64_t tess_program_limit_part(const struct tess_program *p, int64_t n);

/* Returns the number of elements of an axis of a weight, as stored, that `rank` holds. */
int64_t tess_weight_get_local_size(const struct tess_program *p, const struct tess_weight *w,
                                   int32_t rank, int32_t axis);
/* Counts the elements of the local part; 0 if the weight is in another stage of a pipeline. */
int64_t tess_weight_count_local(const struct tess_program *p, const struct tess_weight *w,
                                int32_t rank);
/* Returns the range of the local part that `rank` keeps. */
struct tess_run tess_weight_get_kept(const struct tess_program *p, const struct tess_weight *w,
                                     int32_t rank, int32_t storage);

/*
 * Returns the index of the copy of a weight to which the elements of `rank` belong. The ranks with
 * one index together keep each element of the weight; those with 0 own them.
 */
int32_t tess_weight_get_copy(const struct tess_program *p, const struct tess_weight *w,
                             int32_t rank, int32_t storage);

/* Returns whether the program computes a gradient of the weight itself, not of a table it reads. */
bool tess_weight_is_trained(const struct tess_program *p, const struct tess_weight *w);
/* Returns whether ranks gather the shares of a weight that they have updated. */
bool tess_weight_is_shared(const struct tess_program *p, const struct tess_weight *w);
/* Returns whether some rank keeps weights or state in files, or on the host next to its device. */
bool tess_program_has_values_apart(const struct tess_program *p);
/*
 * Returns whether weights in files, and those with state there, may be updated in the backward:
 * without clipping, stages of a pipeline, and a load balancing loss, which may become infinite.
 */
bool tess_update_may_be_early(double clip, double balance, bool has_stages);
/*
 * Returns whether an update without clipping may go on during the next forward, on devices that use
 * memory of the host: all weights are in memory at rest, and the ranks gather none.
 */
bool tess_program_may_update_late(const struct tess_program *p);
/* Returns the bytes of an element of a weight (TESS_WEIGHT), or of its gradient or state: f32. */
uint64_t tess_weight_get_width(const struct tess_weight *w, int32_t what);
/* Returns whether the optimizer can change the weight itself, without a master copy. */
bool tess_weight_is_own_master(const struct tess_weight *w, struct tess_run rest,
                               struct tess_run state);
/*
 * Counts the bytes that the optimizer keeps for a trained weight: `moments` values per element, and
 * a master copy unless the weight is its own.
 */
uint64_t tess_weight_count_state_bytes(const struct tess_program *p, const struct tess_weight *w,
                                       int32_t rank, int32_t moments);

struct tess_stored_tensor { /* a tensor in the checkpoint's files */
	struct tess_trained about;
	const struct tess_weight *weight; /* the weight that contains it */
	int64_t expert; /* index on axis 0 of the weight, if each has its own file; else -1 */
	int32_t part; /* part of the out dim, if each has its own file; else -1 */
};

/* Lists all tensors once, in the order of the program's weights, in `arena`. TESS_ENOMEM. */
tess_status tess_stored_tensors_list(const struct tess_program *p, struct tess_arena *arena,
                                     struct tess_stored_tensor **out, int64_t *n);

struct tess_kept_run {
	int64_t stored; /* first element in the stored tensor */
	int64_t kept; /* this element in the range that the rank keeps */
	int64_t n;
};

enum { TESS_HELD, TESS_OWNED, TESS_OWNED_IN_COPY };

/*
 * Iterates over the ranges of a stored tensor that `rank` keeps (TESS_HELD), or over those that it
 * owns, or would own if its copy were the first (TESS_OWNED_IN_COPY: the ranks of each copy cover
 * the tensor once). Ranges are in increasing order of both offsets. Begin, then call next until it
 * returns false. The fields are private.
 */
struct tess_kept_walk {
	const struct tess_program *p;
	const struct tess_stored_tensor *tensor;
	struct tess_run kept;
	int32_t rank, ownership;
	int64_t expert, piece[2], row; /* begin of the next range */
	bool done;
};
void tess_kept_walk_begin(struct tess_kept_walk *w, const struct tess_program *p,
                          const struct tess_stored_tensor *tensor, int32_t rank, int32_t storage,
                          int32_t ownership);
bool tess_kept_walk_next(struct tess_kept_walk *w, struct tess_kept_run *out);

/* Counts the elements of such ranges in [first, first + n) of the stored tensor. */
int64_t tess_kept_count(const struct tess_program *p, const struct tess_stored_tensor *tensor,
                        int32_t rank, int32_t storage, int32_t ownership, int64_t first, int64_t n);

#endif
