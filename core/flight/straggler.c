#include "core/flight/straggler.h"

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/flight/flight.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_BYTES_MAX = 4 << 20, RANKS_NAMED_MAX = 8, CALLS_NAMED_MAX = 3 };
enum { NO_STRAGGLER = -1, CIRCULAR_WAIT = -2 };

struct job_records {
	int32_t nranks;
	const struct tess_lost_rank *lost;
	json_t **record; /* [nranks]: the record of a rank, or NULL */
	int32_t *awaited; /* [nranks]: the rank that a rank waits for, or -1 */
};

static const char *get_text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

static int64_t get_number(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

static const json_t *get_calls(const struct job_records *v, int32_t rank)
{
	return json_object_get(v->record[rank], "calls");
}

static bool is_pending(const json_t *call)
{
	return strcmp(get_text(call, "state"), "finished") != 0;
}

/* ---- which rank waits for which -------------------------------------------------------------- */

/* Returns the world ranks of a group, from any record that has it; NULL: none. */
static const json_t *find_group_ranks(const struct job_records *v, const char *group)
{
	for (int32_t r = 0; r < v->nranks; r++) {
		const json_t *groups = json_object_get(v->record[r], "groups"), *g;
		size_t i;

		json_array_foreach(groups, i, g)
			if (!strcmp(get_text(g, "name"), group))
				return json_object_get(g, "ranks");
	}
	return NULL;
}

/* Returns the progress of a rank with this call: twice the number, less 1 during the call. */
static int64_t measure_progress(const json_t *call)
{
	return 2 * get_number(call, "number") - is_pending(call);
}

/* Returns the progress of a rank in a channel; 0: no call is in its record. */
static int64_t find_progress(const struct job_records *v, int32_t rank, const char *group,
                             int64_t channel)
{
	const json_t *calls = get_calls(v, rank), *c;
	int64_t last = 0;
	size_t i;

	json_array_foreach(calls, i, c)
		if (get_number(c, "channel") == channel && !strcmp(get_text(c, "group"), group) &&
		    measure_progress(c) > last)
			last = measure_progress(c);
	return last;
}

/*
 * Returns the rank that `me` waits for in an unfinished call: a lost rank, else the one with the
 * lowest call number. Of two such ranks, the one that is still in that call: the other may be
 * opening a group, which is no call. A rank without a call of that group in its record has not made
 * this one, which would be newer.
 */
static int32_t find_awaited_in(const struct job_records *v, int32_t me, const json_t *call)
{
	const char *group = get_text(call, "group");
	int64_t channel = get_number(call, "channel"), lowest = measure_progress(call);
	const json_t *ranks = find_group_ranks(v, group), *m;
	int32_t awaited = -1;
	size_t i;

	json_array_foreach(ranks, i, m) {
		int32_t r = (int32_t)json_integer_value(m);
		int64_t at;

		if (r == me || r < 0 || r >= v->nranks ||
		    (channel && (int64_t)i != get_number(call, "peer")))
			continue;
		if (!v->record[r])
			return r;
		at = find_progress(v, r, group, channel);
		if (at < lowest) {
			lowest = at;
			awaited = r;
		}
	}
	return awaited;
}

static int32_t find_awaited_by(const struct job_records *v, int32_t rank)
{
	const json_t *calls = get_calls(v, rank), *c;
	int32_t awaited = -1;
	size_t i;

	json_array_foreach(calls, i, c)
		if (awaited < 0 && is_pending(c))
			awaited = find_awaited_in(v, rank, c);
	return awaited;
}

/* Returns a lost rank that another waits for; else the end of the chain of waiting ranks. */
static int32_t find_straggler(const struct job_records *v)
{
	int32_t at = NO_STRAGGLER;

	for (int32_t r = 0; r < v->nranks; r++)
		if (v->awaited[r] >= 0 && !v->record[v->awaited[r]])
			return v->awaited[r];
	for (int32_t r = 0; r < v->nranks && at < 0; r++)
		at = v->awaited[r];
	for (int32_t steps = 0; at >= 0 && v->awaited[at] >= 0; steps++) {
		if (steps == v->nranks)
			return CIRCULAR_WAIT;
		at = v->awaited[at];
	}
	for (int32_t r = 0; r < v->nranks && at < 0; r++)
		if (!v->record[r])
			return r;
	return at;
}

/* ---- the sentence ---------------------------------------------------------------------------- */

struct sentence_buffer {
	char *text;
	size_t len, size;
};

static void TESS_PRINTF(2, 3) append_text(struct sentence_buffer *w, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(w->text + w->len, w->size - w->len, fmt, ap);
	va_end(ap);
	if (n > 0)
		w->len = w->len + (size_t)n < w->size ? w->len + (size_t)n : w->size - 1;
}

/* Returns the oldest call that a rank has not finished; NULL: none. */
static const json_t *find_pending(const struct job_records *v, int32_t rank)
{
	const json_t *calls = get_calls(v, rank), *c;
	size_t i;

	json_array_foreach(calls, i, c)
		if (is_pending(c))
			return c;
	return NULL;
}

/* Appends "barrier, call 3, at end", and the group unless it has all ranks. */
static void append_call(struct sentence_buffer *w, const json_t *call)
{
	const char *group = get_text(call, "group");

	append_text(w, "%s", get_text(call, "text"));
	if (*group && strcmp(group, "world") && !strstr(get_text(call, "text"), " in group "))
		append_text(w, ", in group %s", group);
}

static bool is_same_call(const json_t *a, const json_t *b)
{
	return a && b && !strcmp(get_text(a, "text"), get_text(b, "text")) &&
	       !strcmp(get_text(a, "group"), get_text(b, "group"));
}

/* Returns the call of a plugin in which a rank is, if it has lasted; NULL: none. */
static const json_t *find_plugin_call(const struct job_records *v, int32_t rank)
{
	const json_t *p = json_object_get(v->record[rank], "plugin");

	return p && json_number_value(json_object_get(p, "seconds")) > 0 ? p : NULL;
}

static void append_plugin_call(struct sentence_buffer *w, const json_t *p)
{
	append_text(w, "been in %s for %.1f s", get_text(p, "call"),
	            json_number_value(json_object_get(p, "seconds")));
}

static bool is_in_call(const struct job_records *v, int32_t rank, const json_t *call)
{
	return is_same_call(find_pending(v, rank), call);
}

static bool is_in_plugin(const struct job_records *v, int32_t rank, const json_t *call)
{
	const json_t *p = find_plugin_call(v, rank);

	return p && call && !strcmp(get_text(p, "call"), get_text(call, "call"));
}

/* Appends "ranks 0, 1 and 3": those in a call by `is_in`, except one. Returns their number. */
static int32_t append_ranks(struct sentence_buffer *w, const struct job_records *v,
                            bool (*is_in)(const struct job_records *v, int32_t rank,
                                          const json_t *call),
                            const json_t *call, int32_t except)
{
	int32_t rank[RANKS_NAMED_MAX], n = 0;

	for (int32_t r = 0; r < v->nranks; r++)
		if (r != except && is_in(v, r, call)) {
			if (n < RANKS_NAMED_MAX)
				rank[n] = r;
			n++;
		}
	append_text(w, n == 1 ? "rank " : "ranks ");
	for (int32_t i = 0; i < n && i < RANKS_NAMED_MAX; i++)
		append_text(w, "%s%d", !i ? "" : i == n - 1 ? " and " : ", ", rank[i]);
	if (n > RANKS_NAMED_MAX)
		append_text(w, " and %d more", n - RANKS_NAMED_MAX);
	return n;
}

/* Appends the calls of plugins in which ranks are. */
static void append_plugin_calls(struct sentence_buffer *w, const struct job_records *v,
                                int32_t except)
{
	for (int32_t r = 0; r < v->nranks; r++) {
		const json_t *p = r == except ? NULL : find_plugin_call(v, r);
		bool named = false;

		for (int32_t i = 0; i < r && !named; i++)
			named = i != except && is_in_plugin(v, i, p);
		if (!p || named)
			continue;
		append_text(w, w->len ? "; " : "");
		append_text(w,
		            append_ranks(w, v, is_in_plugin, p, except) == 1 ? " has " : " have ");
		append_plugin_call(w, p);
	}
}

/* Appends "ranks 0, 1 and 3 are in barrier, call 42, at end": ranks in this call, except one. */
static void append_ranks_in(struct sentence_buffer *w, const struct job_records *v,
                            const json_t *call, int32_t except)
{
	append_text(w, append_ranks(w, v, is_in_call, call, except) == 1 ? " is in " : " are in ");
	append_call(w, call);
}

/* Appends a few calls of other ranks, in order of ranks. */
static void append_other_calls(struct sentence_buffer *w, const struct job_records *v,
                               int32_t except)
{
	int32_t named = 0;

	for (int32_t r = 0; r < v->nranks; r++) {
		const json_t *call = r == except ? NULL : find_pending(v, r);
		bool named_before = false;

		for (int32_t i = 0; i < r && !named_before; i++)
			named_before = i != except && is_same_call(find_pending(v, i), call);
		if (!call || named_before)
			continue;
		if (named++ == CALLS_NAMED_MAX) {
			append_text(w, "; other ranks are in other calls");
			return;
		}
		append_text(w, "; ");
		append_ranks_in(w, v, call, except);
	}
}

/* Returns whether a rank that finished the call has received data from every rank. */
static bool is_joint(const json_t *call)
{
	static const char *const kinds[] = { "barrier", "all_reduce", "all_gather",
		                             "reduce_scatter", "all_to_all" };

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(get_text(call, "kind"), kinds[i]))
			return true;
	return false;
}

