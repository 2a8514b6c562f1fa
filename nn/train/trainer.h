/* trainer.h - trains a model on this rank: parameters, programs, optimizer and device. */
#ifndef TESS_NN_TRAINER_H
#define TESS_NN_TRAINER_H

#include "nn/program/plan.h"
#include "nn/run/profile.h"
#include "nn/run/values.h"
#include "nn/train/optimizer.h"
#include "nn/weights/parameters.h"

#include <tessera/tessera.h>
#include <tessera/train.h>

struct tess_trainer_parts { /* borrowed for the life of the trainer */
	const struct tess_model *model;
	const struct tess_plan *plan;
	const struct tess_source *source;
	struct tess_group *group; /* all ranks of `mesh`, in its order */
	struct tess_mesh_shape mesh; /* with dp */
	struct tess_group *along[TESS_MESH_DIMS]; /* the group of each dimension */
	/* ranks along dp that keep the shares of one copy of weights; NULL: all ranks along it */
	struct tess_group *shards;
	int64_t positions; /* maximum length of a sequence; 0: no limit */
	const struct tess_trainer_options *options; /* read during the call */
	void (*close_parts)(void *self); /* called once the trainer is closed; NULL: nothing */
	void *self;
};

/* Fails for a schedule of a mesh without stages. */
tess_status tess_trainer_refuse_schedule(const char *name);

/* Records, checks and compares the program, and loads parameters. Collective. */
tess_status tess_trainer_new(const struct tess_trainer_parts *parts, struct tess_trainer **out);

/*
 * Takes the values that steps have stored (nn/run/values.h): tess_trainer_get_program's `nvalues`
 * of them on rank 0. nmicro: their micro-batches. TESS_EINVAL: the trainer has no pattern.
 */
tess_status tess_trainer_take_stored(struct tess_trainer *t, struct tess_taken_value **out,
                                     int64_t *nmicro);
/* Returns the program that was recorded first, borrowed. */
const struct tess_program *tess_trainer_get_program(const struct tess_trainer *t);

/*
 * Starts adding what steps without a pipeline do on this rank to *p, which is borrowed; NULL:
 * stops. All ranks have a profile, or none.
 */
void tess_trainer_set_profile(struct tess_trainer *t, struct tess_profile *p);

/*
 * Waits until the update of the last step has ended. Call it before anything but a step reads or
 * moves weights, gradients or state. Collective. TESS_EIO: the disk failed, and the trainer is
 * unusable.
 */
tess_status tess_trainer_settle(struct tess_trainer *t);
/* The inside of a trainer, for saving and resuming. Borrowed. */
struct tess_parameters *tess_trainer_get_parameters(struct tess_trainer *t);
const struct tess_trainer_parts *tess_trainer_get_parts(const struct tess_trainer *t);
const struct tess_optimizer *tess_trainer_get_optimizer(const struct tess_trainer *t);
/* Fails if a step has failed after it had changed some weights. TESS_EIO. */
tess_status tess_trainer_check_usable(const struct tess_trainer *t);
/* Sets the number of steps that have changed weights; the optimizer's next is step + 1. */
void tess_trainer_set_step(struct tess_trainer *t, int64_t step);

#endif
