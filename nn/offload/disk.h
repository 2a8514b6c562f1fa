/*
 * disk.h - a file of one rank on a local disk, read and written asynchronously.
 *
 * The file has no name: its space is free again as soon as the process ends, however it ends.
 * Requests are cut into blocks, of which a fixed number is under way, by io_uring or, where that is
 * not available, by threads. Blocks bypass the page cache (O_DIRECT) where the file system can.
 */
#ifndef TESS_NN_DISK_H
#define TESS_NN_DISK_H

#include <stdbool.h>
#include <tessera/plugin.h>

enum { TESS_DISK_ALIGN = 4096 }; /* of parts of a file that are written, and of fast memory */
enum { TESS_DISK_BLOCK = 1 << 20, TESS_DISK_DEPTH = 8 }; /* bytes of a block; blocks under way */

struct tess_disk;

/*
 * Makes a file of `bytes` in folder `dir`, with all of its space reserved; its elements are
 * undefined. rank: for messages. TESS_ENOMEM: the file system has not enough space, with numbers.
 * *out is yours: tess_disk_close. Warns once if the file system has no direct I/O.
 */
tess_status tess_disk_open(const char *dir, int32_t rank, uint64_t bytes, struct tess_disk **out);
/* Waits for what is under way, and frees the file's space. NULL: does nothing. */
void tess_disk_close(struct tess_disk *d);

struct tess_disk_request {
	const char *where; /* for messages: the weight; borrowed */
	const char *what; /* "weight", "gradient", "state"; borrowed */
	int64_t bucket; /* number for messages; -1: none */
	bool writes;
	void *data; /* any address; fast if it is a multiple of TESS_DISK_ALIGN */
	uint64_t offset, bytes; /* any; fast if both are multiples of TESS_DISK_ALIGN */
	/* private: */
	uint64_t next, pending; /* bytes cut into blocks; blocks under way */
	tess_status status; /* the first failure */
	struct tess_disk_request *queued; /* the request after it in the queue */
	char message[256]; /* of the failure */
};

/*
 * Starts a request. `r` and its data are borrowed until tess_disk_wait has returned. Requests that
 * are under way at the same time must not overlap, unless all of them read. Does not block for
 * long.
 */
tess_status tess_disk_start(struct tess_disk *d, struct tess_disk_request *r);
/* Starts more blocks and takes completed ones, without blocking. */
void tess_disk_test(struct tess_disk *d);
/* Returns whether tess_disk_wait would not block. */
bool tess_disk_is_done(const struct tess_disk *d, const struct tess_disk_request *r);
/*
 * Waits until a request has ended. TESS_EIO: the disk failed; the message has the folder, the rank,
 * the weight, bucket, offset and bytes, and the system's reason.
 */
tess_status tess_disk_wait(struct tess_disk *d, struct tess_disk_request *r);

#endif
