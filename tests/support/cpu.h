/*
 * cpu.h - support for tests of the CPU device: opens the built plugin with its own host, makes
 * numbers and views.
 */
#ifndef TESS_TESTS_SUPPORT_CPU_H
#define TESS_TESTS_SUPPORT_CPU_H

#include "draw.h"
#include "suite.h"

#include "nn/op/check.h"

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/reduce.h>
#include <tessera/tessera.h>

static const char *cpu_isa = "auto"; /* TESSERA_CPU for the next device */
static char cpu_sentence[512];
static const struct tess_device *cpu_device;

static inline tess_status cpu_keep_sentence(tess_status why, const char *fmt, ...)
{
	va_list list;

	va_start(list, fmt);
	vsnprintf(cpu_sentence, sizeof cpu_sentence, fmt, list);
	va_end(list);
	return why;
}

static inline const char *cpu_get_option(const char *key)
{
	ck_assert_str_eq(key, "cpu");
	return cpu_isa;
}

/* Opens a device; returns NULL if this CPU lacks the instructions. */
static inline void *cpu_open_device(const char *set, int32_t nthreads)
{
	static const struct tess_host host = {
		.size = sizeof host,
		.abi = TESS_ABI,
		.fail = cpu_keep_sentence,
		.option = cpu_get_option,
	};
	const struct tess_plugin *plugin;
	void *file, *self = NULL;

	if (!cpu_device) {
		file = dlopen(TESS_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
		ck_assert_msg(file != NULL, "%s", dlerror());
		plugin = dlsym(file, "tess_plugin_v2");
		ck_assert_ptr_nonnull(plugin);
		ck_assert_int_eq(plugin->init(&host), TESS_OK);
		cpu_device = plugin->devices[0];
	}
	cpu_isa = set;
	return cpu_device->open(0, nthreads, &self) == TESS_OK ? self : NULL;
}

/* ---- devices and checks */

static const int64_t tokens_of[] = { 1, 2, 5, 48 };
enum { NTOKENS = sizeof tokens_of / sizeof *tokens_of };

struct cpu_variant {
	const char *isa;
	int32_t nthreads;
};
#if defined(CPU_TESTED) /* set by tests/aarch64 */
static const struct cpu_variant cpu_variants[] = { CPU_TESTED };
#elif THIN > 1
static const struct cpu_variant cpu_variants[] = {
	{ "scalar", 1 },
	{ "avx2", 3 },
	{ "avx512", 2 },
	{ "neon", 3 },
};
#else
static const struct cpu_variant cpu_variants[] = {
	{ "scalar", 1 }, { "scalar", 3 }, { "avx2", 1 }, { "avx2", 2 }, { "avx2", 3 },
	{ "avx512", 1 }, { "avx512", 2 }, { "neon", 1 }, { "neon", 3 }, { "avx512bf16", 2 },
};
#endif
enum { CPU_VARIANTS = sizeof cpu_variants / sizeof *cpu_variants };

/* The devices to test, one after another; all zero before the first. */
struct cpu_devices {
	void *now;
	const struct cpu_variant *variant; /* the variant of `now` */
	int next;
};

/* Closes the device and opens the next that this CPU can run. False: none is left. */
static inline bool cpu_open_next(struct cpu_devices *d)
{
	if (d->now)
		cpu_device->close(d->now);
	for (d->now = NULL; !d->now && d->next < CPU_VARIANTS; d->next++) {
		d->variant = &cpu_variants[d->next];
		d->now = cpu_open_device(d->variant->isa, d->variant->nthreads);
	}
	return d->now != NULL;
}

/*
 * Checks, like a program before it runs, that `op` is valid for a device and that this one can run
 * it.
 */
static inline tess_status cpu_check_op_for(const struct tess_device *device,
                                           const struct tess_op *op)
{
	tess_status st = tess_op_check(op, device);

	return st ? cpu_keep_sentence(st, "%s", tess_error()) : device->supports(op);
}

static inline tess_status cpu_check_op(const struct tess_op *op)
{
	return cpu_check_op_for(cpu_device, op);
}

/* Checks and runs `op`. For ops that must be refused call cpu_check_op. */
static inline void cpu_run_op(void *device, const struct tess_op *op)
{
	ck_assert_msg(cpu_check_op(op) == TESS_OK, "%s", cpu_sentence);
	ck_assert_msg(cpu_device->run(device, op) == TESS_OK, "%s", cpu_sentence);
}

/* ---- numbers */

static uint64_t cpu_seed = 1;

static inline uint32_t cpu_draw_random(void)
{
	return (uint32_t)draw_below(&cpu_seed, UINT64_C(1) << 31);
}

/* Draws from (-1, 1), of very different magnitudes, so that the order of a sum matters. */
static inline float cpu_draw_float(void)
{
	int exponent = -(int)(cpu_draw_random() % 12);

	return ldexpf((float)(int32_t)(cpu_draw_random() << 1) / 0x1p31f, exponent);
}

static inline float *cpu_make_floats(int64_t n)
{
	float *f = calloc((size_t)(n ? n : 1), sizeof *f);

	for (int64_t i = 0; i < n; i++)
		f[i] = cpu_draw_float();
	return f;
}

static inline uint16_t cpu_truncate_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof bits);
	return (uint16_t)(bits >> 16);
}

