/*
 * trainer_state.h - the inside of a trainer: running one micro-batch (trainer_batch.c), or those of
 * a step on the stages of a pipeline (trainer_pipeline.c); updates that begin in the backward
 * (early_update.c); the norm of the gradient (norm.c).
 */
#ifndef TESS_NN_TRAINER_STATE_H
#define TESS_NN_TRAINER_STATE_H

#include "core/base/accumulator.h"
#include "nn/run/programs.h"
#include "nn/run/step_memory.h"
#include "nn/run/values.h"
#include "nn/train/trainer.h"
#include "nn/train/update_thread.h"

struct tess_early_update { /* an update that begins before its step has all gradients */
	struct tess_optimizer_step step;
	struct tess_final_calls calls;
	const float *losses; /* of the last micro-batch, in memory of the device */
	int64_t nlosses;
	bool is_last; /* the run is of the last micro-batch */
	bool is_nonfinite; /* a loss of earlier micro-batches is */
	bool has_begun;
};

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
	struct tess_step_memory memory;
	struct tess_parameters parameters;
	struct tess_update update;
	bool may_update_early; /* weights may change before the norm is known */
	bool may_update_late; /* weights may change until the next forward reads them */
	bool is_updating; /* the update of the last step may not have ended */
	struct tess_update_thread *update_thread; /* executes early updates; NULL: none */
	struct tess_early_update early;
	uint64_t seed; /* seed of dropout */
	int64_t step; /* steps that have changed weights */
	int64_t failed; /* the step that has failed after it had changed some weights; 0: none */
	int64_t nruns; /* runs of programs */
	float *losses; /* losses of the rows of a step, in host memory: nlosses */
	int64_t nlosses;
	void *squares; /* sum over the gradient: a struct tess_accumulator on the device */
	int64_t waited; /* ns of the current step in collectives */
	/* bytes that are read and written: in the current step, and by updates not counted there */
	uint64_t moved[2][2];
	const char *schedule; /* of the pipeline: a name, or a file */
	char *own_schedule; /* memory of `schedule`; NULL: none */
	struct tess_pipeline *pipeline; /* the schedule, for its stages; NULL: no pipeline */
	/* the schedule of the last step, for its micro-batches, and its simulation; NULL: none */
	struct tess_pipeline *step_pipeline;
	struct tess_timeline *timeline;
	uint64_t reserved; /* hash of the shapes for which memory is reserved; 0: none */
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
struct tess_trainer_room { /* what a step needs in memory */
	uint64_t bytes; /* of the step memory */
	uint64_t calls; /* hash of its layout, as for tess_step_memory_reserve */
	int64_t ntokens; /* of this replica, in all micro-batches */
	int64_t ninputs; /* inputs of 4 bytes */
	int64_t positions; /* maximum length of a sequence */
};
/* Raises room->positions to the lengths of a micro-batch. */
void tess_trainer_include_lengths(struct tess_trainer_room *room,
                                  const struct tess_training *training);
/* Makes room for a step; allocates the gradients as `l` lays them out. Collective. */
tess_status tess_trainer_reserve(struct tess_trainer *t, const struct tess_rank_program *l,
                                 const struct tess_trainer_room *room);
/*
 * Finds the program of a shape, makes room for it, and binds it. It is valid until the next call.
 * Collective, with one shape on all ranks.
 */
tess_status tess_trainer_prepare(struct tess_trainer *t, struct tess_shape shape,
                                 struct tess_shaped_program **out);
/*
 * Writes the inputs of a micro-batch at element `at` of their memory. before: sequences of earlier
 * micro-batches.
 */
tess_status tess_trainer_write_inputs(struct tess_trainer *t, int64_t at,
                                      const struct tess_batch *micro, int64_t before,
                                      const struct tess_batch_totals *totals);
/*
 * Queues the copy of the losses of a micro-batch to row `row` of t->losses, and sets its load
 * balancing loss, times the factor; each if `stage` has it.
 */
