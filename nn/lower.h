/*
 * lower.h - what one rank does: views, cuts, sums and moves of a program, in steps with planned memory.
 *
 * Lowering knows the number of ranks and the rank; the program knows neither. No step allocates.
 */
#ifndef TESS_NN_LOWER_H
#define TESS_NN_LOWER_H

#include "core/group/exact.h"
#include "nn/program.h"

enum { TESS_STEP_OP = 1, TESS_STEP_COLL, TESS_STEP_SUM, TESS_STEP_CALL, TESS_STEP_CHECK };

struct tess_check { /* a value that a record has made, as this rank holds it */
	const struct tess_record *record;
	const struct tess_tensor *tensor;
	int32_t nranks, rank;
	struct tess_view view;
};

struct tess_step {
	int32_t kind, record; /* the record that it is part of */
	struct tess_op op; /* OP */
	struct tess_view *in, *out; /* the op's views, which binding completes */
	struct tess_coll coll; /* COLL */
	struct tess_sum sum; /* SUM, of sum_in to sum_out */
	const float *sum_in;
	float *sum_out;
	const struct tess_call *call; /* CALL, of a module's style */
	const struct tess_style *style;
	const char *where;
	struct tess_local local;
	struct tess_check check; /* CHECK */
};

enum { TESS_SPACE_STEP, TESS_SPACE_ROPE, TESS_SPACE_KEYS, TESS_SPACE_VALUES };

struct tess_patch { /* *at becomes the space's base + offset when memory is bound */
	void **pointer;
	int32_t space;
	int32_t buffer; /* STEP: `offset` starts here while the program is lowered */
	int32_t layer; /* KEYS, VALUES: whose cache */
	uint64_t offset;
	struct tess_view *view; /* of a cache or of the rope table: its shape is known by then */
};

struct tess_cache {
	int64_t heads, head_size;
}; /* key-value heads that the rank holds, and their size */

struct tess_rank_program {
	struct tess_arena arena;
	int32_t nranks, rank, nsteps, npatches;
	struct tess_step **step;
	struct tess_patch *patch;
	uint64_t bytes; /* of the step arena */
	struct tess_cache *cache; /* per attention record */
	int32_t ncache;
	int64_t rope_head_size; /* 0: no rope */
	void *ids, *positions,
		*logits; /* set by tess_rank_program_bind; i32, i32, f32 [rows, vocabulary] */
};

/*
 * `weights`: what this rank holds of each of the program's weights (weights.h), NULL: not loaded, for questions only. The
 * program must outlive the result; *out is yours: tess_rank_program_free.
 */
tess_status tess_program_lower(const struct tess_program *p, int32_t nranks, int32_t rank,
                               const struct tess_view *weights, struct tess_rank_program **out);
void tess_rank_program_free(struct tess_rank_program *l);

struct tess_memory { /* what the steps point into; borrowed */
	void *step; /* tess_rank_program.bytes, 64-byte aligned */
	float *rope; /* [positions][each]: cosines, then sines */
	void *const *keys,
		*const *values; /* per attention record: [heads][positions / 64][each][64], [heads][positions][each] */
	int64_t positions; /* room, a multiple of 64 */
};
void tess_rank_program_bind(struct tess_rank_program *l, const struct tess_memory *m);

/* What rank r of P holds of an axis of a value or weight: runs[tess_dim_count_pieces]; returns the elements. */
int64_t tess_dim_list_local_runs(const struct tess_dim *d, bool cut, int32_t nranks, int32_t rank,
                                 struct tess_run *runs);

/* The units of each tree of a Partial over `dim` (NULL: kept on one rank): n[tess_dim_list_trees]. */
int32_t tess_dim_list_trees(const struct tess_dim *dim, int64_t *n);
enum { TESS_TREES_MAX = 16 };

#endif
