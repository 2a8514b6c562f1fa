/*
 * line.c - the sockets over which rank 0 hands descriptors of shared memory to the others.
 *
 * Rank 0 listens under a random abstract name while a group is opened; the name and a token are
 * told in the store. Both ends look at the user at the other end. What is read here was written
 * before its writer said so in the store, or in shared memory: nothing waits in this file, and a
 * stranger who connects and says nothing, or something else, holds nobody up.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm.h"

struct greeting {
	unsigned char token[16];
	int32_t rank, zero;
};

static bool is_ours(int fd)
{
	struct ucred who;
	socklen_t len = sizeof who;

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) && who.uid == geteuid();
}

static socklen_t abstract(const char *name, struct sockaddr_un *at)
{
	size_t len = strlen(name);

	memset(at, 0, sizeof *at);
	at->sun_family = AF_UNIX;
	memcpy(at->sun_path + 1, name, len);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

tess_status line_listen(const struct group *g, const char *name, int *out)
{
	struct sockaddr_un at;
	socklen_t len = abstract(name, &at);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) || listen(fd, SOMAXCONN)) {
		if (fd >= 0)
			close(fd);
		return g->host->fail(TESS_EIO, "no socket to hand shared memory over: %s",
		                     strerror(errno));
	}
	*out = fd;
	return TESS_OK;
}

tess_status line_call(struct group *g, const struct address *a, int64_t deadline)
{
	struct greeting hello = { .rank = g->rank };
	struct sockaddr_un at;
	socklen_t len = abstract(a->name, &at);
	int64_t left = deadline - bell_now();
	struct timeval most = { .tv_sec = left > 0 ? left / 1000000000 + 1 : 1 };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(hello.token, a->token, sizeof hello.token);
	if (fd < 0)
		return g->host->fail(TESS_EIO, "no socket: %s", strerror(errno));
	g->line[0] = fd;
	/*
	 * a connection is complete before it is taken; it waits only where strangers fill the
	 * queue
	 */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
	if (connect(fd, (struct sockaddr *)&at, len))
		return g->host->fail(
			TESS_EPEER,
			"no way to rank %d: %s; ranks of one group share a host and its network "
			"namespace, take gloo for others",
			(int)g->world[0], strerror(errno));
	if (!is_ours(fd))
		return g->host->fail(TESS_EPERM, "the socket of rank %d belongs to another user",
		                     (int)g->world[0]);
	if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
		return g->host->fail(TESS_EPEER, "rank %d does not listen: %s", (int)g->world[0],
		                     strerror(errno));
	return TESS_OK;
}

static void hang_up(struct callers *c, int i)
{
	close(c->fd[i]);
	memmove(c->fd + i, c->fd + i + 1, (size_t)(--c->n - i) * sizeof *c->fd);
}

/* Whoever says the token is a rank, who has nothing is waited for, the rest is hung up on. */
static void listen_to(struct group *g, struct callers *c, const struct address *a)
{
	for (int i = c->n - 1; i >= 0; i--) {
		struct greeting hello;
		ssize_t n = recv(c->fd[i], &hello, sizeof hello, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n != sizeof hello || memcmp(hello.token, a->token, sizeof a->token) ||
		    hello.rank < 1 || hello.rank >= g->nranks || g->line[hello.rank] >= 0) {
			hang_up(c, i);
			continue;
		}
		g->line[hello.rank] = c->fd[i];
		memmove(c->fd + i, c->fd + i + 1, (size_t)(--c->n - i) * sizeof *c->fd);
	}
}

/* Takes all calls that are there: strangers must not fill the queue where ranks wait. */
void line_answer(struct group *g, int ear, struct callers *c, const struct address *a)
{
	for (;;) {
		int fd = accept4(ear, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 && (errno == ECONNABORTED || errno == EINTR))
			continue;
		if (fd < 0)
			break;
		if (!is_ours(fd)) {
			close(fd);
			continue;
		}
		if (c->n == CALLERS)
			listen_to(g, c, a);
		if (c->n == CALLERS)
			hang_up(c, 0);
		c->fd[c->n++] = fd;
	}
	listen_to(g, c, a);
}

union control {
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int))];
};

tess_status line_give(const struct group *g, int32_t r, int fd)
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
	if (sendmsg(g->line[r], &m, MSG_NOSIGNAL) != 1)
		return g->host->fail(TESS_EPEER, "rank %d did not take the shared memory: %s",
		                     (int)g->world[r], strerror(errno));
	return TESS_OK;
}

/* What rank 0 has given, `bytes` long: it is there already. */
tess_status line_take(const struct group *g, size_t bytes, int *out)
{
	char byte;
	union control c = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = {
		.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
	};
	struct stat what;
	int fd;

	if (recvmsg(g->line[0], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1 ||
	    c.head.cmsg_type != SCM_RIGHTS || c.head.cmsg_len != CMSG_LEN(sizeof fd))
		return g->host->fail(TESS_EPEER, "rank %d has not handed its shared memory over",
		                     (int)g->world[0]);
	memcpy(&fd, CMSG_DATA(&c.head), sizeof fd);
	if (fstat(fd, &what) || (uint64_t)what.st_size != bytes) {
		close(fd);
		return g->host->fail(
			TESS_EABI,
			"rank %d handed over %lld bytes of shared memory, not %zu: it runs another "
			"release",
			(int)g->world[0], (long long)what.st_size, bytes);
	}
	*out = fd;
	return TESS_OK;
}

void line_hang_up(struct callers *c)
{
	while (c->n)
		hang_up(c, c->n - 1);
}
