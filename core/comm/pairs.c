#include "pairs.h"

#include <core/base/status.h>
#include <stdlib.h>
#include <string.h>

tess_status tess_pairs_set(struct tess_pairs *all, const char *key, const void *val, uint64_t len)
{
	struct tess_pair *p;

	if (tess_pairs_find(all, key))
		return tess_fail(TESS_EINVAL,
		                 "the key %s is set a second time; names of groups are used once",
		                 key);
	p = malloc(sizeof *p + strlen(key) + 1);
	if (p)
		p->val = malloc(len + 1);
	if (!p || !p->val) {
		free(p);
		return tess_fail(TESS_ENOMEM, "no memory for the key %s", key);
	}
	memcpy(p->key, key, strlen(key) + 1);
	memcpy(p->val, val, len);
	p->len = len;
	p->next = all->first;
	all->first = p;
	return TESS_OK;
}

const struct tess_pair *tess_pairs_find(const struct tess_pairs *all, const char *key)
{
	const struct tess_pair *p = all->first;

	while (p && strcmp(p->key, key))
		p = p->next;
	return p;
}

static void drop(struct tess_pair **at)
{
	struct tess_pair *p = *at;

	*at = p->next;
	free(p->val);
	free(p);
}

void tess_pairs_drop(struct tess_pairs *all, const char *prefix)
{
	size_t len = strlen(prefix);

	for (struct tess_pair **at = &all->first; *at;)
		if (!strncmp((*at)->key, prefix, len) && (*at)->key[len] == '/')
			drop(at);
		else
			at = &(*at)->next;
}

void tess_pairs_free(struct tess_pairs *all)
{
	while (all->first)
		drop(&all->first);
}
