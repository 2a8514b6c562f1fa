#include "core/rendezvous/rank_env.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/rendezvous/coordinator.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLURM_PORT = 15000, SLURM_PORTS = 10000 };

struct launcher_env {
	const char *rank, *size, *local, *local_size, *hosts;
};

static const struct launcher_env launchers[] = {
	{ "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL },
	{ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	  "OMPI_COMM_WORLD_LOCAL_SIZE", NULL },
	{ "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL },
	{ "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_NUM_NODES" },
};

static const struct launcher_env *find_launcher(void)
{
	for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
		if (getenv(launchers[i].rank) && getenv(launchers[i].size))
			return &launchers[i];
	return NULL;
}

/* Reads a variable in [lo, hi]; the default is `preset`, also for name NULL. */
static tess_status read_env_number(const char *name, int32_t lo, int32_t hi, int32_t preset,
                                   int32_t *out)
{
	const char *text = name ? getenv(name) : NULL;
	char *end;
	long val;

	if (!text) {
		*out = preset;
		return TESS_OK;
	}
	errno = 0;
	val = strtol(text, &end, 10);
	if (errno || end == text || *end || val < lo || val > hi)
		return tess_fail(TESS_EINVAL, "%s=%s: must be a number from %d to %d", name, text,
		                 lo, hi);
	*out = (int32_t)val;
	return TESS_OK;
}

static bool is_loopback_name(const char *addr)
{
	return !addr || !*addr || !strcmp(addr, "localhost") || !strncmp(addr, "127.", 4) ||
	       !strcmp(addr, "::1");
}

/*
 * Checks RANK, which may be left over, or set without WORLD_SIZE. Under torchrun and tessera launch
 * the variables of other launchers belong to an outer job.
 */
static tess_status check_manual_rank(void)
{
	const struct launcher_env *hand = &launchers[0];
	const char *rank = getenv(hand->rank), *size = getenv(hand->size);

	if (!rank != !size)
		return tess_fail(TESS_EINVAL, "%s=%s is set, and %s is not; set both or neither",
		                 rank ? hand->rank : hand->size, rank ? rank : size,
		                 rank ? hand->size : hand->rank);
	if (!rank || getenv("TORCHELASTIC_RUN_ID") || *tess_option_get("rendezvous"))
		return TESS_OK;
	for (size_t i = 1; i < sizeof launchers / sizeof *launchers; i++) {
		const char *other = getenv(launchers[i].rank), *n = getenv(launchers[i].size);

		if (other && n && !strcmp(n, size) && strcmp(other, rank) != 0)
			return tess_fail(
				TESS_EINVAL,
				"RANK=%s and %s=%s contradict each other in a job of %s ranks; "
				"unset RANK and WORLD_SIZE, or the other",
				rank, launchers[i].rank, other, size);
	}
	return TESS_OK;
}

/* Decides between one host and several: all ranks local, else MASTER_ADDR loopback or unset. */
static tess_status read_hosts(const struct launcher_env *s, struct tess_rank_env *env)
{
	const char *master = getenv("MASTER_ADDR");
	int32_t local = env->size, hosts = 1;
	tess_status st = read_env_number(s->local_size, 1, env->size, env->size, &local);

	if (!st)
		st = read_env_number(s->local, 0, local - 1, env->rank, &env->local);
	if (!st)
		st = read_env_number(s->hosts, 1, env->size, 1, &hosts);
	if (st)
		return st;
	if ((s->local_size && getenv(s->local_size)) || (s->hosts && getenv(s->hosts)))
		env->hosts = local != env->size || hosts != 1;
	else
		env->hosts = env->size > 1 && !is_loopback_name(master);
	return TESS_OK;
}

/* Copies the first node of a list, which has rank 0 of a step: "node1" of "node[1-3,7],other". */
static void copy_first_node(const char *list, char *node, size_t size)
{
	size_t n = 0;

	for (; *list && *list != ',' && n + 1 < size; list++) {
		if (*list == '[') {
			list++;
			while (*list && !strchr("-,]", *list) && n + 1 < size)
				node[n++] = *list++;
			list += strcspn(list, "]");
			if (!*list)
				break;
		} else {
			node[n++] = *list;
		}
	}
	node[n] = '\0';
}

/* Finds the address: MASTER_ADDR, or Slurm's first node. */
static void find_master(char *addr, size_t size)
{
	const char *master = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
	const struct launcher_env *s = find_launcher();

	*addr = '\0';
	if (master && strlen(master) < size)
		snprintf(addr, size, "%s", master);
	else if (!master && s && s->hosts && nodes)
		copy_first_node(nodes, addr, size);
}

/* Finds the port: TESSERA_PORT, MASTER_PORT + 1, or one from Slurm's job and step; 0: none. */
static tess_status find_port(int32_t *out)
{
	const struct launcher_env *s = find_launcher();
	int32_t job = 0, step = 0, port = 0;
	int64_t own_port = 0;
	tess_status st;

	if (*tess_option_get("port")) {
		st = tess_option_get_int("port", 1, 65535, &own_port);
		*out = (int32_t)own_port;
		return st;
	}
	st = read_env_number("MASTER_PORT", 1, 65534, 0, &port);
	if (!st && !port && s && s->hosts) {
		st = read_env_number("SLURM_JOB_ID", 1, INT32_MAX, 0, &job);
		if (!st)
			st = read_env_number("SLURM_STEP_ID", 0, INT32_MAX, 0, &step);
		port = job ? SLURM_PORT + (job % SLURM_PORTS * 8 + step) % SLURM_PORTS : 0;
		*out = port;
		return st;
	}
	*out = port ? port + 1 : 0;
	return st;
}

static tess_status find_address(const struct tess_rank_env *env, struct tess_hosts *at)
{
	int32_t port;
	tess_status st;

	if (!env->hosts)
		return TESS_OK;
	find_master(at->addr, sizeof at->addr);
	if (!*at->addr)
		return tess_fail(
			TESS_EINVAL,
			"the job's %d ranks are on several hosts and have no address to meet at; "
			"set MASTER_ADDR to an address of the host of rank 0, and TESSERA_PORT%s",
			env->size,
			getenv("OMPI_COMM_WORLD_SIZE")
				? "; or use TESSERA_BACKEND=mpi, whose ranks meet through MPI"
				: "");
	st = find_port(&port);
	if (!st && !port)
		st = tess_fail(
			TESS_EINVAL,
			"the job's %d ranks are on several hosts and have no port to meet at; "
			"set TESSERA_PORT, or MASTER_PORT, whose next port is used",
			env->size);
	if (!st)
		snprintf(at->port, sizeof at->port, "%d", port);
	return st;
}

/* Names the job by the id and start time of the parent, which has started all ranks. */
static void name_by_parent(char *job, size_t size)
{
	char path[48], line[1024], *at;
	uint64_t started = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)getppid());
	f = fopen(path, "re");
	at = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
	for (int field = 2; at && field < 22;
	     field++) /* proc(5): starttime is the 22nd, ")" ends the 2nd */
		at = strchr(at + 1, ' ');
	if (at)
		started = strtoull(at, NULL, 10);
	if (f)
		fclose(f);
	snprintf(job, size, "%d-%" PRIu64, (int)getppid(), started);
}

