#include "nn/offload/disk.h"
#include "nn/offload/disk_engine.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>

struct disk_ring {
	struct io_uring ring;
	int fd;
};

/* Returns 0 or an errno: read and write need Linux 5.6. */
static int probe_ring(struct io_uring *ring)
{
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool has = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
	           io_uring_opcode_supported(probe, IORING_OP_WRITE);

	io_uring_free_probe(probe);
	return has ? 0 : ENOSYS;
}

/*
 * Without COOP_TASKRUN the kernel would interrupt the thread that computes at each completion; with
 * TASKRUN_FLAG a look at the ring shows whether a system call has something to do.
 */
static int init_ring(struct io_uring *ring)
{
	int error = io_uring_queue_init(TESS_DISK_DEPTH, ring,
	                                IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);

	if (error == -EINVAL) /* before Linux 5.19 */
		error = io_uring_queue_init(TESS_DISK_DEPTH, ring, 0);
	return -error;
}

static int open_ring(int fd, void **out)
{
	struct disk_ring *s = calloc(1, sizeof *s);
	int error = s ? init_ring(&s->ring) : ENOMEM;

	if (!error) {
		error = probe_ring(&s->ring);
		if (error)
			io_uring_queue_exit(&s->ring);
	}
	if (error) {
		free(s);
		return error;
	}
	s->fd = fd;
	*out = s;
	return 0;
}

static void submit_to_ring(void *self, struct tess_disk_block *b)
{
	struct disk_ring *s = self;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&s->ring); /* as many as blocks */

	if (b->writes)
		io_uring_prep_write(sqe, s->fd, b->memory, (unsigned)b->bytes, b->offset);
	else
		io_uring_prep_read(sqe, s->fd, b->memory, (unsigned)b->bytes, b->offset);
	io_uring_sqe_set_data(sqe, b);
}

/* What the kernel does not accept now, for lack of memory, remains for the next call. */
static void flush_ring(void *self)
{
	io_uring_submit(&((struct disk_ring *)self)->ring);
}

static struct tess_disk_block *take_from_ring(void *self, bool waits)
{
	struct disk_ring *s = self;
	struct tess_disk_block *b;
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&s->ring, &cqe) != 0) {
		int n = waits ? io_uring_submit_and_wait(&s->ring, 1) : 0;

		if (!waits)
			return NULL;
		if (n < 0 && n != -EINTR)
			poll(NULL, 0, 1);
	}
	b = io_uring_cqe_get_data(cqe);
	b->result = cqe->res;
	io_uring_cqe_seen(&s->ring, cqe);
	return b;
}

static void close_ring(void *self)
{
	struct disk_ring *s = self;

	io_uring_queue_exit(&s->ring);
	free(s);
}

const struct tess_disk_engine tess_disk_uring = {
	.name = "uring",
	.open = open_ring,
	.submit = submit_to_ring,
	.flush = flush_ring,
	.take = take_from_ring,
	.close = close_ring,
};
