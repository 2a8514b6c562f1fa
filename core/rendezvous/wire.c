#include "core/rendezvous/wire.h"

#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static bool reserve_bytes(struct tess_pipe *p, size_t bytes)
{
	size_t capacity = p->capacity ? p->capacity : 4096;
	char *at;

	if (p->begin) {
		memmove(p->at, p->at + p->begin, p->end - p->begin);
		p->end -= p->begin;
		p->begin = 0;
	}
	while (capacity < p->end + bytes)
		capacity *= 2;
	if (capacity == p->capacity)
		return true;
	at = realloc(p->at, capacity);
	if (!at)
		return false;
	p->at = at;
	p->capacity = capacity;
	return true;
}

bool tess_pipe_put(struct tess_pipe *p, uint32_t kind, int32_t a, int32_t b, const void *one,
                   size_t len_one, const void *two, size_t len_two)
{
	size_t bytes = (sizeof(struct tess_frame) + len_one + len_two + 7) / 8 * 8;
	struct tess_frame head = { .bytes = (uint32_t)bytes, .kind = kind, .a = a, .b = b };
	char *at;

	if (p->capacity - p->end < bytes && !reserve_bytes(p, bytes))
		return false;
	at = p->at + p->end;
	memset(at + bytes - 8, 0, 8);
	memcpy(at, &head, sizeof head);
	if (len_one)
		memcpy(at + sizeof head, one, len_one);
	if (len_two)
		memcpy(at + sizeof head + len_one, two, len_two);
	p->end += bytes;
	return true;
}

const struct tess_frame *tess_pipe_next(struct tess_pipe *p, bool *bad)
{
	const struct tess_frame *f = (const void *)(p->at + p->begin);
	size_t have = p->end - p->begin;

	*bad = false;
	if (have < sizeof *f)
		return NULL;
	if (f->bytes < sizeof *f || f->bytes % 8 || f->bytes > TESS_FRAME_MAX) {
		*bad = true;
		return NULL;
	}
	if (have < f->bytes)
		return NULL;
	p->begin += f->bytes;
	return f;
}

bool tess_pipe_flush(struct tess_pipe *p, int fd)
{
	while (p->begin < p->end) {
		ssize_t n =
			send(fd, p->at + p->begin, p->end - p->begin, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n >= 0)
			p->begin += (size_t)n;
		else if (errno != EINTR)
			return errno == EAGAIN || errno == EWOULDBLOCK;
	}
	p->begin = p->end = 0;
	return true;
}

bool tess_pipe_fill(struct tess_pipe *p, int fd)
{
	for (;;) {
		ssize_t n;

		if (!reserve_bytes(p, 4096))
			return false;
		n = recv(fd, p->at + p->end, p->capacity - p->end, MSG_DONTWAIT);
		if (n > 0)
			p->end += (size_t)n;
		else if (!n)
			return false;
		else if (errno != EINTR)
			return errno == EAGAIN || errno == EWOULDBLOCK;
		if (n > 0 && p->end < p->capacity)
			return true;
	}
}

void tess_pipe_free(struct tess_pipe *p)
{
	free(p->at);
	*p = (struct tess_pipe){ 0 };
}

/* ---- sockets --------------------------------------------------------------------------------- */

const char *tess_socket_find_base(bool *missing)
{
	const char *base = secure_getenv("XDG_RUNTIME_DIR");
	struct stat st;

	*missing = base && *base == '/' && (stat(base, &st) || !S_ISDIR(st.st_mode));
	return base && *base == '/' && !*missing ? base : "/tmp";
}

tess_status tess_socket_path(const char *job, char *path, size_t size)
{
	bool missing;
	const char *base = tess_socket_find_base(&missing);
	struct stat st;
	int dir, all;

	if (!*job || *job == '.' ||
	    job[strspn(job, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")])
		return tess_fail(
			TESS_EINVAL,
			"the job's name \"%s\" may have letters, digits and . _ - only, and not "
			"start with a dot; set TESSERA_JOB",
			job);
	dir = snprintf(path, size, "%s/tessera-%u", base, (unsigned)geteuid());
	if (dir > 0 && (size_t)dir < size) {
		if (mkdir(path, 0700) && errno != EEXIST)
			return tess_fail(TESS_EIO,
			                 "%s, where ranks meet, cannot be created: %s; set "
			                 "XDG_RUNTIME_DIR to a directory of yours",
			                 path, strerror(errno));
		if (lstat(path, &st))
			return tess_fail(TESS_EIO, "%s cannot be read: %s", path, strerror(errno));
		if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077)
			return tess_fail(
				TESS_EPERM,
				"%s must be a directory of yours with mode 0700; remove it, or set "
				"XDG_RUNTIME_DIR",
				path);
	}
	all = snprintf(path, size, "%s/tessera-%u/%s", base, (unsigned)geteuid(), job);
	if (all < 0 || (size_t)all >= size ||
	    (size_t)all >= sizeof((struct sockaddr_un *)0)->sun_path)
		return tess_fail(
			TESS_EINVAL,
			"the path of the socket %s/tessera-%u/%s is too long; set a shorter "
			"TESSERA_JOB or XDG_RUNTIME_DIR",
			base, (unsigned)geteuid(), job);
	return TESS_OK;
}

static int make_unix_socket(const char *path, struct sockaddr_un *to)
{
	*to = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof to->sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(to->sun_path, path, strlen(path) + 1);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Closes fd and keeps errno. */
static int close_keeping_errno(int fd)
{
	int err = errno;

	close(fd);
	errno = err;
	return -1;
}

int tess_socket_listen(const char *path, int backlog)
{
	struct sockaddr_un to;
	int fd = make_unix_socket(path, &to);

	if (fd >= 0 && (bind(fd, (void *)&to, sizeof to) || listen(fd, backlog)))
		return close_keeping_errno(fd);
	return fd;
}

int tess_socket_connect(const char *path)
{
	struct sockaddr_un to;
	int fd = make_unix_socket(path, &to);

	if (fd >= 0 && connect(fd, (void *)&to, sizeof to))
		return close_keeping_errno(fd);
	return fd;
}

bool tess_socket_remove_dead(const char *path)
{
	char lock[136];
	struct stat here, there;
	bool dead;
	int fd;

	snprintf(lock, sizeof lock, "%s.lock", path);
	fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT;
	dead = !flock(fd, LOCK_EX | LOCK_NB);
	if (dead && !fstat(fd, &here) && !stat(lock, &there) && here.st_ino == there.st_ino) {
		unlink(path);
		unlink(lock);
	}
	close(fd);
	return dead;
}

DIR *tess_socket_open_directory(char *dir, size_t size)
{
	if (tess_socket_path("any", dir, size))
		return NULL;
	*strrchr(dir, '/') = '\0';
	return opendir(dir);
}

void tess_socket_sweep(const char *prefix)
{
	static const char tail[] = ".lock"; /* suffix of the lock of every running job's socket */
	char dir[128], path[400];
	DIR *d = tess_socket_open_directory(dir, sizeof dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		size_t len = strlen(e->d_name), job = len - (sizeof tail - 1);

		if (len < sizeof tail || strcmp(e->d_name + job, tail) ||
		    strncmp(e->d_name, prefix, strlen(prefix)))
			continue;
		snprintf(path, sizeof path, "%s/%.*s", dir, (int)job, e->d_name);
		tess_socket_remove_dead(path);
	}
	if (d)
		closedir(d);
}

pid_t tess_socket_peer(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof peer;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) || peer.uid != geteuid())
		return -1;
	return peer.pid;
}
