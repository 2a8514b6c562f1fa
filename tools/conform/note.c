/* note.c - notes of a rank for the report: activity, current call, faults. */
#include "conform.h"

#include "core/base/status.h"

#include <stdarg.h>
#include <stdio.h>

void conform_set_activity(struct conform_rank *me, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(me->state->activity, sizeof me->state->activity, fmt, ap);
	va_end(ap);
	atomic_fetch_add(&me->state->heartbeats, 1);
}

void conform_set_call(struct conform_rank *me, int step)
{
	atomic_store(&me->state->call, step);
}

tess_status conform_complete_error(tess_status st)
{
	if (!st || *tess_error())
		return st;
	return tess_fail(st,
	                 "%s without a message. The rule: it is done, or fails with a message "
	                 "that names the reason",
	                 tess_status_name(st));
}

void conform_add_failure(struct conform_rank *me, tess_status st)
{
	conform_complete_error(st);
	conform_add_fault(me, "%s", tess_error());
}

static void store_fault(struct conform_rank_state *state, const char *fmt, va_list ap)
{
	unsigned i = atomic_load(&state->nfaults);

	if (i < CONFORM_FAULTS) {
		snprintf(state->fault[i].what, sizeof state->fault[i].what, "%s", state->activity);
		vsnprintf(state->fault[i].text, sizeof state->fault[i].text, fmt, ap);
	}
	atomic_store(&state->nfaults, i + 1);
}

void conform_add_fault(struct conform_rank *me, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	store_fault(me->state, fmt, ap);
	va_end(ap);
}

void conform_add_time_fault(struct conform_rank *me, const char *fmt, ...)
{
	va_list ap;

	atomic_fetch_add(&me->state->ntime_faults, 1);
	va_start(ap, fmt);
	store_fault(me->state, fmt, ap);
	va_end(ap);
}

void conform_finish_data(struct conform_rank *me, struct conform_data *d)
{
	tess_status st = conform_data_check(d);

	if (st)
		conform_add_failure(me, st);
	conform_data_free(d);
}
