#include "note.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

size_t tess_note_room(int32_t nranks)
{
	return sizeof(struct tess_note) + (size_t)nranks * 2 * sizeof(uint64_t) + TESS_WHERE;
}

static uint64_t mix_list(uint64_t h, const uint64_t *list, int32_t n)
{
	for (int32_t r = 0; r < n; r++)
		h = tess_note_mix(h, list[r]);
	return h;
}

uint64_t tess_note_what(const struct tess_coll *c, int32_t nranks)
{
	bool pair = c->kind == TESS_SEND || c->kind == TESS_RECV;
	uint64_t what = pair ? TESS_SEND : (uint64_t)c->kind;

	if (c->kind == TESS_BARRIER)
		return tess_note_mix(what, 0);
	what |= (uint64_t)c->dtype << 8 | (uint64_t)(c->give != NULL) << 24 |
	        (uint64_t)(c->get != NULL) << 25;
	if (tess_kind_reduces(c->kind))
		what |= (uint64_t)c->op << 16;
	if (tess_kind_rooted(c->kind))
		what |= ((uint64_t)c->peer + 1) << 32;
	if (!c->give && !c->get)
		return tess_note_mix(what, c->count);
	if (c->give && c->kind != TESS_ALL_TO_ALL)
		what = mix_list(what, c->give, nranks);
	if (c->get && c->kind != TESS_ALL_TO_ALL)
		what = mix_list(what, c->get, nranks);
	return tess_note_mix(what, 0);
}

static inline void write_where(struct tess_note *n, uint64_t *at, const char *where)
{
	size_t len = where ? strnlen(where, TESS_WHERE - 1) : 0;
	uint64_t *last = at + len / 8;

	n->bytes = (uint32_t)((const char *)(last + 1) - (const char *)n);
	*last = 0; /* what follows the last of the letters */
	memcpy(at, where ? where : "", len);
}

static __attribute__((noinline)) void write_lists(struct tess_note *n, const struct tess_coll *c)
{
	if (c->give)
		memcpy(n->list, c->give, n->ngive * sizeof *n->list);
	if (c->get)
		memcpy(n->list + n->ngive, c->get, n->nget * sizeof *n->list);
}

void tess_note_write(struct tess_note *n, const struct tess_coll *c, const struct tess_key *key,
                     int32_t nranks)
{
	uint32_t ngive = c->give ? (uint32_t)nranks : 0, nget = c->get ? (uint32_t)nranks : 0;

	*n = (struct tess_note){
		.total = key->channel ? 2 : nranks,
		.key = *key,
		.print = c->print,
		.count = c->count,
		.kind = c->kind,
		.dtype = c->dtype,
		.op = c->op,
		.peer = c->peer,
		.ngive = ngive,
		.nget = nget,
	};
	if (ngive || nget)
		write_lists(n, c);
	write_where(n, n->list + ngive + nget, c->where);
}

void tess_note_opening(struct tess_note *n, uint32_t id, int32_t nranks)
{
	struct tess_coll c = { .size = sizeof c, .kind = TESS_BARRIER };
	const struct tess_key key = { .group = id };

	c.print = tess_note_print(tess_note_what(&c, nranks), &key, nranks);
	tess_note_write(n, &c, &key, nranks);
}

void tess_note_repeat(struct tess_note *n, uint64_t print, uint64_t number, const char *where)
{
	n->key.number = number;
	n->print = print;
	write_where(n, n->list, where);
}

bool tess_note_agree(const struct tess_note *a, int32_t rank_a, const struct tess_note *b,
                     int32_t rank_b)
{
	if (a->print != b->print)
		return false;
	if (a->kind != TESS_ALL_TO_ALL || !a->ngive || !b->ngive)
		return a->ngive == b->ngive;
	return a->list[rank_b] == b->list[b->ngive + (uint32_t)rank_a] &&
	       b->list[rank_a] == a->list[a->ngive + (uint32_t)rank_b];
}

static size_t list_text(const uint64_t *list, uint32_t n, char *text, size_t room)
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

/* " (sum) to rank 2", the rank being that of the world */
static void how_text(const struct tess_note *n, const struct tess_roster *r, char *text,
                     size_t room)
{
	bool member = n->peer >= 0 && n->peer < r->n;
	int32_t peer = member ? r->member[n->peer] : n->peer;

	*text = '\0';
	if (n->kind == TESS_ALL_REDUCE || n->kind == TESS_REDUCE_SCATTER)
		snprintf(text, room, " (%s)", tess_op_name(n->op));
	else if (n->kind == TESS_REDUCE)
		snprintf(text, room, " (%s) to rank %d", tess_op_name(n->op), peer);
	else if (n->kind == TESS_GATHER || n->kind == TESS_SEND)
		snprintf(text, room, " to rank %d", peer);
	else if (n->kind == TESS_BROADCAST || n->kind == TESS_SCATTER || n->kind == TESS_RECV)
		snprintf(text, room, " from rank %d", peer);
}

void tess_note_text(const struct tess_note *n, const struct tess_roster *r, char *text, size_t room)
{
	const char *where = (const char *)(n->list + n->ngive + n->nget);
	char count[560], how[48], group[160] = "";
	size_t len = 0;

	if (n->ngive)
		len += list_text(n->list, n->ngive, count, 256);
	if (n->ngive && n->nget)
		len += (size_t)snprintf(count + len, sizeof count - len, " for ");
	if (n->nget)
		list_text(n->list + n->ngive, n->nget, count + len, 256);
	if (!n->ngive && !n->nget)
		snprintf(count, sizeof count, "%" PRIu64, n->count);
	how_text(n, r, how, sizeof how);
	if (r->id) {
		memcpy(group, " in ", 4);
		tess_roster_text(r, group + 4, sizeof group - 4);
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

bool tess_note_valid(const struct tess_note *n, size_t bytes, int32_t nranks)
{
	size_t lists;

	if (nranks < 1 || bytes < sizeof *n + 8 || n->bytes != bytes || bytes % 8 ||
	    bytes > tess_note_room(nranks))
		return false;
	if (n->kind == TESS_ALL_TO_ALL && !n->ngive != !n->nget)
		return false; /* they are compared pair by pair */
	if ((n->ngive && n->ngive != (uint32_t)nranks) || (n->nget && n->nget != (uint32_t)nranks))
		return false;
	lists = (n->ngive + n->nget) * sizeof *n->list;
	return lists < bytes - sizeof *n && !((const char *)n)[bytes - 1] &&
	       n->total == (n->key.channel ? 2 : nranks) &&
	       n->key.channel <= (uint64_t)nranks * (uint64_t)nranks;
}
