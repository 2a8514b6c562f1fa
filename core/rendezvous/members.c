#include "members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS_LISTED = 8 }; /* members that a text has */

static size_t compute_members_size(int32_t n)
{
	return (sizeof(struct tess_members) + (size_t)n * sizeof(int32_t) + 7) / 8 * 8;
}

struct tess_members *tess_members_new(uint32_t id, const char *name, int32_t n)
{
	struct tess_members *r = calloc(1, compute_members_size(n));

	if (!r)
		return NULL;
	r->bytes = (uint32_t)compute_members_size(n);
	r->id = id;
	r->n = n;
	snprintf(r->name, sizeof r->name, "%s", name);
	for (int32_t i = 0; i < n; i++)
		r->member[i] = i;
	return r;
}

int32_t tess_members_find(const struct tess_members *r, int32_t world_rank)
{
	if (!r->id)
		return world_rank;
	for (int32_t i = 0; i < r->n; i++)
		if (r->member[i] == world_rank)
			return i;
	return -1;
}

void tess_members_format(const struct tess_members *r, char *text, size_t room)
{
	int32_t told = r->n <= MEMBERS_LISTED ? r->n : MEMBERS_LISTED - 1;
	size_t len =
		(size_t)snprintf(text, room, "group %s of rank%s", r->name, r->n > 1 ? "s" : "");

	for (int32_t i = 0; i < told && len < room; i++)
		len += (size_t)snprintf(text + len, room - len, "%s %d", i ? "," : "",
		                        r->member[i]);
	if (told < r->n && len < room)
		snprintf(text + len, room - len, " and %d more", r->n - told);
}

void tess_members_key(const struct tess_members *r, char text[TESS_MEMBERS_KEY])
{
	if (r->id)
		snprintf(text, TESS_MEMBERS_KEY, "%s#%u", r->name, r->id);
	else
		snprintf(text, TESS_MEMBERS_KEY, "%s", r->name);
}

bool tess_members_valid(const struct tess_members *r, size_t bytes, int32_t nranks)
{
	if (bytes < sizeof *r || !r->id || r->n < 1 || r->n > nranks ||
	    bytes != compute_members_size(r->n) || r->bytes != bytes || r->name[sizeof r->name - 1])
		return false;
	for (int32_t i = 0; i < r->n; i++)
		if (r->member[i] < 0 || r->member[i] >= nranks ||
		    tess_members_find(r, r->member[i]) != i)
			return false; /* no rank, or one that is there twice */
	return true;
}
