/*
 * disk_engine.h - engines that read and write the blocks of a file: io_uring, and threads. disk.c
 * cuts requests into blocks, and interprets all results.
 */
#ifndef TESS_NN_DISK_ENGINE_H
#define TESS_NN_DISK_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <tessera/plugin.h>

struct tess_disk_request;

struct tess_disk_block {
	/* for engines */
	bool writes;
	char *memory;
	uint64_t offset, bytes; /* the range in the file that is not moved yet; bytes > 0 */
	int64_t result; /* set by the engine: bytes moved, or -errno */
	struct tess_disk_block *next; /* in a list of the engine */
	/* for disk.c */
	struct tess_disk_request *request; /* NULL: the block is not in use */
	uint64_t begin, end; /* the block in the file */
	char *bounce; /* aligned memory, allocated at its first use */
	bool bounced; /* the block uses it */
	char *wanted; /* the part that the request wants: its memory, */
	uint64_t wanted_offset, wanted_bytes; /* and the range in the file */
	int32_t retries; /* since it last moved a byte */
};

enum { TESS_DISK_THREADS = 8 }; /* at most, of an engine without io_uring */

struct tess_disk_engine {
	const char *name; /* a value of the option disk_io */
	/* Returns 0 or an errno. fd is borrowed. At most TESS_DISK_DEPTH blocks are submitted. */
	int (*open)(int fd, void **out);
	/* Accepts a block, which is started at the latest by the next flush. */
	void (*submit)(void *self, struct tess_disk_block *b);
	void (*flush)(void *self);
	/* Returns a block that has ended, or NULL. waits: blocks; some are under way. */
	struct tess_disk_block *(*take)(void *self, bool waits);
	void (*close)(void *self); /* no block is under way */
};

extern const struct tess_disk_engine tess_disk_threads;
extern const struct tess_disk_engine tess_disk_uring; /* if TESS_HAVE_URING is defined */

extern const struct tess_option tess_disk_options[];

/*
 * Opens the engine that the option disk_io names. auto: io_uring, or threads if the kernel refuses
 * it.
 */
tess_status tess_disk_engine_open(int fd, const struct tess_disk_engine **out, void **self);

#endif
