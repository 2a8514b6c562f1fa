/*
 * cpu_attention_d.c - ATTENTION without pages, ATTENTION_D and DROPOUT on the CPU device, against
 * their definitions.
 */
#include "tests/reference/scalar.h"
#include "tests/support/cpu.h"

struct texts {
	int64_t heads, lo, group, d, value, window; /* window < 0: chunks */
	double softcap;
	bool latent; /* a value is the beginning of its key */
	int64_t length[4]; /* of the sequences; ends with 0 */
	double rate; /* the dropout rate */
};

enum { PAD = 3, OUTS = 5 }; /* floats behind each row; attention's out, dq, dk, dv, dsinks */

struct operands {
	struct tess_view in[8], out[OUTS];
	int32_t sinks; /* type of the sinks; 0: none */
	int64_t floats[OUTS];
	double num[TESS_ATTENTION_NUMS];
	struct tess_view g;
};

static struct tess_view make_padded_rows(int64_t rows, int64_t columns)
{
	return cpu_make_rows(cpu_make_floats(rows * (columns + PAD)), rows, columns, columns + PAD);
}

static int32_t step_words[4] = { 0x12345678, -5, 3 };

static struct operands make_operands(const struct texts *x, int32_t sinks)
{
	int64_t kv = (x->lo + x->heads - 1) / x->group - x->lo / x->group + 1, n = 0, t = 0;
	int32_t *position, *slot;
	struct operands o = { .sinks = sinks };

	for (int i = 0; x->length[i]; i++)
		n += x->length[i];
	position = malloc(sizeof *position * (size_t)n);
	slot = malloc(sizeof *slot * (size_t)n);
	for (int i = 0; x->length[i]; i++)
		for (int32_t p = 0; p < x->length[i]; p++, t++) {
			position[t] = p;
			slot[t] = 7 - i;
		}
	o.in[0] = make_padded_rows(n, x->heads * x->d);
	for (int64_t i = 0; i < n * o.in[0].stride[0]; i++)
		((float *)o.in[0].data)[i] *= 8;
	o.in[1] = make_padded_rows(n, kv * x->d);
	if (!x->latent)
		o.in[2] = make_padded_rows(n, kv * x->value);
	o.in[3] = cpu_make_list(position, TESS_I32, n);
	o.in[4] = cpu_make_list(slot, TESS_I32, n);
	o.g = make_padded_rows(n, x->heads * x->value);
	for (int i = 0; i < OUTS; i++) {
		o.out[i] = make_padded_rows(n, x->heads * (i == 4 ? 1 : i % 3 ? x->d : x->value));
		o.floats[i] = n * o.out[i].stride[0];
	}
	o.num[TESS_ATTENTION_SCALE] = 1 / sqrt((double)x->d);
	o.num[TESS_ATTENTION_WINDOW] = (double)llabs(x->window);
	o.num[TESS_ATTENTION_CHUNKED] = x->window < 0;
	o.num[TESS_ATTENTION_HEAD] = (double)x->d;
	o.num[TESS_ATTENTION_FIRST] = (double)x->lo;
	o.num[TESS_ATTENTION_GROUP] = (double)x->group;
	o.num[TESS_ATTENTION_SOFTCAP] = x->softcap;
	o.num[TESS_ATTENTION_VALUE] = (double)x->value;
	o.num[TESS_ATTENTION_RATE] = x->rate;
	o.num[TESS_ATTENTION_SITE] = 77;
	o.in[6] = cpu_make_list(step_words, TESS_I32, 4);
	if (sinks)
		o.in[7] = cpu_make_sinks(sinks, x->heads);
	return o;
}

static void free_operands(struct operands *o)
{
	for (int i = 0; i < 6; i++)
		free(o->in[i].data);
	free(o->in[7].data);
	for (int i = 0; i < OUTS; i++)
		free(o->out[i].data);
	free(o->g.data);
}

