/* staging.c - stages calls on memory that no backend moves in host memory. */
#include "core/call/staging.h"

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/call/queue.h"

#include <stdlib.h>
#include <tessera/coll.h>

enum { STAGE_ALIGN = 64 };

struct staged_call {
	void *device, *host; /* device: the buffer that receives */
	uint64_t bytes;
	void *stream;
};

struct tess_stage {
	struct staged_call *call; /* [ncalls]; direct calls of a batch receive 0 bytes */
	uint32_t ncalls;
	char *host;
	uint64_t bytes; /* at `host` */
};

static struct tess_coll *get_call(struct tess_work *w, uint32_t i)
{
	return w->batch ? &w->batch[i].coll : &w->coll;
}

/* Measures the bytes that a call reads and receives; 0 if it is direct. */
static void measure_call(const struct tess_group *g, const struct tess_coll *c, uint64_t *src,
                         uint64_t *dst)
{
	*src = *dst = 0;
	if (tess_call_is_direct(g, c) || c->kind == TESS_BARRIER)
		return;
	tess_coll_extents(c, g->rank, g->size, src, dst);
	*src *= tess_width(c->dtype);
	*dst *= tess_width(c->dtype);
}

static uint64_t align_size(uint64_t bytes)
{
	return (bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
}

static tess_status reserve_stage(struct tess_work *w, uint32_t ncalls, uint64_t bytes)
{
	struct tess_stage *s = w->stage;

	if (s && s->ncalls >= ncalls && s->bytes >= bytes)
		return TESS_OK;
	tess_work_free_stage(w);
	w->stage = s = calloc(1, sizeof *s);
	if (s) {
		s->call = calloc(ncalls, sizeof *s->call);
		s->host = aligned_alloc(STAGE_ALIGN, bytes);
	}
	if (!s || !s->call || !s->host) {
		tess_work_free_stage(w);
		return tess_fail(TESS_ENOMEM,
		                 "%s: no host memory for %llu bytes of a call on memory of %s",
		                 get_call(w, 0)->where ? get_call(w, 0)->where : "call",
		                 (unsigned long long)bytes, w->group->device->name);
	}
	s->ncalls = ncalls;
	s->bytes = bytes;
	return TESS_OK;
}

/* Stages a call. In place stays in place in host memory: the full buffer is copied. */
static tess_status stage_call(struct tess_group *g, struct tess_coll *c, char **host,
                              struct staged_call *staged)
{
	uint64_t src, dst;
	char *from = *host, *to = from;
	bool in_place;
	tess_status st = TESS_OK;

	measure_call(g, c, &src, &dst);
	in_place = src && dst && c->src == c->dst;
	if (in_place)
		src = dst = src > dst ? src : dst;
	else
		to += align_size(src);
	*staged = (struct staged_call){ c->dst, to, dst, c->stream };
	*host = to + align_size(dst);
	if (src)
		st = tess_group_copy(g, c->where, c->stream, from, c->src, src);
	if (tess_call_is_direct(g, c))
		return st;
	c->src = src ? from : NULL;
	c->dst = dst ? to : NULL;
	c->mem = TESS_HOST;
	c->stream = NULL;
	return st;
}

/* Logs the detour through host memory, once per job, on rank 0. */
static void log_staging(const struct tess_group *g)
{
	if (!g->world->staged && g->world->rank == 0 && g->size > 1)
		tess_log(TESS_INFO, "comm",
		         "backend %s does not move memory of device %s: such calls go through host "
		         "memory",
		         g->backend->name, g->device->name);
	g->world->staged = true;
}

tess_status tess_work_stage(struct tess_work *w)
{
	uint32_t n = w->batch ? w->n : 1;
	uint64_t bytes = STAGE_ALIGN, src, dst;
	bool direct = true;
	tess_status st;
	char *host;

	for (uint32_t i = 0; i < n; i++) {
		direct = direct && tess_call_is_direct(w->group, get_call(w, i));
		measure_call(w->group, get_call(w, i), &src, &dst);
		bytes += align_size(src) + align_size(dst);
	}
	if (direct)
		return TESS_OK;
	log_staging(w->group);
	st = reserve_stage(w, n, bytes);
	host = st ? NULL : w->stage->host;
	for (uint32_t i = 0; i < n && !st; i++)
		st = stage_call(w->group, get_call(w, i), &host, &w->stage->call[i]);
	w->staged = !st;
	return st;
}

tess_status tess_work_unstage(struct tess_work *w)
{
	const struct tess_group *g = w->group;
	tess_status st = TESS_OK;

	for (uint32_t i = 0; i < (w->batch ? w->n : 1) && !st; i++) {
		const struct staged_call *s = &w->stage->call[i];

		if (s->bytes)
			st = tess_group_copy(g, w->coll.where, s->stream, s->device, s->host,
			                     s->bytes);
	}
	w->staged = false;
	return st;
}

void tess_work_free_stage(struct tess_work *w)
{
	if (w->stage) {
		free(w->stage->call);
		free(w->stage->host);
	}
	free(w->stage);
	w->stage = NULL;
}
