/* interrupt.c - Ctrl-C: the first ends the work in order, a second one the process. */
#include "tool.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted, direct; /* direct: those that no launcher passed on */
static const char *announced; /* at the first one; NULL: nothing */
static pid_t launcher;

/* A signal to the whole process group comes a second time, from the launcher. */
static void handle_interrupt(int sig, siginfo_t *info, void *context)
{
	int saved = errno;

	(void)context;
	if (!interrupted && announced && write(STDERR_FILENO, announced, strlen(announced)) < 0)
		announced = NULL; /* stderr is closed */
	errno = saved;
	interrupted = 1;
	if (launcher && info->si_code == SI_USER && info->si_pid == launcher)
		return;
	if (!direct++)
		return;
	signal(sig, SIG_DFL);
	raise(sig); /* delivered once the handler returns */
}

void tess_tool_catch_interrupt(const char *notice)
{
	struct sigaction act = { .sa_sigaction = handle_interrupt,
		                 .sa_flags = SA_SIGINFO | SA_RESTART };
	bool launched = false;

	if (!tess_tool_is_launched(&launched) && launched)
		launcher = getppid();
	announced = notice && !isatty(STDERR_FILENO) ? notice + 1 : notice;
	sigemptyset(&act.sa_mask);
	sigaction(SIGINT, &act, NULL);
}

bool tess_tool_is_interrupted(void)
{
	return interrupted != 0;
}
