#include "core/flight/flight.h"

#include "core/base/clock.h"
#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	NAME_SIZE = TESS_MEMBERS_KEY,
	DESC_SIZE = sizeof(struct tess_call_desc) + 16 * sizeof(uint64_t) + TESS_WHERE,
	SLOT_WORDS = (NAME_SIZE + DESC_SIZE) / sizeof(uint64_t),
	WAIT_NS = 100 * TESS_MS /* maximum wait for calls that are being recorded */
};
enum { ONGOING, FINISHED, FAILED, STATE_BITS = 2 };

/*
 * One call, as a sequence lock: the writer sets `number` to 0, stores the rest, then `number`; a
 * reader uses the copy only if `number` is equal before and after. All fields are atomic, so no
 * copy is a data race; release and acquire of each word are free on x86 and need no fence. `end` is
 * the state and the duration. During the call it is the state and the number, so that an end after
 * the slot has been reused changes nothing.
 */
struct flight_slot {
	atomic_uint_least64_t number, end;
	atomic_int_least64_t began;
	atomic_uint_least64_t word[SLOT_WORDS]; /* the name of the group, then the descriptor */
};

struct tess_flight {
	atomic_uint_least64_t calls; /* number of calls so far */
	bool lent; /* the memory belongs to the caller */
	char dir[4000]; /* "": nothing is written */
	struct flight_slot slot[TESS_FLIGHT_CALLS];
};

struct flight_call { /* a copy of a slot */
	uint64_t number;
	int64_t began, took; /* ns */
	unsigned state;
	char group[NAME_SIZE];
	struct tess_call_desc *desc; /* DESC_SIZE bytes */
};

size_t tess_flight_size(void)
{
	return sizeof(struct tess_flight);
}

static tess_status make_directory(const char *dir)
{
	struct tess_flight *f;

	if (strlen(dir) >= sizeof f->dir)
		return tess_fail(TESS_EINVAL, "TESSERA_FLIGHT: a path of %zu bytes is too long",
		                 strlen(dir));
	if (mkdir(dir, 0777) && errno != EEXIST)
		return tess_fail(TESS_EIO, "TESSERA_FLIGHT: the directory %s cannot be created: %s",
		                 dir, strerror(errno));
	return TESS_OK;
}

tess_status tess_flight_open(const char *dir, void *memory, struct tess_flight **out)
{
	bool on = tess_flight_on(dir);
	tess_status st = on ? make_directory(dir) : TESS_OK;
	struct tess_flight *f = NULL;

	if (!st && (on || memory)) {
		f = memory ? memory : calloc(1, sizeof *f);
		if (!f)
			return tess_fail(TESS_ENOMEM, "no memory for the flight recorder");
		f->lent = memory;
		memcpy(f->dir, dir, on ? strlen(dir) : 0);
	}
	if (!st)
		*out = f;
	return st;
}

void tess_flight_close(struct tess_flight *f)
{
	if (f && !f->lent)
		free(f);
}

bool tess_flight_writes(const struct tess_flight *f)
{
	return f && *f->dir;
}

/* ---- recording ------------------------------------------------------------------------------- */

static inline void store_words(struct flight_slot *s, size_t at, const void *from, size_t bytes)
{
#pragma GCC unroll 8
	for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
		uint64_t x;

		memcpy(&x, (const char *)from + i * sizeof x, sizeof x);
		atomic_store_explicit(&s->word[at + i], x, memory_order_release);
	}
}

/* Stores a descriptor without lists, which do not fit; keeps the rank's own count. */
static void store_without_lists(struct flight_slot *s, const struct tess_call_desc *d)
{
	size_t lists = (d->nsend + d->nrecv) * sizeof *d->list;
	struct tess_call_desc head = *d;

	head.nsend = head.nrecv = 0;
	head.bytes -= (uint32_t)lists;
	store_words(s, NAME_SIZE / 8, &head, sizeof head);
	store_words(s, (NAME_SIZE + sizeof head) / 8, (const char *)d->list + lists,
	            head.bytes - sizeof head);
}

uint64_t tess_flight_number(struct tess_flight *f)
{
	return f ? atomic_fetch_add_explicit(&f->calls, 1, memory_order_relaxed) + 1 : 0;
}

