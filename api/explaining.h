/* explaining.h - an explanation while it is made: what explain.c and explain_measure.c share. */
#ifndef TESS_API_EXPLAINING_H
#define TESS_API_EXPLAINING_H

#include "api/session.h"
#include "nn/train/optimizer.h"

struct explanation {
	struct tess_explanation e; /* first: the caller sees this */
	struct tess_arena arena;
	struct tess_planned_model model;
	struct tess_program *program; /* of training: that of the first replica */
	/* with dp, along which inference places nothing; of training, ddp is a part of it */
	struct tess_mesh_shape mesh;
	int32_t shards; /* of training: those along dp of that; 0: there is no ddp */
	const char *dim_name[TESS_MESH_DIMS];
	int32_t dim_size[TESS_MESH_DIMS];
	int32_t program_dim[TESS_MESH_DIMS]; /* of each dimension, that of the program; -1: dp */
	struct tess_explained_parameter **parameters;
	struct tess_explained_value **values; /* by the id of the tensor */
	/* of training, else NULL: patterns of modules that are computed again are in it */
	const struct tess_trainer_options *training;
	int32_t moments; /* f32 that the optimizer keeps for each element */
	struct tess_explained_collective **collectives;
	/* [records][dims of the program]: for a record along each */
	struct explained_sent {
		uint64_t bytes; /* the most of all ranks */
		int32_t kind; /* TESS_ALL_GATHER, ... of the last collective; 0: none */
	} * sent;
};

/* The rank of the program that a rank of the mesh runs. */
int32_t tess_explaining_get_program_rank(const struct explanation *x, int32_t rank);
/* The part of a weight that a rank of the program holds: its bytes, and its shape unless NULL. */
uint64_t tess_explaining_measure_shard(const struct tess_program *p, const struct tess_weight *w,
                                       int32_t rank, int64_t *shape);
/* Records the program of replica `dp`: of training, or of inference. */
tess_status tess_explaining_record(const struct explanation *x, int32_t dp,
                                   struct tess_program **out);
/* Bytes of the weights, whole at rest, of which a rank's optimizer changes and sends a share. */
uint64_t tess_explaining_count_returned(const struct tess_program *p);
/* Lowers each rank that differs from others, and sets e.ranks and `sent`. */
tess_status tess_explaining_measure_ranks(struct explanation *x);
/* The sums over the records, and the rank that has most. */
struct tess_explained_plan tess_explaining_measure_plan(const struct explanation *x);

#endif
