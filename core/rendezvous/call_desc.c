#include "call_desc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

size_t tess_call_desc_size(int32_t nranks)
{
	return sizeof(struct tess_call_desc) + (size_t)nranks * 2 * sizeof(uint64_t) + TESS_WHERE;
}

static uint64_t hash_list(uint64_t h, const uint64_t *list, int32_t n)
{
	for (int32_t r = 0; r < n; r++)
		h = tess_hash_mix(h, list[r]);
	return h;
}

uint64_t tess_call_desc_hash(const struct tess_coll *c, int32_t nranks)
{
	bool pair = c->kind == TESS_SEND || c->kind == TESS_RECV;
	uint64_t what = pair ? TESS_SEND : (uint64_t)c->kind;

	if (c->kind == TESS_BARRIER)
		return tess_hash_mix(what, 0);
	what |= (uint64_t)c->dtype << 8 | (uint64_t)(c->send_counts != NULL) << 24 |
	        (uint64_t)(c->recv_counts != NULL) << 25;
	if (tess_kind_reduces(c->kind))
		what |= (uint64_t)c->op << 16;
	if (tess_kind_rooted(c->kind))
		what |= ((uint64_t)c->peer + 1) << 32;
	if (!c->send_counts && !c->recv_counts)
		return tess_hash_mix(what, c->count);
	if (c->send_counts && c->kind != TESS_ALL_TO_ALL)
		what = hash_list(what, c->send_counts, nranks);
	if (c->recv_counts && c->kind != TESS_ALL_TO_ALL)
		what = hash_list(what, c->recv_counts, nranks);
	return tess_hash_mix(what, 0);
}

static inline void write_where(struct tess_call_desc *n, uint64_t *at, const char *where)
{
	size_t len = where ? strnlen(where, TESS_WHERE - 1) : 0;
	uint64_t *last = at + len / 8;

	n->bytes = (uint32_t)((const char *)(last + 1) - (const char *)n);
	*last = 0; /* what follows the last of the letters */
	memcpy(at, where ? where : "", len);
}

static __attribute__((noinline)) void write_lists(struct tess_call_desc *n,
                                                  const struct tess_coll *c)
{
	if (c->send_counts)
		memcpy(n->list, c->send_counts, n->nsend * sizeof *n->list);
	if (c->recv_counts)
		memcpy(n->list + n->nsend, c->recv_counts, n->nrecv * sizeof *n->list);
}

void tess_call_desc_write(struct tess_call_desc *n, const struct tess_coll *c,
                          const struct tess_call_key *key, int32_t nranks)
{
	uint32_t nsend = c->send_counts ? (uint32_t)nranks : 0,
		 nrecv = c->recv_counts ? (uint32_t)nranks : 0;

	*n = (struct tess_call_desc){
		.total = key->channel ? 2 : nranks,
		.key = *key,
		.fingerprint = c->fingerprint,
		.count = c->count,
		.kind = c->kind,
		.dtype = c->dtype,
		.op = c->op,
		.peer = c->peer,
		.nsend = nsend,
		.nrecv = nrecv,
	};
	if (nsend || nrecv)
		write_lists(n, c);
	write_where(n, n->list + nsend + nrecv, c->where);
}

void tess_call_desc_opening(struct tess_call_desc *n, uint32_t id, int32_t nranks)
{
	struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER };
	const struct tess_call_key key = { .group = id };

	c.fingerprint = tess_call_fingerprint(tess_call_desc_hash(&c, nranks), &key, nranks);
	tess_call_desc_write(n, &c, &key, nranks);
}

void tess_call_desc_repeat(struct tess_call_desc *n, uint64_t fingerprint, uint64_t number,
                           const char *where)
{
	n->key.number = number;
	n->fingerprint = fingerprint;
	write_where(n, n->list, where);
}

bool tess_call_desc_match(const struct tess_call_desc *a, int32_t rank_a,
                          const struct tess_call_desc *b, int32_t rank_b)
{
	if (a->fingerprint != b->fingerprint)
		return false;
	if (a->kind != TESS_ALL_TO_ALL || !a->nsend || !b->nsend)
		return a->nsend == b->nsend;
	return a->list[rank_b] == b->list[b->nsend + (uint32_t)rank_a] &&
	       b->list[rank_a] == a->list[a->nsend + (uint32_t)rank_b];
}

static size_t format_counts(const uint64_t *list, uint32_t n, char *text, size_t room)
{
	int len = 0;

	for (uint32_t i = 0; i < n && (size_t)len + 24 < room; i++) {
		if (i == 16)
			return (size_t)len +
			       (size_t)snprintf(text + len, room - (size_t)len, "+...");
		len += snprintf(text + len, room - (size_t)len, "%s%" PRIu64, i ? "+" : "",
		                list[i]);
	}
	return (size_t)len;
}

void tess_call_desc_format(const struct tess_call_desc *n, const struct tess_members *r, char *text,
                           size_t room)
{
	const char *where = (const char *)(n->list + n->nsend + n->nrecv);
	char count[560], how[64], group[160] = "";
	bool member = n->peer >= 0 && n->peer < r->n;
	size_t len = 0;

	if (n->nsend)
		len += format_counts(n->list, n->nsend, count, 256);
	if (n->nsend && n->nrecv)
		len += (size_t)snprintf(count + len, sizeof count - len, " for ");
	if (n->nrecv)
		format_counts(n->list + n->nsend, n->nrecv, count + len, 256);
	if (!n->nsend && !n->nrecv)
		snprintf(count, sizeof count, "%" PRIu64, n->count);
	tess_coll_format_peer(n->kind, n->op, member ? r->member[n->peer] : n->peer, how,
	                      sizeof how);
	if (r->id) {
		memcpy(group, " in ", 4);
		tess_members_format(r, group + 4, sizeof group - 4);
	}
	if (!n->key.number)
		snprintf(text, room, "the opening of %s",
		         r->id ? group + 4 : "the group of all ranks");
	else if (n->kind == TESS_BARRIER)
		snprintf(text, room, "barrier, call %" PRIu64 "%s%s%s", n->key.number, group,
		         *where ? ", at " : "", where);
	else
		snprintf(text, room, "%s of %s %s%s, %s %" PRIu64 "%s%s%s", tess_kind_name(n->kind),
		         count, tess_dtype_name(n->dtype), how, n->key.channel ? "message" : "call",
		         n->key.number, group, *where ? ", at " : "", where);
}

bool tess_call_desc_valid(const struct tess_call_desc *n, size_t bytes, int32_t nranks)
{
	size_t lists;

	if (nranks < 1 || bytes < sizeof *n + 8 || n->bytes != bytes || bytes % 8 ||
	    bytes > tess_call_desc_size(nranks))
		return false;
	if (n->kind == TESS_ALL_TO_ALL && !n->nsend != !n->nrecv)
		return false; /* they are compared pair by pair */
	if ((n->nsend && n->nsend != (uint32_t)nranks) ||
	    (n->nrecv && n->nrecv != (uint32_t)nranks))
		return false;
	lists = (n->nsend + n->nrecv) * sizeof *n->list;
	return lists < bytes - sizeof *n && !((const char *)n)[bytes - 1] &&
	       n->total == (n->key.channel ? 2 : nranks) &&
	       n->key.channel <= (uint64_t)nranks * (uint64_t)nranks;
}