/* Draws any finite value. */
static inline uint16_t cpu_draw_f16(void)
{
	uint16_t h = (uint16_t)cpu_draw_random();

	return (h & 0x7c00) == 0x7c00 ? (uint16_t)(h & 0xbbff) : h;
}

static inline double cpu_convert_f16(uint16_t h)
{
	int e = h >> 10 & 31;
	double v = e ? ldexp((h & 0x3ff) + 1024, e - 25) : ldexp(h & 0x3ff, -24);

	return h & 0x8000 ? -v : v;
}

static inline int64_t cpu_get_width(int32_t dtype)
{
	return dtype == TESS_F32 || dtype == TESS_I32 ? 4 : 2;
}

static inline int32_t cpu_choose_dtype(int i)
{
	return (const int32_t[]){ TESS_F32, TESS_BF16, TESS_F16 }[i % 3];
}

/* An array of n weights of a type, at an odd address, and their values as floats. */
struct cpu_weights {
	int32_t dtype;
	char *memory, *data;
	float *value;
};

static inline struct cpu_weights cpu_make_weights(int32_t dtype, int64_t n)
{
	struct cpu_weights w = { .dtype = dtype, .value = cpu_make_floats(n) };
	uint16_t h;

	w.memory = calloc(1, (size_t)(n * 4 + 1));
	w.data = w.memory + 1;
	for (int64_t i = 0; i < n; i++) {
		if (dtype == TESS_F32) {
			memcpy(w.data + i * 4, &w.value[i], 4);
			continue;
		}
		h = dtype == TESS_F16 ? cpu_draw_f16() : cpu_truncate_bf16(w.value[i]);
		w.value[i] = dtype == TESS_F16 ? (float)cpu_convert_f16(h) : 0;
		if (dtype == TESS_BF16)
			memcpy((char *)&w.value[i] + 2, &h, 2);
		memcpy(w.data + i * 2, &h, 2);
	}
	return w;
}

static inline void cpu_free_weights(struct cpu_weights *w)
{
	free(w->memory);
	free(w->value);
}

static inline bool cpu_is_same(float a, float b)
{
	return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static inline void cpu_expect_equal(const char *what, const float *got, const float *want,
                                    int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!cpu_is_same(got[i], want[i]))
			ck_abort_msg("%s: element %lld is %a, not %a", what, (long long)i,
			             (double)got[i], (double)want[i]);
#if defined(CHECK_DIGEST)
	if (!strcmp(cpu_isa, cpu_variants[0].isa))
		check_add_to_digest(want, n);
#endif
}

/* ---- views */

/* Counts from the first to the last element of a view in rows. */
static inline int64_t cpu_count_elements(const struct tess_view *v)
{
	int64_t last = 0;

	for (int32_t i = 0; i < v->ndim; i++) {
		if (!v->shape[i])
			return 0;
		last += (v->shape[i] - 1) * v->stride[i];
	}
	return v->ndim ? last + 1 : 0;
}

static inline struct tess_view cpu_make_view(void *data, int32_t dtype, int64_t rows,
                                             int64_t columns, int64_t stride_rows,
                                             int64_t stride_columns)
{
	return (struct tess_view){ .data = data,
		                   .dtype = dtype,
		                   .ndim = 2,
		                   .shape = { rows, columns },
		                   .stride = { stride_rows, stride_columns } };
}

static inline struct tess_view cpu_make_rows(void *data, int64_t rows, int64_t columns,
                                             int64_t pitch)
{
	return cpu_make_view(data, TESS_F32, rows, columns, pitch, 1);
}

