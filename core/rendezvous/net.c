#include "core/rendezvous/net.h"

#include "core/base/clock.h"
#include "core/base/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ATTEMPT_MS = 5000, CONNECT_RETRY_MS = 20, REFUSALS_MAX = 3, IN_USE_MS = 1000 };

static tess_status resolve_host(const struct tess_hosts *at, int flags, struct addrinfo **list)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV };
	int err = getaddrinfo(at->addr, at->port, &hints, list);

	if (!err)
		return TESS_OK;
	return tess_fail(err == EAI_AGAIN ? TESS_ETIMEOUT : TESS_EINVAL,
	                 "MASTER_ADDR=%s is not a known host: %s", at->addr, gai_strerror(err));
}

static bool is_any_address(const struct sockaddr *sa)
{
	const struct sockaddr_in *four = (const void *)sa;
	const struct sockaddr_in6 *six = (const void *)sa;

	if (sa->sa_family == AF_INET)
		return four->sin_addr.s_addr == htonl(INADDR_ANY);
	return sa->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr);
}

static bool is_loopback_address(const struct sockaddr *sa)
{
	const struct sockaddr_in *four = (const void *)sa;
	const struct sockaddr_in6 *six = (const void *)sa;

	if (sa->sa_family == AF_INET)
		return ntohl(four->sin_addr.s_addr) >> 24 == 127;
	return sa->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/* Sets keep-alive: a host that disappears is detected within half a minute. */
static void set_socket_options(int fd)
{
	int one = 1, idle = 5, interval = 5, probes = 4, timeout_ms = 25000;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

/* ---- the server ------------------------------------------------------------------------------ */

static int try_to_listen(const struct addrinfo *a)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, err;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, SOMAXCONN))
		return fd;
	err = errno;
	close(fd);
	errno = err;
	return -1;
}

/* Listens, with retries: the previous job may still hold the port for a moment. */
static int listen_with_retry(const struct addrinfo *a)
{
	int64_t until = tess_now() + IN_USE_MS * (int64_t)TESS_MS;
	int fd;

	while ((fd = try_to_listen(a)) < 0 && errno == EADDRINUSE && tess_now() < until)
		poll(NULL, 0, CONNECT_RETRY_MS);
	return fd;
}

tess_status tess_net_listen(const struct tess_hosts *at, int *out)
{
	bool literal = !strcmp(at->addr, "localhost") || !strncmp(at->addr, "127.", 4) ||
	               !strcmp(at->addr, "::1");
	struct addrinfo *list;
	bool looped = false;
	tess_status st = resolve_host(at, AI_PASSIVE, &list);
	int fd = -1, err = EADDRNOTAVAIL;

	if (st)
		return st;
	for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		if (is_any_address(a->ai_addr)) {
			st = tess_fail(
				TESS_EINVAL,
				"MASTER_ADDR=%s stands for every address of this host; name one "
				"that the other hosts can reach",
				at->addr);
			break;
		}
		/* Debian's /etc/hosts has the host's own name at 127.0.1.1 */
		if (is_loopback_address(a->ai_addr) && !literal) {
			looped = true;
			continue;
		}
		fd = listen_with_retry(a);
		if (fd < 0)
			err = errno;
	}
	freeaddrinfo(list);
	if (!st && fd < 0 && looped)
		st = tess_fail(TESS_EINVAL,
		               "MASTER_ADDR=%s is a loopback address on this host, which no other "
		               "host can reach; set it to an address of this host",
		               at->addr);
	else if (!st && fd < 0 && err == EADDRINUSE)
		st = tess_fail(TESS_EIO,
		               "port %s of %s is in use, maybe by another job; set another "
		               "TESSERA_PORT, on all hosts",
		               at->port, at->addr);
	else if (!st && fd < 0)
		st = tess_fail(TESS_EINVAL,
		               "rank 0 cannot listen at MASTER_ADDR=%s, port %s: %s; MASTER_ADDR "
		               "is an address of the host of rank 0",
		               at->addr, at->port, strerror(err));
	if (!st)
		*out = fd;
	return st;
}

int tess_net_accept(int listener, char *from)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof sa;
	int fd = accept4(listener, (void *)&sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return -1;
	set_socket_options(fd);
	if (getnameinfo((void *)&sa, len, from, 48, NULL, 0, NI_NUMERICHOST))
		snprintf(from, 48, "an unknown address");
	return fd;
}

/* ---- the client ------------------------------------------------------------------------------ */

