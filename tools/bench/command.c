/* command.c - `tessera bench comm`: options, and the start of the ranks. */
#include "bench.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/world/mesh_shape.h"
#include "model.h"
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

/* In two parts, as long as compilers must take. */
static const char *const help_begin =
	"usage: tessera bench decode|prefill|batch|load MODEL [-n N] [--mesh M] [--backend B]\n"
	"       [--threads T] [--device D] [--plan P] [--plan-override PATTERN=STYLE]\n"
	"       [--ignore-unexpected] [--positions L] [--kv DTYPE] [--kv-memory SIZE]\n"
	"       [--weights HOW] [--math DTYPE]\n"
	"       [--prefill-chunk N] [--context C] [--tokens N] [--batch B,...] [--rounds R]\n"
	"       [--breakdown] [--json] [--help]\n"
	"       tessera bench comm [-n N] [--mesh M] [--along D] [--backend B] [--kind K]\n"
	"       [--dtype T] [--op O] [--root R] [--sum S] [--in-place] [--own] [--limit]\n"
	"       [-b BYTES] [-e BYTES] [-f FACTOR] [--seconds S] [--samples N] [--no-check]\n"
	"       [--json] [--svg FILE] [--help]\n"
	"\n"
	"decode, prefill and batch time a checkpoint, which needs no tokenizer: rounds of N\n"
	"tokens, one at a time; of one forward of a prompt of N; of N tokens of B texts at once.\n"
	"The model is opened once, and a round before the first is not counted. Tokens are chosen\n"
	"as generate chooses them with temperature 0, and none ends a text. load times a fresh\n"
	"process a round, from its exec: until the model is open, until the first of N tokens,\n"
	"and from the last one to the end of the process; files are in the page cache.\n"
	"  batch, tokens/s       texts at once; of all: median, least and most of the rounds\n"
	"  weights, KV cache     what a forward reads of them, on all ranks (10^6 bytes)\n"
	"  products, reads       the rates of both in the median: 2 FLOP for each product\n"
	"comm times a collective over sizes and prints them as nccl-tests does: algbw is the\n"
	"vector over the time; busbw is the part of it that a link carries, which compares with\n"
	"the speed of the link for every kind and number of ranks. The time is the median of the\n"
	"slowest rank; each sample begins with data just written and a barrier. A sum of f32 is\n"
	"timed both exact, as sessions add, and fast, as the backend adds.\n"
	"\n";
static const char *const help_options =
	"what\n"
	"  -n N            ranks: processes, or threads over loopback (default: of comm 2)\n"
	"  --mesh M        named dimensions of the ranks: dp=2,tp=4; the groups along one call\n"
	"                  at the same time; of a model without dp\n"
	"  --along D       that dimension of the mesh (default tp)\n"
	"  --backend B     shm, gloo, loopback, ... (TESSERA_BACKEND)\n"
	"  --kind K        barrier, broadcast, reduce, all_reduce (default), gather, all_gather,\n"
	"                  scatter, reduce_scatter, all_to_all, send_recv\n"
	"  --dtype T       f64, f32 (default), bf16, f16, i64, i32, i8, u8\n"
	"  --op O          sum (default), prod, min, max, band, bor, bxor\n"
	"  --root R        the root of a kind that has one (default 0)\n"
	"  --sum S         exact, fast or both (default)\n"
	"  --in-place      the result overwrites the data\n"
	"  --own           private memory, also where ranks can share memory\n"
	"  --limit         also times copying alone, from memory that the ranks share\n"
	"what, of a model\n"
	"  --threads T  --device D  --plan P  --plan-override PATTERN=STYLE\n"
	"  --ignore-unexpected  --positions L  --kv DTYPE  --kv-memory SIZE  --weights HOW\n"
	"  --math DTYPE  --prefill-chunk N\n"
	"                  as of tessera generate\n"
	"  --context C     positions that each text has before (default 16; prefill: 0)\n"
	"  --tokens N      of each text and round (default 64; prefill: 512, the prompt; load: 2)\n"
	"  --batch B,...   texts at once, a case for each (default 1; batch: 1,8,32)\n"
	"  --rounds R      of a case (default 5; load: 3)\n"
	"  --breakdown     where the time of rank 0 went in the median round: compute by op, with\n"
	"                  the shares of what memory and products could give; communication: in\n"
	"                  calls of groups; wait: there, until the last rank had made the call;\n"
	"                  other: all else\n"
	"sizes\n"
	"  -b BYTES        the smallest (default 4); K, M or G may follow\n"
	"  -e BYTES        the largest (default 64M)\n"
	"  -f FACTOR       from one size to the next (default 4)\n"
	"duration\n"
	"  --seconds S     of measuring for each time that is printed (default 0.25)\n"
	"  --samples N     at most, for each time (default 200)\n"
	"  --no-check      do not check the results\n"
	"output\n"
	"  --json          prints one JSON object instead of the table; of a model one a line\n"
	"  --svg FILE      also draws a chart\n"
	"  --help          this text\n"
	"\n"
	"examples:\n"
	"  tessera bench decode data -n 2 --backend shm --threads 1 --breakdown\n"
	"  tessera bench prefill data --tokens 256 --json\n"
	"  tessera bench batch data --batch 1,4,16\n"
	"  tessera bench load data -n 2\n"
	"  tessera bench comm -n 4\n"
	"  tessera bench comm -n 2 --backend gloo --kind all_gather --dtype bf16 -b 1K -e 16M\n"
	"  tessera bench comm --mesh dp=2,tp=2 --along dp\n"
	"  tessera bench comm --limit --svg shm.svg\n";