/* Runs forward, then backward, on a device or, if it is NULL, by the definitions. */
static void run_both(void *device, const struct texts *x, struct operands *o)
{
	struct tess_op op = cpu_make_op(TESS_OP_ATTENTION, o->in,
	                                o->sinks      ? 8
	                                : x->rate > 0 ? 7
	                                              : 6,
	                                o->out, o->num, TESS_ATTENTION_NUMS);
	struct tess_view in[8], out[4];

	o->in[6].ndim = x->rate > 0;
	memcpy(in, o->in, sizeof in);
	memcpy(out, o->out + 1, sizeof out);
	in[5] = o->g;
	if (x->latent)
		out[2] = (struct tess_view){ 0 };
	if (device)
		cpu_run_op(device, &op);
	else
		scalar_run(&op);
	op.kind = TESS_OP_ATTENTION_D;
	op.in = in;
	op.out = out;
	op.nout = o->sinks ? 4 : 3;
	if (device)
		cpu_run_op(device, &op);
	else
		scalar_run(&op);
}

static void compare_texts(const struct texts *x, int32_t sinks)
{
	static const char *const names[OUTS] = { "out", "dq", "dk", "dv", "dsinks" };
	struct operands o = make_operands(x, sinks);
	struct cpu_devices d = { 0 };
	float *got[OUTS], *want[OUTS];
	char what[128];

	for (int i = 0; i < OUTS; i++) {
		want[i] = o.out[i].data;
		got[i] = malloc(sizeof(float) * (size_t)o.floats[i]);
	}
	/* gaps between rows stay unchanged */
	for (int i = 0; i < OUTS; i++)
		memcpy(got[i], want[i], sizeof(float) * (size_t)o.floats[i]);
	run_both(NULL, x, &o);
	for (int i = 0; i < OUTS; i++)
		o.out[i].data = got[i];
	while (cpu_open_next(&d)) {
		run_both(d.now, x, &o);
		for (int i = 0; i < OUTS; i++) {
			snprintf(what, sizeof what, "%s, %s, %d threads, %lld heads of %lld",
			         names[i], d.variant->isa, (int)d.variant->nthreads,
			         (long long)x->heads, (long long)x->d);
			cpu_expect_equal(what, got[i], want[i], o.floats[i]);
			for (int64_t t = 0; t < o.out[i].shape[0]; t++)
				memset(got[i] + t * o.out[i].stride[0], 0x55,
				       sizeof(float) *
				               (size_t)((i == 3 && x->latent) || (i == 4 && !sinks)
				                                ? 0
				                                : o.out[i].shape[1]));
		}
	}
	for (int i = 0; i < OUTS; i++)
		free(want[i]);
	free_operands(&o);
}

START_TEST(texts_of_many_shapes)
{
	static const struct texts all[] = {
		{ 2, 0, 1, 16, 16, 0, 0, false, { 300, 1, 33 }, 0 },
		{ 3, 3, 4, 24, 24, 0, 0, false, { 70, 129 }, 0 }, /* heads of two groups */
		{ 4, 0, 2, 64, 64, 0, 1.3, false, { 64, 65, 32 }, 0 },
		{ 3, 0, 3, 80, 17, 0, 0, false, { 95 }, 0 },
		{ 2, 1, 2, 12, 40, 65, 0, false, { 200, 66 }, 0 },
		{ 1, 0, 1, 8, 8, 1, 0, false, { 130 }, 0 },
		{ 2, 0, 2, 16, 16, 3, 2.1, false, { 7, 160 }, 0 },
		{ 1, 0, 1, 20, 20, 130, 0, false, { 400 }, 0 },
		{ 5, 0, 5, 28, 20, 0, 0, true, { 100, 40 }, 0 },
		{ 2, 0, 2, 40, 40, 33, 1.7, true, { 131 }, 0 },
		{ 1, 0, 1, 4, 4, 64, 0, false, { 700 }, 0 },
		{ 3, 2, 2, 16, 24, 0, 1.3, false, { 130, 3, 41 }, 0.1 },
		{ 2, 0, 2, 20, 12, 33, 0, true, { 100 }, 0.5 },
		{ 2, 0, 1, 16, 16, -1, 0, false, { 80 }, 0 },
		{ 2, 1, 2, 12, 40, -65, 1.3, false, { 200, 66 }, 0 },
		{ 3, 0, 3, 20, 12, -70, 0, true, { 300, 7 }, 0.1 },
	};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int k = 0; k < 2; k++)
			compare_texts(&all[i], k ? cpu_choose_dtype((int)i) : 0);
}
END_TEST

