/*
 * flight.h - the flight recorder: the last calls of a rank, over all its groups, for whoever asks
 * afterwards where it was. Kept only where there is a directory to write them to (TESSERA_FLIGHT).
 *
 * A call costs a copy of its note (note.h): no lock, no memory; the times are the caller's. The calls
 * may be made by several threads, and written down by any other one meanwhile.
 */
#ifndef TESS_COMM_FLIGHT_H
#define TESS_COMM_FLIGHT_H

#include "core/rendezvous/call_desc.h"

#include <jansson.h>
#include <string.h>

enum { TESS_FLIGHT_CALLS = 256 };

struct tess_flight;

/* What the option says: whether it is a directory. */
static inline bool tess_flight_on(const char *option)
{
	return *option && strcmp(option, "off") != 0;
}

/*
 * `dir` is made if it is missing. *out is NULL where it is "" or "off". TESS_EIO: it cannot be made;
 * TESS_ENOMEM.
 */
tess_status tess_flight_open(const char *dir, struct tess_flight **out);
void tess_flight_close(struct tess_flight *f); /* NULL: nothing */

/*
 * A call begins: its number. 0: f is NULL. Others may see of it before it is written down, which must
 * follow soon: a record that is written meanwhile waits a little for it.
 */
uint64_t tess_flight_number(struct tess_flight *f);
/* Call `number` has begun at `now` in the group of that name, with zeros behind it. 0: nothing. */
void tess_flight_begin(struct tess_flight *f, uint64_t number, const char group[TESS_MEMBERS_KEY],
                       const struct tess_call_desc *n, int64_t now);
/* It has ended at `now`, not before it began; `st` says how. Once a call; number 0: nothing. */
void tess_flight_end(struct tess_flight *f, uint64_t number, tess_status st, int64_t now);

/* Who is in a group; NULL: it is closed. */
struct tess_members_lookup {
	const struct tess_members *(*find)(void *arg, uint32_t id);
	void *arg;
};

/*
 * Writes the calls, and what `about` says of the rank (an object, which is taken; "rank" must be in
 * it), to rank-R.json in the directory, whole or not at all, for nobody but this user. NULL: nothing.
 */
tess_status tess_flight_write(struct tess_flight *f, json_t *about,
                              const struct tess_members_lookup *who);

/* The path of the record of `rank` in `dir`. */
void tess_flight_path(const char *dir, int32_t rank, char *path, size_t room);

/* Writes an object to `path`: whole or not at all, mode 0600. */
tess_status tess_flight_store(const char *path, const json_t *what);

#endif
