/* tessera - the command: finds and runs the subcommand. */
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

static const struct {
	const char *name, *summary;
	int (*run)(int argc, char **argv);
} tools[] = {
	{ "generate", "text from a checkpoint on N ranks", tess_tool_generate },
	{ "train", "trains a checkpoint on N ranks", tess_tool_train },
	{ "explain", "what each rank of a plan would hold and send, without starting ranks",
	  tess_tool_explain },
	{ "convert", "a checkpoint in another dtype, or in files of another size",
	  tess_tool_convert },
	{ "grad", "loss and gradients of one step of training, as a file", tess_tool_grad },
	{ "perplexity", "how well a checkpoint predicts texts", tess_tool_perplexity },
	{ "launch", "start any program as N ranks of one job", tess_tool_launch },
	{ "bench", "tokens per second of a checkpoint, bandwidth of collectives", tess_tool_bench },
	{ "conform", "checks that a backend keeps the promises of its interface",
	  tess_tool_conform },
	{ "info", "plugins and options; what a checkpoint or a save has", tess_tool_info },
};
enum { TOOLS = sizeof tools / sizeof *tools };

static int print_usage(FILE *to)
{
	fprintf(to, "usage: tessera COMMAND [arguments]\n\n");
	for (int i = 0; i < TOOLS; i++)
		fprintf(to, "  %-10s %s\n", tools[i].name, tools[i].summary);
	fprintf(to, "\ntessera COMMAND --help explains it, with examples. tessera --version: the "
	            "version.\n");
	return to == stdout ? tess_tool_finish_output("--help", 0) : 2;
}

static int fail_unknown_command(const char *name)
{
	const char *near = "--help", *hint = tess_tool_find_familiar_command(name);
	size_t best = TESS_NEAREST_INIT;

	for (int i = 0; i < TOOLS; i++)
		if (tess_nearest_update(name, tools[i].name, &best))
			near = tools[i].name;
	if (hint)
		fprintf(stderr, "tessera: no command \"%s\"; %s; see tessera --help\n", name, hint);
	else
		fprintf(stderr, "tessera: no command \"%s\"; did you mean %s?\n", name, near);
	return 2;
}

/*
 * Opens /dev/null as a missing stdin, stdout or stderr; else the next file that is opened would get
 * its number, and its output. Reading such a stdin, and writing to such a stdout, fails.
 */
static bool open_missing_descriptors(void)
{
	static const int modes[] = { O_WRONLY, O_RDONLY, O_RDWR };

	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd)
			return false;
	return true;
}

/* A checkpoint is mapped: where its file ends early, reading it is this signal. */
static void report_bus_error(int signal_number)
{
	static const char text[] =
		"tessera: a file that is mapped became shorter, or could not be read, while it was "
		"in use; TESSERA_LOAD=copy reads files instead\n";

	(void)signal_number; /* comes again, and ends the process: SA_RESETHAND */
	if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
		return;
}

static void set_up_signals(void)
{
	struct sigaction bus = { .sa_handler = report_bus_error, .sa_flags = SA_RESETHAND };

	signal(SIGCHLD, SIG_DFL); /* where it is ignored the status of a child is lost */
	signal(SIGXFSZ, SIG_IGN); /* writing too much fails, and is reported */
	sigaction(SIGBUS, &bus, NULL);
	tess_sigusr1_catch();
}

int main(int argc, char **argv)
{
	int status;

	if (!open_missing_descriptors() || !tess_tool_replace_stdout()) {
		fprintf(stderr, "tessera: %s\n", strerror(errno));
		return 1;
	}
	tess_json_watch_memory();
	/* a preloaded library may have set a mode that changes how options are read */
	fesetenv(FE_DFL_ENV);
	set_up_signals();
	if (argc < 2)
		return print_usage(stderr);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return print_usage(stdout);
	if (!strcmp(argv[1], "--version")) {
		printf("tessera %s, plugin ABI %d\n", tess_version(), TESS_ABI);
		return tess_tool_finish_output("--version", 0);
	}
	if (tess_log_check()) {
		fprintf(stderr, "tessera: %s\n", tess_error());
		return 2;
	}
	if (tess_tool_declare_options()) {
		fprintf(stderr, "tessera: %s\n", tess_error());
		return 1;
	}
	for (int i = 0; i < TOOLS; i++) {
		if (strcmp(argv[1], tools[i].name))
			continue;
		status = tools[i].run(argc - 1, argv + 1);
		tess_registry_quit();
		return tess_tool_finish_output(tools[i].name, status);
	}
	return fail_unknown_command(argv[1]);
}