/* Makes the nodes of a Partial, contiguous. */
static inline struct tess_view cpu_make_partial(void *data, int64_t nodes, int64_t rows,
                                                int64_t columns, int64_t pitch)
{
	return (struct tess_view){ .data = data,
		                   .dtype = TESS_F32,
		                   .ndim = 3,
		                   .shape = { nodes, rows, columns },
		                   .stride = { rows * pitch, pitch, 1 } };
}

static inline struct tess_view cpu_make_list(void *data, int32_t dtype, int64_t n)
{
	return (struct tess_view){
		.data = data, .dtype = dtype, .ndim = 1, .shape = { n }, .stride = { 1 }
	};
}

/*
 * Makes sinks of heads in new memory, with NaN between them: small, as large as scores, much
 * larger, or none. The caller frees view.data.
 */
static inline struct tess_view cpu_make_sinks(int32_t dtype, int64_t heads)
{
	static const float some[] = { 0.5f, -1, 3, 60, 0, -2, -INFINITY, 2 };
	int64_t width = cpu_get_width(dtype);
	struct tess_view v = cpu_make_list(malloc((size_t)(heads * 2 * width)), dtype, heads);

	memset(v.data, 0xff, (size_t)(heads * 2 * width));
	v.stride[0] = 2;
	for (int64_t h = 0; h < heads; h++) {
		float x = some[h % 8];
		uint16_t half = dtype == TESS_BF16 ? tess_bf16_round(x) : tess_f16_round(x);

		memcpy((char *)v.data + h * 2 * width, width == 4 ? (void *)&x : &half,
		       (size_t)width);
	}
	return v;
}

static inline struct tess_view cpu_make_matrix(const struct cpu_weights *w, int64_t n, int64_t k,
                                               int64_t stride_n, int64_t stride_k)
{
	return cpu_make_view(w->data, w->dtype, n, k, stride_n, stride_k);
}

/* Makes an op with one result; borrows the operands and numbers. */
static inline struct tess_op cpu_make_op(int32_t kind, const struct tess_view *in, int32_t nin,
                                         const struct tess_view *out, const double *num,
                                         int32_t nnum)
{
	return (struct tess_op){ .size = sizeof(struct tess_op),
		                 .kind = kind,
		                 .nin = nin,
		                 .nout = 1,
		                 .nnum = nnum,
		                 .in = in,
		                 .out = out,
		                 .num = num,
		                 .where = "layers.0.mlp" };
}

/* Makes an op with one result and sums; borrows the operands and numbers. */
static inline struct tess_op cpu_make_sum_op(int32_t kind, const struct tess_view *in, int32_t nin,
                                             const struct tess_view *out, const double *num,
                                             int32_t nnum, const struct tess_tree *tree,
                                             int32_t ntree, const struct tess_term *term,
                                             int32_t nterm)
{
	struct tess_op op = cpu_make_op(kind, in, nin, out, num, nnum);

	op.tree = tree;
	op.ntree = ntree;
	op.term = term;
	op.nterm = nterm;
	return op;
}

/* Packs a weight as panels in new memory: free(view.data). */
static inline struct tess_view cpu_pack_weight(void *device, const struct tess_view *rows)
{
	struct tess_view panels = { 0 };
	int64_t bytes =
		tess_up(rows->shape[0], 16) * 16 * rows->shape[1] * cpu_get_width(rows->dtype);

	panels.data = malloc((size_t)bytes + 64);
	memset(panels.data, 0x7f, (size_t)bytes + 64);
	ck_assert_int_eq(cpu_device->pack(device, rows, &panels), TESS_OK);
	return panels;
}

/* Packs matrices [n, out, in], each by itself, as panels in new memory: free(view.data). */
static inline struct tess_view cpu_pack_matrices(void *device, const struct tess_view *rows)
{
	int64_t each = tess_up(rows->shape[1], 16) * 16 * rows->shape[2],
		width = cpu_get_width(rows->dtype);
	struct tess_view to = *rows, one;

	to.data = malloc((size_t)(rows->shape[0] * each * width) + 1);
	to.layout = TESS_PANELS;
	to.stride[0] = each;
	to.stride[1] = 16 * rows->shape[2];
	to.stride[2] = 16;
	for (int64_t i = 0; i < rows->shape[0]; i++) {
		struct tess_view panels = { .data = (char *)to.data + i * each * width };

		one = cpu_make_view((char *)rows->data + i * rows->stride[0] * width, rows->dtype,
		                    rows->shape[1], rows->shape[2], rows->stride[1],
		                    rows->stride[2]);
		ck_assert_int_eq(cpu_device->pack(device, &one, &panels), TESS_OK);
	}
	return to;
}

#endif
