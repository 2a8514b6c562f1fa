/*
 * program.h - what is computed: a list of records with global shapes and placements.
 *
 * A program is the same on every rank; lower.h makes the steps of one rank from it. All of it lives
 * in its arena.
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
#include <tessera/style.h>

/* Records that no device runs; the rest have the TESS_OP_... of devices. */
enum {
	TESS_REC_MOVE = 1000,
	TESS_REC_SPLIT,
	TESS_REC_CALL,
	TESS_REC_SPLIT_HEADS,
	TESS_REC_JOIN,
	TESS_REC_JOIN_HEADS, /* the backward of split_heads */
	TESS_REC_GRADIENT, /* a value into the gradient memory of its weight */
	TESS_REC_EXCHANGE, /* query heads to the ranks that hold their key-value head */
	TESS_REC_SEQUENCE_SUM, /* sums of tokens that ranks share, over the sequences of a step */
	TESS_REC_SEND /* a value to a stage that reads it and did not make it */
};
/* A send record has the stage that gets its operand. */
enum { TESS_REC_SEND_TO };
/* The stage of records that each stage runs. */
enum { TESS_STAGES_ALL = -1 };
/* A gradient record's number: 1 where it is added to what is there. */
enum { TESS_REC_GRADIENT_ADDED };
/* A linear_dw record has, after the numbers of the op, 1 for a weight [in, out]. */
enum { TESS_REC_LINEAR_DW_IN_OUT = TESS_LINEAR_DW_NUMS };
/* An attention record has the index of its page class where the op has the head size. */
enum { TESS_REC_ATTENTION_CLASS = TESS_ATTENTION_HEAD };
/* Whether attention, or its backward, has values: else they are the beginnings of the keys. */
#define tess_attention_has_values(rec) ((rec)->in[2]->dtype == TESS_F32)

/* A rope record has the index of its table after the numbers of the op. */
enum { TESS_REC_ROPE_TABLE = TESS_ROPE_NUMS };

/*
 * Of head_linear: the index of the part of its weight, and 1 where its inputs and outputs are
 * exchanged, in the backward. Of head_linear_dw: that index, and 1 where the out is complete.
 */
enum { TESS_REC_HEAD_PART, TESS_REC_HEAD_BACK, TESS_REC_HEAD_COMPLETE = TESS_REC_HEAD_BACK };

struct tess_tensor { /* a value: what its axes mean, and where it is placed */
	int32_t id, dtype, ndim;
	/* [tokens], [tokens, features]; a gradient of a weight: its axes as stored */
	const struct tess_dim *dim[3];
	const struct tess_place *place; /* along each mesh dimension; Partial along one at most */
	const char *module; /* that placed it; for messages */
	const struct tess_dim *sum; /* Partial: the contracted dim, which is cut over the ranks */
	struct tess_redistributed *redistributed; /* placements that it already has a copy in */
	const struct tess_tensor *repeats; /* what is computed again as this value, or NULL */
};

struct tess_redistributed {
	struct tess_redistributed *next;
	struct tess_tensor *to;
};

/* The `logits_root` of steps that leave logits cut by vocabulary; 0 where the head does not so. */
enum { TESS_LOGITS_CUT = -2 };

enum { TESS_ROLE_WHOLE, TESS_ROLE_OUT, TESS_ROLE_IN, TESS_ROLE_EXPERTS };

enum { TESS_HEAD_PARTS = 4 };
struct tess_head_part { /* rows of each head of a weight, that are contracted over, or outputs */
	int64_t first, count;
	bool in_out; /* contracted over */
};
struct tess_head_parts { /* that records read; in panels they follow each other, head by head */
	int32_t n;
	struct tess_head_part part[TESS_HEAD_PARTS];
};
/* Elements of the first n parts of a head of a weight [.., in], in panels. */
int64_t tess_head_parts_count(const struct tess_head_parts *heads, int32_t n, int64_t in);

