/*
 * schedule.h - what makes and checks schedules of pipelines (tessera/pipeline.h).
 *
 * A schedule is made in four steps: the computations of each rank, from a generator or a file;
 * their check (tess_schedule_check_computations); the order of the sums that give gradients of
 * weights; then sends and receives, unless the file has them. A rank sends a value as soon as it is
 * computed. It receives before the computation that reads the value, and first all that the same
 * rank has sent before: those messages are sent if this one is, so taking them in order adds no
 * wait.
 */
#ifndef TESS_NN_SCHEDULE_H
#define TESS_NN_SCHEDULE_H

#include "core/base/arena.h"

#include <stdbool.h>
#include <tessera/pipeline.h>

struct tess_schedule_row { /* the actions of a rank */
	struct tess_pipeline_action *action;
	int32_t n;
};

struct tess_schedule_maker { /* a schedule that is being made; all of it is in `arena` */
	struct tess_arena *arena;
	const char *name;
	int32_t nranks, nstages, nmicro;
	int32_t *rank_of;
	struct tess_schedule_row *row;
	bool failed; /* no memory */
};

/* Allocates rows and the map of stages. TESS_ENOMEM. */
tess_status tess_schedule_start(struct tess_schedule_maker *m);
/* Appends an action to a row. */
void tess_schedule_add(struct tess_schedule_maker *m, int32_t rank,
                       struct tess_pipeline_action action);
/* Returns the schedule, which borrows from the maker. */
tess_status tess_schedule_finish(const struct tess_schedule_maker *m, struct tess_pipeline *out);

/*
 * Makes the computations of the schedule `m->name` for m->nranks and m->nmicro. `*known` is false
 * if there is no schedule of this name.
 */
tess_status tess_schedule_generate(struct tess_schedule_maker *m, bool *known);
/* Appends the computations of rank r of the schedules whose backward is in two parts. */
void tess_schedule_add_zb_h1(struct tess_schedule_maker *m, int32_t r);
void tess_schedule_add_zb_v(struct tess_schedule_maker *m, int32_t r);

/*
 * Opens a schedule of `n` micro-batches, one after the other, for the stages of another one. The
 * caller owns *out: tess_pipeline_close.
 */
tess_status tess_schedule_open_serial(const struct tess_pipeline *like, int32_t n,
                                      struct tess_pipeline **out);

/* Returns whether the name of a schedule is that of a file. */
bool tess_schedule_is_file(const char *schedule);
/* Reads rows, ranks, stages and micro-batches from CSV. messages: it has sends or receives. */
tess_status tess_schedule_read_csv(struct tess_schedule_maker *m, const char *text, size_t len,
                                   bool *messages);

/* Puts the gradients of weights of each stage in the order of micro-batches (order.c). */
tess_status tess_schedule_order_weights(struct tess_schedule_maker *m);
/* Adds sends and receives to a schedule whose computations are checked. */
tess_status tess_schedule_add_messages(struct tess_schedule_maker *m);

/* Checks that a schedule has a size that the others take in bounded time and memory. */
tess_status tess_schedule_check_size(const char *name, int32_t nranks, int32_t nstages,
                                     int32_t nmicro);
/* Checks what a rank can see of its computations, and that none is missing. */
tess_status tess_schedule_check_computations(const struct tess_pipeline *p);
/* Checks sends, receives, and that no rank waits for ever. Checks no computation. */
tess_status tess_schedule_check_messages(const struct tess_pipeline *p);
/* Runs a schedule by the durations of `times`. Returns false if ranks wait for each other. */
tess_status tess_schedule_run(const struct tess_pipeline *p,
                              const struct tess_pipeline_times *times, struct tess_arena *arena,
                              struct tess_timeline_span **spans, int32_t *done);

/*
 * Raises slots[nstages], which are enough for what each stage keeps, until no rank waits for ever
 * for a slot (slots.c). The schedule is checked. TESS_ENOMEM.
 */
tess_status tess_schedule_count_slots(const struct tess_pipeline *p, struct tess_arena *arena,
                                      int32_t *slots);

/* Returns the name of a kind in CSV, as "F". */
const char *tess_schedule_name_kind(int32_t kind);
/* Returns whether a schedule has an action of this kind. */
bool tess_schedule_has_kind(const struct tess_pipeline *p, int32_t kind);

static inline bool tess_schedule_is_message(int32_t kind)
{
	return kind >= TESS_PIPELINE_SEND_FORWARD;
}

static inline bool tess_schedule_is_receive(int32_t kind)
{
	return kind == TESS_PIPELINE_RECEIVE_FORWARD || kind == TESS_PIPELINE_RECEIVE_BACKWARD;
}

/* Returns whether an action gives gradients of inputs. */
static inline bool tess_schedule_gives_gradients(int32_t kind)
{
	return kind == TESS_PIPELINE_BACKWARD || kind == TESS_PIPELINE_BACKWARD_INPUTS;
}

/* Returns the stage at the other end of a message, or of the values of a computation; -1: none. */
static inline int32_t tess_schedule_find_peer(const struct tess_pipeline *p,
                                              const struct tess_pipeline_action *a)
{
	int32_t to;

	switch (a->kind) {
	case TESS_PIPELINE_FORWARD:
	case TESS_PIPELINE_SEND_FORWARD:
	case TESS_PIPELINE_RECEIVE_BACKWARD:
		to = a->stage + 1;
		break;
	case TESS_PIPELINE_BACKWARD_WEIGHTS:
		return -1;
	default:
		to = a->stage - 1;
	}
	return to < p->nstages ? to : -1;
}

/* Returns the rank at that end, if it is another one; -1: none. */
static inline int32_t tess_schedule_find_other_rank(const struct tess_pipeline *p,
                                                    const struct tess_pipeline_action *a)
{
	int32_t peer = tess_schedule_find_peer(p, a);

	return peer < 0 || p->rank_of[peer] == p->rank_of[a->stage] ? -1 : p->rank_of[peer];
}

#endif
