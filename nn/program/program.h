/*
 * program.h - a program: a list of records with global shapes and placements.
 *
 * A program is equal on every rank; lower.h makes the steps of one rank from it. Its memory is its
 * arena.
 */
#ifndef TESS_NN_PROGRAM_H
#define TESS_NN_PROGRAM_H

#include "core/base/arena.h"
#include "core/shard/dim.h"
#include "core/shard/place.h"
#include "core/world/mesh_shape.h"
#include "nn/program/rope.h"
#include "nn/program/stored.h"

#include <tessera/device.h>
#include <tessera/pipeline.h>
#include <tessera/style.h>

/* Kinds of records that no device runs; the others are TESS_OP_... (nn/op/kinds.def) */
enum {
	TESS_REC_MOVE = TESS_OP_KINDS,
	TESS_REC_SPLIT,
	TESS_REC_CALL,
	TESS_REC_SPLIT_HEADS,
	TESS_REC_JOIN,
	TESS_REC_JOIN_HEADS, /* the backward of split_heads */
	/* stores a value in the gradient memory of its weight; of a tied head, whose gradient is
	 * apart: in its own, in the places of the table */
	TESS_REC_GRADIENT,
	TESS_REC_EXCHANGE, /* sends query heads to the ranks that hold their key-value head */
	TESS_REC_SEQUENCE_SUM, /* sums over the sequences of a step, which ranks share */
	TESS_REC_SEND, /* sends a value to another stage that reads it */
	TESS_REC_COLLECTIVE, /* a collective of a local value, recorded by a hook */
	TESS_REC_STRAIGHT, /* in[1], with the gradient of in[0] */
	/*
	 * sends rows to the ranks of their experts, S(0) -> R, or returns results, P -> S(0);
	 * in[1]: routing weights S(0), in[2]: the same S(1). The out R has all rows; those that no
	 * expert of the rank reads are undefined
	 */
	TESS_REC_EXPERT_ROWS,
	TESS_REC_KINDS
};
/* The number of a send record: the stage that receives its operand. */
enum { TESS_REC_SEND_TO };
/* The numbers of a collective record: its kind, and the root, or the shift of a send. */
enum { TESS_REC_COLLECTIVE_KIND, TESS_REC_COLLECTIVE_RANK, TESS_REC_COLLECTIVE_NUMS };
/* The stage of a value that every stage has, and of records before they are cut. */
enum { TESS_STAGES_ALL = -1 };
/*
 * The numbers of an expert_rows record: the maximum number of experts of a row, and 1 if the
 * experts got their rows from a replicated value, without an exchange.
 */
enum { TESS_REC_EXPERT_ROWS_TOP, TESS_REC_EXPERT_ROWS_REPLICATED, TESS_REC_EXPERT_ROWS_NUMS };
/* The number of a gradient record: 1 adds to the existing gradient. */
enum { TESS_REC_GRADIENT_ADDED };
/* The number of a linear_dw record after those of the op: 1 for a weight [in, out]. */
enum { TESS_REC_LINEAR_DW_IN_OUT = TESS_LINEAR_DW_NUMS };
/* The number of an attention record in place of the head size: the index of its page class. */
enum { TESS_REC_ATTENTION_CLASS = TESS_ATTENTION_HEAD };
/* Returns whether attention, or its backward, has values; else keys contain them. */
#define tess_attention_has_values(rec) ((rec)->in[2]->dtype == TESS_F32)

/* The number of a rope record after those of the op: the index of its table. */
enum { TESS_REC_ROPE_TABLE = TESS_ROPE_NUMS };

/*
 * The numbers of head_linear: the index of the part of its weight, and 1 if inputs and outputs are
 * exchanged, in the backward. Those of head_linear_dw: that index, and 1 if the output is complete.
 */
enum { TESS_REC_HEAD_PART, TESS_REC_HEAD_BACK, TESS_REC_HEAD_COMPLETE = TESS_REC_HEAD_BACK };

struct tess_tensor { /* a value: the meaning of its axes, and its placement */
	int32_t id, dtype, ndim;
	/* [tokens], [tokens, features]; a gradient of a weight: its axes as stored */
	const struct tess_dim *dim[3];
	const struct tess_place *place; /* along each mesh dimension; at most one Partial */
	const char *module; /* the module that placed it; for messages */
	const struct tess_dim *sum; /* Partial: the contracted dim, which is cut over the ranks */
	struct tess_redistributed *redistributed; /* existing copies with other placements */
	const struct tess_tensor *repeats; /* the value that this one recomputes, or NULL */
	bool local; /* [rows, columns] of hooks, cut by rows along one dimension; or its gradient */
	int64_t first; /* of positions: row of a table for position 0 */
};

struct tess_redistributed {
	struct tess_redistributed *next;
	struct tess_tensor *to;
};

