/*
 * trainer_state.h - the inside of a trainer: running one micro-batch (trainer_batch.c), or several
 * at a time (trainer_pipeline.c).
 */
#ifndef TESS_NN_TRAINER_STATE_H
#define TESS_NN_TRAINER_STATE_H

#include "core/base/accumulator.h"
#include "nn/compile/pipeline_schedule.h"
#include "nn/run/programs.h"
#include "nn/run/step_memory.h"
#include "nn/run/values.h"
#include "nn/train/trainer.h"

struct tess_trainer {
	struct tess_trainer_parts parts;
	struct tess_run_groups groups;
	int32_t rank, replica, nreplicas;
	struct tess_group *replicas; /* along dp; NULL: there is one */
	struct tess_optimizer optimizer;
	double clip;
	double balance; /* factor of the load balancing loss, a mean over micro-batches */
	struct tess_training training; /* common to all programs, which set the other fields */
	struct tess_opened_device device;
	struct tess_programs programs;
	struct tess_step_memory memory[TESS_MICRO_BATCHES]; /* by slot of a micro-batch */
	struct tess_parameters parameters;
	uint64_t seed; /* seed of dropout */
	int64_t step; /* steps that have changed weights */
	int64_t nruns; /* runs of programs */
	float *losses; /* losses of the rows of a step, in host memory: nlosses */
	int64_t nlosses;
	void *squares; /* sum over the gradient: a struct tess_accumulator on the device */
	int64_t waited; /* ns of the current step in collectives */
	char *pattern; /* of modules whose values are kept; NULL: none */
	struct tess_value_store values;
};

struct tess_batch_totals { /* sums over the micro-batches of a step */
	int64_t nsequences, ntokens, nlabels;
	double balance; /* load balancing losses so far, times their factor */
	int64_t before; /* sequences of the micro-batches that have run */
};
/*
 * Checks the micro-batches of a step, and counts them. Fails with one status on all ranks:
 * TESS_EMISMATCH: they pass different arguments; TESS_EINVAL: an argument is invalid. Collective.
 */
tess_status tess_trainer_check_batches(struct tess_trainer *t, const struct tess_batch *micro,
                                       int64_t n, double lr, struct tess_batch_totals *out);

/* Returns the shape of the replica's part. training->lengths are borrowed from the batch. */
struct tess_shape tess_trainer_make_shape(const struct tess_trainer *t,
                                          const struct tess_batch *micro, bool accumulate,
                                          struct tess_training *training);
/*
 * Finds the program of a shape, and makes room for it in slots 0 to nslots - 1 of the memory. It is
 * valid for TESS_MICRO_BATCHES calls. Collective, with one shape on all ranks.
 */
tess_status tess_trainer_prepare(struct tess_trainer *t, struct tess_shape shape, int32_t nslots,
                                 struct tess_shaped_program **out);
/* Binds a program to the memory of a slot. */
void tess_trainer_bind(struct tess_trainer *t, int32_t slot, const struct tess_shaped_program *k);
/* Writes the inputs of a slot. before: sequences of earlier micro-batches. */
tess_status tess_trainer_write_inputs(struct tess_trainer *t, int32_t slot,
                                      const struct tess_batch *micro, int64_t before,
                                      const struct tess_batch_totals *totals);
/* Adds the losses after the last step, as described for tess_trainer_run_batch. */
tess_status tess_trainer_read_losses(struct tess_trainer *t, const struct tess_shaped_program *k,
                                     const struct tess_batch *micro,
                                     struct tess_batch_totals *totals,
                                     struct tess_accumulator *loss, int32_t *nonfinite);

/*
 * Runs one micro-batch. accumulate: adds its gradients to those of earlier ones. Adds the losses of
 * this replica's rows to *loss and its load balancing loss to *totals. Sets nonfinite[i] if a loss
 * of sequence i is NaN or Inf. Collective.
 */
tess_status tess_trainer_run_batch(struct tess_trainer *t, const struct tess_batch *micro,
                                   bool accumulate, struct tess_batch_totals *totals,
                                   struct tess_accumulator *loss, int32_t *nonfinite);

/*
 * Runs n micro-batches, at most TESS_MICRO_BATCHES, as tess_trainer_run_batch does; the stages of
 * the pipeline compute several at a time. nonfinite: of all sequences, in order. Collective.
 */
tess_status tess_trainer_run_pipeline(struct tess_trainer *t, const struct tess_batch *micro,
                                      int32_t n, bool accumulate, struct tess_batch_totals *totals,
                                      struct tess_accumulator *loss, int32_t *nonfinite);

#endif
