/*
 * comm.c - our backends compared with the collectives of Gloo, torch.distributed and Open MPI, in
 * one run.
 *
 *	comm -h
 *
 * Every round starts each contender anew, one after the other; each cell is the best median of all
 * rounds, since other work on the machine can only slow a call down. All algorithms of Gloo are
 * measured, and the best at each size counts. Most of them work in place only: our gloo is measured
 * in place too, and the better of both counts. All are timed by tools/bench/measure.h.
 */
#include <errno.h>
#include <ftw.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZES = 16, RANKS_MAX = 64, ARGS = 24 }; /* size i: 4^(i + 1) bytes */
enum { SHM, OWN, EXACT, IN, IN_OUT, GLOO, GLOO_EXACT, PEER_GLOO, PEER_TORCH, PEER_MPI, COLUMNS };

static const char *const titles[COLUMNS] = {
	"shm",  "own",         "exact", "in",          "in, out",
	"gloo", "gloo, exact", "Gloo",  "torch, gloo", "Open MPI",
};

struct cell {
	double us; /* 0: none */
	char algorithm[24]; /* of PEER_GLOO */
};

struct results {
	struct cell cell[COLUMNS][SIZES];
};

static struct {
	const char *kind, *contenders, *seconds;
	uint64_t max_bytes;
	int rounds;
	char max_bytes_text[24];
	char versions[4][256]; /* versions of peers */
	int nversions;
} options = { .kind = "all_reduce", .seconds = "0.1" };

/* ---- results --------------------------------------------------------------------------------- */

static void record_time(struct results *r, int column, uint64_t bytes, double us,
                        const char *algorithm)
{
	struct cell *c;
	int size = 0;

	while (UINT64_C(4) << 2 * size < bytes)
		size++;
	if (size >= SIZES || us <= 0)
		return;
	c = &r->cell[column][size];
	if (c->us > 0 && c->us <= us)
		return;
	c->us = us;
	snprintf(c->algorithm, sizeof c->algorithm, "%s", algorithm);
}

static void record_version(const char *text)
{
	for (int i = 0; i < options.nversions; i++)
		if (!strcmp(options.versions[i], text))
			return;
	if (options.nversions < 4)
		snprintf(options.versions[options.nversions++], sizeof *options.versions, "%s",
		         text);
}

/* Reads the "ALGORITHM BYTES MICROSECONDS" lines of a peer, and one with its version. */
static int read_peer_lines(FILE *in, struct results *r, int column)
{
	char line[256], name[24];
	unsigned long long bytes;
	double us;
	int lines = 0;

	while (fgets(line, sizeof line, in)) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "version ", 8)) {
			record_version(line + 8);
		} else if (sscanf(line, "%23s %llu %lf", name, &bytes, &us) == 3) {
			record_time(r, column, bytes, us, name);
			lines++;
		}
	}
	return lines;
}

/* Reads the output of `tessera bench comm --json`; columns: its series. */
static int read_bench_json(FILE *in, struct results *r, const int columns[4])
{
	static const char *const series[] = { "fast", "exact", "copy_in", "copy_in_out" };
	json_t *all = json_loadf(in, 0, NULL), *row;
	size_t i, rows = json_array_size(json_object_get(all, "sizes"));

	json_array_foreach(json_object_get(all, "sizes"), i, row) {
		for (int s = 0; s < 4; s++) {
			json_t *cell = json_object_get(row, series[s]);

			if (!cell && !s) /* kinds without a sum have one series */
				cell = json_object_get(row, options.kind);
			record_time(r, columns[s],
			            (uint64_t)json_integer_value(json_object_get(row, "bytes")),
			            json_number_value(json_object_get(cell, "us")), "");
		}
	}
	json_decref(all);
	return (int)rows;
}

/* ---- contenders ------------------------------------------------------------------------------ */

static const struct contender {
	const char *name;
	bool ours;
	int columns[4]; /* for our backends: fast, exact, copy_in, copy_in_out; else the first */
	const char *args[8]; /* arguments of tessera bench comm */
} contenders[] = {
	{ "shm", true, { SHM, EXACT, IN, IN_OUT }, { "--backend", "shm", "--limit" } },
	{ "own", true, { OWN, OWN, OWN, OWN }, { "--backend", "shm", "--own", "--sum", "fast" } },
	{ "gloo", true, { GLOO, GLOO_EXACT, GLOO, GLOO }, { "--backend", "gloo" } },
	{ "gloo", true, { GLOO, GLOO, GLOO, GLOO }, { "--backend", "gloo", "--in-place" } },
	{ "Gloo", false, { PEER_GLOO }, { 0 } },
	{ "torch", false, { PEER_TORCH }, { 0 } },
	{ "mpi", false, { PEER_MPI }, { 0 } },
};
enum { CONTENDERS = sizeof contenders / sizeof *contenders };
static bool unavailable[CONTENDERS];

