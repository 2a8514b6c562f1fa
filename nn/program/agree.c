#include "nn/program/agree.h"

#include "core/base/status.h"
#include "core/world/group.h"
#include "core/world/world.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE = 1024, SHOWN_BEFORE = 24 };

struct pairs_hash { /* zeros: a rank without pairs */
	int64_t part[2];
};

tess_status tess_group_agree_status(struct tess_group *g, tess_status st, const char *where)
{
	int32_t n = tess_group_size(g), first = 0, *all = calloc((size_t)n, sizeof *all);
	char sentence[SENTENCE];
	tess_status came;

	if (!all)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", where);
	snprintf(sentence, sizeof sentence, "%s", st ? tess_error() : "");
	came = tess_all_gather(g, &st, all, 1, TESS_I32, where);
	while (!came && first < n && !all[first])
		first++;
	st = came || first == n ? TESS_OK : all[first];
	free(all);
	if (st)
		came = tess_broadcast(g, sentence, SENTENCE, TESS_I8, first, where);
	if (came)
		return came;
	return st ? tess_group_fail_agreed(g, first, st, sentence) : TESS_OK;
}

/* ---- lists of pairs -------------------------------------------------------------------------- */

static struct pairs_hash hash_pairs(const char *pairs, uint64_t len)
{
	struct pairs_hash hash = { 0 };

	if (len)
		crypto_generichash((unsigned char *)&hash, sizeof hash,
		                   (const unsigned char *)pairs, len, NULL, 0);
	return hash;
}

/* Returns the lowest rank whose hash is the most frequent one; -1: no two hashes differ. */
static int32_t choose_reference_rank(const struct pairs_hash *all, int32_t n)
{
	static const struct pairs_hash none;
	int32_t best = -1, most = 0, having = 0;

	for (int32_t r = 0; r < n; r++)
		having += memcmp(&all[r], &none, sizeof none) != 0;
	for (int32_t r = 0; r < n && 2 * most <= having; r++) {
		int32_t count = 0;

		for (int32_t q = r; q < n && memcmp(&all[r], &none, sizeof none); q++)
			count += !memcmp(&all[r], &all[q], sizeof none);
		if (count > most) {
			most = count;
			best = r;
		}
	}
	return most < having ? best : -1;
}

static const char *get_pair_value(const char *pair)
{
	return pair + strlen(pair) + 1;
}

static const char *get_next_pair(const char *pair)
{
	const char *value = get_pair_value(pair);

	return value + strlen(value) + 1;
}

static bool has_pair(const char *pair, const char *end, const char *name)
{
	while (pair < end && strcmp(pair, name) != 0)
		pair = get_next_pair(pair);
	return pair < end;
}

const char *tess_difference_skip_common(struct tess_difference *d)
{
	size_t n = 0;

	while (d->mine && d->theirs && d->mine[n] && d->mine[n] == d->theirs[n])
		n++;
	if (n <= 2 * SHOWN_BEFORE)
		return "";
	d->mine += n - SHOWN_BEFORE;
	d->theirs += n - SHOWN_BEFORE;
	return "...";
}

/* Finds the first difference of two lists that differ. */
static struct tess_difference find_pair_difference(const char *mine, const char *end,
                                                   const char *theirs, const char *their_end,
                                                   int32_t rank)
{
	struct tess_difference d = { .rank = rank };

	while (mine < end && theirs < their_end && !strcmp(mine, theirs) &&
	       !strcmp(get_pair_value(mine), get_pair_value(theirs))) {
		mine = get_next_pair(mine);
		theirs = get_next_pair(theirs);
	}
	if (mine < end && !has_pair(theirs, their_end, mine)) {
		d.name = mine;
		d.mine = get_pair_value(mine);
		return d;
	}
	d.name = theirs;
	d.theirs = get_pair_value(theirs);
	if (mine < end && !strcmp(mine, theirs))
		d.mine = get_pair_value(mine);
	return d;
}

/* Collective. Sends the pairs of rank `from` to every rank. Free *out. */
static tess_status share_pairs(struct tess_group *g, int32_t from, const char *pairs, uint64_t len,
                               const char *where, char **out, int64_t *nout)
{
	int64_t n = (int64_t)len;
	tess_status st = tess_broadcast(g, &n, 1, TESS_I64, from, where);

	*nout = st ? 0 : n;
	*out = malloc((size_t)*nout + 1);
	if (!st)
		st = tess_group_agree_status(
			g, *out ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", where),
			where);
	if (!st && tess_group_rank(g) == from)
		memcpy(*out, pairs, len);
	return st ? st : tess_broadcast(g, *out, (uint64_t)n, TESS_I8, from, where);
}

tess_status tess_group_compare_pairs(struct tess_group *g, const char *pairs, uint64_t len,
                                     const char *where,
                                     tess_status (*explain)(void *arg, struct tess_difference *d),
                                     void *arg)
{
	struct pairs_hash mine = hash_pairs(pairs, len), *all;
	int32_t nranks = tess_group_size(g), from;
	char *theirs = NULL;
	int64_t n;
	tess_status st;

	if (nranks == 1)
		return TESS_OK;
	all = calloc((size_t)nranks, sizeof *all);
	if (!all)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", where);
	st = tess_all_gather(g, &mine, all, 2, TESS_I64, where);
	from = st ? -1 : choose_reference_rank(all, nranks);
	if (from >= 0) {
		bool differs = len && memcmp(&mine, &all[from], sizeof mine) != 0;

		st = share_pairs(g, from, pairs, len, where, &theirs, &n);
		if (!st && differs) {
			struct tess_difference d =
				find_pair_difference(pairs, pairs + len, theirs, theirs + n,
			                             (int32_t)g->members->member[from]);

			st = explain(arg, &d);
		}
		st = tess_group_agree_status(g, st, where);
	}
	free(theirs);
	free(all);
	return st;
}

static tess_status post_rank_failure(struct tess_group *g, tess_status st)
{
	char sentence[SENTENCE];

	if (!st)
		return TESS_OK;
	snprintf(sentence, sizeof sentence, "%s", tess_error());
	return tess_world_post_failure(g->world, st, sentence);
}

tess_status tess_group_agree_unless_apart(struct tess_group *g, bool apart, tess_status st,
                                          const char *where)
{
	return apart ? post_rank_failure(g, st) : tess_group_agree_status(g, st, where);
}

tess_status tess_group_post_stage_failure(struct tess_group *g, const struct tess_program *p,
                                          tess_status st)
{
	return p->pipeline_along < 0 ? st : post_rank_failure(g, st);
}
