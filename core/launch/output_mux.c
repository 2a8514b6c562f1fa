#include "core/launch/output_mux.h"

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
 * Opens pipes and terminals again: O_NONBLOCK on the given descriptor would apply to all processes
 * that share it. If that fails, a write of PIPE_BUF bytes after poll() does not block either.
 */
void tess_sink_open(struct tess_sink *s, int fd)
{
	struct stat about = { 0 };
	char path[32];
	int copy = -1;

	fstat(fd, &about);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (S_ISFIFO(about.st_mode) || isatty(fd))
		copy = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	s->fd = copy < 0 ? fd : copy;
	s->owned = copy >= 0;
	s->socket = S_ISSOCK(about.st_mode);
	s->error = 0;
	s->begin = s->end = 0;
}

/* Returns the bytes of as many full lines as a pipe takes atomically, so that lines never mix. */
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
	if (s->owned)
		close(s->fd);
	s->owned = false;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void write_log(struct tess_output_mux *mux, const char *text, size_t len)
{
	while (len && mux->log >= 0 && !mux->error) {
		ssize_t n = write(mux->log, text, len);

		if (n < 0 && errno != EINTR)
			mux->error = errno;
		text += n < 0 ? 0 : n;
		len -= n < 0 ? 0 : (size_t)n;
	}
}

/* Puts a line into the sink; false: no space now. */
static bool put_line(struct tess_output_mux *mux, const char *text, size_t len)
{
	struct tess_sink *s = mux->to;
	size_t prefix = strlen(mux->prefix), pending = s->end - s->begin;
	char *at;

	if (prefix + len + 1 > sizeof s->text - pending)
		return false;
	memmove(s->text, s->text + s->begin, pending);
	s->begin = 0;
	s->end = pending + prefix + len + 1;
	at = s->text + pending;
	memcpy(at, mux->prefix, prefix);
	memcpy(at + prefix, text, len);
	at[prefix + len] = '\n';
	write_log(mux, at + prefix, len + 1);
	return true;
}

static void move_lines(struct tess_output_mux *mux)
{
	char *at = mux->text, *end;

	mux->full = false;
	while (mux->len) {
		size_t n;

		end = memchr(at, '\n', mux->len);
		if (!end && mux->from >= 0 && mux->len < sizeof mux->text)
			break;
		n = end ? (size_t)(end - at) : mux->len;
		mux->full = !put_line(mux, at, n);
		if (mux->full)
			break;
		n += end != NULL;
		at += n;
		mux->len -= n;
	}
	memmove(mux->text, at, mux->len);
}

static void end_input(struct tess_output_mux *mux)
{
	if (mux->from >= 0)
		close(mux->from);
	mux->from = -1;
}

void tess_output_mux_forward(struct tess_output_mux *mux)
{
	size_t space = sizeof mux->text - mux->len;
	ssize_t n;

	if (space > mux->left)
		space = mux->left;
	if (mux->from >= 0 && space) {
		n = read(mux->from, mux->text + mux->len, space);
		if (n > 0)
			mux->len += (size_t)n;
		if (n > 0 && mux->left != SIZE_MAX)
			mux->left -= (size_t)n;
		if (!n || (n < 0 && errno != EINTR && errno != EAGAIN) || !mux->left)
			end_input(mux);
	}
	move_lines(mux);
}

bool tess_output_mux_can_read(const struct tess_output_mux *mux)
{
	return mux->from >= 0 && mux->len < sizeof mux->text;
}

bool tess_output_mux_ended(const struct tess_output_mux *mux)
{
	return mux->from < 0 && !mux->len;
}

void tess_output_mux_finish(struct tess_output_mux *mux)
{
	int bytes = 0;

	if (mux->from < 0)
		return;
	ioctl(mux->from, FIONREAD, &bytes);
	mux->left = (size_t)bytes;
	if (!bytes)
		end_input(mux);
	move_lines(mux);
}

void tess_output_mux_close(struct tess_output_mux *mux)
{
	end_input(mux);
	mux->len = 0;
}
