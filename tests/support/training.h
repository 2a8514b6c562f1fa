/*
 * training.h - the goldens of training, computed by torch in float64, and jobs that train on real
 * groups. A test has one golden open at a time.
 */
#ifndef TESS_TESTS_SUPPORT_TRAINING_H
#define TESS_TESTS_SUPPORT_TRAINING_H

#include "hf/safetensors.h"
#include "suite.h"

#include <tessera/tessera.h>

extern struct tess_safetensors *training_golden;
extern char training_folder[512];
/* The two sequences of 32 ids of train.ids and train.labels, read by training_read_batch. */
extern const struct tess_batch training_batch;

void training_open_golden(const char *family);
void training_close_golden(void);
void training_read_batch(void);
/*
 * Checks that the largest error of n numbers is at most `times` torch's error in float32, stored as
 * `key`.
 */
void training_check_error(const char *tensor, const char *key, double times, const void *have,
                          int32_t dtype, int64_t n);

enum { TRAINING_STEPS_MAX = 10 };

struct training_job { /* a job, and its results on rank 0 */
	const char *mesh;
	int32_t nranks;
	struct tess_trainer_options options;
	const struct tess_batch *micro;
	int64_t nmicro;
	int32_t steps; /* 0: only gradients */
	double lr;
	double loss[TRAINING_STEPS_MAX], norm[TRAINING_STEPS_MAX], balance[TRAINING_STEPS_MAX];
	/* all tensors, one after another: gradients, or, after steps, weights and masters */
	char *bytes;
	uint64_t nbytes;
};

/* Runs the job on the checkpoint in training_folder and stores the results of rank 0. */
void training_run_on(struct training_job *j, const char *mesh, int32_t nranks);
void training_free_job(struct training_job *j);
/* Checks that losses, norms and all tensors have equal bits on other meshes. */
void training_expect_bits(const struct training_job *one);

/*
 * Checks on one rank that the loss and each gradient, gathered by name, match the goldens; arg:
 * struct tess_trainer_options.
 */
tess_status training_check_gradients(struct tess_world *w, void *arg);
/*
 * The options of the goldens' ten steps of AdamW; arg: a double, the additional tolerance of norms.
 */
extern const struct tess_trainer_options training_adamw;
tess_status training_check_adamw(struct tess_world *w, void *arg);

#endif
