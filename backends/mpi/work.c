/*
 * work.c - a collective as one or two steps; all messages of a step are under way at once.
 *
 * MPI's own collectives are not used: different calls of ranks give wrong results without an error,
 * a call cannot be cancelled once a rank has died, and 16-bit floats are missing. The tag of a
 * message here is the fingerprint of its call, so different calls never match, and a receive can be
 * cancelled. Large vectors are cut into a slice per rank, which the second step gathers.
 */
#include "work.h"

#include "blocking_call.h"
#include "plan.h"
#include "watchdog.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGE = 64 * 1024 }; /* minimum bytes for slices and a second step */
enum { SPINS = 200, YIELD_MS = 20, SLEEP_MAX_NS = 1000000 };
enum { PART = 1 << 30 }; /* maximum bytes of a message counted in bytes: MPI counts with ints */

/* ---- failure --------------------------------------------------------------------------------- */

static tess_status TESS_PRINTF(3, 4)
	fail_group(struct group *g, tess_status why, const char *fmt, ...)
{
	va_list ap;

	if (g->failed < 0)
		return g->failed;
	va_start(ap, fmt);
	vsnprintf(g->why, sizeof g->why, fmt, ap);
	va_end(ap);
	return g->failed = why;
}

static tess_status report_group_failure(const struct group *g)
{
	return mpi_host->fail(g->failed, "%s", g->why);
}

static tess_status fail_lost_message(struct group *g, const struct work *w, int32_t peer, int err)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int len, class = MPI_ERR_OTHER;

	MPI_Error_class(err, &class);
	if (class == MPI_ERR_TRUNCATE)
		return fail_group(g, TESS_EMISMATCH, "%s: rank %d sends more than rank %d receives",
		                  w->where, (int)g->world[peer], (int)g->world[g->rank]);
	MPI_Error_string(err, text, &len);
	return fail_group(g, TESS_EPEER, "%s: group %s over mpi lost rank %d: %s", w->where,
	                  g->name, (int)g->world[peer], text);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Chooses the tag of a call; send and recv share 0, since messages of one tag stay in order. */
static int choose_tag(const struct group *g, const struct work *w)
{
	uint64_t h = w->c.fingerprint ^ 0x9e3779b97f4a7c15u * (uint64_t)(w->step + 1);

	if (w->c.kind == TESS_SEND || w->c.kind == TESS_RECV)
		return 0;
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	return 1 + (int)((h ^ h >> 31) % (uint64_t)g->tags);
}

/* Posts a message; `out` NULL: receives into `in`. A long one is two: full MiB, and the rest. */
static tess_status post_message(struct group *g, struct work *w, int32_t peer, const char *out,
                                char *in, uint64_t bytes)
{
	int tag = choose_tag(g, w);
	bool again;

	do {
		MPI_Datatype type = bytes >= PART ? get_mebibyte_type() : MPI_BYTE;
		uint64_t unit = bytes >= PART ? 1 << 20 : 1;
		int err, count = (int)(bytes / unit);
		MPI_Request *request = &w->request[w->nrequests];

		watchdog_toggle(g);
		if (out)
			err = MPI_Isend(out, count, type, peer, tag, g->comm, request);
		else
			err = MPI_Irecv(in, count, type, peer, tag, g->comm, request);
		watchdog_toggle(g);
		if (err)
			return fail_lost_message(g, w, peer, err);
		w->info[w->nrequests++] = (struct request_info){ peer, out ? -1 : count, type };
		bytes -= (uint64_t)count * unit;
		again = bytes > 0;
		if (out)
			out += (uint64_t)count * unit;
		else
			in += (uint64_t)count * unit;
	} while (again);
	return TESS_OK;
}

/* Posts a step, receives first. */
static tess_status post_step(struct group *g, struct work *w)
{
	static char nothing;
	bool barrier = w->c.kind == TESS_BARRIER;
	tess_status st = TESS_OK;

	w->nrequests = w->arrived = 0;
	for (int32_t i = 1; i < g->nranks && st == TESS_OK; i++) {
		int32_t peer = (g->rank + i) % g->nranks;

		if (w->transfer[peer].recv_bytes || barrier)
			st = post_message(g, w, peer, NULL,
			                  barrier ? &nothing : w->transfer[peer].dst,
			                  w->transfer[peer].recv_bytes);
	}
	for (int32_t i = 1; i < g->nranks && st == TESS_OK; i++) {
		int32_t peer = (g->rank + i) % g->nranks;

		if (w->transfer[peer].send_bytes || barrier)
			st = post_message(g, w, peer, barrier ? &nothing : w->transfer[peer].src,
			                  NULL, w->transfer[peer].send_bytes);
	}
	return st;
}

