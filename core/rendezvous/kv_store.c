#include "core/rendezvous/kv_store.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

tess_status tess_kv_store_set(struct tess_kv_store *store, const char *key, const void *val,
                              uint64_t len)
{
	struct tess_kv_entry *p;

	if (tess_kv_store_find(store, key))
		return tess_fail(TESS_EINVAL,
		                 "the key %s is set already; a group name is used once", key);
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
	p->next = store->first;
	store->first = p;
	return TESS_OK;
}

const struct tess_kv_entry *tess_kv_store_find(const struct tess_kv_store *store, const char *key)
{
	const struct tess_kv_entry *p = store->first;

	while (p && strcmp(p->key, key))
		p = p->next;
	return p;
}

static void free_entry(struct tess_kv_entry **at)
{
	struct tess_kv_entry *p = *at;

	*at = p->next;
	free(p->val);
	free(p);
}

void tess_kv_store_drop(struct tess_kv_store *store, const char *prefix)
{
	size_t len = strlen(prefix);

	for (struct tess_kv_entry **at = &store->first; *at;)
		if (!strncmp((*at)->key, prefix, len) && (*at)->key[len] == '/')
			free_entry(at);
		else
			at = &(*at)->next;
}

void tess_kv_store_free(struct tess_kv_store *store)
{
	while (store->first)
		free_entry(&store->first);
}
