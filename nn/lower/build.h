/* build.h - values, buffers and steps, shared by all files that lower records. */
#ifndef TESS_NN_BUILD_H
#define TESS_NN_BUILD_H

#include "nn/lower/lower.h"
#include "nn/lower/memory_plan.h"

struct buffer {
	struct tess_lifetime life; /* from the first step that uses its address to the last */
	/* TESS_SPACE_INPUTS, _GRADIENTS: outside the step arena, with a fixed offset */
	int32_t space;
	int32_t in_place; /* the buffer whose memory it reuses; -1: none */
	int32_t stage; /* the stage whose slot has it, if several segments use it */
	bool sent; /* in use until the slot is free */
};

struct build_piece; /* tiles.h */
struct build_tiling;

struct use { /* a view of an op: of its operands, then its outs */
	int32_t step, view, buffer, patch;
};

struct in_place { /* an out that may reuse the memory of an operand, by their buffers */
	int32_t from, to;
};

struct value { /* a tensor on this rank: rows of elements in a buffer */
	bool allocated, partial;
	int32_t buffer, dtype;
	uint64_t offset; /* bytes, from the start of the buffer */
	int64_t nodes, rows, cols;
	int64_t node_stride, row_stride; /* in elements */
};

struct build {
	const struct tess_program *p;
	struct tess_rank_program *l;
	const struct tess_view *weights;
	const bool *wanted; /* by record: it is lowered; NULL: all are */
	struct value *value; /* by id of the tensor: those of the current stage */
	struct value **values; /* by stage of this rank; NULL: another rank has the stage */
	int32_t stage; /* the current stage */
	struct buffer *buffer;
	struct in_place *in_place; /* in order of steps */
	struct use *use; /* values that ops read and write, in order of steps */
	struct tess_run *runs; /* scratch with room for the ranges of any axis of a weight */
	/* trees over tokens: uncut, and cut by each mesh dimension; ntree 0: not built yet */
	struct tess_op tokens[1 + TESS_MESH_DIMS];
	struct build_gradients *gradients; /* in training */
	struct build_writes *writes; /* of gradients to files */
	struct build_gathers *gathers;
	struct build_final *final; /* NULL: no weight is announced */
	const struct build_tiling *tiling; /* by record, in training (tiles.h) */
	int32_t nbuffers, nin_place, nuses, record;
	int32_t tile; /* index of the tile that is lowered; 0: the record has none, or its first */
	tess_status status; /* the first error */
	struct tess_step spare; /* returned by build_add_step after an error */
	struct tess_transfer spare_transfer; /* of a step after an error */
};

/* Returns this rank's cut of an axis of a value or weight with this placement. */
struct tess_cut build_find_cut(const struct build *b, const struct tess_place *place, int32_t axis);
/* Returns the number of elements of an axis that this rank holds. */
int64_t build_get_local_size(const struct build *b, const struct tess_tensor *v, int32_t axis);
/* Returns the tensor's value; the first call adds its buffer. Of three axes two are rows. */
struct value *build_get_value(struct build *b, const struct tess_tensor *t);
/* Adds a value with a buffer for steps that use it; nodes 0: it is no Partial. */
struct value build_add_temporary(struct build *b, int64_t nodes, int64_t rows, int64_t cols,
                                 int32_t dtype);
int32_t build_add_buffer(struct build *b, uint64_t bytes);
/* Returns a view of a block of a value. */
struct value build_slice_value(const struct value *v, int64_t row, int64_t rows, int64_t col,
                               int64_t cols);
/* Returns this rank's columns of a replicated value: a view of one range, or a copy of several. */
struct value build_slice_local_cols(struct build *b, const struct value *x,
                                    const struct tess_dim *dim, struct tess_cut cut);
/* Returns a dense block of rows x cols at element `at` of a value's memory. */
struct value build_make_block(const struct value *v, uint64_t at, int64_t rows, int64_t cols);
/* Returns true if there are no gaps between rows, as collectives and callers require. */
bool build_is_dense(const struct value *v);
/* Returns a copy of the rows of all nodes without gaps. */
struct value build_copy_dense(struct build *b, const struct value *v);

