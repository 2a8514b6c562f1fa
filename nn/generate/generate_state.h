/*
 * generate_state.h - the state of running requests: generate.c starts and ends them,
 * generate_step.c runs a step of all of them and chooses their next ids.
 */
#ifndef TESS_NN_GENERATE_STATE_H
#define TESS_NN_GENERATE_STATE_H

#include "nn/generate/cut_logits.h"
#include "nn/generate/generate.h"

struct tess_running_request {
	int64_t request; /* index in the caller's list */
	const struct tess_generate_request *asked;
	struct tess_sequence *sequence;
	int64_t start, first_token; /* tess_now(); 0: no id chosen yet */
	int64_t nrows; /* rows of the current step */
	uint64_t room; /* maximum room in the KV cache that it may still need */
	bool selected; /* the step computes its logits: of one row, or with `all` of nrows */
	int32_t set; /* the device's set of its ids, for a penalty; -1: none */
	int64_t row; /* index among the ids chosen by the device in the queued step; -1: none */
	bool end_wanted; /* rank 0: ends with the next id */
	char *sentence; /* rank 0: the message of a failure of this request */
};

struct tess_id_choice { /* broadcast by rank 0 for each request whose logits chose an id */
	int32_t id, finish, status;
};

struct tess_generate_state {
	struct tess_runner *runner;
	struct tess_group *group;
	const struct tess_generate_request *requests;
	struct tess_generate_options options;
	struct tess_generate_result *results;
	int64_t n, next; /* requests; the first one that has not started */
	struct tess_running_request *running;
	int64_t nrunning;
	struct tess_rows *rows;
	struct tess_id_choice *choices; /* [n + 1]: the last one is for the step */
	struct tess_sampler *sampler; /* rank 0 only */
	struct tess_cut_logits *cut; /* NULL: rank 0 gets complete rows */
	struct tess_cut_row *cut_rows; /* rows of the selected sequences, in order */
	uint64_t room; /* in the KV cache: used by others, or reserved for running requests */
	int64_t nchosen; /* number of ids of the queued step */
	struct tess_draw *draws; /* draws of the next step */
	bool queued; /* a step is queued whose chosen ids are unread */
	int32_t nunshared; /* number of last steps without an exchange between ranks */
	bool end_all;
	bool end_wanted; /* rank 0: by a callback; sent with the next choices */
	tess_status failed; /* rank 0: by a callback; sent with the next choices */
	char sentence[1024];
};

/* Keeps a callback's failure, or its request to end everything; true: end this request. */
bool tess_generate_take_answer(struct tess_generate_state *g, int answer);
/* Fails all ranks if rank 0 has failed. */
tess_status tess_generate_share_failure(struct tess_generate_state *g);
/* Ends a request, and frees its sequence unless it is the caller's. */
void tess_generate_end_request(struct tess_generate_state *g, struct tess_running_request *r,
                               int32_t finish, tess_status status);
/*
 * Runs a row of each sequence, or rows of its prompt. Ended requests lose their sequence.
 * Collective.
 */
tess_status tess_generate_run_step(struct tess_generate_state *g);

#endif
