/* main.c - the command `tessera`: finds and runs the subcommand. */
#include "tool.h"

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/rendezvous/sigusr1.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>
#include <unistd.h>

static const struct tess_tool_command *const commands[] = {
	&tess_tool_generate, &tess_tool_train,   &tess_tool_plan,       &tess_tool_explain,
	&tess_tool_convert,  &tess_tool_grad,    &tess_tool_perplexity, &tess_tool_launch,
	&tess_tool_bench,    &tess_tool_conform, &tess_tool_info,       &tess_tool_compare,
	&tess_tool_new,
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static int print_usage(FILE *to)
{
	fprintf(to,
	        "usage: tessera COMMAND [arguments]\n       tessera help [COMMAND]\n"
	        "       tessera --version\n\n"
	        "Reads a Hugging Face checkpoint without conversion, shards it over ranks by a\n"
	        "plan, and runs or trains it. A plan names a sharding style for each module.\n\n"
	        "Commands:\n");
	for (int i = 0; i < COMMANDS; i++)
		fprintf(to, "  %-10s  %s\n", commands[i]->name, commands[i]->summary);
	return to == stdout ? tess_tool_finish_output("--help", 0) : 2;
}

static const struct tess_tool_command *find_command(const char *name)
{
	for (int i = 0; i < COMMANDS; i++)
		if (!strcmp(name, commands[i]->name))
			return commands[i];
	return NULL;
}

static int run_command(const struct tess_tool_command *c, int argc, char **argv)
{
	int status;

	if (tess_tool_declare_options()) {
		fprintf(stderr, "tessera: %s\n", tess_error());
		return 1;
	}
	/* these fork; their ranks or runs have deadlines of their own */
	if (c != &tess_tool_launch && c != &tess_tool_conform && c != &tess_tool_compare)
		tess_tool_start_watchdog(c->name);
	status = c->run(argc, argv);
	tess_registry_quit();
	tess_tool_stop_watchdog();
	return tess_tool_finish_output(c->name, status);
}

static int fail_unknown_command(const char *name)
{
	const char *near = "--help", *hint = tess_tool_find_familiar_command(name);
	size_t best = TESS_NEAREST_INIT;

	for (int i = 0; i < COMMANDS; i++)
		if (tess_nearest_update(name, commands[i]->name, &best))
			near = commands[i]->name;
	if (hint)
		fprintf(stderr, "tessera: no command \"%s\"; %s; see tessera --help\n", name, hint);
	else
		fprintf(stderr, "tessera: no command \"%s\"; did you mean %s?\n", name, near);
	return 2;
}

/* Runs `tessera help [COMMAND]`. */
static int print_command_help(int argc, char **argv)
{
	static char help[] = "--help";
	const struct tess_tool_command *c = argc > 2 ? find_command(argv[2]) : NULL;
	char *args[] = { argv[argc > 2 ? 2 : 0], help, NULL };

	return c          ? run_command(c, 2, args)
	       : argc > 2 ? fail_unknown_command(argv[2])
	                  : print_usage(stdout);
}

/*
 * Opens /dev/null for a missing stdin, stdout or stderr; otherwise the next opened file would get
 * its number and its output. Reads of such a stdin and writes to such a stdout fail.
 */
static bool open_missing_descriptors(void)
{
	static const int modes[] = { O_WRONLY, O_RDONLY, O_RDWR };

	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd)
			return false;
	return true;
}

/* Reports SIGBUS: a mapped file of a checkpoint became shorter, or cannot be read. */
static void report_bus_error(int signal_number)
{
	static const char text[] =
		"tessera: a file that is mapped became shorter, or could not be read, while it was "
		"in use; TESSERA_LOAD=copy reads files instead\n";

	(void)signal_number; /* is raised again, and ends the process: SA_RESETHAND */
	if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
		return;
}

static void set_up_signals(void)
{
	struct sigaction bus = { .sa_handler = report_bus_error, .sa_flags = SA_RESETHAND };

	signal(SIGCHLD, SIG_DFL); /* if ignored, the status of a child is lost */
	signal(SIGXFSZ, SIG_IGN); /* the write fails instead, and is reported */
	sigaction(SIGBUS, &bus, NULL);
	tess_sigusr1_catch();
	if (tess_crash_reports_enable())
		fprintf(stderr, "tessera: %s\n", tess_error());
}

int main(int argc, char **argv)
{
	const struct tess_tool_command *c;

	if (!open_missing_descriptors() || !tess_tool_replace_stdout()) {
		fprintf(stderr, "tessera: %s\n", strerror(errno));
		return 1;
	}
	tess_json_watch_memory();
	/* a preloaded library may have set another rounding mode, which changes parsed numbers */
	fesetenv(FE_DFL_ENV);
	set_up_signals();
	if (argc < 2)
		return print_usage(stderr);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
		return print_usage(stdout);
	if (!strcmp(argv[1], "--version")) {
		printf("tessera %s, plugin ABI %d\n", tess_version(), TESS_ABI);
		return tess_tool_finish_output("--version", 0);
	}
	if (tess_log_check()) {
		fprintf(stderr, "tessera: %s\n", tess_error());
		return 2;
	}
	if (!strcmp(argv[1], "help"))
		return print_command_help(argc, argv);
	c = find_command(argv[1]);
	return c ? run_command(c, argc - 1, argv + 1) : fail_unknown_command(argv[1]);
}