/*
 * The `logits_root` of steps that leave logits in the stage of the head, and cut by vocabulary if
 * the head is. Uncut ones are of one rank: the first of that stage.
 */
enum { TESS_LOGITS_CUT = -2 };

enum { TESS_ROLE_WHOLE, TESS_ROLE_OUT, TESS_ROLE_IN, TESS_ROLE_EXPERTS };

enum { TESS_HEAD_PARTS = 4 };
struct tess_head_part { /* rows of each head of a weight: inputs or outputs */
	int64_t first, count;
	bool in_out; /* inputs */
};
struct tess_head_parts { /* the parts that records read; panels have them in order, by head */
	int32_t n;
	struct tess_head_part part[TESS_HEAD_PARTS];
};
/* Counts the elements of the first n parts of a head of a weight [.., in], in panels. */
int64_t tess_head_parts_count(const struct tess_head_parts *heads, int32_t n, int64_t in);

struct tess_weight { /* a parameter, as used by one op */
	const char *name; /* "model.norm.weight" */
	const char *const *style; /* along each mesh dimension, as in the plan */
	int32_t index; /* index among the program's weights */
	struct tess_files files; /* its files */
	bool absent; /* the files are absent; the dtype is that of config.json */
	int32_t stage; /* the stage that has it */
	/* stored in TESS_MXFP4, [experts, outs, ins]; dtype: TESS_BF16, to which it is widened
	 * unless it is `compressed` */
	bool mxfp4;
	int32_t dtype, ndim, out_dim, in_dim; /* axes as stored; -1: none. Three: 0 is the expert */
	const struct tess_dim *dim[3];
	const struct tess_place *place; /* along each mesh dimension, during use */
	/* training: a rank keeps a share along data_along of the weight between uses (rest_cut),
	 * or of the gradient and the optimizer's state (state_cut) */
	bool rest_cut, state_cut;
	/* TESS_LOCATION_...: of the weight between uses, of masters and moments */
	int32_t rest_location, state_location;
	bool in_out; /* stored [in, out] and viewed as [out, in], for each expert */
	int32_t compressed; /* 0: its own dtype in memory; else TESS_Q8, _BF12, _MXFP4 */
	const struct tess_weight *table; /* a tied head: the table that it reads; else NULL */
	/* a copy, for a tied head on another rank along pp: the table that it copies; else NULL */
	const struct tess_weight *copies;
	struct tess_head_parts *heads; /* head_linear only, else NULL */
};

struct tess_record {
	int32_t kind, nin, nout, nweight, nnum;
	const char *module;
	struct tess_tensor *const *in;
	struct tess_tensor *const *out;
	const struct tess_weight *const *weight;
	double num[TESS_ATTENTION_NUMS];
	/* MOVE, CALL, EXCHANGE, SEQUENCE_SUM, SEND, EXPERT_ROWS: the mesh dimension */
	int32_t along;
	int32_t stage; /* the stage that runs it; a SEND: the stage that sends */
	int32_t action; /* of the schedule: TESS_PIPELINE_FORWARD, _BACKWARD_INPUTS, _WEIGHTS */
	const struct tess_call *call; /* TESS_REC_CALL: a plugin's own function */
	const struct tess_style *style; /* the style that made the call */
	void *state;
	const struct tess_record *repeats; /* the record that this one recomputes, or NULL */
	/* the backward: the record of the forward that gave the gradients which it reads, or whose
	 * gradients it finishes; else NULL */
	const struct tess_record *of;
};

struct tess_opened_module { /* a module, in the order in which the model opens them */
	const char *path, *kind; /* kind: "linear", "module", ... (tessera/style.h) */
	int32_t record; /* the first record after it was opened; not valid with stages */
	const struct tess_io *const *io; /* its layout along each mesh dimension */
};

struct tess_rope_use { /* a table for rope records */
	struct tess_rope rope;
	int64_t each; /* rotated elements of a head */
};

struct tess_gradient { /* the gradient of a weight, by its first gradient record */
	const struct tess_weight *weight;
	struct tess_tensor *value;
};

struct tess_kept_value { /* the output of a module, which is kept to the end of a step */
	const char *module, *name; /* name: of the value, in files */
	const char *styles; /* of the module, for tess_value; NULL: none */
	struct tess_tensor *value; /* replicated along all mesh dimensions but dp */
	const struct tess_tensor *placed; /* as the module returns it */
	int32_t stage; /* the stage that computes it */
};

struct tess_open_style {
	const struct tess_style *style;
	void *state;
	const char *module;
};

enum { TESS_BUCKET_BYTES = 25 << 20 };

