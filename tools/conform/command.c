/* command.c - `tessera conform`: options, and the environment of the jobs. */
#include "conform.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "tools/tool.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const help =
	"usage: tessera conform [--ranks N] [--quick] [--part PART] [--tap] [--start COMMAND]\n"
	"       [--device NAME] [--help] FILE.so|NAME\n"
	"\n"
	"Checks that a backend keeps the promises of tessera/group.h, on 1 to N ranks of this\n"
	"host: all kinds, dtypes and operations, to the bit, in place and not, with guards\n"
	"around every buffer; several calls at a time, several groups; misuse, mismatch, death,\n"
	"timeouts; a thousand openings. Each fault is printed with its case, its rank, what was\n"
	"found and expected, and the rule; below it the output of the ranks. A job that only\n"
	"took too long, as on a busy machine, runs up to three times. It takes minutes.\n"
	"\n"
	"  --ranks N        at most N ranks, 1 to 8 (default 8)\n"
	"  --quick          half a minute: fewer counts, ranks and repetitions\n"
	"  --part PART      only this row of the table: gaps, open, wait, data, barrier, several,\n"
	"                   messages, groups, extras, run, life, abort, misuse, mismatch, death,\n"
	"                   timeout\n"
	"  --tap            the Test Anything Protocol instead of a table\n"
	"  --start COMMAND  starts the ranks by this shell command, in which $N is their number;\n"
	"                   the program and its arguments are appended. Ranks of mpi: mpirun\n"
	"  --device NAME    the calls use memory of this device, each rank its own in turn: for a\n"
	"                   backend of such memory, as nccl (cuda)\n"
	"  --help           this text\n"
	"\n"
	"Kinds that the backend does not support are listed in FILE.gaps beside it. A call may\n"
	"take TESSERA_TIMEOUT seconds (10).\n"
	"The exit status is 0 if it conforms, 1 if not, 2 for wrong usage.\n"
	"\n"
	"examples:\n"
	"  tessera conform shm\n"
	"  tessera conform --quick ./tess-backend-mine.so\n";

/* "/dir/tess-backend-NAME.so": the directory is searched first, by the ranks too. */
static tess_status find_backend_file(const char *file, char name[static 128])
{
	static const char prefix[] = "tess-backend-";
	const char *before = getenv("TESSERA_PLUGIN_PATH");
	char real[PATH_MAX], path[2 * PATH_MAX], *base;
	size_t len;

	if (!realpath(file, real))
		return tess_fail(TESS_ENOENT, "%s does not exist", file);
	base = strrchr(real, '/');
	*base++ = '\0';
	len = strlen(base);
	if (strncmp(base, prefix, strlen(prefix)) != 0 || len < sizeof prefix + 3 || len > 100 ||
	    strcmp(base + len - 3, ".so") != 0)
		return tess_fail(TESS_EINVAL, "%s: a backend is in a file tess-backend-NAME.so",
		                 base);
	snprintf(name, 128, "%.*s", (int)(len - strlen(prefix) - 3), base + strlen(prefix));
	if (snprintf(path, sizeof path, "%s%s%s", real, before ? ":" : "", before ? before : "") >=
	    (int)sizeof path)
		return tess_fail(TESS_EINVAL, "TESSERA_PLUGIN_PATH is too long");
	setenv("TESSERA_PLUGIN_PATH", path, 1);
	return TESS_OK;
}

static tess_status read_timeout_variable(double *out)
{
	const char *text = getenv("TESSERA_TIMEOUT");
	char *end;

	*out = 10;
	if (!text)
		return TESS_OK;
	*out = strtod(text, &end);
	if (end == text || *end || !(*out > 0 && *out < 1e6))
		return tess_fail(TESS_EINVAL, "TESSERA_TIMEOUT=%s: must be seconds, more than 0",
		                 text);
	return TESS_OK;
}

/* The ranks of the jobs do not inherit variables of a job that this process may be a rank of. */
static void clear_job_variables(void)
{
	static const char *const variables[] = { "RANK",
		                                 "WORLD_SIZE",
		                                 "LOCAL_RANK",
		                                 "LOCAL_WORLD_SIZE",
		                                 "TESSERA_RENDEZVOUS",
		                                 "TESSERA_JOB",
		                                 "TESSERA_REDUCE" };

	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
		unsetenv(variables[i]);
}

static int run_conform(const struct conform_options *options)
{
	struct conform_report *r;
	tess_status st;

	setenv("TESSERA_BACKEND", options->backend, 1);
	if (options->device)
		setenv("TESSERA_DEVICE", options->device, 1);
	clear_job_variables();
	r = conform_report_open(options);
	st = r ? conform_run_jobs(options, r) : tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		return conform_report_close(r);
	fprintf(stderr, "tessera conform: %s\n", tess_error());
	free(r);
	return 1;
}

static bool is_part_name(const char *name)
{
	for (int32_t p = 0; p < conform_nparts; p++)
		if (!strcmp(conform_parts[p].name, name))
			return true;
	return !strcmp(name, "gaps");
}

int tess_tool_conform(int argc, char **argv)
{
	struct conform_options options_read = { .max_ranks = CONFORM_RANKS };
	const char *ranks = NULL;
	const struct tess_tool_option options[] = {
		{ "ranks", .text = &ranks },
		{ "quick", .flag = &options_read.quick },
		{ "tap", .flag = &options_read.tap },
		{ "start", .text = &options_read.launcher },
		{ "part", .text = &options_read.part },
		{ "device", .text = &options_read.device },
		{ 0 },
	};
	char name[128], *end;
	tess_status st;

	if (argc == 3 && !strcmp(argv[1], "@rank"))
		return conform_rank_main(argv[2]);
	st = tess_tool_parse_options(argc, argv, help, false, options);
	if (st < 0)
		tess_tool_print_error("conform");
	if (st)
		return st < 0 ? 2 : 0;
	if (ranks) {
		options_read.max_ranks = (int32_t)strtol(ranks, &end, 10);
		if (end == ranks || *end || options_read.max_ranks < 1 ||
		    options_read.max_ranks > CONFORM_RANKS)
			return tess_tool_fail_usage("conform", "--ranks needs 1 to 8, not ", ranks);
	}
	if (optind + 1 != argc)
		return tess_tool_fail_usage("conform",
		                            optind == argc ? "give a backend: its name or its file"
		                                           : "give one backend only, without ",
		                            optind == argc ? "" : argv[optind + 1]);
	if (options_read.part && !is_part_name(options_read.part))
		return tess_tool_fail_usage("conform", "there is no part ", options_read.part);
	snprintf(name, sizeof name, "%s", argv[optind]);
	options_read.backend = name;
	if ((strchr(argv[optind], '/') || strstr(argv[optind], ".so")) &&
	    find_backend_file(argv[optind], name))
		return tess_tool_fail_usage("conform", tess_error(), "");
	if (read_timeout_variable(&options_read.timeout))
		return tess_tool_fail_usage("conform", tess_error(), "");
	return run_conform(&options_read);
}
