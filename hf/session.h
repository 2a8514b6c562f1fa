/* session.h - sessions: what the command needs beyond tessera.h. */
#ifndef TESS_HF_SESSION_H
#define TESS_HF_SESSION_H

#include "hf/checkpoint.h"
#include "hf/tokenizer/tokenizer.h"
#include "nn/generate.h"
#include "nn/record.h"

#include <tessera/tessera.h>

/* A checkpoint with its model and a plan, before there are ranks: for explain and launchers. */
struct tess_planned_model {
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	const struct tess_model *model;
	struct tess_plan plan;
};

/*
 * Checks everything that needs no rank and no program. `how`: TESS_CHECKPOINT_... *out is yours:
 * tess_planned_model_close.
 */
tess_status tess_planned_model_open(const char *dir, const struct tess_session_options *options,
                                    int32_t how, struct tess_planned_model *out);
void tess_planned_model_close(struct tess_planned_model *p);

/*
 * Records the program of a replica on `mesh` that gives its rank 0 the logits of the last row.
 * Fails if it cannot work, or does not use all parameters of the checkpoint. *out is yours:
 * tess_program_free.
 */
tess_status tess_planned_model_record(const struct tess_planned_model *p,
                                      const struct tess_mesh_shape *mesh, int64_t ntokens,
                                      struct tess_program **out);

/* Logs what in the checkpoint has no effect; a session does so on rank 0. */
void tess_planned_model_warn_unused(const struct tess_planned_model *p,
                                    const struct tess_program *program);

/* The positions that the checkpoint was trained for; 0: unknown. */
int64_t tess_planned_model_positions(const struct tess_planned_model *p);

const struct tess_planned_model *tess_session_model(const struct tess_session *s);
struct tess_runner *tess_session_runner(struct tess_session *s);
/* On rank 0; opened by the first call. TESS_ENOENT: the checkpoint has none. */
tess_status tess_session_tokenizer(struct tess_session *s, const struct tess_tokenizer **out);

/*
 * Collective. Gives all ranks the ids of the prompt: rank 0's `ids`, or, if they are NULL, its
 * encoding of `text`. *out is yours: free.
 */
tess_status tess_session_share_prompt(struct tess_session *s, const char *text, size_t len,
                                      const int32_t *ids, int64_t nids, int32_t **out, int64_t *n);

#endif
