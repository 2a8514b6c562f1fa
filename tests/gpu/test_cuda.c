/*
 * test_cuda PLUGIN - tests the host code of the CUDA device over fakes of the driver and cuBLASLt
 * (fake_cuda.c): refusals, the message of each failed call, copies, memory, graphs. It does not
 * test NVIDIA's own code.
 */
#include "device.h"

enum { ROWS = 72 }; /* with more than 64 a product is cuBLASLt's */

/* Makes a LINEAR of ROWS rows with 48 weights of 64 elements. */
static struct tess_op make_linear(struct tess_view *in, struct tess_view *out, int32_t dtype)
{
	static struct tess_tree tree = { 1, 0, 1, 0, 1 };
	static const int64_t bound[] = { 0, 64 };
	static struct tess_term term = { 0, 0, bound };
	static char w[48 * 64 * 4];
	static float x[ROWS * 64], y[ROWS * 48];

	for (size_t i = 0; i < sizeof x / sizeof *x; i++)
		x[i] = cpu_draw_float();
	for (int i = 0; i < 48 * 64; i++) {
		float f = cpu_draw_float();
		uint16_t h = cpu_truncate_bf16(f);

		memcpy(w + i * cpu_get_width(dtype), dtype == TESS_F32 ? (void *)&f : (void *)&h,
		       (size_t)cpu_get_width(dtype));
	}
	in[0] = cpu_make_rows(add_buffer(x, sizeof x), ROWS, 64, 64);
	in[1] = cpu_make_view(add_buffer(w, sizeof w), dtype, 48, 64, 64, 1);
	out[0] = cpu_make_rows(add_buffer(y, sizeof y), ROWS, 48, 48);
	return cpu_make_sum_op(TESS_OP_LINEAR, in, 2, out, NULL, 0, &tree, 1, &term, 1);
}

static void expect_sentence(tess_status got, tess_status want, const char *part)
{
	ck_assert_msg(got == want, "status %d, not %d: %s", (int)got, (int)want, cpu_sentence);
	expect_part(cpu_sentence, part);
}

