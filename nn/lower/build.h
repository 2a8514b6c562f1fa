/* build.h - values, buffers and steps: what all files that lower records use. */
#ifndef TESS_NN_BUILD_H
#define TESS_NN_BUILD_H

#include "nn/lower/lower.h"
#include "nn/lower/memory_plan.h"

struct buffer {
	struct tess_lifetime life; /* from the first step that has its address to the last */
	/* TESS_SPACE_INPUTS, _GRADIENTS: not in the step arena, and the offset is set */
	int32_t space;
	int32_t in_place; /* the buffer whose memory it takes over; -1: none */
};

struct out { /* that a step writes */
	int32_t step, buffer;
};

struct in_place { /* buffers of an op whose out may have the memory of an operand */
	int32_t from, to;
};

struct value { /* a tensor on this rank: rows of elements in a buffer */
	bool allocated, partial;
	int32_t buffer, dtype;
	uint64_t offset; /* bytes, from the start of the buffer */
	int64_t nodes, rows, cols;
	int64_t node_stride, row_stride; /* strides, in elements */
};

struct build {
	const struct tess_program *p;
	struct tess_rank_program *l;
	const struct tess_view *weights;
	struct value *value; /* by the tensor's id */
	struct buffer *buffer;
	struct in_place *in_place; /* in the order of steps */
	struct out *out; /* of ops, in the order of steps */
	struct tess_run *runs; /* scratch, with room for the pieces of any axis of a weight */
	/* the trees over tokens: whole, and cut by each mesh dimension; ntree 0: not yet */
	struct tess_op tokens[1 + TESS_MESH_DIMS];
	struct build_gradients *gradients; /* of training */
	struct build_gathers *gathers;
	struct build_sends *sends; /* under way to the last step; the last first */
	int32_t nbuffers, nin_place, nouts, record;
	tess_status status; /* the first error */
	struct tess_step spare; /* returned by build_add_step after an error */
};

/* This rank's cut of an axis of a value or weight that is placed so. */
struct tess_cut build_find_cut(const struct build *b, const struct tess_place *place, int32_t axis);
/* The elements of an axis that this rank holds. */
int64_t build_get_local_size(const struct build *b, const struct tess_tensor *v, int32_t axis);
/* The tensor's value; the first call gives it a buffer. Of three axes the first two are rows. */
struct value *build_get_value(struct build *b, const struct tess_tensor *t);
/* A value with a buffer for the steps that are given it; nodes 0: not a Partial. */
struct value build_add_temporary(struct build *b, int64_t nodes, int64_t rows, int64_t cols,
                                 int32_t dtype);
int32_t build_add_buffer(struct build *b, uint64_t bytes);
/* A block of a value, as a view. */
struct value build_slice_value(const struct value *v, int64_t row, int64_t rows, int64_t col,
                               int64_t cols);
/* This rank's columns of a replicated value: a view of one run, or a copy of several. */
struct value build_slice_local_cols(struct build *b, const struct value *x,
                                    const struct tess_dim *dim, struct tess_cut cut);
/* A dense block of rows x cols at element `at` of a value's memory. */
struct value build_make_block(const struct value *v, uint64_t at, int64_t rows, int64_t cols);
/* Whether the rows have no gaps between them, as collectives and callers need them. */
bool build_is_dense(const struct value *v);
/* A copy of the rows, of each node, that has no gaps. */
struct value build_copy_dense(struct build *b, const struct value *v);

/* Whether this rank has steps of a record: the stage of it, or what is sent to that. */
bool build_has_record(const struct build *b, const struct tess_record *rec);
struct tess_step *build_add_step(struct build *b, int32_t kind);
struct tess_step *build_add_op(struct build *b, int32_t kind, int32_t nin, int32_t nout);
struct tess_view build_make_view(const struct value *v);
/*
 * This rank's part of a weight as ops read it, without data: of linear weights [out, in]. Only
 * build_set_weight and build_set_weight_part know where it lies.
 */
struct tess_view build_describe_weight(struct build *b, const struct tess_weight *w);
/* This rank's part of w becomes operand i; or `part` of it, which begins at element `at`. */
void build_set_weight(struct build *b, struct tess_step *s, int32_t i, const struct tess_weight *w);
void build_set_weight_part(struct build *b, struct tess_step *s, int32_t i,
                           const struct tess_weight *w, const struct tess_view *part, int64_t at);
