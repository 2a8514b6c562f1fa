/* rendezvous.c - the server side of a rendezvous: its socket, lock and thread. */
#include "core/rendezvous/server.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "core/rendezvous/records.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_MS = 200, LOCK_RETRY_MS = 5 };

static void wake_server(void *arg, const struct tess_failure *f)
{
	struct tess_rendezvous *r = arg;

	(void)f;
	tess_event_post(r->wake);
}

/*
 * Takes the lock of a job's name, until the rendezvous is closed. A lock on a removed file has no
 * effect; tess_socket_sweep() in another process may hold it for a moment.
 */
static tess_status take_lock(struct tess_rendezvous *r)
{
	int64_t until = tess_now() + LOCK_MS * (int64_t)TESS_MS;
	struct stat here, there;

	for (;;) {
		r->lock = open(r->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (r->lock < 0)
			return tess_fail(TESS_EIO, "%s cannot be opened: %s%s", r->lock_path,
			                 strerror(errno),
			                 errno == EMFILE || errno == ENFILE
			                         ? ""
			                         : "; set XDG_RUNTIME_DIR to a directory of yours");
		if (flock(r->lock, LOCK_EX | LOCK_NB)) {
			close(r->lock);
			r->lock = -1;
			if (tess_now() < until) {
				poll(NULL, 0, LOCK_RETRY_MS);
				continue;
			}
			return tess_fail(TESS_EIO,
			                 "a job is running at %s; set another TESSERA_JOB",
			                 r->path);
		}
		if (!fstat(r->lock, &here) && !stat(r->lock_path, &there) &&
		    here.st_ino == there.st_ino)
			return TESS_OK;
		close(r->lock);
	}
}

static tess_status make_job_socket(struct tess_rendezvous *r, const char *job)
{
	bool missing;
	const char *base = tess_socket_find_base(&missing);
	char own[64];
	tess_status st;

	if (missing)
		tess_log(TESS_WARN, "rendezvous",
		         "XDG_RUNTIME_DIR=%s is no directory; ranks meet in %s",
		         getenv("XDG_RUNTIME_DIR"), base);
	if (!job) {
		snprintf(own, sizeof own, "%d-%" PRId64, (int)getpid(), tess_now());
		job = own;
	}
	st = tess_socket_path(job, r->path, sizeof r->path);
	if (st)
		return st;
	snprintf(r->lock_path, sizeof r->lock_path, "%s.lock", r->path);
	st = take_lock(r);
	if (st)
		return st;
	tess_socket_sweep(""); /* sockets of jobs whose processes were all killed */
	tess_records_sweep();
	if (unlink(r->path) && errno != ENOENT)
		return tess_fail(TESS_EIO,
		                 "%s is left over from a dead job and cannot be removed: %s",
		                 r->path, strerror(errno));
	r->listener = tess_socket_listen(r->path, r->nranks + TESS_UNAUTHENTICATED_MAX);
	if (r->listener < 0)
		return tess_fail(TESS_EIO, "%s cannot be created: %s", r->path, strerror(errno));
	return TESS_OK;
}

static tess_status start_server(struct tess_rendezvous *r)
{
	int err = tess_thread_start(&r->thread, tess_server_run, r);

	if (err)
		return tess_fail(TESS_EIO, "no thread for the server of the rendezvous: %s",
		                 strerror(err));
	return TESS_OK;
}

static void destroy_rendezvous(struct tess_rendezvous *r)
{
	if (r->listener >= 0)
		close(r->listener);
	if (r->listener >= 0 && !r->hosts)
		unlink(r->path);
	if (r->lock >= 0) {
		unlink(r->lock_path);
		close(r->lock);
	}
	if (r->wake >= 0)
		close(r->wake);
	tess_coordinator_close(r->coordinator);
	sodium_memzero(&r->secret, sizeof r->secret);
	free(r->rank);
	free(r);
}

static tess_status make_rendezvous(int32_t nranks, struct tess_rendezvous **out)
{
	struct tess_coordinator *coordinator;
	struct tess_rendezvous *r;
	tess_status st = tess_coordinator_open(nranks, &coordinator);

	if (st)
		return st;
	r = calloc(1, sizeof *r + ((size_t)nranks + TESS_UNAUTHENTICATED_MAX) * sizeof *r->conn);
	if (!r) {
		tess_coordinator_close(coordinator);
		return tess_fail(TESS_ENOMEM, "no memory for the server of the rendezvous");
	}
	r->coordinator = coordinator;
	r->nranks = nranks;
	r->listener = r->lock = -1;
	r->rank = calloc((size_t)nranks, sizeof *r->rank);
	r->wake = r->rank ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
	if (r->wake < 0) {
		st = tess_fail(r->rank ? TESS_EIO : TESS_ENOMEM,
		               "no event descriptor for the rendezvous: %s", strerror(errno));
		destroy_rendezvous(r);
		return st;
	}
	*out = r;
	return TESS_OK;
}

/* Finishes the opening; `st` is the result of making the socket. */
static tess_status finish_opening(struct tess_rendezvous *r, tess_status st,
                                  struct tess_rendezvous **out)
{
	if (!st)
		st = start_server(r);
	if (st) {
		destroy_rendezvous(r);
		return st;
	}
	r->handler = (struct tess_failure_handler){ .on_failure = wake_server, .arg = r };
	tess_coordinator_add_handler(r->coordinator, &r->handler);
	*out = r;
	return TESS_OK;
}

tess_status tess_rendezvous_open(const char *job, int32_t nranks, struct tess_rendezvous **out)
{
	struct tess_rendezvous *r = NULL;
	tess_status st = make_rendezvous(nranks, &r);

	return st ? st : finish_opening(r, make_job_socket(r, job), out);
}

tess_status tess_rendezvous_open_hosts(const struct tess_hosts *at,
                                       const struct tess_secret *secret, int32_t nranks,
                                       struct tess_rendezvous **out)
{
	struct tess_rendezvous *r = NULL;
	tess_status st = make_rendezvous(nranks, &r);

	if (st)
		return st;
	r->hosts = true;
	r->secret = *secret;
	return finish_opening(r, tess_net_listen(at, &r->listener), out);
}

tess_status tess_rendezvous_open_tunnels(const int32_t *end, int32_t nranks,
                                         struct tess_rendezvous **out)
{
	struct tess_rendezvous *r = NULL;
	tess_status st = make_rendezvous(nranks, &r);

	for (int32_t i = 0; i < nranks; i++)
		if (st)
			close(end[i]);
		else
			r->conn[r->nconns++] = (struct tess_conn){
				.fd = end[i], .rank = -1, .proven = true, .expected = true
			};
	if (st)
		return st;
	r->hosts = true;
	return finish_opening(r, TESS_OK, out);
}

const char *tess_rendezvous_path(const struct tess_rendezvous *r)
{
	return r->path;
}

tess_status tess_rendezvous_failure(struct tess_rendezvous *r, int32_t *rank, char *sentence,
                                    size_t size)
{
	struct tess_failure f;
	tess_status why = tess_coordinator_failure(r->coordinator, &f);

	if (why) {
		*rank = f.rank;
		snprintf(sentence, size, "%s", f.sentence);
	}
	return why;
}

void tess_rendezvous_fail(struct tess_rendezvous *r, int32_t rank, tess_status why,
                          const char *sentence)
{
	tess_coordinator_fail(r->coordinator, rank, why, sentence);
}

void tess_rendezvous_rank_ended(struct tess_rendezvous *r, int32_t rank)
{
	atomic_store(&r->rank[rank].ended, true);
	tess_event_post(r->wake);
}

bool tess_rendezvous_is_stuck(struct tess_rendezvous *r, int32_t rank)
{
	return tess_coordinator_is_stuck(r->coordinator, rank);
}

bool tess_rendezvous_has_left(struct tess_rendezvous *r, int32_t rank)
{
	return tess_coordinator_has_left(r->coordinator, rank);
}

void tess_rendezvous_request_records(struct tess_rendezvous *r)
{
	atomic_fetch_add(&r->records, 1);
	tess_event_post(r->wake);
}

uint64_t tess_rendezvous_last_call(struct tess_rendezvous *r, int32_t rank, char *text, size_t size)
{
	return tess_coordinator_last_call(r->coordinator, rank, text, size);
}

void tess_rendezvous_close(struct tess_rendezvous *r)
{
	if (!r)
		return;
	r->stop = true;
	tess_event_post(r->wake);
	pthread_join(r->thread, NULL);
	destroy_rendezvous(r);
}
