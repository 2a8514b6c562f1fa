/*
 * generate_state.h - requests under way: generate.c starts and ends them, generate_step.c runs a
 * step of all and chooses their next ids.
 */
#ifndef TESS_NN_GENERATE_STATE_H
#define TESS_NN_GENERATE_STATE_H

#include "nn/generate/cut_logits.h"
#include "nn/generate/generate.h"

struct tess_running_request { /* a request under way */
	int64_t request; /* its number, of the caller's */
	const struct tess_generate_request *asked;
	struct tess_sequence *sequence;
	int64_t start, first_token; /* tess_now(); 0: none is chosen yet */
	int64_t nrows; /* of the current step */
	uint64_t room; /* in the KV cache that it may come to use */
	bool selected; /* the step gives its logits: a row, or with `all` nrows of them */
	int32_t set; /* where the device keeps the ids that it has seen, for a penalty; -1: not */
	int64_t row; /* of the ids that the device chooses in the step that is queued; -1: none */
	bool end_wanted; /* rank 0: with the next id */
	char *sentence; /* rank 0: of a failure of this request */
};

struct tess_id_choice { /* what rank 0 broadcasts for each request whose logits chose an id */
	int32_t id, finish, status;
};

struct tess_generate_state {
	struct tess_runner *runner;
	struct tess_group *group;
	const struct tess_generate_request *requests;
	struct tess_generate_options options;
	struct tess_generate_result *results;
	int64_t n, next; /* requests; the first that has not started */
	struct tess_running_request *running;
	int64_t nrunning;
	struct tess_rows *rows;
	struct tess_id_choice *choices; /* [n + 1]: the last one is about the step */
	struct tess_sampler *sampler; /* rank 0 only */
	struct tess_cut_logits *cut; /* NULL: rank 0 gets whole rows */
	struct tess_cut_row *cut_rows; /* of the texts that are selected, in order */
	uint64_t room; /* in the KV cache: used by others, or to be used by what runs */
	int64_t nchosen; /* ids of the step that is queued */
	struct tess_draw *draws; /* of the step that is to be queued */
	bool queued; /* a step whose ids the device chooses, and which were not read */
	int32_t nunshared; /* the last steps, after which ranks did not meet */
	bool end_all;
	bool end_wanted; /* rank 0: by a callback; sent with the next choices */
	tess_status failed; /* the same */
	char sentence[1024];
};

/* Keeps a callback's failure, or its wish to end everything; true: to end this request. */
bool tess_generate_take_answer(struct tess_generate_state *g, int answer);
/* Makes rank 0's failure a failure of all ranks. */
tess_status tess_generate_share_failure(struct tess_generate_state *g);
/* Ends a request, and frees its sequence if that is not the caller's. */
void tess_generate_end_request(struct tess_generate_state *g, struct tess_running_request *r,
                               int32_t finish, tess_status status);
/* Collective: a row of each text, or rows of its prompt; what ended has no sequence after it. */
tess_status tess_generate_run_step(struct tess_generate_state *g);

#endif
