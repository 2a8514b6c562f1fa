/*
 * test_attention_d PLUGIN: ATTENTION without pages and ATTENTION_D of the CUDA device against the
 * CPU: the same pairs, dropped alike, and sums that are close.
 */
#include "device.h"

struct texts {
	int64_t heads, lo, group, d, value, window;
	double softcap;
	bool latent; /* a value is the beginning of its key */
	int64_t length[4]; /* of the texts; ends with 0 */
	double rate; /* of dropout */
};

enum { PAD = 3 }; /* floats behind each row */
enum { STEP = THIN > 1 ? 2 : 1 }; /* from a case to the next */

static struct tess_view make_rows_at_pitch(int64_t rows, int64_t columns, bool fill)
{
	int64_t pitch = columns + (columns % 4 ? PAD : 4);

	return cpu_make_rows(make_buffer(rows * pitch, fill), rows, columns, pitch);
}

static void test_texts(const struct texts *x)
{
	int64_t kv = (x->lo + x->heads - 1) / x->group - x->lo / x->group + 1, n = 0, t = 0;
	struct tess_view in[7] = { 0 }, out[3];
	double num[TESS_ATTENTION_NUMS] = { 1 / sqrt((double)x->d),
		                            (double)x->window,
		                            (double)x->d,
		                            (double)x->lo,
		                            (double)x->group,
		                            0,
		                            0,
		                            0,
		                            x->softcap,
		                            (double)x->value,
		                            x->rate,
		                            77 };
	struct tess_op op = cpu_make_op(TESS_OP_ATTENTION, in, x->rate > 0 ? 7 : 6, out, num,
	                                TESS_ATTENTION_NUMS);
	int32_t *position, *slot, *step = malloc(16);

	for (int i = 0; x->length[i]; i++)
		n += x->length[i];
	position = calloc((size_t)n + 1, sizeof *position);
	slot = calloc((size_t)n + 1, sizeof *slot);
	for (int i = 0; x->length[i]; i++)
		for (int32_t p = 0; p < x->length[i]; p++, t++) {
			position[t] = p;
			slot[t] = 7 - i;
		}
	memcpy(step, (int32_t[]){ 0x12345678, -5, 3, 0 }, 16);
	in[0] = make_rows_at_pitch(n, x->heads * x->d, true);
	for (int64_t i = 0; i < n * in[0].stride[0]; i++)
		((float *)in[0].data)[i] *= 8;
	in[1] = make_rows_at_pitch(n, kv * x->d, true);
	if (!x->latent)
		in[2] = make_rows_at_pitch(n, kv * x->value, true);
	in[3] = cpu_make_list(add_buffer(position, 4 * (uint64_t)n + 4), TESS_I32, n);
	in[4] = cpu_make_list(add_buffer(slot, 4 * (uint64_t)n + 4), TESS_I32, n);
	in[6] = cpu_make_list(add_buffer(step, 16), TESS_I32, 4);
	out[0] = make_rows_at_pitch(n, x->heads * x->value, false);
	expect_near("attention", &op, 4e-6f);
	op.kind = TESS_OP_ATTENTION_D;
	op.nout = 3;
	in[5] = make_rows_at_pitch(n, x->heads * x->value, true);
	out[0] = make_rows_at_pitch(n, x->heads * x->d, false);
	out[1] = make_rows_at_pitch(n, x->heads * x->d, false);
	out[2] = x->latent ? (struct tess_view){ 0 }
	                   : make_rows_at_pitch(n, x->heads * x->value, false);
	expect_near("attention_d", &op, 4e-6f);
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
		{ 2, 0, 1, 16, 16, 0, 0, false, { 150, 1, 33 }, 0 },
		{ 3, 3, 4, 24, 24, 0, 0, false, { 70, 29 }, 0 }, /* heads of two groups */
		{ 3, 0, 3, 80, 17, 0, 1.3, false, { 95 }, 0 },
		{ 2, 1, 2, 12, 140, 65, 0, false, { 100, 6 }, 0 },
		{ 1, 0, 1, 8, 8, 1, 0, false, { 40 }, 0 },
		{ 1, 0, 1, 192, 128, 33, 0, true, { 5, 100 }, 0 },
		{ 3, 2, 2, 16, 24, 0, 1.3, false, { 90, 3, 41 }, 0.1 },
		{ 2, 0, 2, 20, 12, 33, 0, true, { 100 }, 0.5 },
		{ 1, 0, 1, 8, 8, 0, 0, false, { 1 }, 0 },
		{ 1, 0, 1, 8, 8, 0, 0, false, { 0 }, 0 },
	};

	set_up_devices("auto");
	for (size_t i = 0; i < sizeof all / sizeof *all; i += STEP)
		test_texts(&all[i]);
	tear_down_devices();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_attention_d", 300, &r);

	tcase_add_test(t, texts_of_many_shapes);
	return suite_end(r);
}
