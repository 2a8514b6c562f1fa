#include "core/rendezvous/call_desc.h"

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

static inline void write_where(struct tess_call_desc *d, uint64_t *at, const char *where)
{
	size_t len = where ? strnlen(where, TESS_WHERE - 1) : 0;
	uint64_t *last = at + len / 8;

	d->bytes = (uint32_t)((const char *)(last + 1) - (const char *)d);
	*last = 0; /* the bytes after the text */
	memcpy(at, where ? where : "", len);
}

static __attribute__((noinline)) void write_lists(struct tess_call_desc *d,
                                                  const struct tess_coll *c)
{
	if (c->send_counts)
		memcpy(d->list, c->send_counts, d->nsend * sizeof *d->list);
	if (c->recv_counts)
		memcpy(d->list + d->nsend, c->recv_counts, d->nrecv * sizeof *d->list);
}

void tess_call_desc_write(struct tess_call_desc *d, const struct tess_coll *c,
                          const struct tess_call_key *key, int32_t nranks)
{
	uint32_t nsend = c->send_counts ? (uint32_t)nranks : 0,
		 nrecv = c->recv_counts ? (uint32_t)nranks : 0;

	*d = (struct tess_call_desc){
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
		write_lists(d, c);
	write_where(d, d->list + nsend + nrecv, c->where);
}

void tess_call_desc_opening(struct tess_call_desc *d, uint32_t id, int32_t nranks)
{
	struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER };
	const struct tess_call_key key = { .group = id };

	c.fingerprint = tess_call_fingerprint(tess_call_desc_hash(&c, nranks), &key, nranks);
	tess_call_desc_write(d, &c, &key, nranks);
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

static size_t format_counts(const uint64_t *list, uint32_t n, char *text, size_t size)
{
	int len = 0;

	for (uint32_t i = 0; i < n && (size_t)len + 24 < size; i++) {
		if (i == 16)
			return (size_t)len +
			       (size_t)snprintf(text + len, size - (size_t)len, "+...");
		len += snprintf(text + len, size - (size_t)len, "%s%" PRIu64, i ? "+" : "",
		                list[i]);
	}
	return (size_t)len;
}

void tess_call_desc_format(const struct tess_call_desc *d, const struct tess_members *m, char *text,
                           size_t size)
{
	const char *where = (const char *)(d->list + d->nsend + d->nrecv);
	char count[560], how[64], group[160] = "";
	bool member = d->peer >= 0 && d->peer < m->n;
	size_t len = 0;

	if (d->nsend)
		len += format_counts(d->list, d->nsend, count, 256);
	if (d->nsend && d->nrecv)
		len += (size_t)snprintf(count + len, sizeof count - len, " for ");
	if (d->nrecv)
		format_counts(d->list + d->nsend, d->nrecv, count + len, 256);
	if (!d->nsend && !d->nrecv)
		snprintf(count, sizeof count, "%" PRIu64, d->count);
	tess_coll_format_peer(d->kind, d->op, member ? m->member[d->peer] : d->peer, how,
	                      sizeof how);
	if (m->id) {
		memcpy(group, " in ", 4);
		tess_members_format(m, group + 4, sizeof group - 4);
	}
	if (!d->key.number)
		snprintf(text, size, "the opening of %s",
		         m->id ? group + 4 : "the group of all ranks");
	else if (d->kind == TESS_BARRIER)
		snprintf(text, size, "barrier, call %" PRIu64 "%s%s%s", d->key.number, group,
		         *where ? ", at " : "", where);
	else
		snprintf(text, size, "%s of %s %s%s, %s %" PRIu64 "%s%s%s", tess_kind_name(d->kind),
		         count, tess_dtype_name(d->dtype), how, d->key.channel ? "message" : "call",
		         d->key.number, group, *where ? ", at " : "", where);
}

bool tess_call_desc_valid(const struct tess_call_desc *d, size_t bytes, int32_t nranks)
{
	size_t lists;

	if (nranks < 1 || bytes < sizeof *d + 8 || d->bytes != bytes || bytes % 8 ||
	    bytes > tess_call_desc_size(nranks))
		return false;
	if (d->kind == TESS_ALL_TO_ALL && !d->nsend != !d->nrecv)
		return false; /* they are compared pair by pair */
	if ((d->nsend && d->nsend != (uint32_t)nranks) ||
	    (d->nrecv && d->nrecv != (uint32_t)nranks))
		return false;
	lists = (d->nsend + d->nrecv) * sizeof *d->list;
	return lists < bytes - sizeof *d && !((const char *)d)[bytes - 1] &&
	       d->total == (d->key.channel ? 2 : nranks) &&
	       d->key.channel <= (uint64_t)nranks * (uint64_t)nranks;
}
