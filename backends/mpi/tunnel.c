/*
 * tunnel.c - connections from ranks on several hosts to rank 0, carried by MPI.
 *
 * The core reads and writes sockets. A thread forwards bytes from them to the other rank in
 * messages, and from messages to them; an empty message ends a tunnel. The thread never blocks in
 * MPI, so it ends on request.
 */
#include "tunnel.h"

#include "blocking_call.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 16 << 10 }; /* maximum bytes of a message */
enum { REST_MS = 1, LAST_MS = 500, JOIN_MS = 2000 };

struct tunnel {
	int fd, peer;
	MPI_Request out, in; /* under way; MPI_REQUEST_NULL: none */
	bool output_ended; /* the last sent message is the empty one */
	bool input_ended; /* the last received message is the empty one */
	int received,
		written; /* bytes of `in_text`, and how many of them have gone into the socket */
	char out_text[MESSAGE], in_text[MESSAGE];
};

static struct {
	MPI_Comm comm;
	pthread_t thread;
	bool running;
	atomic_bool finish;
	int32_t n; /* on rank 0 one tunnel per other rank, on the others one to rank 0 */
	struct tunnel *each;
} tunnels = { .comm = MPI_COMM_NULL };

/* Drops a tunnel on which MPI has failed. */
static bool drop_tunnel(struct tunnel *t)
{
	t->output_ended = t->input_ended = true;
	t->out = t->in = MPI_REQUEST_NULL;
	shutdown(t->fd, SHUT_RDWR);
	return true;
}

/* Sends bytes of the socket; returns whether any were moved. */
static bool send_from_socket(struct tunnel *t)
{
	int sent = 1;
	ssize_t n;

	if (t->out != MPI_REQUEST_NULL && MPI_Test(&t->out, &sent, MPI_STATUS_IGNORE))
		return drop_tunnel(t);
	if (!sent || t->output_ended)
		return false;
	n = recv(t->fd, t->out_text, MESSAGE, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	t->output_ended = n <= 0;
	if (MPI_Isend(t->out_text, n > 0 ? (int)n : 0, MPI_BYTE, t->peer, 0, tunnels.comm, &t->out))
		return drop_tunnel(t);
	return true;
}

/* Writes received bytes to the socket, as far as it accepts them; discards them if closed. */
static bool write_to_socket(struct tunnel *t)
{
	while (t->written < t->received) {
		ssize_t n = send(t->fd, t->in_text + t->written, (size_t)(t->received - t->written),
		                 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		t->written = n < 0 ? t->received : t->written + (int)n;
	}
	return true;
}

static bool receive_to_socket(struct tunnel *t)
{
	int came = 0;
	MPI_Status status;

	if (t->input_ended)
		return false;
	if (t->in != MPI_REQUEST_NULL) {
		if (MPI_Test(&t->in, &came, &status))
			return drop_tunnel(t);
		if (!came)
			return false;
		MPI_Get_count(&status, MPI_BYTE, &t->received);
		t->written = 0;
		t->input_ended = !t->received;
		if (t->input_ended)
			shutdown(t->fd, SHUT_WR);
	}
	if (!write_to_socket(t))
		return came;
	if (!t->input_ended &&
	    MPI_Irecv(t->in_text, MESSAGE, MPI_BYTE, t->peer, 0, tunnels.comm, &t->in))
		return drop_tunnel(t);
	return true;
}

static bool is_flushed(const struct tunnel *t)
{
	return t->output_ended && t->out == MPI_REQUEST_NULL;
}

/* Polls the sockets for a millisecond; MPI has no descriptor, so its messages are tested. */
static void poll_sockets(struct pollfd *p)
{
	for (int32_t i = 0; i < tunnels.n; i++) {
		const struct tunnel *t = &tunnels.each[i];
		bool reads = !t->output_ended && t->out == MPI_REQUEST_NULL,
		     writes = t->written < t->received;

		p[i] = (struct pollfd){
			.fd = t->output_ended ? -1 : t->fd, /* else it stays readable */
			.events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0))
		};
	}
	poll(p, (nfds_t)tunnels.n, REST_MS);
}

/* Returns whether bytes are left to send. At the end, bytes of other ranks are ignored. */
static bool has_bytes_left(int64_t *until)
{
	bool finish = atomic_load(&tunnels.finish), open = false;

	if (finish && !*until) {
		*until = tess_now() + LAST_MS * (int64_t)TESS_MS;
		for (int32_t i = 0; i < tunnels.n; i++)
			shutdown(tunnels.each[i].fd, SHUT_RD);
	}
	for (int32_t i = 0; i < tunnels.n; i++)
		open = open || !is_flushed(&tunnels.each[i]) ||
		       !(finish || tunnels.each[i].input_ended);
	return open && !(finish && tess_now() > *until);
}

