/*
 * cpu_device.c - the cpu device: opening, allocation and refusals, the floating-point state in
 * which it computes, and its threads.
 */
#include "tests/support/cpu.h"

#include <fenv.h>

START_TEST(opens)
{
	void *device = NULL, *p = NULL;

	cpu_isa = "auto";
	device = cpu_open_device("auto", 1);
	ck_assert_ptr_nonnull(device);
	ck_assert_int_eq(cpu_device->count(), 1);
	for (uint64_t bytes = 0; bytes < 200; bytes += 33) {
		ck_assert_int_eq(cpu_device->alloc(device, bytes, &p), TESS_OK);
		ck_assert_uint_eq((uintptr_t)p % 64, 0);
		memset(p, 1, bytes);
		cpu_device->free(device, p);
	}
	ck_assert_int_eq(cpu_device->alloc(device, UINT64_MAX, &p), TESS_ENOMEM);
	cpu_device->free(device, NULL);
	cpu_device->close(device);
	cpu_device->close(NULL);
	ck_assert_ptr_null(cpu_open_device("sse9", 1));
	expect_part(cpu_sentence, "TESSERA_CPU=sse9");
	ck_assert_ptr_null(cpu_open_device("auto", 0));
	ck_assert_int_eq(cpu_device->open(1, 1, &device), TESS_EINVAL);
}
END_TEST

