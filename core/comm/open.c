/* Groups come and go. */
#include "emulate.h"

#include "clock.h"

#include <core/base/status.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void destroy(struct tess_group *g)
{
	for (struct tess_work *w = g->spare, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	for (struct tess_room *room = g->rooms, *next; room; room = next) {
		next = room->next;
		free(room);
	}
	free(g->member);
	free(g->sent);
	free(g->received);
	free(g->note);
	free(g->scratch);
	free(g);
}

static struct tess_group *make(struct tess_world *w, const char *name, int32_t size)
{
	struct tess_group *g = calloc(1, sizeof *g);

	if (!g)
		return NULL;
	*g = (struct tess_group){ .world = w, .backend = w->backend, .size = size };
	snprintf(g->name, sizeof g->name, "%s", name);
	g->member = calloc((size_t)size, sizeof *g->member);
	g->sent = calloc((size_t)size, sizeof *g->sent);
	g->received = calloc((size_t)size, sizeof *g->received);
	g->note = malloc(tess_note_room(size));
	if (g->member && g->sent && g->received && g->note)
		return g;
	destroy(g);
	return NULL;
}

tess_status tess_group_open_all(struct tess_world *w, struct tess_group **out)
{
	struct tess_group *g = make(w, "world", w->size);
	struct tess_join how;
	tess_status st;

	if (!g)
		return tess_fail(TESS_ENOMEM, "no memory for a group of %d ranks", w->size);
	g->rank = w->rank;
	for (int32_t r = 0; r < g->size; r++)
		g->member[r] = r;
	how = (struct tess_join){ .size = sizeof how,
		                  .rank = g->rank,
		                  .nranks = g->size,
		                  .device = -1,
		                  .name = g->name,
		                  .world = g->member,
		                  .store = &w->store,
		                  .deadline = tess_now() + w->timeout };
	st = g->backend->open(&how, &g->self);
	if (st) {
		destroy(g);
		return tess_fail_in(st, "%s", w->backend->name);
	}
	pthread_mutex_lock(&w->lock);
	g->next = w->groups;
	w->groups = g;
	if (w->failed && g->backend->abort)
		g->backend->abort(g->self);
	pthread_mutex_unlock(&w->lock);
	*out = g;
	return TESS_OK;
}

void tess_group_close(struct tess_group *g)
{
	struct tess_world *w;

	if (!g)
		return;
	w = g->world;
	pthread_mutex_lock(&w->lock);
	for (struct tess_group **at = &w->groups; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	pthread_mutex_unlock(&w->lock);
	for (struct tess_work *work = g->live; work; work = work->next)
		tess_work_return(work);
	g->backend->close(g->self);
	for (struct tess_work *work = g->live, *next; work; work = next) {
		next = work->next;
		tess_emulation_free(work->emulation);
		free(work);
	}
	destroy(g);
}

int32_t tess_group_rank(const struct tess_group *g)
{
	return g->rank;
}

int32_t tess_group_size(const struct tess_group *g)
{
	return g->size;
}
