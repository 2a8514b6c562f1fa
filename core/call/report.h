/* report.h - describes calls to the flight recorder, and reports them to the coordinator. */
#ifndef TESS_CALL_REPORT_H
#define TESS_CALL_REPORT_H

#include "core/world/group.h"

/* ns; slower calls are reported to the coordinator */
enum { TESS_SLOW = 5 * 1000 * 1000 };

/* Writes the descriptor of the call, and begins it in the flight recorder as number `flight`. */
static inline void tess_call_describe(struct tess_group *g, const struct tess_coll *c,
                                      const struct tess_call_key *key, uint64_t flight, int64_t now)
{
	tess_call_desc_write(g->desc, c, key, g->size);
	g->unreported = true;
	tess_flight_begin(g->world->flight, flight, g->key, g->desc, now);
}

/*
 * Reports the call that was described last to the coordinator. If the backend compares calls, only
 * slow calls are reported, one per second (g->report_at), and the last call. A rank that has made a
 * call has made all earlier ones.
 */
void tess_call_report(struct tess_group *g, int64_t now);
/* Reports the last call, unless it has been reported. */
void tess_group_report_last(struct tess_group *g);
/* Reports all unreported calls of the work. */
void tess_work_report(struct tess_work *w);

/* Describes the call, and reports it if other ranks must be notified at once. */
void tess_work_announce(struct tess_work *w, int64_t now);

#endif
