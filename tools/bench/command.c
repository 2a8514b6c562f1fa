/* command.c - `tessera bench comm`: reads options and starts the ranks. */
#include "bench.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/world/mesh_shape.h"
#include "machine.h"
#include "model.h"
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

static const uint64_t max_bytes = UINT64_C(4) << 30;

/* ---- arguments ------------------------------------------------------------------------------- */

static const char *get_sum_name(int32_t sum)
{
	static const char *const names[] = {
		[BENCH_BOTH] = "both", [BENCH_ONLY_EXACT] = "exact", [BENCH_ONLY_FAST] = "fast"
	};

	return names[sum];
}

/* Refuses options that exclude each other. */
static tess_status check_bench_options(const struct bench_options *a)
{
	bool sums = a->kind == TESS_ALL_REDUCE || a->kind == TESS_REDUCE_SCATTER;
	bool moves = a->kind == TESS_BARRIER || a->kind == BENCH_SEND_RECV;

	if (a->max_bytes > max_bytes)
		return tess_fail(TESS_EINVAL, "-e %" PRIu64 ": must be at most 4G bytes",
		                 a->max_bytes);
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

#define AT(member) TESS_TOOL_AT(struct bench_options, member)

static const struct tess_tool_option comm_options[] = {
	{ "n", "N", "number of ranks (default: the mesh's or the job's, else 2)", AT(ranks),
	  .lo = 1, .hi = 1024, .local = true },
	{ "mesh", "MESH",
	  "named dimensions of the ranks; the groups along one make the call concurrently",
	  AT(mesh) },
	{ "along", "DIMENSION", "that dimension of the mesh (default: tp)", AT(along) },
	{ "backend", "auto|BACKEND",
	  "backend: shm, gloo, ... (default: TESSERA_BACKEND, else auto)",
	  .parse = tess_tool_set_option, .local = true },
	{ "kind", NULL, "the collective", AT(kind), .lo = TESS_BARRIER, .hi = BENCH_SEND_RECV,
	  .get_name = bench_kind_name },
	{ "dtype", NULL, "type of the elements", AT(dtype), .lo = TESS_F32, .hi = TESS_U8,
	  .get_name = tess_dtype_name },
	{ "op", NULL, "reduction; band, bor and bxor are for integers", AT(op), .lo = TESS_SUM,
	  .hi = TESS_BXOR, .get_name = tess_reduce_op_name },
	{ "root", "R", "root of a broadcast, reduce, gather or scatter", AT(root), .hi = 1023 },
	{ "sum", NULL, "sums of f32: exact, as in sessions, or fast, as the backend adds", AT(sum),
	  .lo = BENCH_BOTH, .hi = BENCH_ONLY_FAST, .get_name = get_sum_name },
	{ "in-place", NULL, "overwrite the data with the result", AT(in_place) },
	{ "own", NULL, "use private memory, even if the backend can share memory",
	  AT(private_memory) },
	{ "limit", NULL, "also time the copies that every shared-memory algorithm needs",
	  AT(limit) },
	{ "b", "BYTES", "smallest size (default: 4)", AT(min_bytes) },
	{ "e", "BYTES", "largest size (default: 64M)", AT(max_bytes) },
	{ "f", "FACTOR", "factor from one size to the next", AT(factor), .lo = 2, .hi = 1 << 20 },
	{ "seconds", "X", "measuring time of each printed time", AT(seconds), .lo = 1e-6,
	  .hi = 3600 },
	{ "samples", "N", "maximum number of samples of each printed time", AT(samples), .lo = 5,
	  .hi = 1000000 },
	{ "no-check", NULL, "skip the check of the results", AT(no_check) },
	{ "json", NULL, "print one JSON object instead of the table", AT(json) },
	{ "svg", "FILE", "also draw times and bus bandwidths over sizes", AT(svg), .local = true },
	{ 0 },
};

/* TESS_PENDING: --help was printed. */
static tess_status parse_bench_options(int argc, char **argv,
                                       const struct tess_tool_section *sections,
                                       struct bench_options *a)
{
	tess_status st = tess_tool_parse_options(argc, argv, &tess_tool_bench, false, sections);

	if (!st && (optind + 1 != argc || strcmp(argv[optind], "comm")))
		st = tess_fail(TESS_EINVAL, "%s; see tessera bench --help",
		               optind == argc ? "give what is measured first: comm, decode, "
		                                "prefill, batch, load or machine"
		                              : "only comm, decode, prefill, batch, load and "
		                                "machine can be measured, each named first");
	return st ? st : check_bench_options(a);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Checks --mesh and --along, and takes the number of ranks from the mesh. */
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

static int execute_bench(int argc, char **argv)
{
	struct bench_options a = { .kind = TESS_ALL_REDUCE,
		                   .dtype = TESS_F32,
		                   .op = TESS_SUM,
		                   .min_bytes = 4,
		                   .max_bytes = 64 << 20,
		                   .factor = 4,
		                   .seconds = 0.25,
		                   .samples = 200 };
	struct model_options m = { .context = -1, .tokens = -1, .rounds = -1 };
	struct machine_options machine_values = { .seconds = 90 };
	bool model = argc > 1 && model_has_kind(argv[1]), usage;
	bool machine = argc > 1 && !strcmp(argv[1], "machine");
	const struct tess_tool_section sections[] = {
		{ "Models (decode, prefill, batch, load)", model_options, &m, !model },
		{ "", tess_tool_mesh_options, &m.session, !model },
		{ "", tess_tool_job_options, &m.session, !model },
		{ "", tess_tool_plan_options, &m.session, !model },
		{ "", tess_tool_memory_options, &m.session, !model },
		{ "", tess_tool_compute_options, &m.session, !model },
		{ "", tess_tool_math_options, &m.session, !model },
		{ "Collectives (comm)", comm_options, &a, model || machine },
		{ "This host (machine)", machine_options, &machine_values, !machine },
		{ 0 },
	};
	int exit_status = 0;
	tess_status st;

	if (model)
		return model_run_command(argc, argv, sections, &m);
	if (machine)
		return machine_run_command(argc, argv, sections, &machine_values);
	st = parse_bench_options(argc, argv, sections, &a);
	usage = st < 0;
	if (!st)
		st = run_bench(&a, argv, &exit_status);
	if (st < 0)
		tess_tool_print_error("bench");
	return usage ? 2 : st < 0 ? 1 : exit_status;
}

const struct tess_tool_command tess_tool_bench = {
	"bench",
	"measure tokens per second of a checkpoint, the bandwidth of collectives, or this host",
	"decode|prefill|batch|load MODEL [options]\n       tessera bench comm [options]\n"
	"       tessera bench machine --out FILE [options]",
	"decode, prefill and batch time a checkpoint, which needs no tokenizer: rounds of N\n"
	"tokens, one at a time; of one forward of a prompt of N; of N tokens of B sequences at\n"
	"once. load times a fresh process: until the model is open, until the first of N tokens,\n"
	"and from the last one to the end of the process; files are in the page cache.\n"
	"\n"
	"comm times a collective over sizes and prints them as nccl-tests does. The time is the\n"
	"median of the slowest rank; each sample begins with data just written and a barrier. A\n"
	"sum of f32 is timed both exact, as sessions add, and fast, as the backend adds.\n"
	"\n"
	"machine measures this host in two minutes, and writes a machine file for tessera plan:\n"
	"the time of steps of small checkpoints with random weights, which need 1 GB in TMPDIR,\n"
	"and of collectives. Let nothing else run meanwhile.\n",
	"  tessera bench decode data -n 2 --backend shm --threads 1 --breakdown\n"
	"  tessera bench prefill data --tokens 256 --json\n"
	"  tessera bench batch data --batch 1,4,16\n"
	"  tessera bench load data -n 2\n"
	"  tessera bench comm -n 2 --backend gloo --kind all_gather --dtype bf16 -b 1K -e 16M\n"
	"  tessera bench comm --mesh dp=2,tp=2 --along dp\n"
	"  tessera bench comm --limit --svg shm.svg\n"
	"  tessera bench machine --out host.json\n",
	execute_bench,
};
