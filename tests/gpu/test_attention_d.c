/*
 * test_attention_d PLUGIN - compares ATTENTION without pages and ATTENTION_D of the CUDA device
 * with the CPU: equal pairs, equal dropout, and sums within a bound.
 */
#include "device.h"

struct texts {
	int64_t heads, lo, group, d, value, window; /* window < 0: chunks */
	double softcap;
	bool latent; /* a value is the start of its key */
	int64_t length[4]; /* lengths of the sequences; ends with 0 */
	double rate; /* dropout rate */
	bool bf16; /* by cuDNN: the op has the lengths, and operands are bf16 values */
	bool sinks; /* of heads; never by cuDNN */
};

enum { PAD = 3 }; /* floats after each row */
enum { STEP = THIN > 1 ? 2 : 1 }; /* from a case to the next */

static struct tess_view make_rows_at_pitch(int64_t rows, int64_t columns, bool fill)
{
	int64_t pitch = columns + (columns % 4 ? PAD : 4);

	return cpu_make_rows(make_buffer(rows * pitch, fill), rows, columns, pitch);
}

/* Makes operands that rounding to bf16 does not change. */
static void round_buffers(void)
{
	for (int i = 0; i < nbuffers; i++) {
		float *f = (float *)(void *)buffers[i].host;

		for (uint64_t k = 0; k < buffers[i].bytes / 4; k++)
			if (isfinite(f[k]))
				f[k] = tess_bf16_load(tess_bf16_round(f[k]));
	}
}

/*
 * Returns the bound. Weights, outputs and intermediates are rounded to 8 bits: a few 2^-9 of the
 * largest.
 */
static float get_bound(const struct texts *x)
{
	return x->bf16 && !x->sinks ? 0x1p-6f : 4e-6f;
}

/* Returns whether cuDNN computed the outputs: all their elements are bf16 values. */
static bool are_rounded(const struct tess_op *op)
{
	for (int32_t i = 0; i < op->nout; i++) {
		const struct tess_view *v = &op->out[i];

		for (int64_t k = 0; v->ndim && k < v->shape[0] * v->shape[1]; k++)
			if (tess_bits(((float *)v->data)[locate_element(v, k)]) & 0xffff)
				return false;
	}
	return true;
}

/* Compares sequences. On a GPU cuDNN may be missing, or have no plan. */
static void expect_close_texts(const char *what, const struct texts *x, const struct tess_op *op)
{
	bool emulated = strstr(gpu_file, "emulated") != NULL;
	const char *missing = getenv("FAKE_CUDA_FAILS");

	expect_near(what, op, get_bound(x));
	if (emulated && x->length[0])
		ck_assert_int_eq(are_rounded(op), x->bf16 && !x->sinks && !missing);
}

static void test_texts(const struct texts *x)
{
	int64_t kv = (x->lo + x->heads - 1) / x->group - x->lo / x->group + 1, n = 0, t = 0,
		longest = 0, texts = 0;
	struct tess_view in[8] = { 0 }, out[4];
	double num[TESS_ATTENTION_NUMS] = { 1 / sqrt((double)x->d),
		                            (double)llabs(x->window),
		                            (double)x->d,
		                            (double)x->lo,
		                            (double)x->group,
		                            0,
		                            0,
		                            0,
		                            x->softcap,
		                            (double)x->value,
		                            x->rate,
		                            77,
		                            x->window < 0 };
	struct tess_op op = cpu_make_op(TESS_OP_ATTENTION, in,
	                                x->sinks      ? 8
	                                : x->rate > 0 ? 7
	                                              : 6,
	                                out, num, TESS_ATTENTION_NUMS);
	int32_t *position, *slot, *step = malloc(16);

	for (int i = 0; x->length[i]; i++, texts++) {
		n += x->length[i];
		longest = x->length[i] > longest ? x->length[i] : longest;
	}
	if (x->bf16) {
		num[TESS_ATTENTION_KEYS] = (double)longest;
		num[TESS_ATTENTION_VALUES] = (double)texts;
		num[TESS_ATTENTION_DTYPE] = TESS_BF16;
	}
	position = calloc((size_t)n + 1, sizeof *position);
	slot = calloc((size_t)n + 1, sizeof *slot);
	for (int i = 0; x->length[i]; i++)
		for (int32_t p = 0; p < x->length[i]; p++, t++) {
			position[t] = p;
			slot[t] = x->bf16 ? i : 7 - i;
		}
	memcpy(step, (int32_t[]){ 0x12345678, -5, 3, 0 }, 16);
	in[0] = make_rows_at_pitch(n, x->heads * x->d, true);
	for (int64_t i = 0; i < n * in[0].stride[0]; i++)
		((float *)in[0].data)[i] *= x->bf16 ? 2 : 8;
	in[1] = make_rows_at_pitch(n, kv * x->d, true);
	if (!x->latent)
		in[2] = make_rows_at_pitch(n, kv * x->value, true);
	if (x->bf16)
		round_buffers();
	in[3] = cpu_make_list(add_buffer(position, 4 * (uint64_t)n + 4), TESS_I32, n);
	in[4] = cpu_make_list(add_buffer(slot, 4 * (uint64_t)n + 4), TESS_I32, n);
	in[6] = cpu_make_list(add_buffer(step, 16), TESS_I32, 4);
	if (x->rate == 0)
		in[6] = (struct tess_view){ 0 };
	in[7] = cpu_make_list(make_weight_buffer(TESS_BF16, x->heads, NULL), TESS_BF16, x->heads);
	out[0] = make_rows_at_pitch(n, x->heads * x->value, false);
	expect_close_texts("attention", x, &op);
	op.kind = TESS_OP_ATTENTION_D;
	op.nout = x->sinks ? 4 : 3;
	in[5] = make_rows_at_pitch(n, x->heads * x->value, true);
	out[0] = make_rows_at_pitch(n, x->heads * x->d, false);
	out[1] = make_rows_at_pitch(n, x->heads * x->d, false);
	out[2] = x->latent ? (struct tess_view){ 0 }
	                   : make_rows_at_pitch(n, x->heads * x->value, false);
	out[3] = make_rows_at_pitch(n, x->heads, false);
	expect_close_texts("attention_d", x, &op);
	if (n > 1) {
		position[n - 1]++;
		ck_assert_int_eq(run_on_gpu(&op), TESS_EINVAL);
		expect_part(cpu_sentence, "without pages the rows of a slot are the positions");
	}
	free_host_buffers();
}

