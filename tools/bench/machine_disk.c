/* machine_disk.c - measures a disk as training uses it (nn/offload/disk.h), past the page cache. */
#include "machine.h"

#include "core/base/status.h"
#include "nn/offload/disk.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <tessera/util/clock.h>

/* Bytes of a request, requests under way, and requests of a file. */
enum { DISK_REQUEST = 8 << 20, DISK_REQUESTS = 4, DISK_FILE = 64, DISK_QUICK = 4 };

/* Moves n requests through `memory`, in the order of the file. Sets *rate: bytes a second. */
static tess_status time_requests(struct tess_disk *d, char *memory, int32_t n, bool writes,
                                 double *rate)
{
	struct tess_disk_request ring[DISK_REQUESTS];
	int64_t began = tess_now();
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n + DISK_REQUESTS && !st; i++) {
		struct tess_disk_request *r = &ring[i % DISK_REQUESTS];

		if (i >= DISK_REQUESTS)
			st = tess_disk_wait(d, r);
		if (i >= n || st)
			continue;
		*r = (struct tess_disk_request){ .where = "bench machine",
			                         .what = "block",
			                         .bucket = -1,
			                         .writes = writes,
			                         .data = memory + i % DISK_REQUESTS * DISK_REQUEST,
			                         .offset = (uint64_t)i * DISK_REQUEST,
			                         .bytes = DISK_REQUEST };
		st = tess_disk_start(d, r);
	}
	*rate = 1e9 * n * DISK_REQUEST / (double)(tess_now() - began);
	return st;
}

tess_status machine_measure_disk(const char *dir, bool quick, struct machine_host *out)
{
	int32_t n = quick ? DISK_QUICK : DISK_FILE;
	char *memory = tess_disk_alloc(DISK_REQUESTS * DISK_REQUEST);
	struct tess_disk *d = NULL;
	struct statvfs space = { 0 };
	tess_status st = memory ? tess_disk_open(dir, 0, (uint64_t)n * DISK_REQUEST, &d)
	                        : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st) {
		memset(memory, 1, DISK_REQUESTS * DISK_REQUEST);
		st = time_requests(d, memory, n, true, &out->disk_write);
	}
	if (!st) /* space that has never been written is slower */
		st = time_requests(d, memory, n, true, &out->disk_write);
	if (!st)
		st = time_requests(d, memory, n, false, &out->disk_read);
	tess_disk_close(d); /* waits for what is under way */
	free(memory);
	if (!st && !statvfs(dir, &space))
		out->disk_size = (double)space.f_bavail * (double)space.f_frsize;
	return st;
}
