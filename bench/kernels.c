/*
 * kernels.c - speed of a device's LINEAR: GB/s of weights for one token, GFLOP/s for many. For
 * comparison: a plain read of its memory, and on one thread its tile without an order of sums. Also
 * attention over a latent against keys and values of every head: milliseconds of a layer between
 * its projections.
 *
 *	kernels [PLUGIN.so [M N K [THREADS]]]           TESSERA_CPU=scalar|avx2|avx512
 *	kernels --training PLUGIN.so M N K THREADS      ops of a step, for bench/training
 */
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/device.h>
#include <time.h>

#include "free_order.h"

enum { UNITS = 8, ROUNDS = 9, WEIGHTS = 4 }; /* several weights, so none stays in a cache */

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

/* Makes weights in (-0.5, 0.5) of the type. */
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

/*
 * Returns the seconds of the fastest round of one LINEAR of M rows by each of the weights in turn.
 */
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

/* Returns the seconds of the fastest round of the kernel that keeps no order of sums. */
static double time_free_order(const struct tess_view *panels, int64_t rows)
{
	int64_t n = panels->shape[0], k = panels->shape[1];
	struct tess_view x = make_weight(TESS_F32, rows, k), y = alloc_matrix(TESS_F32, rows, n);
	struct tess_view packed = alloc_matrix(TESS_F32, rows, k);
	double best = 1e9, start;

	for (int i = 0; i < ROUNDS * WEIGHTS; i++) {
		start = read_seconds();
		free_order_multiply(x.data, panels[i % WEIGHTS].data, y.data, packed.data, rows, n,
		                    k);
		start = read_seconds() - start;
		best = start < best ? start : best;
	}
	device->free(self, x.data);
	device->free(self, y.data);
	device->free(self, packed.data);
	return best;
}

static bool can_run_free_order(int64_t n)
{
#if defined(__x86_64__)
	return n % 64 == 0 && __builtin_cpu_supports("avx512f");
#else
	return n % 64 == 0;
#endif
}

/* Measures in turns, since the speed of a shared machine changes. */
static void measure_order(const struct tess_view *panels, int64_t m)
{
	double flop = 2e-9 * (double)(m * panels->shape[0] * panels->shape[1]);
	double fixed = 1e9, any = 1e9;

	for (int i = 0; i < 5; i++) {
		fixed = fmin(fixed, time_linear(panels, m));
		any = fmin(any, time_free_order(panels, m));
	}
	printf("f32   prefill: %5.1f GFLOP/s in the fixed order, %5.1f in any: %.3f\n",
	       flop / fixed, flop / any, any / fixed);
}

/*
 * Returns the GB/s of a sum over memory, eight lanes of 64 bits at a time, as the compiler
 * vectorises the loop.
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

static void measure_kernels(const char *name, int32_t dtype, int64_t m, int64_t n, int64_t k,
                            int64_t threads)
{
	struct tess_view rows[WEIGHTS], panels[WEIGHTS];
	int64_t bytes = n * k * (dtype == TESS_F32 ? 4 : 2);
	double products = 2e-9 * (double)m * (double)n * (double)k, gb = 1e-9 * (double)bytes,
	       start;

	for (int i = 0; i < WEIGHTS; i++) {
		rows[i] = make_weight(dtype, n, k);
		panels[i] = (struct tess_view){ .data = alloc_on_device(bytes + 64 * k) };
		start = read_seconds();
		exit_on_device_error(device->pack(self, &rows[i], &panels[i]));
		start = read_seconds() - start;
	}
	printf("%-5s plain read %5.1f GB/s | panels: decode %5.1f GB/s, prefill %5.1f GFLOP/s | "
	       "rows: decode %5.1f GB/s, prefill %5.1f GFLOP/s | pack %4.1f GB/s\n",
	       name, time_memory_read(rows, bytes), gb / time_linear(panels, 1),
	       products / time_linear(panels, m), gb / time_linear(rows, 1),
	       products / time_linear(rows, m), gb / start);
	if (dtype == TESS_F32 && threads == 1 && can_run_free_order(n))
		measure_order(panels, m);
	for (int i = 0; i < WEIGHTS; i++) {
		device->free(self, rows[i].data);
		device->free(self, panels[i].data);
	}
}

/* ---- attention over a latent ----------------------------------------------------------------- */