/* Returns the path of a file next to this program. */
static const char *format_sibling_path(const char *name, char path[static 4096])
{
	ssize_t len = readlink("/proc/self/exe", path, 4000);
	char *slash;

	path[len > 0 ? len : 0] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, name);
	return path;
}

static void set_env_number(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof text, "%d", value);
	setenv(name, text, 1);
}

/*
 * Runs a contender: our backends through the command; peers as one process per rank, with their
 * variables.
 */
static _Noreturn void exec_contender(const struct contender *c, int rank, int n, int out)
{
	char program[4096], ranks[16];
	const char *argv[ARGS] = {
		TESSERA,     "bench",        "comm",       "--json", "-n",
		ranks,       "--kind",       options.kind, "-e",     options.max_bytes_text,
		"--seconds", options.seconds
	};
	size_t argc = 12;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(out, STDOUT_FILENO);
	snprintf(ranks, sizeof ranks, "%d", n);
	if (c->ours) {
		for (int i = 0; c->args[i]; i++)
			argv[argc++] = c->args[i];
		execv(argv[0], (char *const *)argv);
		_exit(127);
	}
	set_env_number("RANK", rank);
	set_env_number("WORLD_SIZE", n);
	setenv("GLOO_SOCKET_IFNAME", "lo", 1);
	setenv("OMP_NUM_THREADS", "1", 1);
	setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
	setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
	switch (c->columns[0]) {
	case PEER_GLOO:
		format_sibling_path("comm_gloo", program);
		execl(program, program, options.kind, options.max_bytes_text, options.seconds,
		      (char *)NULL);
		break;
	case PEER_TORCH:
		execl(PYTHON, PYTHON, SOURCE "/comm_torch.py", options.kind, options.max_bytes_text,
		      options.seconds, (char *)NULL);
		break;
	default:
		format_sibling_path("comm_mpi", program);
		execlp("mpirun", "mpirun", "--oversubscribe", "-np", ranks, program, options.kind,
		       options.max_bytes_text, options.seconds, (char *)NULL);
	}
	_exit(127);
}

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *at)
{
	(void)about;
	(void)type;
	(void)at;
	return remove(path);
}

/* Runs a contender on n ranks and records its times; returns whether there are any. */
static bool run_contender(const struct contender *c, int n, struct results *r)
{
	int started = c->ours || c->columns[0] == PEER_MPI ? 1 : n, fd[2], nlines;
	char store[] = "/tmp/bench-comm-XXXXXX";
	FILE *in;

	if (!mkdtemp(store) || pipe(fd))
		return false;
	setenv("COMM_STORE", store, 1);
	fflush(stdout);
	for (int rank = 0; rank < started; rank++)
		if (!fork()) {
			close(fd[0]);
			exec_contender(c, rank, n, fd[1]);
		}
	close(fd[1]);
	in = fdopen(fd[0], "r");
	nlines = c->ours ? read_bench_json(in, r, c->columns)
	                 : read_peer_lines(in, r, c->columns[0]);
	fclose(in);
	for (int rank = 0; rank < started; rank++)
		wait(NULL);
	nftw(store, remove_entry, 4, FTW_DEPTH | FTW_PHYS);
	return nlines > 0;
}

static bool is_in_list(const char *list, const char *name)
{
	const char *found = list ? strstr(list, name) : NULL;

	return !list ||
	       (found && (found == list || found[-1] == ',') && strchr(",", found[strlen(name)]));
}

/* Returns whether a peer is installed. A missing one is printed once, and is no failure. */
static bool is_installed(size_t i)
{
	static const char *const way_out[] = { [PEER_GLOO] = "libgloo is missing",
		                               [PEER_TORCH] = "run bench/setup",
		                               [PEER_MPI] = "Open MPI is missing" };
	const struct contender *c = &contenders[i];
	char path[4096];
	const char *program = c->columns[0] == PEER_GLOO  ? format_sibling_path("comm_gloo", path)
	                      : c->columns[0] == PEER_MPI ? format_sibling_path("comm_mpi", path)
	                                                  : PYTHON;
	bool found = c->ours || !access(program, X_OK);

	if (!found && !unavailable[i])
		fprintf(stderr, "comm: skipped: %s (%s)\n", c->name, way_out[c->columns[0]]);
	unavailable[i] |= !found;
	return found;
}

static bool run_rounds(struct results *r, int n)
{
	for (int round = 0; round < options.rounds; round++)
		for (size_t i = 0; i < CONTENDERS; i++) {
			if (!is_in_list(options.contenders, contenders[i].name) || !is_installed(i))
				continue;
			fprintf(stderr, "comm: %d ranks, round %d of %d: %s\n", n, round + 1,
			        options.rounds, contenders[i].name);
			if (!run_contender(&contenders[i], n, r)) {
				fprintf(stderr, "comm: %s failed\n", contenders[i].name);
				return false;
			}
		}
	return true;
}

