/*
 * tessera/pipeline.h - schedules of pipelines as data: the order in which each rank along `pp`
 * computes stages and micro-batches, built in or read from a CSV file of torch.
 *
 * A schedule starts no rank. No function here is collective.
 *
 * Example:
 *     static tess_status print_bubble(const char *schedule)
 *     {
 *             struct tess_pipeline *p = NULL;
 *             struct tess_timeline *t = NULL;
 *             tess_status st = tess_pipeline_open(schedule, 4, 8, &p);
 *
 *             if (!st)
 *                     st = tess_pipeline_simulate(p, NULL, &t);
 *             if (!st)
 *                     printf("bubble %g of the work\n", t->length / t->ideal - 1);
 *             tess_timeline_free(t);
 *             tess_pipeline_close(p);
 *             return st;
 *     }
 */
#ifndef TESSERA_PIPELINE_H
#define TESSERA_PIPELINE_H

#include <stddef.h>
#include <tessera/plugin.h>

TESS_BEGIN

/* Kinds of actions. Sends do not wait; a receive waits for its send. */
enum {
	/* Forward. */
	TESS_PIPELINE_FORWARD,
	/* Backward: gradients of inputs and of weights. */
	TESS_PIPELINE_BACKWARD,
	/* Backward of inputs alone; the gradients of weights come later. */
	TESS_PIPELINE_BACKWARD_INPUTS,
	/* Backward of weights, after that of inputs. */
	TESS_PIPELINE_BACKWARD_WEIGHTS,
	/* Sends the values of a forward to the rank of the next stage. */
	TESS_PIPELINE_SEND_FORWARD,
	/* Receives, for a forward, the values of the stage before. */
	TESS_PIPELINE_RECEIVE_FORWARD,
	/* Sends the gradients of inputs to the rank of the stage before. */
	TESS_PIPELINE_SEND_BACKWARD,
	/* Receives, for a backward, the gradients that the next stage gives. */
	TESS_PIPELINE_RECEIVE_BACKWARD,
	/* Number of kinds. */
	TESS_PIPELINE_KINDS
};

/* An action of a rank. */
struct tess_pipeline_action {
	/* Kind: TESS_PIPELINE_FORWARD, ... */
	int32_t kind;
	/* Stage that computes, sends or receives. */
	int32_t stage;
	/* Micro-batch. */
	int32_t micro;
	/* Cell of the row of a file, from 1, which errors name; 0: its place among the actions. */
	int32_t cell;
};

/* A schedule. Stage s passes values to stage s + 1. */
struct tess_pipeline {
	/* "1f1b", or the name of the file. */
	const char *name;
	/* Number of ranks along pp. */
	int32_t nranks;
	/* Number of stages. */
	int32_t nstages;
	/* Number of micro-batches. */
	int32_t nmicro;
	int32_t reserved;
	/* The rank of each stage: [nstages]. */
	const int32_t *rank_of;
	/* Number of actions of each rank: [nranks]. */
	const int32_t *nactions;
	/* Actions of each rank in their order: [nranks][nactions[rank]]. */
	const struct tess_pipeline_action *const *actions;
};

/*
 * Durations; 0 of all kinds: 1 for each computation. A full backward without a duration takes those
 * of its parts together.
 */
struct tess_pipeline_times {
	/* Duration by kind; TESS_PIPELINE_SEND_...: from the send to the arrival. */
	double kinds[TESS_PIPELINE_KINDS];
	/* Durations of a kind by stage, which replace the one above: [nstages]; NULL: none. */
	const double *stages[TESS_PIPELINE_KINDS];
};

/* Start and end of an action, and what its rank keeps. */
struct tess_timeline_span {
	double start;
	double end;
	/* Micro-batches of its stages whose values the rank keeps during the action. */
	int32_t kept;
	/* Those that it keeps after the action. */
	int32_t left;
};