enum { HEADS = 16, NOPE = 128, ROTATED = 64, VALUE = 128, RANK = 512, KEYS = 2048, PAGE = 64 };

struct layer { /* a layer of DeepSeek's attention, in one of its forms */
	bool latent;
	int64_t d, value, kv; /* elements of a key and of a value, and the heads that have them */
	struct tess_view x; /* queries, or the input of keys and values */
	struct tess_view q, k, v, out, w, w_out; /* out: of attention; w: parts of kv_b_proj */
	struct tess_view positions, slots, pages;
};

static struct tess_view take_rows(struct tess_view v, int64_t first, int64_t rows)
{
	v.data = (char *)v.data + first * v.stride[0] * 4;
	v.shape[0] = rows;
	return v;
}

static void run_op(int32_t kind, const struct tess_view *in, int32_t nin,
                   const struct tess_view *out, const double *num, int32_t nnum)
{
	const int64_t bound[2] = { 0, RANK };
	const struct tess_tree tree = { .n = 1, .hi = 1, .terms = 1 };
	const struct tess_term term = { .bound = bound };
	struct tess_op op = { .size = sizeof op,
		              .kind = kind,
		              .nin = nin,
		              .nout = 1,
		              .nnum = nnum,
		              .ntree = kind == TESS_OP_LINEAR,
		              .nterm = kind == TESS_OP_LINEAR,
		              .in = in,
		              .out = out,
		              .num = num,
		              .tree = &tree,
		              .term = &term,
		              .where = "bench" };

	exit_on_device_error(device->supports(&op));
	exit_on_device_error(device->run(self, &op));
}

/*
 * Runs rows [first, first + rows) of a sequence: queries into the latent, attention, and values out
 * of it; or keys and values out of the latent, and attention, without the copies for their layout.
 */
static void run_layer(const struct layer *l, int64_t first, int64_t rows)
{
	int32_t project = l->latent ? TESS_OP_HEAD_LINEAR : TESS_OP_LINEAR;
	struct tess_view out = take_rows(l->out, first, rows), v = take_rows(l->v, first, rows);
	struct tess_view made = take_rows(l->latent ? l->q : l->v, first, rows);
	double num[TESS_ATTENTION_NUMS] = { [TESS_ATTENTION_SCALE] = 1 / sqrt(NOPE + ROTATED),
		                            [TESS_ATTENTION_HEAD] = (double)l->d,
		                            [TESS_ATTENTION_GROUP] = (double)(HEADS / l->kv),
		                            [TESS_ATTENTION_VALUES] =
		                                    (double)(l->kv * l->d * PAGE * 4),
		                            [TESS_ATTENTION_DTYPE] = TESS_F32,
		                            [TESS_ATTENTION_VALUE] = (double)l->value };
	struct tess_view in[6] = {
		take_rows(l->q, first, rows),         take_rows(l->k, first, rows),     v,
		take_rows(l->positions, first, rows), take_rows(l->slots, first, rows), l->pages
	};

	run_op(project, (struct tess_view[]){ take_rows(l->x, first, rows), l->w }, 2, &made, NULL,
	       0);
	if (l->latent)
		in[2].ndim = 0;
	else
		in[2].shape[1] = HEADS * VALUE;
	run_op(TESS_OP_ATTENTION, in, 6, &out, num, TESS_ATTENTION_NUMS);
	if (l->latent)
		run_op(project, (struct tess_view[]){ out, l->w_out }, 2, &v, NULL, 0);
}

/* Makes panels of bf16; of each head if `heads` > 1. */
static struct tess_view make_panels(int64_t heads, int64_t n, int64_t k)
{
	struct tess_view rows = make_weight(TESS_BF16, heads * n, k);
	struct tess_view v = { .data = alloc_on_device(heads * n * k * 2) };

