/*
 * note.h - what a rank tells the others of a call before it makes it, so that two calls that do not
 * fit are named instead of waited for. One block of memory: kept, compared and sent as it is.
 */
#ifndef TESS_COMM_NOTE_H
#define TESS_COMM_NOTE_H

#include "members.h"

#include <tessera/coll.h>

struct tess_call_key { /* one call of a job */
	uint32_t group; /* its id; 0: all ranks */
	uint32_t channel; /* 0: collectives; 1 + source * ranks + destination: send, recv */
	uint64_t number; /* in this channel, from 1; 0: the opening of the group */
};

enum { TESS_WHERE = 104 }; /* bytes of `where` that are kept, the 0 included */

struct tess_call_desc {
	uint32_t bytes; /* of all, a multiple of 8 */
	int32_t total; /* ranks that make this call */
	struct tess_call_key key;
	uint64_t fingerprint, count;
	int32_t kind, dtype, op, peer;
	uint32_t nsend, nrecv; /* entries of the lists */
	uint64_t list[]; /* give, get, then `where`, ended by 0 */
};

/* Bytes that a note in a group of `nranks` may take. */
size_t tess_call_desc_size(int32_t nranks);

/*
 * What all ranks of a group of `nranks` must agree on of call `c`: kind, dtype, op, root, and counts or
 * the lists that are the same everywhere. The lists of all_to_all differ; they are compared pair by
 * pair (tess_call_desc_match).
 */
uint64_t tess_call_desc_hash(const struct tess_coll *c, int32_t nranks);

/* The finaliser of MurmurHash3 over h and x. */
static inline uint64_t tess_hash_mix(uint64_t h, uint64_t x)
{
	h ^= x + 0x9e3779b97f4a7c15;
	h = (h ^ h >> 33) * 0xff51afd7ed558ccd;
	h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53;
	return h ^ h >> 33;
}

/*
 * The print of such a call: what it is, and which. Every call waits for it: products side by side, then
 * mixed once.
 */
static inline uint64_t tess_call_fingerprint(uint64_t what, const struct tess_call_key *key,
                                             int32_t nranks)
{
	uint64_t where = ((uint64_t)key->group << 32 | key->channel) * 0x9fb21c651e98df25;
	uint64_t which =
		(key->number ^ (uint64_t)(key->channel ? 2 : nranks) << 48) * 0xd6e8feb86659fd93;

	return tess_hash_mix(what, where + which);
}

/* Writes the note of call `c`, which has its print. */
void tess_call_desc_write(struct tess_call_desc *n, const struct tess_coll *c,
                          const struct tess_call_key *key, int32_t nranks);
/* Writes the note of the opening of group `id`, which has the number 0: a barrier before all calls. */
void tess_call_desc_opening(struct tess_call_desc *n, uint32_t id, int32_t nranks);
/* Makes it that of another call without lists that differs in no more than this. */
void tess_call_desc_repeat(struct tess_call_desc *n, uint64_t print, uint64_t number,
                           const char *where);

/* Whether two ranks' notes of one key are one call; the ranks are those in their group. */
bool tess_call_desc_match(const struct tess_call_desc *a, int32_t rank_a,
                          const struct tess_call_desc *b, int32_t rank_b);

/*
 * "all_reduce of 1024 f32 (sum), call 42 in group dp/1 of ranks 1, 3, at layers.3.mlp.down:out"; the group of
 * all ranks goes without saying. Peers are named by their world ranks.
 */
void tess_call_desc_format(const struct tess_call_desc *n, const struct tess_members *r, char *text,
                           size_t room);

/*
 * Whether `bytes` at `n`, aligned to 8, are a note of a group of `nranks` that may be read; for what comes
 * over a socket.
 */
bool tess_call_desc_valid(const struct tess_call_desc *n, size_t bytes, int32_t nranks);

#endif
