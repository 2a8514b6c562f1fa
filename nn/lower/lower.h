/*
 * lower.h - turns a program into the steps of one rank: ops on views, sums and collectives, in
 * planned memory.
 *
 * A program is the same on all ranks; its steps differ. No step allocates memory.
 *
 * The steps of a training program with stages are cut into segments, one for each kind of action of
 * a schedule (tessera/pipeline.h) on each stage of the rank, which run once for each micro-batch in
 * the order of a schedule. Values that only one segment uses share the step arena. The other values
 * of a stage are in its slot, which each micro-batch in progress has for itself.
 */
#ifndef TESS_NN_LOWER_H
#define TESS_NN_LOWER_H

#include "core/sum/exact.h"
#include "nn/offload/offload.h"
#include "nn/program/program.h"

enum {
	TESS_STEP_OP = 1,
	TESS_STEP_COLL,
	TESS_STEP_SUM,
	TESS_STEP_CALL,
	TESS_STEP_CHECK,
	TESS_STEP_TRANSFER, /* moves elements between memory and a file (nn/offload/offload.h) */
	TESS_STEP_FINAL, /* a weight may be updated (final.c), or all losses are computed */
	TESS_STEP_AWAIT, /* waits for a weight that may still be updated after the last step */
	TESS_STEP_ROWS, /* packs or unpacks the rows of an all_to_all (row_exchange.h) */
	TESS_STEP_WAIT /* waits for a started COLL, SUM or TRANSFER */
};

struct tess_row_exchange;

struct tess_check { /* this rank's part of a value that a record has computed */
	const struct tess_record *record;
	const struct tess_tensor *tensor;
	const struct tess_program *program;
	int32_t rank;
	struct tess_view view;
};

struct tess_step {
	int32_t kind, record; /* record: index of its record */
	int32_t along; /* COLL, SUM: the mesh dimension whose group runs it */
	bool among_shards; /* in the group of ranks along it that keep the shares of one weight */
	bool started; /* its memory is in use until the step that waits for it */
	struct tess_step *of; /* WAIT: the step that it waits for */
	struct tess_step *fused; /* OP: the next op of this step, which is in no list of steps */
	union {
		struct { /* OP */
			struct tess_op op;
			struct tess_view *in, *out; /* of the op; binding sets data */
			bool only_next; /* only the next op reads the outs */
		};
		struct { /* COLL */
			struct tess_coll coll;
			/* what sets the counts in each run, which are those of the worst case
			 * before; NULL: they are constant */
			const struct tess_row_exchange *counts_of;
		};
		struct { /* ROWS; packs: before the all_to_all, else after it */
			struct tess_row_exchange *rows;
			bool packs;
		};
		struct { /* SUM, from sum_in to sum_out */
			struct tess_sum sum;
			const float *sum_in;
			float *sum_out;
		};
		struct { /* CALL: a function of a module's style */
			tess_status (*call)(const struct tess_local *at);
			const struct tess_style *style;
			const char *where;
			struct tess_local local;
			bool backward; /* it computes the gradient */
		};
		struct tess_transfer *transfer; /* TRANSFER; binding sets its memory */
		struct tess_check *check; /* CHECK */
		const struct tess_weight *final_weight; /* FINAL, AWAIT; NULL: the losses */
	};
	/* while under way: the calls of a COLL or SUM, and the previously started step */
	struct tess_work *work;
	struct tess_sum_work *sum_work;
	struct tess_step *under_way;
};

enum {
	TESS_SPACE_STEP,
	TESS_SPACE_SLOT, /* of a stage */
	TESS_SPACE_ROPE,
	TESS_SPACE_INPUTS,
	TESS_SPACE_PAGES,
	TESS_SPACE_GRADIENTS
};

struct tess_patch { /* binding sets *pointer to the base of the space + offset */
	void **pointer;
	int32_t space;
	int32_t buffer; /* STEP: `offset` is relative to this buffer until buffers have offsets */
	int32_t page_class; /* PAGES: the class of the table */
	int32_t stage; /* SLOT */
	uint64_t offset; /* ROPE: elements per position in preceding tables */
	struct tess_view *view; /* a page table or rope table; binding sets its shape */
};

struct tess_page_class { /* layers with one window, whose keys and values share pages */
	int64_t window; /* 0: all positions are kept */
	uint64_t bytes; /* bytes of a page of 64 positions, for this rank's key-value heads */
};

struct tess_segment { /* adjacent steps: an action on a stage */
	int32_t stage, kind; /* kind: TESS_PIPELINE_FORWARD, ... */
	int32_t first, end; /* steps */
	int32_t first_patch, end_patch;
};

