/* session.h - the internal interface of sessions, in addition to tessera.h. */
#ifndef TESS_API_SESSION_H
#define TESS_API_SESSION_H

#include "hf/checkpoint.h"
#include "hf/tokenizer/tokenizer.h"
#include "nn/compile/compile.h"
#include "nn/generate/generate.h"

#include <tessera/tessera.h>

/* A checkpoint with its model and a plan, without ranks: for explain and launchers. */
struct tess_planned_model {
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	const struct tess_model *model;
	struct tess_plan plan;
	int64_t positions; /* maximum length of a sequence; 0: unlimited */
	int32_t weights, math, kv_dtype; /* see tess_session_options */
	const char *values; /* see tess_session_options; borrowed during the open */
	const struct tess_device *device; /* see tess_record_options */
	int32_t rest_location; /* in training: see tess_record_options */
	uint64_t tile;
};

/* Copies options, or the defaults for NULL, and checks each of them by itself. */
tess_status tess_session_options_read(const struct tess_session_options *how,
                                      struct tess_session_options *out);

/*
 * Opens a checkpoint, its model and a plan; checks everything that needs no rank and no program.
 * `how`: TESS_CHECKPOINT_... Free *out by tess_planned_model_close.
 */
tess_status tess_planned_model_open(const char *dir, const struct tess_session_options *options,
                                    int32_t how, struct tess_planned_model *out);
void tess_planned_model_close(struct tess_planned_model *p);

/*
 * Records the program of a replica on `mesh`, which computes the logits of nselected rows: on its
 * rank 0, or, where they are cut by vocabulary, a part on each rank. Fails if the program cannot
 * work or does not use all parameters of the checkpoint. Free *out by tess_program_free.
 */
tess_status tess_planned_model_record(const struct tess_planned_model *p,
                                      const struct tess_mesh_shape *mesh, int64_t ntokens,
                                      int64_t nselected, struct tess_program **out);

/* Records the training step of one replica, on a mesh with dp. */
tess_status tess_planned_model_record_training(const struct tess_planned_model *p,
                                               const struct tess_mesh_shape *mesh,
                                               const struct tess_training *training,
                                               const struct tess_pipeline *pipeline,
                                               struct tess_program **out);

/* Logs settings of the checkpoint without effect; a session does so on rank 0. */
void tess_planned_model_warn_unused(const struct tess_planned_model *p,
                                    const struct tess_program *program);

struct tess_session { /* a session on one rank */
	struct tess_planned_model model;
	struct tess_mesh *mesh;
	struct tess_group *all; /* the group of the world */
	struct tess_group *alone; /* a group of this rank, if the mesh has only dp */
	struct tess_group *dp_group; /* along dp; NULL: one replica */
	int32_t replica, nreplicas;
	struct tess_runner *runner;
	struct tess_tokenizer *tokenizer; /* NULL: not opened */
	tess_status tokenizer_status; /* the failure to open it, with its message */
	char *tokenizer_error;
	struct tess_sequence **sequences; /* by number; NULL: closed */
	int64_t nsequences;
	int32_t ngenerating; /* running calls of tess_session_generate */
	bool closed_inside; /* a callback has tried to close the session or a sequence */
};

struct tess_runner *tess_session_runner(struct tess_session *s);
/* Returns whether a callback is running, which may not close the session or its sequences. */
bool tess_session_refuse_close(struct tess_session *s);

#endif
