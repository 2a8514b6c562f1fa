/*
 * step_time.h - the time of a rank's steps on a machine, and what it is spent on.
 *
 * Steps run one after another, as the runner runs them. A started call occupies the link of its
 * level, after the calls before it, and steps that wait for it wait until it ends. So does a
 * transfer with the disk. The host starts one recorded op after another, and a faster device waits
 * for it.
 */
#ifndef TESS_NN_COST_STEP_TIME_H
#define TESS_NN_COST_STEP_TIME_H

#include "nn/cost/machine.h"
#include "nn/cost/op_cost.h"
#include "nn/lower/lower.h"
#include "nn/offload/traffic.h"

/* Seconds that steps wait for calls, by mesh dimension and kind of call. */
enum { TESS_WAITED_MAX = 16 };
struct tess_waited {
	int32_t n;
	struct {
		const char *call; /* "all_gather"; never freed */
		int32_t along; /* mesh dimension */
		double seconds;
	} of[TESS_WAITED_MAX]; /* the last one has the seconds of all that have no entry */
};
void tess_waited_add(struct tess_waited *w, const char *call, int32_t along, double seconds);

/* Sums over steps. */
struct tess_step_time {
	double seconds; /* the sum of `term`, each times its factor of the machine */
	double term[TESS_TERMS];
	/* with gradients_once: the seconds that calls along dp add to one micro-batch
	 * of a step. `seconds` and `term` are without them. */
	double once;
	double called
		[TESS_MESH_DIMS]; /* seconds of calls along each dimension, waited for or not */
	double sent[TESS_MESH_DIMS]; /* bytes to other ranks along each dimension */
	struct tess_waited waited; /* the terms TENSOR and DATA, without `once` */
};

/*
 * Estimates steps [first, end) of a rank. Sends to other stages are left out: a schedule has them.
 * known: positions and slots of the rows. TESS_ENOMEM.
 */
tess_status tess_steps_time(const struct tess_machine *m, const struct tess_program *p,
                            const struct tess_rank_program *l, int32_t first, int32_t end,
                            const struct tess_op_known *known, struct tess_step_time *out);

/* An update that begins in the backward, by a thread of the rank (nn/train/update_thread.h). */
struct tess_early_time {
	const struct tess_offload_layout *files; /* borrowed */
	double change; /* seconds of the optimizer for an element of its state */
	struct tess_traffic begun; /* out: of the weights whose update begins in the steps */
	double elements; /* out: of their optimizer state */
	/* out: seconds of the disk that the update is waited for, after the steps or in the next */
	double disk;
};
/*
 * Estimates all steps of a rank as tess_steps_time, if weights are updated from where their
 * gradients are final. The optimizer runs on the CPUs of the rank, and the update shares the disk
 * with the transfers of steps in equal parts. Its seconds are those of the terms OPTIMIZER and
 * DISK.
 */
tess_status tess_steps_time_early(const struct tess_machine *m, const struct tess_program *p,
                                  const struct tess_rank_program *l,
                                  const struct tess_op_known *known, struct tess_early_time *early,
                                  struct tess_step_time *out);

/* Adds the seconds of all steps to seconds[i], i: the index of the record that they are of. */
tess_status tess_steps_time_records(const struct tess_machine *m, const struct tess_program *p,
                                    const struct tess_rank_program *l,
                                    const struct tess_op_known *known, double *seconds);

/* Returns the seconds in which the disk moves what a rank reads and writes. */
double tess_traffic_time(const struct tess_machine *m, const struct tess_traffic *t);
/*
 * Returns the seconds that an update of `seconds` waits for a disk that is busy for `disk` seconds,
 * while `buckets` pass through memory one after another (nn/train/update.h).
 */
double tess_update_wait_time(double seconds, double disk, double buckets);

/*
 * Returns the seconds of the optimizer for n elements of state, with `moments` f32 values each. If
 * they are in memory of the host: on its CPUs, which its ranks share.
 */
double tess_optimizer_time(const struct tess_machine *m, double n, int32_t moments, double width,
                           bool on_host);

/* A COLL or SUM as a machine has it. */
struct tess_step_call {
	const char *name; /* "all_gather" */
	int32_t nranks, stride;
	double bytes; /* that the rank sends */
};
struct tess_step_call tess_step_find_call(const struct tess_machine *m,
                                          const struct tess_program *p, int32_t rank,
                                          const struct tess_step *s);

/* Returns the group of a COLL or SUM: the number of its ranks, and the position of `rank` in it. */
struct tess_cut tess_step_find_cut(const struct tess_program *p, int32_t rank,
                                   const struct tess_step *s);
/* Returns the bytes that a rank sends to others in a COLL or SUM; cut: of its group. */
uint64_t tess_step_count_sent(const struct tess_step *s, struct tess_cut cut);
/* Returns the bytes sent in a COLL or SUM if rows request all experts equally often. */
double tess_step_count_expected(const struct tess_step *s, struct tess_cut cut);

#endif
