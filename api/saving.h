/* saving.h - a save in progress: files, tensors and checksums that are written or read. */
#ifndef TESS_API_SAVING_H
#define TESS_API_SAVING_H

#include "api/save.h"
#include "hf/safetensors.h"
#include "nn/train/trainer.h"
#include "nn/weights/kept.h"

struct saved_tensor { /* a weight, or one of its optimizer states, in a file */
	const struct tess_stored_tensor *tensor;
	int32_t what; /* TESS_WEIGHT, ... */
	char *name;
	uint32_t sum; /* CRC of this rank's share; after combining, when saving, of the tensor */
};

struct saved_file {
	const char *name;
	int32_t n;
	struct saved_tensor *tensor;
	struct tess_slice *slice; /* [n], as tensor */
	char *header;
	uint64_t header_bytes, bytes; /* bytes: size of the file */
};

struct save { /* a save that is written or read */
	struct tess_trainer *trainer;
	const struct tess_trainer_parts *parts;
	const struct tess_parameters *parameters;
	int64_t step;
	char path[PATH_MAX], part[PATH_MAX];
	struct saved_file file[2]; /* weights, optimizer */
	/* values that this rank has written: non-finite weights, impossible moments */
	int64_t infinite, impossible;
	const char *first_infinite, *first_impossible; /* the tensors that contain the first ones */
	json_t *state; /* training.json, when reading */
};

/* Plans the files of a save of this trainer. Close it afterwards, also after a failure. */
tess_status tess_save_open(struct save *s, struct tess_trainer *t);
void tess_save_close(struct save *s);
/* Returns "adamw" or "sgd". */
const char *tess_save_get_optimizer(const struct save *s);
/* Begins an iteration over the ranges of a tensor on this rank, as tess_kept_walk_begin. */
void tess_save_begin_runs(const struct save *s, const struct tess_stored_tensor *t, int32_t what,
                          int32_t owned, struct tess_kept_walk *walk);
/* Returns how many of n elements to move and sum at a time, so that they stay in a cache. */
int64_t tess_save_limit_piece(int64_t n, uint64_t width);
/* Counts values that no moment can have: non-finite ones, and second moments below 0. */
int64_t tess_save_count_impossible(int32_t what, const void *values, int64_t n);
/*
 * Collective. Combines the shares `sum` of all ranks, and when reading compares them with the
 * state.
 */
tess_status tess_save_combine_checksums(const struct save *s, const struct saved_file *f);

#endif
