/*
 * backward.h - appends the records of the backward to those of a step of training.
 *
 * Records are visited in reverse; docs/ops.md has the records that each appends. The placement of a
 * gradient follows from its value, never from a style: Shard stays, all else is Replicate.
 */
#ifndef TESS_NN_BACKWARD_H
#define TESS_NN_BACKWARD_H

#include "nn/record/recorder.h"

struct tess_contribution;

struct tess_head_gradient { /* the gradient of a weight of heads, by several records */
	struct tess_tensor *d;
	const struct tess_place *place; /* places of the operands */
	uint32_t made; /* bit i: part i */
};

struct tess_backward {
	struct tess_recorder *r;
	struct tess_contribution **given; /* by value, in the order of the consumers */
	int32_t nforward;
	int32_t consumer; /* the visited record of the forward */
	bool *recorded; /* by weight: has a gradient */
	struct tess_head_gradient *heads; /* by weight */
};

/*
 * Records the sums of the load balancing loss, which are a part of the forward (balance.c).
 * Failures are the recorder's.
 */
void tess_program_record_balance(struct tess_recorder *r);
/* Records the loss and the backward, at the end of a recording. Failures are the recorder's. */
void tess_program_record_backward(struct tess_recorder *r);

/* Notes the record of the forward that the next records are of; nforward: the loss. */
void tess_backward_set_record(struct tess_backward *b, int32_t consumer);

/*
 * Returns the finished gradient of y, at its place (S(a) -> S(a); R, Partial -> R); NULL: no
 * consumer has given one, or the recording has failed.
 */
struct tess_tensor *tess_backward_take(struct tess_backward *b, struct tess_tensor *y);
/* Returns the gradients of all outs of a split; NULL: failure, also for an unused out. */
struct tess_tensor **tess_backward_take_parts(struct tess_backward *b,
                                              const struct tess_record *rec);
/*
 * Adds d to the gradient of x; NULL: does nothing. Contributions are finished to x's gradient
 * place, then added in the order of the consumers. Gradients of ids and the like are dropped.
 */
void tess_backward_give(struct tess_backward *b, struct tess_tensor *x, struct tess_tensor *d);
/* Returns whether a consumer has given a gradient to an output of the record. */
bool tess_backward_reaches(struct tess_backward *b, const struct tess_record *rec);
/*
 * Stores the gradient d of w from its op: [axes of w as stored], Partial or not. Finishes it over
 * tokens, first along the other mesh dimensions, then along dp, and stores it in the memory of
 * gradients (TESS_REC_GRADIENT).
 */
void tess_backward_give_weight(struct tess_backward *b, const struct tess_weight *w,
                               struct tess_tensor *d);

/* Makes a value of `place` for the gradient of x. */
struct tess_tensor *tess_backward_make_like(struct tess_backward *b, const struct tess_tensor *x,
                                            const struct tess_place *place, const char *module);
/*
 * Makes a value of these dims for a sum over the tokens of `of`. The caller sets `place` along each
 * mesh dimension; it becomes Partial along a dimension that cuts the tokens, else along dp.
 */
struct tess_tensor *tess_backward_make_token_sum(struct tess_backward *b,
                                                 const struct tess_tensor *of, const char *module,
                                                 int32_t ndim, const struct tess_dim *const *dim,
                                                 struct tess_place *place);
/* Finishes a sum over tokens along all mesh dimensions except dp. */
struct tess_tensor *tess_backward_finish_tokens(struct tess_backward *b, struct tess_tensor *d,
                                                const char *module);
/* Records the sum of g over tokens, [dim]; it is cut like the columns of g. */
struct tess_tensor *tess_backward_record_bias_sum(struct tess_backward *b,
                                                  const struct tess_record *rec,
                                                  struct tess_tensor *g,
                                                  const struct tess_dim *const *dim);
/*
 * Appends an op that adds over the tokens of its last operand into such a value. The caller sets
 * the numbers after `sequences` and `first`.
 */
struct tess_record *tess_backward_append_token_sum(struct tess_backward *b, int32_t kind,
                                                   const char *module, int32_t nin,
                                                   struct tess_tensor *const *in, int32_t ndim,
                                                   const struct tess_dim *const *dim,
                                                   struct tess_place *place);

/* The column `backward` of the table of ops: what a record of a kind gives to its operands. */
#define OP(kind, name, outs, weight, cost, backward, lower) RECORD(kind, name, backward, lower)
#define RECORD(kind, name, backward, lower) \
	void tess_backward_record_##backward(struct tess_backward *b, \
	                                     const struct tess_record *rec);
#include "nn/op/kinds.def"

/* Records the loss, and the gradient of the logits (loss.c). */
void tess_backward_record_loss(struct tess_backward *b);
/* Returns the gradient of that loss for the logits of a route. */
struct tess_tensor *tess_backward_record_balance_d(struct tess_backward *b,
                                                   const struct tess_record *rec);

#endif
