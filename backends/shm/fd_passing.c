/*
 * fd_passing.c - passes descriptors of shared memory from rank 0 to the other ranks over sockets.
 *
 * Rank 0 listens under a random abstract name while a group is opened; the name and a token are in
 * the store. Both ends check the user of the other end. Everything that is read here was written
 * before its writer announced it in the store or in shared memory. So nothing in this file blocks,
 * and an unauthenticated connection cannot delay a rank.
 */
#include "fd_passing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct rank_hello {
	unsigned char token[16];
	int32_t rank, zero;
};

static bool is_same_user(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof peer;

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) && peer.uid == geteuid();
}

static socklen_t fill_abstract_address(const char *name, struct sockaddr_un *at)
{
	size_t len = strlen(name);

	memset(at, 0, sizeof *at);
	at->sun_family = AF_UNIX;
	memcpy(at->sun_path + 1, name, len);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

tess_status fd_passing_listen(const struct group *g, const char *name, int *out)
{
	struct sockaddr_un at;
	socklen_t len = fill_abstract_address(name, &at);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) || listen(fd, SOMAXCONN)) {
		if (fd >= 0)
			close(fd);
		return g->host->fail(TESS_EIO, "no socket to pass shared memory on: %s",
		                     strerror(errno));
	}
	*out = fd;
	return TESS_OK;
}

tess_status fd_passing_connect(struct group *g, const struct segment_address *a, int64_t deadline)
{
	struct rank_hello hello = { .rank = g->rank };
	struct sockaddr_un at;
	socklen_t len = fill_abstract_address(a->name, &at);
	int64_t left = deadline - tess_now();
	struct timeval most = { .tv_sec = left > 0 ? left / 1000000000 + 1 : 1 };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(hello.token, a->token, sizeof hello.token);
	if (fd < 0)
		return g->host->fail(TESS_EIO, "no socket: %s", strerror(errno));
	g->socket[0] = fd;
	/* completes before it is accepted; blocks only while unauthenticated ones fill the queue */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
	if (connect(fd, (struct sockaddr *)&at, len))
		return g->host->fail(
			TESS_EPEER,
			"cannot reach rank %d: %s; ranks of backend shm share a host and its "
			"network namespace",
			(int)g->world[0], strerror(errno));
	if (!is_same_user(fd))
		return g->host->fail(TESS_EPERM, "the socket of rank %d belongs to another user",
		                     (int)g->world[0]);
	if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
		return g->host->fail(TESS_EPEER, "rank %d does not listen: %s", (int)g->world[0],
		                     strerror(errno));
	return TESS_OK;
}

static void drop_connection(struct unauthenticated *c, int i)
{
	close(c->fd[i]);
	memmove(c->fd + i, c->fd + i + 1, (size_t)(--c->n - i) * sizeof *c->fd);
}

/*
 * Reads tokens. A connection that sends the token is a rank; a silent one is kept, others are
 * closed.
 */
static void read_hellos(struct group *g, struct unauthenticated *c, const struct segment_address *a)
{
	for (int i = c->n - 1; i >= 0; i--) {
		struct rank_hello hello;
		ssize_t n = recv(c->fd[i], &hello, sizeof hello, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n != sizeof hello || memcmp(hello.token, a->token, sizeof a->token) ||
		    hello.rank < 1 || hello.rank >= g->nranks || g->socket[hello.rank] >= 0) {
			drop_connection(c, i);
			continue;
		}
		g->socket[hello.rank] = c->fd[i];
		memmove(c->fd + i, c->fd + i + 1, (size_t)(--c->n - i) * sizeof *c->fd);
	}
}

void fd_passing_accept(struct group *g, int listener, struct unauthenticated *c,
                       const struct segment_address *a)
{
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 && (errno == ECONNABORTED || errno == EINTR))
			continue;
		if (fd < 0)
			break;
		if (!is_same_user(fd)) {
			close(fd);
			continue;
		}
		if (c->n == UNAUTHENTICATED_MOST)
			read_hellos(g, c, a);
		if (c->n == UNAUTHENTICATED_MOST)
			drop_connection(c, 0);
		c->fd[c->n++] = fd;
	}
	read_hellos(g, c, a);
}

union control {
	struct cmsghdr head;
	char space[CMSG_SPACE(sizeof(int))];
};

tess_status fd_passing_send(const struct group *g, int32_t r, int fd)
{
	char byte = 1;
	union control c = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = {
		.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
	};

	c.head.cmsg_level = SOL_SOCKET;
	c.head.cmsg_type = SCM_RIGHTS;
	c.head.cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(&c.head), &fd, sizeof fd);
	if (sendmsg(g->socket[r], &m, MSG_NOSIGNAL) != 1)
		return g->host->fail(TESS_EPEER, "rank %d did not accept the shared memory: %s",
		                     (int)g->world[r], strerror(errno));
	return TESS_OK;
}

tess_status fd_passing_receive(const struct group *g, size_t bytes, int *out)
{
	char byte;
	union control c = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = {
		.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
	};
	struct stat what;
	int fd;

	if (recvmsg(g->socket[0], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1 ||
	    c.head.cmsg_type != SCM_RIGHTS || c.head.cmsg_len != CMSG_LEN(sizeof fd))
		return g->host->fail(TESS_EPEER, "rank %d has not passed its shared memory on",
		                     (int)g->world[0]);
	memcpy(&fd, CMSG_DATA(&c.head), sizeof fd);
	if (fstat(fd, &what) || (uint64_t)what.st_size != bytes) {
		close(fd);
		return g->host->fail(
			TESS_EABI,
			"rank %d passed %lld bytes of shared memory, not %zu: it runs another "
			"release",
			(int)g->world[0], (long long)what.st_size, bytes);
	}
	*out = fd;
	return TESS_OK;
}

void fd_passing_drop(struct unauthenticated *c)
{
	while (c->n)
		drop_connection(c, c->n - 1);
}
