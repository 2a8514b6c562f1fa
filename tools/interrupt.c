/*
 * interrupt.c - SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first ends the work in order, a second one
 * the process.
 */
#include "tool.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* interrupted: the first signal; direct: signals that no launcher passed on */
static volatile sig_atomic_t interrupted, direct;
static const char *announced; /* at the first one; NULL: nothing */
static pid_t launcher;

/* Ends the process, even one with number 1 (a container's), for which defaults are ignored. */
static void end_process(int sig)
{
	sigset_t set;

	signal(sig, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, sig);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	raise(sig);
	_exit(128 + sig);
}

/*
 * A signal to the whole process group arrives a second time, from the launcher. A launcher of ours
 * that ends the ranks queues SIGTERM. A terminal that closes may send SIGHUP more than once.
 */
static void handle_interrupt(int sig, siginfo_t *info, void *context)
{
	int saved = errno;
	bool passed_on = launcher && info->si_pid == launcher;

	(void)context;
	if (passed_on && info->si_code == SI_QUEUE)
		end_process(sig);
	if (!interrupted && announced && write(STDERR_FILENO, announced, strlen(announced)) < 0)
		announced = NULL; /* stderr is closed */
	errno = saved;
	if (!interrupted)
		interrupted = sig;
	if (sig == SIGHUP || (passed_on && info->si_code == SI_USER))
		return;
	if (direct++)
		end_process(sig);
}

void tess_tool_catch_interrupt(const char *notice)
{
	struct sigaction act = { .sa_sigaction = handle_interrupt,
		                 .sa_flags = SA_SIGINFO | SA_RESTART },
			 hangup;
	bool launched = false;

	if (!tess_tool_is_launched(&launched) && launched)
		launcher = getppid();
	announced = notice && !isatty(STDERR_FILENO) ? notice + 1 : notice;
	sigemptyset(&act.sa_mask);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) /* nohup */
		sigaction(SIGHUP, &act, NULL);
}

bool tess_tool_is_interrupted(void)
{
	return interrupted != 0;
}

int tess_tool_get_interrupt_status(void)
{
	return interrupted ? 128 + interrupted : 0;
}
