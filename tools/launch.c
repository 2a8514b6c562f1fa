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

#define AT(member) TESS_TOOL_AT(struct tess_launch, member)

static const struct tess_tool_option launch_options[] = {
	{ "n", "N", "number of ranks; required", AT(nranks), .lo = 1, .hi = TESS_RANKS_MAX },
	{ "backend", "auto|BACKEND",
	  "backend: shm, gloo, ... (default: TESSERA_BACKEND, else auto)", AT(backend) },
	{ "bind", "auto|cpu|none",
	  "bind each rank to one CPU; auto: where that helps (default: TESSERA_BIND, else auto)",
	  AT(bind) },
	{ "timeout", "SECONDS", "time limit of a call (default: TESSERA_TIMEOUT)", AT(timeout) },
	{ "max-restarts", "N", "restart the job after a failure, up to N times", AT(restarts),
	  .hi = TESS_RANKS_MAX },
	{ "log-dir", "DIR", "also write the output of each rank to DIR/rank-R.log", AT(log_dir) },
	{ "flight", "DIR",
	  "keep the last 256 calls of all ranks in DIR; off: record none (default: TESSERA_FLIGHT)",
	  AT(flight) },
	{ 0 },
};

/* Checks what every rank would refuse. */
static tess_status check_launch_options(const struct tess_launch *how)
{
	tess_status st = how->backend ? tess_option_set("backend", how->backend) : TESS_OK;

	if (!st && how->timeout)
		st = tess_option_set("timeout", how->timeout);
	return st ? st : tess_tool_check_job(how->nranks);
}

static int execute_launch(int argc, char **argv)
{
	const char *flight = tess_option_get("flight");
	struct tess_launch options = { .bind = tess_option_get("bind"),
		                       .flight = *flight ? flight : NULL };
	const struct tess_tool_section sections[] = { { "Options", launch_options, .to = &options },
		                                      { 0 } };
	tess_status st = tess_tool_parse_options(argc, argv, &tess_tool_launch, true, sections);
	int status;

	if (st < 0)
		tess_tool_print_error("launch");
	if (st)
		return st < 0 ? 2 : 0;
	if (!options.nranks)
		return tess_tool_fail_usage("launch", "give the number of ranks: -n N", "");
	if (optind == argc)
		return tess_tool_fail_usage("launch", "no program is given", "");
	options.argv = argv + optind;
	if (check_launch_options(&options) || tess_launch(&options, &status) < 0) {
		tess_tool_print_error("launch");
		return 1;
	}
	return status;
}

const struct tess_tool_command tess_tool_launch = {
	"launch",
	"start any program as N ranks of one job on this host",
	"-n N [options] -- PROGRAM [ARGUMENT...]",
	"Starts PROGRAM N times on this host, each a rank of one job, and waits for all of them.\n"
	"Output of the ranks is printed line by line with [rank] before it. When a rank fails it\n"
	"is named, the other ranks are stopped, and the exit status is that of the rank: 128 + N\n"
	"if signal N ended it. No process that a rank has started is left.\n"
	"\n"
	"After a failure, and at SIGUSR1 while the job runs, a line names the straggler, its\n"
	"call, and the calls in which the other ranks wait.\n",
	"  tessera launch -n 4 -- ./train\n"
	"  tessera launch -n 2 --backend gloo --timeout 10 -- ./sum 1000\n"
	"  tessera launch -n 4 --max-restarts 2 --log-dir logs -- ./train --resume\n"
	"  tessera launch -n 8 --flight logs -- ./train & sleep 60; kill -USR1 $!\n",
	execute_launch,
};
