/* lockstep_rank.h - a rank of lockstep.c; lockstep_train.c runs its steps of training. */
#ifndef TESS_TESTS_REFERENCE_LOCKSTEP_RANK_H
#define TESS_TESTS_REFERENCE_LOCKSTEP_RANK_H

#include "lockstep.h"
#include "nn/lower/lower.h"
#include "nn/weights/weights.h"

enum { LOCKSTEP_RANKS_MAX = 32 };

struct lockstep_rank {
	struct tess_rank_weights held;
	struct tess_rank_program *low;
	struct tess_memory mem;
	int32_t at; /* its next step */
};

tess_status lockstep_make_rope_tables(const struct tess_program *p, int64_t n,
                                      struct tess_memory *mem);
void lockstep_close_rank(struct lockstep_rank *me);
/* Runs each collective when all ranks of its group are at it: replicas may differ in sequences. */
tess_status lockstep_run_ranks(const struct tess_mesh_shape *mesh, struct lockstep_rank *rank);
/* Checks that ranks that tess_program_find_alike calls alike have equal steps. */
tess_status lockstep_check_alike(const struct tess_program *p, const struct lockstep_rank *rank);

#endif
