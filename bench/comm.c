/*
 * comm.c - latency and bandwidth of collectives: our backends beside Open MPI, interleaved in one run.
 *
 *	comm [-n RANKS,RANKS] [-r ROUNDS] [-m MOST_BYTES] [-o OPERATION] [-b]
 *
 * Columns: shm with tensors in memory that the ranks share (as a session has them), shm with memory
 * of the program's own, gloo, Open MPI; what copying alone costs here; how many times shm is as
 * fast; and how near it is to copying. `in` is what a rank at least reads of what the others have
 * just written: its part of all their vectors, or of a sum's terms; `in, out` the same and then the
 * finished parts of the others, which a sum has to bring to every rank as well. Each cell is the best
 * median of all rounds: other work on the machine only ever adds. -b leaves what came unread between
 * two calls, as benchmarks of this kind often do: then whoever wrote it still holds it.
 */
#include <core/base/status.h>
#include <core/comm/exact.h>
#include <core/comm/room.h>
#include <core/comm/world.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

enum { SIZES = 27, ROUNDS_MOST = 64 };

/* ---- a rank ---------------------------------------------------------------------------------- */

static struct tess_group *group;
static float *dst, *src;
static uint64_t room_bytes;
static int32_t nranks;

static void must(tess_status st)
{
	if (!st)
		return;
	fprintf(stderr, "comm: %s\n", tess_error());
	exit(EXIT_FAILURE);
}

static void barrier(void)
{
	must(tess_barrier(group, "bench"));
}

static void all_reduce(uint64_t bytes)
{
	must(tess_all_reduce(group, src, dst, bytes / 4, TESS_F32, TESS_SUM, "bench"));
}

static void exact(uint64_t bytes)
{
	static const int64_t units[1] = { 32 };
	struct tess_sum s = { .ntree = 1, .n = units, .count = bytes / 4, .where = "bench" };

	must(tess_group_sum(group, &s, src, dst));
}

static void all_gather(uint64_t bytes)
{
	must(tess_all_gather(group, src, dst, bytes / 4 / (uint64_t)nranks, TESS_F32, "bench"));
}

static void reduce_scatter(uint64_t bytes)
{
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_REDUCE_SCATTER,
		.dtype = TESS_F32,
		.op = TESS_SUM,
		.src = src,
		.dst = dst,
		.count = bytes / 4 / (uint64_t)nranks,
		.where = "bench",
	};

	must(tess_group_run(group, &c));
}

/* The limit: this rank's part of what the others have written, into memory of its own. */
static void copy_in(uint64_t bytes)
{
	const struct tess_room *room = tess_group_room(group, src, room_bytes);
	uint64_t each = bytes / (uint64_t)nranks;
	int32_t me = tess_group_rank(group);

	for (int32_t i = 1; i < nranks; i++)
		memcpy((char *)dst + (uint64_t)i * each,
		       (char *)room->peer[(me + i) % nranks] + (uint64_t)me * each, each);
}

static void copy_in_out(uint64_t bytes)
{
	copy_in(bytes);
	copy_in(bytes);
}

static float *memory(uint64_t bytes, bool own)
{
	void *p;

	if (!own && tess_group_shares(group)) {
		must(tess_group_alloc(group, &bytes, &p));
		return p;
	}
	p = aligned_alloc(64, (bytes + 63) / 64 * 64);
	if (!p)
		must(tess_fail(TESS_ENOMEM, "no memory"));
	return memset(p, 0, bytes);
}

static int rank(const char *only, uint64_t most, bool own)
{
	static const struct {
		const char *name;
		void (*run)(uint64_t bytes);
	} ops[] = {
		{ "all_reduce", all_reduce }, { "exact", exact },
		{ "all_gather", all_gather }, { "reduce_scatter", reduce_scatter },
		{ "copy_in", copy_in },       { "copy_in_out", copy_in_out },
	};
	struct tess_world *w;
	struct contender c = { .barrier = barrier };

	must(tess_world_open(&w));
	group = tess_world_group(w);
	nranks = tess_group_size(group);
	room_bytes = most;
	c.rank = tess_group_rank(group);
	c.src = src = memory(most, own);
	c.dst = dst = memory(most, own);
	c.blind = getenv("COMM_BLIND") != NULL;
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
		bool limit = ops[i].run == copy_in || ops[i].run == copy_in_out;

		if (*only && strcmp(only, ops[i].name) && !limit)
			continue;
		if (limit && (own || !tess_group_shares(group)))
			continue;
		c.run = ops[i].run;
		measure_sizes(&c, ops[i].name, most);
	}
	barrier();
	tess_world_close(w);
	return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

enum { SHARED, OWN, GLOO, MPI, WHO };
enum { REDUCE, EXACT, GATHER, SCATTER, IN, IN_OUT, WHAT };

static const char *const who_name[WHO] = { "shm", "shm, own", "gloo", "Open MPI" };
static const char *const what_name[WHAT] = {
	"all_reduce", "exact", "all_gather", "reduce_scatter", "copy_in", "copy_in_out",
};

struct result {
	double us[WHO][WHAT][SIZES]; /* 0: none */
};

