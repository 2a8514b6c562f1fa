#include "nn/offload/disk.h"

#include "core/base/status.h"
#include "nn/offload/disk_engine.h"
#include "nn/offload/disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes of a buffer for copied blocks; maximum number of retries of a block without progress. */
enum { BOUNCE_BYTES = 256 << 10, MAX_DISK_RETRIES = 100 };
enum { HUGE_PAGE = 2 << 20 }; /* bytes */

struct tess_disk {
	struct tess_disk_file file;
	const struct tess_disk_engine *engine;
	void *self; /* of the engine */
	int32_t rank;
	char *dir;
	/* Requests that are not completely cut into blocks, and have not failed. */
	struct tess_disk_request *first, *last;
	int32_t under_way;
	struct tess_disk_block block[TESS_DISK_DEPTH];
};

void *tess_disk_alloc(uint64_t bytes)
{
	bool huge = bytes >= HUGE_PAGE;
	void *memory;

	if (posix_memalign(&memory, huge ? HUGE_PAGE : TESS_DISK_ALIGN, bytes) != 0)
		return NULL;
	if (huge)
		madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void complete_block(struct tess_disk *d, struct tess_disk_block *b);

/* Opens a queue of a file, which becomes its own, also on failure. */
static tess_status open_file_queue(const char *dir, int32_t rank, const struct tess_disk_file *file,
                                   struct tess_disk **out)
{
	struct tess_disk *d = calloc(1, sizeof *d);
	tess_status st;

	if (!d || !(d->dir = strdup(dir))) {
		close(file->fd);
		free(d);
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	d->rank = rank;
	d->file = *file;
	st = tess_disk_engine_open(d->file.fd, &d->engine, &d->self);
	if (st)
		tess_disk_close(d);
	else
		*out = d;
	return st;
}

tess_status tess_disk_open(const char *dir, int32_t rank, uint64_t bytes, struct tess_disk **out)
{
	struct tess_disk_file file;
	tess_status st = tess_disk_file_make(dir, rank, bytes, &file);

	return st ? st : open_file_queue(dir, rank, &file, out);
}

tess_status tess_disk_open_queue(const struct tess_disk *d, struct tess_disk **out)
{
	struct tess_disk_file file = d->file;

	file.fd = fcntl(d->file.fd, F_DUPFD_CLOEXEC, 0);
	if (file.fd < 0)
		return tess_fail(TESS_ENOMEM, "%s: rank %d has no descriptor for its file: %s",
		                 d->dir, d->rank, strerror(errno));
	return open_file_queue(d->dir, d->rank, &file, out);
}

void tess_disk_close(struct tess_disk *d)
{
	if (!d)
		return;
	d->first = d->last = NULL;
	while (d->under_way)
		complete_block(d, d->engine->take(d->self, true));
	if (d->engine)
		d->engine->close(d->self);
	for (int32_t i = 0; i < TESS_DISK_DEPTH; i++)
		free(d->block[i].bounce);
	close(d->file.fd);
	free(d->dir);
	free(d);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void drop_first_request(struct tess_disk *d)
{
	d->first = d->first->queued;
}

/* Records the first failure of a request, and stops cutting it into blocks. */
static void fail_disk_request(struct tess_disk *d, struct tess_disk_request *r, tess_status status,
                              int error, uint64_t offset, uint64_t bytes)
{
	if (r->status)
		return;
	r->status = status;
	r->error = error;
	r->failed_offset = offset;
	r->failed_bytes = bytes;
	if (d->first == r) /* the only one that is being cut */
		drop_first_request(d);
}

static tess_status report_failure(const struct tess_disk *d, const struct tess_disk_request *r)
{
	char bucket[32] = "";

	if (r->bucket >= 0)
		snprintf(bucket, sizeof bucket, " (bucket %lld)", (long long)r->bucket);
	return tess_fail(r->status,
	                 "%s: rank %d cannot %s the %s of %s%s: %llu bytes at offset %llu of its "
	                 "file: %s",
	                 d->dir, d->rank, r->writes ? "write" : "read", r->what, r->where, bucket,
	                 (unsigned long long)r->failed_bytes, (unsigned long long)r->failed_offset,
	                 r->error    ? strerror(r->error)
	                 : r->writes ? "nothing was written"
	                             : "the file ends before");
}

bool tess_disk_is_done(const struct tess_disk *d, const struct tess_disk_request *r)
{
	(void)d;
	return (r->status || r->next == r->bytes) && !r->pending;
}

/* ---- cutting requests into blocks ------------------------------------------------------------ */

static uint64_t round_down(uint64_t n, uint64_t unit)
{
	return n / unit * unit;
}

/* Returns whether part of the block of the disk at `begin` is being changed. */
static bool is_edge_under_way(const struct tess_disk *d, uint64_t begin)
{
	for (int32_t i = 0; i < TESS_DISK_DEPTH; i++) {
		const struct tess_disk_block *b = &d->block[i];

		if (b->request && b->request->writes && b->begin == begin &&
		    b->wanted_bytes < b->end - b->begin)
			return true;
	}
	return false;
}

static bool has_bounce(struct tess_disk_block *b)
{
	void *memory;

	if (!b->bounce && posix_memalign(&memory, TESS_DISK_ALIGN, BOUNCE_BYTES) == 0)
		b->bounce = memory;
	return b->bounce;
}

/*
 * Sets the range of the next block of a request: [begin, end) in the file, of which it wants a
 * part. Edges, less than a block of the disk, are blocks of their own.
 */
static void set_range(const struct tess_disk *d, const struct tess_disk_request *r,
                      struct tess_disk_block *b)
{
	uint64_t align = d->file.align, at = r->offset + r->next, left = r->bytes - r->next;

	b->request = NULL;
	b->wanted = (char *)r->data + r->next;
	b->wanted_offset = at;
	b->begin = round_down(at, align);
	b->bounced = (uintptr_t)b->wanted % d->file.memory_align;
	if (at > b->begin || left < align) {
		b->bounced = true;
		b->end = b->begin + align;
		b->wanted_bytes = b->end - at < left ? b->end - at : left;
		return;
	}
	b->wanted_bytes = b->bounced ? BOUNCE_BYTES : TESS_DISK_BLOCK;
	if (b->wanted_bytes > left)
		b->wanted_bytes = round_down(left, align);
	b->end = b->begin + b->wanted_bytes;
}

/* Prepares the transfer of a block whose range is set. */
static void prepare_block(struct tess_disk_block *b, bool writes)
{
	b->writes = writes;
	b->offset = b->begin;
	b->bytes = b->end - b->begin;
	b->memory = b->bounced ? b->bounce : b->wanted;
	b->retries = 0;
	if (writes && b->bounced)
		memcpy(b->bounce + (b->wanted_offset - b->begin), b->wanted, b->wanted_bytes);
}

/*
 * Cuts a block of the first request and submits it. Returns false if it must wait until another
 * one has ended: two requests that change parts of one block of the disk would lose one of them.
 */
static bool start_block(struct tess_disk *d, struct tess_disk_block *b)
{
	struct tess_disk_request *r = d->first;
	bool edge;

	set_range(d, r, b);
	edge = b->wanted_bytes < b->end - b->begin;
	if (r->writes && edge && is_edge_under_way(d, b->begin))
		return false;
	if (b->bounced && !has_bounce(b)) {
		fail_disk_request(d, r, TESS_ENOMEM, ENOMEM, b->wanted_offset, b->wanted_bytes);
		return true;
	}
	b->request = r;
	r->pending++;
	r->next += b->wanted_bytes;
	if (r->next == r->bytes)
		drop_first_request(d);
	d->under_way++;
	prepare_block(b, r->writes && !edge); /* an edge is read first */
	d->engine->submit(d->self, b);
	return true;
}

static void start_blocks(struct tess_disk *d)
{
	bool more = true;
	int32_t before = d->under_way;

	for (int32_t i = 0; d->first && more && d->under_way < TESS_DISK_DEPTH;
	     i = (i + 1) % TESS_DISK_DEPTH)
		if (!d->block[i].request)
			more = start_block(d, &d->block[i]);
	if (d->under_way > before)
		d->engine->flush(d->self);
}

/* ---- completions ----------------------------------------------------------------------------- */

static void end_block(struct tess_disk *d, struct tess_disk_block *b)
{
	b->request->pending--;
	b->request = NULL;
	d->under_way--;
}

static void submit_again(struct tess_disk *d, struct tess_disk_block *b)
{
	d->engine->submit(d->self, b);
	d->engine->flush(d->self);
}

/* All bytes of the block have been moved. */
static void finish_block(struct tess_disk *d, struct tess_disk_block *b)
{
	if (b->request->writes && !b->writes) { /* an edge has been read: change it */
		prepare_block(b, true);
		submit_again(d, b);
		return;
	}
	if (b->bounced && !b->writes)
		memcpy(b->wanted, b->bounce + (b->wanted_offset - b->begin), b->wanted_bytes);
	end_block(d, b);
}

/*
 * Interprets the result of a block, which has ended: starts what is left of it again, ends it, or
 * records the failure of its request. All results pass through here.
 */
static void complete_block(struct tess_disk *d, struct tess_disk_block *b)
{
	struct tess_disk_request *r = b->request;
	uint64_t moved = b->result > 0 ? (uint64_t)b->result : 0;
	bool stuck;

	if (moved < b->bytes) /* what is left must be aligned, too */
		moved = round_down(moved, d->file.align);
	b->memory += moved;
	b->offset += moved;
	b->bytes -= moved;
	b->retries = moved ? 0 : b->retries + 1;
	stuck = b->result == 0 || b->retries > MAX_DISK_RETRIES ||
	        (b->result < 0 && b->result != -EINTR && b->result != -EAGAIN);
	if (stuck)
		fail_disk_request(d, r, TESS_EIO, b->result < 0 ? (int)-b->result : 0, b->offset,
		                  b->bytes);
	if (r->status)
		end_block(d, b);
	else if (b->bytes)
		submit_again(d, b);
	else
		finish_block(d, b);
}

static void take_blocks(struct tess_disk *d)
{
	struct tess_disk_block *b;

	while (d->under_way && (b = d->engine->take(d->self, false)))
		complete_block(d, b);
}

tess_status tess_disk_start(struct tess_disk *d, struct tess_disk_request *r)
{
	if (r->bytes > d->file.bytes || r->offset > d->file.bytes - r->bytes)
		return tess_fail(TESS_EBUG,
		                 "%s: the %s of %s: %llu bytes at offset %llu are not "
		                 "in the file of rank %d, which has %llu",
		                 d->dir, r->what, r->where, (unsigned long long)r->bytes,
		                 (unsigned long long)r->offset, d->rank,
		                 (unsigned long long)d->file.bytes);
	r->next = r->pending = 0;
	r->status = TESS_OK;
	r->queued = NULL;
	if (r->bytes) {
		*(d->first ? &d->last->queued : &d->first) = r;
		d->last = r;
	}
	tess_disk_test(d);
	return TESS_OK;
}

void tess_disk_test(struct tess_disk *d)
{
	take_blocks(d);
	start_blocks(d);
}

tess_status tess_disk_wait(struct tess_disk *d, struct tess_disk_request *r)
{
	tess_disk_test(d);
	while (!tess_disk_is_done(d, r)) {
		complete_block(d, d->engine->take(d->self, true));
		tess_disk_test(d);
	}
	return r->status ? report_failure(d, r) : TESS_OK;
}
