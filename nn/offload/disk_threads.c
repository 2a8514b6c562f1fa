#include "core/base/thread.h"
#include "nn/offload/disk.h"
#include "nn/offload/disk_engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct block_list {
	struct tess_disk_block *first, *last;
};

struct disk_pool {
	int fd;
	pthread_mutex_t lock;
	pthread_cond_t work, end;
	struct block_list queued, ended;
	int32_t nqueued, idle; /* blocks in `queued`; threads that wait for one */
	bool closes;
	int32_t nthreads; /* started when they are first needed */
	pthread_t thread[TESS_DISK_THREADS];
};

static void append_disk_block(struct block_list *list, struct tess_disk_block *b)
{
	b->next = NULL;
	*(list->first ? &list->last->next : &list->first) = b;
	list->last = b;
}

static struct tess_disk_block *pop_block(struct block_list *list)
{
	struct tess_disk_block *b = list->first;

	if (b)
		list->first = b->next;
	return b;
}

static int64_t move_block(int fd, const struct tess_disk_block *b)
{
	ssize_t n = b->writes ? pwrite(fd, b->memory, b->bytes, (off_t)b->offset)
	                      : pread(fd, b->memory, b->bytes, (off_t)b->offset);

	return n < 0 ? -errno : n;
}

static void *serve_blocks(void *arg)
{
	struct disk_pool *pool = arg;
	struct tess_disk_block *b;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		pool->idle++;
		while (!pool->queued.first && !pool->closes)
			pthread_cond_wait(&pool->work, &pool->lock);
		pool->idle--;
		b = pop_block(&pool->queued);
		if (!b)
			break;
		pool->nqueued--;
		pthread_mutex_unlock(&pool->lock);
		b->result = move_block(pool->fd, b);
		pthread_mutex_lock(&pool->lock);
		append_disk_block(&pool->ended, b);
		pthread_cond_signal(&pool->end);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

/* Starts a thread; the lock is held, or no other thread runs. Returns 0 or an errno. */
static int grow_pool(struct disk_pool *pool)
{
	int error = tess_thread_start(&pool->thread[pool->nthreads], serve_blocks, pool);

	pool->nthreads += !error;
	return error;
}

static void close_pool(void *self)
{
	struct disk_pool *pool = self;

	pthread_mutex_lock(&pool->lock);
	pool->closes = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (int32_t i = 0; i < pool->nthreads; i++)
		pthread_join(pool->thread[i], NULL);
	pthread_cond_destroy(&pool->work);
	pthread_cond_destroy(&pool->end);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

static int open_pool(int fd, void **out)
{
	struct disk_pool *pool = calloc(1, sizeof *pool);
	int error;

	if (!pool)
		return ENOMEM;
	pool->fd = fd;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->work, NULL);
	pthread_cond_init(&pool->end, NULL);
	error = grow_pool(pool);
	if (error)
		close_pool(pool);
	else
		*out = pool;
	return error;
}

static void submit_to_pool(void *self, struct tess_disk_block *b)
{
	struct disk_pool *pool = self;

	pthread_mutex_lock(&pool->lock);
	append_disk_block(&pool->queued, b);
	if (++pool->nqueued > pool->idle && pool->nthreads < TESS_DISK_THREADS)
		grow_pool(pool); /* without it, the other threads take the block later */
	pthread_cond_signal(&pool->work);
	pthread_mutex_unlock(&pool->lock);
}

static void flush_pool(void *self)
{
	(void)self; /* blocks are started at once */
}

static struct tess_disk_block *take_from_pool(void *self, bool waits)
{
	struct disk_pool *pool = self;
	struct tess_disk_block *b;

	pthread_mutex_lock(&pool->lock);
	while (waits && !pool->ended.first)
		pthread_cond_wait(&pool->end, &pool->lock);
	b = pop_block(&pool->ended);
	pthread_mutex_unlock(&pool->lock);
	return b;
}

const struct tess_disk_engine tess_disk_threads = {
	.name = "threads",
	.open = open_pool,
	.submit = submit_to_pool,
	.flush = flush_pool,
	.take = take_from_pool,
	.close = close_pool,
};
