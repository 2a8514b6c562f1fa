#include "nn/offload/disk_file.h"

#include "core/base/log.h"
#include "core/base/status.h"
#include "nn/offload/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Returns a descriptor of a new file that has no name, or -1 with errno. */
static int make_nameless_file(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
	char *path;

	/* file systems and kernels without O_TMPFILE */
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
		return fd;
	if (asprintf(&path, "%s/.tessera-XXXXXX", dir) < 0)
		return -1;
	fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		unlink(path);
	free(path);
	return fd;
}

static tess_status reserve_space(const char *dir, int32_t rank, int fd, uint64_t bytes)
{
	struct statvfs about = { 0 };
	int error;

	do
		error = posix_fallocate(fd, 0, (off_t)bytes);
	while (error == EINTR);
	if (!error)
		return TESS_OK;
	if (ftruncate(fd, 0) == 0) /* the part that was reserved is free, too */
		fstatvfs(fd, &about);
	return tess_fail(
		TESS_ENOMEM,
		"%s: rank %d needs a file of %llu bytes there, and %llu bytes are free: %s; free "
		"space, or offload to a larger file system",
		dir, rank, (unsigned long long)bytes,
		(unsigned long long)about.f_bavail * about.f_frsize, strerror(error));
}

/* Sets the alignment that direct I/O requires, by the kernel (since Linux 6.1) or as a guess. */
static void find_direct_alignment(struct tess_disk_file *f)
{
	f->align = f->memory_align = TESS_DISK_ALIGN;
#ifdef STATX_DIOALIGN
	struct statx about;

	if (statx(f->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) == 0 &&
	    (about.stx_mask & STATX_DIOALIGN)) {
		f->align = about.stx_dio_offset_align;
		f->memory_align = about.stx_dio_mem_align;
	}
#endif
}

/* Returns whether the file can bypass the page cache: some file systems accept only the flag. */
static bool try_direct_read(int fd)
{
	void *memory;
	bool works;

	if (posix_memalign(&memory, TESS_DISK_ALIGN, TESS_DISK_ALIGN) != 0)
		return false;
	works = pread(fd, memory, TESS_DISK_ALIGN, 0) >= 0 || errno != EINVAL;
	free(memory);
	return works;
}

static void choose_direct(const char *dir, int32_t rank, struct tess_disk_file *f)
{
	int flags = fcntl(f->fd, F_GETFL);

	find_direct_alignment(f);
	if (f->align && f->align <= TESS_DISK_ALIGN && f->memory_align <= TESS_DISK_ALIGN &&
	    fcntl(f->fd, F_SETFL, flags | O_DIRECT) == 0 && try_direct_read(f->fd))
		return;
	fcntl(f->fd, F_SETFL, flags);
	f->align = f->memory_align = 1;
	if (rank == 0)
		tess_log(TESS_WARN, "offload",
		         "%s: the file system has no direct I/O: transfers are copied through the "
		         "page cache, and take memory and time",
		         dir);
}

tess_status tess_disk_file_make(const char *dir, int32_t rank, uint64_t bytes,
                                struct tess_disk_file *out)
{
	struct tess_disk_file f = { .fd = make_nameless_file(dir) };
	tess_status st;

	if (f.fd < 0)
		return tess_fail(TESS_EIO,
		                 "%s: rank %d cannot make a file there: %s; the folder must exist, "
		                 "and be writable",
		                 dir, rank, strerror(errno));
	f.bytes = (bytes / TESS_DISK_ALIGN + 1) * TESS_DISK_ALIGN;
	st = reserve_space(dir, rank, f.fd, f.bytes);
	if (st) {
		close(f.fd);
		return st;
	}
	choose_direct(dir, rank, &f);
	*out = f;
	return TESS_OK;
}