static void set_variable(const char *name, const char *value)
{
	ck_assert_int_eq(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(machines)
{
	void *self;

	set_variable("FAKE_CUDA_VERSION", "12040");
	expect_sentence(load_gpu_plugin(), TESS_ENOTSUP, "driver supports CUDA 12.4, this build");
	set_variable("FAKE_CUDA_VERSION", NULL);
	set_variable("FAKE_CUDA_FAILS", "cuInit");
	expect_sentence(load_gpu_plugin(), TESS_ENOTSUP, "driver finds no GPU");
	set_variable("FAKE_CUDA_FAILS", NULL);
	gpu_math = "f16";
	expect_sentence(load_gpu_plugin(), TESS_EINVAL,
	                "TESSERA_CUDA_MATH=f16: use auto, f32 or tf32");
	gpu_math = "auto";
	gpu_sync = "2";
	expect_sentence(load_gpu_plugin(), TESS_EINVAL, "TESSERA_CUDA_SYNC=2: use 0, kernels or 1");
	gpu_sync = "kernels";
	EXPECT_OK(load_gpu_plugin());
	ck_assert_int_eq(gpu_table->count(), 2);
	expect_sentence(gpu_table->open(2, 1, &self), TESS_EINVAL, "no GPU 2; there are 2");
	set_variable("FAKE_CUDA_COMPUTE", "75");
	expect_sentence(gpu_table->open(1, 1, &self), TESS_ENOTSUP,
	                "GPU 1, Fake 1, has compute capability 7.5; 8.0 or newer is needed");
	set_variable("FAKE_CUDA_COMPUTE", NULL);
	set_variable("FAKE_CUDA_FAILS", "cuModuleLoadData");
	expect_sentence(gpu_table->open(1, 1, &self), TESS_EDEVICE, "cuda: cuModuleLoadData: ");
}
END_TEST

START_TEST(memory)
{
	uint64_t before, after;
	void *p, *q;

	set_variable("FAKE_CUDA_FAILS", _i ? "pools" : NULL);
	set_variable("FAKE_CUDA_MEMORY", "100000000");
	open_gpu_device("auto");
	EXPECT_OK(gpu_table->free_bytes(gpu, &before));
	EXPECT_OK(gpu_table->alloc(gpu, 60 << 20, &p));
	ck_assert_uint_eq((uintptr_t)p % 64, 0);
	expect_sentence(gpu_table->alloc(gpu, 60 << 20, &q), TESS_ENOMEM,
	                "no room for 60 MiB: 35 of 95 MiB of the GPU are free; use more GPUs");
	EXPECT_OK(gpu_table->free_bytes(gpu, &after));
	ck_assert_uint_eq(before - after, 60 << 20);
	gpu_table->free(gpu, p);
	gpu_table->free(gpu, NULL);
	EXPECT_OK(gpu_table->free_bytes(gpu, &after));
	ck_assert_uint_eq(before, after);
	EXPECT_OK(gpu_table->alloc(gpu, 0, &p));
	gpu_table->free(gpu, p);
	close_gpu_device();
}
END_TEST

START_TEST(unsupported_ops)
{
	struct tess_view in[2] = { 0 }, out = { 0 };
	struct tess_op op = cpu_make_op(99, in, 2, &out, NULL, 0);
	struct tess_view panels = { 0 };

	open_gpu_device("auto");
	expect_sentence(cpu_check_op_for(gpu_table, &op), TESS_ENOTSUP,
	                "layers.0.mlp: there are no ops of kind 99");
	expect_sentence(gpu_table->supports(&op), TESS_ENOTSUP,
	                "layers.0.mlp: cuda: ops of kind 99 are not supported");
	expect_sentence(gpu_table->pack(gpu, in, &panels), TESS_ENOTSUP,
	                "weights are stored in rows");
	op = make_linear(in, &out, TESS_F32);
	EXPECT_OK(cpu_check_op_for(gpu_table, &op));
	out = cpu_make_partial(out.data, 2, ROWS, 24, 24);
	expect_sentence(cpu_check_op_for(gpu_table, &op), TESS_ENOTSUP,
	                "layers.0.mlp: linear: an out must be f32 rows");
	free_buffers();
	close_gpu_device();
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(failed_calls)
{
	struct tess_view in[2], out;
	struct tess_op op;
	char x[8];

	open_gpu_device("auto");
	op = make_linear(in, &out, TESS_BF16);
	set_variable("FAKE_CUDA_FAILS", "cuLaunchKernelEx");
	op.stream = gpu_stream;
	expect_sentence(gpu_table->run(gpu, &op), TESS_EDEVICE,
	                "layers.0.mlp: cuda: cuLaunchKernelEx: simulated failure");
	set_variable("FAKE_CUDA_FAILS", "cublasLtMatmul");
	expect_sentence(gpu_table->run(gpu, &op), TESS_EDEVICE,
	                "layers.0.mlp: cuda: cublasLtMatmul: cuBLASLt status 7");
	set_variable("FAKE_CUDA_FAILS", "cuStreamSynchronize");
	expect_sentence(gpu_table->sync(gpu, gpu_stream), TESS_EDEVICE,
	                "layers.0.mlp or an op before it (TESSERA_CUDA_SYNC=1 names it): cuda: "
	                "cuStreamSynchronize: ");
	set_variable("FAKE_CUDA_FAILS", "cuMemcpyAsync");
	expect_sentence(gpu_table->copy(gpu, buffers[0].device, x, sizeof x, gpu_stream),
	                TESS_EDEVICE, "cuda: cuMemcpyAsync: ");
	set_variable("FAKE_CUDA_FAILS", NULL);
	EXPECT_OK(gpu_table->sync(gpu, gpu_stream));
	free_buffers();
	close_gpu_device();
}
END_TEST

START_TEST(failed_blas)
{
	struct tess_view in[2], out;
	struct tess_op op;

	open_gpu_device("auto");
	op = make_linear(in, &out, TESS_F32);
	set_variable("FAKE_CUDA_FAILS", "cublasLtCreate");
	expect_sentence(run_on_gpu(&op), TESS_EDEVICE, "layers.0.mlp: cuda: cublasLtCreate: ");
	set_variable("FAKE_CUDA_FAILS", NULL);
	EXPECT_OK(run_on_gpu(&op));
	free_buffers();
	close_gpu_device();
}
END_TEST

/* Products of a shape that cuBLASLt does not support run on the device's own kernels. */
START_TEST(no_algorithm)
{
	struct tess_view in[2], out;
	struct tess_op op;
	float want[ROWS * 48];
	bool rounded = false;

	open_gpu_device("auto");
	op = make_linear(in, &out, TESS_BF16);
	EXPECT_OK(run_on_gpu(&op));
	memcpy(want, out.data, sizeof want);
	close_gpu_device();
	open_gpu_device("auto");
	for (int i = 0; i < nbuffers; i++)
		EXPECT_OK(gpu_table->alloc(gpu, buffers[i].bytes, &buffers[i].device));
	set_variable("FAKE_CUDA_FAILS", "heuristic");
	EXPECT_OK(run_on_gpu(&op));
	for (int i = 0; i < ROWS * 48; i++) {
		float got = ((float *)out.data)[i];

		ck_assert(fabsf(got - want[i]) <= 64 * 0x1p-8f);
		rounded = rounded || got != want[i];
	}
	ck_assert(rounded); /* cuBLASLt got activations that were rounded to bf16 */
	free_buffers();
	close_gpu_device();
}
END_TEST

/* ---- copies, streams, graphs ----------------------------------------------------------------- */

static void swap_data(struct tess_view *a, struct tess_view *b)
{
	void *data = a->data;

	a->data = b->data;
	b->data = data;
}

/* Two products at a constant step are one call, or two if cuBLASLt does not support both. */
START_TEST(pairs)
{
	struct tess_view in[3], out[2];
	struct tess_op op;
	float want[ROWS * 48], *y;

	open_gpu_device("auto");
	op = make_linear(in, out, TESS_BF16);
	in[2] = in[1];
	in[1].shape[0] = in[2].shape[0] = 24;
	in[2].data = (char *)in[1].data + 24 * 64 * 2;
	out[1] = out[0];
	out[0].shape[1] = out[1].shape[1] = 24;
	y = out[0].data;
	out[1].data = y + 24;
	op.nin = 3;
	op.nout = 2;
	EXPECT_OK(run_on_gpu(&op));
	memcpy(want, y, sizeof want);
	memset(y, 0, sizeof want);
	set_variable("FAKE_CUDA_FAILS", "batch");
	EXPECT_OK(run_on_gpu(&op)); /* by the kept plan of both */
	ck_assert(!memcmp(y, want, sizeof want));
	swap_data(&in[1], &in[2]);
	swap_data(&out[0], &out[1]);
	memset(y, 0, sizeof want);
	EXPECT_OK(run_on_gpu(&op)); /* the plan is reused */
	ck_assert(!memcmp(y, want, sizeof want));
	in[1].stride[0] = in[2].stride[0] = 128; /* every second row */
	in[1].shape[0] = in[2].shape[0] = 12;
	out[0].shape[1] = out[1].shape[1] = 12;
	EXPECT_OK(run_on_gpu(&op));
	for (int i = 0; i < ROWS * 24; i++)
		ck_assert(y[i / 12 / 2 * 48 + i / 12 % 2 * 24 + i % 12] ==
		          want[i / 12 / 2 * 48 + i / 12 % 2 * 24 + i % 12 * 2]);
	free_buffers();
	close_gpu_device();
}
END_TEST

/* Large pageable memory is copied through pinned stages both ways. */
START_TEST(copies)
{
	static const uint64_t sizes[] = { 1, 70000, 1 << 20, (9 << 20) + 12345 };
	void *p;

	open_gpu_device("auto");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		unsigned char *from = malloc(sizes[i]), *to = malloc(sizes[i]);

		for (uint64_t at = 0; at < sizes[i]; at++)
			from[at] = (unsigned char)cpu_draw_random();
		EXPECT_OK(gpu_table->alloc(gpu, sizes[i], &p));
		EXPECT_OK(gpu_table->copy(gpu, p, from, sizes[i], gpu_stream));
		EXPECT_OK(gpu_table->copy(gpu, to, p, sizes[i], gpu_stream));
		EXPECT_OK(gpu_table->sync(gpu, gpu_stream));
		ck_assert_msg(!memcmp(from, to, sizes[i]), "%d bytes", (int)sizes[i]);
		set_variable("FAKE_CUDA_FAILS", "cuMemcpyAsync");
		expect_sentence(gpu_table->copy(gpu, p, from, sizes[i], gpu_stream), TESS_EDEVICE,
		                "cuda: cuMemcpyAsync: simulated failure");
		set_variable("FAKE_CUDA_FAILS", NULL);
		gpu_table->free(gpu, p);
		free(from);
		free(to);
	}
	close_gpu_device();
}
END_TEST

START_TEST(streams)
{
	void *stream[16];

	open_gpu_device("auto");
	for (int i = 1; i < 16; i++)
		EXPECT_OK(gpu_table->stream_open(gpu, &stream[i]));
	expect_sentence(gpu_table->stream_open(gpu, &stream[0]), TESS_ENOTSUP,
	                "at most 16 streams");
	for (int32_t i = 0; i < 2; i++)
		EXPECT_OK(gpu_table->mark(gpu, gpu_stream, i));
	EXPECT_OK(gpu_table->reached(gpu, 1));
	set_variable("FAKE_CUDA_FAILS", "cuEventQuery");
	expect_sentence(gpu_table->reached(gpu, 0), TESS_EDEVICE, "cuda: cuEventQuery: ");
	set_variable("FAKE_CUDA_FAILS", "pending");
	ck_assert_int_eq(gpu_table->reached(gpu, 0), TESS_PENDING);
	set_variable("FAKE_CUDA_FAILS", "cuStreamWaitEvent");
	expect_sentence(gpu_table->follow(gpu, stream[1], gpu_stream), TESS_EDEVICE,
	                "cuda: cuStreamWaitEvent: ");
	set_variable("FAKE_CUDA_FAILS", NULL);
	EXPECT_OK(gpu_table->follow(gpu, stream[1], gpu_stream));
	for (int i = 1; i < 16; i++)
		gpu_table->stream_close(gpu, stream[i]);
	EXPECT_OK(gpu_table->stream_open(gpu, &stream[1]));
	gpu_table->stream_close(gpu, stream[1]);
	close_gpu_device();
}
END_TEST

/* Kernels of older GPUs do not wait for the previous one: they must not start early. */
START_TEST(older_gpu)
{
	struct tess_view in[2], out;
	struct tess_op op;

	gpu_sync = "0";
	set_variable("FAKE_CUDA_COMPUTE", "80");
	open_gpu_device("auto");
	op = make_linear(in, &out, TESS_BF16);
	EXPECT_OK(run_on_gpu(&op));
	free_buffers();
	close_gpu_device();
}
END_TEST

/* A graph computes from the contents of its operands at replay. */
START_TEST(graphs)
{
	struct tess_view in[2], out, moved_in[2], moved_out;
	struct tess_op op, moved;
	float want[ROWS * 48], *y;
	void *graph = NULL;

	open_gpu_device("auto");
	expect_sentence(gpu_table->capture(gpu, gpu_stream, 1, NULL), TESS_ENOTSUP,
	                "TESSERA_CUDA_SYNC=1 waits for each op");
	close_gpu_device();
	gpu_sync = "0";
	open_gpu_device("auto");
	op = moved = make_linear(in, &out, TESS_BF16);
	y = out.data;
	moved.in = moved_in;
	moved.out = &moved_out;
	moved.stream = gpu_stream;
	for (int i = 0; i < 2; i++) {
		moved_in[i] = in[i];
		moved_in[i].data = find_copy(in[i].data);
	}
	moved_out = out;
	moved_out.data = find_copy(out.data);
	EXPECT_OK(gpu_table->capture(gpu, gpu_stream, 1, NULL));
	expect_sentence(gpu_table->run(gpu, &moved), TESS_EBUG, "run it once before");
	EXPECT_OK(gpu_table->capture(gpu, gpu_stream, 0, &graph));
	gpu_table->graph_close(gpu, graph);
	EXPECT_OK(run_on_gpu(&op)); /* allocates scratch memory */
	memcpy(want, y, sizeof want);
	EXPECT_OK(gpu_table->capture(gpu, gpu_stream, 1, NULL));
	EXPECT_OK(gpu_table->run(gpu, &moved));
	EXPECT_OK(gpu_table->capture(gpu, gpu_stream, 0, &graph));
	for (int again = 0; again < 2; again++) {
		((float *)in[0].data)[0] = again ? 7 : ((float *)in[0].data)[0];
		memset(y, 0, sizeof want);
		for (int i = 0; i < nbuffers; i++)
			copy_buffer(&buffers[i], false);
		EXPECT_OK(gpu_table->replay(gpu, graph, gpu_stream));
		EXPECT_OK(gpu_table->sync(gpu, gpu_stream));
		copy_buffer(&buffers[2], true);
		ck_assert(!memcmp(y + 48, want + 48, sizeof want - sizeof *y * 48));
		ck_assert(!memcmp(y, want, sizeof *y * 48) == !again);
	}
	gpu_table->graph_close(gpu, graph);
	set_variable("FAKE_CUDA_FAILS", "cuStreamBeginCapture");
	expect_sentence(gpu_table->capture(gpu, gpu_stream, 1, NULL), TESS_EDEVICE,
	                "cuda: cuStreamBeginCapture: ");
	set_variable("FAKE_CUDA_FAILS", NULL);
	free_buffers();
	close_gpu_device();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "cuda", 60, &r);

	tcase_add_test(t, machines);
	tcase_add_loop_test(t, memory, 0, 2);
	tcase_add_test(t, unsupported_ops);
	tcase_add_test(t, failed_calls);
	tcase_add_test(t, failed_blas);
	tcase_add_test(t, no_algorithm);
	tcase_add_test(t, pairs);
	tcase_add_test(t, copies);
	tcase_add_test(t, streams);
	tcase_add_test(t, older_gpu);
	tcase_add_test(t, graphs);
	return suite_end(r);
}
