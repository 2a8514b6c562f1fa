#include "core/rendezvous/diagnosis.h"

#include "core/base/clock.h"
#include "core/rendezvous/wire.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_NAMED = 8 }; /* maximum number of ranks that a list names */

static void describe_last_call(const struct tess_job_state *s, int32_t rank,
                               const struct group_state *g, char *text, size_t size)
{
	const struct rank_state *r = &s->rank[rank];
	bool closed = g && g->member[tess_members_find(g->members, rank)].left;
	const char *state = r->left  ? "it has left the job"
	                    : closed ? "it has closed the group"
	                             : "";
	int len;

	*text = '\0';
	if (!r->joined)
		return;
	if (!r->last || (!r->last->key.number && !r->last_group->members->id)) {
		snprintf(text, size, "%s%s", *state ? state : "it has reported no call yet",
		         *state ? " without a call" : "");
		return;
	}
	len = *state ? snprintf(text, size, "%s; its last call is ", state)
	             : snprintf(text, size, "its last reported call is ");
	tess_call_desc_format(r->last, r->last_group->members, text + len, size - (size_t)len);
}

static double measure_stay(const struct rank_state *r)
{
	return (double)(tess_now() - r->stay_began) / 1e9;
}

void tess_describe_last_call(const struct tess_job_state *s, int32_t rank,
                             const struct group_state *g, char *text, size_t size)
{
	const struct rank_state *r = &s->rank[rank];
	size_t len;

	describe_last_call(s, rank, g, text, size);
	len = strlen(text);
	if (r->stay && !r->left)
		snprintf(text + len, size - len, "%sit has been in %s for %.1f s", len ? "; " : "",
		         r->stay, measure_stay(r));
}

static void TESS_PRINTF(4, 5)
	set_failure(struct tess_failure *f, tess_status why, int32_t rank, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->sentence, sizeof f->sentence, fmt, ap);
	va_end(ap);
	f->why = why;
	f->rank = rank;
}

void tess_diagnose_conflict(const struct tess_job_state *s, const struct tess_conflict *c,
                            struct tess_failure *out)
{
	const struct call_state *call = c->call;
	const struct tess_members *m = call->group->members;
	int32_t first = call->by[c->first].rank;
	char one[CALL_TEXT], two[LAST_CALL_TEXT];

	tess_call_desc_format(call->by[c->first].desc, m, one, sizeof one);
	if (c->second >= 0) {
		tess_call_desc_format(call->by[c->second].desc, m, two, CALL_TEXT);
		set_failure(out, TESS_EMISMATCH, call->by[c->second].rank,
		            "rank %d is in %s, but rank %d in %s; all ranks make the same calls "
		            "in the same order",
		            first, one, call->by[c->second].rank, two);
		return;
	}
	tess_describe_last_call(s, c->absent, call->group, two, sizeof two);
	set_failure(out, TESS_EMISMATCH, c->absent,
	            "rank %d is in %s, but rank %d will not join: %s", first, one, c->absent, two);
}

/* ---- a deadline ------------------------------------------------------------------------------ */

/* Causes of a delay, of which the last that applies is reported. */
enum cause { CAUSE_NONE, CAUSE_MISSING, CAUSE_CROSSED, CAUSE_SILENT, CAUSE_STOPPED };

struct delay { /* the reason of a passed deadline */
	enum cause cause;
	int32_t rank; /* the cause; -1: none */
	int32_t nmissing; /* number of ranks that the call lacks */
	int32_t waits_for; /* the rank that `rank` waits for in another group; -1: none */
	const struct call_state *call; /* NULL: not in a call, or the call is not kept */
};

/* Returns whether SIGSTOP or a debugger holds the process; pid 0: false. */
static bool is_stopped(pid_t pid)
{
	char path[48], line[512], *end;
	FILE *f;
	bool yes = false;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = pid ? fopen(path, "re") : NULL;
	if (f && fgets(line, sizeof line, f) &&
	    (end = strrchr(line, ')'))) /* the name may have any character */
		yes = end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
	if (f)
		fclose(f);
	return yes;
}

/* Returns the seconds since the last data of a rank on another host; 0: recent, or not expected. */
static double measure_silence(const struct rank_state *r)
{
	int64_t ns = r->last_heard && !r->left ? tess_now() - r->last_heard : 0;

	return ns > TESS_SILENT_MS * (int64_t)TESS_MS ? (double)ns / 1e9 : 0;
}

/* Returns whether the job, outside of calls, waits for the rank to join or to leave. */
static bool is_awaited(const struct tess_job_state *s, int32_t rank)
{
	return s->joined < s->nranks ? !s->rank[rank].joined : !s->rank[rank].left;
}

static enum cause find_cause(const struct tess_job_state *s, int32_t rank, int32_t waiting,
                             bool missing)
{
	const struct rank_state *r = &s->rank[rank];

	if (r->joined && is_stopped(r->pid))
		return CAUSE_STOPPED;
	if (measure_silence(r) > 0)
		return CAUSE_SILENT;
	if (!missing)
		return CAUSE_NONE;
	return tess_matcher_waits_for(s, rank, waiting) ? CAUSE_CROSSED : CAUSE_MISSING;
}

/* Returns the end of the chain of waiting ranks, among those that `c` lacks (NULL: all). */
static int32_t follow_waits(const struct tess_job_state *s, const struct call_state *c,
                            int32_t rank)
{
	int32_t next = rank;

	for (int32_t steps = 0;
	     steps < s->nranks && next >= 0 && (!c || tess_matcher_call_lacks(c, next)); steps++) {
		rank = next;
		next = tess_matcher_awaited_rank(s, rank);
	}
	return rank;
}

