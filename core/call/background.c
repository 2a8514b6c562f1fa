#include "core/call/background.h"

void tess_background_add(struct tess_work *w)
{
	struct tess_world *world = w->group->world;
	bool on_device = w->by.self && w->by.self == w->group->carrier.self;

	if (w->state != TESS_PENDING || on_device)
		return;
	w->in_background = true;
	w->next_in_background = world->background;
	world->background = w;
}

void tess_background_remove(struct tess_work *w)
{
	struct tess_work **at = &w->group->world->background;

	if (!w->in_background)
		return;
	while (*at != w)
		at = &(*at)->next_in_background;
	*at = w->next_in_background;
	w->in_background = false;
}
