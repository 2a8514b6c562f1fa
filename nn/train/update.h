/*
 * update.h - the optimizer's step on what a rank keeps of each weight. What is in files
 * (nn/offload/offload.h) passes through a ring of buckets in host memory: the next ones are read,
 * and the last ones written, while one is changed.
 *
 * Next to a device with memory of its own, what is in memory of the host is changed there by the
 * device cpu. What the device has of such a weight passes through the ring: gradients are
 * copied to it, and changed weights back. The copies of a weight follow a point of the rank's
 * stream, so that they overlap with the ops after it.
 *
 * One thread at a time executes an update, with queues of its own for the files. Another one may
 * add weights and set the device meanwhile.
 */
#ifndef TESS_NN_UPDATE_H
#define TESS_NN_UPDATE_H

#include "core/base/accumulator.h"
#include "nn/train/optimizer.h"

#include <stdatomic.h>

/* Buckets of the ring at most: with fewer than 8, a disk has too little to do at once. */
enum { TESS_UPDATE_BUCKETS = 8 };

struct tess_update_bucket { /* adjacent elements of a weight; private */
	const struct tess_weight *weight; /* NULL: free */
	int64_t first;
	struct tess_optimizer_values values;
	char *memory; /* of the values that are in files, or copied from the device */
	struct tess_transfer transfer[TESS_MOMENT2 + 1]; /* n 0: in memory */
	void *on_device[TESS_MOMENT2 + 1]; /* where copied values are in memory of the device */
	bool writes; /* it has been changed, and is written; else it is read */
};

struct tess_update {
	const struct tess_optimizer *optimizer; /* borrowed */
	struct tess_parameters *parameters; /* borrowed */
	struct tess_offload files; /* its queues of the rank's files */
	_Atomic(const struct tess_opened_device *) device; /* runs the ops; borrowed */
	struct tess_optimizer_step step;
	/* adds the squares of what the rank owns of gradients that are read from files */
	bool adds_squares;
	struct tess_accumulator squares;
	char *ring; /* NULL: nothing passes through it */
	uint64_t bytes; /* of the ring */
	int32_t nbuckets;
	struct tess_update_bucket bucket[TESS_UPDATE_BUCKETS];
	int64_t read, changed, written; /* buckets: their reads started, changed, free again */
	/* weights whose gradients are final, in order of their reads; the next: from `at` on */
	const struct tess_weight **ready;
	float **gradient; /* by index of the weight: where it was when the weight was added */
	bool *is_ready; /* by index of the weight; of the thread that adds */
	atomic_bool *is_changed; /* by index of the weight */
	atomic_int nready;
	int32_t next;
	int64_t at;
	int32_t npoints; /* so many of the first have a point of the rank's stream */
};

/* Returns the bytes of the ring of a rank; 0: nothing passes through it. */
uint64_t tess_update_count_bytes(const struct tess_offload_layout *files);
/* Allocates the ring, and opens queues of the files. Close *out. TESS_ENOMEM. */
tess_status tess_update_open(const struct tess_optimizer *o, struct tess_parameters *s,
                             struct tess_update *out);
void tess_update_close(struct tess_update *u);

/* Begins a step of the optimizer on the rank's device. Not collective, like all that follows. */
void tess_update_begin(struct tess_update *u, const struct tess_optimizer_step *step);
/*
 * Adds a weight, of the program of any shape, unless it has been added: the run needs it no more.
 */
void tess_update_add(struct tess_update *u, const struct tess_weight *w);
/*
 * Adds a weight, next to a device with memory of its own, whose copies overlap with ops: those that
 * are queued now are the last ones that need it. Blocks while too many weights wait for their
 * copies, and changes them. Failures as those of tess_update_advance.
 */
tess_status tess_update_add_queued(struct tess_update *u, const struct tess_weight *w);
/* Adds all trained weights that have not been added. */
void tess_update_add_rest(struct tess_update *u);
/* Returns whether all weights that have been added are changed. */
bool tess_update_is_idle(const struct tess_update *u);
/* Returns whether a weight has been added that is not changed yet; for the thread that adds. */
bool tess_update_is_pending(const struct tess_update *u, const struct tess_weight *w);
/*
 * Changes masters, moments and weights of the added weights, a bucket or a weight in memory at
 * least; waits for the disk. The update must not be idle. TESS_EIO: the disk failed; some weights
 * have changed. After a failure, call tess_update_abandon.
 */
tess_status tess_update_advance(struct tess_update *u);
/*
 * Adds all weights and changes them. Blocking, except for what is queued on the device's stream.
 * Failures as above, abandoned.
 */
tess_status tess_update_finish(struct tess_update *u);
/* Ends the transfers of a step that has failed; the update is idle. */
void tess_update_abandon(struct tess_update *u);

#endif
