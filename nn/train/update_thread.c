#include "nn/train/update_thread.h"

#include "core/base/status.h"
#include "core/base/thread.h"
#include "core/base/thread_state.h"

#include <stdio.h>
#include <stdlib.h>

struct tess_update_thread {
	struct tess_update *update;
	const struct tess_opened_device *ranks; /* the rank's device */
	struct tess_opened_device device; /* its own */
	pthread_t id;
	bool is_started;
	pthread_mutex_t lock;
	pthread_cond_t changed, advanced; /* for the thread; for the rank */
	/* with the lock: */
	bool runs; /* an update is the thread's */
	bool ends; /* the rank waits for its end */
	bool abandons, is_abandoned; /* it shall be, and is */
	bool stops; /* the thread ends */
	tess_status status; /* the failure of the update */
	char message[1024];
};

/* ---- the thread ------------------------------------------------------------------------------ */

static bool has_update_work(const struct tess_update_thread *t)
{
	return t->runs && !t->is_abandoned && (t->abandons || !tess_update_is_idle(t->update));
}

/* Advances the update, or abandons it; without the lock meanwhile. */
static void execute_update(struct tess_update_thread *t)
{
	bool abandons = t->abandons;
	tess_status st = TESS_OK;

	pthread_mutex_unlock(&t->lock);
	if (!abandons)
		st = tess_update_advance(t->update);
	if (st || abandons)
		tess_update_abandon(t->update);
	pthread_mutex_lock(&t->lock);
	t->is_abandoned = st || abandons;
	t->status = st;
	if (st)
		snprintf(t->message, sizeof t->message, "%s", tess_error());
	pthread_cond_signal(&t->advanced);
}

static void *run_update_thread(void *arg)
{
	struct tess_update_thread *t = arg;
	struct tess_thread_state before;

	tess_thread_state_begin(&before);
	pthread_mutex_lock(&t->lock);
	while (!t->stops)
		if (has_update_work(t)) {
			execute_update(t);
		} else if (t->runs && t->ends) {
			t->runs = false;
			pthread_cond_signal(&t->advanced);
		} else {
			pthread_cond_wait(&t->changed, &t->lock);
		}
	pthread_mutex_unlock(&t->lock);
	tess_thread_state_restore(&before);
	return NULL;
}

/* ---- the rank -------------------------------------------------------------------------------- */

tess_status tess_update_thread_open(struct tess_update *u, const struct tess_opened_device *device,
                                    struct tess_group *group, struct tess_update_thread **out)
{
	struct tess_update_thread *t = calloc(1, sizeof *t);
	tess_status st;

	if (!t)
		return tess_fail(TESS_ENOMEM, "out of memory");
	t->update = u;
	t->ranks = device;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->changed, NULL);
	pthread_cond_init(&t->advanced, NULL);
	st = tess_device_open(device->table, device->index, 1, group, &t->device);
	if (!st) {
		t->is_started = tess_thread_start(&t->id, run_update_thread, t) == 0;
		if (!t->is_started)
			st = tess_fail(TESS_ENOMEM, "no thread for updates");
	}
	if (st)
		tess_update_thread_close(t);
	else
		*out = t;
	return st;
}

void tess_update_thread_close(struct tess_update_thread *t)
{
	if (!t)
		return;
	if (t->is_started) {
		tess_update_thread_abandon(t);
		pthread_mutex_lock(&t->lock);
		t->stops = true;
		pthread_cond_signal(&t->changed);
		pthread_mutex_unlock(&t->lock);
		pthread_join(t->id, NULL);
	}
	tess_device_close(&t->device);
	pthread_cond_destroy(&t->changed);
	pthread_cond_destroy(&t->advanced);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void tess_update_thread_begin(struct tess_update_thread *t)
{
	pthread_mutex_lock(&t->lock);
	t->update->device = &t->device;
	t->runs = true;
	t->ends = t->abandons = t->is_abandoned = false;
	t->status = TESS_OK;
	pthread_mutex_unlock(&t->lock);
}

void tess_update_thread_add(struct tess_update_thread *t, const struct tess_weight *w)
{
	pthread_mutex_lock(&t->lock);
	tess_update_add(t->update, w);
	pthread_cond_signal(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

void tess_update_thread_add_rest(struct tess_update_thread *t)
{
	pthread_mutex_lock(&t->lock);
	tess_update_add_rest(t->update);
	pthread_cond_signal(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

void tess_update_thread_await(struct tess_update_thread *t, const struct tess_weight *w)
{
	pthread_mutex_lock(&t->lock);
	while (t->runs && !t->is_abandoned && tess_update_is_pending(t->update, w))
		pthread_cond_wait(&t->advanced, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

/* Waits until the thread has no update. */
static void wait_for_update(struct tess_update_thread *t, bool abandons)
{
	pthread_mutex_lock(&t->lock);
	t->abandons = abandons;
	t->ends = true;
	pthread_cond_signal(&t->changed);
	while (t->runs)
		pthread_cond_wait(&t->advanced, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

tess_status tess_update_thread_finish(struct tess_update_thread *t)
{
	t->update->device = t->ranks;
	wait_for_update(t, false);
	return t->status ? tess_fail(t->status, "%s", t->message) : TESS_OK;
}

void tess_update_thread_abandon(struct tess_update_thread *t)
{
	wait_for_update(t, true);
}
