/*
 * kernels.c - speed of a device's LINEAR: GB/s of weights for one token, GFLOP/s for many, and of a
 * plain read of the same memory.
 *
 *	kernels [PLUGIN.so [M N K [THREADS]]]           TESSERA_CPU=scalar|avx2|avx512
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/device.h>
#include <time.h>

enum { UNITS = 16, ROUNDS = 9, WEIGHTS = 4 }; /* several weights, so that none stays in a cache */

static const struct tess_device *device;
static void *self;

static tess_status print_failure(tess_status why, const char *fmt, ...)
{
	va_list list;

	va_start(list, fmt);
	vfprintf(stderr, fmt, list);
	va_end(list);
	fputc('\n', stderr);
	return why;
}

static const char *read_cpu_option(const char *key)
{
	const char *value = getenv("TESSERA_CPU");

	(void)key;
	return value ? value : "auto";
}

static int exit_on_device_error(tess_status st)
{
	if (st < 0)
		exit(EXIT_FAILURE);
	return st;
}

static double read_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *alloc_on_device(int64_t bytes)
{
	void *p;

	exit_on_device_error(device->alloc(self, (uint64_t)bytes, &p));
	return p;
}

static struct tess_view alloc_matrix(int32_t dtype, int64_t rows, int64_t columns)
{
	return (struct tess_view){ .data = alloc_on_device(rows * columns *
		                                           (dtype == TESS_F32 ? 4 : 2)),
		                   .dtype = dtype,
		                   .ndim = 2,
		                   .shape = { rows, columns },
		                   .stride = { columns, 1 } };
}

/* Weights in (-0.5, 0.5) of the type. */
static struct tess_view make_weight(int32_t dtype, int64_t n, int64_t k)
{
	int64_t bytes = dtype == TESS_F32 ? 4 : 2;
	struct tess_view w = alloc_matrix(dtype, n, k);
	uint32_t seed = 1, bits;
	char *at = w.data;
	float f;

	for (int64_t i = 0; i < n * k; i++) {
		seed = seed * 1664525 + 1013904223;
		f = (float)(seed >> 8) * 0x1p-24f - 0.5f;
		memcpy(&bits, &f, sizeof bits);
		if (dtype == TESS_BF16)
			bits >>= 16;
		if (dtype == TESS_F16)
			bits = (seed >> 16 & 0x83ff) | 0x3400;
		memcpy(at + i * bytes, &bits, (size_t)bytes);
	}
	return w;
}

/* Seconds of the fastest round of one LINEAR of M rows by each of the weights in turn. */
static double time_linear(const struct tess_view *w, int64_t rows)
{
	int64_t n = w->shape[0], k = w->shape[1], bound[UNITS + 1];
	struct tess_tree tree = { .n = UNITS, .hi = UNITS, .terms = 1 };
	struct tess_term term = { .bound = bound };
	struct tess_view in[2] = { alloc_matrix(TESS_F32, rows, k) };
	struct tess_view out = alloc_matrix(TESS_F32, rows, n);
	struct tess_op op = { .size = sizeof op,
		              .kind = TESS_OP_LINEAR,
		              .nin = 2,
		              .nout = 1,
		              .in = in,
		              .out = &out,
		              .ntree = 1,
		              .nterm = 1,
		              .tree = &tree,
		              .term = &term,
		              .where = "bench" };
	double best = 1e9, start;

	for (int64_t i = 0; i < rows * k; i++)
		((float *)in[0].data)[i] = (float)(i % 97) * 0.01f - 0.5f;
	for (int u = 0; u <= UNITS; u++)
		bound[u] = tess_edge(k, UNITS, u);
	in[1] = *w;
	exit_on_device_error(device->supports(&op));
	for (int i = 0; i < ROUNDS * WEIGHTS; i++) {
		in[1] = w[i % WEIGHTS];
		start = read_seconds();
		exit_on_device_error(device->run(self, &op));
		start = read_seconds() - start;
		best = start < best ? start : best;
	}
	device->free(self, in[0].data);
	device->free(self, out.data);
	return best;
}

/*
 * GB/s of a sum over memory, eight lanes of 64 bits at a time, as the compiler vectorises the loop.
 */
static double time_memory_read(const struct tess_view *w, int64_t bytes)
{
	double best = 1e9, start;
	volatile uint64_t sink;

	for (int i = 0; i < ROUNDS * WEIGHTS; i++) {
		const uint64_t *p = w[i % WEIGHTS].data;
		uint64_t sum[8] = { 0 };

		start = read_seconds();
		for (int64_t k = 0; k < bytes / 64; k++)
			for (int l = 0; l < 8; l++)
				sum[l] += p[8 * k + l];
		start = read_seconds() - start;
		best = start < best ? start : best;
		sink = sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
		(void)sink;
	}
	return (double)bytes / best * 1e-9;
}

static void measure_kernels(const char *name, int32_t dtype, int64_t m, int64_t n, int64_t k)
{
	struct tess_view rows[WEIGHTS], panels[WEIGHTS];
	int64_t bytes = n * k * (dtype == TESS_F32 ? 4 : 2);
	double products = 2e-9 * (double)m * (double)n * (double)k, gb = 1e-9 * (double)bytes,
	       start;

	for (int i = 0; i < WEIGHTS; i++) {
		rows[i] = make_weight(dtype, n, k);
		panels[i].data = alloc_on_device(bytes + 64 * k);
		start = read_seconds();
		exit_on_device_error(device->pack(self, &rows[i], &panels[i]));
		start = read_seconds() - start;
	}
	printf("%-5s plain read %5.1f GB/s | panels: decode %5.1f GB/s, prefill %5.1f GFLOP/s | "
	       "rows: decode %5.1f GB/s, prefill %5.1f GFLOP/s | pack %4.1f GB/s\n",
	       name, time_memory_read(rows, bytes), gb / time_linear(panels, 1),
	       products / time_linear(panels, m), gb / time_linear(rows, 1),
	       products / time_linear(rows, m), gb / start);
	for (int i = 0; i < WEIGHTS; i++) {
		device->free(self, rows[i].data);
		device->free(self, panels[i].data);
	}
}

int main(int argc, char **argv)
{
	static const struct tess_host host = { .size = sizeof host,
		                               .abi = TESS_ABI,
		                               .fail = print_failure,
		                               .option = read_cpu_option };
	int64_t m = argc > 2 ? atoll(argv[2]) : 48, n = argc > 3 ? atoll(argv[3]) : 8192;
	int64_t k = argc > 4 ? atoll(argv[4]) : 2048, threads = argc > 5 ? atoll(argv[5]) : 1;
	void *file = dlopen(argc > 1 ? argv[1] : TESS_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
	const struct tess_plugin *plugin = file ? dlsym(file, "tess_plugin_v1") : NULL;

	if (!plugin || !plugin->devices) {
		fprintf(stderr, "kernels: %s\n", file ? "the file has no device" : dlerror());
		return EXIT_FAILURE;
	}
	exit_on_device_error(plugin->init(&host));
	device = plugin->devices[0];
	exit_on_device_error(device->open(0, (int32_t)threads, &self));
	printf("M %lld, N %lld, K %lld, %lld threads, %s\n", (long long)m, (long long)n,
	       (long long)k, (long long)threads, read_cpu_option("cpu"));
	measure_kernels("f32", TESS_F32, m, n, k);
	measure_kernels("bf16", TESS_BF16, m, n, k);
	measure_kernels("f16", TESS_F16, m, n, k);
	device->close(self);
	return EXIT_SUCCESS;
}