static void keep(struct result *r, int who, const char *line)
{
	char name[32];
	unsigned long long bytes;
	double us;
	int size = 0;

	if (sscanf(line, "%31s %llu %lf", name, &bytes, &us) != 3)
		return;
	while (bytes >> (size + 1))
		size++;
	for (int what = 0; what < WHAT; what++)
		if (!strcmp(name, what_name[what]) && size < SIZES &&
		    (!r->us[who][what][size] || us < r->us[who][what][size]))
			r->us[who][what][size] = us;
}

/* As mpirun does where there are enough. Not for Gloo, whose threads would be bound to one CPU. */
static void bind_to_cpu(int r, int n)
{
	cpu_set_t all, one;

	CPU_ZERO(&one);
	if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < n)
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && !r--)
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof one, &one);
}

static _Noreturn void become(int who, int r, int n, const char *only, const char *most, int out)
{
	char number[16], size[16], ranks[16], mpi[4096];
	ssize_t len = readlink("/proc/self/exe", mpi, sizeof mpi - 8);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(out, STDOUT_FILENO);
	if (who == SHARED || who == OWN)
		bind_to_cpu(r, n);
	snprintf(number, sizeof number, "%d", r);
	snprintf(size, sizeof size, "%d", n);
	snprintf(ranks, sizeof ranks, "%d", n);
	if (who == MPI) {
		strcpy(mpi + (len > 0 ? len : 0), "_mpi");
		setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
		setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
		execlp("mpirun", "mpirun", "--oversubscribe", "-np", ranks, mpi, most,
		       getenv("COMM_BLIND") ? "blind" : NULL, (char *)NULL);
		_exit(127);
	}
	setenv("RANK", number, 1);
	setenv("WORLD_SIZE", size, 1);
	setenv("LOCAL_RANK", number, 1);
	setenv("LOCAL_WORLD_SIZE", size, 1);
	setenv("TESSERA_BACKEND", who == GLOO ? "gloo" : "shm", 1);
	execl("/proc/self/exe", "comm", "rank", only, most, who == OWN ? "own" : "shared",
	      (char *)NULL);
	_exit(127);
}

static void run(struct result *result, int who, int n, const char *only, const char *most)
{
	int started = who == MPI ? 1 : n, fd[2];
	char line[256];
	FILE *in;

	if (pipe(fd))
		exit(EXIT_FAILURE);
	for (int r = 0; r < started; r++)
		if (!fork())
			become(who, r, n, only, most, fd[1]);
	close(fd[1]);
	in = fdopen(fd[0], "r");
	while (in && fgets(line, sizeof line, in))
		keep(result, who, line);
	if (in)
		fclose(in);
	for (int r = 0; r < started; r++)
		wait(NULL);
}

static void cell(double us)
{
	if (us)
		printf(" %10.2f", us);
	else
		printf(" %10s", "-");
}

static void ratio(double them, double us)
{
	if (them && us)
		printf(" %9.1fx", them / us);
	else
		printf(" %10s", "-");
}

static void share(double bound, double us)
{
	if (bound && us)
		printf(" %9.0f%%", 100 * bound / us);
	else
		printf(" %10s", "-");
}

static void table(const struct result *r, int n, int what)
{
	/* An exact sum has no counterpart: it is held against the others' sums in any order. */
	int other = what == EXACT ? REDUCE : what;

	printf("\n%s f32, %d ranks: microseconds\n%10s", what_name[what], n, "bytes");
	for (int who = 0; who < WHO; who++)
		printf(" %10s", who_name[who]);
	printf(" %10s %10s %10s %10s %10s %10s %10s\n", "in", "in, out", "x gloo", "x MPI",
	       "own x MPI", "of in", "of in, out");
	for (int size = 0; size < SIZES; size++) {
		double us = r->us[SHARED][what][size];

		if (!us)
			continue;
		printf("%10llu", 1ull << size);
		for (int who = 0; who < WHO; who++)
			cell(r->us[who][who < MPI ? what : other][size]);
		cell(r->us[SHARED][IN][size]);
		cell(r->us[SHARED][IN_OUT][size]);
		ratio(r->us[GLOO][what][size], us);
		ratio(r->us[MPI][other][size], us);
		ratio(r->us[MPI][other][size], r->us[OWN][what][size]);
		share(r->us[SHARED][IN][size], us);
		share(r->us[SHARED][IN_OUT][size], us);
		putchar('\n');
	}
}

static int all(const char *ranks, int rounds, const char *most, const char *only)
{
	for (const char *at = ranks; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		struct result r = { 0 };
		int n = atoi(at);

		for (int i = 0; i < rounds; i++)
			for (int who = 0; who < WHO; who++)
				run(&r, who, n, only, most);
		for (int what = 0; what < IN; what++)
			if (!*only || !strcmp(only, what_name[what]))
				table(&r, n, what);
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *ranks = "2,4", *most = "67108864", *only = "";
	int rounds = 3, c;

	if (argc == 5 && !strcmp(argv[1], "rank"))
		return rank(argv[2], strtoull(argv[3], NULL, 10), !strcmp(argv[4], "own"));
	while ((c = getopt(argc, argv, "n:r:m:o:b")) != -1)
		switch (c) {
		case 'n':
			ranks = optarg;
			break;
		case 'r':
			rounds = atoi(optarg);
			break;
		case 'm':
			most = optarg;
			break;
		case 'o':
			only = optarg;
			break;
		case 'b':
			setenv("COMM_BLIND", "1", 1);
			break;
		default:
			return 2;
		}
	return all(ranks, rounds, most, only);
}