struct tess_weight { /* a parameter, as one op uses it */
	const char *name; /* "model.norm.weight" */
	const char *const *style; /* along each mesh dimension, as in the plan */
	int32_t index; /* among the program's weights */
	struct tess_files files; /* where it is stored */
	bool absent; /* these are not there: its dtype is that of config.json */
	int32_t stage; /* that has it, along pp */
	int32_t dtype, ndim, out_dim, in_dim; /* axes as stored; -1: none. Three: 0 is the expert */
	const struct tess_dim *dim[3];
	const struct tess_place *place; /* along each mesh dimension, while it is used */
	/* of training, along data_along: kept is a share of its local part between uses; and of
	 * the gradient and the optimizer's state */
	bool rest_cut, state_cut;
	bool in_out; /* stored [in, out] and viewed as [out, in], for each expert */
	int32_t compressed; /* 0: in memory it has its dtype; else TESS_Q8 or TESS_BF12 */
	const struct tess_weight *table; /* a tied head: the table that it reads; else NULL */
	struct tess_head_parts *heads; /* of head_linear; else NULL */
};

struct tess_record {
	int32_t kind, nin, nout, nweight, nnum;
	const char *module;
	struct tess_tensor *const *in;
	struct tess_tensor *const *out;
	const struct tess_weight *const *weight;
	double num[12];
	int32_t along; /* MOVE, CALL, EXCHANGE, SEQUENCE_SUM, SEND: the mesh dimension */
	int32_t stage; /* that runs it, along pp; a SEND: that has the value */
	const struct tess_call *call; /* TESS_REC_CALL: a plugin's own function */
	const struct tess_style *style; /* that made the call */
	void *state;
	const struct tess_record *repeats; /* the record that runs again as this one, or NULL */
};

struct tess_rope_use { /* a table that rope records read */
	struct tess_rope rope;
	int64_t each; /* elements of a head */
};

struct tess_gradient { /* of a weight, as its first gradient record has it */
	const struct tess_weight *weight;
	struct tess_tensor *value;
};

struct tess_open_style {
	const struct tess_style *style;
	void *state;
};

enum { TESS_BUCKET_BYTES = 25 << 20 };

struct tess_training { /* a step of one replica */
	const int64_t *lengths; /* of its sequences; the rows of the step are their positions */
	int64_t nsequences;
	int64_t all_sequences, first; /* of the whole step, over dp; the index of its first */
	bool accumulate; /* gradients are added to those that are there */
	const char *const *recompute; /* patterns of modules; ends with NULL; NULL: none */
	double balance; /* factor of the load balancing loss; 0: none */
	double dropout; /* the rate of all sites; 0: that of each, as the model has it; < 0: none */
	/* of gradients that are added at once along dp, and of weights that are gathered at once;
	 * 0: TESS_BUCKET_BYTES */
	uint64_t bucket;
	/* neighbours along dp that keep the shares of one copy of the weights that are cut at rest
	 * or in state; 0: all ranks along it */
	int32_t shards;
};

