/* kv_store.h - keys and values, each set once. The caller has the lock. */
#ifndef TESS_RENDEZVOUS_KV_STORE_H
#define TESS_RENDEZVOUS_KV_STORE_H

#include <tessera/plugin.h>

struct tess_kv_entry {
	struct tess_kv_entry *next;
	uint64_t len;
	char *val; /* aligned for any type */
	char key[];
};

struct tess_kv_store { /* {0}: empty */
	struct tess_kv_entry *first;
};

/* Sets a key; copies key and value. TESS_EINVAL: the key is set already. */
tess_status tess_kv_store_set(struct tess_kv_store *store, const char *key, const void *val,
                              uint64_t len);
/* Returns the entry of a key, borrowed until it is dropped; NULL: not set. */
const struct tess_kv_entry *tess_kv_store_find(const struct tess_kv_store *store, const char *key);
/* Drops all keys that begin with `prefix` and a slash. */
void tess_kv_store_drop(struct tess_kv_store *store, const char *prefix);
void tess_kv_store_free(struct tess_kv_store *store);

#endif
