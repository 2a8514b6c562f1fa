/* shares.c - gathers weights of which each rank has updated a share. */
#include "core/base/status.h"
#include "nn/program/agree.h"
#include "nn/weights/parameters.h"

#include <stdlib.h>
#include <tessera/reduce.h>

struct share_exchange {
	const struct tess_parameters *s;
	struct tess_group *shards;
	int32_t n, mine; /* ranks, and the index of this one */
	uint64_t *counts; /* by rank */
	/* of weights in files: the elements of all ranks, and a transfer for each; or NULL */
	char *window;
	struct tess_transfer *transfer;
};

/* Makes the gather of a weight: in memory of the device, or in the window, which is the host's. */
static struct tess_coll make_gather(const struct share_exchange *x, const struct tess_weight *w,
                                    void *all)
{
	const struct tess_opened_device *d = &x->s->weights.device;
	bool on_host = x->window && all == x->window;

	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = TESS_ALL_GATHER,
		                   .dtype = w->dtype,
		                   .mem = on_host ? TESS_HOST : d->table->mem,
		                   .stream = on_host ? NULL : d->stream,
		                   .src = all,
		                   .dst = all,
		                   .count = x->counts[x->mine],
		                   .recv_counts = x->counts,
		                   .where = w->name };
}

static struct tess_run find_shared_run(const struct share_exchange *x, const struct tess_weight *w,
                                       int32_t q)
{
	return tess_program_get_share(x->s->program, x->s->each[w->index].rest.len, q);
}

static tess_status gather_in_memory(struct share_exchange *x, const struct tess_weight *w)
{
	struct tess_coll c;

	for (int32_t q = 0; q < x->n; q++)
		x->counts[q] = (uint64_t)find_shared_run(x, w, q).len;
	c = make_gather(x, w, x->s->each[w->index].weight);
	return tess_group_run(x->shards, &c);
}

/* Moves counts[q] elements of each share, from element `at` on: writes those of others. */
static tess_status move_window_shares(struct share_exchange *x, const struct tess_weight *w,
                                      int64_t at, bool writes)
{
	uint64_t before = 0;
	int32_t nstarted = 0;
	tess_status st = TESS_OK;

	for (int32_t q = 0; q < x->n && !st; q++) {
		struct tess_transfer *t = &x->transfer[nstarted];

		*t = (struct tess_transfer){ .weight = w,
			                     .what = TESS_WEIGHT,
			                     .first = find_shared_run(x, w, q).start + at,
			                     .n = (int64_t)x->counts[q],
			                     .writes = writes,
			                     .memory = x->window + before * tess_width(w->dtype) };
		before += x->counts[q];
		if (!t->n || (q == x->mine) == writes)
			continue;
		st = tess_offload_start(&x->s->offload, t);
		nstarted += !st;
	}
	for (int32_t i = 0; i < nstarted; i++) {
		tess_status failed = tess_offload_wait(&x->transfer[i]);

		st = st ? st : failed;
	}
	return st;
}

/* Gathers the shares in parts, each at most the bytes of a bucket for all ranks together. */
static tess_status gather_in_files(struct share_exchange *x, const struct tess_weight *w)
{
	uint64_t room = tess_program_get_bucket(x->s->program) / tess_width(w->dtype);
	int64_t most = (int64_t)room / x->n, longest = 0;
	tess_status st = TESS_OK;

	most += !most;
	for (int32_t q = 0; q < x->n; q++) {
		int64_t len = find_shared_run(x, w, q).len;

		longest = len > longest ? len : longest;
	}
	for (int64_t at = 0; at < longest && !st; at += most) {
		struct tess_coll c;

		for (int32_t q = 0; q < x->n; q++) {
			int64_t left = find_shared_run(x, w, q).len - at;

			x->counts[q] = (uint64_t)(left < 0 ? 0 : left < most ? left : most);
		}
		st = move_window_shares(x, w, at, false);
		st = tess_group_agree_status(x->shards, st, w->name);
		c = make_gather(x, w, x->window);
		if (!st)
			st = tess_group_run(x->shards, &c);
		if (!st)
			st = move_window_shares(x, w, at, true);
	}
	return st;
}

static tess_status open_share_exchange(struct share_exchange *x)
{
	uint64_t bytes = tess_program_get_bucket(x->s->program);

	x->counts = calloc((size_t)x->n + 1, sizeof *x->counts);
	if (!x->counts)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (!x->s->offload.layout.bytes[TESS_REST])
		return TESS_OK;
	/* one element of each rank at least */
	bytes = tess_offload_pad(bytes + sizeof(float) * (uint64_t)x->n);
	x->transfer = calloc((size_t)x->n + 1, sizeof *x->transfer);
	x->window = aligned_alloc(TESS_DISK_ALIGN, bytes);
	return x->window && x->transfer
	               ? TESS_OK
	               : tess_fail(TESS_ENOMEM, "no memory to gather weights in files");
}

static void close_share_exchange(struct share_exchange *x)
{
	free(x->counts);
	free(x->window);
	free(x->transfer);
}

tess_status tess_parameters_share(const struct tess_parameters *s, struct tess_group *shards)
{
	const struct tess_program *p = s->program;
	struct share_exchange x = { .s = s, .shards = shards };
	bool shared = false;
	tess_status st;

	for (int32_t i = 0; i < p->nweights; i++)
		shared = shared || tess_weight_is_shared(p, p->weight[i]);
	if (!shared)
		return TESS_OK;
	x.n = tess_group_size(shards);
	x.mine = tess_group_rank(shards);
	st = tess_group_agree_status(shards, open_share_exchange(&x), "weights");
	for (int32_t i = 0; i < p->nweights && !st; i++)
		if (tess_weight_is_shared(p, p->weight[i]))
			st = tess_weight_is_fetched(p, p->weight[i], s->rank)
			             ? gather_in_files(&x, p->weight[i])
			             : gather_in_memory(&x, p->weight[i]);
	close_share_exchange(&x);
	return st;
}