struct tess_program {
	struct tess_arena arena;
	struct tess_mesh_shape mesh;
	int64_t ntokens, nselected; /* rows of a step, and those whose logits are wanted */
	int64_t max_positions; /* of a text, for which the tables of positions are made; 0: any */
	int32_t logits_root; /* the only rank that gets the logits; -1: all; TESS_LOGITS_CUT */
	/* the mesh dimension that cuts the logits by vocabulary before a step gathers them; -1:
	 * none does */
	int32_t vocabulary_along;
	bool check; /* add steps that check the outputs of each record */
	const struct tess_device *device; /* that will run it; NULL: host memory, and exact sums */
	int32_t nrecords, nweights, nclasses, nropes, ntensors, nopen_styles;
	struct tess_record **record;
	struct tess_weight **weight; /* in order of first use; a tied head is one of its own */
	struct tess_rope_use *rope; /* one for each distinct setting */
	struct tess_open_style *open_styles;
	int32_t kv_dtype; /* of the KV cache; 0: no attention was recorded */
	int64_t *class_window; /* page classes: layers with this window share pages of the cache */
	/* i32 inputs: [tokens], and `rows` [selected], the indices of those rows, increasing */
	struct tess_tensor *ids, *positions, *slots, *rows;
	struct tess_tensor *logits;
	const struct tess_training *training; /* NULL: inference */
	/* of training: i32 [tokens], -100: no loss; f32 [1], how many of the step are not */
	struct tess_tensor *labels, *count;
	/* i32 [4], for dropout: the key of the step, two words; the index in the step of the
	 * sequence of slot 0; 0 */
	struct tess_tensor *random;
	int64_t nsites; /* of dropout */
	struct tess_tensor *loss; /* f32 [tokens], of each */
	/* of training with a load balancing loss: sums over the tokens of the step, [rows,
	 * experts] as BALANCE has them, and the experts of a token; else NULL */
	struct tess_tensor *balance;
	double balance_top;
	/* [tokens]; of training with a part for each sequence, and all sequences of the step */
	const struct tess_dim *tokens, *sequences;
	int32_t data_along; /* mesh dimension dp of training, if it has several ranks; else -1 */
	int32_t pipeline_along; /* mesh dimension pp, if it has several ranks; else -1 */
	bool overlaps; /* stages compute several micro-batches at a time (pipeline_schedule.h) */
	int32_t ngradients;
	struct tess_gradient *gradient; /* one for each weight, in the order of its records */
	uint64_t *hash; /* of records 0 to i, for ranks to compare */
};

static inline bool tess_program_is_on_host(const struct tess_program *p)
{
	return !p->device || p->device->mem == TESS_HOST;
}

/* Whether sums have the order of split.h: else each rank's part of a Partial is one node. */
static inline bool tess_program_is_exact(const struct tess_program *p)
{
	return !p->device || p->device->exact;
}

/* The load balancing loss of a step, times its factor, from p->balance; 0: there is none. */
double tess_program_compute_balance(const struct tess_program *p, const float *totals);

/* Frees a program and closes the states of its styles. NULL: nothing. */
void tess_program_free(struct tess_program *p);

/* The name of a record's kind: "linear", "move". Never NULL. */
const char *tess_record_kind_name(int32_t kind);

/* The collective that a move is: TESS_ALL_GATHER, ...; 0: it needs none. */
int32_t tess_move_kind(const struct tess_program *p, const struct tess_record *move);
/* What a move does: the name of that collective, "slice" or "keep". */
const char *tess_move_name(const struct tess_program *p, const struct tess_record *move);

/* The largest number of pieces of an axis of any weight. */
int64_t tess_program_max_pieces(const struct tess_program *p);

/* The part of a weight that a rank has along mesh dimension `along`: TESS_ROLE_... */
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

/* Elements of a whole weight. */
int64_t tess_weight_count_elements(const struct tess_weight *w);

/* The stages of the pipeline; 1: there is none. */
int32_t tess_program_count_stages(const struct tess_program *p);
/* The pipeline stage of a rank: its coordinate along pp; 0: there is no such dimension. */
int32_t tess_program_get_stage(const struct tess_program *p, int32_t rank);
/* Whether `rank` runs a record of this stage, or has a weight of it. */
bool tess_program_has_stage(const struct tess_program *p, int32_t rank, int32_t stage);

/* The cut of one mesh dimension, as `rank` sees it; along -1: none, the whole. */
struct tess_cut tess_program_get_cut(const struct tess_program *p, int32_t rank, int32_t along);
/* The cut of an axis of a value or weight that is placed so. */
struct tess_cut tess_program_find_cut(const struct tess_program *p, int32_t rank,
                                      const struct tess_place *place, int32_t axis);

/* Returns true if a value is one row: the gradient of a vector, not a number for each token. */
bool tess_tensor_is_vector(const struct tess_tensor *t);

/*
 * TESS_EINVAL: an id is outside the vocabulary. `first`: the position of ids[0], for the message.
 */
tess_status tess_ids_check(const int32_t *ids, int64_t n, int64_t first, int64_t vocabulary);

#endif
