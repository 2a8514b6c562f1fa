/*
 * cpu_training.h - refusals and sums over tokens, for the tests of training ops on the CPU device.
 */
#ifndef TESS_TESTS_DEVICES_CPU_TRAINING_H
#define TESS_TESTS_DEVICES_CPU_TRAINING_H

#include "compare.h"

enum { TREES = 6, BOUNDS = 256 };

static inline int64_t draw_from(int64_t lo, int64_t hi)
{
	return lo + cpu_draw_random() % (hi - lo + 1);
}

/* ---- refusing */

/* Checks that an op is refused with `part` in the message. */
static inline void expect_refused_op(const struct tess_op *op, const char *part)
{
	ck_assert_int_eq(cpu_check_op(op), TESS_ENOTSUP);
	expect_part(cpu_sentence, part);
}

/*
 * Checks that each change to the operands and numbers of op is refused; shapes: also those of
 * shape[0].
 */
static inline void refuse_changes(const struct tess_op *op, bool shapes)
{
	struct tess_view in[8] = { 0 }, out[OUTS] = { 0 }, *views[2] = { in, out };
	struct tess_op o = *op;
	void *device = cpu_open_device("auto", 1);

	memcpy(in, op->in, sizeof *in * (size_t)op->nin);
	memcpy(out, op->out, sizeof *out * (size_t)op->nout);
	o.in = in;
	o.out = out;
	ck_assert_int_eq(cpu_check_op(&o), TESS_OK);
#define REFUSED(field, value) \
	do { \
		__typeof__(field) old = field; \
		field = value; \
		ck_assert_int_eq(cpu_check_op(&o), TESS_ENOTSUP); \
		expect_part(cpu_sentence, "layers.0.mlp: "); \
		field = old; \
	} while (0)
	REFUSED(o.nin, o.nin - 1);
	REFUSED(o.nout, o.nout + 1);
	if (o.nnum)
		REFUSED(o.nnum, o.nnum - 1);
	if (o.ntree)
		REFUSED(o.ntree, 0);
	for (int k = 0; k < 2; k++) {
		for (int32_t i = 0; i < (k ? o.nout : o.nin); i++) {
			struct tess_view *v = &views[k][i];

			if (!v->ndim)
				continue;
			REFUSED(v->dtype, v->dtype == TESS_I32 ? TESS_F32 : TESS_I32);
			if (shapes)
				REFUSED(v->shape[0], v->shape[0] + 1);
		}
	}
#undef REFUSED
	cpu_device->close(device);
}

/* Makes rows at a pitch, in memory of their own; a few are NaN, -0 or infinite if `special`. */
static inline struct tess_view make_test_rows(int64_t rows, int64_t columns, bool special)
{
	int64_t pitch = columns + draw_from(0, 5), n = rows * pitch + 1;
	float *x = cpu_make_floats(n);

	for (int64_t i = 0; special && i < 3; i++)
		x[draw_from(0, n - 1)] = (float[]){ NAN, -0.0f, INFINITY }[i];
	return cpu_make_rows(x, rows, columns, pitch);
}

static inline struct tess_view make_nodes(int64_t nodes, int64_t rows, int64_t columns)
{
	struct tess_view v = make_test_rows(nodes * (rows + 1), columns, false);

	v.ndim = 3;
	memcpy(v.shape, (int64_t[]){ nodes, rows, columns }, 3 * sizeof *v.shape);
	memcpy(v.stride, (int64_t[]){ (rows + 1) * v.stride[0], v.stride[0], 1 },
	       3 * sizeof *v.stride);
	return v;
}

/* ---- sums */

struct sums { /* trees of one term each, or of several terms */
	struct tess_tree tree[TREES + 1];
	struct tess_term term[4 * TREES];
	int64_t bound[4 * TREES][BOUNDS];
	double num[TESS_TOKENS_NUMS + 4];
	int32_t ntree, nterm;
	int64_t rows, nodes; /* rows: tokens; nodes: 0 if finished */
};

/* Appends a tree over [lo, hi) of n units, each of `unit` elements; the last one is shorter. */
static inline void append_tree(struct sums *s, int64_t n, int64_t lo, int64_t hi, int64_t from,
                               int64_t unit, int64_t end)
{
	int64_t *bound = s->bound[s->nterm];

	for (int64_t u = 0; u <= hi - lo; u++)
		bound[u] = from + u * unit < end ? from + u * unit : end;
	s->term[s->nterm] = (struct tess_term){ .bound = bound };
	s->tree[s->ntree++] = (struct tess_tree){ n, lo, hi, s->nterm++, 1 };
}

/*
 * Makes a sum over tokens: finished, a part of the sequences of a step, or ranges of each sequence.
 */
static inline void make_token_sums(struct sums *s, int how)
{
	int64_t sequences = how == 3 ? 0 : draw_from(1, TREES), unit = 32, n, lo, hi, length;

	memset(s, 0, sizeof *s);
	for (int64_t i = 0; i < sequences; i++) {
		length = draw_from(1, i ? 70 : 300);
		n = tess_up(length, unit);
		lo = how == 2 ? draw_from(0, n) : 0;
		hi = how == 2 ? draw_from(lo, n) : n;
		length = (hi * unit < length ? hi * unit : length) - lo * unit;
		length = length > 0 ? length : 0;
		append_tree(s, n, lo, hi, s->rows, unit, s->rows + length);
		s->nodes += how == 2 ? tess_node_count(n, lo, hi) : 0;
		s->rows += length;
	}
	if (how == 1) { /* of a step with more sequences */
		s->num[TESS_TOKENS_FIRST] = (double)draw_from(0, 3);
		s->num[TESS_TOKENS_SEQUENCES] =
			s->num[TESS_TOKENS_FIRST] + (double)(sequences + draw_from(0, 3));
		s->nodes = tess_node_count((int64_t)s->num[TESS_TOKENS_SEQUENCES],
		                           (int64_t)s->num[TESS_TOKENS_FIRST],
		                           (int64_t)s->num[TESS_TOKENS_FIRST] + sequences);
	} else if (how == 0) {
		s->num[TESS_TOKENS_SEQUENCES] = (double)sequences;
	}
}

static inline struct tess_view make_out(const struct sums *s, int64_t rows, int64_t columns)
{
	return s->nodes ? make_nodes(s->nodes, rows, columns)
	                : make_test_rows(rows, columns, false);
}

static inline struct tess_op make_summed_op(int32_t kind, const struct sums *s,
                                            const struct tess_view *in, int32_t nin,
                                            const struct tess_view *out, int32_t nnum)
{
	return cpu_make_sum_op(kind, in, nin, out, s->num, nnum, s->tree, s->ntree, s->term,
	                       s->nterm);
}

static inline void free_views(const struct tess_view *v, int n)
{
	for (int i = 0; i < n; i++)
		free(v[i].data);
}

#endif