/* A simulated step, and what each rank keeps. */
struct tess_timeline {
	/* The schedule, borrowed. */
	const struct tess_pipeline *pipeline;
	/* Spans of the actions of each rank: [nranks][nactions[rank]]. */
	const struct tess_timeline_span *const *spans;
	/* Time that each rank computes: [nranks]. */
	const double *work;
	/* Micro-batches of its stages, at most, whose values each rank keeps at once, from their
	 * first action to their last: [nranks]. */
	const int32_t *live;
	/* Slots of each stage for the values of micro-batches: [nstages]. A slot is taken again
	 * once another rank has received what was sent from it. */
	const int32_t *stage_live;
	/* Time from the first start to the last end. */
	double length;
	/* Longest time of a rank from its first start to its last end. */
	double longest;
	/* Longest time that a rank computes. */
	double ideal;
	/* 1: each stage adds gradients of weights in the order of micro-batches. */
	int32_t ordered;
	int32_t reserved;
};

/*
 * Opens a schedule: "gpipe", "1f1b", "interleaved:V" and "looped-bfs:V" with V stages a rank,
 * "zb-h1", "zb-v", or the name of a file that ends with ".csv". A file sets the number of ranks and
 * of micro-batches, where nranks or nmicro is 0; other numbers must be equal to its own. Of a
 * built-in schedule 0 is 1. The schedule is checked, and has its sends and receives. Each stage
 * adds gradients of weights in the order of micro-batches: where a file has another order, they are
 * apart from those of inputs, and later. The caller owns *out: tess_pipeline_close. TESS_EINVAL:
 * there is no such schedule, or it cannot run; the message names row and cell.
 */
tess_status tess_pipeline_open(const char *schedule, int32_t nranks, int32_t nmicro,
                               struct tess_pipeline **out);

/*
 * Reads a schedule from `len` bytes of CSV, as torch.distributed.pipelining writes it: a row for
 * each rank, and cells such as 0F1, 2I0, 2W0 or 1SEND_F0. A file without sends and receives gets
 * them. name: for messages. Else as tess_pipeline_open.
 */
tess_status tess_pipeline_parse(const char *name, const char *text, size_t len, int32_t nranks,
                                int32_t nmicro, struct tess_pipeline **out);

/*
 * Checks a schedule that the caller has made: each stage computes each micro-batch once, on one
 * rank, after what it depends on; messages match, and ranks wait for each other in no circle, so
 * that no duration of an action or message can stop it. A rank takes the messages of another one in
 * the order of their sends. TESS_EINVAL: the message names row (rank + 1) and cell.
 */
tess_status tess_pipeline_check(const struct tess_pipeline *p);

/* Closes a schedule. NULL is accepted. */
void tess_pipeline_close(struct tess_pipeline *p);

/*
 * Reads the durations of a schedule from a file of JSON: {"F": 1.5, "B": [3, 4], "SEND_F": 0.1}.
 * Keys are F, B, I, W, SEND_F and SEND_B; a value is a duration, or one for each stage. A message
 * left out takes no time. Computations are either left out, and take 1 each, or the file has all
 * kinds of the schedule; B may be left out if I and W are there. The caller frees *out by free().
 */
tess_status tess_pipeline_read_times(const struct tess_pipeline *p, const char *path,
                                     struct tess_pipeline_times **out);

/*
 * Simulates a step of a schedule, which it checks first. times: NULL for durations of 1. The caller
 * owns *out, tess_timeline_free, and closes the schedule after it.
 */
tess_status tess_pipeline_simulate(const struct tess_pipeline *p,
                                   const struct tess_pipeline_times *times,
                                   struct tess_timeline **out);

/* Forms of tess_timeline_format: a table of characters, and a picture. */
enum { TESS_TIMELINE_TEXT, TESS_TIMELINE_SVG };

/* Formats a timeline as `tessera explain` prints or draws it. The caller frees *text. */
tess_status tess_timeline_format(const struct tess_timeline *t, int32_t form, char **text);

/* Frees a timeline. NULL is accepted. */
void tess_timeline_free(struct tess_timeline *t);

TESS_END
#endif
