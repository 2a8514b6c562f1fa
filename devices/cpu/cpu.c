/*
 * tess-device-cpu.so: computes on the CPU; sums have one order, so the bits are equal everywhere.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tessera/util/float.h>
#include <unistd.h>
#if defined(CPU_X86)
#include <cpuid.h>
#endif

#include "cpu.h"

enum { THREADS_MAX = 1024 };
enum { HUGE_PAGE_BYTES = 2 << 20 }; /* minimum size of allocations with huge pages */
enum { PACK_SHARE = 1 << 16 }; /* elements of a weight packed by a share */

const struct tess_host *cpu_host;

extern const struct cpu_kernels kernels_scalar;
#if defined(CPU_ARM)
extern const struct cpu_kernels kernels_neon;
#elif defined(CPU_X86)
extern const struct cpu_kernels kernels_avx2, kernels_avx512;
extern const struct pair_tiles pair_tiles_avx512bf16;

/* Some compilers have no __builtin_cpu_supports("f16c"). */
static bool has_f16c(void)
{
	unsigned int a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}
#endif

static bool is_isa_usable(const char *name)
{
#if defined(CPU_X86)
	if (!strcmp(name, "avx512bf16"))
		return __builtin_cpu_supports("avx512bf16") && is_isa_usable("avx512");
	if (!strcmp(name, "avx512"))
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       is_isa_usable("avx2");
	if (!strcmp(name, "avx2"))
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		       has_f16c();
#endif
#if defined(CPU_ARM)
	if (!strcmp(name, "neon")) /* part of every aarch64 processor */
		return true;
#endif
	return !strcmp(name, "scalar");
}

/* The instruction sets, best first. */
static const struct kernel_set {
	const char *name;
	const struct cpu_kernels *kernels;
	const struct pair_tiles *pairs; /* NULL: the kernels' own */
} kernel_sets[] = {
#if defined(CPU_X86)
	{ "avx512bf16", &kernels_avx512, &pair_tiles_avx512bf16 },
	{ "avx512", &kernels_avx512, NULL },
	{ "avx2", &kernels_avx2, NULL },
#elif defined(CPU_ARM)
	{ "neon", &kernels_neon, NULL },
#endif
	{ "scalar", &kernels_scalar, NULL },
};

static tess_status choose_kernels(const struct kernel_set **out)
{
	const char *isa = cpu_host->option("cpu");
	bool any = !strcmp(isa, "auto");

	for (size_t i = 0; i < sizeof kernel_sets / sizeof *kernel_sets; i++) {
		if ((any || !strcmp(isa, kernel_sets[i].name)) &&
		    is_isa_usable(kernel_sets[i].name)) {
			*out = &kernel_sets[i];
			return TESS_OK;
		}
	}
	return cpu_host->fail(TESS_ENOTSUP,
	                      "TESSERA_CPU=%s: not an instruction set that this "
	                      "processor and this build have; use auto, scalar%s%s%s%s",
	                      isa, is_isa_usable("avx2") ? ", avx2" : "",
	                      is_isa_usable("avx512") ? ", avx512" : "",
	                      is_isa_usable("avx512bf16") ? ", avx512bf16" : "",
	                      is_isa_usable("neon") ? ", neon" : "");
}

/*
 * Allocates memory with huge pages, which are faster to fill and to read: each step reads weights
 * completely, and packed rows for each group of panels.
 */
static tess_status device_alloc(void *self, uint64_t bytes, void **out)
{
	bool huge = bytes >= HUGE_PAGE_BYTES;
	void *p;

	(void)self;
	/* aligned_alloc would require a multiple of the alignment */
	if (bytes > SIZE_MAX - 64 ||
	    posix_memalign(&p, huge ? HUGE_PAGE_BYTES : 64, bytes ? (bytes + 63) / 64 * 64 : 64))
		return cpu_host->fail(TESS_ENOMEM, "cpu: out of memory: %llu bytes",
		                      (unsigned long long)bytes);
	if (huge)
		madvise(p, bytes, MADV_HUGEPAGE);
	*out = p;
	return TESS_OK;
}

static tess_status grow_scratch(void **data, size_t *have, size_t bytes)
{
	tess_status st;
	void *more = NULL;

	if (*have >= bytes)
		return TESS_OK;
	bytes = (bytes + bytes / 4 + 4095) / 4096 * 4096;
	st = device_alloc(NULL, bytes, &more);
	if (st)
		return st;
	free(*data);
	*data = more;
	*have = bytes;
	return TESS_OK;
}

tess_status cpu_get_shared_scratch(struct cpu *cpu, size_t bytes, void **out)
{
	tess_status st = grow_scratch(&cpu->shared_scratch.data, &cpu->shared_scratch.bytes, bytes);

	if (!st)
		*out = cpu->shared_scratch.data;
	return st;
}

