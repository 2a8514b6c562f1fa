/* trainer.h - trains a model on this rank: its parameters, programs, optimizer and device. */
#ifndef TESS_NN_TRAINER_H
#define TESS_NN_TRAINER_H

#include "nn/program/plan.h"
#include "nn/train/optimizer.h"
#include "nn/weights/parameters.h"

#include <tessera/tessera.h>
#include <tessera/train.h>

struct tess_trainer_parts { /* borrowed for the life of the trainer */
	const struct tess_model *model;
	const struct tess_plan *plan;
	const struct tess_source *source;
	struct tess_group *group; /* of all ranks of `mesh`, in its order */
	struct tess_mesh_shape mesh; /* with dp */
	struct tess_group *along[TESS_MESH_DIMS]; /* the group of each dimension */
	/* of the neighbours along dp that share one copy of what is cut; NULL: all along it */
	struct tess_group *shards;
	int64_t positions; /* of a sequence, at most; 0: any */
	const struct tess_trainer_options *options; /* read during the call */
	/* closed with the trainer, after it; NULL: nothing */
	void (*close_parts)(void *self);
	void *self;
};

/* Collective. Records and checks the program, compares it between ranks, and loads parameters. */
tess_status tess_trainer_new(const struct tess_trainer_parts *parts, struct tess_trainer **out);

/* For saving and resuming. Borrowed. */
struct tess_parameters *tess_trainer_get_parameters(struct tess_trainer *t);
const struct tess_trainer_parts *tess_trainer_get_parts(const struct tess_trainer *t);
const struct tess_optimizer *tess_trainer_get_optimizer(const struct tess_trainer *t);
/* Steps that have changed weights: the optimizer's next is this + 1. */
void tess_trainer_set_step(struct tess_trainer *t, int64_t step);

#endif
