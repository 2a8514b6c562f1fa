/*
 * flight.h - the flight recorder: the last calls of a rank over all its groups. Calls are recorded
 * only if there is a directory to write to (TESSERA_FLIGHT), or memory of another process that
 * describes the last call if this one dies.
 *
 * A call costs a copy of its descriptor: no lock, no allocation; the caller passes the times.
 * Several threads may record, while another one writes the record.
 */
#ifndef TESS_FLIGHT_FLIGHT_H
#define TESS_FLIGHT_FLIGHT_H

#include "core/rendezvous/call_desc.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

enum { TESS_FLIGHT_CALLS = 256 };

struct tess_flight;

/* Returns whether the value of the option is a directory. */
static inline bool tess_flight_on(const char *option)
{
	return *option && strcmp(option, "off") != 0;
}

/*
 * Opens a recorder and creates `dir` if it is missing. With a `dir` of "" or "off" nothing is
 * written. memory: tess_flight_size() zero bytes for the recorder, which stay the caller's; NULL:
 * allocates, and without a directory *out is NULL. TESS_EIO: it cannot be created; TESS_ENOMEM.
 */
tess_status tess_flight_open(const char *dir, void *memory, struct tess_flight **out);
size_t tess_flight_size(void);
void tess_flight_close(struct tess_flight *f); /* NULL: nothing */

/*
 * Returns the number of a new call; 0: f is NULL. tess_flight_begin() must follow soon: a record
 * that is written in between waits up to 100 ms for it.
 */
uint64_t tess_flight_number(struct tess_flight *f);
/* Records that call `number` began at `now` in a group; its name is padded with zeros. 0: none. */
void tess_flight_begin(struct tess_flight *f, uint64_t number, const char group[TESS_MEMBERS_KEY],
                       const struct tess_call_desc *d, int64_t now);
/* Records that call `number` ended at `now` with status `st`. Once per call; 0: none. */
void tess_flight_end(struct tess_flight *f, uint64_t number, tess_status st, int64_t now);

/* Returns the members of a group; NULL: closed. */
struct tess_members_lookup {
	const struct tess_members *(*find)(void *arg, uint32_t id);
	void *arg;
};

/*
 * Describes the last call, also from another process: "it is in all_reduce ..., call 41, at ...",
 * "its last call was ..."; "" without calls.
 */
void tess_flight_describe_last(const struct tess_flight *f, char *text, size_t size);

/* Returns whether tess_flight_write() writes a file. f may be NULL. */
bool tess_flight_writes(const struct tess_flight *f);

/*
 * Writes the calls, and `about`, an object that describes the rank (taken; must have "rank"), to
 * rank-R.json in the directory, atomically, mode 0600. f must have a directory.
 */
tess_status tess_flight_write(struct tess_flight *f, json_t *about,
                              const struct tess_members_lookup *lookup);

/* Returns the path of the record of `rank` in `dir`. */
void tess_flight_path(const char *dir, int32_t rank, char *path, size_t size);

/* Writes an object to `path`, atomically, mode 0600. */
tess_status tess_flight_store(const char *path, const json_t *object);

#endif