struct tess_training { /* a training step of one replica */
	const int64_t *lengths; /* of its sequences, whose positions are the rows of the step */
	int64_t nsequences;
	int64_t all_sequences, first; /* of the step over dp; index of the first one here */
	bool accumulate; /* gradients are added to existing ones */
	bool several; /* the step has several micro-batches */
	const char *const *recompute; /* patterns of modules; ends with NULL; NULL: none */
	double balance; /* factor of the load balancing loss; 0: none */
	double dropout; /* rate of all sites; 0: the model's own rates; < 0: none */
	/* bytes of gradients reduced at once along dp, and of weights gathered at once; 0:
	 * TESS_BUCKET_BYTES */
	uint64_t bucket;
	/* number of adjacent ranks along dp that keep the shares of one copy of the weights cut
	 * at rest or in state; 0: all ranks */
	int32_t shards;
	/* TESS_LOCATION_...: of masters and moments, if the style does not choose */
	int32_t state_location;
};

struct tess_program {
	struct tess_arena arena;
	struct tess_mesh_shape mesh;
	int64_t ntokens, nselected; /* rows of a step, and rows with logits */
	int64_t max_positions; /* maximum length of a sequence, for position tables; 0: unlimited */
	int32_t logits_root; /* the only rank with the logits; -1: all; TESS_LOGITS_CUT */
	int32_t logits_stage; /* the stage that computes the logits; 0: there is no pipeline */
	/* mesh dimension that cuts the logits by vocabulary before they are gathered; -1: none */
	int32_t vocabulary_along;
	/* why experts exchange all rows, though their style is for requested ones; NULL: none do */
	const char *all_expert_rows;
	bool check; /* add steps that check the outputs of each record */
	/* TESS_LOCATION_...: of weights between uses, if the style does not choose */
	int32_t rest_location;
	/* bytes of a rank's part of a weight from which on it may be in a file, and elements of a
	 * bucket of state there; 0: the defaults of nn/offload/offload.h */
	uint64_t offload_min, offload_bucket;
	/* maximum bytes of a weight that is gathered or fetched at once; 0: no limit */
	uint64_t tile;
	const struct tess_device *device; /* the device to run it; NULL: host memory, exact sums */
	int32_t nrecords, nweights, nclasses, nropes, ntensors, nopen_styles;
	struct tess_record **record;
	struct tess_weight **weight; /* in order of first use; a tied head is one of its own */
	struct tess_rope_use *rope; /* one per distinct setting */
	struct tess_open_style *open_styles;
	int32_t nmodules;
	struct tess_opened_module *module;
	int32_t kv_dtype; /* dtype of the KV cache; 0: no attention was recorded */
	int64_t *class_window; /* page classes: layers with this window share pages of the cache */
	/* i32 inputs: [tokens], and `rows` [selected], the indices of those rows, increasing */
	struct tess_tensor *ids, *positions, *slots, *rows;
	struct tess_tensor *logits;
	const struct tess_training *training; /* NULL: inference */
	/* training: i32 [tokens], -100: ignored; f32 [1], the number of labels that count */
	struct tess_tensor *labels, *count;
	/* i32 [4], for dropout: the key of the step, two words; the index of slot 0's sequence in
	 * the step; 0 */
	struct tess_tensor *random;
	int64_t nsites; /* sites of dropout */
	struct tess_tensor *loss; /* f32 [tokens]: the loss of each token */
	/* training with a load balancing loss: the sums of BALANCE over the tokens of the step,
	 * [rows, experts], and the experts of a token; else NULL */
	struct tess_tensor *balance;
	double balance_top;
	int32_t loss_stage, balance_stage; /* the stages that have them */
	/* [tokens], in training with a part for each sequence; all sequences of the step */
	const struct tess_dim *tokens, *sequences;
	int32_t data_along; /* mesh dimension dp in training, if it has several ranks; else -1 */
	int32_t pipeline_along; /* mesh dimension pp, if it has several ranks; else -1 */
	int32_t nstages; /* stages of the pipeline; 1: no pipeline */
	const int32_t *stage_rank; /* by stage: the coordinate along pp of its ranks */
	/* training: records of gradients of weights are actions of their own; else they are
	 * beside those of gradients of inputs */
	bool weights_apart;
	int32_t ngradients;
	struct tess_gradient *gradient; /* one per weight, in the order of its records */
	int32_t nvalues;
	struct tess_kept_value *values; /* in the order of the modules */
	/* [i]: hash of records 0 to i, compared between ranks; NULL before tess_program_hash */
	uint64_t *hash;
};

static inline bool tess_program_is_on_host(const struct tess_program *p)
{
	return !p->device || p->device->mem == TESS_HOST;
}

/*
 * Returns whether values with a location (TESS_LOCATION_...) are not where the device computes:
 * they are on a disk, or in memory of the host next to a device with memory of its own.
 */
static inline bool tess_location_is_apart(const struct tess_program *p, int32_t location)
{
	return location == TESS_LOCATION_DISK ||
	       (location == TESS_LOCATION_HOST && !tess_program_is_on_host(p));
}

