/* explaining.h - an explanation in progress, shared by explain.c and explain_....c. */
#ifndef TESS_API_EXPLAINING_H
#define TESS_API_EXPLAINING_H

#include "api/session.h"
#include "nn/lower/lower.h"
#include "nn/offload/traffic.h"
#include "nn/train/optimizer.h"

enum { TESS_EXPLAINED_ROWS = INT32_MAX }; /* maximum rows of a step: ops index rows by 32 bits */

enum { /* parts of a step's traffic with files (nn/offload/traffic.h) */
       TESS_EXPLAINED_MICRO, /* each micro-batch */
       TESS_EXPLAINED_FIRST, /* what the first of several micro-batches does not read */
       TESS_EXPLAINED_REST, /* the end of a step, without the update */
       TESS_EXPLAINED_UPDATE,
       TESS_EXPLAINED_TRAFFICS
};

struct explained_pages { /* a rank, the pages of its KV cache, and its traffic with files */
	struct tess_explained_rank rank; /* first: explanations list it */
	const struct tess_page_class *page_class; /* [classes of the program] */
	struct tess_traffic traffic[TESS_EXPLAINED_TRAFFICS];
};

struct explanation {
	struct tess_explanation e; /* first: the caller sees this */
	struct tess_arena arena;
	struct tess_planned_model model;
	int64_t nselected; /* rows of a step of inference with logits */
	bool borrowed; /* the model is that of an open session */
	struct tess_program *program; /* in training that of the first replica */
	/* with dp, along which inference places nothing; in training it includes ddp */
	struct tess_mesh_shape mesh;
	int32_t shards; /* in training the ranks along dp within that; 0: no ddp */
	const char *dim_name[TESS_MESH_DIMS];
	int32_t dim_size[TESS_MESH_DIMS];
	int32_t program_dim[TESS_MESH_DIMS]; /* the program's dimension for each; -1: dp */
	struct tess_explained_parameter **parameters;
	struct tess_explained_value **values; /* by the id of the tensor */
	/* training only, else NULL: contains the patterns of recomputed modules */
	const struct tess_trainer_options *training;
	struct tess_pipeline *pipeline; /* training with stages: the schedule; else NULL */
	struct tess_timeline *timeline;
	struct tess_trainer_options options; /* of `training` */
	int32_t moments; /* f32 values that the optimizer keeps per element */
	struct tess_explained_collective **collectives;
	/* [records][dims of the program] */
	struct explained_sent {
		uint64_t bytes, expected; /* maximum over the ranks */
		int32_t kind; /* TESS_ALL_GATHER, ...: the last collective; 0: none */
	} * sent;
	/* called with each rank that is lowered, and its program; NULL: nothing */
	tess_status (*visit)(void *visitor, const struct tess_program *p,
	                     const struct tess_rank_program *l);
	void *visitor;
	bool most; /* of ranks with the same parts, only the one that does most is lowered */
	struct tess_explained_fit fit;
	int32_t *fused; /* by record: 1 + the first record of a fused step; 0: not in one */
};

/* Finds TESSERA_DEVICE, or assumes what the device would be. */
tess_status tess_explaining_find_device(struct explanation *x);
/* Counts parameters, and describes stages. */
tess_status tess_explaining_summarize(struct explanation *x);
/* Returns the rank of the program that a rank of the mesh runs. */
int32_t tess_explaining_get_program_rank(const struct explanation *x, int32_t rank);
/* Returns the bytes of a weight that a rank of the program holds, and the shape unless NULL. */
uint64_t tess_explaining_measure_shard(const struct tess_program *p, const struct tess_weight *w,
                                       int32_t rank, int64_t *shape);
/* Sets the mesh; "dp=2" has one rank along tp. */
tess_status tess_explaining_set_mesh(struct explanation *x, const struct tess_mesh_shape *given);
/* Opens the schedule of a mesh with stages, which says how many slots each stage has. */
tess_status tess_explaining_open_schedule(struct explanation *x);
/* Records the program of replica `dp`, for training or inference. */
tess_status tess_explaining_record(const struct explanation *x, int32_t dp,
                                   struct tess_program **out);
/* Returns the bytes of replicated weights of which each rank's optimizer updates a share. */
uint64_t tess_explaining_count_returned(const struct tess_program *p);
/*
 * Returns the bytes that stages send once a step for tied heads in other stages than their tables:
 * gradients of heads, and the copies of tables.
 */
uint64_t tess_explaining_count_tied(const struct tess_program *p);
/* Returns the micro-batches of a step of training, else 1. */
int64_t tess_explaining_count_micro_batches(const struct explanation *x);
/* Returns whether a step of training updates what is in files during its backward. */
bool tess_explaining_updates_early(const struct explanation *x);
/* Sets what a rank has in files, what its steps move, and the memory for it. */
void tess_explaining_measure_files(const struct explanation *x, const struct tess_rank_program *l,
                                   const struct tess_offload_layout *files,
                                   struct explained_pages *out);
/* TESS_ENOTSUP: the device of the model does not train with values in files. */
tess_status tess_explaining_check_offload(const struct explanation *x);
/* Returns the bytes of a rank's device that the optimizer's step needs for what is in files. */
static inline uint64_t tess_explained_get_transfer(const struct tess_explained_rank *k)
{
	return k->weights_host || k->state_host ? 0 : k->transfer;
}
/* Checks the folders that options name. TESS_EIO: there is none. TESS_ENOMEM: its disk is short. */
tess_status tess_explaining_check_space(const struct explanation *x);
/* Lowers each rank that differs from others, and sets e.ranks and `sent`. */
tess_status tess_explaining_measure_ranks(struct explanation *x);
/* Returns the sums over the records, and the most loaded rank. */
struct tess_explained_plan tess_explaining_measure_plan(const struct explanation *x);
/* Returns the number of replicas along dp in training, else 1. */
int32_t tess_explaining_count_replicas(const struct explanation *x);
/*
 * Copies what is measured: model, mesh and step, which the caller may change. Free the copy by
 * tess_explaining_free_copy.
 */
struct explanation tess_explaining_copy(const struct explanation *x);
/* Records the program of a copy, and measures its ranks. */
tess_status tess_explaining_measure_copy(struct explanation *copy);
void tess_explaining_free_copy(struct explanation *copy);

#endif
