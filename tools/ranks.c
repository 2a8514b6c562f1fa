/* ranks.c - runs a command on ranks: as a rank of a job, on threads, or as N processes. */
#include "tool.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/group/choose.h"
#include "core/launch/launch.h"
#include "core/registry/registry.h"
#include "core/rendezvous/rank_env.h"
#include "core/rendezvous/sigusr1.h"
#include "core/world/world.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tess_status tess_tool_check_job(int32_t n)
{
	struct tess_choice choice;
	tess_status st = tess_world_check_options();

	if (!st)
		st = tess_backend_choose(tess_option_get("backend"), n, false, false, &choice);
	if (!st && choice.backend->bootstrap)
		st = tess_fail(TESS_EINVAL,
		               "the ranks of backend %s are started by its own launcher, as in "
		               "mpirun -n %d PROGRAM",
		               choice.backend->name, (int)n);
	return st;
}

/*
 * Silences plugin warnings of the ranks, which the command has already printed. A level for
 * "registry" in TESSERA_LOG precedes the one added here, and takes effect.
 */
static tess_status silence_registry(void)
{
	char *log;

	if (tess_log_enabled(TESS_INFO, "registry"))
		return TESS_OK; /* TESSERA_LOG enables more than warnings */
	if (asprintf(&log, "%s,registry=error", tess_option_get("log")) < 0 ||
	    setenv("TESSERA_LOG", log, 1))
		return tess_fail(TESS_ENOMEM, "out of memory");
	free(log);
	return TESS_OK;
}

static tess_status launch_ranks(int32_t n, int32_t restarts, char **argv, int *exit_status)
{
	const char *flight = tess_option_get("flight");
	struct tess_launch options = { .nranks = n,
		                       .backend = tess_option_get("backend"),
		                       .stream = true,
		                       .bind = tess_option_get("bind"),
		                       .flight = *flight ? flight : NULL,
		                       .restarts = restarts };
	char self[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
	size_t args = 0;
	char **full;
	tess_status st;
	int output, shared;

	if (len < 0)
		return tess_fail(TESS_EIO,
		                 "/proc/self/exe cannot be read, and the ranks run that program");
	self[len] = 0;
	while (argv[args])
		args++;
	full = calloc(args + 2, sizeof *full);
	if (!full)
		return tess_fail(TESS_ENOMEM, "out of memory");
	full[0] = self; /* argv starts with the subcommand */
	memcpy(full + 1, argv, args * sizeof *argv);
	options.path = self;
	options.argv = full;
	tess_tool_stop_watchdog(); /* tess_launch() forks */
	st = tess_tool_share_output(&output);
	if (!st)
		st = tess_launch(&options, exit_status);
	shared = tess_tool_receive_output_error(output);
	if (!st && !*exit_status)
		*exit_status = shared;
	free(full);
	return st;
}

tess_status tess_tool_is_launched(bool *out)
{
	struct tess_rank_env env;
	tess_status st = tess_rank_env_read(&env);

	if (!st)
		*out = !env.alone;
	return st;
}

tess_status tess_tool_set_flight(const char *dir, bool launched)
{
	struct stat about;

	/* the launcher has set the directory for records of this rank */
	if (!dir || (launched && *tess_option_get("flight")))
		return TESS_OK;
	if (strcmp(dir, "off") != 0 && !stat(dir, &about) && !S_ISDIR(about.st_mode))
		return tess_fail(TESS_EINVAL, "--flight %s: is no directory; name one", dir);
	return tess_option_set("flight", dir);
}

tess_status tess_tool_explain_training(const char *model, const char *mesh, int32_t n,
                                       int64_t sequences, int64_t length,
                                       const struct tess_trainer_options *options,
                                       struct tess_explanation **out)
{
	char *log = strdup(tess_option_get("log"));
	tess_status st = log ? tess_option_set("log", "error")
	                     : tess_fail(TESS_ENOMEM, "no memory for the value of TESSERA_LOG");

	if (!st) /* rank 0 logs options without effect */
		st = tess_explain_training(model, mesh ? mesh : "tp", n, sequences, length, options,
		                           out);
	if (log)
		tess_option_set("log", log);
	free(log);
	return st;
}

tess_status tess_tool_check_training(const char *model, const char *mesh, int32_t n,
                                     int64_t sequences, int64_t length,
                                     const struct tess_trainer_options *options)
{
	struct tess_explanation *e = NULL;
	tess_status st = tess_tool_explain_training(model, mesh, n, sequences, length, options, &e);

	tess_explanation_free(e);
	return st ? st : tess_trainer_check(options);
}

tess_status tess_tool_join_job(int32_t n, tess_status (*run)(struct tess_world *w, void *arg),
                               void *arg)
{
	struct tess_world *world;
	struct tess_rank_env env;
	tess_status st = tess_rank_env_read(&env);

	if (!st && n && n != env.size)
		st = tess_fail(TESS_EINVAL, "-n %d, but this is rank %d of a job of %d", (int)n,
		               (int)env.rank, (int)env.size);
	if (!st)
		st = tess_world_open(&world);
	if (st)
		return st;
	tess_tool_open_output();
	st = tess_tool_compare_options(world);
	if (st)
		tess_world_fail(world, st, tess_error());
	else
		st = run(world, arg);
	tess_world_close(world);
	return st;
}

bool tess_tool_take_save_request(void)
{
	return tess_sigusr1_take();
}

bool tess_tool_has_threads(int32_t n)
{
	const char *name = tess_option_get("backend");
	const struct tess_backend *b;

	return n == 1 || (strcmp(name, "auto") != 0 && !tess_plugin_find_backend(name, &b) &&
	                  b->reach == TESS_REACH_PROCESS);
}

tess_status tess_tool_run_ranks(int32_t n, char **argv,
                                tess_status (*run)(struct tess_world *w, void *arg), void *arg,
                                int *exit_status)
{
	return tess_tool_has_threads(n) ? tess_world_spawn_threads(n, run, arg)
	                                : tess_tool_run_processes(n, 0, argv, exit_status);
}

tess_status tess_tool_run_processes(int32_t n, int32_t restarts, char **argv, int *exit_status)
{
	tess_status st = tess_tool_check_job(n);

	if (!st)
		st = tess_backend_check_device(tess_option_get("backend"), n, false, false);
	if (!st)
		st = silence_registry();
	return st ? st : launch_ranks(n, restarts, argv, exit_status);
}