void build_set_input(struct build *b, struct tess_step *s, int32_t i, const struct value *v);
void build_set_output(struct build *b, struct tess_step *s, int32_t i, const struct value *v);
void build_set_numbers(struct build *b, struct tess_op *op, int32_t n, const double *num);
/*
 * The trees of a contraction over `dim`: the units that this rank adds, and the bounds of each unit
 * on the local axis. Elements that are held but not owned are in no unit.
 */
void build_set_trees(struct build *b, struct tess_op *op, const struct tess_dim *dim,
                     struct tess_cut cut);
struct build_operand { /* of a contraction: the axis, and the part of it that is here */
	const struct tess_dim *dim;
	struct tess_cut held;
};
/*
 * The same over the axes of several operands, laid end to end; `cut`: the units that this rank
 * adds. They follow the trees that the op has.
 */
void build_add_trees(struct build *b, struct tess_op *op, int32_t n, const struct build_operand *x,
                     struct tess_cut cut);
/*
 * The trees over the tokens of `over`, after those that the op has, and its numbers: `sequences`
 * and `first` for a sum that becomes `out`, then n of `num`.
 */
void build_set_token_sum(struct build *b, struct tess_op *op, const struct tess_tensor *over,
                         const struct tess_tensor *out, int32_t n, const double *num);
void build_add_copy(struct build *b, const struct value *from, const struct value *to);
/* When memory is bound, *at points to the value's memory, or to where `p` says. */
void build_add_pointer(struct build *b, void **at, const struct value *v);
void build_add_patch(struct build *b, struct tess_patch p);
/* Waits for a step that was started. */
void build_add_wait(struct build *b, struct tess_step *started);
/* The value is in use until after the last step. */
void build_keep_value(struct build *b, const struct value *v);
/*
 * The op of the last step may work in place: `to` gets the memory of its operand `from` if both are
 * whole buffers of one shape and no later step has the address of `from`.
 */
void build_allow_in_place(struct build *b, const struct value *from, const struct value *to);
/* Assigns offsets to the buffers; call it once all lifetimes are known. */
void build_place_buffers(struct build *b);

/* The column `lower` of the table of ops: the steps of records of a kind. */
#define OP(kind, name, outs, weight, cost, backward, lower) RECORD(kind, name, backward, lower)
#define RECORD(kind, name, backward, lower) \
	void build_add_##lower(struct build *b, const struct tess_record *rec);
#include "nn/op/kinds.def"

/* Waits for what was sent, where stages do not wait for each other before (move.c). */
void build_finish_sends(struct build *b);
/* Adds a collective of memory along a mesh dimension, whose counts the caller sets. */
struct tess_coll *build_add_collective(struct build *b, int32_t along, int32_t kind,
                                       const struct value *src, const struct value *dst);
/*
 * Adds the sum over a dim of the nodes of all ranks along a mesh dimension (NULL: of one term): all
 * of it, or share[r] elements to each rank r. Returns NULL for one rank, which makes no call.
 */
struct tess_step *build_add_sum(struct build *b, int32_t along, const struct tess_dim *over,
                                const struct value *nodes, const struct value *to,
                                const uint64_t *share);
/* Plans where gradients are stored, before the records (gradient.c). */
void build_place_gradients(struct build *b);
/*
 * Where the current record is to make the next run of rows of a gradient that is too large for a
 * bucket, and its first row. False: there is no such run, and it makes its out. After the step that
 * makes it, the run is added to those of other ranks.
 */
bool build_get_gradient_run(struct build *b, struct value *run, int64_t *row);
void build_add_gradient_run(struct build *b);
/* Waits for the sums of gradients that are under way, after the records. */
void build_finish_gradients(struct build *b);
/*
 * Weights that are cut at rest (gather.c): plans when they are gathered, before the records;
 * before each record gathers what it needs; then *at will point to an element of w.
 */
void build_plan_gathers(struct build *b);
void build_gather_weights(struct build *b);
void build_add_gathered_pointer(struct build *b, void **at, const struct tess_weight *w,
                                int64_t element);
/* Returns what rank q of n owns of one dim, and rank r holds of another of the same elements. */
struct tess_run build_find_exchanged(const struct tess_dim *own, const struct tess_dim *hold,
                                     int32_t n, int32_t q, int32_t r);

/* Adds a step for each value that `rec` computes or moves. A view of another value gets none. */
void build_add_checks(struct build *b, const struct tess_record *rec);

#endif
