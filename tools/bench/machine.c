/* machine.c - `tessera bench machine`: reads options, and measures on each number of ranks. */
#include "machine.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/group/choose.h"
#include "hf/safetensors.h"

#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <tessera/util/clock.h>
#include <unistd.h>

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status parse_ranks(const char *name, const char *text, void *to)
{
	struct machine_options *a = to;
	char *copy = strdup(text), *rest = copy, *word;
	tess_status st = copy ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	int64_t n;

	a->nsets = 0;
	while (!st && (word = strsep(&rest, ","))) {
		st = tess_tool_parse_integer(name, word, 1, 8, &n);
		if (!st && a->nsets && n <= a->ranks[a->nsets - 1])
			st = tess_fail(TESS_EINVAL, "%s %s: the numbers must increase", name, text);
		if (!st)
			a->ranks[a->nsets++] = (int32_t)n;
	}
	free(copy);
	return st;
}

#define AT(member) TESS_TOOL_AT(struct machine_options, member)

const struct tess_tool_option machine_options[] = {
	{ "out", "FILE", "write the machine file", AT(out), .local = true },
	{ "n", "N,...", "numbers of ranks to measure, each up to 8 (default: 1, 2, 4, ... to CPUs)",
	  .parse = parse_ranks },
	{ "threads", "N", "threads per rank (default: the share of a rank in the CPUs)",
	  AT(threads), .hi = 1024 },
	{ "backend", "auto|BACKEND",
	  "backend: shm, gloo, ... (default: TESSERA_BACKEND, else auto)",
	  .parse = tess_tool_set_option, .local = true },
	{ "disk", "DIR", "folder whose disk is measured (default: that of --out)", AT(disk),
	  .local = true },
	{ "seconds", "X", "time of all measurements", AT(seconds), .lo = 1, .hi = 3600 },
	{ "quick", NULL, "measure tiny checkpoints once, to try the command", AT(quick) },
	{ 0 },
};

static int32_t count_host_cpus(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	sched_getaffinity(0, sizeof set, &set);
	return CPU_COUNT(&set);
}

static tess_status complete_machine_options(struct machine_options *a)
{
	int32_t cpus = a->nsets ? 0 : count_host_cpus();

	if (!a->out)
		return tess_fail(TESS_EINVAL, "give --out FILE, the machine file to write");
	for (int32_t n = 1; n <= cpus && n <= 8; n *= 2)
		a->ranks[a->nsets++] = n;
	/* links are measured between ranks */
	if (a->ranks[a->nsets - 1] < 2)
		a->ranks[a->nsets++] = 2;
	return TESS_OK;
}

/* Sets the option backend to what `auto` chooses for ranks that are processes. */
static tess_status choose_machine_backend(int32_t n, const char **out)
{
	struct tess_choice choice;
	tess_status st = tess_backend_choose(tess_option_get("backend"), n, false, false, &choice);

	if (!st && choice.backend->bootstrap)
		st = tess_fail(TESS_ENOTSUP,
		               "bench machine starts its ranks itself, which %s cannot do; use "
		               "--backend shm, gloo or loopback",
		               choice.backend->name);
	if (!st && !strcmp(tess_option_get("backend"), "auto"))
		st = tess_option_set("backend", choice.backend->name);
	*out = tess_option_get("backend");
	return st;
}

/* ---- the temporary directory ----------------------------------------------------------------- */

static int remove_model_entry(const char *path, const struct stat *about, int kind,
                              struct FTW *walk)
{
	(void)about, (void)kind, (void)walk;
	return remove(path);
}

