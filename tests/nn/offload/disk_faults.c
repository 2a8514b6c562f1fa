#include "disk_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

ssize_t __real_pread64(int fd, void *data, size_t n, off_t at);
ssize_t __real_pwrite64(int fd, const void *data, size_t n, off_t at);
int __real_open64(const char *path, int flags, ...);
int __real_fcntl64(int fd, int command, ...);
int __real_posix_fallocate64(int fd, off_t at, off_t n);

ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t n, off_t at);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_posix_fallocate64(int fd, off_t at, off_t n);

static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;
static struct disk_faults faults;
static struct disk_calls calls;

void disk_faults_set(const struct disk_faults *next)
{
	pthread_mutex_lock(&faults_lock);
	faults = *next;
	calls = (struct disk_calls){ 0 };
	pthread_mutex_unlock(&faults_lock);
}

void disk_calls_watch(const void *begin, const void *end)
{
	pthread_mutex_lock(&faults_lock);
	calls = (struct disk_calls){ .begin = begin, .end = end };
	pthread_mutex_unlock(&faults_lock);
}

struct disk_calls disk_calls_get(void)
{
	struct disk_calls copy;

	pthread_mutex_lock(&faults_lock);
	copy = calls;
	pthread_mutex_unlock(&faults_lock);
	return copy;
}

/* Begins a call; returns whether it fails, and otherwise waits for its delay. */
static bool begin_call(const char *data, size_t n, struct disk_faults *out)
{
	int64_t call;
	bool fails;

	pthread_mutex_lock(&faults_lock);
	call = calls.n++;
	if (++calls.under_way > calls.max_under_way)
		calls.max_under_way = calls.under_way;
	if (n > calls.max_bytes)
		calls.max_bytes = n;
	if (calls.begin && (data < calls.begin || data + n > calls.end))
		calls.outside++;
	*out = faults;
	fails = faults.at == EVERY_CALL || (call >= faults.at && call < faults.at + faults.calls);
	pthread_mutex_unlock(&faults_lock);
	if (fails)
		return true;
	if (out->delay_ms)
		poll(NULL, 0, out->delay_ms);
	out->error = out->late_error;
	return out->error;
}

static ssize_t end_call(ssize_t n, int error)
{
	pthread_mutex_lock(&faults_lock);
	calls.under_way--;
	pthread_mutex_unlock(&faults_lock);
	errno = error;
	return n;
}

/* A call that is to move fewer bytes fills what it does not move of `data`, if it is not NULL. */
static size_t shorten_call(const struct disk_faults *f, char *data, size_t n)
{
	size_t moves = f->moves < n ? f->moves : n;

	if (data)
		memset(data + moves, 0xee, n - moves);
	return moves;
}

ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t at)
{
	struct disk_faults f;
	bool fails = begin_call(data, n, &f);
	ssize_t moved;

	if (fails && f.error)
		return end_call(-1, f.error);
	moved = __real_pread64(fd, data, n, at);
	if (fails && moved >= 0)
		moved = (ssize_t)shorten_call(&f, data, (size_t)moved);
	return end_call(moved, errno);
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t n, off_t at)
{
	static const char wrong[4096] __attribute__((aligned(4096))) = "never read";
	struct disk_faults f;
	bool fails = begin_call(data, n, &f);
	size_t moves = fails ? shorten_call(&f, NULL, n) : n;
	ssize_t moved;

	if (fails && f.error)
		return end_call(-1, f.error);
	moved = __real_pwrite64(fd, data, n, at);
	if (moves == n || moved != (ssize_t)n)
		return end_call(moved, errno);
	/* the caller must write the rest again: it is wrong now */
	for (size_t i = (moves + 4095) / 4096 * 4096; i + 4096 <= n; i += 4096)
		if (__real_pwrite64(fd, wrong, 4096, at + (off_t)i) < 0)
			return end_call(-1, errno);
	return end_call((ssize_t)moves, 0);
}

int __wrap_open64(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list args;

	va_start(args, flags);
	if (flags & (O_CREAT | O_TMPFILE))
		mode = va_arg(args, mode_t);
	va_end(args);
	if (faults.no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return __real_open64(path, flags, mode);
}

int __wrap_fcntl64(int fd, int command, ...)
{
	va_list args;
	void *arg;

	va_start(args, command);
	arg = va_arg(args, void *); /* as glibc does: a number, a pointer or nothing */
	va_end(args);
	if (faults.no_direct && command == F_SETFL && ((intptr_t)arg & O_DIRECT)) {
		errno = EINVAL;
		return -1;
	}
	return __real_fcntl64(fd, command, arg);
}

int __wrap_posix_fallocate64(int fd, off_t at, off_t n)
{
	return faults.fallocate_error ? faults.fallocate_error
	                              : __real_posix_fallocate64(fd, at, n);
}