void tess_flight_begin(struct tess_flight *f, uint64_t number, const char group[TESS_MEMBERS_KEY],
                       const struct tess_call_desc *d, int64_t now)
{
	struct flight_slot *s;

	if (!number)
		return;
	s = &f->slot[number % TESS_FLIGHT_CALLS];
	atomic_store_explicit(&s->number, 0, memory_order_relaxed);
	atomic_store_explicit(&s->end, number << STATE_BITS | ONGOING, memory_order_release);
	atomic_store_explicit(&s->began, now, memory_order_release);
	store_words(s, 0, group, NAME_SIZE);
	if (d->bytes <= DESC_SIZE) {
		store_words(s, NAME_SIZE / 8, d, sizeof *d);
		store_words(s, (NAME_SIZE + sizeof *d) / 8, d->list, d->bytes - sizeof *d);
	} else {
		store_without_lists(s, d);
	}
	atomic_store_explicit(&s->number, number, memory_order_release);
}

void tess_flight_end(struct tess_flight *f, uint64_t number, tess_status st, int64_t now)
{
	uint64_t ongoing = number << STATE_BITS | ONGOING, took;
	struct flight_slot *s;

	if (!number)
		return;
	s = &f->slot[number % TESS_FLIGHT_CALLS];
	took = (uint64_t)(now - atomic_load_explicit(&s->began, memory_order_relaxed));
	atomic_compare_exchange_strong_explicit(&s->end, &ongoing,
	                                        took << STATE_BITS | (st ? FAILED : FINISHED),
	                                        memory_order_release, memory_order_relaxed);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Returns whether a copy is valid; two simultaneous writers may have mixed their words. */
static bool is_valid_call(const struct flight_call *c)
{
	const struct tess_call_desc *d = c->desc;
	size_t lists = ((size_t)d->nsend + d->nrecv) * sizeof *d->list;

	return d->bytes > sizeof *d && d->bytes <= DESC_SIZE && d->bytes % 8 == 0 &&
	       lists < d->bytes - sizeof *d && !((const char *)d)[d->bytes - 1] &&
	       memchr(c->group, 0, sizeof c->group);
}

/* Waits until the slot has this call or a later one, or `until`. */
static void wait_for_slot(const struct tess_flight *f, uint64_t number, int64_t until)
{
	const struct flight_slot *s = &f->slot[number % TESS_FLIGHT_CALLS];

	while (atomic_load_explicit(&s->number, memory_order_acquire) < number &&
	       tess_now() < until)
		sched_yield();
}

/* Loads a call; false: it is being recorded, or its slot has been reused. */
static bool load_call(const struct tess_flight *f, uint64_t number, struct flight_call *out)
{
	const struct flight_slot *s = &f->slot[number % TESS_FLIGHT_CALLS];
	uint64_t end, words[SLOT_WORDS];

	if (atomic_load_explicit(&s->number, memory_order_acquire) != number)
		return false;
	end = atomic_load_explicit(&s->end, memory_order_acquire);
	out->began = atomic_load_explicit(&s->began, memory_order_acquire);
	for (size_t i = 0; i < SLOT_WORDS; i++)
		words[i] = atomic_load_explicit(&s->word[i], memory_order_acquire);
	if (atomic_load_explicit(&s->number, memory_order_relaxed) != number)
		return false;
	out->number = number;
	out->state = end & ((1 << STATE_BITS) - 1);
	out->took = (int64_t)(end >> STATE_BITS);
	memcpy(out->group, words, NAME_SIZE);
	memcpy(out->desc, (const char *)words + NAME_SIZE, DESC_SIZE);
	return is_valid_call(out);
}

void tess_flight_describe_last(const struct tess_flight *f, char *text, size_t size)
{
	static const struct tess_members none = { 0 };
	struct flight_call c = { .desc = malloc(DESC_SIZE) };
	char call[640];
	size_t len;

	*text = '\0';
	if (c.desc && load_call(f, atomic_load(&f->calls), &c)) {
		tess_call_desc_format(c.desc, &none, call, sizeof call);
		len = (size_t)snprintf(text, size, "%s %s",
		                       c.state == ONGOING ? "it is in" : "its last call was", call);
		if (strcmp(c.group, "world") != 0 && len < size)
			snprintf(text + len, size - len, ", in group %s", c.group);
	}
	free(c.desc);
}

static json_t *counts_to_json(const uint64_t *from, uint32_t n)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(a, json_integer((json_int_t)from[i]));
	return a;
}

/* Returns a JSON string; "" if the text is not UTF-8. */
static json_t *text_to_json(const char *s)
{
	json_t *t = json_string(s);

	return t ? t : json_string("");
}

