/*
 * client.c - the link of a rank that is a process. One thread owns the socket: it sends what other
 * threads put into the pipe, and reads frames of the server until the connection ends. To save
 * wake-ups, the first call descriptor after a pause is sent at once, the next ones together, every
 * few milliseconds.
 */
#include "core/rendezvous/link.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "core/registry/plugin_watch.h"
#include "core/rendezvous/sigusr1.h"
#include "core/rendezvous/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BATCH_MS = 10, RETRY_MS = 5, ANSWER_MS = 250, REMOVE_MS = 200 };

struct pending_get { /* a GET without its answer */
	struct pending_get *next;
	int32_t id;
	void *val;
	uint64_t capacity, len;
	bool done;
};

struct client {
	int fd, wake;
	int32_t rank, nranks, last_id;
	bool hosted_by_launcher;
	char path[128]; /* socket of the server; "": not a Unix socket */
	pthread_t thread;
	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t changed;
	struct tess_pipe out;
	bool urgent, idle; /* send `out` at once; the thread sleeps without a timeout */
	bool welcome, all_left, closing, record_requested;
	struct pending_get *pending_gets;
	struct tess_failure_handler *handler;
	struct tess_failure first;
};

/* ---- frames of the server -------------------------------------------------------------------- */

static void TESS_PRINTF(4, 5)
	post_local_failure(struct client *c, int32_t rank, tess_status why, const char *fmt, ...)
{
	va_list ap;

	if (c->first.why)
		return;
	va_start(ap, fmt);
	vsnprintf(c->first.sentence, sizeof c->first.sentence, fmt, ap);
	va_end(ap);
	c->first.rank = rank;
	c->first.why = why;
	c->handler->on_failure(c->handler->arg, &c->first);
}

static void deliver_value(struct client *c, const struct tess_frame *f)
{
	for (struct pending_get *w = c->pending_gets; w; w = w->next)
		if (w->id == f->b && !w->done) {
			w->len = (uint64_t)f->a;
			if (w->len <= w->capacity)
				memcpy(w->val, f->payload, w->len);
			w->done = true;
		}
}

static void handle_frame(struct client *c, const struct tess_frame *f)
{
	switch (f->kind) {
	case TESS_WELCOME:
		c->welcome = true;
		break;
	case TESS_VALUE:
		deliver_value(c, f);
		break;
	case TESS_FAILED:
		post_local_failure(c, f->a, f->b, "%s", f->payload);
		break;
	case TESS_REFUSED:
		post_local_failure(c, c->rank, f->b, "%s", f->payload);
		break;
	case TESS_ALL_LEFT:
		c->all_left = true;
		break;
	case TESS_RECORD:
		c->record_requested = true;
		break;
	}
	pthread_cond_broadcast(&c->changed);
}

static bool read_frames(struct client *c, struct tess_pipe *in)
{
	bool open = tess_pipe_fill(in, c->fd), bad, requested;
	const struct tess_frame *f;

	pthread_mutex_lock(&c->lock);
	while ((f = tess_pipe_next(in, &bad)))
		handle_frame(c, f);
	requested = c->record_requested;
	c->record_requested = false;
	pthread_mutex_unlock(&c->lock);
	if (requested) {
		tess_sigusr1_note();
		c->handler->on_record(c->handler->arg);
	}
	return open && !bad;
}

