/* evaluation.h - a strategy that is predicted, shared by the files that predict it. */
#ifndef TESS_API_PLAN_EVALUATION_H
#define TESS_API_PLAN_EVALUATION_H

#include "api/plan/planner.h"

#include <tessera/train.h>

struct evaluation {
	struct tess_planner *planner;
	const struct tess_planned_model *model; /* of the planner, or one with fewer layers */
	int64_t batch, sequence; /* of a step of training */
	const struct tess_strategy *strategy;
	struct tess_forecast *out;
	struct explanation x;
	struct tess_trainer_options training;
	struct tess_op_known known;
	struct tess_attended attended;
	int32_t *rows; /* positions, then slots */
	int64_t micro; /* micro-batches of a step */
	struct tess_stage_time *stage;
	int32_t nstages;
	/* the last micro-batch of a step whose update begins in it, at most over the ranks */
	struct evaluation_last {
		struct tess_step_time time;
		double disk, elements; /* as in struct tess_early_time */
	} last;
	struct tess_waited waited; /* of the forecast's terms TENSOR and DATA */
	double send; /* bytes that a stage sends forward, at most */
	struct evaluation_halves *halves; /* NULL: the whole program is predicted */
	bool opened; /* the plan */
	bool sampled; /* steps do not wait for files */
};

/* A sample, and both halves of a step of training without stages, of the slowest rank. */
struct evaluation_halves {
	struct tess_step_time forward, backward;
	struct tess_step_trace *trace; /* of both halves; NULL: none */
	/* adds a rank, whose backward starts at step `middle` */
	tess_status (*add)(struct evaluation *e, const struct tess_program *p,
	                   const struct tess_rank_program *l, int32_t middle);
};

/*
 * Sets *e to a strategy of a model, with `batch` sequences a step of training, and opens its plan
 * and mesh. Call evaluation_close also after a failure.
 */
tess_status evaluation_open(struct evaluation *e, struct tess_planner *p,
                            const struct tess_planned_model *model, const struct tess_strategy *s,
                            int64_t batch, struct tess_forecast *out);
void evaluation_close(struct evaluation *e);
/* Frees the program, after which another one can be measured. */
void evaluation_close_program(struct evaluation *e);
/* Returns the ranks along dp, which share the sequences of a step. */
int64_t evaluation_count_replicas(const struct evaluation *e);
/* Sets the positions and slots of n sequences of `length` rows from position `from` on. */
tess_status evaluation_set_rows(struct evaluation *e, int64_t n, int64_t length, int64_t from);
/* Sets the rows and the options of a step of training. TESS_EINVAL: its batch cannot be cut so. */
tess_status evaluation_set_training(struct evaluation *e);

/* Records and lowers the program, and measures its stages and ranks. */
tess_status evaluation_measure_program(struct evaluation *e);
/* Sets the memory of the fullest rank. positions: those of the cache of a replica. */
void evaluation_measure_memory(struct evaluation *e, double positions);
/* Keeps the slower of two times, and the longer `once`. */
void evaluation_keep_slowest(struct tess_step_time *kept, const struct tess_step_time *t);
/* Returns whether a machine has the rates of its disk; of its host if devices have memory. */
bool evaluation_can_offload(const struct tess_machine *m);
/* TESS_EINVAL: ranks have files, and the machine has not the rates of their disk or host. */
tess_status evaluation_check_disk(const struct evaluation *e);
/* Sets bytes of files, and those that a step moves. */
void evaluation_measure_files(struct evaluation *e);
/* Returns the seconds of a part of a step's traffic, TESS_EXPLAINED_..., of the slowest rank. */
double evaluation_time_files(const struct evaluation *e, int32_t part);
/* Returns whether the update of a step begins in its backward (nn/train/update.h). */
bool evaluation_updates_early(const struct evaluation *e);
/* Returns the most elements of optimizer state of a rank. */
double evaluation_count_state(const struct evaluation *e);

/* Adds a time to the terms of the forecast, `times` times. */
void evaluation_add_time(struct evaluation *e, const struct tess_step_time *t, double times);
/* Adds seconds of a call along dp. */
void evaluation_add_data_call(struct evaluation *e, const char *call, double seconds);
/* Set the terms and the memory of the forecast. */
tess_status evaluation_predict_training(struct evaluation *e);
tess_status evaluation_predict_generation(struct evaluation *e);

#endif