static bool wait_until_ready(int fd, short events, int64_t until)
{
	struct pollfd p = { .fd = fd, .events = events };

	while (tess_now() < until)
		if (poll(&p, 1, tess_ms_left(until)) > 0)
			return true;
	return false;
}

static int connect_address(const struct addrinfo *a, int64_t until)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err = 0;
	socklen_t len = sizeof err;

	if (fd < 0)
		return -1;
	if (!connect(fd, a->ai_addr, a->ai_addrlen) ||
	    (errno == EINPROGRESS && wait_until_ready(fd, POLLOUT, until) &&
	     !getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) && !err)) {
		set_socket_options(fd);
		return fd;
	}
	close(fd);
	return -1;
}

static bool send_32_bytes(int fd, const unsigned char *bytes)
{
	return send(fd, bytes, 32, MSG_NOSIGNAL | MSG_DONTWAIT) == 32;
}

/* Receives 32 bytes; false: the connection has ended, or time is up. */
static bool receive_32_bytes(int fd, unsigned char *bytes, int64_t until)
{
	size_t have = 0;

	while (have < 32 && wait_until_ready(fd, POLLIN, until)) {
		ssize_t n = recv(fd, bytes + have, 32 - have, MSG_DONTWAIT);

		if (!n || (n < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		have += n > 0 ? (size_t)n : 0;
	}
	return have == 32;
}

enum outcome { PROVEN, LOST, REFUSED, UNPROVEN };

static enum outcome authenticate_server(int fd, const struct tess_secret *s, int64_t until)
{
	unsigned char client_nonce[TESS_NONCE], server_nonce[TESS_NONCE], proof[TESS_PROOF];

	tess_nonce_make(client_nonce);
	if (!send_32_bytes(fd, client_nonce) || !receive_32_bytes(fd, server_nonce, until))
		return LOST;
	/* without a listener TCP may connect a port to itself */
	if (!memcmp(client_nonce, server_nonce, sizeof client_nonce))
		return LOST;
	tess_secret_prove(s, TESS_CLIENT, client_nonce, server_nonce, proof);
	if (!send_32_bytes(fd, proof))
		return LOST;
	if (!receive_32_bytes(fd, proof, until))
		return REFUSED;
	return tess_secret_check(s, TESS_SERVER, client_nonce, server_nonce, proof) ? PROVEN
	                                                                            : UNPROVEN;
}

static enum outcome attempt_connection(const struct tess_hosts *at, const struct tess_secret *s,
                                       int64_t until, int *out, tess_status *st)
{
	enum outcome o = LOST;
	struct addrinfo *list;

	*st = resolve_host(at, 0, &list);
	if (*st)
		return LOST;
	for (const struct addrinfo *a = list; a && o == LOST; a = a->ai_next) {
		int fd = connect_address(a, until);

		if (fd < 0)
			continue;
		o = authenticate_server(fd, s, until);
		if (o == PROVEN)
			*out = fd;
		else
			close(fd);
	}
	freeaddrinfo(list);
	return o;
}

tess_status tess_net_connect(const struct tess_hosts *at, const struct tess_secret *s,
                             int64_t deadline, int *out)
{
	int refusals = 0;

	for (;;) {
		int64_t until = tess_now() + ATTEMPT_MS * (int64_t)TESS_MS;
		tess_status st;

		switch (attempt_connection(at, s, until < deadline ? until : deadline, out, &st)) {
		case PROVEN:
			return TESS_OK;
		case UNPROVEN:
			return tess_fail(TESS_EPERM,
			                 "the process that listens at %s, port %s does not hold "
			                 "the secret of this job",
			                 at->addr, at->port);
		case REFUSED: /* or evicted by a flood of connections: try a few times only */
			if (++refusals < REFUSALS_MAX)
				break;
			return tess_fail(
				TESS_EPERM,
				"rank 0 at %s, port %s rejects this rank's proof: the files of "
				"TESSERA_SECRET_FILE, or the names of the job, differ between the "
				"hosts (if it belongs to another job, set another TESSERA_PORT)",
				at->addr, at->port);
		case LOST:
			if (st == TESS_EINVAL)
				return st;
			break;
		}
		if (tess_now() >= deadline)
			return tess_fail(
				TESS_ETIMEOUT,
				"rank 0, which hosts the rendezvous, has not opened %s, port %s by "
				"the deadline",
				at->addr, at->port);
		poll(NULL, 0, CONNECT_RETRY_MS);
	}
}