static json_t *call_to_json(const struct flight_call *c, const struct tess_members_lookup *lookup)
{
	static const struct tess_members none = { 0 };
	static const char *const states[] = { "started", "finished", "failed" };
	const struct tess_call_desc *d = c->desc;
	const struct tess_members *m = lookup->find(lookup->arg, d->key.group);
	char text[640];
	json_t *o;

	tess_call_desc_format(d, m ? m : &none, text, sizeof text);
	o = json_pack("{s:I, s:o, s:i, s:I, s:s, s:s, s:o, s:o, s:I}", "index",
	              (json_int_t)c->number, "group", text_to_json(c->group), "channel",
	              (int)d->key.channel, "number", (json_int_t)d->key.number, "kind",
	              tess_kind_name(d->kind), "state", states[c->state], "text",
	              text_to_json(text), "where",
	              text_to_json((const char *)(d->list + d->nsend + d->nrecv)), "started",
	              (json_int_t)c->began);
	if (!o)
		return NULL;
	if (c->state != ONGOING)
		json_object_set_new(o, states[c->state], json_integer(c->began + c->took));
	if (d->kind == TESS_BARRIER)
		return o;
	json_object_set_new(o, "dtype", json_string(tess_dtype_name(d->dtype)));
	if (tess_kind_reduces(d->kind))
		json_object_set_new(o, "op", json_string(tess_reduce_op_name(d->op)));
	if (tess_kind_rooted(d->kind) || d->key.channel)
		json_object_set_new(o, tess_kind_rooted(d->kind) ? "root" : "peer",
		                    json_integer(d->peer));
	json_object_set_new(o, "count", json_integer((json_int_t)d->count));
	if (d->nsend)
		json_object_set_new(o, "send_counts", counts_to_json(d->list, d->nsend));
	if (d->nrecv)
		json_object_set_new(o, "recv_counts", counts_to_json(d->list + d->nsend, d->nrecv));
	return o;
}

static json_t *calls_to_json(const struct tess_flight *f, const struct tess_members_lookup *lookup)
{
	uint64_t calls = atomic_load(&f->calls), first;
	struct flight_call c = { .desc = malloc(DESC_SIZE) };
	int64_t until = tess_now() + WAIT_NS;
	json_t *a = c.desc ? json_array() : NULL;

	first = calls > TESS_FLIGHT_CALLS ? calls - TESS_FLIGHT_CALLS : 0;
	for (uint64_t i = first + 1; a && i <= calls; i++) {
		wait_for_slot(f, i, until);
		if (load_call(f, i, &c))
			json_array_append_new(a, call_to_json(&c, lookup));
	}
	free(c.desc);
	return a;
}

/* Reads both clocks at one moment; times of calls are monotonic, in ns. */
static json_t *read_clocks(void)
{
	struct timespec t;
	int64_t now = tess_now();

	clock_gettime(CLOCK_REALTIME, &t);
	return json_pack("{s:I, s:I}", "monotonic", (json_int_t)now, "unix",
	                 (json_int_t)t.tv_sec * 1000000000 + t.tv_nsec);
}

void tess_flight_path(const char *dir, int32_t rank, char *path, size_t size)
{
	snprintf(path, size, "%s/rank-%d.json", dir, rank);
}

/* Writes a text; returns 0 or errno. */
static int write_text(int fd, const char *text)
{
	size_t left = strlen(text);

	while (left) {
		ssize_t n = write(fd, text, left);

		if (n < 0 && errno != EINTR)
			return errno;
		text += n < 0 ? 0 : n;
		left -= n < 0 ? 0 : (size_t)n;
	}
	return 0;
}

tess_status tess_flight_store(const char *path, const json_t *object)
{
	char *text = json_dumps(object, JSON_INDENT(1)); /* json_dumpfd() makes many small writes */
	char temporary[4096];
	int fd, err;

	if (!text)
		return tess_fail(TESS_ENOMEM, "no memory for the record %s", path);
	snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
	fd = mkostemp(temporary, O_CLOEXEC);
	err = fd < 0 ? errno : write_text(fd, text);
	free(text);
	if (fd >= 0 && close(fd) && !err)
		err = errno;
	if (!err && rename(temporary, path))
		err = errno;
	if (!err)
		return TESS_OK;
	if (fd >= 0)
		unlink(temporary);
	return tess_fail(TESS_EIO, "the record %s cannot be written: %s", path, strerror(err));
}

tess_status tess_flight_write(struct tess_flight *f, json_t *about,
                              const struct tess_members_lookup *lookup)
{
	char path[4096];
	tess_status st = TESS_OK;

	if (json_object_set_new(about, "clock", read_clocks()) ||
	    json_object_set_new(about, "made", json_integer((json_int_t)atomic_load(&f->calls))) ||
	    json_object_set_new(about, "calls", calls_to_json(f, lookup))) {
		st = tess_fail(TESS_ENOMEM, "no memory for the flight record");
		goto out;
	}
	tess_flight_path(f->dir, (int32_t)json_integer_value(json_object_get(about, "rank")), path,
	                 sizeof path);
	st = tess_flight_store(path, about);
out:
	json_decref(about);
	return st;
}