/* ---- output --------------------------------------------------------------------------------- */

static void print_cell(double us)
{
	if (us > 0)
		printf(" %.*f |", us < 100 ? 2 : us < 1000 ? 1 : 0, us);
	else
		printf(" - |");
}

/* Prints the speed relative to a peer. */
static void print_ratio(double peer_us, double us)
{
	if (peer_us > 0 && us > 0)
		printf(" %.*fx |", peer_us / us < 10 ? 2 : 1, peer_us / us);
	else
		printf(" - |");
}

/* Prints the time of copying alone as a share of `us`. */
static void print_copy_share(double bound, double us)
{
	if (bound > 0 && us > 0)
		printf(" %.0f%% |", 100 * bound / us);
	else
		printf(" - |");
}

static bool has_column(const struct results *r, int column)
{
	for (int s = 0; s < SIZES; s++)
		if (r->cell[column][s].us > 0)
			return true;
	return false;
}

/* Prints the measured columns from `first` to `last`; returns their number. */
static int print_columns(const struct results *r, int first, int last, int size)
{
	int n = 0;

	for (int c = first; c <= last; c++) {
		if (!has_column(r, c))
			continue;
		n++;
		if (size < 0)
			printf(" %s |", titles[c]);
		else
			print_cell(r->cell[c][size].us);
	}
	return n;
}

static void print_table_rule(int columns)
{
	printf("\n|");
	for (int i = 0; i < columns; i++)
		printf("--:|");
	putchar('\n');
}

static void print_shm(const struct results *r, int n)
{
	int columns = 8;

	printf("\n%s, f32, %d ranks:\n\n| bytes |", options.kind, n);
	columns += print_columns(r, SHM, IN_OUT, -1);
	printf(" Gloo's best | Open MPI | shm : Gloo | shm : Open MPI | own : Open MPI | of in |");
	printf(" of in, out |");
	print_table_rule(columns);
	for (int s = 0; s < SIZES; s++) {
		double us = r->cell[SHM][s].us, gloo = r->cell[PEER_GLOO][s].us,
		       mpi = r->cell[PEER_MPI][s].us;

		if (us <= 0)
			continue;
		printf("| %llu |", 4ull << 2 * s);
		print_columns(r, SHM, IN_OUT, s);
		print_cell(gloo);
		print_cell(mpi);
		print_ratio(gloo, us);
		print_ratio(mpi, us);
		print_ratio(mpi, r->cell[OWN][s].us);
		print_copy_share(r->cell[IN][s].us, us);
		print_copy_share(r->cell[IN_OUT][s].us, us);
		putchar('\n');
	}
}

static void print_gloo(const struct results *r, int n)
{
	int columns = 8;

	printf("\n%s, f32, %d ranks, over TCP:\n\n| bytes |", options.kind, n);
	columns += print_columns(r, GLOO, GLOO_EXACT, -1);
	printf(" Gloo's best | which | torch, gloo | gloo : Gloo's best | exact : Gloo's best | "
	       "gloo : torch | exact : torch |");
	print_table_rule(columns);
	for (int s = 0; s < SIZES; s++) {
		double us = r->cell[GLOO][s].us, exact = r->cell[GLOO_EXACT][s].us;
		const struct cell *gloo = &r->cell[PEER_GLOO][s];
		double torch = r->cell[PEER_TORCH][s].us;

		if (us <= 0)
			continue;
		printf("| %llu |", 4ull << 2 * s);
		print_columns(r, GLOO, GLOO_EXACT, s);
		print_cell(gloo->us);
		printf(" %s |", gloo->us > 0 ? gloo->algorithm : "-");
		print_cell(torch);
		print_ratio(gloo->us, us);
		print_ratio(gloo->us, exact);
		print_ratio(torch, us);
		print_ratio(torch, exact);
		putchar('\n');
	}
}

/* Prints the time of the exact sum relative to the one in any order, both over shm. */
static void print_exact_prices(const struct results *r, const int *ranks, int nranks)
{
	printf("\nThe exact sum over shm: microseconds, and the ratio to the sum in any order:\n\n"
	       "| bytes |");
	for (int i = 0; i < nranks; i++)
		printf(" %d ranks | price |", ranks[i]);
	print_table_rule(2 * nranks + 1);
	for (int s = 0; s < SIZES; s++) {
		if (r[0].cell[EXACT][s].us <= 0)
			continue;
		printf("| %llu |", 4ull << 2 * s);
		for (int i = 0; i < nranks; i++) {
			print_cell(r[i].cell[EXACT][s].us);
			print_ratio(r[i].cell[EXACT][s].us, r[i].cell[SHM][s].us);
		}
		putchar('\n');
	}
}

