#include "core/call/report.h"

#include "core/base/clock.h"

#include <string.h>

enum { REPORT_INTERVAL = 1000 * TESS_MS };

void tess_call_report(struct tess_group *g, int64_t now)
{
	if (g->size > 1)
		g->world->link.add_call(g->world->link.self, g->desc);
	g->unreported = false;
	g->report_at = now + REPORT_INTERVAL;
}

static void report_call(struct tess_group *g, const struct tess_coll *c,
                        const struct tess_call_key *key, int64_t now)
{
	if (g->unreported && memcmp(&g->desc->key, key, sizeof *key))
		tess_call_report(g, now); /* a later call would lose this report */
	tess_call_desc_write(g->desc, c, key, g->size);
	tess_call_report(g, now);
}

void tess_work_report(struct tess_work *w)
{
	int64_t now = tess_now();

	if (!w->report_at)
		return;
	if (!w->batch)
		report_call(w->group, &w->coll, &w->key, now);
	for (uint32_t i = 0; w->batch && i < w->n; i++)
		if (w->batch[i].unreported)
			report_call(w->group, &w->batch[i].coll, &w->batch[i].key, now);
	w->report_at = 0;
}

void tess_group_report_last(struct tess_group *g)
{
	if (g->unreported)
		tess_call_report(g, 0);
}

void tess_work_announce(struct tess_work *w, int64_t now)
{
	struct tess_group *g = w->group;
	bool report = !w->by.backend->compares || w->key.channel || now >= g->report_at;

	w->flight = tess_flight_number(g->world->flight);
	w->report_at = report ? 0 : now + TESS_SLOW;
	if (w->key.channel)
		tess_group_report_last(g); /* message numbers are separate */
	tess_call_describe(g, &w->coll, &w->key, w->flight, now);
	if (report)
		tess_call_report(g, now);
}
