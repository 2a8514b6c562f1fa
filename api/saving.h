/* saving.h - a save while it is written or read: its files, tensors and checksums. */
#ifndef TESS_API_SAVING_H
#define TESS_API_SAVING_H

#include "api/save.h"
#include "hf/safetensors.h"
#include "nn/train/trainer.h"
#include "nn/weights/kept.h"

struct saved_tensor { /* in a file: one of the checkpoint's, or what is kept of it */
	const struct tess_stored_tensor *tensor;
	int32_t what; /* TESS_WEIGHT, ... */
	char *name;
	uint32_t sum; /* of this rank's share; on saving, of all, once it is combined */
};

struct saved_file {
	const char *name;
	int32_t n;
	struct saved_tensor *tensor;
	struct tess_slice *slice; /* by the same index */
	char *header;
	uint64_t header_bytes, bytes; /* bytes: of the whole file */
};

struct save { /* being written, or read */
	struct tess_trainer *trainer;
	const struct tess_trainer_parts *parts;
	const struct tess_parameters *parameters;
	int64_t step;
	char path[PATH_MAX], part[PATH_MAX];
	struct saved_file file[2]; /* of weights, of the optimizer */
	/* values that this rank has written: weights that are not finite, impossible moments */
	int64_t infinite, impossible;
	const char *first_infinite, *first_impossible; /* the tensors of the first ones */
	json_t *state; /* training.json of what is read */
};

/* Plans the files of a save of this trainer; then close it, also after a failure. */
tess_status tess_save_open(struct save *s, struct tess_trainer *t);
void tess_save_close(struct save *s);
/* "adamw" or "sgd". */
const char *tess_save_get_optimizer(const struct save *s);
/* Begins the walk over the runs of a tensor on this rank, as tess_kept_walk_begin. */
void tess_save_begin_runs(const struct save *s, const struct tess_stored_tensor *t, int32_t what,
                          int32_t owned, struct tess_kept_walk *walk);
/* At most n elements that are moved and summed while they are in a cache. */
int64_t tess_save_limit_piece(int64_t n, uint64_t width);
/* Counts values that no moment has: infinite ones, NaN, and second moments below 0. */
int64_t tess_save_count_impossible(int32_t what, const void *values, int64_t n);
/*
 * Collective. Combines the shares `sum` of all ranks, and compares them with the state where that
 * was read.
 */
tess_status tess_save_combine_checksums(const struct save *s, const struct saved_file *f);

#endif
