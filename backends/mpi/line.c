/*
 * line.c - the lines of ranks to rank 0 where they are on several hosts: MPI is what they have in common.
 *
 * The core speaks and listens at sockets. A thread carries what comes out of them to the other rank, in
 * messages, and puts what messages bring into them; a message of no bytes ends a line. It never waits in
 * MPI, so it goes on where other threads do, and ends when it is told to.
 */
#include "member.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 16 << 10 }; /* bytes of a message */
enum { REST_MS = 1, LAST_MS = 500, JOIN_MS = 2000 };

struct line {
	int fd, peer;
	MPI_Request out, in; /* under way; MPI_REQUEST_NULL: none is */
	bool ended; /* the last message out was, or is, that of no bytes */
	bool deaf; /* and the last one in */
	int heard, given; /* bytes of `in_text`, and how many of them have gone into the socket */
	char out_text[ROOM], in_text[ROOM];
};

static struct {
	MPI_Comm comm;
	pthread_t thread;
	bool running;
	atomic_bool finish;
	int32_t n; /* rank 0 has a line to each other rank, these to rank 0 */
	struct line *line;
} lines = { .comm = MPI_COMM_NULL };

/* MPI has given it up. */
static bool lose(struct line *l)
{
	l->ended = l->deaf = true;
	l->out = l->in = MPI_REQUEST_NULL;
	shutdown(l->fd, SHUT_RDWR);
	return true;
}