START_TEST(texts_of_many_shapes)
{
	static const struct texts all[] = {
		{ 2, 0, 1, 16, 16, 0, 0, false, { 150, 1, 33 }, 0, false, false },
		/* heads of two groups */
		{ 3, 3, 4, 24, 24, 0, 0, false, { 70, 29 }, 0, false, false },
		{ 3, 0, 3, 80, 17, 0, 1.3, false, { 95 }, 0, false, false },
		{ 2, 1, 2, 12, 140, 65, 0, false, { 100, 6 }, 0, false, false },
		{ 1, 0, 1, 8, 8, 1, 0, false, { 40 }, 0, false, false },
		{ 1, 0, 1, 192, 128, 33, 0, true, { 5, 100 }, 0, false, false },
		{ 3, 2, 2, 16, 24, 0, 1.3, false, { 90, 3, 41 }, 0.1, false, false },
		{ 2, 0, 2, 20, 12, 33, 0, true, { 100 }, 0.5, false, false },
		{ 1, 0, 1, 8, 8, 0, 0, false, { 1 }, 0, false, false },
		{ 1, 0, 1, 8, 8, 0, 0, false, { 0 }, 0, false, false },
		{ 2, 0, 1, 16, 16, 0, 0, false, { 40, 40, 40 }, 0, true, false },
		{ 3, 3, 4, 24, 24, 0, 1.3, false, { 70, 29 }, 0, true, false },
		{ 2, 1, 2, 8, 8, 20, 0, false, { 3, 100, 64 }, 0, true, false },
		{ 2, 1, 2, 12, 24, -20, 0, false, { 100, 6 }, 0, false, false },
		{ 1, 0, 1, 20, 12, -33, 1.3, true, { 5, 100 }, 0, false, false },
		{ 2, 0, 1, 16, 16, 0, 0, false, { 150, 1, 33 }, 0, false, true },
		{ 3, 3, 4, 24, 20, 25, 1.3, false, { 70, 29 }, 0.1, false, true },
		{ 2, 0, 2, 20, 12, -33, 0, true, { 100 }, 0, false, true },
		{ 2, 0, 1, 16, 16, 0, 0, false, { 40, 40 }, 0, true, true },
	};

	set_up_devices("auto");
	for (size_t i = 0; i < sizeof all / sizeof *all; i += STEP)
		test_texts(&all[i]);
	tear_down_devices();
}
END_TEST

/* Kernels replace cuDNN if it cannot be used. */
START_TEST(kernels_without_dnn)
{
	static const char *const missing[] = { "dnn", "cudnnCreate", "plans", "version",
		                               "none, but sums are to be of f32" };
	static const struct texts x = { 2, 0, 1, 16, 16, 0, 0, false, { 40, 30 }, 0, true, false };

	for (int i = 0; i < 5; i++) {
		setenv("FAKE_CUDA_FAILS", missing[i], 1);
		set_up_devices(i < 4 ? "auto" : "f32");
		test_texts(&x);
		tear_down_devices();
	}
	unsetenv("FAKE_CUDA_FAILS");
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_attention_d", 300, &r);

	tcase_add_test(t, texts_of_many_shapes);
	tcase_add_test(t, kernels_without_dnn);
	return suite_end(r);
}