/* Returns the last call that others finished with a lost rank; NULL: none newly known. */
static const json_t *find_last_finished(const struct job_records *v,
                                        const struct tess_lost_rank *lost)
{
	int64_t number = (int64_t)lost->reached;
	const json_t *last = NULL, *c;
	size_t i;

	for (int32_t r = 0; r < v->nranks; r++)
		json_array_foreach(get_calls(v, r), i, c)
			if (!is_pending(c) && is_joint(c) &&
			    !strcmp(get_text(c, "group"), "world") &&
			    get_number(c, "number") > number) {
				number = get_number(c, "number");
				last = c;
			}
	return last;
}

static void append_lost_rank(struct sentence_buffer *w, const struct job_records *v, int32_t rank)
{
	const struct tess_lost_rank *lost = &v->lost[rank];
	const json_t *last = find_last_finished(v, lost);

	append_text(w, "rank %d %s and left no record; ", rank, lost->how);
	if (last) {
		append_text(w, "the last call that other ranks finished with it was ");
		append_call(w, last);
	} else if (*lost->last_call) {
		append_text(w, "%s", lost->last_call);
	} else {
		append_text(w, "it had not joined the job");
	}
}

static void append_straggler(struct sentence_buffer *w, const struct job_records *v, int32_t rank)
{
	const json_t *calls = get_calls(v, rank), *last;

	if (!v->record[rank]) {
		append_lost_rank(w, v, rank);
		return;
	}
	last = json_array_get(calls, json_array_size(calls) - 1);
	append_text(w, "rank %d is the straggler: ", rank);
	if (!last)
		append_text(w, "it has made no call");
	else
		append_text(w, find_pending(v, rank) ? "it is in " : "its last call was ");
	if (last)
		append_call(w, find_pending(v, rank) ? find_pending(v, rank) : last);
	if (find_plugin_call(v, rank)) {
		append_text(w, "; it has ");
		append_plugin_call(w, find_plugin_call(v, rank));
	}
}