/*
 * Checks that the dropped elements of a row do not depend on ranks or on in-place outputs, and
 * counts them.
 */
START_TEST(dropout_knows_no_ranks)
{
	enum { N = 533, T = 40 };
	static const int64_t cuts[] = { 0, 1, 2, 130, 266, 400, N };
	int32_t position[T], slot[T];
	struct tess_view x = make_padded_rows(T, N), want = make_padded_rows(T, N), in[4], out;
	double num[TESS_DROPOUT_NUMS] = { 0.25, 9, 0 };
	struct tess_op op = cpu_make_op(TESS_OP_DROPOUT, in, 4, &out, num, TESS_DROPOUT_NUMS);
	struct cpu_devices d = { 0 };
	int64_t dropped = 0;

	for (int32_t i = 0; i < T; i++) {
		position[i] = i % 25;
		slot[i] = i / 25;
	}
	in[0] = x;
	in[1] = cpu_make_list(position, TESS_I32, T);
	in[2] = cpu_make_list(slot, TESS_I32, T);
	in[3] = cpu_make_list(step_words, TESS_I32, 4);
	out = want;
	scalar_run(&op);
	for (int64_t i = 0; i < T * N; i++)
		dropped += ((float *)want.data)[i / N * want.stride[0] + i % N] == 0;
	ck_assert_msg(labs(dropped - T * N / 4) < 400, "%lld dropped", (long long)dropped);
	while (cpu_open_next(&d)) {
		struct tess_view got = make_padded_rows(T, N);

		memcpy(got.data, x.data, sizeof(float) * (size_t)(T * x.stride[0]));
		for (size_t i = 0; cuts[i] < N; i++) {
			in[0] = got;
			in[0].data = (float *)got.data + cuts[i];
			in[0].shape[1] = cuts[i + 1] - cuts[i];
			out = in[0];
			num[TESS_DROPOUT_FIRST] = (double)cuts[i];
			cpu_run_op(d.now, &op);
		}
		for (int64_t t = 0; t < T; t++)
			cpu_expect_equal(d.variant->isa, (float *)got.data + t * got.stride[0],
			                 (float *)want.data + t * want.stride[0], N);
		free(got.data);
	}
	free(x.data);
	free(want.data);
}
END_TEST

/* Checks that a change of operand, output (from 6 on) or number (from 9 on) `at` is refused. */
static void expect_changed_refused(int at)
{
	const struct texts x = { 2, 0, 1, 16, 12, 0, 0, false, { 5 }, 0 };
	struct operands o = make_operands(&x, 0);
	struct tess_op op =
		cpu_make_op(TESS_OP_ATTENTION_D, o.in, 6, o.out + 1, o.num, TESS_ATTENTION_NUMS);

	op.nout = 3;
	o.in[5] = o.g;
	ck_assert_int_eq(cpu_check_op(&op), TESS_OK);
	if (at < 6)
		o.in[at].shape[at < 3 || at == 5]--;
	else if (at < 9)
		o.out[1 + at - 6].shape[1]--;
	else
		o.num[at - 9] = -1;
	ck_assert_msg(cpu_check_op(&op) == TESS_ENOTSUP, "operand, out or number %d", at);
	o.in[5].data = NULL;
	free_operands(&o);
}

START_TEST(refuses_other_operands)
{
	static const int number[] = { TESS_ATTENTION_RATE,  TESS_ATTENTION_WINDOW,
		                      TESS_ATTENTION_HEAD,  TESS_ATTENTION_FIRST,
		                      TESS_ATTENTION_GROUP, TESS_ATTENTION_SOFTCAP,
		                      TESS_ATTENTION_VALUE, TESS_ATTENTION_CHUNKED };
	void *device = cpu_open_device("auto", 1);

	for (int i = 0; i < 9; i++)
		expect_changed_refused(i);
	for (size_t i = 0; i < sizeof number / sizeof *number; i++)
		expect_changed_refused(9 + number[i]);
	cpu_device->close(device);
}
END_TEST

SUITE_MAIN("cpu_attention_d", texts_of_many_shapes, dropout_knows_no_ranks, refuses_other_operands)