struct tess_rank_program {
	struct tess_arena arena;
	int32_t rank, nsteps, npatches, nsegments;
	struct tess_step **step;
	struct tess_patch *patch; /* in the order of steps; after those of segments, of results */
	struct tess_segment *segment;
	uint64_t bytes; /* size of the step arena */
	int32_t nstages; /* of the program */
	uint64_t *slot_bytes; /* by stage: size of a slot; 0: another rank has the stage */
	struct tess_page_class *page_class;
	int32_t nclasses;
	/*
	 * set by tess_rank_program_bind: f32 [selected rows, vocabulary], dense; NULL: on another
	 * rank
	 */
	void *logits;
	/*
	 * in training: bytes of all gradients, and f32 [n], flat, by weight, whose data binding
	 * sets; NULL: it is in a file; ndim 0: the weight has no gradient. Of a tied head in
	 * another stage than its table, ranks with the table have room for the bytes of a bucket.
	 */
	uint64_t gradient_bytes;
	struct tess_view *gradient;
	void **values; /* set by tess_rank_program_bind: each of program->values, f32, dense; NULL:
	                * in another stage */
	/* set by tess_rank_program_bind: f32 [tokens]; NULL: no training, or another stage */
	void *loss;
	/*
	 * set by tess_rank_program_bind for tess_program_compute_balance; NULL: no load balancing
	 * loss, or another stage
	 */
	void *balance;
	/*
	 * of the record whose weights, or the largest of its tiles, need most memory beyond the
	 * tile of the program: bytes at once, and a weight; NULL: all keep to it
	 */
	uint64_t widest_bytes;
	const struct tess_weight *widest;
};

/*
 * Lowers a program for a rank of its mesh. weights: this rank's part of each weight (weights.h);
 * NULL: not loaded, and the steps can be inspected but not run. The program must outlive the
 * result. *out is yours: tess_rank_program_free.
 */
tess_status tess_program_lower(const struct tess_program *p, int32_t rank,
                               const struct tess_view *weights, struct tess_rank_program **out);
/*
 * Lowers only the records i with wanted[i], as if other records had no steps: for the time of their
 * steps, which cannot be run.
 */
tess_status tess_program_lower_records(const struct tess_program *p, int32_t rank,
                                       const bool *wanted, struct tess_rank_program **out);
/*
 * Joins adjacent ops into one step where the device fuses them. Call it before the program is
 * bound; tess_program_lower calls it for the program's device. TESS_ENOMEM.
 */
tess_status tess_rank_program_fuse(struct tess_rank_program *l, const struct tess_device *device);
void tess_rank_program_free(struct tess_rank_program *l);

/*
 * Sets first[r], for each rank r of p->mesh, to the lowest rank with the same step count, memory
 * and traffic. most: to the lowest with the same parts of values, which may be a root: it does what
 * the others do, and more. TESS_ENOMEM.
 */
tess_status tess_program_find_alike(const struct tess_program *p, bool most, int32_t *first);

struct tess_memory { /* the memory of the steps; borrowed */
	void *step; /* tess_rank_program.bytes, 64-byte aligned */
	void *const *slot; /* by stage: slot_bytes, 64-byte aligned; NULL: binds no slot */
	/*
	 * i32, one after another: ids, positions, slots [tokens], rows [selected]. In training
	 * there are no rows, but labels [tokens], and f32 the count of labels
	 */
	void *inputs;
	/*
	 * tables of each rope of the program, one after another: [rope_positions][each], cosines,
	 * sines
	 */
	float *rope;
	int64_t rope_positions;
	int64_t *pages; /* tables of each class, one after another: [slots][blocks] addresses */
	int64_t slots, blocks;
	void *gradients; /* tess_rank_program.gradient_bytes, 64-byte aligned; NULL: inference */
	void *stream; /* the device's stream, or NULL */
};
void tess_rank_program_bind(struct tess_rank_program *l, const struct tess_memory *m);
/* Binds the steps of one segment; NULL: the results, which are no steps. */
void tess_rank_program_bind_segment(struct tess_rank_program *l, const struct tess_segment *s,
                                    const struct tess_memory *m);
/* Returns the segment of an action on a stage; NULL: it has no steps. */
const struct tess_segment *tess_rank_program_find_segment(const struct tess_rank_program *l,
                                                          int32_t stage, int32_t kind);
/* Hashes the offsets in the step arena that collectives of all ranks read and write. */
uint64_t tess_rank_program_hash_calls(const struct tess_rank_program *l);

/*
 * Lists the units of each tree of a Partial over `dim` (NULL: one term), in the arena. Returns the
 * number of trees; 0: out of memory.
 */
int32_t tess_dim_list_trees(struct tess_arena *arena, const struct tess_dim *dim,
                            const int64_t **n);

#endif
