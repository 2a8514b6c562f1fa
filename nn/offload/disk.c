#include "nn/offload/disk.h"

#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tess_disk {
	int fd;
	int32_t rank;
	char *dir;
};

tess_status tess_disk_open(const char *dir, int32_t rank, uint64_t bytes, struct tess_disk **out)
{
	struct tess_disk *d = calloc(1, sizeof *d);
	char path[4096];
	int error;

	if (!d || !(d->dir = strdup(dir))) {
		free(d);
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	snprintf(path, sizeof path, "%s/.tessera-XXXXXX", dir);
	d->rank = rank;
	d->fd = mkstemp(path);
	if (d->fd < 0) {
		tess_disk_close(d);
		return tess_fail(TESS_EIO, "%s: cannot make a file there: %s", dir,
		                 strerror(errno));
	}
	unlink(path);
	error = posix_fallocate(d->fd, 0, (off_t)bytes);
	if (error) {
		tess_disk_close(d);
		return tess_fail(TESS_ENOMEM, "%s: no room for %llu bytes: %s", dir,
		                 (unsigned long long)bytes, strerror(error));
	}
	*out = d;
	return TESS_OK;
}

void tess_disk_close(struct tess_disk *d)
{
	if (!d)
		return;
	if (d->fd >= 0)
		close(d->fd);
	free(d->dir);
	free(d);
}

tess_status tess_disk_start(struct tess_disk *d, struct tess_disk_request *r)
{
	while (r->next < r->bytes && !r->status) {
		char *data = (char *)r->data + r->next;
		size_t left = r->bytes - r->next;
		off_t at = (off_t)(r->offset + r->next);
		ssize_t n =
			r->writes ? pwrite(d->fd, data, left, at) : pread(d->fd, data, left, at);

		if (n > 0)
			r->next += (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			r->status = TESS_EIO;
	}
	return TESS_OK;
}

void tess_disk_test(struct tess_disk *d)
{
	(void)d;
}

bool tess_disk_is_done(const struct tess_disk *d, const struct tess_disk_request *r)
{
	(void)d;
	return r->status || r->next == r->bytes;
}

tess_status tess_disk_wait(struct tess_disk *d, struct tess_disk_request *r)
{
	return r->status ? tess_fail(r->status, "%s: %s of %s: %s failed at offset %llu", d->dir,
	                             r->what, r->where, r->writes ? "a write" : "a read",
	                             (unsigned long long)(r->offset + r->next))
	                 : TESS_OK;
}
