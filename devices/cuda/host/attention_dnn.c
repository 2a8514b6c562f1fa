/*
 * attention_dnn.c - attention over complete sequences through cuDNN, which reads bf16: sequences
 * are copied to padded ones of equal length. Padding rows are 0 and follow the sequence, so no row
 * of the sequence attends to them; their gradients are 0.
 */
#include "gpu.h"

#include <string.h>

enum { LENGTH_UNIT = 64, HEAD_UNIT = 8, HEAD_LIMIT = 128, PADDING_MAX = 4 };
#ifndef PART_BYTES /* scratch memory, exceeded by a single head only; smaller in tests */
#define PART_BYTES (256 << 20)
#endif

struct slice { /* sequences and heads of one of several equal calls of cuDNN */
	struct dnn_shape forward, backward;
	void *operand[DNN_POINTERS], *workspace;
};

static bool is_for_dnn(struct gpu *g, const struct tess_op *op, const struct text_args *a)
{
	int64_t longest = (int64_t)op->num[TESS_ATTENTION_KEYS];
	int64_t texts = (int64_t)op->num[TESS_ATTENTION_VALUES];

	if (g->math != MATH_AUTO || op->num[TESS_ATTENTION_DTYPE] != TESS_BF16 || a->latent ||
	    a->d != a->dv || a->d % HEAD_UNIT || a->d > HEAD_LIMIT || a->drop.below || a->chunked ||
	    a->sinks.data || !longest || longest * texts > PADDING_MAX * a->rows ||
	    (g->capturing && !g->dnn))
		return false;
	return dnn_is_usable(g);
}

/* Counts the bytes of scratch memory of a head of a sequence; the backward keeps pairs, twice. */
static int64_t count_head_bytes(const struct dnn_shape *s, bool backward)
{
	int64_t rows = s->length * s->d * 2, sums = s->length * (int64_t)sizeof(float);

	return backward ? 8 * rows + 2 * sums + 2 * s->length * s->length : 4 * rows + sums;
}

/* Chooses equal slices that fit: sequences with all heads, or heads of one sequence. */
static struct slice cut_slice(const struct tess_op *op, const struct text_args *a)
{
	struct slice c;
	struct dnn_shape *s = &c.forward;
	int64_t texts = (int64_t)op->num[TESS_ATTENTION_VALUES], each, fit;

	memset(&c, 0, sizeof c);
	s->length = tess_up((int64_t)op->num[TESS_ATTENTION_KEYS], LENGTH_UNIT) * LENGTH_UNIT;
	s->d = a->d;
	s->scale = a->scale;
	s->softcap = a->softcap;
	s->window = (float)a->window;
	each = count_head_bytes(s, a->g != NULL);
	fit = PART_BYTES / (each * a->heads);
	s->texts = fit > 1 ? tess_up(texts, tess_up(texts, fit)) : 1;
	s->heads = a->heads;
	while (s->heads > 1 && (s->texts * s->heads * each > PART_BYTES || a->heads % s->heads))
		s->heads--;
	c.backward = c.forward;
	c.backward.backward = 1;
	return c;
}

static tess_status lay_out_slice(struct gpu *g, const struct tess_op *op, struct slice *c,
                                 bool backward)
{
	const struct dnn_shape *s = &c->forward;
	int64_t sums = s->texts * s->heads * s->length, first = 0, second = 0;
	tess_status st = dnn_plan(g, op, s, &first);
	struct carving at = { 0 };
	void *base = NULL;

	if (!st && backward)
		st = dnn_plan(g, op, &c->backward, &second);
	for (int pass = 0; pass < 2 && !st; pass++) {
		for (int i = 0; i < (backward ? DNN_POINTERS : DNN_G); i++)
			c->operand[i] = experts_take_scratch(
				&at, i == DNN_STATS || i == DNN_SUM ? sums * 4 : sums * s->d * 2);
		c->workspace = experts_take_scratch(&at, first > second ? first : second);
		if (!pass)
			st = memory_get_scratch(g, (uint64_t)at.used, &base);
		at = (struct carving){ .base = base };
	}
	return st;
}

/* Copies parts of all rows. */
static tess_status move_rows(struct gpu *g, const struct tess_op *op, const struct slice *c,
                             int32_t kernel, struct padded_args *p, int32_t parts)
{
	return op_launch(
		g, op,
		(struct launch){ .kernel = kernel,
	                         .blocks = { c->forward.texts * c->forward.length, parts, 1 },
	                         .threads = MAP_THREADS,
	                         .args = p });
}

static tess_status attend_slice(struct gpu *g, const struct tess_op *op, const struct text_args *a,
                                const struct slice *c, struct padded_args *p)
{
	void *const *at = c->operand;
	struct padded_args in = *p, out = *p;
	tess_status st;

	in.part[0] = (struct padded){ (float *)(uintptr_t)a->q, at[DNN_Q], a->q_pitch, 0 };
	in.part[1] = (struct padded){ (float *)(uintptr_t)a->k, at[DNN_K], a->k_pitch, 1 };
	in.part[2] = (struct padded){ (float *)(uintptr_t)a->v, at[DNN_V], a->v_pitch, 1 };
	in.part[3] = (struct padded){ (float *)(uintptr_t)a->g, at[DNN_G], a->g_pitch, 0 };
	out.part[0] = (struct padded){ a->out, at[DNN_O], a->out_pitch, 0 };
	if (a->g) {
		out.part[0] = (struct padded){ a->dq, at[DNN_DQ], a->dq_pitch, 0 };
		out.part[1] = (struct padded){ a->dk, at[DNN_DK], a->dk_pitch, 0 };
		out.part[2] = (struct padded){ a->dv_out, at[DNN_DV], a->dv_pitch, 0 };
	}
	st = move_rows(g, op, c, KERNEL_round_texts, &in, a->g ? 4 : 3);
	if (!st)
		st = dnn_attend(g, op, &c->forward, at, c->workspace);
	if (!st && a->g)
		st = dnn_attend(g, op, &c->backward, at, c->workspace);
	return st ? st : move_rows(g, op, c, KERNEL_widen_texts, &out, a->g ? 3 : 1);
}

tess_status op_run_texts_by_dnn(struct gpu *g, const struct tess_op *op, const struct text_args *a)
{
	int64_t texts = (int64_t)op->num[TESS_ATTENTION_VALUES];
	struct padded_args p = { .position = a->position,
		                 .slot = a->slot,
		                 .fault = a->fault,
		                 .rows = a->rows,
		                 .longest = (int64_t)op->num[TESS_ATTENTION_KEYS],
		                 .d = a->d,
		                 .group = a->group,
		                 .first_head = a->first_head };
	struct slice c;
	tess_status st;

	if (!is_for_dnn(g, op, a))
		return TESS_ENOTSUP;
	c = cut_slice(op, a);
	st = lay_out_slice(g, op, &c, a->g != NULL);
	p.length = c.forward.length;
	p.heads = (int32_t)c.forward.heads;
	for (; p.first_text < texts && !st; p.first_text += c.forward.texts)
		for (p.shift = 0; p.shift < a->heads && !st; p.shift += p.heads)
			st = attend_slice(g, op, a, &c, &p);
	return st;
}
