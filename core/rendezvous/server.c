/*
 * server.c - the server of a rendezvous: one thread turns frames of many connections into calls of
 * one coordinator.
 *
 * A connection belongs to no rank before its HELLO. Between hosts it proves the secret first
 * (secret.h); until then its input is not parsed and no memory is allocated for it.
 */
#include "core/rendezvous/server.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HELLO_MS = 5000, FLUSH_MS = 500 };
/* Connections accepted at a time: few, so that each is read before newer ones evict it. */
enum { ACCEPTS_MAX = 8 };

/* ---- frames ---------------------------------------------------------------------------------- */

static void queue_frame(struct tess_conn *c, uint32_t kind, int32_t a, int32_t b, const void *data,
                        size_t len)
{
	if (!tess_pipe_put(&c->out, kind, a, b, data, len, NULL, 0))
		c->close_after_flush = true;
}

static void refuse_connection(struct tess_conn *c, tess_status why, const char *sentence)
{
	queue_frame(c, TESS_REFUSED, 0, why, sentence, strlen(sentence) + 1);
	c->close_after_flush = true;
}

/* Formats "process 12 of 10.0.0.2". */
static const char *format_peer(const struct tess_conn *c, char *text, size_t size)
{
	snprintf(text, size, "process %d%s%s", (int)c->pid, *c->from ? " of " : "", c->from);
	return text;
}

static const struct tess_conn *find_connection(const struct tess_rendezvous *r, int32_t rank)
{
	for (int32_t i = 0; i < r->nconns; i++)
		if (rank >= 0 && r->conn[i].rank == rank)
			return &r->conn[i];
	return NULL;
}

static void handle_hello(struct tess_rendezvous *r, struct tess_conn *c, const struct tess_frame *f)
{
	const struct tess_hello *h = (const void *)f->payload;
	char text[256], one[96], two[96];
	const struct tess_conn *other;
	tess_status st;

	if (f->kind != TESS_HELLO || f->bytes != sizeof *f + sizeof *h) {
		c->close_after_flush = true;
		return;
	}
	if (r->hosts)
		c->pid = h->pid;
	if (h->version != TESS_WIRE_VERSION) {
		snprintf(text, sizeof text,
		         "rank %d runs another version of Tessera (rendezvous %u, this is %u)",
		         f->a, h->version, TESS_WIRE_VERSION);
		st = TESS_EABI;
	} else if (f->b != r->nranks) {
		snprintf(text, sizeof text, "rank %d was started for %d ranks, the job has %d",
		         f->a, f->b, r->nranks);
		st = TESS_EINVAL;
	} else if ((other = find_connection(r, f->a))) {
		snprintf(text, sizeof text, "rank %d joined twice: as %s and as %s", f->a,
		         format_peer(other, one, sizeof one), format_peer(c, two, sizeof two));
		st = TESS_EINVAL;
	} else if ((st = tess_coordinator_join(r->coordinator, f->a, r->hosts ? 0 : c->pid))) {
		snprintf(text, sizeof text, "%s", tess_error());
	}
	if (!st) {
		c->rank = f->a;
		r->rank[c->rank].joined = true;
		return;
	}
	refuse_connection(c, st, text);
	if (!r->welcomed) /* the job would wait for this rank */
		tess_coordinator_fail(r->coordinator, f->a, st, text);
}

static void add_pending_get(struct tess_conn *c, const char *key, size_t len, int32_t id)
{
	struct tess_pending_get *a = malloc(sizeof *a + len + 1);

	if (!a) {
		c->close_after_flush = true;
		return;
	}
	memcpy(a->key, key, len);
	a->key[len] = '\0';
	a->id = id;
	a->next = c->pending_gets;
	c->pending_gets = a;
}

static tess_status handle_set(struct tess_rendezvous *r, const struct tess_frame *f)
{
	char key[TESS_KEY_MAX + 1];

	memcpy(key, f->payload, (size_t)f->a);
	key[f->a] = '\0';
	return tess_coordinator_set(r->coordinator, key, f->payload + f->a, (uint64_t)f->b);
}