	exit_on_device_error(device->pack(self, &rows, &v));
	if (heads > 1) {
		v.ndim = 3;
		memcpy(v.shape, (int64_t[]){ heads, n, k }, 3 * sizeof *v.shape);
		memcpy(v.stride, (int64_t[]){ n * k, 16 * k, 16 }, 3 * sizeof *v.stride);
	}
	return v;
}

static struct layer make_layer(bool latent)
{
	static int32_t position[KEYS], slot[KEYS];
	struct layer l = { .latent = latent,
		           .d = (latent ? RANK : NOPE) + ROTATED,
		           .value = latent ? RANK : VALUE,
		           .kv = latent ? 1 : HEADS };
	int64_t *page = calloc(KEYS / PAGE, sizeof *page);
	int64_t floats = l.kv * l.d + (latent ? 0 : HEADS * VALUE); /* floats of a position */

	l.x = make_weight(TESS_F32, KEYS, latent ? HEADS * (NOPE + ROTATED) : RANK);
	l.q = make_weight(TESS_F32, KEYS, HEADS * l.d);
	l.k = make_weight(TESS_F32, KEYS, l.kv * l.d);
	l.v = make_weight(TESS_F32, KEYS, HEADS * (latent ? VALUE : NOPE + VALUE));
	l.out = make_weight(TESS_F32, KEYS, HEADS * l.value);
	l.w = latent ? make_panels(HEADS, RANK, NOPE)
	             : make_panels(1, HEADS * (NOPE + VALUE), RANK);
	l.w_out = make_panels(HEADS, VALUE, RANK);
	for (int i = 0; i < KEYS; i++)
		position[i] = i;
	for (int i = 0; i < KEYS / PAGE; i++)
		page[i] = (int64_t)(uintptr_t)make_weight(TESS_F32, PAGE, floats).data;
	l.positions = l.slots = (struct tess_view){
		.data = position, .dtype = TESS_I32, .ndim = 1, .shape = { KEYS }, .stride = { 1 }
	};
	l.slots.data = slot;
	l.pages = (struct tess_view){ .data = page,
		                      .dtype = TESS_I64,
		                      .ndim = 2,
		                      .shape = { 1, KEYS / PAGE },
		                      .stride = { KEYS / PAGE, 1 } };
	run_layer(&l, 0, KEYS); /* fills the cache */
	return l;
}

/* Returns the milliseconds of the fastest round. */
static double time_rows(const struct layer *l, int64_t first, int64_t rows)
{
	double best = 1e9, start;

	for (int i = 0; i < ROUNDS; i++) {
		start = read_seconds();
		run_layer(l, first, rows);
		start = read_seconds() - start;
		best = start < best ? start : best;
	}
	return 1e3 * best;
}

static void measure_latent(void)
{
	static const int64_t parts[][2] = { { 0, 512 }, { KEYS - 512, 512 }, { KEYS - 1, 1 } };
	struct layer latent = make_layer(true), heads = make_layer(false);

	for (int i = 0; i < 3; i++)
		printf("%d heads, %3lld rows that end at %4lld keys: over the latent %7.2f ms, "
		       "decompressed %7.2f ms\n",
		       HEADS, (long long)parts[i][1], (long long)(parts[i][0] + parts[i][1]),
		       time_rows(&latent, parts[i][0], parts[i][1]),
		       time_rows(&heads, parts[i][0], parts[i][1]));
}

/* ---- ops of training ------------------------------------------------------------------------- */

/* Returns the seconds of the fastest round. */
static double time_op(const struct tess_op *op)
{
	double best = 1e9, start;

	exit_on_device_error(device->supports(op));
	for (int i = 0; i < ROUNDS; i++) {
		start = read_seconds();
		exit_on_device_error(device->run(self, op));
		start = read_seconds() - start;
		best = start < best ? start : best;
	}
	return best;
}

static struct tess_view make_vector(int32_t dtype, int64_t n)
{
	struct tess_view v = make_weight(dtype == TESS_I32 ? TESS_F32 : dtype, 1, n);