static const char *read_variable(const char *name)
{
	const char *text = getenv(name);

	return text ? text : "";
}

/* Replaces characters that a path must not contain. */
static void sanitize_name(char *job)
{
	static const char allowed[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	for (; *job; job++)
		if (!strchr(allowed, *job))
			*job = '_';
}

static tess_status name_job(const struct tess_rank_env *env, struct tess_meeting *m)
{
	const char *run = getenv("TORCHELASTIC_RUN_ID"), *slurm = getenv("SLURM_JOB_ID");
	const struct launcher_env *s = find_launcher();
	size_t size = sizeof m->job;
	char *job = m->job;

	if (*tess_option_get("job")) {
		if (strlen(tess_option_get("job")) >= size)
			return tess_fail(TESS_EINVAL, "TESSERA_JOB=%s: longer than %zu bytes",
			                 tess_option_get("job"), size - 1);
		snprintf(job, size, "%s", tess_option_get("job"));
	} else if (run) {
		snprintf(job, size, "run-%.40s-%.8s-%.8s", run, read_variable("MASTER_PORT"),
		         read_variable("TORCHELASTIC_RESTART_COUNT"));
		sanitize_name(job);
	} else if (slurm && s && s->hosts) {
		snprintf(job, size, "slurm-%.24s-%.12s-%.8s", slurm, read_variable("SLURM_STEP_ID"),
		         read_variable("SLURM_RESTART_COUNT"));
		sanitize_name(job);
	} else if (env->hosts) {
		snprintf(job, size, "port-%s", m->at.port);
	} else {
		name_by_parent(job, size);
	}
	return TESS_OK;
}

tess_status tess_rank_env_read(struct tess_rank_env *out)
{
	const struct launcher_env *s = find_launcher();
	struct tess_rank_env env = { .size = 1, .alone = !s };
	tess_status st = check_manual_rank();

	if (st)
		return st;
	if (!s) {
		*out = env;
		return TESS_OK;
	}
	if ((st = read_env_number(s->size, 1, TESS_RANKS_MAX, 1, &env.size)) ||
	    (st = read_env_number(s->rank, 0, env.size - 1, 0, &env.rank)) ||
	    (st = read_hosts(s, &env)))
		return st;
	*out = env;
	return TESS_OK;
}

void tess_rank_env_describe(const struct tess_rank_env *env, char *text, size_t size)
{
	const struct launcher_env *s = find_launcher();
	size_t n =
		s ? (size_t)snprintf(
			    text, size,
			    "%s=%d and %s=%d make this process rank %d of %d; to run it alone: env",
			    s->rank, env->rank, s->size, env->size, env->rank, env->size)
		  : 0;

	for (size_t i = 0; s && i < sizeof launchers / sizeof *launchers; i++)
		if (n < size && getenv(launchers[i].rank) && getenv(launchers[i].size))
			n += (size_t)snprintf(text + n, size - n, " -u %s -u %s", launchers[i].rank,
			                      launchers[i].size);
	if (n < size)
		snprintf(text + n, size - n, "%s", s ? " COMMAND" : "");
}

tess_status tess_rank_env_meeting(const struct tess_rank_env *env, struct tess_meeting *out)
{
	struct tess_meeting m = { 0 };
	tess_status st = find_address(env, &m.at);

	if (!st)
		st = name_job(env, &m);
	if (!st)
		*out = m;
	return st;
}