/* Notes a passed deadline. The straggler is determined after all connections have been read. */
static void note_deadline(struct tess_conn *c, const struct tess_call_key *key, int32_t n)
{
	struct tess_call_key *copy = n ? malloc((size_t)n * sizeof *key) : NULL;

	if (n && !copy) {
		c->close_after_flush = true;
		return;
	}
	if (n)
		memcpy(copy, key, (size_t)n * sizeof *key);
	free(c->key);
	c->key = copy;
	c->nkeys = n;
	c->deadline_passed = true;
}

/* Handles a noted deadline; a rank that has left in the meantime counts as left only now. */
static void check_deadline(struct tess_rendezvous *r, struct tess_conn *c)
{
	if (!c->deadline_passed)
		return;
	c->deadline_passed = false;
	tess_coordinator_deadline_passed(r->coordinator, c->rank, c->key, c->nkeys);
	if (c->left)
		tess_coordinator_leave(r->coordinator, c->rank);
}

/* Handles a frame of a rank; false: malformed. */
static bool handle_rank_frame(struct tess_rendezvous *r, struct tess_conn *c,
                              const struct tess_frame *f)
{
	size_t len = f->bytes - sizeof *f;
	const struct tess_call_desc *d = (const void *)f->payload;
	const struct tess_members *m = (const void *)f->payload;

	switch (f->kind) {
	case TESS_SET:
		if (f->a < 1 || f->a > TESS_KEY_MAX || f->b < 0 ||
		    (size_t)f->a + (size_t)f->b > len)
			return false;
		if (handle_set(r, f))
			tess_coordinator_fail(r->coordinator, c->rank, TESS_EINVAL, tess_error());
		return true;
	case TESS_GET:
		if (f->a < 1 || f->a > TESS_KEY_MAX || (size_t)f->a > len)
			return false;
		add_pending_get(c, f->payload, (size_t)f->a, f->b);
		return true;
	case TESS_CALL_DESC:
		if (len < sizeof *d ||
		    !tess_call_desc_valid(
			    d, len,
			    tess_coordinator_group_size(r->coordinator, c->rank, d->key.group)))
			return false;
		tess_coordinator_add_call(r->coordinator, c->rank, d);
		return true;
	case TESS_DEADLINE:
		if (f->a < 0 || len != (size_t)f->a * sizeof(struct tess_call_key))
			return false;
		note_deadline(c, (const void *)f->payload, f->a);
		return true;
	case TESS_GROUP:
		if (!tess_members_valid(m, len, r->nranks) || tess_members_find(m, c->rank) < 0)
			return false;
		tess_coordinator_add_group(r->coordinator, c->rank, m);
		return true;
	case TESS_GROUP_LEAVE:
		if (!f->a || !tess_coordinator_group_size(r->coordinator, c->rank, (uint32_t)f->a))
			return false;
		tess_coordinator_leave_group(r->coordinator, c->rank, (uint32_t)f->a);
		return true;
	case TESS_FAIL:
		if (!len || f->payload[len - 1] || f->b >= 0)
			return false;
		tess_coordinator_fail(r->coordinator, c->rank, f->b, f->payload);
		return true;
	case TESS_HEARTBEAT:
		return true;
	case TESS_STAY:
		if (!len || f->payload[len - 1] || f->a < 0)
			return false;
		tess_coordinator_set_stay(r->coordinator, c->rank, f->payload,
		                          f->a * (int64_t)TESS_MS, f->b != 0);
		return true;
	case TESS_LEAVE:
		c->left = true;
		if (!c->deadline_passed)
			tess_coordinator_leave(r->coordinator, c->rank);
		return true;
	}
	return false;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void close_connection(struct tess_rendezvous *r, struct tess_conn *c)
{
	close(c->fd);
	tess_pipe_free(&c->in);
	tess_pipe_free(&c->out);
	free(c->key);
	for (struct tess_pending_get *a = c->pending_gets, *next; a; a = next) {
		next = a->next;
		free(a);
	}
	*c = r->conn[--r->nconns];
}

/*
 * Closes the oldest connection without a rank, unless it has proven the secret between hosts.
 * False: none.
 */
static bool evict_oldest(struct tess_rendezvous *r)
{
	struct tess_conn *oldest = NULL;

	for (int32_t i = 0; i < r->nconns; i++) {
		struct tess_conn *c = &r->conn[i];

		if (c->rank < 0 && !(r->hosts && c->proven) &&
		    (!oldest || c->since < oldest->since))
			oldest = c;
	}
	if (oldest)
		close_connection(r, oldest);
	return oldest != NULL;
}

/* Closes a connection if the process has no descriptor left for the next one. */
static void free_descriptor(struct tess_rendezvous *r, int why)
{
	if (!r->lacked_files) {
		tess_fail(TESS_EIO, "a connection of a rank may be lost: %s", strerror(why));
		tess_log(TESS_WARN, "rendezvous", "%s", tess_error());
	}
	r->lacked_files = true;
	evict_oldest(r);
}

static void accept_connections(struct tess_rendezvous *r)
{
	for (int i = 0; i < ACCEPTS_MAX; i++) {
		struct tess_conn c = { .rank = -1, .since = tess_now(), .proven = !r->hosts };

		c.fd = r->hosts ? tess_net_accept(r->listener, c.from)
		                : accept4(r->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (c.fd < 0) {
			if (errno == EMFILE || errno == ENFILE)
				free_descriptor(r, errno);
			return;
		}
		c.pid = r->hosts ? 0 : tess_socket_peer(c.fd);
		if (c.pid < 0 ||
		    (r->nconns == r->nranks + TESS_UNAUTHENTICATED_MAX && !evict_oldest(r)))
			close(c.fd);
		else
			r->conn[r->nconns++] = c;
	}
}

/* Continues the handshake of secret.h with the received bytes. False: close the connection. */
static bool authenticate_peer(struct tess_rendezvous *r, struct tess_conn *c)
{
	unsigned char proof[TESS_PROOF];
	uint32_t before = c->received;
	ssize_t n = recv(c->fd, c->greeting + before, sizeof c->greeting - before, MSG_DONTWAIT);

	if (n <= 0)
		return n < 0 && (errno == EAGAIN || errno == EINTR);
	c->received += (uint32_t)n;
	if (before < TESS_NONCE && c->received >= TESS_NONCE) {
		tess_nonce_make(c->nonce);
		if (send(c->fd, c->nonce, TESS_NONCE, MSG_NOSIGNAL | MSG_DONTWAIT) != TESS_NONCE)
			return false;
	}
	if (c->received < sizeof c->greeting)
		return true;
	if (!tess_secret_check(&r->secret, TESS_CLIENT, c->greeting, c->nonce,
	                       c->greeting + TESS_NONCE))
		return false;
	c->proven = true;
	tess_secret_prove(&r->secret, TESS_SERVER, c->greeting, c->nonce, proof);
	return send(c->fd, proof, TESS_PROOF, MSG_NOSIGNAL | MSG_DONTWAIT) == TESS_PROOF;
}

static void report_lost_rank(struct tess_rendezvous *r, const struct tess_conn *c)
{
	char text[192], peer[96];

	if (c->rank < 0 || c->left)
		return;
	snprintf(text, sizeof text, "rank %d (%s) has ended without leaving the job", c->rank,
	         format_peer(c, peer, sizeof peer));
	tess_coordinator_fail(r->coordinator, c->rank, TESS_EPEER, text);
}

/* Reads and handles input. False: the connection has ended. */
static bool read_connection(struct tess_rendezvous *r, struct tess_conn *c)
{
	const struct tess_frame *f;
	bool open, bad = false;

	if (!c->proven)
		return authenticate_peer(r, c);
	open = tess_pipe_fill(&c->in, c->fd);
	if (r->hosts && c->rank >= 0)
		tess_coordinator_heartbeat(r->coordinator, c->rank);
	while (!c->close_after_flush && (f = tess_pipe_next(&c->in, &bad))) {
		if (c->rank < 0)
			handle_hello(r, c, f);
		else
			bad = !handle_rank_frame(r, c, f);
		if (bad)
			break;
	}
	if (bad && c->rank >= 0)
		tess_coordinator_fail(r->coordinator, c->rank, TESS_EBUG,
		                      "the rendezvous got a malformed frame");
	return open && !bad;
}

static void answer_gets(struct tess_rendezvous *r, struct tess_conn *c)
{
	struct tess_pending_get **at = &c->pending_gets, *a;

	while ((a = *at)) {
		uint64_t len;
		const void *val = tess_coordinator_find(r->coordinator, a->key, &len);

		if (!val) {
			at = &a->next;
			continue;
		}
		queue_frame(c, TESS_VALUE, (int32_t)len, a->id, val, len);
		*at = a->next;
		free(a);
	}
}

/* Reports a rank whose process has ended without joining to the ranks that wait for it. */
static void report_missing_rank(struct tess_rendezvous *r)
{
	int32_t waiting = -1;
	char text[128];

	for (int32_t i = 0; i < r->nranks; i++)
		if (r->rank[i].joined)
			waiting = i;
	for (int32_t i = 0; i < r->nranks && waiting >= 0; i++) {
		if (r->rank[i].joined || !atomic_load(&r->rank[i].ended))
			continue;
		snprintf(text, sizeof text,
		         "rank %d has ended without joining the job, in which rank %d waits", i,
		         waiting);
		tess_coordinator_fail(r->coordinator, i, TESS_EPEER, text);
		return;
	}
}

/* Queues pending notifications to all ranks. */
static void notify_ranks(struct tess_rendezvous *r)
{
	struct tess_failure f;
	bool failed = tess_coordinator_failure(r->coordinator, &f) != TESS_OK;
	bool welcome = !r->welcomed && tess_coordinator_joined(r->coordinator) == r->nranks;
	bool all_left = !r->all_left && tess_coordinator_left(r->coordinator) == r->nranks;
	unsigned records = atomic_load(&r->records);

	for (int32_t i = 0; i < r->nconns; i++) {
		struct tess_conn *c = &r->conn[i];

		if (c->rank < 0)
			continue;
		answer_gets(r, c);
		if (welcome)
			queue_frame(c, TESS_WELCOME, 0, 0, NULL, 0);
		if (welcome && r->hosts)
			tess_coordinator_heartbeat(r->coordinator, c->rank);
		if (all_left)
			queue_frame(c, TESS_ALL_LEFT, 0, 0, NULL, 0);
		if (failed && !c->reported)
			queue_frame(c, TESS_FAILED, f.rank, f.why, f.sentence,
			            strlen(f.sentence) + 1);
		c->reported |= failed;
		if (c->records_sent != records)
			queue_frame(c, TESS_RECORD, 0, 0, NULL, 0);
		c->records_sent = records;
	}
	r->welcomed |= welcome;
	r->all_left |= all_left;
}

/* Returns whether the HELLO of the connection has a deadline: *until. */
static bool must_identify(const struct tess_conn *c, int64_t *until)
{
	*until = c->since + HELLO_MS * (int64_t)TESS_MS;
	return c->rank < 0 && !c->expected;
}

/* Refreshes heartbeats after a delay of the server, which may not have read them. */
static void refresh_heartbeats(struct tess_rendezvous *r)
{
	int64_t now = tess_now();
	bool stalled = now - r->served_at > (TESS_SILENT_MS - TESS_HEARTBEAT_MS) * (int64_t)TESS_MS;

	for (int32_t i = 0; i < r->nconns && stalled; i++)
		if (r->conn[i].rank >= 0)
			tess_coordinator_heartbeat(r->coordinator, r->conn[i].rank);
	r->served_at = now;
}

/* Flushes the connections of this process (own), or of all other processes. */
static void flush_all(struct tess_rendezvous *r, bool own)
{
	for (int32_t i = r->nconns - 1; i >= 0; i--) {
		struct tess_conn *c = &r->conn[i];

		if ((c->pid == getpid()) != own)
			continue;
		if (!tess_pipe_flush(&c->out, c->fd) ||
		    (c->close_after_flush && c->out.begin == c->out.end)) {
			report_lost_rank(r, c);
			close_connection(r, c);
		}
	}
}

/* Waits for input until `deadline` (0: no limit) and handles it. */
static void serve_once(struct tess_rendezvous *r, struct pollfd *p, int64_t deadline)
{
	int32_t n = r->nconns;

	p[0] = (struct pollfd){ .fd = r->wake, .events = POLLIN };
	p[1] = (struct pollfd){ .fd = r->listener, .events = POLLIN };
	for (int32_t i = 0; i < n; i++) {
		const struct tess_conn *c = &r->conn[i];
		int64_t until;

		p[i + 2] = (struct pollfd){ .fd = c->fd,
			                    .events = c->out.begin < c->out.end ? POLLIN | POLLOUT
			                                                        : POLLIN };
		if (must_identify(c, &until) && (!deadline || until < deadline))
			deadline = until;
	}
	poll(p, (nfds_t)n + 2, deadline ? tess_ms_left(deadline) : -1);
	if (r->hosts)
		refresh_heartbeats(r);
	if (p[0].revents) {
		uint64_t count;

		if (read(r->wake, &count, sizeof count) < 0)
			return;
	}
	for (int32_t i = 0; i < n; i++)
		if (p[i + 2].revents & ~POLLOUT && !read_connection(r, &r->conn[i]))
			r->conn[i].ended = true;
	for (int32_t i = 0; i < n; i++)
		check_deadline(r, &r->conn[i]);
	for (int32_t i = n - 1; i >= 0; i--) { /* close_connection() moves the last one here */
		struct tess_conn *c = &r->conn[i];
		int64_t until;

		if (c->ended || (must_identify(c, &until) && tess_now() > until)) {
			report_lost_rank(r, c);
			tess_pipe_flush(&c->out, c->fd);
			close_connection(r, c);
		}
	}
	if (p[1].revents)
		accept_connections(r);
	if (!r->welcomed)
		report_missing_rank(r);
	notify_ranks(r);
	/* a rank of this process comes last: at a failure it may end the process, and the server */
	flush_all(r, false);
	flush_all(r, true);
}

static bool has_unsent(const struct tess_rendezvous *r)
{
	for (int32_t i = 0; i < r->nconns; i++)
		if (r->conn[i].out.begin < r->conn[i].out.end)
			return true;
	return false;
}

void *tess_server_run(void *arg)
{
	struct tess_rendezvous *r = arg;
	struct pollfd *p = calloc((size_t)r->nranks + TESS_UNAUTHENTICATED_MAX + 2, sizeof *p);
	int64_t deadline;

	if (!p) {
		tess_coordinator_fail(r->coordinator, -1, TESS_ENOMEM,
		                      "no memory for the server of the rendezvous");
		return NULL;
	}
	while (!r->stop)
		serve_once(r, p, 0);
	if (!r->hosts)
		unlink(r->path); /* later connections go to the next job of this name */
	if (tess_coordinator_left(r->coordinator) < tess_coordinator_joined(r->coordinator))
		tess_coordinator_fail(r->coordinator, -1, TESS_EPEER,
		                      "the rendezvous was closed before all ranks had left");
	notify_ranks(r);
	deadline = tess_now() + FLUSH_MS * (int64_t)TESS_MS;
	for (;;) {
		for (int32_t i = r->nconns - 1; i >= 0; i--)
			if (!tess_pipe_flush(&r->conn[i].out, r->conn[i].fd))
				close_connection(r, &r->conn[i]);
		if (!has_unsent(r) || tess_now() >= deadline)
			break;
		poll(NULL, 0, 1);
	}
	while (r->nconns)
		close_connection(r, &r->conn[r->nconns - 1]);
	free(p);
	return NULL;
}