/* Checks that a refusal names the module. */
START_TEST(refuses)
{
	int64_t bound[] = { 0, 4, 8 }, falls[] = { 0, 9, 8 }, beyond[] = { 0, 4, 9 };
	struct tess_term term = { .bound = bound };
	struct tess_tree tree = { .n = 2, .hi = 2, .terms = 1 };
	float memory[64] = { 0 };
	struct tess_view in[2] = { cpu_make_rows(memory, 2, 8, 8), cpu_make_rows(memory, 3, 8, 8) },
			 out = cpu_make_rows(memory, 2, 3, 3);
	struct tess_op op,
		good = cpu_make_sum_op(TESS_OP_LINEAR, in, 2, &out, NULL, 0, &tree, 1, &term, 1);
	void *device = cpu_open_device("auto", 1);

#define REFUSED(change) \
	do { \
		struct tess_view in_was[2] = { in[0], in[1] }, out_was = out; \
		struct tess_tree tree_was = tree; \
		op = good; \
		cpu_sentence[0] = 0; \
		change; \
		ck_assert_msg(cpu_check_op(&op) < 0, "%s", #change); \
		ck_assert_msg(strstr(cpu_sentence, "layers.0.mlp") == cpu_sentence, "%s: %s", \
		              #change, cpu_sentence); \
		in[0] = in_was[0], in[1] = in_was[1], out = out_was, tree = tree_was; \
		term.bound = bound; \
	} while (0)

	ck_assert_int_eq(cpu_check_op(&good), TESS_OK);
	REFUSED(op.kind = TESS_OP_LINEAR_DX);
	REFUSED(op.kind = 12345);
	REFUSED(op.nin = 1);
	REFUSED(op.ntree = 0);
	REFUSED(in[0].dtype = TESS_BF16);
	REFUSED(in[0].stride[0] = 7);
	REFUSED(in[0].stride[1] = 2);
	REFUSED(in[1].shape[1] = 7);
	REFUSED(in[1].dtype = TESS_I8);
	REFUSED((in[1].layout = TESS_PANELS, in[1].stride[0] = 8));
	REFUSED(out.shape[1] = 4);
	REFUSED(out.dtype = TESS_F64);
	REFUSED(tree.hi = 1);
	REFUSED(tree.n = -1);
	REFUSED(tree.first = 1);
	REFUSED(tree.terms = 0);
	REFUSED(term.bound = falls);
	REFUSED(term.bound = beyond);
	REFUSED(op.kind = TESS_OP_NORM);
	REFUSED(op.kind = TESS_OP_EMBED);
	REFUSED(op.kind = TESS_OP_ROPE);
	REFUSED(op.kind = TESS_OP_ATTENTION);
	REFUSED(op.kind = TESS_OP_GLU);
	REFUSED(op.kind = TESS_OP_BIAS);
	REFUSED(op.kind = TESS_OP_ADD);
	REFUSED(op.kind = TESS_OP_SCALE);
	REFUSED(op.kind = TESS_OP_COPY);
	REFUSED(op.kind = TESS_OP_SELECT_ROWS);
	cpu_device->close(device);
}
END_TEST

/*
 * Checks that a device's table determines panels and nodes, and that a device itself refuses kinds.
 */
START_TEST(devices_differ)
{
	const struct tess_device inexact = { .size = sizeof inexact, .layout = TESS_ROWS };
	int64_t bound[] = { 0, 4, 8 };
	struct tess_term term = { .bound = bound };
	struct tess_tree tree = { .n = 4, .lo = 1, .hi = 3, .terms = 1 };
	float memory[64] = { 0 };
	struct tess_view in[2] = { cpu_make_rows(memory, 2, 8, 8), cpu_make_rows(memory, 3, 8, 8) },
			 out = cpu_make_partial(memory, 2, 2, 3, 3), sampled[2];
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_LINEAR, in, 2, &out, NULL, 0, &tree, 1, &term, 1);
	void *device = cpu_open_device("auto", 1);

	ck_assert_int_eq(cpu_check_op(&op), TESS_OK);
	ck_assert_int_eq(tess_op_check(&op, &inexact), TESS_ENOTSUP);
	expect_part(tess_error(), "layers.0.mlp: linear: an out must be");
	out.shape[0] = 1;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	ck_assert_int_eq(tess_op_check(&op, &inexact), TESS_OK);

	op = cpu_make_op(TESS_OP_SAMPLE, in, 2, sampled, NULL, 0);
	op.nout = 2;
	in[1] = cpu_make_view(memory, TESS_F64, 2, TESS_SAMPLE_NUMS, TESS_SAMPLE_NUMS, 1);
	sampled[0] = cpu_make_view(memory, TESS_I32, 2, TESS_SAMPLE_OUTS, TESS_SAMPLE_OUTS, 1);
	sampled[1] = cpu_make_view(memory, TESS_I32, 1, 1, 1, 1);
	ck_assert_int_eq(tess_op_check(&op, cpu_device), TESS_OK);
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	expect_part(cpu_sentence, "are not supported; use another device");
	cpu_device->close(device);
}
END_TEST

/*
 * Checks that a caller that flushes small numbers to zero and rounds down gets the usual bits, and
 * its own settings back.
 */
START_TEST(rounds_to_nearest)
{
	enum { ROWS = 64, COLUMNS = 4096, ALL = ROWS * COLUMNS, ROUNDS = 50 };
	float *x = cpu_make_floats(ALL), *y = cpu_make_floats(ALL),
	      *want = calloc(ALL, sizeof *want);
	struct tess_view in[2] = { cpu_make_rows(x, ROWS, COLUMNS, COLUMNS),
		                   cpu_make_rows(y, ROWS, COLUMNS, COLUMNS) };
	struct tess_op op = cpu_make_op(TESS_OP_ADD, in, 2, &in[1], NULL, 0);
	struct cpu_devices d = { 0 };

	for (int i = 0; i < ALL; i += 2)
		x[i] = 1e-41f * (float)(i % 99);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < ALL; i++)
			want[i] = x[i] + want[i];
	fesetround(FE_DOWNWARD);
	while (cpu_open_next(&d)) {
		memset(y, 0, sizeof *y * ALL);
		for (int round = 0; round < ROUNDS; round++) {
#if defined(__x86_64__)
			uint32_t csr = __builtin_ia32_stmxcsr(), now;

			__builtin_ia32_ldmxcsr(csr | 0x8040);
			cpu_run_op(d.now, &op);
			now = __builtin_ia32_stmxcsr();
			__builtin_ia32_ldmxcsr(csr);
			MUST((now & 0xe040) == ((csr | 0x8040) & 0xe040));
#else
			cpu_run_op(d.now, &op);
#endif
			MUST(fegetround() == FE_DOWNWARD);
		}
		cpu_expect_equal(d.variant->isa, y, want, ALL);
	}
	fesetround(FE_TONEAREST);
	free(x);
	free(y);
	free(want);
}
END_TEST

/*
 * Runs many small ops on more threads than cores: every share runs once, and the pool always stops.
 */
START_TEST(shares_work)
{
	enum { ROWS = 64, COLUMNS = 4096 };
	float *x = cpu_make_floats(ROWS * COLUMNS), *y = calloc(ROWS * COLUMNS, sizeof *y);
	struct tess_view in[2] = { cpu_make_rows(x, ROWS, COLUMNS, COLUMNS),
		                   cpu_make_rows(y, ROWS, COLUMNS, COLUMNS) };
	struct tess_op op = cpu_make_op(TESS_OP_ADD, in, 2, &in[1], NULL, 0);

	for (int threads = 1; threads <= 7; threads++) {
		void *device = cpu_open_device("auto", threads);

		memset(y, 0, sizeof *y * ROWS * COLUMNS);
		for (int round = 0; round < 50; round++)
			cpu_run_op(device, &op);
		for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
			float sum = 0.0f;

			for (int round = 0; round < 50; round++)
				sum = x[i] + sum;
			MUST(cpu_is_same(y[i], sum));
		}
		cpu_device->close(device);
	}
	free(x);
	free(y);
}
END_TEST

SUITE_MAIN("cpu_device", opens, refuses, devices_differ, rounds_to_nearest, shares_work)