static struct delay find_delay(const struct tess_job_state *s, int32_t waiting,
                               const struct tess_call_key *key, int32_t n)
{
	struct delay d = { .rank = -1, .waits_for = -1 };
	int32_t last;

	d.call = tess_matcher_find_awaited(s, key, n);
	for (int32_t r = 0; r < s->nranks; r++) {
		bool missing = d.call ? tess_matcher_call_lacks(d.call, r) : !n && is_awaited(s, r);
		enum cause cause = find_cause(s, r, waiting, missing);

		d.nmissing += missing;
		if (cause > d.cause) {
			d.rank = r;
			d.cause = cause;
		}
	}
	if (!d.call || d.cause != CAUSE_MISSING)
		return d;
	d.rank = follow_waits(s, d.call, d.rank);
	last = follow_waits(s, NULL, d.rank);
	if (last != d.rank && last != waiting)
		d.waits_for = last;
	return d;
}

/* Describes what did not finish: the call, or the job. */
static void describe_awaited(const struct tess_job_state *s, const struct delay *d, int32_t waiting,
                             int32_t n, char *text, size_t size)
{
	const struct rank_state *r = &s->rank[waiting];

	if (d->call)
		tess_call_desc_format(d->call->by[0].desc, d->call->group->members, text, size);
	else if (n && r->last)
		tess_call_desc_format(r->last, r->last_group->members, text, size);
	else
		snprintf(text, size, "the job");
}

/* Formats "rank 1 (one of 2 such ranks) has not joined by the deadline of rank 0: barrier, ..." */
static void describe_missing(const struct tess_job_state *s, const struct delay *d, int32_t waiting,
                             int32_t n, const char *awaited, struct tess_failure *out)
{
	const char *missed = n                        ? "has not joined"
	                     : s->joined == s->nranks ? "has not left the job"
	                                              : "has not joined the job";
	char last[LAST_CALL_TEXT], more[48] = "", waits[48] = "";

	tess_describe_last_call(s, d->rank, NULL, last, sizeof last);
	if (d->nmissing > 1)
		snprintf(more, sizeof more, " (one of %d such ranks)", d->nmissing);
	if (d->waits_for >= 0)
		snprintf(waits, sizeof waits, "; it waits for rank %d", d->waits_for);
	set_failure(out, TESS_ETIMEOUT, d->rank,
	            "rank %d%s %s by the deadline of rank %d%s%s%s%s%s", d->rank, more, missed,
	            waiting, n ? ": " : "", n ? awaited : "", *last ? "; " : "", last, waits);
}

bool tess_diagnose_deadline(const struct tess_job_state *s, int32_t rank,
                            const struct tess_call_key *key, int32_t n, struct tess_failure *out)
{
	struct delay d = find_delay(s, rank, key, n);
	char awaited[CALL_TEXT];

	if (d.cause == CAUSE_NONE && n && !key->number)
		return false;
	describe_awaited(s, &d, rank, n, awaited, sizeof awaited);
	switch (d.cause) {
	case CAUSE_NONE:
		set_failure(out, TESS_ETIMEOUT, -1,
		            "%s was not finished by the deadline of rank %d, though all its ranks "
		            "have joined it",
		            awaited, rank);
		break;
	case CAUSE_STOPPED:
		set_failure(out, TESS_ETIMEOUT, d.rank,
		            "rank %d (process %d) is stopped; %s was not finished by the deadline "
		            "of rank %d",
		            d.rank, (int)s->rank[d.rank].pid, awaited, rank);
		break;
	case CAUSE_SILENT:
		set_failure(
			out, TESS_ETIMEOUT, d.rank,
			"rank %d has sent nothing for %.1f s: it has ended, is stopped or cannot "
			"be reached; %s was not finished by the deadline of rank %d",
			d.rank, measure_silence(&s->rank[d.rank]), awaited, rank);
		break;
	case CAUSE_MISSING:
	case CAUSE_CROSSED:
		describe_missing(s, &d, rank, n, awaited, out);
		break;
	}
	return true;
}

/* ---- a plugin that does not return ----------------------------------------------------------- */

/* Lists the ranks in the call of `rank`: "rank 2 has", "ranks 0, 1 and 3 have". */
static void list_staying(const struct tess_job_state *s, int32_t rank, char *text, size_t size)
{
	int32_t n = 0, named = 0;
	size_t len;

	for (int32_t r = 0; r < s->nranks; r++)
		n += s->rank[r].stay && !strcmp(s->rank[r].stay, s->rank[rank].stay);
	len = (size_t)snprintf(text, size, n == 1 ? "rank" : "ranks");
	for (int32_t r = 0; r < s->nranks && named < RANKS_NAMED; r++)
		if (s->rank[r].stay && !strcmp(s->rank[r].stay, s->rank[rank].stay)) {
			const char *before = !named ? " " : named == n - 1 ? " and " : ", ";

			len += (size_t)snprintf(text + len, size - len, "%s%d", before, r);
			named++;
		}
	if (n > named)
		len += (size_t)snprintf(text + len, size - len, " and %d more", n - named);
	snprintf(text + len, size - len, n == 1 ? " has" : " have");
}

void tess_diagnose_stay(const struct tess_job_state *s, int32_t rank, struct tess_failure *out)
{
	char ranks[128];

	list_staying(s, rank, ranks, sizeof ranks);
	set_failure(
		out, TESS_ETIMEOUT, rank,
		"%s been in %s for %.1f s; a call of a plugin may take TESSERA_TIMEOUT seconds: "
		"raise it, or attach a debugger",
		ranks, s->rank[rank].stay, measure_stay(&s->rank[rank]));
}
