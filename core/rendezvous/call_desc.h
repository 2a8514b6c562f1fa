/*
 * call_desc.h - describes a call to the other ranks before it is made, so that a mismatch is
 * reported at once, not at a deadline. One block of memory, stored, compared and sent unchanged.
 */
#ifndef TESS_RENDEZVOUS_CALL_DESC_H
#define TESS_RENDEZVOUS_CALL_DESC_H

#include "core/rendezvous/members.h"

#include <tessera/coll.h>

struct tess_call_key { /* one call of a job */
	uint32_t group; /* its id; 0: all ranks */
	uint32_t channel; /* 0: collectives; 1 + source * ranks + destination: send, recv */
	uint64_t number; /* in this channel, from 1; 0: the opening of the group */
};

enum { TESS_WHERE = 104 }; /* bytes of `where` that are kept, with the 0 */

struct tess_call_desc {
	uint32_t bytes; /* size of the descriptor, a multiple of 8 */
	int32_t total; /* number of ranks that make this call */
	struct tess_call_key key;
	uint64_t fingerprint, count;
	int32_t kind, dtype, op, peer;
	uint32_t nsend, nrecv; /* entries of the lists */
	uint64_t list[]; /* send_counts, recv_counts, then `where`, ended by 0 */
};

/* Returns the maximum size of a descriptor in a group of `nranks`, in bytes. */
size_t tess_call_desc_size(int32_t nranks);

/*
 * Hashes what all ranks of a group of `nranks` must agree on in call `c`: kind, dtype, op, root,
 * and counts or lists that are equal on all ranks. The lists of all_to_all differ and are compared
 * pair by pair (tess_call_desc_match).
 */
uint64_t tess_call_desc_hash(const struct tess_coll *c, int32_t nranks);

/* Mixes h and x by the finaliser of MurmurHash3. */
static inline uint64_t tess_hash_mix(uint64_t h, uint64_t x)
{
	h ^= x + 0x9e3779b97f4a7c15;
	h = (h ^ h >> 33) * 0xff51afd7ed558ccd;
	h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53;
	return h ^ h >> 33;
}

/*
 * Returns the fingerprint of a call, from its contents (tess_call_desc_hash) and its key. It is on
 * the path of every call, so independent products are mixed once.
 */
static inline uint64_t tess_call_fingerprint(uint64_t what, const struct tess_call_key *key,
                                             int32_t nranks)
{
	uint64_t where = ((uint64_t)key->group << 32 | key->channel) * 0x9fb21c651e98df25;
	uint64_t which =
		(key->number ^ (uint64_t)(key->channel ? 2 : nranks) << 48) * 0xd6e8feb86659fd93;

	return tess_hash_mix(what, where + which);
}

/* Writes the descriptor of call `c`, whose fingerprint is set. */
void tess_call_desc_write(struct tess_call_desc *d, const struct tess_coll *c,
                          const struct tess_call_key *key, int32_t nranks);
/* Describes the opening of group `id`: number 0, a barrier before all calls. */
void tess_call_desc_opening(struct tess_call_desc *d, uint32_t id, int32_t nranks);

/* Returns whether two ranks' descriptors of one key agree; ranks are those in the group. */
bool tess_call_desc_match(const struct tess_call_desc *a, int32_t rank_a,
                          const struct tess_call_desc *b, int32_t rank_b);

/*
 * Formats a call: "all_reduce of 1024 f32 (sum), call 42 in group dp/1 of ranks 1, 3, at
 * layers.3.mlp.down:out". Omits the group of all ranks. Peers are world ranks.
 */
void tess_call_desc_format(const struct tess_call_desc *d, const struct tess_members *m, char *text,
                           size_t size);

/*
 * Returns whether `bytes` at `d`, aligned to 8, are a well-formed descriptor of a group of
 * `nranks`; for input from a socket.
 */
bool tess_call_desc_valid(const struct tess_call_desc *d, size_t bytes, int32_t nranks);

#endif
