/*
 * hashed_training.h - trains on ranks that are threads, and hashes what must not depend on the
 * mesh, or on where values are stored.
 */
#ifndef TESS_TESTS_SUPPORT_HASHED_TRAINING_H
#define TESS_TESTS_SUPPORT_HASHED_TRAINING_H

#include "hash.h"
#include "spawn.h"

#include <stdio.h>
#include <tessera/train.h>

struct hashed_training {
	const char *model; /* a folder in tests/data/goldens */
	const char *mesh;
	const struct tess_trainer_options *options;
	/* trains on each rank, and adds results to *hash */
	tess_status (*train)(struct tess_trainer *t, const void *job, uint64_t *hash);
	const void *job;
	/* of rank 0 */
	uint64_t hash;
	struct tess_trainer_info info;
};

/* Hashes values `from` to `to` (TESS_WEIGHT, ...) of all tensors by name, in full. */
static inline tess_status hash_trained_tensors(struct tess_trainer *t, int32_t from, int32_t to,
                                               uint64_t *hash)
{
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < tess_trainer_count_tensors(t) && !st; i++) {
		const struct tess_trained *about = tess_trainer_get_tensor(t, i);
		float *full = calloc((size_t)about->size, sizeof *full);

		for (int32_t what = from; what <= to && !st; what++) {
			if (what != TESS_WEIGHT && !about->trained)
				continue;
			st = tess_trainer_gather(t, what, i, 0, about->size, 0, full);
			hash_add_bytes(hash, full, (size_t)about->size * sizeof *full);
		}
		free(full);
	}
	return st;
}

static inline tess_status hashed_training_run_rank(struct tess_world *w, void *arg)
{
	struct hashed_training *h = arg;
	struct tess_trainer *t = NULL;
	struct tess_mesh *mesh = NULL;
	uint64_t hash = HASH_BEGIN;
	char path[512];
	tess_status st = tess_mesh_open(w, h->mesh, &mesh);

	snprintf(path, sizeof path, "%s/tests/data/goldens/%s", SOURCE_ROOT, h->model);
	if (!st)
		st = tess_trainer_open(mesh, path, h->options, &t);
	if (!st)
		st = h->train(t, h->job, &hash);
	if (!st && tess_world_rank(w) == 0) {
		h->hash = hash;
		h->info.size = sizeof h->info;
		tess_trainer_get_info(t, &h->info);
	}
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return st;
}

/* Trains on all ranks of the mesh; returns the failure of the job. */
static inline tess_status hashed_training_run(struct hashed_training *h)
{
	int32_t n;

	ck_assert(!tess_mesh_count_ranks(h->mesh, &n));
	return tess_world_spawn_threads(n, hashed_training_run_rank, h);
}

#endif