tess_status cpu_get_row_scratch(struct cpu *cpu, size_t bytes, void **out)
{
	tess_status st = grow_scratch(&cpu->row_scratch.data, &cpu->row_scratch.bytes, bytes);

	if (!st)
		*out = cpu->row_scratch.data;
	return st;
}

tess_status cpu_grow_thread_scratch(struct cpu *cpu, size_t bytes)
{
	size_t each = (bytes + 63) / 64 * 64;
	tess_status st = grow_scratch(&cpu->thread_scratch.data, &cpu->thread_scratch.bytes,
	                              each * (size_t)cpu->nthreads);

	if (!st)
		cpu->thread_scratch_bytes = each;
	return st;
}

static tess_status report_plan(const struct tess_op *op, tess_status st)
{
	if (st)
		cpu_host->fail(st, "%s: cpu: out of memory for the steps of a sum", op->where);
	return st;
}

tess_status cpu_plan_sum(struct cpu *cpu, const struct tess_op *op, bool partial, int64_t step_max)
{
	return report_plan(op, sum_plan(&cpu->plans, op, partial, step_max, &cpu->sum));
}

tess_status cpu_plan_tokens(struct cpu *cpu, const struct tess_op *op, int32_t tree,
                            int64_t step_max)
{
	return report_plan(op, sum_plan_tokens(&cpu->plans, op, tree, step_max, &cpu->sum));
}

tess_status cpu_plan_tree(struct cpu *cpu, const struct tess_op *op, int32_t tree, bool partial,
                          int64_t step_max, const struct sum **sum)
{
	struct tess_op one = *op;

	one.tree += tree;
	one.ntree = 1;
	return report_plan(op, sum_plan(&cpu->plans, &one, partial, step_max, sum));
}

static int32_t count_cpu_devices(void)
{
	return 1;
}

static void device_close(void *self)
{
	struct cpu *cpu = self;

	if (!cpu)
		return;
	pool_close(cpu->pool);
	sum_free_plans(&cpu->plans);
	free(cpu->shared_scratch.data);
	free(cpu->row_scratch.data);
	free(cpu->thread_scratch.data);
	free(cpu);
}

/* Checks that there is a kernel for a kind of op; all instruction sets have the same kernels. */
static tess_status check_op_kind(const struct tess_op *op)
{
	if (op->kind > 0 && op->kind < TESS_OP_KINDS && kernels_scalar.run[op->kind])
		return TESS_OK;
	return cpu_host->fail(TESS_ENOTSUP,
	                      "%s: cpu: ops of kind %d are not supported; use another device, or a "
	                      "newer version",
	                      op->where ? op->where : "an op", (int)op->kind);
}

static tess_status device_open(int32_t index, int32_t nthreads, void **self)
{
	const struct kernel_set *set;
	struct cpu *cpu;
	tess_status st;
	int err;

	if (index != 0)
		return cpu_host->fail(TESS_EINVAL, "cpu: no device %d; there is one, number 0",
		                      (int)index);
	if (nthreads < 1 || nthreads > THREADS_MAX)
		return cpu_host->fail(TESS_EINVAL, "cpu: %d threads; use 1 to %d", (int)nthreads,
		                      THREADS_MAX);
	cpu = calloc(1, sizeof *cpu);
	if (!cpu)
		return cpu_host->fail(TESS_ENOMEM, "cpu: out of memory");
	cpu->nthreads = nthreads;
	st = choose_kernels(&set);
	if (st)
		goto out;
	cpu->kernels = set->kernels;
	cpu->pairs = set->pairs ? set->pairs : set->kernels->pairs;
	err = pool_open(nthreads, &cpu->pool);
	if (err)
		st = cpu_host->fail(err == ENOMEM ? TESS_ENOMEM : TESS_EDEVICE,
		                    "cpu: %d threads could not be started: %s; use fewer",
		                    (int)nthreads, strerror(err));
out:
	if (st)
		device_close(cpu);
	else
		*self = cpu;
	return st;
}

static void device_free(void *self, void *p)
{
	(void)self;
	free(p);
}

static tess_status device_run(void *self, const struct tess_op *op)
{
	struct cpu *cpu = self;
	tess_status st = check_op_kind(op);
	uint32_t saved;

	if (st)
		return st;
	saved = tess_float_enter();
	st = cpu->kernels->run[op->kind](cpu, op);
	tess_float_leave(saved);
	return st;
}

/* Encodes rows: the elements of one unit for TESS_Q8 and TESS_MXFP4, all for TESS_BF12. */
static tess_status encode_rows(struct cpu *cpu, const struct tess_view *rows,
                               struct tess_view *panels)
{
	const struct cpu_kernels *kernels = cpu->kernels;
	pool_fn *encode = panels->dtype == TESS_Q8     ? kernels->quantize
	                  : panels->dtype == TESS_BF12 ? kernels->pack_bf12
	                                               : kernels->pack_mxfp4;
	int64_t n = tess_up(rows->shape[0], LANES);
	struct pack pack = { rows, panels, calloc((size_t)n + 1, sizeof *pack.refused) };
	bool refused = false;

