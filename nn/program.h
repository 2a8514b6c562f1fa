/*
 * program.h - what is computed: a list of records with global shapes and placements.
 *
 * A program is the same on every rank; lower.h gives one rank its views, cuts and moves. Everything that
 * a program consists of lives in its arena.
 */
#ifndef TESS_NN_PROGRAM_H
#define TESS_NN_PROGRAM_H

#include "core/base/arena.h"
#include "core/shard/dim.h"
#include "core/shard/place.h"

#include <tessera/device.h>
#include <tessera/style.h>

/* Records that no device runs; the others are a device's TESS_OP_... */
enum { TESS_REC_MOVE = 1000, TESS_REC_SPLIT, TESS_REC_SELECT_ROWS, TESS_REC_CALL };

struct tess_tensor { /* a value: who makes it, what its axes mean, where it lies */
	int32_t id, dtype, ndim;
	const struct tess_dim *dim[2]; /* [tokens], [tokens, features] */
	struct tess_place place;
	const char *module; /* that placed it so: a refusal names it */
	const struct tess_dim *sum; /* Partial: the dim that was contracted, cut over the ranks */
	struct tess_redistributed *redistributed; /* where it was brought already */
};

struct tess_redistributed {
	struct tess_redistributed *next;
	struct tess_tensor *to;
};

enum { TESS_ROLE_WHOLE, TESS_ROLE_OUT, TESS_ROLE_IN };

struct tess_weight { /* a parameter, as one op uses it */
	const char *name, *style; /* "model.norm.weight"; what the plan said */
	int32_t index; /* among the program's weights */
	int32_t dtype, ndim, out_dim, in_dim; /* axes as stored; -1: none */
	const struct tess_dim *dim[2];
	struct tess_param_place place;
	bool in_out; /* a linear weight stored [in, out]: seen as [out, in] */
	const struct tess_weight
		*table; /* a tied head: the table that it is a view of; else NULL */
};

struct tess_record {
	int32_t kind, nin, nout, nweight, nnum;
	const char *module;
	struct tess_tensor *const *in;
	struct tess_tensor *const *out;
	const struct tess_weight *const *weight;
	double num[6];
	const struct tess_call *call; /* TESS_REC_CALL: a plugin's own function */
	const struct tess_style *style; /* that made it */
	void *state;
};

struct tess_open_style {
	const struct tess_style *style;
	void *state;
};

struct tess_program {
	struct tess_arena arena;
	int32_t nranks;
	int64_t ntokens; /* rows of a step */
	bool all; /* logits of every row, not of the last one only */
	bool check; /* what each record makes is looked at when it runs */
	int32_t nrecords, nweights, nattention, ntensors, nopen_styles;
	struct tess_record **record;
	struct tess_weight *
		*weight; /* in the order of their first use, each name once; tied heads apart */
	struct tess_open_style *open_styles;
	struct tess_tensor *ids, *positions, *logits;
	uint64_t *hash; /* of records 0 .. i: what ranks compare */
};

/* Frees a program and closes the states of its styles. NULL: nothing. */
void tess_program_free(struct tess_program *p);

/* The name of a record's kind: "linear", "move". Never NULL. */
const char *tess_record_kind_name(int32_t kind);

/* What a move does: "slice", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "keep". */
const char *tess_move_name(struct tess_place from, struct tess_place to);

/* The most pieces that an axis of a weight is cut in: room for the runs of any of them. */
int64_t tess_program_max_pieces(const struct tess_program *p);

/* How a linear record uses a weight: TESS_ROLE_... */
int32_t tess_weight_role(const struct tess_weight *w);

#endif
