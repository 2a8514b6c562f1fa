/* pairs.h - keys and values, each set once. No lock: whoever holds the pairs has one. */
#ifndef TESS_COMM_PAIRS_H
#define TESS_COMM_PAIRS_H

#include <tessera/plugin.h>

struct tess_pair {
	struct tess_pair *next;
	uint64_t len;
	char *val; /* aligned for any type */
	char key[];
};

struct tess_pairs { /* {0}: none */
	struct tess_pair *first;
};

/* Copies both. TESS_EINVAL: the key is there already. */
tess_status tess_pairs_set(struct tess_pairs *all, const char *key, const void *val, uint64_t len);
/* NULL: it is not there. Borrowed until it is dropped. */
const struct tess_pair *tess_pairs_find(const struct tess_pairs *all, const char *key);
/* All keys that begin with `prefix` and a slash. */
void tess_pairs_drop(struct tess_pairs *all, const char *prefix);
void tess_pairs_free(struct tess_pairs *all);

#endif
