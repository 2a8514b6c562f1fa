#include "note.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

size_t tess_note_room(int32_t nranks)
{
	return sizeof(struct tess_note) + (size_t)nranks * 2 * sizeof(uint64_t) + TESS_WHERE;
}

static uint64_t mix(uint64_t h, uint64_t x) /* the finaliser of MurmurHash3 over h and x */
{
	h ^= x + 0x9e3779b97f4a7c15;
	h = (h ^ h >> 33) * 0xff51afd7ed558ccd;
	h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53;
	return h ^ h >> 33;
}

static uint64_t mix_list(uint64_t h, const uint64_t *list, int32_t n)
{
	for (int32_t r = 0; r < n; r++)
		h = mix(h, list[r]);
	return h;
}

uint64_t tess_note_what(const struct tess_coll *c, int32_t nranks)
{
	bool pair = c->kind == TESS_SEND || c->kind == TESS_RECV;
	uint64_t what = pair ? TESS_SEND : (uint64_t)c->kind;

	if (c->kind == TESS_BARRIER)
		return mix(what, 0);
	what |= (uint64_t)c->dtype << 8 | (uint64_t)(c->give != NULL) << 24 |
	        (uint64_t)(c->get != NULL) << 25;
	if (tess_kind_reduces(c->kind))
		what |= (uint64_t)c->op << 16;
	if (tess_kind_rooted(c->kind))
		what |= ((uint64_t)c->peer + 1) << 32;
	if (!c->give && !c->get)
		return mix(what, c->count);
	if (c->give && c->kind != TESS_ALL_TO_ALL)
		what = mix_list(what, c->give, nranks);
	if (c->get && c->kind != TESS_ALL_TO_ALL)
		what = mix_list(what, c->get, nranks);
	return mix(what, 0);
}

/* Every call waits for it: products side by side, then mixed once. */
uint64_t tess_note_print(uint64_t what, const struct tess_key *key, int32_t nranks)
{
	uint64_t where = ((uint64_t)key->group << 32 | key->channel) * 0x9fb21c651e98df25;
	uint64_t which =
		(key->number ^ (uint64_t)(key->channel ? 2 : nranks) << 48) * 0xd6e8feb86659fd93;

	return mix(what, where + which);
}

void tess_note_write(struct tess_note *n, const struct tess_coll *c, const struct tess_key *key,
                     int32_t nranks)
{
	const char *where = c->where ? c->where : "";
	size_t lists, words = strnlen(where, TESS_WHERE - 1);

	n->key = *key;
	n->total = key->channel ? 2 : nranks;
	n->print = c->print;
	n->count = c->count;
	n->kind = c->kind;
	n->dtype = c->dtype;
	n->op = c->op;
	n->peer = c->peer;
	n->ngive = c->give ? (uint32_t)nranks : 0;
	n->nget = c->get ? (uint32_t)nranks : 0;
	if (c->give)
		memcpy(n->list, c->give, n->ngive * sizeof *n->list);
	if (c->get)
		memcpy(n->list + n->ngive, c->get, n->nget * sizeof *n->list);
	lists = n->ngive + n->nget;
	n->bytes = (uint32_t)(sizeof *n + lists * sizeof *n->list + (words + 8) / 8 * 8);
	n->list[lists + words / 8] = 0; /* what follows the last of the words */
	memcpy(n->list + lists, where, words);
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
	if (n->kind == TESS_BARRIER)
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
	if ((n->ngive && n->ngive != (uint32_t)nranks) || (n->nget && n->nget != (uint32_t)nranks))
		return false;
	lists = (n->ngive + n->nget) * sizeof *n->list;
	return lists < bytes - sizeof *n && !((const char *)n)[bytes - 1] &&
	       n->total == (n->key.channel ? 2 : nranks) &&
	       n->key.channel <= (uint64_t)nranks * (uint64_t)nranks;
}
