#include "core/registry/plugin_watch.h"

#include "core/base/clock.h"

#include <pthread.h>

enum { LOOK_MIN_MS = 50, LOOK_MAX_MS = 1000, STAY_SLACK_MS = 1000 };

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* ---- forks: the child of a process that is watched may watch itself -------------------------- */

static void lock_watch(void)
{
	pthread_mutex_lock(&watch_lock);
}

static void unlock_watch(void)
{
	pthread_mutex_unlock(&watch_lock);
}

static void keep_lock_over_forks(void)
{
	pthread_atfork(lock_watch, unlock_watch, unlock_watch);
}

/* ---- looks ----------------------------------------------------------------------------------- */

int64_t tess_plugin_watch_interval(int64_t timeout)
{
	int64_t interval = timeout / 8;

	if (interval < LOOK_MIN_MS * (int64_t)TESS_MS)
		interval = LOOK_MIN_MS * (int64_t)TESS_MS;
	return interval < LOOK_MAX_MS * (int64_t)TESS_MS ? interval
	                                                 : LOOK_MAX_MS * (int64_t)TESS_MS;
}

/* Returns the time since the last look, or two intervals: the process may have been stopped. */
static int64_t measure_since_look(const struct tess_plugin_thread *t, int64_t now, int64_t timeout)
{
	int64_t most = 2 * tess_plugin_watch_interval(timeout), since = now - t->seen_at;

	return since < most ? since : most;
}

/* Looks at one thread, under the lock. False: it is in no call of a plugin. */
static bool look_at_thread(struct tess_plugin_thread *t, int64_t timeout,
                           struct tess_plugin_stay *out)
{
	int64_t slack = timeout / 10 > STAY_SLACK_MS * (int64_t)TESS_MS
	                        ? timeout / 10
	                        : STAY_SLACK_MS * (int64_t)TESS_MS;
	struct tess_safe_text text = { .size = sizeof out->text, .at = out->text };
	struct tess_plugin_place at;
	int64_t now;

	if (!tess_plugin_frame_describe(t, &text, &at))
		return false;
	now = tess_now();
	if (t->seen_calls != at.calls || t->seen_top != at.top) {
		t->stayed = t->overdue = 0;
	} else {
		int64_t since = measure_since_look(t, now, timeout);

		t->stayed += since;
		if (at.deadline && now >= at.deadline)
			t->overdue += since;
	}
	t->seen_calls = at.calls;
	t->seen_top = at.top;
	t->seen_at = now;
	out->call = at.calls;
	out->stayed = t->stayed;
	out->waits = at.deadline != 0;
	out->slow = at.deadline ? t->overdue > 0 : t->stayed >= timeout / 4;
	out->overdue_for = at.deadline ? t->overdue - slack : t->stayed - timeout - slack;
	out->overdue = out->overdue_for >= 0;
	return true;
}

struct thread_selection {
	enum tess_plugin_threads which;
	const void *job;
	int32_t rank; /* -1: any of the job */
};

static bool is_selected(const struct tess_plugin_thread *t, const struct thread_selection *s)
{
	bool ranked = atomic_load(&t->size) > 0;

	if (s->which != TESS_PROCESS_RANK)
		return s->which == TESS_NOT_WAITING || !ranked;
	return ranked && atomic_load(&t->job) == s->job &&
	       (s->rank < 0 || atomic_load(&t->rank) == s->rank);
}

static bool watch_threads(const struct thread_selection *s, int64_t timeout,
                          struct tess_plugin_stay *out)
{
	struct tess_plugin_stay stay;
	bool found = false;

	pthread_once(&watch_once, keep_lock_over_forks);
	lock_watch();
	for (struct tess_plugin_thread *t = tess_plugin_next_thread(NULL); t;
	     t = tess_plugin_next_thread(t))
		if (is_selected(t, s) && look_at_thread(t, timeout, &stay) &&
		    !(s->which == TESS_NOT_WAITING && stay.waits) &&
		    (!found || stay.stayed > out->stayed)) {
			*out = stay;
			found = true;
		}
	unlock_watch();
	return found;
}

bool tess_plugin_watch(enum tess_plugin_threads which, int64_t timeout,
                       struct tess_plugin_stay *out)
{
	return watch_threads(&(struct thread_selection){ .which = which, .rank = -1 }, timeout,
	                     out);
}

bool tess_plugin_watch_rank(const void *job, int32_t rank, int64_t timeout,
                            struct tess_plugin_stay *out)
{
	const struct thread_selection s = { .which = TESS_PROCESS_RANK, .job = job, .rank = rank };

	return watch_threads(&s, timeout, out);
}

bool tess_plugin_report_due(struct tess_plugin_report *r, const void *job, int32_t rank,
                            int64_t timeout, struct tess_plugin_stay *out)
{
	bool found = tess_plugin_watch_rank(job, rank, timeout, out);
	struct tess_plugin_report now = { 0 };

	if (found && (out->slow || out->overdue))
		now = (struct tess_plugin_report){ out->call, out->overdue };
	else
		*out->text = '\0';
	if (now.call == r->call && now.overdue == r->overdue)
		return false;
	*r = now;
	return true;
}