	if (dtype == TESS_I32)
		memset(v.data, 0, (size_t)n * 4);
	v.dtype = dtype;
	v.ndim = 1;
	v.shape[0] = n;
	v.stride[0] = 1;
	return v;
}

/* Makes a sum op of one tree with units of `each` elements, the last one shorter. */
static struct tess_op make_sum_op(int32_t kind, const struct tess_view *in, int32_t nin,
                                  const struct tess_view *out, int64_t n, int64_t each)
{
	static int64_t bound[1 << 16];
	static struct tess_tree tree;
	static struct tess_term term = { .bound = bound };

	tree = (struct tess_tree){ .n = tess_up(n, each), .hi = tess_up(n, each), .terms = 1 };
	for (int64_t u = 0; u <= tree.n; u++)
		bound[u] = u * each < n ? u * each : n;
	return (struct tess_op){ .size = sizeof(struct tess_op),
		                 .kind = kind,
		                 .nin = nin,
		                 .nout = 1,
		                 .ntree = 1,
		                 .nterm = 1,
		                 .in = in,
		                 .out = out,
		                 .tree = &tree,
		                 .term = &term,
		                 .where = "bench" };
}

/* Measures one sequence, with heads of 64: 2 and 5 products of each pair of rows and element. */
static void measure_attention_training(int64_t m, int64_t k)
{
	const double num[TESS_ATTENTION_NUMS] = { [TESS_ATTENTION_SCALE] = 0.125,
		                                  [TESS_ATTENTION_HEAD] = 64,
		                                  [TESS_ATTENTION_GROUP] = 1,
		                                  [TESS_ATTENTION_VALUE] = 64 };
	struct tess_view in[6] = { { 0 } }, out[3];
	double products = 1e-9 * (double)(m * (m + 1)) * (double)(k / 64 * 64);
	struct tess_op op;

	for (int i = 0; i < 3; i++) {
		in[i] = make_weight(TESS_F32, m, k / 64 * 64);
		out[i] = make_weight(TESS_F32, m, k / 64 * 64);
		in[3 + i] = make_vector(TESS_I32, m);
	}
	for (int32_t i = 0; i < m; i++)
		((int32_t *)in[3].data)[i] = i;
	in[5].ndim = 0;
	op = make_sum_op(TESS_OP_ATTENTION, in, 6, out, 1, 1);
	op.num = num;
	op.nnum = TESS_ATTENTION_NUMS;
	printf("attention %.2f\n", 2 * products / time_op(&op));
	op.kind = TESS_OP_ATTENTION_D;
	op.nout = 3;
	in[5] = make_weight(TESS_F32, m, k / 64 * 64);
	printf("attention_d %.2f\n", 5 * products / time_op(&op));
}

/*
 * Measures a linear of [M, K] to [M, N], its loss as if N were a vocabulary, and AdamW of its
 * weight.
 */