/* Both return whether they got on. */
static bool speak(struct line *l)
{
	int sent = 1;
	ssize_t n;

	if (l->out != MPI_REQUEST_NULL && MPI_Test(&l->out, &sent, MPI_STATUS_IGNORE))
		return lose(l);
	if (!sent || l->ended)
		return false;
	n = recv(l->fd, l->out_text, ROOM, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	l->ended = n <= 0;
	if (MPI_Isend(l->out_text, n > 0 ? (int)n : 0, MPI_BYTE, l->peer, 0, lines.comm, &l->out))
		return lose(l);
	return true;
}

/* Puts what has come into the socket, as far as it takes it: all, where nobody listens any more. */
static bool give(struct line *l)
{
	while (l->given < l->heard) {
		ssize_t n = send(l->fd, l->in_text + l->given, (size_t)(l->heard - l->given),
		                 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		l->given = n < 0 ? l->heard : l->given + (int)n;
	}
	return true;
}

static bool hear(struct line *l)
{
	int came = 0;
	MPI_Status status;

	if (l->deaf)
		return false;
	if (l->in != MPI_REQUEST_NULL) {
		if (MPI_Test(&l->in, &came, &status))
			return lose(l);
		if (!came)
			return false;
		MPI_Get_count(&status, MPI_BYTE, &l->heard);
		l->given = 0;
		l->deaf = !l->heard;
		if (l->deaf)
			shutdown(l->fd, SHUT_WR);
	}
	if (!give(l))
		return came;
	if (!l->deaf && MPI_Irecv(l->in_text, ROOM, MPI_BYTE, l->peer, 0, lines.comm, &l->in))
		return lose(l);
	return true;
}

static bool is_said(const struct line *l)
{
	return l->ended && l->out == MPI_REQUEST_NULL;
}

/* MPI has nothing that can be polled: its messages are looked for every millisecond. */
static void rest(struct pollfd *p)
{
	for (int32_t i = 0; i < lines.n; i++) {
		const struct line *l = &lines.line[i];
		bool speaks = !l->ended && l->out == MPI_REQUEST_NULL, gives = l->given < l->heard;

		p[i] = (struct pollfd){ .fd = l->ended ? -1 : l->fd, /* else it stays readable */
			                .events = (short)((speaks ? POLLIN : 0) |
			                                  (gives ? POLLOUT : 0)) };
	}
	poll(p, (nfds_t)lines.n, REST_MS);
}

/* Whether there is something left to be done. At the end it is not asked what others still say. */
static bool goes_on(int64_t *until)
{
	bool finish = atomic_load(&lines.finish), open = false;

	if (finish && !*until) {
		*until = mpi_now() + LAST_MS * INT64_C(1000000);
		for (int32_t i = 0; i < lines.n; i++)
			shutdown(lines.line[i].fd, SHUT_RD);
	}
	for (int32_t i = 0; i < lines.n; i++)
		open = open || !is_said(&lines.line[i]) || !(finish || lines.line[i].deaf);
	return open && !(finish && mpi_now() > *until);
}

static void *carry(void *arg)
{
	struct pollfd *p = arg;
	int64_t until = 0;

	while (goes_on(&until)) {
		bool moved = false;

		for (int32_t i = 0; i < lines.n; i++) {
			moved = speak(&lines.line[i]) || moved;
			moved = hear(&lines.line[i]) || moved;
		}
		if (!moved)
			rest(p);
	}
	for (int32_t i = 0; i < lines.n; i++) {
		struct line *l = &lines.line[i];

		if (l->in != MPI_REQUEST_NULL && !MPI_Cancel(&l->in))
			MPI_Request_free(&l->in);
		close(l->fd);
	}
	free(p);
	return NULL;
}

/* ---- opening, and the end ------------------------------------------------------------------------ */

static bool connect_pair(int32_t *one, int *two)
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		return false;
	*one = fd[0];
	*two = fd[1];
	return true;
}

static void shut(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void close_all(int32_t rank, int32_t nranks, const int32_t *line, const int32_t *end)
{
	shut(*line);
	for (int32_t r = 0; !rank && r < nranks; r++)
		shut(end[r]);
	for (int32_t i = 0; i < lines.n; i++)
		shut(lines.line[i].fd);
}

/* The sockets, of which `line` and `end` get theirs. False: there are none. */
static bool connect_all(int32_t rank, int32_t nranks, int32_t *line, int32_t *end)
{
	bool good = true;

	*line = -1;
	for (int32_t r = 0; !rank && r < nranks; r++)
		end[r] = -1;
	for (int32_t i = 0; i < lines.n; i++) {
		struct line *l = &lines.line[i];

		l->peer = rank ? 0 : i + 1;
		l->fd = -1;
		l->out = l->in = MPI_REQUEST_NULL;
		good = good && connect_pair(rank ? line : &end[l->peer], &l->fd);
	}
	if (!rank)
		good = good && connect_pair(line, &end[0]);
	if (!good)
		close_all(rank, nranks, line, end);
	return good;
}

/* Those of a world that is over go, with what they needed. False: they do not. */
static bool clear(void)
{
	line_finish();
	if (lines.running)
		return false;
	free(lines.line);
	lines.line = NULL;
	lines.n = 0;
	errand_close(&lines.comm);
	return true;
}

tess_status line_open(int32_t rank, int32_t nranks, int64_t deadline, int32_t *line, int32_t *end)
{
	struct pollfd *p = NULL;
	tess_status st;

	if (!clear())
		return mpi_host->fail(TESS_EIO, "the lines of the world before do not end");
	st = errand_init(rank, nranks, NULL, deadline);
	if (st == TESS_OK)
		st = errand_open_all(nranks, deadline, &lines.comm);
	if (st < 0)
		return st;
	lines.n = rank ? 1 : nranks - 1;
	lines.line = calloc((size_t)lines.n, sizeof *lines.line);
	p = calloc((size_t)lines.n, sizeof *p);
	if (!lines.line || !p || !connect_all(rank, nranks, line, end)) {
		free(p);
		return mpi_host->fail(TESS_ENOMEM, "no memory or sockets for the lines of %d ranks",
		                      (int)nranks);
	}
	atomic_store(&lines.finish, false);
	lines.running = errand_thread(carry, p, &lines.thread);
	if (lines.running)
		return TESS_OK;
	free(p);
	close_all(rank, nranks, line, end);
	return mpi_host->fail(TESS_EIO, "no thread for the lines of %d ranks", (int)nranks);
}

void line_finish(void)
{
	int64_t until = mpi_now() + JOIN_MS * INT64_C(1000000);
	struct timespec t = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };

	if (!lines.running)
		return;
	atomic_store(&lines.finish, true);
	lines.running = pthread_clockjoin_np(lines.thread, NULL, CLOCK_MONOTONIC, &t) != 0;
}
