/* compare.h - runs an op on every CPU device, and compares it bit for bit with its definition. */
#ifndef TESS_TESTS_DEVICES_COMPARE_H
#define TESS_TESTS_DEVICES_COMPARE_H

#include "tests/reference/scalar.h"
#include "tests/support/cpu.h"

enum { OUTS = 4 };

/* Points outputs, and operands in their memory, to copies; returns the copies. */
static inline void copy_outs(struct tess_op *op, struct tess_view *in, struct tess_view *out,
                             const struct tess_op *from)
{
	memcpy(in, from->in, sizeof *in * (size_t)from->nin);
	memcpy(out, from->out, sizeof *out * (size_t)from->nout);
	for (int32_t i = 0; i < from->nout; i++) {
		size_t bytes = (size_t)(cpu_count_elements(&out[i]) * cpu_get_width(out[i].dtype));

		if (!out[i].ndim)
			continue;
		out[i].data = memcpy(malloc(bytes + 1), out[i].data, bytes);
		for (int32_t j = 0; j < from->nin; j++)
			if (in[j].data == from->out[i].data)
				in[j].data = out[i].data;
	}
	*op = *from;
	op->in = in;
	op->out = out;
}

static inline void expect_outs(const char *isa, const struct tess_op *got,
                               const struct tess_op *want)
{
	for (int32_t i = 0; i < got->nout; i++) {
		int64_t n = cpu_count_elements(&got->out[i]);

		if (got->out[i].dtype == TESS_F32)
			cpu_expect_equal(isa, got->out[i].data, want->out[i].data, n);
		else if (n)
			MUST(!memcmp(got->out[i].data, want->out[i].data, (size_t)n * 2));
	}
}

static inline void free_outs(const struct tess_op *op)
{
	for (int32_t i = 0; i < op->nout; i++)
		if (op->out[i].ndim)
			free(op->out[i].data);
}

/* Returns the first operand that is a weight, which may be in panels; -1: no weights. */
static inline int32_t find_weight_operand(const struct tess_op *op)
{
	int32_t at;

	switch (op->kind) {
	case TESS_OP_LINEAR:
	case TESS_OP_HEAD_LINEAR:
	case TESS_OP_EMBED:
		at = 1;
		break;
	case TESS_OP_EXPERTS:
		at = 2;
		break;
	default:
		return -1;
	}
	/* products of bf16 round weights in rows only */
	return scalar_has_bf16_products(op) && op->in[at].dtype != TESS_BF16 ? -1 : at;
}

/*
 * Compares an op with its definition. Gaps between rows of an output must stay: the copies are
 * compared from end to end. An op with weights runs twice on each device: with rows and with
 * panels.
 */
static inline void compare_op(const struct tess_op *op)
{
	struct tess_view in[2][8], out[2][OUTS];
	int32_t weight = find_weight_operand(op);
	int32_t end = op->kind == TESS_OP_EXPERTS ? 4 : op->nin; /* biases are in rows */
	struct tess_op want, got;
	struct cpu_devices d = { 0 };
	char what[128];

	copy_outs(&want, in[0], out[0], op);
	scalar_run(&want);
	for (int run = 0; run % 2 || cpu_open_next(&d); run += weight < 0 ? 2 : 1) {
		copy_outs(&got, in[1], out[1], op);
		for (int32_t i = weight; i < end && run % 2; i++)
			in[1][i] = in[1][i].ndim == 3 ? cpu_pack_matrices(d.now, &in[1][i])
			                              : cpu_pack_weight(d.now, &in[1][i]);
		cpu_run_op(d.now, &got);
		snprintf(what, sizeof what, "%s %s, %d threads, %lld rows, %d nodes",
		         d.variant->isa, run % 2 ? "panels" : "rows", (int)d.variant->nthreads,
		         (long long)op->in[0].shape[0],
		         op->out[0].ndim == 3 ? (int)op->out[0].shape[0] : 0);
		expect_outs(what, &got, &want);
		for (int32_t i = weight; i < end && run % 2; i++)
			free(in[1][i].data);
		free_outs(&got);
	}
	free_outs(&want);
}

#endif
