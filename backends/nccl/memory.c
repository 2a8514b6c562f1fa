/* memory.c - registered memory: NCCL transfers from and to it without internal buffers. */
#include <stdint.h>
#include <stdlib.h>

#include "work.h"

static void free_memory(struct group *g, const struct registered *m)
{
	if (m->of_nccl)
		g->calls->mem_free(m->memory);
	else
		g->calls->cuda_free((uintptr_t)m->memory);
}

static void free_registered(struct group *g, struct registered **at)
{
	struct registered *m = *at;

	*at = m->next;
	if (g->comm && m->handle)
		g->calls->comm_deregister(g->comm, m->handle);
	free_memory(g, m);
	free(m);
}

/* Registers memory, not as a window: NCCL 2.28's kernels for those do not wait for earlier ones. */
static tess_status register_memory(struct group *g, uint64_t bytes, struct registered *m)
{
	const struct nccl_calls *n = g->calls;

	if (n->comm_register && n->comm_deregister &&
	    n->comm_register(g->comm, m->memory, bytes, &m->handle))
		return g->host->fail(TESS_ENOTSUP, "nccl: memory cannot be registered");
	return TESS_OK;
}

/*
 * Allocates registered memory, which saves NCCL its internal buffers. Its kernels wait for all
 * ranks, so every rank must have it, or none. Each failure is reported, and the ranks agree on the
 * result.
 */
static tess_status alloc_locked(struct group *g, uint64_t bytes, struct registered *m)
{
	const struct nccl_calls *n = g->calls;
	unsigned long long p = 0;
	tess_status st = work_finish_start(g);

	if (st == TESS_PENDING) /* NCCL accepts no other call until then */
		return g->host->fail(TESS_ENOTSUP, "nccl: calls are being started");
	if (st)
		return st;
	m->of_nccl = n->mem_alloc && n->mem_free;
	if (m->of_nccl ? n->mem_alloc(&m->memory, bytes) : n->cuda_alloc(&p, bytes))
		return g->host->fail(TESS_ENOMEM, "nccl: no %llu bytes of device memory",
		                     (unsigned long long)bytes);
	if (!m->of_nccl)
		m->memory = (void *)(uintptr_t)p;
	st = register_memory(g, bytes, m);
	if (st) {
		free_memory(g, m);
		return st;
	}
	m->next = g->registered;
	g->registered = m;
	return TESS_OK;
}

tess_status group_alloc(void *self, uint64_t bytes, void **mine, void **peers)
{
	struct group *g = self;
	struct registered *m = calloc(1, sizeof *m);
	tess_status st;

	if (!m)
		return g->host->fail(TESS_ENOMEM, "nccl: out of memory");
	group_lock(g);
	st = alloc_locked(g, bytes, m);
	group_unlock(g);
	if (st) {
		free(m);
		return st;
	}
	*mine = m->memory;
	for (int32_t r = 0; r < g->nranks; r++)
		peers[r] = r == g->rank ? m->memory : NULL;
	return TESS_OK;
}

/*
 * Returns whether memory can be freed: NCCL accepts no other call while it starts some, and aborted
 * calls may still use memory.
 */
static bool can_free_memory(struct group *g)
{
	return g->comm && !g->failed && !work_finish_start(g);
}

/* Frees memory now, or when the group is closed if that is not possible. */
void group_free(void *self, void *mine)
{
	struct group *g = self;
	struct registered **at = &g->registered;

	group_lock(g);
	while (*at && (*at)->memory != mine)
		at = &(*at)->next;
	if (*at && can_free_memory(g))
		free_registered(g, at);
	group_unlock(g);
}

void group_free_all_locked(struct group *g)
{
	while (g->registered)
		free_registered(g, &g->registered);
}