/* Tests the step. TESS_OK: all its messages are complete. */
static tess_status test_step(struct group *g, struct work *w)
{
	for (; w->arrived < w->nrequests; w->arrived++) {
		const struct request_info *info = &w->info[w->arrived];
		int done = 0, count = 0, err;
		MPI_Status status;

		watchdog_toggle(g);
		err = MPI_Test(&w->request[w->arrived], &done, &status);
		watchdog_toggle(g);
		if (err)
			return fail_lost_message(g, w, info->peer, err);
		if (!done)
			return TESS_PENDING;
		if (info->count > 0)
			MPI_Get_count(&status, info->type, &count);
		if (info->count > 0 && count != info->count)
			return fail_group(g, TESS_EMISMATCH,
			                  "%s: rank %d sends less than rank %d receives", w->where,
			                  (int)g->world[info->peer], (int)g->world[g->rank]);
	}
	return TESS_OK;
}

/* ---- works ----------------------------------------------------------------------------------- */

static void free_mpi_work(struct work *w)
{
	if (!w)
		return;
	free(w->scratch);
	free(w);
}

/* Takes a spare work, or makes a new one. */
static struct work *take_mpi_work(struct group *g)
{
	size_t n = (size_t)g->nranks;
	struct work *w = g->spare;
	char *at;

	if (w) {
		g->spare = w->next;
		return w;
	}
	w = calloc(1,
	           sizeof *w + n * (sizeof *w->transfer + sizeof *w->part + 3 * sizeof *w->slice +
	                            4 * (sizeof *w->request + sizeof *w->info)));
	if (!w)
		return NULL;
	at = (char *)(w + 1);
	w->transfer = (struct transfer *)(void *)at;
	w->part = (const void **)(w->transfer + n);
	w->slice = (uint64_t *)(w->part + n);
	w->list = w->slice + n;
	w->request = (MPI_Request *)(w->list + 2 * n);
	w->info = (struct request_info *)(w->request + 4 * n);
	return w;
}

static tess_status reserve_scratch(struct work *w, size_t bytes)
{
	if (bytes <= w->scratch_bytes)
		return TESS_OK;
	free(w->scratch);
	w->scratch = malloc(bytes);
	w->scratch_bytes = w->scratch ? bytes : 0;
	if (!w->scratch)
		return mpi_host->fail(TESS_ENOMEM, "%s: no memory for %zu bytes of other ranks",
		                      w->where, bytes);
	return TESS_OK;
}

/* Copies the call; only its buffers must outlive the start. */
static void copy_call_data(const struct group *g, struct work *w, const struct tess_coll *c)
{
	size_t n = (size_t)g->nranks;
	bool cut = c->kind == TESS_REDUCE || c->kind == TESS_ALL_REDUCE ||
	           (c->kind == TESS_BROADCAST && n > 2);

	memset(&w->c, 0, sizeof w->c);
	memcpy(&w->c, c, c->size < sizeof w->c ? c->size : sizeof w->c);
	snprintf(w->where, sizeof w->where, "%s", w->c.where ? w->c.where : "a collective");
	w->c.where = w->where;
	if (c->kind == TESS_BARRIER)
		w->c.count = 0;
	if (c->send_counts)
		w->c.send_counts = memcpy(w->list, c->send_counts, n * sizeof *w->list);
	if (c->recv_counts)
		w->c.recv_counts = memcpy(w->list + n, c->recv_counts, n * sizeof *w->list);
	w->width = c->kind == TESS_BARRIER ? 0 : tess_width(c->dtype);
	w->step = 0;
	w->steps = cut && n > 1 && (n - 1) * c->count * w->width >= LARGE ? 2 : 1;
	w->sum = 0;
	w->done = false;
	for (size_t r = 0; w->steps == 2 && r < n; r++)
		w->slice[r] = c->count / n + (r < c->count % n);
}

/* Takes memory, copies the own block, and plans the first step. */
static tess_status prepare_first_step(struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	uint64_t n = (uint64_t)g->nranks, most = c->count;
	bool in_place = c->src == c->dst, swaps = c->kind == TESS_ALL_TO_ALL && in_place;
	const struct transfer *own;
	tess_status st = TESS_OK;

	if (tess_kind_reduces(c->kind) && w->steps == 2)
		most = w->slice[0];
	if (tess_kind_reduces(c->kind))
		st = reserve_scratch(w, most * n * w->width);
	else if (swaps)
		st = reserve_scratch(w, tess_block_begin(c->send_counts, c->count, g->nranks) *
		                                w->width);
	if (st < 0)
		return st;
	if (swaps && c->src)
		memcpy(w->scratch, c->src,
		       tess_block_begin(c->send_counts, c->count, g->nranks) * w->width);
	plan_first_step(g, w);
	own = &w->transfer[g->rank];
	if (c->kind == TESS_BROADCAST && g->rank == c->peer && !in_place && c->count)
		memcpy(c->dst, c->src, c->count * w->width);
	else if (!tess_kind_reduces(c->kind) && own->send_bytes && own->recv_bytes &&
	         own->src != own->dst)
		memcpy(own->dst, own->src, own->recv_bytes);
	return TESS_OK;
}

