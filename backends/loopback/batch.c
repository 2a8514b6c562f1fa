/* batch.c - several calls as one work. */
#include "loopback.h"

#include <stdlib.h>

struct batch {
	struct work work;
	void *each[]; /* a work of its own */
};

tess_status loopback_batch(void *self, const struct tess_coll *const *c, uint32_t n, void **work)
{
	struct batch *b = calloc(1, sizeof *b + n * sizeof *b->each);
	tess_status st = TESS_OK;

	if (!b)
		return loopback_host->fail(TESS_ENOMEM, "loopback: no memory for a batch");
	for (; b->work.n < n && !st; b->work.n += !st)
		st = loopback_start(self, c[b->work.n], &b->each[b->work.n]);
	if (st)
		free(b); /* the group has failed: its calls go with the room */
	else
		*work = b;
	return st;
}

/* All are looked at, so that all get on. */
tess_status loopback_batch_test(void *self, struct work *work)
{
	struct batch *b = (struct batch *)work;
	tess_status all = TESS_OK;

	for (uint32_t i = 0; i < b->work.n; i++) {
		tess_status st = loopback_test(self, b->each[i]);

		if (st < 0)
			return st;
		if (st)
			all = st;
	}
	return all;
}

tess_status loopback_batch_wait(void *self, struct work *work, int64_t deadline)
{
	struct batch *b = (struct batch *)work;
	tess_status st = TESS_OK;

	for (uint32_t i = 0; i < b->work.n && !st; i++)
		st = loopback_wait(self, b->each[i], deadline);
	return st;
}

void loopback_batch_release(void *self, struct work *work)
{
	struct batch *b = (struct batch *)work;

	for (uint32_t i = 0; i < b->work.n; i++)
		loopback_release(self, b->each[i]);
	free(b);
}
