#include "batch.h"

#include <stdlib.h>

struct batch {
	struct work work;
	void *each[]; /* pending calls */
};

tess_status batch_start_calls(void *self, const struct tess_coll *const *c, uint32_t n, void **work)
{
	struct batch *b = calloc(1, sizeof *b + n * sizeof *b->each);
	tess_status st = TESS_OK;

	if (!b)
		return loopback_host->fail(TESS_ENOMEM, "loopback: no memory for a batch");
	for (; b->work.n < n && !st; b->work.n += !st)
		st = call_start_one(self, c[b->work.n], &b->each[b->work.n]);
	if (st)
		free(b); /* the group has failed: its calls are freed with the context */
	else
		*work = b;
	return st;
}

tess_status batch_test_calls(struct member *me, struct work *work)
{
	struct batch *b = (struct batch *)work;
	tess_status all = TESS_OK;

	for (uint32_t i = 0; i < b->work.n; i++) {
		tess_status st = call_test_one(me, b->each[i]);

		if (st < 0)
			return st;
		if (st)
			all = st;
	}
	return all;
}

tess_status batch_wait_calls(struct member *me, struct work *work, int64_t deadline)
{
	struct batch *b = (struct batch *)work;
	tess_status st = TESS_OK;

	for (uint32_t i = 0; i < b->work.n && !st; i++)
		st = call_wait_one(me, b->each[i], deadline);
	return st;
}

void batch_release_calls(struct member *me, struct work *work)
{
	struct batch *b = (struct batch *)work;

	for (uint32_t i = 0; i < b->work.n; i++)
		call_release_one(me, b->each[i]);
	free(b);
}
