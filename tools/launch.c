/* launch.c - `tessera launch`: starts a program as N ranks of one job on this host. */
#include "tool.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/launch/launch.h"
#include "core/rendezvous/coordinator.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const help =
	"usage: tessera launch -n N [--backend B] [--bind HOW] [--timeout S] [--max-restarts N]\n"
	"       [--log-dir DIR] [--flight DIR] [--help] -- PROGRAM [ARGUMENT...]\n"
	"\n"
	"Starts PROGRAM N times on this host, each a rank of one job, and waits for all of them.\n"
	"Output of the ranks is printed line by line with [rank] before it. When a rank fails it\n"
	"is named, the other ranks are stopped, and the exit status is that of the rank: 128 + N\n"
	"if signal N ended it. No process that a rank has started is left.\n"
	"\n"
	"After a failure, and at SIGUSR1 while the job runs, a line names the straggler, its\n"
	"call, and the calls in which the other ranks wait.\n"
	"\n"
	"  -n N              how many ranks\n"
	"  --backend B       what moves data between them: shm, gloo, ... (TESSERA_BACKEND)\n"
	"  --bind HOW        cpu: binds each rank to one CPU; none; auto: cpu where ranks share\n"
	"                    memory, outnumber CPUs and divide evenly over them (TESSERA_BIND)\n"
	"  --timeout S       seconds that a call may take before the job fails (TESSERA_TIMEOUT)\n"
	"  --max-restarts N  start the whole job again after a failure, up to N times\n"
	"  --log-dir DIR     write the output of each rank to DIR/rank-R.log as well\n"
	"  --flight DIR      keep the last 256 calls of all ranks in DIR (TESSERA_FLIGHT)\n"
	"  --help            this text\n"
	"\n"
	"examples:\n"
	"  tessera launch -n 4 -- ./train\n"
	"  tessera launch -n 2 --backend gloo --timeout 10 -- ./sum 1000\n"
	"  tessera launch -n 8 --bind none -- ./train\n"
	"  tessera launch -n 4 --max-restarts 2 --log-dir logs -- ./train --resume\n"
	"  tessera launch -n 8 --flight logs -- ./train & sleep 60; kill -USR1 $!\n";

static bool parse_count_option(const char *name, const char *text, int64_t min, int32_t *out)
{
	int64_t n;

	if (tess_tool_parse_integer(name, text, min, TESS_RANKS_MAX, &n))
		return false;
	*out = (int32_t)n;
	return true;
}

/* Refuses once what every rank would refuse. */
static tess_status check_launch_options(const struct tess_launch *how)
{
	tess_status st = how->backend ? tess_option_set("backend", how->backend) : TESS_OK;

	if (!st && how->timeout)
		st = tess_option_set("timeout", how->timeout);
	return st ? st : tess_tool_check_job(how->nranks);
}

int tess_tool_launch(int argc, char **argv)
{
	const char *flight = tess_option_get("flight"), *nranks = NULL, *restarts = NULL;
	struct tess_launch options_read = { .bind = tess_option_get("bind"),
		                            .flight = *flight ? flight : NULL };
	const struct tess_tool_option options[] = {
		{ "n", .text = &nranks },
		{ "backend", .text = &options_read.backend },
		{ "bind", .text = &options_read.bind },
		{ "timeout", .text = &options_read.timeout },
		{ "max-restarts", .text = &restarts },
		{ "log-dir", .text = &options_read.log_dir },
		{ "flight", .text = &options_read.flight },
		{ 0 },
	};
	tess_status st = tess_tool_parse_options(argc, argv, help, true, options);
	int status;

	if (st < 0)
		tess_tool_print_error("launch");
	if (st)
		return st < 0 ? 2 : 0;
	if ((nranks && !parse_count_option("-n", nranks, 1, &options_read.nranks)) ||
	    (restarts &&
	     !parse_count_option("--max-restarts", restarts, 0, &options_read.restarts)))
		return tess_tool_fail_usage("launch", tess_error(), "");
	if (!options_read.nranks)
		return tess_tool_fail_usage("launch", "give the number of ranks: -n N", "");
	if (optind == argc)
		return tess_tool_fail_usage("launch", "no program is given", "");
	options_read.argv = argv + optind;
	if (check_launch_options(&options_read) || tess_launch(&options_read, &status) < 0) {
		tess_tool_print_error("launch");
		return 1;
	}
	return status;
}
