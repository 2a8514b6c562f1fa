#include "output_mux.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- sinks ----------------------------------------------------------------------------------- */

/*
 * Pipes and terminals are opened once more: O_NONBLOCK on the descriptor that we were given would be set for
 * all processes that share it. Where that is refused, poll() says what a page of a pipe is free for.
 */
void tess_sink_open(struct tess_sink *s, int fd)
{
	struct stat about = { 0 };
	char path[32];
	int own = -1;

	fstat(fd, &about);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (S_ISFIFO(about.st_mode) || isatty(fd))
		own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	s->fd = own < 0 ? fd : own;
	s->own = own >= 0;
	s->socket = S_ISSOCK(about.st_mode);
	s->error = 0;
	s->begin = s->end = 0;
}

/* As many whole lines as a pipe takes in one piece, so that lines of other writers stay whole beside them. */
static size_t measure_chunk(const struct tess_sink *s)
{
	size_t n = s->end - s->begin;
	const char *at = s->text + s->begin, *last;

	if (n <= PIPE_BUF)
		return n;
	last = memrchr(at, '\n', PIPE_BUF);
	return last ? (size_t)(last + 1 - at) : PIPE_BUF;
}

void tess_sink_flush(struct tess_sink *s)
{
	while (s->begin < s->end && !s->error) {
		struct pollfd p = { .fd = s->fd, .events = POLLOUT };
		const char *at = s->text + s->begin;
		size_t n = measure_chunk(s);
		ssize_t done;

		if (poll(&p, 1, 0) <= 0)
			return;
		done = s->socket ? send(s->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL)
		                 : write(s->fd, at, n);
		if (done >= 0)
			s->begin += (size_t)done;
		else if (errno == EAGAIN)
			return;
		else if (errno != EINTR)
			s->error = errno;
	}
	s->begin = s->end = 0;
}

bool tess_sink_waits(const struct tess_sink *s)
{
	return s->begin < s->end;
}

void tess_sink_close(struct tess_sink *s)
{
	if (s->own)
		close(s->fd);
	s->own = false;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void write_log(struct tess_output_mux *l, const char *text, size_t len)
{
	while (len && l->log >= 0 && !l->error) {
		ssize_t n = write(l->log, text, len);

		if (n < 0 && errno != EINTR)
			l->error = errno;
		text += n < 0 ? 0 : n;
		len -= n < 0 ? 0 : (size_t)n;
	}
}

/* False: it has no room now. */
static bool put_line(struct tess_output_mux *l, const char *text, size_t len)
{
	struct tess_sink *s = l->to;
	size_t prefix = strlen(l->prefix), waits = s->end - s->begin;
	char *at;

	if (prefix + len + 1 > sizeof s->text - waits)
		return false;
	memmove(s->text, s->text + s->begin, waits);
	s->begin = 0;
	s->end = waits + prefix + len + 1;
	at = s->text + waits;
	memcpy(at, l->prefix, prefix);
	memcpy(at + prefix, text, len);
	at[prefix + len] = '\n';
	write_log(l, at + prefix, len + 1);
	return true;
}

static void move_lines(struct tess_output_mux *l)
{
	char *at = l->text, *end;

	l->full = false;
	while (l->len) {
		size_t n;

		end = memchr(at, '\n', l->len);
		if (!end && l->from >= 0 && l->len < sizeof l->text)
			break;
		n = end ? (size_t)(end - at) : l->len;
		l->full = !put_line(l, at, n);
		if (l->full)
			break;
		n += end != NULL;
		at += n;
		l->len -= n;
	}
	memmove(l->text, at, l->len);
}

static void end_input(struct tess_output_mux *l)
{
	if (l->from >= 0)
		close(l->from);
	l->from = -1;
}

void tess_output_mux_forward(struct tess_output_mux *l)
{
	size_t room = sizeof l->text - l->len;
	ssize_t n;

	if (room > l->left)
		room = l->left;
	if (l->from >= 0 && room) {
		n = read(l->from, l->text + l->len, room);
		if (n > 0)
			l->len += (size_t)n;
		if (n > 0 && l->left != SIZE_MAX)
			l->left -= (size_t)n;
		if (!n || (n < 0 && errno != EINTR && errno != EAGAIN) || !l->left)
			end_input(l);
	}
	move_lines(l);
}

bool tess_lines_hungry(const struct tess_output_mux *l)
{
	return l->from >= 0 && l->len < sizeof l->text;
}

bool tess_lines_over(const struct tess_output_mux *l)
{
	return l->from < 0 && !l->len;
}

void tess_lines_last(struct tess_output_mux *l)
{
	int bytes = 0;

	if (l->from < 0)
		return;
	ioctl(l->from, FIONREAD, &bytes);
	l->left = (size_t)bytes;
	if (!bytes)
		end_input(l);
	move_lines(l);
}

void tess_lines_close(struct tess_output_mux *l)
{
	end_input(l);
	l->len = 0;
}
