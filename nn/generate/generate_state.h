/*
 * generate_state.h - the state of running requests: generate.c starts and ends them,
 * generate_step.c runs their steps, and generate_draw.c chooses their next ids.
 */
#ifndef TESS_NN_GENERATE_STATE_H
#define TESS_NN_GENERATE_STATE_H

#include "nn/generate/cut_logits.h"
#include "nn/generate/generate.h"

struct tess_running_request {
	int64_t request; /* index in the caller's list */
	const struct tess_generate_request *asked;
	struct tess_sequence *sequence; /* NULL: the request has ended */
	int64_t start, first_token; /* tess_now(); 0: no id chosen yet */
	int64_t nrows; /* rows of the step that is composed */
	uint64_t room; /* maximum room in the KV cache that it may still need */
	int32_t set; /* the device's set of its ids, for a penalty; -1: none */
	int64_t row; /* index among the ids chosen by the device in the queued step; -1: none */
	bool end_wanted; /* rank 0: ends with the next id */
	char *sentence; /* rank 0: the message of a failure of this request */
};

struct tess_step_part { /* a request in a step */
	struct tess_running_request *request;
	int64_t nrows;
	bool selected; /* its logits are computed: of the last row, or with `all` of all rows */
	bool chooses; /* the last row chooses the next id */
	bool ends; /* the last row completes a request without tokens */
	const float *logits; /* rank 0: complete rows; NULL: none */
};

struct tess_id_choice { /* shared by rank 0 for each request whose logits chose an id */
	int32_t id, finish, status;
};

struct tess_begun_step { /* a step that has begun, whose choices are not yet applied */
	int64_t number; /* in the runner */
	struct tess_step_part *part; /* [n] */
	int64_t n, nchoices; /* nchoices: parts that choose */
	int64_t nwhole; /* complete rows of logits for callbacks */
	struct tess_id_choice *choices; /* [nchoices + 1]: the last one is for the step */
	struct tess_chosen *ids; /* [nchoices]: on the rank that draws, and on rank 0 */
	float *logits; /* a pipeline: [nwhole, vocabulary], as sent to rank 0 */
	int64_t nlogits; /* room for rows */
};

struct tess_generate_state {
	struct tess_runner *runner;
	struct tess_group *group;
	struct tess_runner_stages stages;
	bool calls_back; /* rank 0 */
	const struct tess_generate_request *requests;
	struct tess_generate_options options;
	struct tess_generate_result *results;
	int64_t n, next; /* requests; the first one that has not started */
	struct tess_running_request *request; /* [n] */
	struct tess_running_request **running; /* in the order of their starts */
	int64_t nrunning;
	int64_t cursor; /* a pipeline: index of the first running request of the next step */
	struct tess_rows *rows;
	/*
	 * a ring of steps: `ahead` are under way, and the sends of as many completed ones, whose
	 * choices later stages receive later; the numbers of the steps that begin, finish, and are
	 * completed next
	 */
	struct tess_begun_step *step;
	int32_t ring, ahead;
	int64_t nbegun, nfinished, ncompleted;
	struct tess_sampler *sampler; /* on the rank that draws */
	struct tess_cut_logits *cut; /* NULL: the rank that draws has complete rows */
	struct tess_cut_row *cut_rows; /* rows of the selected sequences, in order */
	uint64_t room; /* in the KV cache: used by others, or reserved for running requests */
	int64_t nchosen; /* number of ids of the queued step */
	struct tess_draw *draws; /* draws of the next step */
	bool queued; /* a step is queued whose chosen ids are unread */
	bool end_all;
	bool end_wanted; /* rank 0: by a callback; sent with the next choices */
	tess_status failed; /* rank 0: by a callback; sent with the next choices */
	char sentence[1024];
};

/* Keeps a callback's failure, or its request to end everything; true: end this request. */
bool tess_generate_take_answer(struct tess_generate_state *g, int answer);
/* Fails all ranks if rank 0 has failed. Drops steps that are under way. */
tess_status tess_generate_share_failure(struct tess_generate_state *g);
/* Ends a request, and frees its sequence unless it is the caller's. */
void tess_generate_end_request(struct tess_generate_state *g, struct tess_running_request *r,
                               int32_t finish, tess_status status);

/* ---- generate_step.c ------------------------------------------------------------------------- */

/*
 * Begins steps as far as possible, and completes the oldest one. Ended requests lose their
 * sequence. Collective.
 */
tess_status tess_generate_run_step(struct tess_generate_state *g);
/* Finishes steps that are under way, and drops their ids. Collective. */
tess_status tess_generate_drop_steps(struct tess_generate_state *g);

/* ---- generate_draw.c: on the way from logits to choices -------------------------------------- */

/* Reads the logits of a finished step, draws its ids, and sends them to rank 0 from its stage. */
tess_status tess_generate_draw_ids(struct tess_generate_state *g, struct tess_begun_step *s,
                                   const float *logits);
/* Receives the ids of a step on rank 0, from another stage. */
tess_status tess_generate_receive_ids(struct tess_generate_state *g, struct tess_begun_step *s);
/* Passes ids to the callbacks, on rank 0, and makes choices of them. */
void tess_generate_take_ids(struct tess_generate_state *g, struct tess_begun_step *s);
/* Sends rank 0's choices, and its decision to continue, to all ranks. */
tess_status tess_generate_share_choices(struct tess_generate_state *g, struct tess_begun_step *s);

#endif