static void measure_training(int64_t m, int64_t n, int64_t k)
{
	static const double tokens[TESS_TOKENS_NUMS] = { 1, 0 }, first[TESS_LOSS_NUMS] = { 0 };
	static const double adamw[TESS_ADAMW_NUMS] = { 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1 };
	struct tess_view x = make_weight(TESS_F32, m, k), w = make_weight(TESS_F32, n, k);
	struct tess_view y = make_weight(TESS_F32, m, n), dx = make_weight(TESS_F32, m, k);
	struct tess_view dw = make_weight(TESS_F32, n, k), z = make_weight(TESS_F32, m, n);
	struct tess_view max = make_weight(TESS_F32, m, 1), sum = make_weight(TESS_F32, m, 1);
	struct tess_view label = make_vector(TESS_I32, m), count = make_vector(TESS_F32, 1);
	struct tess_view loss[5] = { z, max, sum, label, count }, state[4] = { 0 };
	double products = 2e-9 * (double)m * (double)n * (double)k, logits = 4e-9 * (double)(m * n);
	int64_t units = n >= 1 << 15 ? 128 : n >= 256 ? n / 256 : 1;
	struct tess_op op;

	op = make_sum_op(TESS_OP_LINEAR, (struct tess_view[]){ x, w }, 2, &y, k, tess_up(k, 8));
	printf("forward %.2f\n", products / time_op(&op));
	op = make_sum_op(TESS_OP_LINEAR_DX, (struct tess_view[]){ y, w }, 2, &dx, n,
	                 tess_up(n, units));
	printf("dx %.2f\n", products / time_op(&op));
	op = make_sum_op(TESS_OP_LINEAR_DW, (struct tess_view[]){ x, y }, 2, &dw, m, 32);
	op.num = tokens;
	op.nnum = TESS_TOKENS_NUMS;
	printf("dw %.2f\n", products / time_op(&op));
	op = make_sum_op(TESS_OP_LOSS_MAX, loss, 1, &max, n, n);
	printf("loss_max %.2f\n", logits / time_op(&op));
	op = make_sum_op(TESS_OP_LOSS_SUM, loss, 2, &sum, n, tess_up(n, units));
	printf("loss_sum %.2f\n", logits / time_op(&op));
	op = make_sum_op(TESS_OP_LOSS_D, loss, 5, &y, n, n);
	op.num = first;
	op.nnum = TESS_LOSS_NUMS;
	printf("loss_d %.2f\n", 2 * logits / time_op(&op));
	for (int i = 0; i < 3; i++)
		state[i] = make_vector(TESS_F32, n * k);
	memset(state[2].data, 0, (size_t)(n * k) * 4);
	dw = make_vector(TESS_F32, n * k);
	op = make_sum_op(TESS_OP_ADAMW, &dw, 1, state, 1, 1);
	op.nout = 4;
	op.num = adamw;
	op.nnum = TESS_ADAMW_NUMS;
	printf("adamw %.2f\n", 28e-9 * (double)(n * k) / time_op(&op));
	struct tess_view digits = make_vector(TESS_F32, 38);

	memset(digits.data, 0, 38 * 4);
	digits.dtype = TESS_I64;
	digits.shape[0] = 19;
	op = make_sum_op(TESS_OP_SQUARES, &dw, 1, &digits, 1, 1);
	printf("squares %.2f\n", 4e-9 * (double)(n * k) / time_op(&op));
}

int main(int argc, char **argv)
{
	static const struct tess_host host = { .size = sizeof host,
		                               .abi = TESS_ABI,
		                               .fail = print_failure,
		                               .option = read_cpu_option };
	const bool training = argc > 1 && !strcmp(argv[1], "--training") && argc-- && argv++;
	int64_t m = argc > 2 ? atoll(argv[2]) : 48, n = argc > 3 ? atoll(argv[3]) : 8192;
	int64_t k = argc > 4 ? atoll(argv[4]) : 2048, threads = argc > 5 ? atoll(argv[5]) : 1;
	void *file = dlopen(argc > 1 ? argv[1] : TESS_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
	const struct tess_plugin *plugin = file ? dlsym(file, "tess_plugin_v2") : NULL;

	if (!plugin || !plugin->devices) {
		fprintf(stderr, "kernels: %s\n", file ? "the file has no device" : dlerror());
		return EXIT_FAILURE;
	}
	exit_on_device_error(plugin->init(&host));
	device = plugin->devices[0];
	exit_on_device_error(device->open(0, (int32_t)threads, &self));
	if (training) {
		measure_training(m, n, k);
		measure_attention_training(m, k);
		device->close(self);
		return EXIT_SUCCESS;
	}
	printf("M %lld, N %lld, K %lld, %lld threads, %s\n", (long long)m, (long long)n,
	       (long long)k, (long long)threads, read_cpu_option("cpu"));
	measure_kernels("f32", TESS_F32, m, n, k, threads);
	measure_kernels("bf16", TESS_BF16, m, n, k, threads);
	measure_kernels("f16", TESS_F16, m, n, k, threads);
	measure_latent();
	device->close(self);
	return EXIT_SUCCESS;
}