static void append_summary(struct sentence_buffer *w, const struct job_records *v,
                           int32_t straggler)
{
	bool any = false;

	for (int32_t r = 0; r < v->nranks; r++)
		any |= find_pending(v, r) != NULL;
	if (straggler >= 0)
		append_straggler(w, v, straggler);
	else if (any)
		append_text(w, straggler == CIRCULAR_WAIT ? "ranks wait for each other"
		                                          : "no rank is a straggler");
	append_other_calls(w, v, straggler);
	append_plugin_calls(w, v, straggler);
}

/* ---- records --------------------------------------------------------------------------------- */

static bool read_records(struct job_records *v, const char *dir)
{
	char path[4096];
	bool any = false;

	for (int32_t r = 0; r < v->nranks; r++) {
		tess_flight_path(dir, r, path, sizeof path);
		if (tess_json_load(path, RECORD_BYTES_MAX, &v->record[r]))
			v->record[r] = NULL;
		any |= v->record[r] != NULL;
	}
	for (int32_t r = 0; r < v->nranks; r++)
		v->awaited[r] = v->record[r] ? find_awaited_by(v, r) : -1;
	return any;
}

static json_t *merge_records(const struct job_records *v, int32_t straggler, const char *sentence)
{
	json_t *records = json_array(),
	       *rank = straggler < 0 ? json_null() : json_integer(straggler);

	for (int32_t r = 0; r < v->nranks; r++)
		if (v->record[r])
			json_array_append(records, v->record[r]);
		else
			json_array_append_new(records,
			                      json_pack("{s:i, s:s, s:s}", "rank", (int)r, "lost",
			                                v->lost[r].how, "last_call",
			                                v->lost[r].last_call));
	return json_pack("{s:i, s:s, s:o, s:o}", "ranks", (int)v->nranks, "sentence", sentence,
	                 "straggler", rank, "records", records);
}

tess_status tess_straggler_find(const char *dir, int32_t nranks, const struct tess_lost_rank *lost,
                                json_t **merged, char *sentence, size_t size)
{
	struct job_records v = { .nranks = nranks, .lost = lost };
	struct sentence_buffer w = { .text = sentence, .size = size };
	tess_status st = TESS_OK;
	int32_t straggler = NO_STRAGGLER;
	json_t *all;

	v.record = calloc((size_t)nranks, sizeof *v.record);
	v.awaited = calloc((size_t)nranks, sizeof *v.awaited);
	if (!v.record || !v.awaited) {
		st = tess_fail(TESS_ENOMEM, "no memory for the records of %d ranks", nranks);
		goto out;
	}
	*sentence = '\0';
	if (read_records(&v, dir)) {
		straggler = find_straggler(&v);
		append_summary(&w, &v, straggler);
	}
	all = merge_records(&v, straggler, sentence);
	if (all)
		*merged = all;
	else
		st = tess_fail(TESS_ENOMEM, "no memory for the records of %d ranks", nranks);
out:
	for (int32_t r = 0; v.record && r < nranks; r++)
		json_decref(v.record[r]);
	free(v.record);
	free(v.awaited);
	return st;
}