	if (!pack.refused)
		return cpu_host->fail(TESS_ENOMEM, "cpu: out of memory");
	pool_run(cpu->pool, encode, &pack, n, tess_up(PACK_SHARE, rows->shape[1] * LANES + 1));
	for (int64_t i = 0; i < n; i++)
		refused = refused || pack.refused[i];
	free(pack.refused);
	if (refused && panels->dtype == TESS_BF12)
		return cpu_host->fail(TESS_ENOTSUP,
		                      "too many elements have another exponent than the 16 most "
		                      "frequent of their panel for 12-bit weights");
	if (refused)
		return cpu_host->fail(TESS_EINVAL,
		                      "an element is NaN%s, which %s-bit weights cannot hold; use "
		                      "weights as in the files",
		                      panels->dtype == TESS_Q8 ? ", infinite or above 8.3e6"
		                                               : " or infinite",
		                      panels->dtype == TESS_Q8 ? "8" : "4");
	return TESS_OK;
}

static bool is_matrix_in_rows(const struct tess_view *v, int32_t panels)
{
	return (v->dtype == TESS_F32 || v->dtype == TESS_BF16 || v->dtype == TESS_F16 ||
	        (v->dtype == TESS_MXFP4 && panels == TESS_MXFP4)) &&
	       v->layout == TESS_ROWS && v->ndim == 2 && v->shape[0] >= 0 && v->shape[1] >= 0;
}

static tess_status device_pack(void *self, const struct tess_view *rows, struct tess_view *panels)
{
	struct cpu *cpu = self;
	struct tess_view out = {
		.data = panels->data,
		.dtype = rows->dtype,
		.ndim = 2,
		.layout = TESS_PANELS,
		.shape = { rows->shape[0], rows->shape[1] },
		.stride = { panels->stride[0] ? panels->stride[0] : rows->shape[1] * LANES, LANES },
	};
	struct pack pack = { rows, &out, NULL };

	if (!is_matrix_in_rows(rows, panels->dtype))
		return cpu_host->fail(
			TESS_ENOTSUP,
			"cpu: only rows [N, K] in f32, bf16 or f16 become panels, and "
			"those in mxfp4 panels of mxfp4");
	if (panels->dtype == TESS_BF12 && rows->dtype != TESS_BF16)
		return cpu_host->fail(TESS_EINVAL, "cpu: only bf16 becomes bf12");
	if (panels->dtype >= TESS_Q8)
		return encode_rows(cpu, rows, panels);
	pool_run(cpu->pool, cpu->kernels->pack, &pack, tess_up(out.shape[0], LANES),
	         tess_up(PACK_SHARE, rows->shape[1] * LANES + 1));
	*panels = out;
	return TESS_OK;
}

static tess_status device_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream)
{
	(void)self, (void)stream;
	memcpy(dst, src, bytes);
	return TESS_OK;
}

static tess_status device_sync(void *self, void *stream)
{
	(void)self, (void)stream;
	return TESS_OK;
}

static tess_status get_available_bytes(void *self, uint64_t *out)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kilobytes = 0;
	char line[128];
	bool found = false;

	(void)self;
	while (f && !found && fgets(line, sizeof line, f))
		found = sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1;
	if (f)
		fclose(f);
	if (!found)
		return cpu_host->fail(TESS_ENOTSUP, "cpu: /proc/meminfo has no MemAvailable");
	*out = kilobytes * 1024;
	return TESS_OK;
}

/* Rejects a wrong TESSERA_CPU once, before ranks start. */
static tess_status init_cpu_plugin(const struct tess_host *host)
{
	const struct kernel_set *set;

	cpu_host = host;
	return choose_kernels(&set);
}

static const struct tess_device cpu_device = {
	.size = sizeof cpu_device,
	.mem = TESS_HOST,
	.name = "cpu",
	.summary = "the CPU; the same bits on any CPU, with any number of threads",
	.count = count_cpu_devices,
	.supports = check_op_kind,
	.open = device_open,
	.alloc = device_alloc,
	.free = device_free,
	.run = device_run,
	.pack = device_pack,
	.copy = device_copy,
	.sync = device_sync,
	.close = device_close,
	.layout = TESS_PANELS,
	.exact = 1,
	.free_bytes = get_available_bytes,
};
static const struct tess_option option = {
	"cpu", "auto",
	"instruction set of the cpu device: auto, scalar, avx2, avx512, avx512bf16 or "
	"neon; bits stay the same"
};

TESS_DEFINE_PLUGIN("cpu", "1.0", "Apache-2.0", .summary = "computes on the CPU",
                   .devices = TESS_LIST(tess_device, &cpu_device),
                   .options = TESS_LIST(tess_option, &option), .init = init_cpu_plugin);