/* Returns whether sums have the order of split.h; else a rank's part of a Partial is one node. */
static inline bool tess_program_is_exact(const struct tess_program *p)
{
	return !p->device || p->device->exact;
}

/* Returns the load balancing loss of a step, times its factor, from p->balance; 0: none. */
double tess_program_compute_balance(const struct tess_program *p, const float *totals);

/*
 * Returns the probability that a row requests one of `held` of n experts, if it requests `top` of
 * them, all equally often. 0 <= held <= n, top <= n.
 */
double tess_experts_find_share(int64_t n, int64_t top, int64_t held);

/* Frees a program and closes the states of its styles. NULL: does nothing. */
void tess_program_free(struct tess_program *p);

/* Gives a record the numbers of another one, of a kind whose numbers have the same order. */
static inline void tess_record_copy_numbers(struct tess_record *to, const struct tess_record *from)
{
	to->nnum = from->nnum;
	for (int32_t i = 0; i < from->nnum; i++)
		to->num[i] = from->num[i];
}

/* Returns the name of a record's kind: "linear", "move". Never NULL. */
const char *tess_record_kind_name(int32_t kind);

/* Returns the collective of a move: TESS_ALL_GATHER, ...; 0: none. */
int32_t tess_move_kind(const struct tess_program *p, const struct tess_record *move);
/* Returns the name of a move: that of its collective, "slice" or "keep". */
const char *tess_move_name(const struct tess_program *p, const struct tess_record *move);

/* Returns the maximum number of pieces of an axis of any weight. */
int64_t tess_program_max_pieces(const struct tess_program *p);

/* Returns the part of a weight that a rank has along mesh dimension `along`: TESS_ROLE_... */
int32_t tess_weight_role(const struct tess_weight *w, int32_t along);

/* Exchanges `axis` and the one after it: a stored [in, out] as [out, in]. */
static inline void tess_view_swap_axes(struct tess_view *v, int32_t axis)
{
	int64_t shape = v->shape[axis], stride = v->stride[axis];

	v->shape[axis] = v->shape[axis + 1];
	v->stride[axis] = v->stride[axis + 1];
	v->shape[axis + 1] = shape;
	v->stride[axis + 1] = stride;
}

/* Returns the weight whose memory w reads: its table if it is a tied head, else itself. */
static inline const struct tess_weight *tess_weight_get_home(const struct tess_weight *w)
{
	return w->table ? w->table : w;
}

/* Returns the table of a tied head, or of a copy for one; NULL: w is neither. */
const struct tess_weight *tess_weight_get_table(const struct tess_weight *w);
/* Counts the elements of the full weight. */
int64_t tess_weight_count_elements(const struct tess_weight *w);

/* Returns whether micro-batches in progress have slots of memory: in training with stages. */
static inline bool tess_program_has_slots(const struct tess_program *p)
{
	return p->training && p->nstages > 1;
}

/* Returns how many steps of inference may be under way at a time: one for each stage, or one. */
int32_t tess_program_count_ahead(const struct tess_program *p);
/* Returns the coordinate of a rank along pp; 0 without that dimension. */
int32_t tess_program_get_pipeline_rank(const struct tess_program *p, int32_t rank);
/* Returns whether `rank` runs records of this stage and has its weights. */
bool tess_program_has_stage(const struct tess_program *p, int32_t rank, int32_t stage);

/* Returns the cut of one mesh dimension for `rank`; along -1: no cut. */
struct tess_cut tess_program_get_cut(const struct tess_program *p, int32_t rank, int32_t along);
/* Returns the cut of an axis of a value or weight with this placement. */
struct tess_cut tess_program_find_cut(const struct tess_program *p, int32_t rank,
                                      const struct tess_place *place, int32_t axis);

/*
 * Returns the length of "model.layers.3" in a module's path; 0: in no numbered module. *number: the
 * offset of its number.
 */
size_t tess_module_measure_number(const char *module, size_t *number);

/* Describes a value, or the part of it on `rank` (-1: all), along a mesh dimension. */
struct tess_operand tess_tensor_describe(const struct tess_program *p, const struct tess_tensor *t,
                                         int32_t along, int32_t rank);

/* Returns whether two values have the same dims. */
bool tess_tensor_has_same_dims(const struct tess_tensor *a, const struct tess_tensor *b);

/* Returns whether a value is one row: the gradient of a vector, not a number per token. */
bool tess_tensor_is_vector(const struct tess_tensor *t);

/*
 * Fails with TESS_EINVAL if an id is outside the vocabulary. `first`: the position of ids[0], for
 * the message.
 */
tess_status tess_ids_check(const int32_t *ids, int64_t n, int64_t first, int64_t vocabulary);

#endif
