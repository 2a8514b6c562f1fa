/*
 * trainer_state.h - the inside of a trainer; one micro-batch of it (trainer_batch.c), and several
 * at a time (trainer_pipeline.c).
 */
#ifndef TESS_NN_TRAINER_STATE_H
#define TESS_NN_TRAINER_STATE_H

#include "core/base/accumulator.h"
#include "nn/compile/pipeline_schedule.h"
#include "nn/run/programs.h"
#include "nn/run/step_memory.h"
#include "nn/train/trainer.h"

struct tess_trainer {
	struct tess_trainer_parts parts;
	struct tess_run_groups groups;
	int32_t rank, replica, nreplicas;
	struct tess_group *replicas; /* along dp; NULL: there is one */
	struct tess_optimizer optimizer;
	double clip;
	double balance; /* factor of the load balancing loss, of the mean of all micro-batches */
	struct tess_training training; /* of every program; the rest is set for each */
	struct tess_opened_device device;
	struct tess_programs programs;
	struct tess_step_memory memory[TESS_MICRO_BATCHES]; /* by slot: of those under way */
	struct tess_parameters parameters;
	uint64_t seed; /* of dropout */
	int64_t step; /* those that have changed weights */
	int64_t nruns; /* of programs */
	float *losses; /* of the rows of a step, in host memory; nlosses */
	int64_t nlosses;
	void *squares; /* of the gradient: a struct tess_accumulator in memory of the device */
	int64_t waited; /* ns of the current step in calls of groups */
};

/* What the micro-batches of a step have in common. */
struct tess_batch_totals {
	int64_t nsequences, ntokens, nlabels;
	double balance; /* the load balancing losses that have run, times their factor */
	int64_t before; /* sequences of the micro-batches that have run */
};
/*
 * Collective. Fails alike on all ranks: TESS_EMISMATCH where they pass different arguments,
 * TESS_EINVAL where these cannot be trained with.
 */
tess_status tess_trainer_check_batches(struct tess_trainer *t, const struct tess_batch *micro,
                                       int64_t n, double lr, struct tess_batch_totals *out);

/* The part of a micro-batch that this rank's replica runs: its sequences, and their tokens. */
struct tess_batch_part {
	struct tess_run sequences, tokens;
};
struct tess_batch_part tess_trainer_cut_batch(const struct tess_trainer *t,
                                              const struct tess_batch *micro);

/* Its shape; training->lengths are those of the batch. */
struct tess_shape tess_trainer_make_shape(const struct tess_trainer *t,
                                          const struct tess_batch *micro, bool accumulate,
                                          struct tess_training *training);
/*
 * The program of a shape, and room for it in slots 0 to nslots - 1 of the memory. It stays for as
 * many calls as there are micro-batches in a schedule. Collective, with one shape on all ranks.
 */
tess_status tess_trainer_prepare(struct tess_trainer *t, struct tess_shape shape, int32_t nslots,
                                 struct tess_shaped_program **out);
void tess_trainer_bind(struct tess_trainer *t, int32_t slot, const struct tess_shaped_program *k);
/* What the steps read, in the memory of a slot; `before`: sequences of earlier micro-batches. */
tess_status tess_trainer_write_inputs(struct tess_trainer *t, int32_t slot,
                                      const struct tess_batch *micro, int64_t before,
                                      const struct tess_batch_totals *totals);
/* After its last step: adds the losses, as tess_trainer_run_batch says. */
tess_status tess_trainer_read_losses(struct tess_trainer *t, const struct tess_shaped_program *k,
                                     const struct tess_batch *micro,
                                     struct tess_batch_totals *totals,
                                     struct tess_accumulator *loss, int32_t *odd);

/*
 * Runs one micro-batch, whose gradients are added to those before it where `accumulate`; adds the
 * losses of this replica's rows to *loss and its load balancing loss to *totals, and sets odd[i]
 * where one of its sequence i is not finite. Collective.
 */
tess_status tess_trainer_run_batch(struct tess_trainer *t, const struct tess_batch *micro,
                                   bool accumulate, struct tess_batch_totals *totals,
                                   struct tess_accumulator *loss, int32_t *odd);

/*
 * The same of n micro-batches, at most TESS_MICRO_BATCHES, whose stages compute several at a time;
 * odd: of the sequences of all, in their order.
 */
tess_status tess_trainer_run_pipeline(struct tess_trainer *t, const struct tess_batch *micro,
                                      int32_t n, bool accumulate, struct tess_batch_totals *totals,
                                      struct tess_accumulator *loss, int32_t *odd);

#endif