static void report_server_gone(struct client *c)
{
	pthread_mutex_lock(&c->lock);
	if (!c->closing && !c->all_left && c->hosted_by_launcher)
		post_local_failure(c, -1, TESS_EPEER,
		                   "the launcher, which hosts the rendezvous, has ended");
	else if (!c->closing && !c->all_left)
		post_local_failure(c, 0, TESS_EPEER,
		                   "rank 0, which hosts the rendezvous, has ended");
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

/* Removes the socket of a killed rank 0. A dying process frees its lock after its connections. */
static void remove_dead_server(const struct client *c)
{
	int64_t until = tess_now() + REMOVE_MS * (int64_t)TESS_MS;

	if (c->hosted_by_launcher || !*c->path || c->all_left)
		return;
	while (!tess_socket_remove_dead(c->path) && tess_now() < until)
		poll(NULL, 0, RETRY_MS);
}

/* Takes the bytes that may be sent now. Returns true if nothing is sent after them. */
static bool take_outgoing(struct client *c, struct tess_pipe *out, bool resting)
{
	struct tess_pipe empty = *out;
	bool last;

	pthread_mutex_lock(&c->lock);
	if (c->out.begin < c->out.end && (c->urgent || c->closing || !resting)) {
		*out = c->out;
		c->out = empty;
		c->urgent = false;
	}
	last = c->closing && c->out.begin == c->out.end;
	c->idle = !resting && out->begin == out->end;
	pthread_mutex_unlock(&c->lock);
	return last;
}

/*
 * Sends a heartbeat once all ranks have joined: a host cannot detect the end of a process on
 * another. Returns the time of the next one.
 */
static int64_t send_heartbeat(struct client *c, int64_t when)
{
	if (tess_now() < when)
		return when;
	pthread_mutex_lock(&c->lock);
	if (c->welcome && !c->closing &&
	    tess_pipe_put(&c->out, TESS_HEARTBEAT, 0, 0, NULL, 0, NULL, 0))
		c->urgent = true;
	pthread_mutex_unlock(&c->lock);
	return tess_now() + TESS_HEARTBEAT_MS * (int64_t)TESS_MS;
}

/* Looks for a slow call of a plugin, and reports it. Returns the time of the next look. */
static int64_t watch_plugins(struct client *c, struct tess_plugin_report *report, int64_t when)
{
	int64_t timeout = c->handler->timeout;
	struct tess_plugin_stay stay;

	if (!timeout)
		return INT64_MAX;
	if (tess_now() < when)
		return when;
	if (tess_plugin_report_due(report, NULL, c->rank, timeout, &stay)) {
		pthread_mutex_lock(&c->lock);
		if (!c->closing &&
		    tess_pipe_put(&c->out, TESS_STAY, (int32_t)(stay.stayed / TESS_MS),
		                  stay.overdue, stay.text, strlen(stay.text) + 1, NULL, 0))
			c->urgent = true;
		pthread_mutex_unlock(&c->lock);
	}
	return tess_now() + tess_plugin_watch_interval(timeout);
}

static void *run_client(void *arg)
{
	struct client *c = arg;
	struct tess_pipe in = { 0 }, out = { 0 };
	bool open = true, last = false;
	int64_t rest = 0; /* time before which only urgent frames are sent */
	int64_t heartbeat = *c->path ? INT64_MAX : 0; /* time of the next heartbeat */
	struct tess_plugin_report report = { 0 };
	int64_t look = 0; /* time of the next look at plugins */

	while (open) {
		struct pollfd p[3] = { { .fd = c->fd, .events = POLLIN },
			               { .fd = c->wake, .events = POLLIN },
			               { .fd = c->handler->sigusr1_fd, .events = POLLIN } };
		bool resting = tess_now() < rest, empty = out.begin == out.end, full;
		uint64_t count;
		int64_t until;

		heartbeat = send_heartbeat(c, heartbeat);
		look = watch_plugins(c, &report, look);
		if (empty) {
			last = take_outgoing(c, &out, resting);
			if (out.begin < out.end) {
				rest = tess_now() + BATCH_MS * (int64_t)TESS_MS;
				resting = true;
			}
		}
		open = tess_pipe_flush(&out, c->fd);
		full = out.begin < out.end;
		if (full)
			p[0].events |= POLLOUT;
		else if (!empty)
			continue; /* all is sent: look for more */
		else if (last)
			break;
		/* as in take_outgoing(): with a newer time descriptors could be left unsent */
		until = full || !resting || heartbeat < rest ? heartbeat : rest;
		until = look < until ? look : until;
		poll(p, 3, until == INT64_MAX ? -1 : tess_ms_left(until));
		if (p[1].revents && read(c->wake, &count, sizeof count) < 0)
			continue;
		if (p[2].revents && read(c->handler->sigusr1_fd, &count, sizeof count) > 0)
			c->handler->on_record(c->handler->arg);
		if (open && p[0].revents & ~POLLOUT)
			open = read_frames(c, &in);
	}
	if (!open) {
		read_frames(c, &in); /* frames that the server sent before it ended */
		report_server_gone(c);
		remove_dead_server(c);
	}
	tess_pipe_free(&in);
	tess_pipe_free(&out);
	return NULL;
}

/* ---- frames to the server -------------------------------------------------------------------- */

static void send_frame(struct client *c, uint32_t kind, int32_t a, int32_t b, const void *one,
                       size_t len_one, const void *two, size_t len_two)
{
	pthread_mutex_lock(&c->lock);
	if (!tess_pipe_put(&c->out, kind, a, b, one, len_one, two, len_two))
		post_local_failure(c, c->rank, TESS_ENOMEM, "rank %d: no memory for a message",
		                   c->rank);
	c->urgent = true;
	pthread_mutex_unlock(&c->lock);
	tess_event_post(c->wake);
}

static void client_add_call(void *self, const struct tess_call_desc *d)
{
	struct client *c = self;
	bool asleep;

	pthread_mutex_lock(&c->lock);
	if (!tess_pipe_put(&c->out, TESS_CALL_DESC, 0, 0, d, d->bytes, NULL, 0))
		post_local_failure(c, c->rank, TESS_ENOMEM, "rank %d: no memory for a message",
		                   c->rank);
	asleep = c->idle;
	c->idle = false;
	pthread_mutex_unlock(&c->lock);
	if (asleep)
		tess_event_post(c->wake);
}

static void client_deadline_passed(void *self, const struct tess_call_key *key, int32_t n)
{
	send_frame(self, TESS_DEADLINE, n, 0, key, (size_t)n * sizeof *key, NULL, 0);
}

static void client_add_group(void *self, const struct tess_members *m)
{
	send_frame(self, TESS_GROUP, 0, 0, m, m->bytes, NULL, 0);
}

static void client_leave_group(void *self, uint32_t id)
{
	send_frame(self, TESS_GROUP_LEAVE, (int32_t)id, 0, NULL, 0, NULL, 0);
}

static void client_fail(void *self, tess_status why, const char *sentence)
{
	send_frame(self, TESS_FAIL, 0, why, sentence, strlen(sentence) + 1, NULL, 0);
}

static tess_status client_set(void *self, const char *key, const void *val, uint64_t len)
{
	size_t key_len = strlen(key);

	if (!key_len || key_len > TESS_KEY_MAX || len > 1 << 20)
		return tess_fail(TESS_EINVAL,
		                 "the key %.64s: a key has 1 to %d bytes, a value 1 MiB at most",
		                 key, TESS_KEY_MAX);
	send_frame(self, TESS_SET, (int32_t)key_len, (int32_t)len, key, key_len, val, len);
	return TESS_OK;
}

/* Waits for *flag, the first failure or the deadline; the lock is held. */
static void wait_for_flag(struct client *c, const bool *flag, int64_t deadline)
{
	struct timespec until = tess_timespec(deadline);
	int err = 0;

	while (!*flag && !c->first.why && !err)
		err = pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

static tess_status client_get(void *self, const char *key, int64_t deadline, void *val,
                              uint64_t *len)
{
	struct client *c = self;
	struct pending_get w = { .val = val, .capacity = *len };
	size_t key_len = strlen(key);
	tess_status st = TESS_OK;

	if (!key_len || key_len > TESS_KEY_MAX)
		return tess_fail(TESS_EINVAL, "the key %.64s: a key has 1 to %d bytes", key,
		                 TESS_KEY_MAX);
	pthread_mutex_lock(&c->lock);
	w.id = ++c->last_id;
	w.next = c->pending_gets;
	c->pending_gets = &w;
	pthread_mutex_unlock(&c->lock);
	send_frame(c, TESS_GET, (int32_t)key_len, w.id, key, key_len, NULL, 0);
	pthread_mutex_lock(&c->lock);
	wait_for_flag(c, &w.done, deadline);
	for (struct pending_get **at = &c->pending_gets; *at; at = &(*at)->next)
		if (*at == &w) {
			*at = w.next;
			break;
		}
	if (!w.done && c->first.why)
		st = tess_fail(c->first.why, "%s", c->first.sentence);
	else if (!w.done)
		st = tess_fail(TESS_ETIMEOUT, "the key %s was not set by the deadline", key);
	else if (w.len > w.capacity)
		st = tess_fail(TESS_EINVAL,
		               "the key %s holds %" PRIu64 " bytes, more than the %" PRIu64
		               " expected",
		               key, w.len, w.capacity);
	else
		*len = w.len;
	pthread_mutex_unlock(&c->lock);
	return st;
}

/* Waits for *flag; at the deadline the failure is the server's answer, the straggler. */
static void wait_for_all(struct client *c, const bool *flag, int64_t deadline)
{
	pthread_mutex_lock(&c->lock);
	wait_for_flag(c, flag, deadline);
	if (!*flag && !c->first.why) {
		pthread_mutex_unlock(&c->lock);
		client_deadline_passed(c, NULL, 0);
		pthread_mutex_lock(&c->lock);
		wait_for_flag(c, flag, tess_now() + ANSWER_MS * (int64_t)TESS_MS);
		if (!*flag)
			post_local_failure(c, c->hosted_by_launcher ? -1 : 0, TESS_ETIMEOUT,
			                   "%s, which hosts the rendezvous, does not answer",
			                   c->hosted_by_launcher ? "the launcher" : "rank 0");
	}
	pthread_mutex_unlock(&c->lock);
}

static void client_leave(void *self, int64_t deadline)
{
	struct client *c = self;

	send_frame(c, TESS_LEAVE, 0, 0, NULL, 0, NULL, 0);
	wait_for_all(c, &c->all_left, deadline);
}

static void destroy_client(struct client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	close(c->wake);
	tess_pipe_free(&c->out);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static void client_close(void *self)
{
	struct client *c = self;

	pthread_mutex_lock(&c->lock);
	c->closing = true;
	pthread_mutex_unlock(&c->lock);
	tess_event_post(c->wake);
	pthread_join(c->thread, NULL);
	destroy_client(c);
}

/* ---- opening --------------------------------------------------------------------------------- */

static tess_status connect_to_server(struct client *c, const char *path, int64_t deadline)
{
	while ((c->fd = tess_socket_connect(path)) < 0) {
		bool absent = errno == ENOENT || errno == ECONNREFUSED;

		if (c->hosted_by_launcher && absent)
			return tess_fail(TESS_EPEER,
			                 "there is no rendezvous at %s: the launcher has ended, or "
			                 "TESSERA_RENDEZVOUS is left over from another job",
			                 path);
		if (!absent && errno != EAGAIN && errno != EINTR)
			return tess_fail(TESS_EIO, "no connection to the rendezvous at %s: %s",
			                 path, strerror(errno));
		if (tess_now() >= deadline)
			return tess_fail(
				TESS_ETIMEOUT,
				"rank 0, which hosts the rendezvous, has not opened %s by the "
				"deadline of rank %d",
				path, c->rank);
		poll(NULL, 0, RETRY_MS);
	}
	if (tess_socket_peer(c->fd) < 0)
		return tess_fail(TESS_EPERM, "the rendezvous at %s is served by another user",
		                 path);
	return TESS_OK;
}

static tess_status start_client(struct client *c)
{
	int err = tess_thread_start(&c->thread, run_client, c);

	if (err)
		return tess_fail(TESS_EIO, "no thread for the rendezvous: %s", strerror(err));
	return TESS_OK;
}

static tess_status make_client(bool hosted, int32_t rank, int32_t nranks,
                               struct tess_failure_handler *handler, struct client **out)
{
	struct client *c = calloc(1, sizeof *c);
	int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	tess_status st;

	if (!c || wake < 0) {
		st = c ? tess_fail(TESS_EIO, "no event descriptor for the rendezvous: %s",
		                   strerror(errno))
		       : tess_fail(TESS_ENOMEM, "no memory for the rendezvous");
		if (wake >= 0)
			close(wake);
		free(c);
		return st;
	}
	*c = (struct client){ .fd = -1,
		              .wake = wake,
		              .rank = rank,
		              .nranks = nranks,
		              .hosted_by_launcher = hosted,
		              .handler = handler };
	pthread_mutex_init(&c->lock, NULL);
	tess_cond_init(&c->changed);
	*out = c;
	return TESS_OK;
}

/* Joins the job over the connection, opened with status `st`. Owns `c`, even on failure. */
static tess_status join_job(struct client *c, tess_status st, int64_t deadline,
                            struct tess_link *out)
{
	struct tess_hello hello = { .version = TESS_WIRE_VERSION, .pid = (int32_t)getpid() };

	if (!st)
		st = start_client(c);
	if (st) {
		destroy_client(c);
		return st;
	}
	send_frame(c, TESS_HELLO, c->rank, c->nranks, &hello, sizeof hello, NULL, 0);
	wait_for_all(c, &c->welcome, deadline);
	pthread_mutex_lock(&c->lock);
	if (!c->welcome)
		st = tess_fail(c->first.why, "%s", c->first.sentence);
	pthread_mutex_unlock(&c->lock);
	if (st) {
		client_close(c);
		return st;
	}
	*out = (struct tess_link){ .self = c,
		                   .set = client_set,
		                   .get = client_get,
		                   .add_call = client_add_call,
		                   .deadline_passed = client_deadline_passed,
		                   .add_group = client_add_group,
		                   .leave_group = client_leave_group,
		                   .fail = client_fail,
		                   .leave = client_leave,
		                   .close = client_close };
	return TESS_OK;
}

tess_status tess_link_socket(const char *path, bool hosted, int32_t rank, int32_t nranks,
                             int64_t deadline, struct tess_failure_handler *handler,
                             struct tess_link *out)
{
	struct client *c;
	tess_status st = make_client(hosted, rank, nranks, handler, &c);

	if (st)
		return st;
	snprintf(c->path, sizeof c->path, "%s", path);
	return join_job(c, connect_to_server(c, path, deadline), deadline, out);
}

tess_status tess_link_hosts(const struct tess_hosts *at, const struct tess_secret *secret,
                            int32_t rank, int32_t nranks, int64_t deadline,
                            struct tess_failure_handler *handler, struct tess_link *out)
{
	struct client *c;
	tess_status st = make_client(false, rank, nranks, handler, &c);

	if (st)
		return st;
	return join_job(c, tess_net_connect(at, secret, deadline, &c->fd), deadline, out);
}

tess_status tess_link_tunnel(int fd, int32_t rank, int32_t nranks, int64_t deadline,
                             struct tess_failure_handler *handler, struct tess_link *out)
{
	struct client *c;
	tess_status st = make_client(false, rank, nranks, handler, &c);

	if (st) {
		close(fd);
		return st;
	}
	c->fd = fd;
	return join_job(c, TESS_OK, deadline, out);
}
