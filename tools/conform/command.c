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

/* Splits "/dir/tess-KIND-NAME.so"; the command and its ranks search the directory first. */
static tess_status find_plugin_file(const char *kind, const char *file, char name[static 128])
{
	const char *before = getenv("TESSERA_PLUGIN_PATH");
	char real[PATH_MAX], path[2 * PATH_MAX], prefix[32], *base;
	size_t len, n = (size_t)snprintf(prefix, sizeof prefix, "tess-%s-", kind);

	if (!realpath(file, real))
		return tess_fail(TESS_ENOENT, "%s does not exist", file);
	base = strrchr(real, '/');
	*base++ = '\0';
	len = strlen(base);
	if (strncmp(base, prefix, n) != 0 || len < n + 4 || len > 100 ||
	    strcmp(base + len - 3, ".so") != 0)
		return tess_fail(TESS_EINVAL, "%s: a %s is in a file tess-%s-NAME.so", base, kind,
		                 kind);
	snprintf(name, 128, "%.*s", (int)(len - n - 3), base + n);
	if (snprintf(path, sizeof path, "%s%s%s", real, before ? ":" : "", before ? before : "") >=
	    (int)sizeof path)
		return tess_fail(TESS_EINVAL, "TESSERA_PLUGIN_PATH is too long");
	setenv("TESSERA_PLUGIN_PATH", path, 1);
	return TESS_OK;
}

/* Splits FILE.so:NAME:CONFIGURATION; without a name all styles of the file are tested. */
static tess_status find_style_argument(struct conform_options *options, char file[static PATH_MAX])
{
	const char *end = strstr(options->style, ".so");
	char name[128];

	if (strlen(options->style) >= 200 || strpbrk(options->style, "\"\\"))
		return tess_fail(TESS_EINVAL,
		                 "--style: at most 199 characters, without quotes and backslashes");
	if (!end || (end[3] && end[3] != ':'))
		return TESS_OK;
	snprintf(file, PATH_MAX, "%.*s", (int)(end + 3 - options->style), options->style);
	if (end[3])
		options->style = end + 4;
	else
		options->file = file;
	return find_plugin_file("style", file, name);
}

static tess_status read_timeout_variable(double preset, double *out)
{
	const char *text = getenv("TESSERA_TIMEOUT");
	char *end;

	*out = preset;
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
	if (!i)
		return "gaps";
	if (i <= conform_nparts)
		return conform_parts[i - 1].name;
	i -= conform_nparts + 1;
	return i >= conform_nstyle_parts                      ? NULL
	       : !strcmp(conform_style_parts[i].name, "life") ? NULL /* of both tables */
	                                                      : conform_style_parts[i].name;
}

#define AT(member) TESS_TOOL_AT(struct conform_options, member)

static const struct tess_tool_option conform_options[] = {
	{ "ranks", "N", "maximum number of ranks", AT(max_ranks), .lo = 1, .hi = CONFORM_RANKS },
	{ "style", "NAME|FILE.so",
	  "check a style instead of a backend: NAME:CONFIGURATION, FILE.so", AT(style) },
	{ "tolerance", "X", "for a style that changes bits: allow X times the largest value",
	  AT(tolerance), .hi = 1 },
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

/* Returns whether a table has the part that is requested, if any. */
static bool has_part(const struct conform_part *parts, int32_t n, const char *name)
{
	while (n-- > 0)
		if (!name || !strcmp(parts[n].name, name))
			return true;
	return false;
}

static tess_status read_style_arguments(int nargs, char *file, struct conform_options *options)
{
	options->backend = "loopback";
	if (nargs)
		return tess_fail(TESS_EINVAL, "give --style or a backend, not both");
	if (options->launcher || options->device)
		return tess_fail(TESS_EINVAL, "--%s is for backends; ranks of a style are threads",
		                 options->launcher ? "start" : "device");
	if (!has_part(conform_style_parts, conform_nstyle_parts, options->part))
		return tess_fail(TESS_EINVAL, "--part %s is of backends, not of styles",
		                 options->part);
	if (find_style_argument(options, file))
		return TESS_EINVAL;
	return read_timeout_variable(2, &options->timeout);
}

static tess_status read_backend_argument(int argc, char **argv, char name[static 128],
                                         struct conform_options *options)
{
	if (optind == argc)
		return tess_fail(TESS_EINVAL,
		                 "give a backend: its name or its file; or a style: --style");
	if (optind + 1 != argc)
		return tess_fail(TESS_EINVAL, "give one backend only, without %s",
		                 argv[optind + 1]);
	if (options->tolerance > 0)
		return tess_fail(TESS_EINVAL, "--tolerance is for --style");
	if (options->part && strcmp(options->part, "gaps") != 0 &&
	    !has_part(conform_parts, conform_nparts, options->part))
		return tess_fail(TESS_EINVAL, "--part %s is of styles, not of backends",
		                 options->part);
	snprintf(name, 128, "%s", argv[optind]);
	options->backend = name;
	if ((strchr(argv[optind], '/') || strstr(argv[optind], ".so")) &&
	    find_plugin_file("backend", argv[optind], name))
		return TESS_EINVAL;
	return read_timeout_variable(10, &options->timeout);
}

static int execute_conform(int argc, char **argv)
{
	struct conform_options options = { .max_ranks = CONFORM_RANKS, .only = -1 };
	const struct tess_tool_section sections[] = {
		{ "Options", conform_options, .to = &options }, { 0 }
	};
	char name[128], file[PATH_MAX];
	tess_status st;

	if (argc == 3 && !strcmp(argv[1], "@rank"))
		return conform_rank_main(argv[2]);
	st = tess_tool_parse_options(argc, argv, &tess_tool_conform, false, sections);
	if (st < 0)
		tess_tool_print_error("conform");
	if (st)
		return st < 0 ? 2 : 0;
	if (options.only >= 0)
		options.part = get_part_name(options.only);
	st = options.style ? read_style_arguments(argc - optind, file, &options)
	                   : read_backend_argument(argc, argv, name, &options);
	if (st)
		return tess_tool_fail_usage("conform", tess_error(), "");
	return run_conform(&options);
}

const struct tess_tool_command tess_tool_conform = {
	"conform",
	"check that a backend, or a style, keeps the promises of its interface",
	"[options] FILE.so|NAME\n       tessera conform [options] --style NAME|FILE.so",
	"Checks a backend against the promises of tessera/group.h, on 1 to N ranks of this host:\n"
	"all kinds, dtypes and operations, to the bit, with guards around every buffer; several\n"
	"calls and groups at a time; misuse, mismatch, death, timeouts. It takes minutes.\n"
	"\n"
	"With --style, checks a style: its functions, then each kind of module with each\n"
	"placement of its input, forward and gradients, to the bit, and modules of small\n"
	"decoders. It needs no checkpoint. Ranks are threads.\n"
	"\n"
	"A fault is printed with its case, its rank, what was found and expected, and the rule;\n"
	"the output of the ranks follows. A call may take TESSERA_TIMEOUT seconds (10; a\n"
	"style: 2). The exit status is 0 if the backend or style conforms, 1 if not, 2 for\n"
	"wrong usage.\n",
	"  tessera conform shm\n"
	"  tessera conform --quick ./tess-backend-mine.so\n"
	"  tessera conform --style ./tess-style-mine.so\n"
	"  tessera conform --quick --start 'mpirun --host node1:8 -n $N' mpi\n",
	execute_conform,
};
