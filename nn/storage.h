/*
 * storage.h - which elements of the tensors of a checkpoint each rank of a training program holds,
 * and which of them it owns: for loading, gathering, norms and saving.
 *
 * A rank's local part of a weight is dense, in the order of its axes as stored: [experts][rows]
 * [columns] of local sizes. Of that it keeps a span of elements: all, or its share where styles cut
 * the weight at rest or the optimizer's state. Every element is owned by one rank: of what several
 * hold (replicas, shared key-value heads) the first.
 */
#ifndef TESS_NN_STORAGE_H
#define TESS_NN_STORAGE_H

#include "nn/program.h"

#include <tessera/train.h>

enum { TESS_REST, TESS_STATE }; /* the weight between steps; gradients, masters and moments */

/* Elements of the local part, as used. */
int64_t tess_weight_count_local(const struct tess_program *p, const struct tess_weight *w,
                                int32_t rank);
/* The span of them that `rank` keeps. */
struct tess_run tess_weight_get_kept(const struct tess_program *p, const struct tess_weight *w,
                                     int32_t rank, int32_t storage);

struct tess_stored_tensor { /* a tensor of the checkpoint's files */
	struct tess_trained about;
	const struct tess_weight *weight; /* that it is, or is a part of */
	int64_t expert; /* of axis 0 of the weight, where files have one expert; else -1 */
	int32_t part; /* of the fused dim, where files have the parts; else -1 */
};

/* All tensors, in the order of the program's weights; in the arena. TESS_ENOMEM. */
tess_status tess_stored_tensors_list(const struct tess_program *p, struct tess_arena *arena,
                                     struct tess_stored_tensor **out, int64_t *n);

struct tess_kept_run {
	int64_t stored; /* first element, of the stored tensor */
	int64_t kept; /* the same element in the span that the rank keeps */
	int64_t n;
};

enum { TESS_HELD, TESS_OWNED };

/*
 * Walks the runs of a stored tensor that `rank` keeps, or owns of those, in increasing order of
 * both offsets: begin, then next until it returns false. No memory, no failure.
 */
struct tess_kept_walk {
	const struct tess_program *p;
	const struct tess_stored_tensor *tensor;
	struct tess_run kept;
	int32_t rank, owned;
	int64_t expert, nexperts; /* of the local part */
	int64_t row, col, piece[2]; /* next */
	bool done;
};
void tess_kept_walk_begin(struct tess_kept_walk *w, const struct tess_program *p,
                          const struct tess_stored_tensor *tensor, int32_t rank, int32_t storage,
                          int32_t owned);
bool tess_kept_walk_next(struct tess_kept_walk *w, struct tess_kept_run *out);

#endif
