/* pairs.h - keys and values, each set once. No lock: whoever holds the pairs has one. */
#ifndef TESS_COMM_PAIRS_H
#define TESS_COMM_PAIRS_H

#include <tessera/plugin.h>

struct tess_kv_entry {
	struct tess_kv_entry *next;
	uint64_t len;
	char *val; /* aligned for any type */
	char key[];
};

struct tess_kv_store { /* {0}: none */
	struct tess_kv_entry *first;
};

/* Copies both. TESS_EINVAL: the key is there already. */
tess_status tess_kv_store_set(struct tess_kv_store *all, const char *key, const void *val,
                              uint64_t len);
/* NULL: it is not there. Borrowed until it is dropped. */
const struct tess_kv_entry *tess_kv_store_find(const struct tess_kv_store *all, const char *key);
/* All keys that begin with `prefix` and a slash. */
void tess_kv_store_drop(struct tess_kv_store *all, const char *prefix);
void tess_kv_store_free(struct tess_kv_store *all);

#endif
