/* straggler.h - finds the rank that the others wait for, by the flight records of all ranks. */
#ifndef TESS_FLIGHT_STRAGGLER_H
#define TESS_FLIGHT_STRAGGLER_H

#include <jansson.h>
#include <tessera/plugin.h>

/* A rank that may have left no record. */
struct tess_lost_rank {
	char how[128]; /* "was killed by signal 9 (Killed)" */
	uint64_t reached; /* the last call of all ranks that it reported, or 0 */
	char last_call[528]; /* "its last reported call is ..."; "": it never joined */
};

/*
 * Reads the records of `nranks` ranks in `dir`. The message names the straggler, its last call, and
 * the calls of the other ranks; "" if no rank is in a call, or without a record. Free *merged:
 * {"ranks", "sentence", "straggler" (a rank, or null), "records": [the record of each rank, or
 * {"rank", "lost", "last_call"}]}. TESS_ENOMEM; an unreadable record counts as lost.
 */
tess_status tess_straggler_find(const char *dir, int32_t nranks, const struct tess_lost_rank *lost,
                                json_t **merged, char *sentence, size_t size);

#endif
