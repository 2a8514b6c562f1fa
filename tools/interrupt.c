/*
 * interrupt.c - SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first ends the work in order, the second
 * ends the process.
 */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* interrupted: the first signal; direct: signals that no launcher passed on */
static volatile sig_atomic_t interrupted, direct;
static const char *announced; /* printed at the first signal; NULL: nothing */
static pid_t launcher;
static const char *_Atomic saves; /* directory of incomplete saves of this process; NULL: none */
static char own_part[32],
	removed_part[64]; /* in names of incomplete saves; the name during removal */

/* ---- parts of saves: handlers may make system calls, and use no memory but their own --------- */

/* Calls `use` with the name of each directory entry. */
static void list_entries(int dir, void (*use)(int dir, const char *name))
{
	_Alignas(struct dirent64) char buffer[4096];
	ssize_t n;

	while ((n = getdents64(dir, buffer, sizeof buffer)) > 0)
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *e = (const void *)(buffer + at);

			use(dir, e->d_name);
			at += e->d_reclen;
		}
}

static void remove_file(int dir, const char *name)
{
	unlinkat(dir, name, 0);
}

/* Renames the folder before removal: a thread that still writes it cannot complete the save. */
static void remove_own_part(int dir, const char *name)
{
	int part;

	if (!strstr(name, own_part) || renameat(dir, name, dir, removed_part))
		return;
	part = openat(dir, removed_part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	list_entries(part, remove_file);
	close(part);
	unlinkat(dir, removed_part, AT_REMOVEDIR);
}

static void remove_own_parts(void)
{
	int dir = saves ? open(saves, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	if (dir < 0)
		return;
	list_entries(dir, remove_own_part);
	close(dir);
}

void tess_tool_remove_parts(const char *dir)
{
	snprintf(own_part, sizeof own_part, ".%ld-", (long)getpid());
	snprintf(removed_part, sizeof removed_part, "step-1.%ld-999999.part", (long)getpid());
	saves = dir;
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Ends the process by the signal, even pid 1 of a container, which ignores default actions. */
static _Noreturn void end_process(int sig)
{
	sigset_t set;

	remove_own_parts();
	signal(sig, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, sig);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	raise(sig);
	_exit(128 + sig);
}

/*
 * Handles a signal. One to the process group arrives a second time, from the launcher, which
 * queues SIGTERM when it ends the ranks. A closing terminal may send SIGHUP more than once.
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

bool tess_tool_saves(void)
{
	return saves != NULL;
}

void tess_tool_end(int status)
{
	remove_own_parts();
	_exit(status);
}

void tess_tool_end_by_interrupt(void)
{
	end_process(interrupted);
}

bool tess_tool_is_interrupted(void)
{
	return interrupted != 0;
}

int tess_tool_get_interrupt_status(void)
{
	return interrupted ? 128 + interrupted : 0;
}
