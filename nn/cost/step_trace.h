/*
 * step_trace.h - the steps of a rank as a clock sees them, which runs them again with more rows, or
 * with other numbers of ranks along dp, without another program.
 */
#ifndef TESS_NN_COST_STEP_TRACE_H
#define TESS_NN_COST_STEP_TRACE_H

#include "nn/cost/step_time.h"

/* Work, the start of an op by the host, a call, and the wait for a started one. */
enum { TESS_TRACE_WORK, TESS_TRACE_LAUNCH, TESS_TRACE_CALL, TESS_TRACE_WAIT };
struct tess_trace_item {
	int32_t kind;
	bool data; /* a call along dp */
	double seconds; /* with the factor of the machine */
	struct tess_step_call call;
	const struct tess_step *step; /* of a call; only while the trace is kept */
	int32_t of; /* of a wait: its call; of a call: 1 if it is started */
	bool among_shards;
	double end; /* of a call, on the clock */
};
struct tess_step_trace { /* zeroed: empty */
	struct tess_trace_item *item;
	int32_t n, room;
};
/* Adds an item; the steps before it still exist. TESS_ENOMEM. */
tess_status tess_trace_add(struct tess_step_trace *trace, struct tess_trace_item item);
void tess_trace_free(struct tess_step_trace *trace);

/*
 * Estimates steps [first, end) of a rank as tess_steps_time, but as if files took no time. trace:
 * gets the steps; NULL: none is kept. TESS_ENOMEM.
 */
tess_status tess_steps_trace(const struct tess_machine *m, const struct tess_program *p,
                             const struct tess_rank_program *l, int32_t first, int32_t end,
                             const struct tess_op_known *known, struct tess_step_time *out,
                             struct tess_step_trace *trace);

/* What is different when a trace runs again. */
struct tess_trace_change {
	double work; /* factor of what is computed, and of calls within a replica */
	int32_t replicas, shards; /* ranks along dp, and those that keep shares of a weight */
	double copies; /* factor of the bytes of sums of which each rank gets its share */
};
/* Returns the seconds of a trace, with its calls along dp. */
double tess_trace_run(const struct tess_step_trace *trace, const struct tess_machine *m,
                      const struct tess_trace_change *change);
/* Returns the seconds of what is computed, and of calls within a replica. */
double tess_trace_sum_work(const struct tess_step_trace *trace);

#endif