static const uint64_t max_bytes = UINT64_C(4) << 30;

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status parse_size_option(const char *name, const char *text, void *to)
{
	static const char letters[] = "KMG";
	unsigned long long v;
	const char *letter;
	char *end;
	int shift = 0;

	errno = 0;
	v = strtoull(text, &end, 10);
	letter = *end ? strchr(letters, *end) : NULL;
	if (letter) {
		shift = 10 * (int)(letter - letters + 1);
		end++;
	}
	if (*text < '0' || *text > '9' || *end || errno || !v || v > max_bytes >> shift)
		return tess_fail(TESS_EINVAL,
		                 "%s %s: must be a number of bytes from 1 to 4G, as "
		                 "4096 or 4K",
		                 name, text);
	*(uint64_t *)to = (uint64_t)v << shift;
	return TESS_OK;
}

static const char *get_sum_name(int32_t sum)
{
	static const char *const names[] = {
		[BENCH_BOTH] = "both", [BENCH_ONLY_EXACT] = "exact", [BENCH_ONLY_FAST] = "fast"
	};

	return names[sum];
}

static tess_status parse_seconds_option(const char *name, const char *text, void *to)
{
	double *seconds = to;
	char *end;

	*seconds = strtod(text, &end);
	if (end == text || *end || !(*seconds > 0 && *seconds <= 3600))
		return tess_fail(TESS_EINVAL, "%s %s: must be more than 0, at most 3600", name,
		                 text);
	return TESS_OK;
}

static tess_status set_backend_option(const char *name, const char *text, void *to)
{
	(void)name;
	(void)to;
	return tess_option_set("backend", text);
}

/* Refuses options that exclude each other. */
static tess_status check_bench_options(const struct bench_options *a)
{
	bool sums = a->kind == TESS_ALL_REDUCE || a->kind == TESS_REDUCE_SCATTER;
	bool moves = a->kind == TESS_BARRIER || a->kind == BENCH_SEND_RECV;

	if (a->min_bytes > a->max_bytes)
		return tess_fail(TESS_EINVAL,
		                 "-b is more than -e: %" PRIu64 " and %" PRIu64 " bytes",
		                 a->min_bytes, a->max_bytes);
	if (tess_kind_reduces(a->kind) && !tess_op_is_valid(a->op, a->dtype))
		return tess_fail(TESS_EINVAL, "--op %s is for integers, not for %s",
		                 tess_reduce_op_name(a->op), tess_dtype_name(a->dtype));
	if (a->along && !a->mesh)
		return tess_fail(TESS_EINVAL, "--along %s: give the --mesh that has it", a->along);
	if (a->ranks && a->root >= a->ranks && tess_kind_rooted(a->kind))
		return tess_fail(TESS_EINVAL, "--root %d: there are ranks 0 to %d", (int)a->root,
		                 (int)a->ranks - 1);
	if (a->in_place && moves)
		return tess_fail(TESS_EINVAL, "--in-place: %s has no buffer that it overwrites",
		                 bench_kind_name(a->kind));
	if (a->sum == BENCH_ONLY_EXACT &&
	    (!sums || a->dtype != TESS_F32 || a->op != TESS_SUM || a->in_place))
		return tess_fail(TESS_EINVAL,
		                 "--sum exact: only for all_reduce and reduce_scatter of f32, "
		                 "with --op sum and without --in-place");
	if (a->svg && a->kind == TESS_BARRIER)
		return tess_fail(TESS_EINVAL, "--svg: a barrier has no sizes to draw");
	return TESS_OK;
}

