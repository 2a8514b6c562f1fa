/*
 * disk.h - a file of one rank on a local disk, read and written asynchronously.
 *
 * The file has no name: its space is free again as soon as the process ends, however it ends.
 * Requests are cut into blocks, of which a fixed number is under way, by io_uring or, where that is
 * not available, by threads. Blocks bypass the page cache (O_DIRECT) where the file system can.
 *
 * Fast requests have data, offset and bytes that are multiples of TESS_DISK_ALIGN: nothing is
 * copied. Data that is aligned worse than the disk requires (often 4 or 512 bytes) is copied
 * through buffers. The ends of a range that are less than a block of the disk are read, and for
 * writes changed and written back, one small block each.
 *
 * Calls of one queue may come from several threads, but not at the same time. A file may have
 * several queues, one for each thread.
 */
#ifndef TESS_NN_DISK_H
#define TESS_NN_DISK_H

#include <stdbool.h>
#include <tessera/plugin.h>

enum { TESS_DISK_ALIGN = 4096 }; /* alignment of fast requests: address, offset and bytes */
enum { TESS_DISK_BLOCK = 4 << 20 }; /* bytes of a block */
/*
 * Maximum number of blocks under way. 8 keep a disk busy; the others are for the time of an op,
 * during which no block is started.
 */
enum { TESS_DISK_DEPTH = 32 };

struct tess_disk;

/*
 * Allocates memory for fast requests; release it with free(). 2 MiB and more are in huge pages: a
 * transfer of small pages that are not adjacent in physical memory is cut into many requests of the
 * disk. NULL: out of memory.
 */
void *tess_disk_alloc(uint64_t bytes);

/*
 * Makes a file of `bytes` (not 0) in folder `dir`, with all of its space reserved; all bytes are 0.
 * rank: for messages. TESS_EIO: no file can be made there. TESS_ENOMEM: the file system has not
 * enough space; the message has the bytes that are needed and free. TESS_ENOTSUP: the system
 * refuses the engine that the option disk_io names. TESS_EINVAL: this build has no such engine.
 * *out is yours: tess_disk_close. Warns on rank 0 if the file system has no direct I/O.
 */
tess_status tess_disk_open(const char *dir, int32_t rank, uint64_t bytes, struct tess_disk **out);
/*
 * Opens another queue of the file of `d`, with blocks under way of its own. Requests of the two
 * that are under way at the same time must be in different blocks of TESS_DISK_ALIGN bytes, unless
 * all of them read. Closing `d` does not close it. Failures as above; *out is yours:
 * tess_disk_close.
 */
tess_status tess_disk_open_queue(const struct tess_disk *d, struct tess_disk **out);
/*
 * Drops queued requests, waits for blocks that are under way, and frees the file's space if this is
 * its last queue. Memory of requests that were not waited for must be valid until then. NULL: does
 * nothing.
 */
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
	int32_t error; /* its errno; 0: the file is too short */
	uint64_t failed_offset, failed_bytes;
	struct tess_disk_request *queued; /* the request after it in the queue */
};

/*
 * Starts a request. `r` and its data are borrowed until tess_disk_wait has returned. Requests that
 * are under way at the same time must not overlap, unless all of them read. Does not block for
 * long. TESS_EBUG: the range is not in the file; nothing has been started.
 */
tess_status tess_disk_start(struct tess_disk *d, struct tess_disk_request *r);
/* Starts more blocks and takes completed ones, without blocking. */
void tess_disk_test(struct tess_disk *d);
/* Returns whether tess_disk_wait would not block. */
bool tess_disk_is_done(const struct tess_disk *d, const struct tess_disk_request *r);
/*
 * Waits until all blocks of a request have ended, also after a failure: its memory is not accessed
 * after that. TESS_EIO: the first failure; the message has the folder, the rank, the weight,
 * bucket, offset and bytes, and the system's reason.
 */
tess_status tess_disk_wait(struct tess_disk *d, struct tess_disk_request *r);

#endif
