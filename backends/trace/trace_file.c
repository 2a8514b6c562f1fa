#include "trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
static const char tail[] = "\n]}\n";
enum { TAIL = sizeof tail - 1, WINDOW = 1 << 18, LOOK_NS = 200000 };

static bool write_at(int fd, const char *text, size_t len, off_t at)
{
	while (len) {
		ssize_t n = pwrite(fd, text, len, at);

		if (n < 0 && errno != EINTR)
			return false;
		n = n < 0 ? 0 : n;
		text += n;
		at += n;
		len -= (size_t)n;
	}
	return true;
}

int trace_file_create(const char *path, const char *event)
{
	size_t capacity = strlen(path) + 8, len = sizeof head + sizeof tail + strlen(event);
	char *name, *text;
	struct stat about;
	int fd = -1, err;

	if (!stat(path, &about) && !S_ISREG(about.st_mode)) {
		errno = EINVAL; /* a rename would replace /dev/null */
		return -1;
	}
	name = malloc(capacity);
	text = malloc(len);
	if (name && text) {
		snprintf(name, capacity, "%s.new", path);
		snprintf(text, len, "%s%s%s", head, event, tail);
		fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
		if (fd >= 0 && (!write_at(fd, text, strlen(text), 0) || rename(name, path))) {
			err = errno;
			close(fd);
			unlink(name);
			errno = err;
			fd = -1;
		}
	}
	err = errno;
	free(name);
	free(text);
	errno = err;
	return fd;
}

int trace_file_open(const char *path)
{
	return open(path, O_RDWR | O_CLOEXEC);
}

static bool lock_file(int fd, int64_t patience)
{
	struct timespec t = { .tv_nsec = LOOK_NS };

	for (int64_t waited = 0; flock(fd, LOCK_EX | LOCK_NB); waited += LOOK_NS) {
		if ((errno != EWOULDBLOCK && errno != EINTR) || waited > patience)
			return false;
		nanosleep(&t, NULL);
	}
	return true;
}

/* Returns the end of the events: before the closing bytes, or before an incomplete event. */
static off_t find_end(int fd)
{
	struct stat st;
	char last[TAIL], *window;
	off_t from, at = -1;
	ssize_t n;

	if (fstat(fd, &st) || st.st_size < TAIL)
		return -1;
	if (pread(fd, last, TAIL, st.st_size - TAIL) == TAIL && !memcmp(last, tail, TAIL))
		return st.st_size - TAIL;
	window = malloc(WINDOW);
	from = st.st_size > WINDOW ? st.st_size - WINDOW : 0;
	n = window ? pread(fd, window, WINDOW, from) : 0;
	for (ssize_t i = n - 3; i >= 0 && at < 0; i--)
		if (!memcmp(window + i, ",\n{", 3))
			at = from + i;
	free(window);
	return at;
}

bool trace_file_append(int fd, const char *text, size_t len, int64_t patience)
{
	char *all = malloc(len + TAIL);
	bool done = false;
	off_t at;

	if (all && lock_file(fd, patience)) {
		memcpy(all, text, len);
		memcpy(all + len, tail, TAIL);
		at = find_end(fd);
		if (at >= 0)
			done = write_at(fd, all, len + TAIL, at) &&
			       !ftruncate(fd, at + (off_t)len + TAIL);
		if (at >= 0 && !done && write_at(fd, tail, TAIL, at) && ftruncate(fd, at + TAIL))
			done = false; /* a full disk: the earlier events stay valid */
		flock(fd, LOCK_UN);
	}
	free(all);
	return done;
}

void trace_file_escape(const char *s, char *out, size_t capacity)
{
	size_t n = 0;

	for (; *s && n + 7 < capacity; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			n += (size_t)snprintf(out + n, capacity - n, "\\%c", c);
		else if (c < 0x20 || c >= 0x7f) /* names of modules are ASCII */
			n += (size_t)snprintf(out + n, capacity - n, "\\u%04x", c);
		else
			out[n++] = (char)c;
	}
	out[n] = '\0';
}