/* Makes the values of a stage of this rank current, and its slot that of new buffers. */
void build_use_stage(struct build *b, int32_t stage);
/* Returns whether records i and k, which this rank computes, are in one segment. */
bool build_is_one_segment(const struct build *b, int32_t i, int32_t k);
/* Returns true if this rank has steps of a record: its stage computes it or sends to that stage. */
bool build_has_record(const struct build *b, const struct tess_record *rec);
struct tess_step *build_add_step(struct build *b, int32_t kind);
struct tess_step *build_add_op(struct build *b, int32_t kind, int32_t nin, int32_t nout);
struct tess_view build_make_view(const struct value *v);
/*
 * Describes this rank's part of a weight as ops read it, without data; linear weights are [out,
 * in]. build_set_weight and build_set_weight_part set the address.
 */
struct tess_view build_describe_weight(struct build *b, const struct tess_weight *w);
/* Sets operand i to this rank's part of w, or to `part` of it, which begins at element `at`. */
void build_set_weight(struct build *b, struct tess_step *s, int32_t i, const struct tess_weight *w);
void build_set_weight_part(struct build *b, struct tess_step *s, int32_t i,
                           const struct tess_weight *w, const struct tess_view *part, int64_t at);
/* Sets operand i to `part`, which begins at element `at` of w, in a gathered piece of it. */
void build_set_weight_piece(struct build *b, struct tess_step *s, int32_t i,
                            const struct tess_weight *w, const struct build_piece *piece,
                            const struct tess_view *part, int64_t at);
/* Returns the columns of this rank's part of a weight [out, in] that dx has on this rank. */
struct tess_run build_find_dx_columns(struct build *b, const struct tess_weight *w,
                                      const struct tess_tensor *dx);
void build_set_input(struct build *b, struct tess_step *s, int32_t i, const struct value *v);
void build_set_output(struct build *b, struct tess_step *s, int32_t i, const struct value *v);
void build_set_numbers(struct build *b, struct tess_op *op, int32_t n, const double *num);
/*
 * Sets the trees of a contraction over `dim`: the units that this rank adds, and their bounds on
 * the local axis. Elements that are held but not owned are in no unit.
 */
void build_set_trees(struct build *b, struct tess_op *op, const struct tess_dim *dim,
                     struct tess_cut cut);
/* Sets the trees of a norm: over rows, or over the elements of each head. */
void build_set_norm_trees(struct build *b, struct tess_op *op, const struct tess_dim *row,
                          const double *norm);
struct build_operand { /* one operand of a contraction: its axis, and the local part of it */
	const struct tess_dim *dim;
	struct tess_cut held;
};
/*
 * Appends the trees of a contraction over the concatenated axes of several operands. cut: the units
 * that this rank adds.
 */
void build_add_trees(struct build *b, struct tess_op *op, int32_t n, const struct build_operand *x,
                     struct tess_cut cut);
/* Appends the trees of a LINEAR_DX. */
void build_add_dx_trees(struct build *b, struct tess_op *op, const struct tess_record *rec);
/*
 * Appends the trees over the tokens of `over`, and sets the op's numbers: `sequences` and `first`
 * of a sum that `out` receives, then n of `num`.
 */
void build_set_token_sum(struct build *b, struct tess_op *op, const struct tess_tensor *over,
                         const struct tess_tensor *out, int32_t n, const double *num);
void build_add_copy(struct build *b, const struct value *from, const struct value *to);
/* Adds x to y, of the same shape; of Partials, node by node. */
void build_add_to_value(struct build *b, const struct value *x, const struct value *y);
/* Makes binding set *at to the address of the value's memory, or of the place that `p` names. */
void build_add_pointer(struct build *b, void **at, const struct value *v);
void build_add_patch(struct build *b, struct tess_patch p);
/* Adds the wait for a started step. */
void build_add_wait(struct build *b, struct tess_step *started);
/* Keeps the value's memory in use until after the last step. */
void build_keep_value(struct build *b, const struct value *v);
/*
 * Allows the op of the last step to work in place: `to` reuses the memory of operand `from` if both
 * are full buffers of one shape and no later step uses the address of `from`.
 */
void build_allow_in_place(struct build *b, const struct value *from, const struct value *to);
/* Stores values as bf16 that the device rounds in all ops that write and read them. */
void build_round_values(struct build *b);
/* Assigns offsets to the buffers; call it once all lifetimes are final. */
void build_place_buffers(struct build *b);

/* Declares the functions in column `lower` of the table of ops: they add the steps of a record. */
#define OP(kind, name, outs, weight, cost, backward, lower) RECORD(kind, name, backward, lower)
#define RECORD(kind, name, backward, lower) \
	void build_add_##lower(struct build *b, const struct tess_record *rec);
#include "nn/op/kinds.def"

/* Adds a collective of memory along a mesh dimension; the caller sets its counts. */
struct tess_coll *build_add_collective(struct build *b, int32_t along, int32_t kind,
                                       const struct value *src, const struct value *dst);
