/*
 * watchdog.c - a thread that ends the command if a call of a plugin does not return: in a program
 * that is recorded, or while a plugin is opened, where no job has a deadline; on a rank that is a
 * process, if its launcher does not; and after Ctrl-C.
 */
#include "tool.h"

#include "core/base/clock.h"
#include "core/base/option.h"
#include "core/base/thread.h"
#include "core/registry/plugin_watch.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_MS = 500, LAUNCHER_MS = 3000, INTERRUPT_MS = 2000, SAVE_MS = 5000 };

static struct {
	const char *command;
	pthread_t thread;
	int stop; /* an eventfd; -1: no thread */
	int64_t timeout; /* of a call of a plugin, ns */
	int64_t interrupted_at; /* 0: not yet */
} watchdog = { .stop = -1 };

/* Ends the process because of a call that does not return. */
static _Noreturn void end_command(const struct tess_plugin_stay *stay)
{
	fprintf(stderr,
	        "tessera %s: %s has not returned for %.1f s; a call of a plugin may take "
	        "TESSERA_TIMEOUT (%g s)\n",
	        watchdog.command, stay->text, (double)stay->stayed / 1e9,
	        (double)watchdog.timeout / 1e9);
	tess_tool_end(1);
}

/*
 * After Ctrl-C the command waits for the end of a step. A call of a plugin that has lasted since
 * then ends it, except for a function that waits for other ranks until its deadline.
 */
static void end_interrupted_call(void)
{
	int64_t limit = (tess_tool_saves() ? SAVE_MS : INTERRUPT_MS) * (int64_t)TESS_MS;
	struct tess_plugin_stay stay;

	if (!tess_tool_is_interrupted())
		return;
	if (!watchdog.interrupted_at)
		watchdog.interrupted_at = tess_now();
	if (tess_now() < watchdog.interrupted_at + limit ||
	    !tess_plugin_watch(TESS_NOT_WAITING, watchdog.timeout, &stay) || stay.stayed < limit)
		return;
	fprintf(stderr, "tessera %s: interrupted; %s has not returned for %.1f s\n",
	        watchdog.command, stay.text, (double)stay.stayed / 1e9);
	tess_tool_end_by_interrupt();
}

static void look_at_threads(void)
{
	struct tess_plugin_stay stay;

	end_interrupted_call();
	if (tess_plugin_watch(TESS_NO_RANK, watchdog.timeout, &stay) && stay.overdue)
		end_command(&stay);
	/* ranks that are threads end with their job: tess_world_spawn */
	if (tess_plugin_watch(TESS_PROCESS_RANK, watchdog.timeout, &stay) && stay.overdue &&
	    stay.overdue_for >= LAUNCHER_MS * (int64_t)TESS_MS)
		end_command(&stay);
}

static void *run_watchdog(void *arg)
{
	struct pollfd p = { .fd = watchdog.stop, .events = POLLIN };
	int64_t interval = tess_plugin_watch_interval(watchdog.timeout);
	int ms = interval < LOOK_MS * (int64_t)TESS_MS ? (int)(interval / TESS_MS) : LOOK_MS;

	(void)arg;
	while (!poll(&p, 1, ms))
		look_at_threads();
	return NULL;
}

void tess_tool_start_watchdog(const char *command)
{
	watchdog.command = command;
	if (tess_option_get_seconds("timeout", &watchdog.timeout) || watchdog.timeout <= 0)
		return; /* the command refuses the option where it needs it */
	watchdog.stop = eventfd(0, EFD_CLOEXEC);
	if (watchdog.stop >= 0 && tess_thread_start(&watchdog.thread, run_watchdog, NULL)) {
		close(watchdog.stop);
		watchdog.stop = -1;
	}
}

void tess_tool_stop_watchdog(void)
{
	if (watchdog.stop < 0)
		return;
	tess_event_post(watchdog.stop);
	pthread_join(watchdog.thread, NULL);
	close(watchdog.stop);
	watchdog.stop = -1;
}
