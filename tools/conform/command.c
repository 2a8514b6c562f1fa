/* command.c - `tessera conform`: reads options, and sets the environment of the jobs. */
#include "conform.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "tools/tool.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Splits "/dir/tess-backend-NAME.so"; the command and its ranks search the directory first. */
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

/* Clears variables of a job that this process may be a rank of. */
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

enum { PARTS_MAX = 32 };

static const char *get_part_name(int32_t i)
{
	return !i ? "gaps" : i <= conform_nparts ? conform_parts[i - 1].name : NULL;
}

#define AT(member) TESS_TOOL_AT(struct conform_options, member)

static const struct tess_tool_option conform_options[] = {
	{ "ranks", "N", "maximum number of ranks", AT(max_ranks), .lo = 1, .hi = CONFORM_RANKS },
	{ "device", "NAME", "use memory of this device, as nccl requires cuda", AT(device) },
	{ "quick", NULL, "test fewer counts, ranks and repetitions: half a minute", AT(quick) },
	{ "part", NULL, "run only this row of the table", AT(only), .hi = PARTS_MAX,
	  .get_name = get_part_name },
	{ "tap", NULL, "print the Test Anything Protocol instead of a table", AT(tap) },
	{ "start", "COMMAND",
	  "start $N ranks by this shell command, to which program and arguments are appended",
	  AT(launcher) },
	{ 0 },
};

static int execute_conform(int argc, char **argv)
{
	struct conform_options options = { .max_ranks = CONFORM_RANKS, .only = -1 };
	const struct tess_tool_section sections[] = {
		{ "Options", conform_options, .to = &options }, { 0 }
	};
	char name[128];
	tess_status st;

	if (argc == 3 && !strcmp(argv[1], "@rank"))
		return conform_rank_main(argv[2]);
	st = tess_tool_parse_options(argc, argv, &tess_tool_conform, false, sections);
	if (st < 0)
		tess_tool_print_error("conform");
	if (st)
		return st < 0 ? 2 : 0;
	if (optind + 1 != argc)
		return tess_tool_fail_usage("conform",
		                            optind == argc ? "give a backend: its name or its file"
		                                           : "give one backend only, without ",
		                            optind == argc ? "" : argv[optind + 1]);
	if (options.only >= 0)
		options.part = get_part_name(options.only);
	snprintf(name, sizeof name, "%s", argv[optind]);
	options.backend = name;
	if ((strchr(argv[optind], '/') || strstr(argv[optind], ".so")) &&
	    find_backend_file(argv[optind], name))
		return tess_tool_fail_usage("conform", tess_error(), "");
	if (read_timeout_variable(&options.timeout))
		return tess_tool_fail_usage("conform", tess_error(), "");
	return run_conform(&options);
}

const struct tess_tool_command tess_tool_conform = {
	"conform",
	"check that a backend keeps the promises of its interface",
	"[options] FILE.so|NAME",
	"Checks a backend against the promises of tessera/group.h, on 1 to N ranks of this host:\n"
	"all kinds, dtypes and operations, to the bit, with guards around every buffer; several\n"
	"calls and groups at a time; misuse, mismatch, death, timeouts. It takes minutes.\n"
	"\n"
	"A fault is printed with its case, its rank, what was found and expected, and the rule;\n"
	"the output of the ranks follows. A call may take TESSERA_TIMEOUT seconds (10). The exit\n"
	"status is 0 if the backend conforms, 1 if not, 2 for wrong usage.\n",
	"  tessera conform shm\n"
	"  tessera conform --quick ./tess-backend-mine.so\n"
	"  tessera conform --quick --start 'mpirun --host node1:8 -n $N' mpi\n",
	execute_conform,
};