/*
 * Adds the sum over a dim of the nodes of all ranks along a mesh dimension; `over` NULL: one term.
 * Every rank gets all of it, or rank r gets share[r] elements. Returns NULL for a single rank,
 * which needs no call.
 */
struct tess_step *build_add_sum(struct build *b, int32_t along, const struct tess_dim *over,
                                const struct value *nodes, const struct value *to,
                                const uint64_t *share);
/* Plans the memory of gradients, before the records (gradient.c). */
void build_place_gradients(struct build *b);
/*
 * Finds where the current record computes the next range of rows of a gradient that is larger than
 * a bucket, and its first row. Returns false if there is no such range; the record then computes
 * its out. The range is added to those of other ranks after the step that computes it.
 */
bool build_get_gradient_run(struct build *b, struct value *run, int64_t *row);
void build_add_gradient_run(struct build *b);
/*
 * Announce weights that are in a file, or in memory of the host next to a device, or whose state
 * is, once they are final (final.c). The plan is made before that of gradients, which expects each
 * part and announces it when it is stored. Writes of gradients to files do the same when they start
 * and end; each record announces its weights after its steps. Before the first step that reads a
 * trained weight, the run awaits it.
 */
void build_plan_final(struct build *b);
void build_await_weight(struct build *b, const struct tess_weight *w);
void build_await_record(struct build *b, const struct tess_record *rec);
void build_expect_gradient(struct build *b, const struct tess_weight *w);
void build_announce_gradient(struct build *b, const struct tess_weight *w);
void build_announce_record(struct build *b, const struct tess_record *rec);
/* Waits for outstanding sums and writes of gradients, after the records of a segment. */
void build_finish_gradients(struct build *b);
/* Returns the empty list of writes under way; NULL: no memory. */
struct build_writes *build_make_writes(struct build *b);
/* Returns whether the gradient of a weight is in a file. */
bool build_is_gradient_stored(const struct build *b, const struct tess_weight *w);
struct build_earlier { /* what a gradient in a file is added to, or the first part of it */
	struct tess_step *step; /* reads it; NULL: not started */
	struct value memory;
};
/* Starts reading elements [first, first + n), of which none may be in an unfinished sum. */
void build_read_earlier(struct build *b, const struct tess_weight *w, int64_t first, int64_t n,
                        struct build_earlier *out);
/*
 * Starts the write of the elements d, from `first` on; earlier: of their sum with what is in the
 * file, which build_read_earlier may have started to read; NULL: they are the first.
 */
void build_store_gradient(struct build *b, const struct tess_weight *w, int64_t first,
                          const struct value *d, struct build_earlier *earlier);
void build_finish_stored_gradients(struct build *b);
/* Starts the transfer of n elements of `what` of a weight, from `first` on, to or from `at`. */
struct tess_step *build_start_transfer(struct build *b, const struct tess_weight *w, int32_t what,
                                       bool writes, int64_t first, int64_t n,
                                       const struct value *at);
/* Returns whether a weight is in temporary memory: it is cut at rest, or in a file. */
bool build_is_gathered(const struct build *b, const struct tess_weight *w);
/*
 * Gathers weights that are sharded at rest, and fetches those in files (gather.c). The plan is made
 * before the records, after that of tiles; each record, or tile, is preceded by the gathers that it
 * needs; *at is then bound to an element of w. piece: the rows of w that a tile has, or NULL.
 */
void build_plan_gathers(struct build *b);
void build_gather_weights(struct build *b);
/* Returns the limit of the bytes of a run of gathers, of which two or three are in memory. */
uint64_t build_get_most_gathered(const struct build *b);
void build_add_gathered_pointer(struct build *b, void **at, const struct tess_weight *w,
                                const struct build_piece *piece, int64_t element);
/* Returns the element of its table at which the part of a tied head begins; else 0. */
int64_t build_find_tied_part(struct build *b, const struct tess_weight *w);

/* Returns the elements that are in both; len 0: none. */
struct tess_run build_intersect_runs(struct tess_run a, struct tess_run b);
/* Returns what rank q of n owns of one dim and rank r holds of another dim of the same elements. */
struct tess_run build_find_exchanged(const struct tess_dim *own, const struct tess_dim *hold,
                                     int32_t n, int32_t q, int32_t r);

/* Adds a check for each value that `rec` computes or moves. Views of other values get none. */
void build_add_checks(struct build *b, const struct tess_record *rec);

#endif