static void *carry_bytes(void *arg)
{
	struct pollfd *p = arg;
	int64_t until = 0;

	while (has_bytes_left(&until)) {
		bool moved = false;

		for (int32_t i = 0; i < tunnels.n; i++) {
			moved = send_from_socket(&tunnels.each[i]) || moved;
			moved = receive_to_socket(&tunnels.each[i]) || moved;
		}
		if (!moved)
			poll_sockets(p);
	}
	for (int32_t i = 0; i < tunnels.n; i++) {
		struct tunnel *t = &tunnels.each[i];

		if (t->in != MPI_REQUEST_NULL && !MPI_Cancel(&t->in))
			MPI_Request_free(&t->in);
		close(t->fd);
	}
	free(p);
	return NULL;
}

/* ---- opening, and the end -------------------------------------------------------------------- */

static bool connect_pair(int32_t *one, int *two)
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		return false;
	*one = fd[0];
	*two = fd[1];
	return true;
}

static void close_socket(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void close_all_sockets(int32_t rank, int32_t nranks, const int32_t *own, const int32_t *end)
{
	close_socket(*own);
	for (int32_t r = 0; !rank && r < nranks; r++)
		close_socket(end[r]);
	for (int32_t i = 0; i < tunnels.n; i++)
		close_socket(tunnels.each[i].fd);
}

/* Connects the sockets; their other ends go to `own` and `end`. False: none. */
static bool connect_all_sockets(int32_t rank, int32_t nranks, int32_t *own, int32_t *end)
{
	bool good = true;

	*own = -1;
	for (int32_t r = 0; !rank && r < nranks; r++)
		end[r] = -1;
	for (int32_t i = 0; i < tunnels.n; i++) {
		struct tunnel *t = &tunnels.each[i];

		t->peer = rank ? 0 : i + 1;
		t->fd = -1;
		t->out = t->in = MPI_REQUEST_NULL;
		good = good && connect_pair(rank ? own : &end[t->peer], &t->fd);
	}
	if (!rank)
		good = good && connect_pair(own, &end[0]);
	if (!good)
		close_all_sockets(rank, nranks, own, end);
	return good;
}

/* Frees the tunnels of a previous world. False: their thread is still running. */
static bool clear_tunnels(void)
{
	tunnel_finish_all();
	if (tunnels.running)
		return false;
	free(tunnels.each);
	tunnels.each = NULL;
	tunnels.n = 0;
	blocking_close_comm(&tunnels.comm);
	return true;
}

tess_status tunnel_open_all(int32_t rank, int32_t nranks, int64_t deadline, int32_t *own,
                            int32_t *end)
{
	struct pollfd *p = NULL;
	tess_status st;

	if (!clear_tunnels())
		return mpi_host->fail(TESS_EIO, "the tunnels of the world before do not end");
	st = blocking_init_mpi(rank, nranks, NULL, deadline);
	if (st == TESS_OK)
		st = blocking_open_world(nranks, deadline, &tunnels.comm);
	if (st < 0)
		return st;
	tunnels.n = rank ? 1 : nranks - 1;
	tunnels.each = calloc((size_t)tunnels.n, sizeof *tunnels.each);
	p = calloc((size_t)tunnels.n, sizeof *p);
	if (!tunnels.each || !p || !connect_all_sockets(rank, nranks, own, end)) {
		free(p);
		return mpi_host->fail(TESS_ENOMEM,
		                      "no memory or sockets for the tunnels of %d ranks",
		                      (int)nranks);
	}
	atomic_store(&tunnels.finish, false);
	blocking_set_finish(tunnel_finish_all);
	tunnels.running = start_quiet_thread(carry_bytes, p, &tunnels.thread);
	if (tunnels.running)
		return TESS_OK;
	free(p);
	close_all_sockets(rank, nranks, own, end);
	return mpi_host->fail(TESS_EIO, "no thread for the tunnels of %d ranks", (int)nranks);
}

void tunnel_finish_all(void)
{
	int64_t until = tess_now() + JOIN_MS * (int64_t)TESS_MS;
	struct timespec t = tess_timespec(until);

	if (!tunnels.running)
		return;
	atomic_store(&tunnels.finish, true);
	tunnels.running = pthread_clockjoin_np(tunnels.thread, NULL, CLOCK_MONOTONIC, &t) != 0;
}