/* Finishes a step: adds, and posts the second step. */
static tess_status finish_step(struct group *g, struct work *w)
{
	if (w->step == 0 && w->sum) {
		for (int32_t r = 0; r < g->nranks; r++)
			if (r != g->rank)
				w->part[r] = buffer_at(w, w->scratch, w->sum * (uint64_t)r);
		tess_reduce(w->c.dtype, w->c.op, w->part, g->nranks, w->sum, w->total);
	}
	if (++w->step == w->steps) {
		w->done = true;
		return TESS_OK;
	}
	plan_second_step(g, w);
	return post_step(g, w);
}

/* Advances a work without waiting. */
static tess_status advance_work(struct group *g, struct work *w)
{
	tess_status st = TESS_OK;

	while (!w->done && st == TESS_OK) {
		st = test_step(g, w);
		if (st == TESS_OK)
			st = finish_step(g, w);
	}
	return st;
}

/* Advances all works, since peers may wait for others than this rank. */
static tess_status progress_all_works(struct group *g, const struct work *w)
{
	for (struct work *each = g->works; each && !w->done; each = each->next) {
		if (g->failed < 0)
			break;
		if (atomic_load(&g->aborted))
			fail_group(g, TESS_EABORTED, "%s: group %s over mpi was aborted", w->where,
			           g->name);
		else
			advance_work(g, each);
	}
	if (w->done)
		return TESS_OK;
	return g->failed < 0 ? g->failed : TESS_PENDING;
}

tess_status mpi_work_start(void *self, const struct tess_coll *c, void **out)
{
	struct group *g = self;
	struct work *w;
	tess_status st;

	if (g->failed < 0)
		return report_group_failure(g);
	if (atomic_load(&g->aborted))
		return mpi_host->fail(TESS_EABORTED, "group %s over mpi was aborted", g->name);
	w = take_mpi_work(g);
	if (!w)
		return mpi_host->fail(TESS_ENOMEM, "no memory for a call");
	copy_call_data(g, w, c);
	st = prepare_first_step(g, w);
	if (st < 0) {
		free_mpi_work(w);
		return st;
	}
	w->next = g->works;
	g->works = w; /* even on failure, since messages may be under way */
	if (post_step(g, w) < 0)
		return report_group_failure(g);
	*out = w;
	return TESS_OK;
}

tess_status mpi_work_test(void *self, void *work)
{
	struct group *g = self;
	tess_status st = progress_all_works(g, work);

	return st < 0 ? report_group_failure(g) : st;
}

/* Pauses between polls, at growing intervals; MPI makes progress only in calls. */
static void pause_polling(int turn, int64_t since)
{
	int64_t waited;
	struct timespec t;

	if (turn < SPINS)
		return;
	waited = tess_now() - since;
	if (waited < YIELD_MS * INT64_C(1000000)) {
		sched_yield();
		return;
	}
	t = (struct timespec){ .tv_nsec =
		                       waited / 400 < SLEEP_MAX_NS ? waited / 400 : SLEEP_MAX_NS };
	nanosleep(&t, NULL);
}

tess_status mpi_work_wait(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	struct work *w = work;
	int64_t since = tess_now();

	for (int turn = 0;; turn++) {
		tess_status st = progress_all_works(g, w);

		if (st != TESS_PENDING)
			return st < 0 ? report_group_failure(g) : st;
		if (tess_now() >= deadline)
			return mpi_host->fail(
				TESS_ETIMEOUT,
				"%s: group %s over mpi waited until the deadline for rank %d",
				w->where, g->name, (int)g->world[w->info[w->arrived].peer]);
		pause_polling(turn, since);
	}
}

void mpi_work_release(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (!w)
		return;
	if (!w->done && g->failed == TESS_OK && mpi_work_wait(g, w, w->c.deadline) == TESS_ETIMEOUT)
		fail_group(g, TESS_ETIMEOUT, "%s: released, and not finished by its deadline",
		           w->where);
	if (!w->done)
		return; /* messages may be under way until the group is closed */
	for (struct work **at = &g->works; *at; at = &(*at)->next)
		if (*at == w) {
			*at = w->next;
			break;
		}
	w->next = g->spare;
	g->spare = w;
}

/* Cancels receives, whose memory will be freed. */
static void cancel_receives(struct group *g, struct work *w)
{
	watchdog_toggle(g);
	for (int32_t i = w->arrived; i < w->nrequests; i++)
		if (w->info[i].count >= 0 && w->request[i] != MPI_REQUEST_NULL) {
			MPI_Cancel(&w->request[i]);
			MPI_Request_free(&w->request[i]);
		}
	watchdog_toggle(g);
}

void mpi_work_clear(struct group *g)
{
	while (g->works) {
		struct work *w = g->works;

		g->works = w->next;
		cancel_receives(g, w);
		free_mpi_work(w);
	}
	while (g->spare) {
		struct work *w = g->spare;

		g->spare = w->next;
		free_mpi_work(w);
	}
}