/* TESS_PENDING: --help was printed. */
static tess_status parse_bench_options(int argc, char **argv, const char *help,
                                       struct bench_options *a)
{
	const struct tess_tool_option options[] = {
		{ "n", .number = &a->ranks, .lo = 1, .hi = 1024, .local = true },
		{ "backend", .parse = set_backend_option, .local = true },
		{ "kind", .number = &a->kind, .lo = TESS_BARRIER, .hi = BENCH_SEND_RECV,
		  .get_name = bench_kind_name },
		{ "dtype", .number = &a->dtype, .lo = TESS_F32, .hi = TESS_U8,
		  .get_name = tess_dtype_name },
		{ "op", .number = &a->op, .lo = TESS_SUM, .hi = TESS_BXOR,
		  .get_name = tess_reduce_op_name },
		{ "root", .number = &a->root, .lo = 0, .hi = 1023 },
		{ "sum", .number = &a->sum, .lo = BENCH_BOTH, .hi = BENCH_ONLY_FAST,
		  .get_name = get_sum_name },
		{ "in-place", .flag = &a->in_place },
		{ "own", .flag = &a->private_memory },
		{ "limit", .flag = &a->limit },
		{ "b", .parse = parse_size_option, .to = &a->min_bytes },
		{ "e", .parse = parse_size_option, .to = &a->max_bytes },
		{ "f", .number = &a->factor, .lo = 2, .hi = 1 << 20 },
		{ "seconds", .parse = parse_seconds_option, .to = &a->seconds },
		{ "samples", .number = &a->samples, .lo = 5, .hi = 1000000 },
		{ "no-check", .flag = &a->no_check },
		{ "json", .flag = &a->json },
		{ "svg", .text = &a->svg, .local = true },
		{ "mesh", .text = &a->mesh },
		{ "along", .text = &a->along },
		{ 0 },
	};
	tess_status st = tess_tool_parse_options(argc, argv, help, false, options);

	if (!st && (optind + 1 != argc || strcmp(argv[optind], "comm")))
		st = tess_fail(TESS_EINVAL, "%s; see tessera bench --help",
		               optind == argc ? "give what is measured first: comm, decode, "
		                                "prefill, batch or load"
		                              : "only comm, decode, prefill, batch and load can "
		                                "be measured, each named first");
	return st ? st : check_bench_options(a);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Checks --mesh and --along; the ranks are those of the mesh. */
static tess_status choose_mesh(struct bench_options *a)
{
	struct tess_mesh_shape mesh;
	tess_status st = tess_mesh_shape_parse(a->mesh, a->ranks, &mesh);

	if (st)
		return st;
	if (tess_mesh_shape_find(&mesh, a->along, strlen(a->along)) < 0)
		return bench_fail_along(a);
	a->ranks = mesh.nranks;
	return TESS_OK;
}

static tess_status run_bench(struct bench_options *a, char **argv, int *exit_status)
{
	bool launched;
	tess_status st = tess_option_set("reduce", "exact");

	if (!st)
		st = tess_tool_is_launched(&launched);
	if (st)
		return st;
	if (a->mesh && !a->along)
		a->along = "tp";
	if (launched)
		return tess_tool_join_job(a->ranks, bench_run_rank, a);
	if (a->mesh)
		st = choose_mesh(a);
	if (st)
		return st;
	if (!a->ranks)
		a->ranks = 2;
	return tess_tool_run_ranks(a->ranks, argv, bench_run_rank, a, exit_status);
}

int tess_tool_bench(int argc, char **argv)
{
	struct bench_options a = { .kind = TESS_ALL_REDUCE,
		                   .dtype = TESS_F32,
		                   .op = TESS_SUM,
		                   .min_bytes = 4,
		                   .max_bytes = 64 << 20,
		                   .factor = 4,
		                   .seconds = 0.25,
		                   .samples = 200 };
	char help[8192];
	int exit_status = 0;
	bool usage;
	tess_status st;

	snprintf(help, sizeof help, "%s%s", help_begin, help_options);
	if (argc > 1 && model_has_kind(argv[1]))
		return model_run_command(argc, argv, help);
	st = parse_bench_options(argc, argv, help, &a);
	usage = st < 0;
	if (!st)
		st = run_bench(&a, argv, &exit_status);
	if (st < 0)
		tess_tool_print_error("bench");
	return usage ? 2 : st < 0 ? 1 : exit_status;
}