tess_status tess_trainer_copy_losses(struct tess_trainer *t, const struct tess_shaped_program *k,
                                     int64_t row, int32_t stage, double *balance);
/* Adds the losses of a micro-batch at `row` to *loss; sets nonfinite[i] as run_batch does. */
void tess_trainer_count_losses(const struct tess_trainer *t, const struct tess_batch *micro,
                               int64_t row, struct tess_accumulator *loss, int32_t *nonfinite);
/* Counts a micro-batch whose values have been stored, if any are kept. */
tess_status tess_trainer_add_value_step(struct tess_trainer *t, const struct tess_batch *micro);

/*
 * Runs one micro-batch. accumulate: adds its gradients to those of earlier ones. Adds the losses of
 * this replica's rows to *loss and its load balancing loss to *totals. Sets nonfinite[i] if a loss
 * is NaN or Inf; i counts the sequences of the step. updates: it is the last one, and the update
 * may begin in it. Collective.
 */
tess_status tess_trainer_run_batch(struct tess_trainer *t, const struct tess_batch *micro,
                                   bool accumulate, bool updates, struct tess_batch_totals *totals,
                                   struct tess_accumulator *loss, int32_t *nonfinite);

/* Opens the thread that executes early updates, if there may be any. */
tess_status tess_early_update_open(struct tess_trainer *t);
/* Prepares an update that may begin before all gradients of the step are known. */
void tess_early_update_prepare(struct tess_trainer *t, const struct tess_optimizer_step *step);
/*
 * Lets the next run of the program `k`, which has the last micro-batch, begin the update, unless a
 * loss is not finite: one of the run, or of the n sequences before.
 */
void tess_early_update_watch(struct tess_trainer *t, const struct tess_shaped_program *k,
                             const int32_t *nonfinite, int64_t n);

/* Changes the weights that have been added, unless a thread does that; after the run. */
tess_status tess_early_update_execute(struct tess_trainer *t);
/* Adds the other weights, whose gradients are final, too. Nothing happens if it has not begun. */
void tess_early_update_add_rest(struct tess_trainer *t);
/*
 * Waits until all weights are changed, if the update has begun, or leaves it running until
 * tess_trainer_settle. TESS_EIO: the disk failed.
 */
tess_status tess_early_update_finish(struct tess_trainer *t);
/* Adds what the update has moved to what the step has; the update is not under way. */
void tess_early_update_count_moved(struct tess_trainer *t);
/* Ends the transfers of a step that has failed. */
void tess_early_update_abandon(struct tess_trainer *t);

/*
 * Measures the norm of the gradient of the last step, and finishes an update that has begun.
 * Collective. TESS_EIO: the disk failed.
 */
tess_status tess_trainer_measure_norm(struct tess_trainer *t, double *norm);
/* Adds accumulators of all ranks, in any order; group NULL: there is one rank. Collective. */
tess_status tess_trainer_add_accumulators(struct tess_trainer *t, struct tess_group *group,
                                          struct tess_accumulator *a, const char *where);

/* Closes the schedule of the last step. */
void tess_trainer_close_timeline(struct tess_trainer *t);
/* Opens t->pipeline, if the mesh has stages. */
tess_status tess_trainer_open_schedule(struct tess_trainer *t);
/*
 * Runs the n micro-batches of a step as tess_trainer_run_batch does, on the stages of the pipeline.
 * nonfinite: of all sequences, in order. updates: weights are updated after it; else a schedule
 * from a file, which is for another number, is replaced by one micro-batch after another.
 * Collective.
 */
tess_status tess_trainer_run_pipeline(struct tess_trainer *t, const struct tess_batch *micro,
                                      int32_t n, bool updates, struct tess_batch_totals *totals,
                                      struct tess_accumulator *loss, int32_t *nonfinite);

#endif
