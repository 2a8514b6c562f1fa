/*
 * lower.h - turns a program into the steps of one rank: ops on views, sums and collectives, in
 * planned memory.
 *
 * A program does not depend on the rank; its steps do. No step allocates.
 */
#ifndef TESS_NN_LOWER_H
#define TESS_NN_LOWER_H

#include "core/sum/exact.h"
#include "nn/program/program.h"

enum {
	TESS_STEP_OP = 1,
	TESS_STEP_COLL,
	TESS_STEP_SUM,
	TESS_STEP_CALL,
	TESS_STEP_CHECK,
	TESS_STEP_WAIT /* for a COLL or SUM that was started */
};

struct tess_check { /* a value that a record has made: this rank's part */
	const struct tess_record *record;
	const struct tess_tensor *tensor;
	const struct tess_program *program;
	int32_t rank;
	struct tess_view view;
};

struct tess_step {
	int32_t kind, record; /* the record that it is part of */
	int32_t along; /* COLL, SUM: the mesh dimension in whose group it runs */
	bool among_shards; /* in that of the ranks along it which keep the shares of one weight */
	bool started; /* its memory is in use until the step that waits for it */
	struct tess_step *of; /* WAIT: for this one */
	struct tess_op op; /* OP */
	struct tess_step *fused; /* OP: the next op of the step; in no list of steps itself */
	bool only_next; /* OP: nothing but the op that follows reads the outs */
	struct tess_view *in, *out; /* of the op; tess_rank_program_bind completes them */
	struct tess_coll coll; /* COLL */
	struct tess_sum sum; /* SUM, of sum_in to sum_out */
	const float *sum_in;
	float *sum_out;
	tess_status (*call)(const struct tess_local *at); /* CALL, of a module's style */
	bool backward; /* CALL: it is the gradient */
	const struct tess_style *style;
	const char *where;
	struct tess_local local;
	struct tess_check check; /* CHECK */
	/* while it is under way: the calls of a COLL, of a SUM, and the step started before it */
	struct tess_work *work;
	struct tess_sum_work *sum_work;
	struct tess_step *under_way;
};

enum {
	TESS_SPACE_STEP,
	TESS_SPACE_ROPE,
	TESS_SPACE_INPUTS,
	TESS_SPACE_PAGES,
	TESS_SPACE_GRADIENTS
};

struct tess_patch { /* binding sets *pointer to the base of the space + offset */
	void **pointer;
	int32_t space;
	int32_t buffer; /* STEP: that `offset` is relative to until buffers have offsets */
	int32_t page_class; /* PAGES: whose table */
	uint64_t offset; /* ROPE: elements of a position in the tables before */
	struct tess_view *view; /* of a page table or a rope table; binding sets its shape */
};

struct tess_page_class { /* layers with one window, whose keys and values share pages */
	int64_t window; /* 0: all positions are kept */
	uint64_t bytes; /* of a page of 64 positions: the key-value heads that the rank holds */
};

struct tess_rank_program {
	struct tess_arena arena;
	int32_t rank, nsteps, npatches;
	int32_t nbody; /* the first steps; those behind them wait for what was sent */
	struct tess_step **step;
	struct tess_patch *patch;
	uint64_t bytes; /* of the step arena */
	struct tess_page_class *page_class;
	int32_t nclasses;
	/* set by tess_rank_program_bind: f32 [selected rows, vocabulary], dense; NULL: not here */
	void *logits;
	/* of training: bytes of the gradients, and by weight f32 [n], flat, whose data binding
	 * sets; ndim 0: the weight has none */
	uint64_t gradient_bytes;
	struct tess_view *gradient;
	void *loss; /* set by tess_rank_program_bind: f32 [tokens]; NULL: no training */
	/* the same, for tess_program_compute_balance; NULL: no load balancing loss */
	void *balance;
};

/*
 * `rank`: in the program's mesh. `weights`: this rank's part of each weight (weights.h); NULL: none
 * are loaded, and the steps can be inspected but not run. The program must outlive the result. *out
 * is yours: tess_rank_program_free.
 */
tess_status tess_program_lower(const struct tess_program *p, int32_t rank,
                               const struct tess_view *weights, struct tess_rank_program **out);
/*
 * Joins ops that follow each other into one step where the device fuses them. Call it before the
 * program is bound; tess_program_lower does, for the device of the program.
 */
void tess_rank_program_fuse(struct tess_rank_program *l, const struct tess_device *device);
void tess_rank_program_free(struct tess_rank_program *l);

/*
 * Into first[p->mesh.nranks]: the lowest rank whose steps are alike: as many, of as many bytes,
 * moving as many. TESS_ENOMEM.
 */
tess_status tess_program_find_alike(const struct tess_program *p, int32_t *first);

struct tess_memory { /* that the steps use; borrowed */
	void *step; /* tess_rank_program.bytes, 64-byte aligned */
	/* i32, one after another: ids, positions, slots [tokens], rows [selected]; of training no
	 * rows, then labels [tokens], and f32 the count of labels */
	void *inputs;
	/* per rope of the program, one after another: [rope_positions][each], cosines, sines */
	float *rope;
	int64_t rope_positions;
	int64_t *pages; /* per class, one after another: [slots][blocks], addresses of pages */
	int64_t slots, blocks;
	void *gradients; /* tess_rank_program.gradient_bytes, 64-byte aligned; NULL: no training */
	void *stream; /* of the device, or NULL */
};
void tess_rank_program_bind(struct tess_rank_program *l, const struct tess_memory *m);
/* Of where in the step arena its collectives of all ranks read and write. */
uint64_t tess_rank_program_hash_calls(const struct tess_rank_program *l);

/*
 * The units of each tree of a Partial over `dim` (NULL: one term), in the arena; returns the number
 * of trees, 0: no memory.
 */
int32_t tess_dim_list_trees(struct tess_arena *arena, const struct tess_dim *dim,
                            const int64_t **n);

#endif
