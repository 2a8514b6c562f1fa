/* session.h - the inside of a session: what the command asks of it beyond tessera.h. */
#ifndef TESS_HF_SESSION_H
#define TESS_HF_SESSION_H

#include "hf/checkpoint.h"
#include "hf/tokenizer/tokenizer.h"
#include "nn/generate.h"
#include "nn/record.h"

#include <tessera/tessera.h>

/* A checkpoint with its model and a plan, on no rank yet: what explain looks at, and what is checked first. */
struct tess_planned_model {
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	const struct tess_model *model;
	struct tess_plan plan;
};

/*
 * Judges all that needs no rank and no program. `headers`: of the weights, only what there is. *out is yours:
 * tess_planned_model_close.
 */
tess_status tess_planned_model_open(const char *dir, const struct tess_session_options *options,
                                    bool headers, struct tess_planned_model *out);
void tess_planned_model_close(struct tess_planned_model *p);

/*
 * The program for a world of `nranks`; refused where it cannot work, or leaves out what the checkpoint has.
 * *out is yours: tess_program_free.
 */
tess_status tess_planned_model_record(const struct tess_planned_model *p, int32_t nranks,
                                      int64_t ntokens, bool all, struct tess_program **out);

/* Logs what of the checkpoint has no effect; a session does on its rank 0. */
void tess_planned_model_warn_unused(const struct tess_planned_model *p,
                                    const struct tess_program *program);

/* The positions that the checkpoint was made for; 0: it does not say. */
int64_t tess_planned_model_positions(const struct tess_planned_model *p);

const struct tess_planned_model *tess_session_model(const struct tess_session *s);
struct tess_runner *tess_session_runner(struct tess_session *s);
/* Rank 0's, opened on the first call; TESS_ENOENT where the checkpoint has none. */
tess_status tess_session_tokenizer(struct tess_session *s, const struct tess_tokenizer **out);

/*
 * The prompt's ids on every rank: rank 0's `ids`, or, where they are NULL, what its tokenizer makes of `text`.
 * Collective. *out is yours: free.
 */
tess_status tess_session_share_prompt(struct tess_session *s, const char *text, size_t len,
                                      const int32_t *ids, int64_t nids, int32_t **out, int64_t *n);

#endif
