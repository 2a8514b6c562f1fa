#include "core/rendezvous/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS_LISTED = 8 }; /* in a sentence */

static size_t compute_members_size(int32_t n)
{
	return (sizeof(struct tess_members) + (size_t)n * sizeof(int32_t) + 7) / 8 * 8;
}

struct tess_members *tess_members_new(uint32_t id, const char *name, int32_t n)
{
	struct tess_members *m = calloc(1, compute_members_size(n));

	if (!m)
		return NULL;
	m->bytes = (uint32_t)compute_members_size(n);
	m->id = id;
	m->n = n;
	snprintf(m->name, sizeof m->name, "%s", name);
	for (int32_t i = 0; i < n; i++)
		m->member[i] = i;
	return m;
}

int32_t tess_members_find(const struct tess_members *m, int32_t world_rank)
{
	if (!m->id)
		return world_rank;
	for (int32_t i = 0; i < m->n; i++)
		if (m->member[i] == world_rank)
			return i;
	return -1;
}

void tess_members_format(const struct tess_members *m, char *text, size_t size)
{
	int32_t listed = m->n <= MEMBERS_LISTED ? m->n : MEMBERS_LISTED - 1;
	size_t len =
		(size_t)snprintf(text, size, "group %s of rank%s", m->name, m->n > 1 ? "s" : "");

	for (int32_t i = 0; i < listed && len < size; i++)
		len += (size_t)snprintf(text + len, size - len, "%s %d", i ? "," : "",
		                        m->member[i]);
	if (listed < m->n && len < size)
		snprintf(text + len, size - len, " and %d more", m->n - listed);
}

void tess_members_key(const struct tess_members *m, char text[TESS_MEMBERS_KEY])
{
	if (m->id)
		snprintf(text, TESS_MEMBERS_KEY, "%s#%u", m->name, m->id);
	else
		snprintf(text, TESS_MEMBERS_KEY, "%s", m->name);
}

bool tess_members_valid(const struct tess_members *m, size_t bytes, int32_t nranks)
{
	if (bytes < sizeof *m || !m->id || m->n < 1 || m->n > nranks ||
	    bytes != compute_members_size(m->n) || m->bytes != bytes || m->name[sizeof m->name - 1])
		return false;
	for (int32_t i = 0; i < m->n; i++)
		if (m->member[i] < 0 || m->member[i] >= nranks ||
		    tess_members_find(m, m->member[i]) != i)
			return false; /* not a rank, or listed twice */
	return true;
}