static void print_machine(void)
{
	char line[256], cpu[160] = "a CPU";
	FILE *f = fopen("/proc/cpuinfo", "r");
	struct utsname u;

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "model name : %159[^\n]", cpu) == 1)
			break;
	if (f)
		fclose(f);
	uname(&u);
	printf("%ld x %s; Linux %s; compiler %s", sysconf(_SC_NPROCESSORS_ONLN), cpu, u.release,
	       __VERSION__);
	for (int i = 0; i < options.nversions; i++)
		printf("; %s", options.versions[i]);
	putchar('\n');
}

/* ---- the program ----------------------------------------------------------------------------- */

static int read_ranks(const char *list, int ranks[static RANKS_MAX])
{
	int n = 0;

	for (const char *at = list; at && n < RANKS_MAX;
	     at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		ranks[n] = atoi(at);
		n += ranks[n] > 0;
	}
	return n;
}

static bool compare_libraries(const char *list)
{
	int ranks[RANKS_MAX], n = read_ranks(list, ranks);

	for (int i = 0; i < n; i++) {
		struct results r = { 0 };

		if (!run_rounds(&r, ranks[i]))
			return false;
		if (!i)
			print_machine();
		if (has_column(&r, SHM))
			print_shm(&r, ranks[i]);
		if (has_column(&r, GLOO))
			print_gloo(&r, ranks[i]);
	}
	return true;
}

static bool compare_exact_sums(const char *list)
{
	int ranks[RANKS_MAX], n = read_ranks(list, ranks);
	struct results *r = n ? calloc((size_t)n, sizeof *r) : NULL;
	bool good = r || !n;

	options.kind = "all_reduce";
	options.contenders = "shm";
	for (int i = 0; i < n && good; i++)
		good = run_rounds(&r[i], ranks[i]);
	if (good && n)
		print_exact_prices(r, ranks, n);
	free(r);
	return good;
}

static const char usage[] =
	"usage: comm [-n RANKS,...] [-p RANKS,...] [-r ROUNDS] [-m BYTES] [-s SECONDS] [-o KIND]\n"
	"       [-w NAME,...]\n"
	"\n"
	"Times our backends and the collectives of Gloo, torch.distributed over gloo and Open MPI\n"
	"in turn, and prints Markdown. Missing peers are skipped with a line on stderr. The run\n"
	"takes five minutes.\n"
	"\n"
	"  -n RANKS,...  numbers of ranks (2,4)\n"
	"  -p RANKS,...  numbers of ranks for the cost of the exact sum (2,3,4,5,6,7,8); 0: none\n"
	"  -r ROUNDS     starts of each contender; the best median counts (3)\n"
	"  -m BYTES      sizes from 4 bytes to BYTES (67108864)\n"
	"  -s SECONDS    time for each size of each series (0.1)\n"
	"  -o KIND       the collective (all_reduce)\n"
	"  -w NAME,...   only these of shm, own, gloo, Gloo, torch, mpi\n";

static bool parse_comm_options(int argc, char **argv, const char **ranks, const char **exact_ranks)
{
	const char *rounds = "3", *max_bytes = "67108864";
	const char **texts[] = { ['n'] = ranks,
		                 ['p'] = exact_ranks,
		                 ['r'] = &rounds,
		                 ['m'] = &max_bytes,
		                 ['s'] = &options.seconds,
		                 ['o'] = &options.kind,
		                 ['w'] = &options.contenders };
	int c;

	while ((c = getopt(argc, argv, "n:p:r:m:s:o:w:")) != -1) {
		if (c == '?')
			return false;
		*texts[c] = optarg;
	}
	options.rounds = atoi(rounds);
	options.max_bytes = strtoull(max_bytes, NULL, 10);
	return optind == argc && options.rounds > 0 && options.max_bytes >= 4 &&
	       atof(options.seconds) > 0;
}

int main(int argc, char **argv)
{
	const char *ranks = "2,4", *exact_ranks = "2,3,4,5,6,7,8";

	if (argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
		fputs(usage, stdout);
		return 0;
	}
	if (!parse_comm_options(argc, argv, &ranks, &exact_ranks)) {
		fputs(usage, stderr);
		return 2;
	}
	snprintf(options.max_bytes_text, sizeof options.max_bytes_text, "%llu",
	         (unsigned long long)options.max_bytes);
	if (!compare_libraries(ranks))
		return 1;
	/* larger sizes would measure memory */
	snprintf(options.max_bytes_text, sizeof options.max_bytes_text, "%d", 4 << 20);
	return compare_exact_sums(exact_ranks) ? 0 : 1;
}
