/*
 * The server of a rendezvous: one thread that turns frames of many connections into calls of one
 * hub.
 *
 * A connection is a stranger's until it has said which rank it is. Between hosts it proves the
 * secret before that (secret.h), and until then nothing that it says is looked at and no memory is
 * taken for it.
 */
#include "rendezvous.h"

#include "clock.h"
#include "hub.h"
#include "wire.h"

#include <core/base/log.h>
#include <core/base/status.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STRANGERS = 64, HELLO_MS = 5000, LAST_WORDS_MS = 500, LOCK_MS = 200, RETRY_MS = 5 };
/* At a time; few enough that a connection is heard several times before newer ones push it out. */
enum { ADMITTED = 8 };

struct ask { /* a GET that waits for its key */
	struct ask *next;
	int32_t id;
	char key[];
};

struct conn {
	int fd;
	int32_t rank; /* -1: a stranger */
	pid_t pid; /* as the kernel says; between hosts, as the rank says */
	char from[48]; /* between hosts: the peer's address */
	int64_t since;
	bool proven; /* it holds the secret; on one host: it is of our user */
	uint32_t heard; /* bytes of: */
	unsigned char greeting[TESS_NONCE + TESS_PROOF], nonce[TESS_NONCE];
	unsigned recorded; /* how often it was asked for its record */
	bool bye, told, drop; /* drop: to be closed when `out` is written */
	struct tess_pipe in, out;
	struct ask *asks;
};

struct seat {
	atomic_bool ended; /* its process */
	bool came;
};

struct tess_rendezvous {
	char path[128], lock_path[136]; /* "": between hosts */
	struct tess_secret secret;
	bool hosts;
	int listener, lock, wake;
	pthread_t thread;
	atomic_bool stop;
	struct tess_hub *hub;
	struct tess_listener ear;
	int32_t nranks;
	struct seat *seat; /* of each rank */
	bool welcomed, gone;
	atomic_uint records; /* how often they are wanted */
	int32_t nconns;
	struct conn conn[];
};

/* ---- frames ---------------------------------------------------------------------------------- */

static void post(struct conn *c, uint32_t kind, int32_t a, int32_t b, const void *data, size_t len)
{
	if (!tess_pipe_put(&c->out, kind, a, b, data, len, NULL, 0))
		c->drop = true;
}

static void refuse(struct conn *c, tess_status why, const char *sentence)
{
	post(c, TESS_REFUSED, 0, why, sentence, strlen(sentence) + 1);
	c->drop = true;
}

/* "process 12", and where it is. */
static const char *whose(const struct conn *c, char *text, size_t room)
{
	snprintf(text, room, "process %d%s%s", (int)c->pid, *c->from ? " of " : "", c->from);
	return text;
}

static const struct conn *holder(const struct tess_rendezvous *r, int32_t rank)
{
	for (int32_t i = 0; i < r->nconns; i++)
		if (rank >= 0 && r->conn[i].rank == rank)
			return &r->conn[i];
	return NULL;
}

static void hello(struct tess_rendezvous *r, struct conn *c, const struct tess_frame *f)
{
	const struct tess_hello *h = (const void *)f->payload;
	char text[256], one[96], two[96];
	const struct conn *other;
	tess_status st;

	if (f->kind != TESS_HELLO || f->bytes != sizeof *f + sizeof *h) {
		c->drop = true;
		return;
	}
	if (r->hosts)
		c->pid = h->pid;
	if (h->version != TESS_WIRE_VERSION) {
		snprintf(text, sizeof text,
		         "rank %d is of another version of Tessera (rendezvous %u, this is %u)",
		         f->a, h->version, TESS_WIRE_VERSION);
		st = TESS_EABI;
	} else if (f->b != r->nranks) {
		snprintf(text, sizeof text, "rank %d was started for %d ranks, the job has %d",
		         f->a, f->b, r->nranks);
		st = TESS_EINVAL;
	} else if ((other = holder(r, f->a))) {
		snprintf(text, sizeof text, "rank %d came twice: as %s and as %s", f->a,
		         whose(other, one, sizeof one), whose(c, two, sizeof two));
		st = TESS_EINVAL;
	} else if ((st = tess_hub_enter(r->hub, f->a, r->hosts ? 0 : c->pid))) {
		snprintf(text, sizeof text, "%s", tess_error());
	}
	if (!st) {
		c->rank = f->a;
		r->seat[c->rank].came = true;
		return;
	}
	refuse(c, st, text);
	if (!r->welcomed) /* then a rank is missing, and would be waited for */
		tess_hub_fail(r->hub, f->a, st, text);
}

