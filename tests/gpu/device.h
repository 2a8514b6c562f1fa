/*
 * device.h - helpers for tests of ops: run an op on the device under test and on the CPU. Operands
 * are in host memory that is registered with add_buffer(); the device has copies of it.
 */
#ifndef TESS_TESTS_GPU_DEVICE_H
#define TESS_TESTS_GPU_DEVICE_H

#include "tests/support/cpu.h"

#include <sys/wait.h>
#include <tessera/reduce.h>

enum { BUFFERS = 32, EXIT_SKIPPED = 77 };

struct buffer {
	char *host;
	void *device;
	uint64_t bytes;
	bool pages; /* addresses of host memory in other buffers, i64 */
};

static const char *gpu_file; /* plugin file */
static const char *gpu_math = "auto", *gpu_sync = "1"; /* options of the next device */
static const struct tess_device *gpu_table;
static void *gpu, *gpu_stream;
static struct buffer buffers[BUFFERS];
static int nbuffers;

static inline const char *get_gpu_option(const char *key)
{
	const char *libs = getenv("TESSERA_CUDA_LIBS");

	if (!strcmp(key, "cuda_math"))
		return gpu_math;
	if (!strcmp(key, "cuda_sync"))
		return gpu_sync;
	return !strcmp(key, "cuda_libs") && libs ? libs : "";
}

/* Returns the status of the plugin's init; its message is in cpu_sentence. */
static inline tess_status load_gpu_plugin(void)
{
	static const struct tess_host host = {
		.size = sizeof host,
		.abi = TESS_ABI,
		.fail = cpu_keep_sentence,
		.option = get_gpu_option,
	};
	const struct tess_plugin *plugin;
	void *file = dlopen(gpu_file, RTLD_NOW | RTLD_LOCAL);

	if (!file)
		return cpu_keep_sentence(TESS_ENOTSUP, "%s", dlerror());
	plugin = dlsym(file, "tess_plugin_v2");
	gpu_table = plugin->devices[0];
	return plugin->init(&host);
}