static tess_status make_model_directory(char path[static 256])
{
	const char *tmp = getenv("TMPDIR");

	snprintf(path, 256, "%.200s/tessera-machine-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	return mkdtemp(path) ? TESS_OK : tess_fail(TESS_EIO, "%s: %s", path, strerror(errno));
}

static void remove_directory(const char *path)
{
	nftw(path, remove_model_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- measuring ------------------------------------------------------------------------------- */

enum { ATTEMPTS = 3 };
/* CPUs that other processes may use in a measurement. */
#define OTHERS_MAX 0.1

struct measurement {
	const struct machine_options *options;
	struct machine_host host;
	char dir[256];
	int32_t most; /* the largest number of ranks */
	struct machine_result *results; /* [most], and the best one */
	double began;
};

static void report_progress(const struct measurement *m, const char *what, int32_t n,
                            const char *mesh)
{
	fprintf(stderr, "%5.0f s  %s on %d rank%s%s%s\n", 1e-9 * (double)tess_now() - m->began,
	        what, (int)n, n > 1 ? "s" : "", mesh ? ", mesh " : "", mesh ? mesh : "");
}

/* Returns the CPU time of other processes and of other guests of the hypervisor; 0: not known. */
static double count_other_seconds(void)
{
	long long user, nice, system, idle, wait, irq, soft, steal;
	struct rusage own, ranks;
	FILE *f = fopen("/proc/stat", "re");
	int n = f ? fscanf(f, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &user, &nice, &system,
	                   &idle, &wait, &irq, &soft, &steal)
	          : 0;

	if (f)
		fclose(f);
	if (n != 8 || getrusage(RUSAGE_SELF, &own) || getrusage(RUSAGE_CHILDREN, &ranks))
		return 0;
	return (double)(user + nice + system + steal) / (double)sysconf(_SC_CLK_TCK) -
	       (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec + ranks.ru_utime.tv_sec +
	                ranks.ru_stime.tv_sec) -
	       1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec +
	                       ranks.ru_utime.tv_usec + ranks.ru_stime.tv_usec);
}

/*
 * Runs a job on the ranks of a set, and keeps the results of rank 0. If other processes use the
 * CPUs meanwhile, it is run again, and the run with least of them counts. TESS_EABORTED:
 * interrupted.
 */
static tess_status run_machine_job(struct measurement *m, struct machine_set *set,
                                   struct machine_job *job,
                                   tess_status (*fn)(struct tess_world *w, void *job, void *result))
{
	struct machine_result *best = m->results + m->most;
	double others, least = INFINITY;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < ATTEMPTS && least > OTHERS_MAX && !st; i++) {
		int64_t began = tess_now();
		double before = count_other_seconds();

		if (i)
			report_progress(m, "again, since others used the CPUs,", set->ranks, NULL);
		if (tess_tool_is_interrupted())
			return TESS_EABORTED;
		memset(m->results, 0, (size_t)set->ranks * sizeof *m->results);
		st = tess_world_spawn_results(set->ranks, fn, job, m->results, sizeof *m->results);
		if (tess_tool_is_interrupted())
			return TESS_EABORTED;
		others = (count_other_seconds() - before) / (1e-9 * (double)(tess_now() - began));
		others = m->options->quick ? 0 : others;
		if (others < least)
			memcpy(best, m->results, sizeof *best);
		least = others < least ? others : least;
	}
	return st ? st : machine_set_add(set, best);
}

/* Measures a checkpoint on each number of ranks, as one replica and as replicas. */
static tess_status measure_machine_model(struct measurement *m, int32_t i, double seconds)
{
	const struct machine_options *a = m->options;
	struct machine_job job = { .options = a, .dir = m->dir, .seconds = seconds };
	tess_status st = machine_write_model(i, a->quick, m->dir);

	for (int32_t k = 0; k < a->nsets && !st; k++) {
		struct machine_set *set = &m->host.set[k];

		for (int32_t dp = 0; dp < (set->ranks > 1 ? 2 : 1) && !st; dp++) {
			snprintf(job.mesh, sizeof job.mesh, "%s=%d", dp ? "dp" : "tp",
			         (int)set->ranks);
			report_progress(m, machine_get_model_name(i), set->ranks, job.mesh);
			st = run_machine_job(m, set, &job, machine_measure_steps);
		}
	}
	return st;
}

/* Returns the folder whose disk is measured; `room`: for its name. */
static const char *choose_disk_folder(const struct machine_options *a, char room[512])
{
	char *slash;

	if (a->disk)
		return a->disk;
	snprintf(room, 512, "%s", a->out);
	slash = strrchr(room, '/');
	if (!slash)
		return ".";
	slash[slash == room] = 0;
	return room;
}

static tess_status measure_host(struct measurement *m)
{
	const struct machine_options *a = m->options;
	struct machine_job job = { .options = a };
	int32_t jobs = 0, models = machine_count_models();
	char room[512];
	tess_status st = machine_measure_disk(choose_disk_folder(a, room), a->quick, &m->host);

	for (int32_t k = 0; k < a->nsets; k++) {
		m->host.set[k].ranks = a->ranks[k];
		jobs += a->ranks[k] > 1 ? 2 * models + 1 : models;
	}
	m->host.nsets = a->nsets;
	job.seconds = a->seconds / jobs;
	for (int32_t k = 0; k < a->nsets && !st; k++) {
		if (a->ranks[k] == 1)
			continue;
		report_progress(m, "collectives", a->ranks[k], NULL);
		st = run_machine_job(m, &m->host.set[k], &job, machine_measure_calls);
	}
	for (int32_t i = 0; i < models && !st; i++)
		st = measure_machine_model(m, i, job.seconds);
	return st;
}

static tess_status run_machine_bench(struct machine_options *a)
{
	int32_t most = a->ranks[a->nsets - 1];
	struct measurement m = { .options = a, .most = most, .began = 1e-9 * (double)tess_now() };
	tess_status st = choose_machine_backend(most, &m.host.backend);

	if (st)
		return st;
	st = tess_safetensors_check_writable(a->out);
	if (!st)
		st = tess_option_set("log",
		                     "error"); /* short checkpoints do not read all weights */
	if (st)
		return st;
	m.host.ncpus = count_host_cpus();
	m.host.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
	m.results = calloc((size_t)most + 1, sizeof *m.results);
	if (!m.results)
		return tess_fail(TESS_ENOMEM, "out of memory");
	tess_tool_catch_interrupt(NULL);
	st = make_model_directory(m.dir);
	if (!st) {
		st = measure_host(&m);
		remove_directory(m.dir);
	}
	if (!st)
		st = machine_write_file(a->out, &m.host);
	if (!st)
		report_progress(&m, "done", most, NULL);
	free(m.results);
	return st;
}

int machine_run_command(int argc, char **argv, const struct tess_tool_section *sections,
                        struct machine_options *a)
{
	tess_status st = tess_tool_parse_options(argc, argv, &tess_tool_bench, false, sections);
	bool usage;

	if (!st && optind + 1 != argc)
		st = tess_fail(TESS_EINVAL,
		               "%s: machine takes no arguments; see tessera bench --help",
		               argv[optind + 1]);
	if (!st)
		st = complete_machine_options(a);
	usage = st < 0;
	if (!st)
		st = run_machine_bench(a);
	if (tess_tool_is_interrupted())
		return tess_tool_get_interrupt_status();
	if (st < 0)
		tess_tool_print_error("bench");
	return usage ? 2 : st < 0 ? 1 : 0;
}