static void ask(struct conn *c, const char *key, size_t len, int32_t id)
{
	struct ask *a = malloc(sizeof *a + len + 1);

	if (!a) {
		c->drop = true;
		return;
	}
	memcpy(a->key, key, len);
	a->key[len] = '\0';
	a->id = id;
	a->next = c->asks;
	c->asks = a;
}

static tess_status set(struct tess_rendezvous *r, const struct tess_frame *f)
{
	char key[TESS_KEY_MOST + 1];

	memcpy(key, f->payload, (size_t)f->a);
	key[f->a] = '\0';
	return tess_hub_set(r->hub, key, f->payload + f->a, (uint64_t)f->b);
}

/* False: it is no such frame. */
static bool obey(struct tess_rendezvous *r, struct conn *c, const struct tess_frame *f)
{
	size_t len = f->bytes - sizeof *f;
	const struct tess_note *n = (const void *)f->payload;
	const struct tess_roster *who = (const void *)f->payload;

	switch (f->kind) {
	case TESS_SET:
		if (f->a < 1 || f->a > TESS_KEY_MOST || f->b < 0 ||
		    (size_t)f->a + (size_t)f->b > len)
			return false;
		if (set(r, f))
			tess_hub_fail(r->hub, c->rank, TESS_EINVAL, tess_error());
		return true;
	case TESS_GET:
		if (f->a < 1 || f->a > TESS_KEY_MOST || (size_t)f->a > len)
			return false;
		ask(c, f->payload, (size_t)f->a, f->b);
		return true;
	case TESS_NOTE:
		if (len < sizeof *n ||
		    !tess_note_valid(n, len, tess_hub_group_size(r->hub, c->rank, n->key.group)))
			return false;
		tess_hub_note(r->hub, c->rank, n);
		return true;
	case TESS_LATE:
		if (f->a < 0 || len != (size_t)f->a * sizeof(struct tess_key))
			return false;
		tess_hub_late(r->hub, c->rank, (const void *)f->payload, f->a);
		return true;
	case TESS_GROUP:
		if (!tess_roster_valid(who, len, r->nranks) || tess_roster_place(who, c->rank) < 0)
			return false;
		tess_hub_group(r->hub, c->rank, who);
		return true;
	case TESS_GROUP_BYE:
		if (!f->a || !tess_hub_group_size(r->hub, c->rank, (uint32_t)f->a))
			return false;
		tess_hub_group_leave(r->hub, c->rank, (uint32_t)f->a);
		return true;
	case TESS_FAIL:
		if (!len || f->payload[len - 1] || f->b >= 0)
			return false;
		tess_hub_fail(r->hub, c->rank, f->b, f->payload);
		return true;
	case TESS_BYE:
		c->bye = true;
		tess_hub_leave(r->hub, c->rank);
		return true;
	}
	return false;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void dismiss(struct tess_rendezvous *r, struct conn *c)
{
	close(c->fd);
	tess_pipe_free(&c->in);
	tess_pipe_free(&c->out);
	for (struct ask *a = c->asks, *next; a; a = next) {
		next = a->next;
		free(a);
	}
	*c = r->conn[--r->nconns];
}

/*
 * Makes room by the stranger that is here for longest. False: there is none. Who has proven the
 * secret is no stranger, though it has not said its rank yet.
 */
static bool push_out(struct tess_rendezvous *r)
{
	struct conn *oldest = NULL;

	for (int32_t i = 0; i < r->nconns; i++) {
		struct conn *c = &r->conn[i];

		if (c->rank < 0 && !(r->hosts && c->proven) &&
		    (!oldest || c->since < oldest->since))
			oldest = c;
	}
	if (oldest)
		dismiss(r, oldest);
	return oldest != NULL;
}

static void admit(struct tess_rendezvous *r)
{
	for (int i = 0; i < ADMITTED; i++) {
		struct conn c = { .rank = -1, .since = tess_now(), .proven = !r->hosts };

		c.fd = r->hosts ? tess_net_accept(r->listener, c.from)
		                : accept4(r->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (c.fd < 0) {
			if (errno == EMFILE || errno == ENFILE)
				push_out(r);
			return;
		}
		c.pid = r->hosts ? 0 : tess_socket_peer(c.fd);
		if (c.pid < 0 || (r->nconns == r->nranks + STRANGERS && !push_out(r)))
			close(c.fd);
		else
			r->conn[r->nconns++] = c;
	}
}

/* What a stranger says: a nonce, for which it gets ours, and its proof, for which it gets ours. */
static bool greet(struct tess_rendezvous *r, struct conn *c)
{
	unsigned char proof[TESS_PROOF];
	uint32_t before = c->heard;
	ssize_t n = recv(c->fd, c->greeting + before, sizeof c->greeting - before, MSG_DONTWAIT);

	if (n <= 0)
		return n < 0 && (errno == EAGAIN || errno == EINTR);
	c->heard += (uint32_t)n;
	if (before < TESS_NONCE && c->heard >= TESS_NONCE) {
		tess_nonce_make(c->nonce);
		if (send(c->fd, c->nonce, TESS_NONCE, MSG_NOSIGNAL | MSG_DONTWAIT) != TESS_NONCE)
			return false;
	}
	if (c->heard < sizeof c->greeting)
		return true;
	if (!tess_secret_check(&r->secret, TESS_CLIENT, c->greeting, c->nonce,
	                       c->greeting + TESS_NONCE))
		return false;
	c->proven = true;
	tess_secret_prove(&r->secret, TESS_SERVER, c->greeting, c->nonce, proof);
	return send(c->fd, proof, TESS_PROOF, MSG_NOSIGNAL | MSG_DONTWAIT) == TESS_PROOF;
}

static void lost(struct tess_rendezvous *r, const struct conn *c)
{
	char text[192], who[96];

	if (c->rank < 0 || c->bye)
		return;
	snprintf(text, sizeof text, "rank %d (%s) has ended without leaving the job", c->rank,
	         whose(c, who, sizeof who));
	tess_hub_fail(r->hub, c->rank, TESS_EPEER, text);
}

/* Reads what is there. False: the connection is over. */
static bool hear(struct tess_rendezvous *r, struct conn *c)
{
	const struct tess_frame *f;
	bool open, bad = false;

	if (!c->proven)
		return greet(r, c);
	open = tess_pipe_fill(&c->in, c->fd);

	while (!c->drop && (f = tess_pipe_next(&c->in, &bad))) {
		if (c->rank < 0)
			hello(r, c, f);
		else
			bad = !obey(r, c, f);
		if (bad)
			break;
	}
	if (bad && c->rank >= 0)
		tess_hub_fail(r->hub, c->rank, TESS_EBUG,
		              "the rendezvous got a frame that is none");
	return open && !bad;
}

static void answer(struct tess_rendezvous *r, struct conn *c)
{
	struct ask **at = &c->asks, *a;

	while ((a = *at)) {
		uint64_t len;
		const void *val = tess_hub_find(r->hub, a->key, &len);

		if (!val) {
			at = &a->next;
			continue;
		}
		post(c, TESS_VALUE, (int32_t)len, a->id, val, len);
		*at = a->next;
		free(a);
	}
}

/* A rank whose process has ended will not come: whoever waits for it hears so. */
static void miss(struct tess_rendezvous *r)
{
	int32_t waits = -1;
	char text[128];

	for (int32_t i = 0; i < r->nranks; i++)
		if (r->seat[i].came)
			waits = i;
	for (int32_t i = 0; i < r->nranks && waits >= 0; i++) {
		if (r->seat[i].came || !atomic_load(&r->seat[i].ended))
			continue;
		snprintf(text, sizeof text,
		         "rank %d has ended without joining the job, in which rank %d waits", i,
		         waits);
		tess_hub_fail(r->hub, i, TESS_EPEER, text);
		return;
	}
}

/* What all ranks are to hear now. */
static void tell(struct tess_rendezvous *r)
{
	struct tess_failure f;
	bool failed = tess_hub_failure(r->hub, &f) != TESS_OK;
	bool welcome = !r->welcomed && tess_hub_entered(r->hub) == r->nranks;
	bool gone = !r->gone && tess_hub_left(r->hub) == r->nranks;
	unsigned records = atomic_load(&r->records);

	for (int32_t i = 0; i < r->nconns; i++) {
		struct conn *c = &r->conn[i];

		if (c->rank < 0)
			continue;
		answer(r, c);
		if (welcome)
			post(c, TESS_WELCOME, 0, 0, NULL, 0);
		if (gone)
			post(c, TESS_GONE, 0, 0, NULL, 0);
		if (failed && !c->told)
			post(c, TESS_FAILED, f.rank, f.why, f.sentence, strlen(f.sentence) + 1);
		c->told |= failed;
		if (c->recorded != records)
			post(c, TESS_RECORD, 0, 0, NULL, 0);
		c->recorded = records;
	}
	r->welcomed |= welcome;
	r->gone |= gone;
}

/* Waits for news, at most until `deadline` (0: as long as it takes). */
static void turn(struct tess_rendezvous *r, struct pollfd *p, int64_t deadline)
{
	int32_t n = r->nconns;

	p[0] = (struct pollfd){ .fd = r->wake, .events = POLLIN };
	p[1] = (struct pollfd){ .fd = r->listener, .events = POLLIN };
	for (int32_t i = 0; i < n; i++) {
		const struct conn *c = &r->conn[i];
		int64_t until = c->since + HELLO_MS * (int64_t)TESS_MS;

		p[i + 2] = (struct pollfd){ .fd = c->fd,
			                    .events = c->out.begin < c->out.end ? POLLIN | POLLOUT
			                                                        : POLLIN };
		if (c->rank < 0 && (!deadline || until < deadline))
			deadline = until;
	}
	poll(p, (nfds_t)n + 2, deadline ? tess_ms_left(deadline) : -1);
	if (p[0].revents) {
		uint64_t count;

		if (read(r->wake, &count, sizeof count) < 0)
			return;
	}
	for (int32_t i = n - 1; i >= 0;
	     i--) { /* dismiss() puts the last one, which was seen, in its place */
		struct conn *c = &r->conn[i];
		bool over = p[i + 2].revents & ~POLLOUT ? !hear(r, c) : false;

		if (c->rank < 0 && tess_now() > c->since + HELLO_MS * (int64_t)TESS_MS)
			over = true;
		if (over) {
			lost(r, c);
			tess_pipe_flush(&c->out, c->fd);
			dismiss(r, c);
		}
	}
	if (p[1].revents)
		admit(r);
	if (!r->welcomed)
		miss(r);
	tell(r);
	for (int32_t i = r->nconns - 1; i >= 0; i--) {
		struct conn *c = &r->conn[i];
		bool open = tess_pipe_flush(&c->out, c->fd);

		if (!open || (c->drop && c->out.begin == c->out.end)) {
			lost(r, c);
			dismiss(r, c);
		}
	}
}

static bool unsaid(const struct tess_rendezvous *r)
{
	for (int32_t i = 0; i < r->nconns; i++)
		if (r->conn[i].out.begin < r->conn[i].out.end)
			return true;
	return false;
}

static void *serve(void *arg)
{
	struct tess_rendezvous *r = arg;
	struct pollfd *p = calloc((size_t)r->nranks + STRANGERS + 2, sizeof *p);
	int64_t deadline;

	if (!p) {
		tess_hub_fail(r->hub, -1, TESS_ENOMEM,
		              "no memory for the server of the rendezvous");
		return NULL;
	}
	while (!r->stop)
		turn(r, p, 0);
	if (!r->hosts)
		unlink(r->path); /* whoever comes now meets the next job of this name */
	if (tess_hub_left(r->hub) < tess_hub_entered(r->hub))
		tess_hub_fail(r->hub, -1, TESS_EPEER,
		              "the server of the rendezvous was closed before all ranks had left");
	tell(r);
	deadline = tess_now() + LAST_WORDS_MS * (int64_t)TESS_MS;
	for (;;) {
		for (int32_t i = r->nconns - 1; i >= 0; i--)
			if (!tess_pipe_flush(&r->conn[i].out, r->conn[i].fd))
				dismiss(r, &r->conn[i]);
		if (!unsaid(r) || tess_now() >= deadline)
			break;
		poll(NULL, 0, 1);
	}
	while (r->nconns)
		dismiss(r, &r->conn[r->nconns - 1]);
	free(p);
	return NULL;
}

/* ---- the host's side ------------------------------------------------------------------------- */

static void wake(void *arg, const struct tess_failure *f)
{
	struct tess_rendezvous *r = arg;
	uint64_t one = 1;

	(void)f;
	if (write(r->wake, &one, sizeof one) < 0)
		return; /* it is awake: the count cannot be full otherwise */
}

/*
 * The lock of a job's name, held for its life. A file that was removed under us does not count, and whoever
 * removes what a dead job has left (tess_socket_forget) has it for a moment.
 */
static tess_status take_lock(struct tess_rendezvous *r)
{
	int64_t until = tess_now() + LOCK_MS * (int64_t)TESS_MS;
	struct stat here, there;

	for (;;) {
		r->lock = open(r->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (r->lock < 0)
			return tess_fail(TESS_EIO, "%s cannot be opened: %s", r->lock_path,
			                 strerror(errno));
		if (flock(r->lock, LOCK_EX | LOCK_NB)) {
			close(r->lock);
			r->lock = -1;
			if (tess_now() < until) {
				poll(NULL, 0, RETRY_MS);
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

static tess_status make_socket(struct tess_rendezvous *r, const char *job)
{
	char own[64];
	tess_status st;

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
	if (unlink(r->path) && errno != ENOENT)
		return tess_fail(TESS_EIO, "%s, which a dead job left, cannot be removed: %s",
		                 r->path, strerror(errno));
	r->listener = tess_socket_listen(r->path, r->nranks + STRANGERS);
	if (r->listener < 0)
		return tess_fail(TESS_EIO, "%s cannot be made: %s", r->path, strerror(errno));
	return TESS_OK;
}

static tess_status start(struct tess_rendezvous *r)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&r->thread, NULL, serve, r);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err)
		return tess_fail(TESS_EIO, "no thread for the server of the rendezvous: %s",
		                 strerror(err));
	return TESS_OK;
}

static void destroy(struct tess_rendezvous *r)
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
	tess_hub_close(r->hub);
	sodium_memzero(&r->secret, sizeof r->secret);
	free(r->seat);
	free(r);
}

static tess_status make(int32_t nranks, struct tess_rendezvous **out)
{
	struct tess_hub *hub;
	struct tess_rendezvous *r;
	tess_status st = tess_hub_open(nranks, &hub);

	if (st)
		return st;
	r = calloc(1, sizeof *r + ((size_t)nranks + STRANGERS) * sizeof *r->conn);
	if (!r) {
		tess_hub_close(hub);
		return tess_fail(TESS_ENOMEM, "no memory for the server of the rendezvous");
	}
	r->hub = hub;
	r->nranks = nranks;
	r->listener = r->lock = -1;
	r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r->seat = calloc((size_t)nranks, sizeof *r->seat);
	if (r->wake < 0 || !r->seat) {
		st = tess_fail(TESS_ENOMEM, "no event descriptor or memory for the rendezvous");
		destroy(r);
		return st;
	}
	*out = r;
	return TESS_OK;
}

/* The socket is there, or `st` says why not: what remains. */
static tess_status finish(struct tess_rendezvous *r, tess_status st, struct tess_rendezvous **out)
{
	if (!st)
		st = start(r);
	if (st) {
		destroy(r);
		return st;
	}
	r->ear = (struct tess_listener){ .failed = wake, .arg = r };
	tess_hub_listen(r->hub, &r->ear);
	*out = r;
	return TESS_OK;
}

tess_status tess_rendezvous_open(const char *job, int32_t nranks, struct tess_rendezvous **out)
{
	struct tess_rendezvous *r = NULL;
	tess_status st = make(nranks, &r);

	return st ? st : finish(r, make_socket(r, job), out);
}

tess_status tess_rendezvous_open_hosts(const struct tess_hosts *at,
                                       const struct tess_secret *secret, int32_t nranks,
                                       struct tess_rendezvous **out)
{
	struct tess_rendezvous *r = NULL;
	tess_status st = make(nranks, &r);

	if (st)
		return st;
	r->hosts = true;
	r->secret = *secret;
	return finish(r, tess_net_listen(at, &r->listener), out);
}

const char *tess_rendezvous_path(const struct tess_rendezvous *r)
{
	return r->path;
}

tess_status tess_rendezvous_failure(struct tess_rendezvous *r, int32_t *rank, char *sentence,
                                    size_t room)
{
	struct tess_failure f;
	tess_status why = tess_hub_failure(r->hub, &f);

	if (why) {
		*rank = f.rank;
		snprintf(sentence, room, "%s", f.sentence);
	}
	return why;
}

void tess_rendezvous_fail(struct tess_rendezvous *r, int32_t rank, tess_status why,
                          const char *sentence)
{
	tess_hub_fail(r->hub, rank, why, sentence);
}

void tess_rendezvous_ended(struct tess_rendezvous *r, int32_t rank)
{
	atomic_store(&r->seat[rank].ended, true);
	wake(r, NULL);
}

void tess_rendezvous_record(struct tess_rendezvous *r)
{
	atomic_fetch_add(&r->records, 1);
	wake(r, NULL);
}

uint64_t tess_rendezvous_whereabouts(struct tess_rendezvous *r, int32_t rank, char *text,
                                     size_t room)
{
	return tess_hub_whereabouts(r->hub, rank, text, room);
}

void tess_rendezvous_close(struct tess_rendezvous *r)
{
	if (!r)
		return;
	r->stop = true;
	wake(r, NULL);
	pthread_join(r->thread, NULL);
	destroy(r);
}