#define EXPECT_OK(call) \
	do { \
		tess_status status_ = (call); \
		ck_assert_msg(status_ == TESS_OK, "%s: %s", #call, cpu_sentence); \
	} while (0)

static inline void open_gpu_device(const char *math)
{
	gpu_math = math;
	EXPECT_OK(load_gpu_plugin());
	EXPECT_OK(gpu_table->open(0, 3, &gpu));
	EXPECT_OK(gpu_table->stream_open(gpu, &gpu_stream));
}

static inline void close_gpu_device(void)
{
	gpu_table->stream_close(gpu, gpu_stream);
	gpu_table->close(gpu);
}

static inline void *add_buffer(void *host, uint64_t bytes)
{
	struct buffer *b = &buffers[nbuffers++];

	ck_assert_int_lt(nbuffers, BUFFERS);
	*b = (struct buffer){ .host = host, .bytes = bytes };
	EXPECT_OK(gpu_table->alloc(gpu, bytes, &b->device));
	return host;
}

static inline void free_buffers(void)
{
	for (; nbuffers; nbuffers--)
		gpu_table->free(gpu, buffers[nbuffers - 1].device);
}

/* Returns the device's copy of a host address. */
static inline void *find_copy(const void *host)
{
	for (int i = 0; i < nbuffers; i++)
		if ((const char *)host >= buffers[i].host &&
		    (const char *)host < buffers[i].host + buffers[i].bytes)
			return (char *)buffers[i].device + ((const char *)host - buffers[i].host);
	ck_abort_msg("an operand is in no buffer");
	return NULL;
}

static inline void copy_buffer(struct buffer *b, bool back)
{
	void *from = b->host;

	if (b->pages && back)
		return;
	if (b->pages) {
		int64_t *list = malloc(b->bytes), n = (int64_t)(b->bytes / sizeof *list);

		for (int64_t i = 0; i < n; i++) {
			void *page = (void *)(uintptr_t)((int64_t *)(void *)b->host)[i];

			list[i] = page ? (int64_t)(uintptr_t)find_copy(page) : 0;
		}
		from = list;
	}
	EXPECT_OK(gpu_table->copy(gpu, back ? b->host : b->device, back ? b->device : from,
	                          b->bytes, gpu_stream));
	EXPECT_OK(gpu_table->sync(gpu, gpu_stream));
	if (b->pages)
		free(from);
}

/* Checks an op as the core does: with f32 rows for those that the device rounds. */
static inline tess_status check_gpu_op(const struct tess_op *op)
{
	struct tess_view view[16];
	struct tess_op f32 = *op;
	tess_status st;

	ck_assert_int_le(op->nin + op->nout, 16);
	for (int32_t i = 0; i < op->nin + op->nout; i++) {
		view[i] = i < op->nin ? op->in[i] : op->out[i - op->nin];
		if (view[i].dtype == TESS_BF16 && gpu_table->rounds(op, i) == 1)
			view[i].dtype = TESS_F32;
	}
	f32.in = view;
	f32.out = view + op->nin;
	st = cpu_check_op_for(gpu_table, &f32);
	return st ? st : gpu_table->supports(op);
}

/* Copies all buffers to the device, runs the op, and copies them back. */
static inline tess_status run_on_gpu(const struct tess_op *op)
{
	struct tess_view in[8], out[8];
	struct tess_op moved = *op;
	tess_status st = check_gpu_op(op);

	if (st)
		return st;
	for (int i = 0; i < nbuffers; i++)
		copy_buffer(&buffers[i], false);
	for (int32_t i = 0; i < op->nin; i++) {
		in[i] = op->in[i];
		in[i].data = in[i].ndim ? find_copy(in[i].data) : NULL;
	}
	for (int32_t i = 0; i < op->nout; i++) {
		out[i] = op->out[i];
		out[i].data = out[i].ndim ? find_copy(out[i].data) : NULL;
	}
	moved.in = in;
	moved.out = out;
	moved.stream = gpu_stream;
	st = gpu_table->run(gpu, &moved);
	if (!st)
		st = gpu_table->sync(gpu, gpu_stream);
	for (int i = 0; i < nbuffers && !st; i++)
		copy_buffer(&buffers[i], true);
	return st;
}

/* Runs the op on both: returns the CPU's result in `out`, of `bytes`, which then has the GPU's. */
static inline void *run_on_both(void *cpu, const struct tess_op *op, void *out, uint64_t bytes,
                                const void *before)
{
	void *want = malloc(bytes);

	memcpy(out, before, bytes);
	cpu_run_op(cpu, op);
	memcpy(want, out, bytes);
	memcpy(out, before, bytes);
	ck_assert_msg(run_on_gpu(op) == TESS_OK, "%s", cpu_sentence);
	return want;
}

/* ---- operands on both devices */

static void *cpu;

static inline void set_up_devices(const char *math)
{
	cpu = cpu_open_device("auto", 1);
	ck_assert_ptr_nonnull(cpu);
	open_gpu_device(math);
}

static inline void tear_down_devices(void)
{
	close_gpu_device();
	cpu_device->close(cpu);
}

/* Makes n floats that the device has, too; random ones, or NaN without `fill`. */
static inline float *make_buffer(int64_t n, bool fill)
{
	float *f = cpu_make_floats(n);

	if (!fill)
		memset(f, 0xff, sizeof *f * (size_t)n);
	return add_buffer(f, sizeof *f * (uint64_t)(n ? n : 1));
}

/*
 * Makes n aligned weights of a dtype that the device has, too; *value, if given, gets their values.
 */
static inline void *make_weight_buffer(int32_t dtype, int64_t n, float **value)
{
	struct cpu_weights w = cpu_make_weights(dtype, n);
	void *aligned = malloc((size_t)(n * 4 + 4));

	memcpy(aligned, w.data, (size_t)(n * cpu_get_width(dtype)));
	for (int64_t i = 0; i < n && dtype == TESS_F16; i++) { /* no large ones: sums stay finite */
		uint16_t *h = (uint16_t *)aligned + i;

		*h = (uint16_t)((*h & 0x83ff) | (10 + *h % 5) << 10);
		w.value[i] = (float)cpu_convert_f16(*h);
	}
	free(w.memory);
	if (value)
		*value = w.value;
	else
		free(w.value);
	return add_buffer(aligned, (uint64_t)(n * 4 + 4));
}

static inline void free_host_buffers(void)
{
	for (int i = 0; i < nbuffers; i++)
		free(buffers[i].host);
	free_buffers();
}

/* Runs an op on both, whose only output starts at `out`; expects equal results. */
static inline void expect_same(const char *what, const struct tess_op *op, void *out,
                               uint64_t bytes)
{
	void *before = memcpy(malloc(bytes), out, bytes);
	float *want = run_on_both(cpu, op, out, bytes, before);

	cpu_expect_equal(what, out, want, (int64_t)(bytes / sizeof *want));
	free(want);
	free(before);
}

/* Returns the offset of element i of a view. */
static inline int64_t locate_element(const struct tess_view *v, int64_t i)
{
	int64_t at = 0;

	for (int32_t axis = v->ndim - 1; axis >= 0; i /= v->shape[axis--])
		at += i % v->shape[axis] * v->stride[axis];
	return at;
}

/*
 * Expects elements within `bound` of the largest of `want`, maybe 0; bytes in between are
 * unchanged.
 */
static inline void expect_near_view(const char *what, const struct tess_view *v, float *want,
                                    float bound)
{
	int64_t n = 1, at;
	const float *got = v->data;
	float max = 0;

	for (int32_t i = 0; i < v->ndim; i++)
		n *= v->shape[i];
	for (int64_t i = 0; i < n; i++)
		max = fmaxf(max, fabsf(want[locate_element(v, i)]));
	ck_assert_msg(isfinite(max), "%s: the largest is %g", what, (double)max);
	for (int64_t i = 0; i < n; i++) {
		at = locate_element(v, i);
		if (!(fabsf(got[at] - want[at]) <= bound * max))
			ck_abort_msg("%s: element %d: %g, not %g of %g", what, (int)i,
			             (double)got[at], (double)want[at], (double)max);
		want[at] = got[at];
	}
	cpu_expect_equal(what, got, want, cpu_count_elements(v));
}

/* Runs an op on both, whose outputs are f32 and have been filled, and compares all of them. */
static inline void expect_near(const char *what, const struct tess_op *op, float bound)
{
	void *before[4], *want[4];

	for (int32_t i = 0; i < op->nout; i++) {
		size_t bytes = sizeof(float) * (size_t)cpu_count_elements(&op->out[i]);

		before[i] = malloc(bytes + 1);
		want[i] = malloc(bytes + 1);
		if (bytes)
			memcpy(before[i], op->out[i].data, bytes);
	}
	cpu_run_op(cpu, op);
	for (int32_t i = 0; i < op->nout; i++) {
		size_t bytes = sizeof(float) * (size_t)cpu_count_elements(&op->out[i]);

		if (!bytes)
			continue;
		memcpy(want[i], op->out[i].data, bytes);
		memcpy(op->out[i].data, before[i], bytes);
	}
	ck_assert_msg(run_on_gpu(op) == TESS_OK, "%s", cpu_sentence);
	for (int32_t i = 0; i < op->nout; i++) {
		if (op->out[i].ndim)
			expect_near_view(what, &op->out[i], want[i], bound);
		free(before[i]);
		free(want[i]);
	}
}

/*
 * Returns whether the device is unusable, as on a machine without a GPU. Tries it in another
 * process: the driver does not survive a fork, and each test is one.
 */
static inline bool is_gpu_missing(const char *file)
{
	int status = 0;
	pid_t pid;

	gpu_file = file;
	pid = fork();
	if (pid == 0) {
		if (load_gpu_plugin() == TESS_OK)
			_exit(0);
		fprintf(stderr, "skipped: %s\n", cpu_sentence);
		_exit(1);
	}
	return waitpid(pid, &status, 0) != pid || status != 0;
}

/* Begins a program whose argument is the device; exits if the device is unusable. */
static inline TCase *begin_gpu_suite(int argc, char **argv, const char *name, double seconds,
                                     SRunner **r)
{
	if (argc < 2 || is_gpu_missing(argv[1]))
		exit(argc < 2 ? 2 : EXIT_SKIPPED);
	return suite_begin(name, seconds, r);
}

#endif
